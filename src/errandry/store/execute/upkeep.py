"""Upkeep inside a pass: expire leases, promote due jobs, decide about ticks, lapse, prune, trim.

Each pass does a bounded part of the work, and repeating it changes nothing, so any worker may do it.
"""

from collections.abc import Callable, Iterable, Sequence

from errandry.core import move
from errandry.core.answer import Expiry, UpkeepResult
from errandry.core.command import Upkeep, WorkerRecord
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord
from errandry.core.state import RUNNING, Move
from errandry.core.worker_loss import DIED, WorkerLoss, expiry_loss
from errandry.store.execute import flow, gate, schedule
from errandry.store.execute.unit_of_work import UnitOfWork
from errandry.store.tables.protocol import Tables

BEFORE_CLAIM_MAX = 500
LOST_JOBS_MAX = 1_000
"""Maximum number of jobs of which one heartbeat takes crashes back; the next heartbeat goes on."""
PRUNED_MAX = 100
"""Maximum number of finished jobs that one pass deletes. Settles that arrive meanwhile wait for the pass."""


def upkeep(work: UnitOfWork, command: Upkeep) -> UpkeepResult:
    work.flush()
    tables, now, limit = work.tables, work.now, command.limit
    expired = _expire_jobs_of_dead(work, command.dead, limit) if command.dead else 0
    expired += _expire(work, tables.expired_jobs(now, limit), command.worker)
    ticked = schedule.decide_due_ticks(work, limit)
    lost, promoted = _promote(work, limit)
    expired += lost
    lapsed = _move_all(work, Move.LAPSE, tables.lapsed_jobs(now, limit), move.lapsed)
    flow.propagate_ends(work)  # may end more jobs, which count when jobs are pruned by count
    work.flush()
    prune_limit = min(limit, PRUNED_MAX)
    pruned = prunable_jobs(tables, now, prune_limit) if command.prune else []  # guard: pruned_unasked
    for job in pruned:
        work.remove(Move.REMOVE, job)
    flow.propagate_ends(work)
    edges, more_flows = flow.continue_closing_flows(work, limit)
    work.flush()
    tables.unpark_due(now)
    trimmed = edges + tables.trim(now, work.limits, limit)
    _drop_pauses_of_dead_workers(work)
    more = more_flows or max(expired, ticked, promoted, lapsed) >= limit or len(pruned) >= prune_limit
    work.is_upkeep_done = not more
    return UpkeepResult(
        expired=expired,
        promoted=promoted,
        lapsed=lapsed,
        pruned=len(pruned),
        trimmed=trimmed,
        ticked=ticked,
        more=more,
        expiries=work.take_expiries(),
    )


def prunable_jobs(tables: Tables, now: float, limit: int) -> list[JobRecord]:
    """Return finished jobs to delete: kept for long enough, or too many of their task."""
    jobs = {job.seq: job for job in tables.prunable_jobs(now, limit)}
    for task, state, keep in tables.keep_last_tasks():
        last = keep.last(state)
        if last is not None and len(jobs) < limit:
            jobs |= {job.seq: job for job in tables.excess_jobs(task, state, last, limit)}
    return list(jobs.values())[:limit]


def before_claim(work: UnitOfWork, worker: str) -> None:
    """Expire, promote and lapse what is due, so that a claim never misses it. Once per pass is enough.

    `worker` is about to claim.
    """
    if work.is_upkeep_done:
        return
    tables, now = work.tables, work.now
    due_times, moved = tables.due_times(), 0
    if due_times.lease_until is not None and due_times.lease_until <= now:  # guard: upkeep_before_claim
        moved += _expire(work, tables.expired_jobs(now, BEFORE_CLAIM_MAX), worker)
        work.has_locked_due_jobs = not moved
        if moved:  # a repeated claim before this one may have counted them as held
            work.invalidate_gates()
    if due_times.tick_at is not None and due_times.tick_at <= now:  # guard: tick_of_others
        moved += schedule.decide_due_ticks(work, BEFORE_CLAIM_MAX)
    if due_times.run_at is not None and due_times.run_at <= now:
        promoted = sum(_promote(work, BEFORE_CLAIM_MAX))
        work.has_locked_due_jobs |= not promoted
        moved += promoted
    # `open_at` leaves out parked lanes without jobs: a job that was just promoted may be in one.
    if moved or (due_times.open_at is not None and due_times.open_at <= now):
        tables.unpark_due(now)
    if due_times.deadline is not None and due_times.deadline <= now:
        _move_all(work, Move.LAPSE, tables.lapsed_jobs(now, BEFORE_CLAIM_MAX), move.lapsed)
    if work.flow_ends:
        flow.propagate_ends(work)
        work.flush()
    work.is_upkeep_done = True


def _promote(work: UnitOfWork, limit: int) -> tuple[int, int]:
    """Promote due jobs, except those of ticks that another pass is deciding about.

    Those that only waited for their last crash to become final fail. Return the numbers of both.
    """
    due = work.tables.due_jobs(work.now, limit)
    if undecided := schedule.undecided_ticks(work, due):
        due = [job for job in due if job.id not in undecided]
    lost = [job for job in due if move.awaits_final_crash(job)]
    for job in lost:
        _lose(work, job)
    ready = [job for job in due if not move.awaits_final_crash(job)] if lost else due
    return len(lost), _move_all(work, Move.PROMOTE, ready, move.promoted)


def take_crashes_back(work: UnitOfWork, worker: str) -> None:
    """Take the crashes of jobs back that this worker has lost: it lives."""
    work.flush()
    for job in work.tables.jobs_lost_by((worker,), LOST_JOBS_MAX):
        after = move.crash_taken_back(job, work.now)
        if after.state is job.state:
            work.update(job, after)
        else:
            work.move(Move.PROMOTE, job, after)


def _expire_jobs_of_dead(work: UnitOfWork, workers: Sequence[str], limit: int) -> int:
    """Expire the jobs of workers that have certainly died, and make their earlier crashes final."""
    tables = work.tables
    held = [(job, DIED) for job in tables.jobs_held_by(workers, limit)]
    count = _expire_all(work, held)
    lost = tables.jobs_lost_by(workers, limit)
    for job in lost:
        if move.awaits_final_crash(job):
            _lose(work, job)
        else:
            work.update(job, move.crash_confirmed(job))
    work.flush()
    return count + len(lost)


def _lose(work: UnitOfWork, job: JobRecord) -> None:
    after = move.lost(job, work.now)
    work.move(Move.LOSE, job, after)
    work.expiries.append(Expiry.of(job, after))


def _expire(work: UnitOfWork, jobs: Sequence[JobRecord], sender: str) -> int:
    """Expire jobs whose leases have ended. `sender` is the worker that sent this pass."""
    holders: dict[str, WorkerRecord] = {}
    if any(job.state is RUNNING for job in jobs):
        holders = {record.beat.worker: record for record in work.tables.workers()}
    losses = (expiry_loss(job, holders.get(job.worker or ""), sender, work.now) for job in jobs)
    return _expire_all(work, zip(jobs, losses, strict=True))


def _expire_all(work: UnitOfWork, lost: Iterable[tuple[JobRecord, WorkerLoss]]) -> int:
    count = 0
    for job, loss in lost:
        expired = move.expired(job, work.now, loss)
        work.move(Move.EXPIRE, job, expired)
        work.expiries.append(Expiry.of(job, expired))
        count += 1
    work.flush()
    return count


def _drop_pauses_of_dead_workers(work: UnitOfWork) -> None:
    """Drop the pauses of dead workers: a worker never comes back, because every start has a new id."""
    tables = work.tables
    if paused := tables.gates(GateKind.WORKER):
        known_workers = {info.beat.worker for info in tables.workers()}
        for worker_gate in paused:
            since = worker_gate.paused.at if worker_gate.paused is not None else 0.0
            if worker_gate.name not in known_workers and since <= work.now - work.limits.workers_age:
                gate.forget_worker(work, worker_gate.name)


def _move_all(
    work: UnitOfWork,
    made_move: Move,
    jobs: Iterable[JobRecord],
    after: Callable[[JobRecord, float], JobRecord],
) -> int:
    count = 0
    for job in jobs:
        work.move(made_move, job, after(job, work.now))
        count += 1
    work.flush()
    return count
