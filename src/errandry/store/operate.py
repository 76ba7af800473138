"""What operators do to jobs: by id, or by query in bounded slices."""

from collections.abc import Callable

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.answer import Moved
from errandry.core.command import Cancel, Edit, Postpone, Promote, Remove, Rerun, Resolve
from errandry.core.job import Job
from errandry.core.operator import Operator
from errandry.core.query import Query
from errandry.core.state import TERMINAL, Move, State
from errandry.errors import DuplicateJob, ErrandryError, UnknownJob
from errandry.store import flow
from errandry.store.ledger import Ledger

PARTS = (frozenset(State) - TERMINAL, frozenset({State.COMPLETED}), frozenset({State.FAILED, State.CANCELED}))
"""States whose jobs stand together in every store."""
Act = Callable[[Job], bool]
"""Does it to one job; False if that had been done before. Raises InvalidMove."""


def cancel(ledger: Ledger, command: Cancel) -> Moved:
    def act(job: Job) -> bool:
        if job.state is State.CANCELED or job.cancel_requested:
            return False
        made = Move.CANCEL_FORCED if job.finished else Move.CANCEL
        ledger.move(made, job, move.canceled(job, ledger.now, command.force))
        if not command.children and job.id in ledger.ended:
            ledger.ended[job.id] = replace(ledger.ended[job.id], cancel=None)
        return True

    return _each(ledger, command, act)


def rerun(ledger: Ledger, command: Rerun) -> Moved:
    reopened: set[str] = set()

    def act(job: Job) -> bool:
        if job.id not in reopened:
            _refuse_if_held(ledger, job)
            after = flow.rerun(ledger, job, _when(command, ledger.now), command.reset_attempts)
            if command.from_start and job.steps is not None:
                ledger.tables.drop_steps([job.id])
                after = replace(after, steps=None)
            reopened.update(flow.reopen(ledger, ledger.move(Move.RERUN, job, after)))
        return True

    return _each(ledger, command, act)


def edit(ledger: Ledger, command: Edit) -> Moved:
    def act(job: Job) -> bool:
        after = move.edited(job, command, ledger.now)
        if after.queue != job.queue:
            _refuse_if_taken(ledger, after)
            ledger.leave_queue(job, after)
        ledger.move(Move.EDIT, job, after)
        return True

    if command.payload is not None:
        check.sized("payload", command.payload, ledger.bounds.payload)
    return _each(ledger, command, act)


def postpone(ledger: Ledger, command: Postpone) -> Moved:
    def act(job: Job) -> bool:
        run_at = _when(command, ledger.now) or ledger.now
        ledger.move(Move.POSTPONE, job, move.postponed(job, run_at, ledger.now))
        return True

    return _each(ledger, command, act)


def promote(ledger: Ledger, command: Promote) -> Moved:
    def act(job: Job) -> bool:
        ledger.move(Move.PROMOTE, job, move.promoted(job, ledger.now))
        return True

    return _each(ledger, command, act)


def resolve(ledger: Ledger, command: Resolve) -> Moved:
    def act(job: Job) -> bool:
        after = move.resolved(job, command.state, command.result, command.message, ledger.now)
        ledger.move(Move.RESOLVE, job, after)
        return True

    if command.result is not None:
        check.sized("result", command.result, ledger.bounds.result)
    return _each(ledger, command, act)


def remove(ledger: Ledger, command: Remove) -> Moved:
    def act(job: Job) -> bool:
        ledger.remove(move.removable(job, command.force), job)
        return True

    return _each(ledger, command, act)


def _refuse_if_held(ledger: Ledger, job: Job) -> None:
    """A job must not live again beside another one that holds its unique key."""
    if job.unique is not None and (rival := flow.rival(ledger, job)) is not None:
        raise DuplicateJob(job.unique.key, rival)


def _refuse_if_taken(ledger: Ledger, job: Job) -> None:
    """The same in another queue, where the key is one of its own."""
    if job.unique is not None and job.unique.is_of_queue:
        _refuse_if_held(ledger, job)


def _each(ledger: Ledger, command: Operator, act: Act) -> Moved:
    """Act on every job the command means; what is refused is reported and hinders nobody."""
    ids, below = _meant(ledger, command)
    if isinstance(command, Rerun) and len(ids) > 1:
        ids = flow.children_first(ledger, ids)
    if isinstance(command, Rerun) or (isinstance(command, Edit) and command.queue is not None):
        held = [job for one in ids if (job := ledger.get(one)) is not None]
        queue = command.queue if isinstance(command, Edit) else None
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


def _meant(ledger: Ledger, command: Operator) -> tuple[list[str], int | None]:
    """The jobs named, or the next slice of those that match and may move; and where that slice ends."""
    ids, query, states = list(dict.fromkeys(command.ids)), command.query, command.states
    if query is None:
        return ids, None
    if ids:
        found = [job for one in ids if (job := ledger.get(one)) is not None]
        return [job.id for job in found if job.state in states and query.matches(job, ledger.now)], None
    ledger.flush()
    floor = _floor(ledger, command, query)
    found = ledger.tables.matching(query, states, command.below, ledger.now, command.limit + 1, floor)
    slice_ = found[: command.limit]
    ledger.know(slice_)
    below = slice_[-1].seq if len(found) > command.limit else floor + 1 if floor else None
    return [job.id for job in slice_], below


def _floor(ledger: Ledger, command: Operator, query: Query) -> int:
    """The number of the first job that this slice does not look at; 0 if it may look at all."""
    if "id" in dict(query.within):
        return 0  # each is found by itself
    states = command.states & set(dict(query.within).get("state", State))
    parts = [state for part in PARTS if part & states for state in part]
    return ledger.tables.floor(parts, command.below, ledger.bounds.scan) if parts else 0


def _when(command: Rerun | Postpone, now: float) -> float | None:
    return command.run_at if command.delay is None else now + command.delay
