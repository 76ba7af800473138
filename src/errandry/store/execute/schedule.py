"""Schedules inside a pass: the job of each next tick, and what becomes of ticks that are due.

Whoever decides about the ticks of a schedule holds it, so a tick is decided about once; and the job it makes
is found by its id, whoever else may have made it.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from errandry.core import check, move, tick
from errandry.core.answer import ALREADY, WRITTEN, Ack, Inserted
from errandry.core.event import EventKind
from errandry.core.flow import Edge, Policy
from errandry.core.gate import PauseInfo
from errandry.core.job import JobRecord, NewJob
from errandry.core.schedule import (
    BY_ITSELF,
    Backfill,
    Backfilled,
    Overlap,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleRecord,
    job_id,
)
from errandry.core.state import SCHEDULED, Move
from errandry.errors import InvalidValue, UnknownSchedule
from errandry.store.execute import flow
from errandry.store.execute.unit_of_work import UnitOfWork


def put(ledger: UnitOfWork, command: PutSchedule) -> Ack:
    check.sized("payload", command.plan.job.payload, ledger.bounds.payload)
    before = ledger.tables.lock_schedule(command.name)
    if before is not None and (before.plan, before.owner) == (command.plan, command.owner):
        return ALREADY
    after = tick.put(command, before, ledger.now)
    if before is not None:
        _withdraw(ledger, before)
    _keep(ledger, after)
    _tell(ledger, after, "put")
    return WRITTEN


def pause(ledger: UnitOfWork, command: PauseSchedule) -> Ack:
    before = _known(ledger, command.name)
    if before.paused is not None:
        return ALREADY
    _stop(ledger, before, command.by)
    return WRITTEN


def resume(ledger: UnitOfWork, command: ResumeSchedule) -> Ack:
    before = _known(ledger, command.name)
    if before.paused is None:
        return ALREADY
    _keep(ledger, tick.planned(replace(before, paused=None), ledger.now))
    _tell(ledger, before, "resumed")
    return WRITTEN


def remove(ledger: UnitOfWork, command: RemoveSchedule) -> Ack:
    before = ledger.tables.lock_schedule(command.name)
    if before is None:
        return ALREADY
    _withdraw(ledger, before)
    ledger.tables.drop_schedule(before.name)
    _tell(ledger, before, "removed")
    return WRITTEN


def run(ledger: UnitOfWork, command: RunSchedule) -> Inserted:
    schedule = _known(ledger, command.name)
    if ledger.get(command.job) is not None:
        return Inserted((command.job,), frozenset((command.job,)))
    _make(ledger, tick.new_job(schedule, None, command.job))
    live = (*schedule.live, command.job)[-tick.QUEUED_MAX :]
    ledger.tables.put_schedules([replace(schedule, live=live)])
    return Inserted((command.job,))


def backfill(ledger: UnitOfWork, command: Backfill) -> Backfilled:
    """Ticks of a range, in their order; where runs must not overlap, each after the one before."""
    schedule = _known(ledger, command.name)
    last = min(command.last, ledger.now)
    ticks: list[float] = []
    more: float | None = None
    for one in tick.ticks_between(schedule, command.first, last):
        if len(ticks) == command.limit:
            more = one
            break
        if one != schedule.tick:
            ticks.append(one)
    ids = tuple(job_id(schedule.name, one) for one in ticks)
    ledger.load([*ids, *schedule.live])
    existed = frozenset(one for one in ids if ledger.get(one) is not None)
    live = list(_alive(ledger, schedule))
    for moment, job in zip(ticks, ids, strict=True):
        if job not in existed:
            after = live[-1] if live and schedule.plan.overlap is not Overlap.ALLOW else None
            _make(ledger, replace(tick.new_job(schedule, moment), run_at=None), after)
            live.append(job)
    ledger.tables.put_schedules([replace(schedule, live=tuple(live[-tick.QUEUED_MAX :]))])
    return Backfilled(ids, existed, more)


def turn(ledger: UnitOfWork, limit: int) -> int:
    """Decide about the ticks that are due, of up to `limit` schedules; how many there were."""
    found = ledger.tables.due_schedules(ledger.now, limit)
    if found:
        names = [one for schedule in found for one in (schedule.job, *schedule.live) if one is not None]
        ledger.load(sorted(set(names)))
        for schedule in found:
            _turn(ledger, schedule)
        ledger.flush()
    return len(found)


def awaited(ledger: UnitOfWork, jobs: Sequence[JobRecord]) -> set[str]:
    """The ids of those of these jobs, whose time has come, that nobody but their schedule may have run.

    Another pass decides about them just now.
    """
    ticks = {job.id: job for job in jobs if job.metadata is not None and not job.fence}
    names = {job: origin.schedule for job in ticks if (origin := tick.origin(ticks[job])) is not None}
    if not names:
        return set()
    known = ledger.tables.schedules(sorted(set(names.values())))
    due = {one.job or "" for one in known if one.due_at is not None and one.due_at <= ledger.now}
    return names.keys() & due


def _turn(ledger: UnitOfWork, schedule: ScheduleRecord) -> None:
    try:
        turn = tick.turn(schedule, _alive(ledger, schedule), ledger.now)
    except InvalidValue as error:  # what it was told is no longer possible, such as a time zone that is gone
        _stop(ledger, schedule, f"{BY_ITSELF}{error}"[: check.NAME_MAX])
        return
    if schedule.tick not in [run.tick for run in turn.runs]:
        _withdraw(ledger, schedule)
    for run in turn.runs:
        _run(ledger, schedule, run)
    missed = turn.schedule.missed - schedule.missed
    if missed:
        more = f" and {missed - 1:,} more" if missed > 1 else ""
        job, text = schedule.plan.job, job_id(schedule.name, (turn.missed or (schedule.tick or 0.0,))[0])
        ledger.tell(EventKind.TICK_MISSED, job.queue, job.task, text=f"{text}{more}")
    _keep(ledger, turn.schedule)


def _run(ledger: UnitOfWork, schedule: ScheduleRecord, run: tick.TickRun) -> None:
    """Have the job of a tick run. One that somebody has moved, or removed, is left to them."""
    job = ledger.get(job_id(schedule.name, run.tick))
    if job is None:
        if run.tick != schedule.tick:
            _make(ledger, tick.new_job(schedule, run.tick), run.after)
    elif _is_pending(job) and (job.run_at or 0.0) <= ledger.now:
        if run.after is None:
            ledger.move(Move.PROMOTE, job, move.promoted(job, ledger.now))
        else:
            ledger.remove(Move.REMOVE, job)
            _make(ledger, tick.new_job(schedule, run.tick), run.after)


def _make(ledger: UnitOfWork, new: NewJob, after: str | None = None) -> None:
    """Insert a job, to run `after` another, if that has not ended."""
    there = ledger.get(after) if after is not None else None
    there = None if there is None or there.finished else there  # guard: queue_of_ticks
    family = (1,) if there is not None else ()
    ledger.move(Move.INSERT, None, move.created(new, ledger.tables.next_number(), ledger.now, *family))
    if there is not None:
        edges = (Edge(new.id, there.id, Policy.AFTER),)
        flow.tie(ledger, flow.NewEdges(edges, Counter((new.id,)), Counter((there.id,))), (new.id,), 0)


def _keep(ledger: UnitOfWork, schedule: ScheduleRecord) -> None:
    """Write a schedule down, and have the job of its next tick there."""
    ledger.tables.put_schedules([schedule])
    # guard: tick_once
    if schedule.tick is not None and ledger.get(job_id(schedule.name, schedule.tick)) is None:
        _make(ledger, tick.new_job(schedule, schedule.tick))


def _stop(ledger: UnitOfWork, schedule: ScheduleRecord, by: str) -> None:
    _withdraw(ledger, schedule)
    paused = PauseInfo(ledger.now, by)
    ledger.tables.put_schedules([replace(schedule, paused=paused, tick=None, due_at=None)])
    _tell(ledger, schedule, "paused")


def _withdraw(ledger: UnitOfWork, schedule: ScheduleRecord) -> None:
    """The job of its next tick is not to run, unless it was moved or taken before its time."""
    job = None if schedule.job is None else ledger.get(schedule.job)
    if job is not None and _is_pending(job):
        ledger.remove(Move.REMOVE, job)


def _is_pending(job: JobRecord) -> bool:
    return job.state is SCHEDULED and not job.fence


def _alive(ledger: UnitOfWork, schedule: ScheduleRecord) -> tuple[str, ...]:
    """Those of its runs that have not ended."""
    found = ((one, ledger.get(one)) for one in schedule.live)
    return tuple(one for one, job in found if job is not None and not job.finished)


def _known(ledger: UnitOfWork, name: str) -> ScheduleRecord:
    schedule = ledger.tables.lock_schedule(name)
    if schedule is None:
        raise UnknownSchedule(name)
    return schedule


def _tell(ledger: UnitOfWork, schedule: ScheduleRecord, what: str) -> None:
    job = schedule.plan.job
    ledger.tell(EventKind.SCHEDULE_CHANGED, job.queue, job.task, text=f"{schedule.name} {what}")
