"""Operator commands on jobs, selected by id, or by query in bounded slices."""

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

STATE_GROUPS = (
    frozenset(State) - TERMINAL,
    frozenset({State.COMPLETED}),
    frozenset({State.FAILED, State.CANCELED}),
)
"""States whose jobs every store keeps together, so that a scan of one group reads nothing of the others."""
JobAction = Callable[[JobRecord], bool]
"""Applies the command to one job; False if that was done before. Raises InvalidMove."""


def cancel(work: UnitOfWork, command: CancelJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        if job.state is State.CANCELED or job.cancel_requested:
            return False
        made_move = Move.CANCEL_FORCED if job.finished else Move.CANCEL
        work.move(made_move, job, move.canceled(job, work.now, command.force))
        if not command.children and job.id in work.flow_ends:
            work.flow_ends[job.id] = replace(work.flow_ends[job.id], cancel=None)
        return True

    return _apply_to_jobs(work, command, act)


def rerun(work: UnitOfWork, command: RerunJobs) -> Moved:
    reopened: set[str] = set()

    def act(job: JobRecord) -> bool:
        if job.id not in reopened:
            _refuse_if_held(work, job)  # guard: unique_key_of_a_rerun
            after = flow.rerun(work, job, _new_run_at(command, work.now), command.reset_attempts)
            if command.from_start and job.steps is not None:
                work.tables.drop_steps([job.id])
                after = replace(after, steps=None)
            reopened.update(flow.reopen_parents(work, work.move(Move.RERUN, job, after)))
        return True

    return _apply_to_jobs(work, command, act)


def edit(work: UnitOfWork, command: EditJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        after = move.edited(job, command, work.now)
        if after.queue != job.queue:
            _refuse_if_held_in_queue(work, after)  # guard: key_in_another_queue
            work.change_queue(job, after)  # guard: counted_where_it_is
        work.move(Move.EDIT, job, after)
        return True

    if command.payload is not None:
        check.size("payload", command.payload, work.limits.payload)
    return _apply_to_jobs(work, command, act)


def postpone(work: UnitOfWork, command: PostponeJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        run_at = _new_run_at(command, work.now) or work.now
        work.move(Move.POSTPONE, job, move.postponed(job, run_at, work.now))
        return True

    return _apply_to_jobs(work, command, act)


def promote(work: UnitOfWork, command: PromoteJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        work.move(Move.PROMOTE, job, move.promoted(job, work.now))
        return True

    return _apply_to_jobs(work, command, act)


def resolve(work: UnitOfWork, command: ResolveJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        after = move.resolved(job, command.state, command.result, command.message, work.now)
        work.move(Move.RESOLVE, job, after)
        return True

    if command.result is not None:
        check.size("result", command.result, work.limits.result)
    return _apply_to_jobs(work, command, act)


def remove(work: UnitOfWork, command: RemoveJobs) -> Moved:
    def act(job: JobRecord) -> bool:
        work.remove(move.removal(job, command.force), job)
        return True

    return _apply_to_jobs(work, command, act)


def _refuse_if_held(work: UnitOfWork, job: JobRecord) -> None:
    """Raise DuplicateJob if another unfinished job holds the unique key of a job that is to run again."""
    if job.unique is not None and (rival := flow.key_rival(work, job)) is not None:
        raise DuplicateJob(job.unique.key, rival)


def _refuse_if_held_in_queue(work: UnitOfWork, job: JobRecord) -> None:
    """Like `_refuse_if_held`, for a job in its new queue, if its key is unique per queue."""
    if job.unique is not None and job.unique.is_bound_to_queue:
        _refuse_if_held(work, job)


def _apply_to_jobs(work: UnitOfWork, command: JobSelection, act: JobAction) -> Moved:
    """Apply a command to each selected job. A refused job is reported, and the others still go on."""
    ids, below = _select_jobs(work, command)
    if isinstance(command, RerunJobs) and len(ids) > 1:
        ids = flow.order_children_first(work, ids)  # guard: children_first
    if isinstance(command, RerunJobs) or (isinstance(command, EditJobs) and command.queue is not None):
        jobs = [job for job_id in ids if (job := work.get(job_id)) is not None]
        queue = command.queue if isinstance(command, EditJobs) else None
        with_key = [replace(job, queue=queue or job.queue) for job in jobs if job.unique is not None]
        work.load_keys([move.slot_of(job, job.unique, work.now) for job in with_key if job.unique])
    moved: list[str] = []
    already: list[str] = []
    refused: list[tuple[str, ErrandryError]] = []
    for job_id in ids:
        try:
            if (job := work.get(job_id)) is None:
                raise UnknownJob(job_id)
            (moved if act(job) else already).append(job_id)
        except ErrandryError as error:
            refused.append((job_id, error))
    return Moved(tuple(moved), tuple(already), tuple(refused), below)


def _select_jobs(work: UnitOfWork, command: JobSelection) -> tuple[list[str], int | None]:
    """Return the ids that are named, or the next slice of those that match; and where the slice ends."""
    ids, query, states = list(dict.fromkeys(command.ids)), command.query, command.states
    if query is None:
        return ids, None
    if ids:
        jobs = [job for job_id in ids if (job := work.get(job_id)) is not None]
        # guard: recheck
        return [job.id for job in jobs if job.state in states and query.matches(job, work.now)], None
    work.flush()
    floor = _scan_floor(work, command, query)  # guard: slice_bound
    jobs = work.tables.matching_jobs(query, states, command.below, work.now, command.limit + 1, floor)
    slice_ = jobs[: command.limit]
    work.remember(slice_)
    below = slice_[-1].seq if len(jobs) > command.limit else floor + 1 if floor else None
    return [job.id for job in slice_], below


def _scan_floor(work: UnitOfWork, command: JobSelection, query: Query) -> int:
    """Return the `seq` of the first job that this slice does not read any more; 0 if it may read all."""
    if "id" in dict(query.within):
        return 0  # ids are looked up, not scanned for
    states = command.states & set(dict(query.within).get("state", State))
    parts = [state for part in STATE_GROUPS if part & states for state in part]
    return work.tables.seq_floor(parts, command.below, work.limits.scan) if parts else 0


def _new_run_at(command: RerunJobs | PostponeJobs, now: float) -> float | None:
    return command.run_at if command.delay is None else now + command.delay
