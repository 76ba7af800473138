"""Upkeep inside a pass: what is due moves on. Bounded and repeatable, so anyone may do it."""

from collections.abc import Callable, Iterable

from errandry.core import move
from errandry.core.answer import UpkeepResult
from errandry.core.command import Upkeep
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord
from errandry.core.state import Move
from errandry.store.execute import flow, gate, schedule
from errandry.store.execute.unit_of_work import UnitOfWork
from errandry.store.tables.protocol import Tables

BEFORE_CLAIM = 500
PRUNED = 100
"""So many finished jobs go in a pass: nobody waits for that, but who settles meanwhile waits for the pass."""


def upkeep(ledger: UnitOfWork, command: Upkeep) -> UpkeepResult:
    ledger.flush()
    tables, now, limit = ledger.tables, ledger.now, command.limit
    expired = 0
    if command.dead:
        expired = _each(ledger, Move.EXPIRE, tables.held_by(command.dead, limit), move.expired)
    expired += _each(ledger, Move.EXPIRE, tables.expired_jobs(now, limit), move.expired)
    ticked = schedule.turn(ledger, limit)
    promoted = _promote(ledger, limit)
    lapsed = _each(ledger, Move.LAPSE, tables.lapsed_jobs(now, limit), move.lapsed)
    flow.release(ledger)  # who ends with them is one more of its task
    ledger.flush()
    pruned = outlived(tables, now, min(limit, PRUNED)) if command.prune else []  # guard: pruned_unasked
    for job in pruned:
        ledger.remove(Move.REMOVE, job)
    flow.release(ledger)
    untied, more_flows = flow.tidy(ledger, limit)
    ledger.flush()
    tables.unpark_due(now)
    trimmed = untied + tables.trim(now, ledger.bounds, limit)
    _forget_pauses(ledger)
    more = more_flows or max(expired, ticked, promoted, lapsed) >= limit or len(pruned) >= min(limit, PRUNED)
    ledger.is_tidy = not more
    return UpkeepResult(
        expired=expired,
        promoted=promoted,
        lapsed=lapsed,
        pruned=len(pruned),
        trimmed=trimmed,
        ticked=ticked,
        more=more,
    )


def outlived(tables: Tables, now: float, limit: int) -> list[JobRecord]:
    """Finished jobs that are to go: their time is over, or their task has newer ones in their place."""
    found = {job.seq: job for job in tables.prunable_jobs(now, limit)}
    for task, state, keep in tables.keep_last_tasks():
        last = keep.last(state)
        if last is not None and len(found) < limit:
            found |= {job.seq: job for job in tables.excess_jobs(task, state, last, limit)}
    return list(found.values())[:limit]


def before_claim(ledger: UnitOfWork) -> None:
    """Expire, promote and lapse what is due, so that a claim never misses it. Once a pass is enough."""
    if ledger.is_tidy:
        return
    tables, now = ledger.tables, ledger.now
    marks, came = tables.due_times(), 0
    if marks.lease_until is not None and marks.lease_until <= now:  # guard: claim_tidies
        came += _each(ledger, Move.EXPIRE, tables.expired_jobs(now, BEFORE_CLAIM), move.expired)
    if marks.tick_at is not None and marks.tick_at <= now:  # guard: tick_of_others
        came += schedule.turn(ledger, BEFORE_CLAIM)
    if marks.run_at is not None and marks.run_at <= now:
        came += _promote(ledger, BEFORE_CLAIM)
    # The marks do not know of lanes laid aside that had no jobs: what just came may stand in one.
    if came or (marks.open_at is not None and marks.open_at <= now):
        tables.unpark_due(now)
    if marks.deadline is not None and marks.deadline <= now:
        _each(ledger, Move.LAPSE, tables.lapsed_jobs(now, BEFORE_CLAIM), move.lapsed)
    if ledger.ended:
        flow.release(ledger)
        ledger.flush()
    ledger.is_tidy = True


def _promote(ledger: UnitOfWork, limit: int) -> int:
    """What is due gets in line, but for ticks that another pass decides about."""
    due = ledger.tables.due_jobs(ledger.now, limit)
    if left := schedule.awaited(ledger, due):
        due = [job for job in due if job.id not in left]
    return _each(ledger, Move.PROMOTE, due, move.promoted)


def _forget_pauses(ledger: UnitOfWork) -> None:
    """A worker that died paused never comes back: every start has an id of its own."""
    tables = ledger.tables
    if paused := tables.gates(GateKind.WORKER):
        known = {info.beat.worker for info in tables.workers()}
        for worker_gate in paused:
            since = worker_gate.paused.at if worker_gate.paused is not None else 0.0
            if worker_gate.name not in known and since <= ledger.now - ledger.bounds.workers_age:
                gate.forget_worker(ledger, worker_gate.name)


def _each(
    ledger: UnitOfWork, made: Move, jobs: Iterable[JobRecord], after: Callable[[JobRecord, float], JobRecord]
) -> int:
    count = 0
    for job in jobs:
        ledger.move(made, job, after(job, ledger.now))
        count += 1
    ledger.flush()
    return count
