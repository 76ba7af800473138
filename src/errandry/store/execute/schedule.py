"""Schedules inside a pass: insert the job of each next tick, and decide about ticks that are due.

The pass that decides about the ticks of a schedule locks it, so each tick is decided about once. The id of a
tick's job follows from the tick, so a job that was inserted before is found.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from errandry.core import check, move, tick
from errandry.core.answer import ALREADY, WRITTEN, Ack, Inserted
from errandry.core.event import EventKind, change_text
from errandry.core.flow import Edge, Policy
from errandry.core.gate import PauseRecord
from errandry.core.job import JobRecord, NewJob
from errandry.core.rule_info import Source, with_owner, without_owner
from errandry.core.schedule import (
    SYSTEM_PREFIX,
    Backfill,
    Backfilled,
    DeclareSchedule,
    Overlap,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResetSchedule,
    ResumeSchedule,
    RunSchedule,
    SchedulePlan,
    ScheduleRecord,
    differences,
    job_id,
)
from errandry.core.state import SCHEDULED, Move
from errandry.errors import InvalidValue, ScheduleChanged, UnknownSchedule
from errandry.store.execute import flow
from errandry.store.execute.unit_of_work import UnitOfWork


def put(work: UnitOfWork, command: PutSchedule) -> Ack:
    check.size("payload", command.plan.job.payload, work.limits.payload)
    before = work.tables.lock_schedule(command.name)
    known = None if before is None else before.plan
    if before is None:
        if command.edited is not None:
            raise UnknownSchedule(command.name)
        _save(work, replace(tick.new_schedule(command.name, command.plan, work.now), by=command.by))
    elif before.source is Source.OPERATOR and before.plan == command.plan:
        return ALREADY
    else:
        if command.edited is not None and command.edited != before.plan:  # guard: edited_plan
            raise ScheduleChanged(command.name)
        after = tick.with_plan(before, command.plan, work.now, command.by)
        _replace(work, before, replace(after, declared=before.declared_plan))
    _emit(work, command.name, command.plan, "put", command.by, known)
    return WRITTEN


def declare(work: UnitOfWork, command: DeclareSchedule) -> Ack:
    if command.plan is None:
        return _remove_declaration(work, command)
    check.size("payload", command.plan.job.payload, work.limits.payload)
    before = work.tables.lock_schedule(command.name)
    known, owners = None if before is None else before.declared_plan, (command.owner,)
    if before is None:
        _save(work, replace(tick.new_schedule(command.name, command.plan, work.now), owners=owners))
    elif known == command.plan:
        _put_owners(work, before, with_owner(before.owners, command.owner))
        return ALREADY
    elif before.source is Source.OPERATOR:  # guard: operators_plan
        work.tables.put_schedules([replace(before, declared=command.plan, owners=owners)])
    else:
        _replace(work, before, replace(tick.with_plan(before, command.plan, work.now), owners=owners))
    _emit(work, command.name, command.plan, "declared", _code_of(command.owner), known)
    return WRITTEN


def reset(work: UnitOfWork, command: ResetSchedule) -> Ack:
    before = _lock_schedule(work, command.name)
    if before.declared is None:
        return ALREADY
    after = tick.with_plan(before, before.declared, work.now, command.by)
    _replace(work, before, replace(after, declared=None))
    _emit(work, before.name, after.plan, "reset", command.by, before.plan)
    return WRITTEN


def _remove_declaration(work: UnitOfWork, command: DeclareSchedule) -> Ack:
    before = work.tables.lock_schedule(command.name)
    if before is None or command.owner not in before.owners:
        return ALREADY
    if owners := without_owner(before.owners, command.owner):
        _put_owners(work, before, owners)
        return ALREADY
    if before.source is Source.CODE:
        _remove(work, before, _code_of(command.owner))
    else:
        work.tables.put_schedules([replace(before, declared=None, owners=())])
        _emit(work, before.name, before.plan, "no longer declared", _code_of(command.owner))
    return WRITTEN


def _put_owners(work: UnitOfWork, schedule: ScheduleRecord, owners: tuple[str, ...]) -> None:
    if owners != schedule.owners:
        work.tables.put_schedules([replace(schedule, owners=owners)])


def pause(work: UnitOfWork, command: PauseSchedule) -> Ack:
    before = _lock_schedule(work, command.name)
    if before.paused is not None:
        return ALREADY
    _pause(work, before, command.by)
    return WRITTEN


def resume(work: UnitOfWork, command: ResumeSchedule) -> Ack:
    before = _lock_schedule(work, command.name)
    if before.paused is None:
        return ALREADY
    _save(work, tick.with_next_tick(replace(before, paused=None), work.now))
    _emit(work, before.name, before.plan, "resumed")
    return WRITTEN


def remove(work: UnitOfWork, command: RemoveSchedule) -> Ack:
    before = work.tables.lock_schedule(command.name)
    if before is None:
        return ALREADY
    _remove(work, before)
    return WRITTEN


def run(work: UnitOfWork, command: RunSchedule) -> Inserted:
    schedule = _lock_schedule(work, command.name)
    if work.get(command.job) is not None:
        return Inserted((command.job,), frozenset((command.job,)))
    _insert_job(work, tick.new_job(schedule, None, command.job))
    live = (*schedule.live, command.job)[-tick.QUEUED_MAX :]
    work.tables.put_schedules([replace(schedule, live=live)])
    return Inserted((command.job,))


def backfill(work: UnitOfWork, command: Backfill) -> Backfilled:
    """Insert the jobs of ticks in a range. If runs must not overlap, each job waits for the previous one."""
    schedule = _lock_schedule(work, command.name)
    end = min(command.last, work.now)
    ticks: list[float] = []
    next_moment: float | None = None
    for moment in tick.ticks_between(schedule, command.first, end):
        if len(ticks) == command.limit:
            next_moment = moment
            break
        if moment != schedule.tick:
            ticks.append(moment)
    ids = tuple(job_id(schedule.name, moment) for moment in ticks)
    work.load([*ids, *schedule.live])
    existed = frozenset(run_id for run_id in ids if work.get(run_id) is not None)
    live = list(_live_runs(work, schedule))
    for moment, job in zip(ticks, ids, strict=True):
        if job not in existed:
            after = live[-1] if live and schedule.plan.overlap is not Overlap.ALLOW else None
            _insert_job(work, replace(tick.new_job(schedule, moment), run_at=None), after)
            live.append(job)
    work.tables.put_schedules([replace(schedule, live=tuple(live[-tick.QUEUED_MAX :]))])
    return Backfilled(ids, existed, next_moment)


def decide_due_ticks(work: UnitOfWork, limit: int) -> int:
    """Decide about the due ticks of up to `limit` schedules; return the number of schedules."""
    due = work.tables.due_schedules(work.now, limit)
    if due:
        ids = {run_id for schedule in due for run_id in (schedule.job, *schedule.live) if run_id is not None}
        work.load(sorted(ids))
        for schedule in due:
            _decide_ticks(work, schedule)
        work.flush()
    return len(due)


def undecided_ticks(work: UnitOfWork, jobs: Sequence[JobRecord]) -> set[str]:
    """Return the ids of due tick jobs that must not be promoted: their schedules are still due.

    Another pass is deciding about these schedules.
    """
    ticks = {job.id: job for job in jobs if job.metadata is not None and not job.fence}
    names = {job: origin.schedule for job in ticks if (origin := tick.origin(ticks[job])) is not None}
    if not names:
        return set()
    schedules = work.tables.schedules(sorted(set(names.values())))
    due = [schedule for schedule in schedules if schedule.due_at is not None and schedule.due_at <= work.now]
    return names.keys() & {schedule.job or "" for schedule in due}


def _decide_ticks(work: UnitOfWork, schedule: ScheduleRecord) -> None:
    try:
        decision = tick.decide_ticks(schedule, _live_runs(work, schedule), work.now)
    except InvalidValue as error:  # the plan became invalid, for example its time zone was removed
        _pause(work, schedule, f"{SYSTEM_PREFIX}{error}"[: check.NAME_MAX])
        return
    if schedule.tick not in [run.tick for run in decision.runs]:
        _remove_next_job(work, schedule)
    for run in decision.runs:
        _run_tick(work, schedule, run)
    missed = decision.schedule.missed - schedule.missed
    if missed:
        more = f" and {missed - 1:,} more" if missed > 1 else ""
        job, text = schedule.plan.job, job_id(schedule.name, (decision.missed or (schedule.tick or 0.0,))[0])
        work.emit(EventKind.TICK_MISSED, job.queue, job.task, text=f"{text}{more}")
    _save(work, decision.schedule)


def _run_tick(work: UnitOfWork, schedule: ScheduleRecord, run: tick.TickRun) -> None:
    """Let the job of a tick run. A job that an operator has moved or removed is left as it is."""
    job = work.get(job_id(schedule.name, run.tick))
    if job is None:
        if run.tick != schedule.tick:
            _insert_job(work, tick.new_job(schedule, run.tick), run.after)
    elif _is_pending(job) and (job.run_at or 0.0) <= work.now:
        if run.after is None:
            work.move(Move.PROMOTE, job, move.promoted(job, work.now))
        else:
            work.remove(Move.REMOVE, job)
            _insert_job(work, tick.new_job(schedule, run.tick), run.after)


def _insert_job(work: UnitOfWork, new: NewJob, after: str | None = None) -> None:
    """Insert a job that runs after the job `after`, if that has not ended."""
    previous = work.get(after) if after is not None else None
    previous = None if previous is None or previous.finished else previous  # guard: queue_of_ticks
    open_children = 0 if previous is None else 1
    job = move.created(new, work.tables.next_number(), work.now, open_children)
    work.move(Move.INSERT, None, job)
    if previous is not None:
        edges = (Edge(new.id, previous.id, Policy.AFTER),)
        flow.add_edges(work, flow.NewEdges(edges, Counter((new.id,)), Counter((previous.id,))), (new.id,), 0)


def _save(work: UnitOfWork, schedule: ScheduleRecord) -> None:
    """Save a schedule, and insert the job of its next tick if it does not exist."""
    work.tables.put_schedules([schedule])
    # guard: tick_once
    if schedule.tick is not None and work.get(job_id(schedule.name, schedule.tick)) is None:
        _insert_job(work, tick.new_job(schedule, schedule.tick))


def _replace(work: UnitOfWork, before: ScheduleRecord, after: ScheduleRecord) -> None:
    """Save a schedule with another plan, and replace the job of its next tick."""
    _remove_next_job(work, before)
    _save(work, after)


def _remove(work: UnitOfWork, schedule: ScheduleRecord, by: str = "") -> None:
    _remove_next_job(work, schedule)
    work.tables.drop_schedule(schedule.name)
    _emit(work, schedule.name, schedule.plan, "removed", by)


def _pause(work: UnitOfWork, schedule: ScheduleRecord, by: str) -> None:
    _remove_next_job(work, schedule)
    paused = PauseRecord(work.now, by)
    work.tables.put_schedules([replace(schedule, paused=paused, tick=None, due_at=None)])
    _emit(work, schedule.name, schedule.plan, "paused", by)


def _remove_next_job(work: UnitOfWork, schedule: ScheduleRecord) -> None:
    """Remove the job of the next tick, unless an operator or a worker has moved it."""
    job = None if schedule.job is None else work.get(schedule.job)
    if job is not None and _is_pending(job):
        work.remove(Move.REMOVE, job)


def _is_pending(job: JobRecord) -> bool:
    return job.state is SCHEDULED and not job.fence


def _live_runs(work: UnitOfWork, schedule: ScheduleRecord) -> tuple[str, ...]:
    """Return the ids of the schedule's runs that have not ended."""
    runs = ((run_id, work.get(run_id)) for run_id in schedule.live)
    return tuple(run_id for run_id, job in runs if job is not None and not job.finished)


def _lock_schedule(work: UnitOfWork, name: str) -> ScheduleRecord:
    schedule = work.tables.lock_schedule(name)
    if schedule is None:
        raise UnknownSchedule(name)
    return schedule


def _code_of(owner: str) -> str:
    return f"code of {owner}"


def _emit(
    work: UnitOfWork,
    name: str,
    plan: SchedulePlan,
    what: str,
    by: str = "",
    known: SchedulePlan | None = None,
) -> None:
    """Emit an event about a schedule; with the plan before, it says what differs in the new one."""
    changes = {} if known is None else differences(known, plan)
    change = ", ".join(f"{option} {old} -> {new}" for option, (old, new) in changes.items())
    text = change_text(f"{name} {what}", change, by)
    work.emit(EventKind.SCHEDULE_CHANGED, plan.job.queue, plan.job.task, text=text)
