"""What operators do to jobs: by id, or by query in bounded slices."""

from collections.abc import Callable

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.answer import Moved
from errandry.core.command import (
    CancelJobs,
    EditJobs,
    PostponeJobs,
    PromoteJobs,
    RemoveJobs,
    RerunJobs,
    ResolveJobs,
)
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.core.selection import JobSelection
from errandry.core.state import TERMINAL, Move, State
from errandry.errors import DuplicateJob, ErrandryError, UnknownJob
from errandry.store.execute import flow
from errandry.store.execute.unit_of_work import UnitOfWork

PARTS = (frozenset(State) - TERMINAL, frozenset({State.COMPLETED}), frozenset({State.FAILED, State.CANCELED}))
"""States whose jobs stand together in every store."""
Act = Callable[[JobRecord], bool]
"""Does it to one job; False if that had been done before. Raises InvalidMove."""


def cancel(ledger: UnitOfWork, command: CancelJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        if job.state is State.CANCELED or job.cancel_requested:
            return False
        made = Move.CANCEL_FORCED if job.finished else Move.CANCEL
        ledger.move(made, job, move.canceled(job, ledger.now, command.force))
        if not command.children and job.id in ledger.ended:
            ledger.ended[job.id] = replace(ledger.ended[job.id], cancel=None)
        return True

    return _each(ledger, command, act)


def rerun(ledger: UnitOfWork, command: RerunJobs) -> Moved:
    reopened: set[str] = set()

    def act(job: JobRecord) -> bool:
        if job.id not in reopened:
            _refuse_if_held(ledger, job)  # guard: unique_key_of_a_rerun
            after = flow.rerun(ledger, job, _when(command, ledger.now), command.reset_attempts)
            if command.from_start and job.steps is not None:
                ledger.tables.drop_steps([job.id])
                after = replace(after, steps=None)
            reopened.update(flow.reopen(ledger, ledger.move(Move.RERUN, job, after)))
        return True

    return _each(ledger, command, act)


def edit(ledger: UnitOfWork, command: EditJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        after = move.edited(job, command, ledger.now)
        if after.queue != job.queue:
            _refuse_if_taken(ledger, after)  # guard: key_in_another_queue
            ledger.leave_queue(job, after)  # guard: counted_where_it_is
        ledger.move(Move.EDIT, job, after)
        return True

    if command.payload is not None:
        check.sized("payload", command.payload, ledger.bounds.payload)
    return _each(ledger, command, act)


def postpone(ledger: UnitOfWork, command: PostponeJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        run_at = _when(command, ledger.now) or ledger.now
        ledger.move(Move.POSTPONE, job, move.postponed(job, run_at, ledger.now))
        return True

    return _each(ledger, command, act)


def promote(ledger: UnitOfWork, command: PromoteJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        ledger.move(Move.PROMOTE, job, move.promoted(job, ledger.now))
        return True

    return _each(ledger, command, act)


def resolve(ledger: UnitOfWork, command: ResolveJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        after = move.resolved(job, command.state, command.result, command.message, ledger.now)
        ledger.move(Move.RESOLVE, job, after)
        return True

    if command.result is not None:
        check.sized("result", command.result, ledger.bounds.result)
    return _each(ledger, command, act)


def remove(ledger: UnitOfWork, command: RemoveJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        ledger.remove(move.removable(job, command.force), job)
        return True

    return _each(ledger, command, act)


def _refuse_if_held(ledger: UnitOfWork, job: JobRecord) -> None:
    """A job must not live again beside another one that holds its unique key."""
    if job.unique is not None and (rival := flow.rival(ledger, job)) is not None:
        raise DuplicateJob(job.unique.key, rival)


def _refuse_if_taken(ledger: UnitOfWork, job: JobRecord) -> None:
    """The same in another queue, where the key is one of its own."""
    if job.unique is not None and job.unique.is_of_queue:
        _refuse_if_held(ledger, job)


def _each(ledger: UnitOfWork, command: JobSelection, act: Act) -> Moved:
    """Act on every job the command means; what is refused is reported and hinders nobody."""
    ids, below = _meant(ledger, command)
    if isinstance(command, RerunJobs) and len(ids) > 1:
        ids = flow.children_first(ledger, ids)  # guard: children_first
    if isinstance(command, RerunJobs) or (isinstance(command, EditJobs) and command.queue is not None):
        held = [job for one in ids if (job := ledger.get(one)) is not None]
        queue = command.queue if isinstance(command, EditJobs) else None
        living = [replace(job, queue=queue or job.queue) for job in held if job.unique is not None]
        ledger.load_keys([move.slot_of(job, job.unique, ledger.now) for job in living if job.unique])
    moved: list[str] = []
    already: list[str] = []
    refused: list[tuple[str, ErrandryError]] = []
    for job_id in ids:
        try:
            if (job := ledger.get(job_id)) is None:
                raise UnknownJob(job_id)
            (moved if act(job) else already).append(job_id)
        except ErrandryError as error:
            refused.append((job_id, error))
    return Moved(tuple(moved), tuple(already), tuple(refused), below)


def _meant(ledger: UnitOfWork, command: JobSelection) -> tuple[list[str], int | None]:
    """The jobs named, or the next slice of those that match and may move; and where that slice ends."""
    ids, query, states = list(dict.fromkeys(command.ids)), command.query, command.states
    if query is None:
        return ids, None
    if ids:
        found = [job for one in ids if (job := ledger.get(one)) is not None]
        # guard: recheck
        return [job.id for job in found if job.state in states and query.matches(job, ledger.now)], None
    ledger.flush()
    floor = _floor(ledger, command, query)  # guard: slice_bound
    found = ledger.tables.matching(query, states, command.below, ledger.now, command.limit + 1, floor)
    slice_ = found[: command.limit]
    ledger.know(slice_)
    below = slice_[-1].seq if len(found) > command.limit else floor + 1 if floor else None
    return [job.id for job in slice_], below


def _floor(ledger: UnitOfWork, command: JobSelection, query: Query) -> int:
    """The number of the first job that this slice does not look at; 0 if it may look at all."""
    if "id" in dict(query.within):
        return 0  # each is found by itself
    states = command.states & set(dict(query.within).get("state", State))
    parts = [state for part in PARTS if part & states for state in part]
    return ledger.tables.seq_floor(parts, command.below, ledger.bounds.scan) if parts else 0


def _when(command: RerunJobs | PostponeJobs, now: float) -> float | None:
    return command.run_at if command.delay is None else now + command.delay
