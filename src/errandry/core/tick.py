"""Decide about the ticks of a schedule: which are due, which of them run, and which is next.

Nothing here reads a clock. The decisions depend only on the arguments, so that every process decides the
same.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from errandry.core.job import JobRecord, NewJob
from errandry.core.schedule import TICK_RESOLUTION, CatchUp, Overlap, SchedulePlan, ScheduleRecord, job_id

LATE_AFTER = 60.0
"""Seconds after which a tick counts as late, and is missed if the schedule skips late ticks."""
CATCH_UP_MAX = 100
"""Maximum number of ticks of an outage that run afterwards."""
QUEUED_MAX = 16
"""Maximum number of runs of a schedule that are queued behind each other."""
DUE_TICKS_MAX = 300
"""Maximum number of due ticks that are computed one by one."""


class TickRun(Struct, frozen=True, gc=False):
    """A tick that runs; with `after`, as soon as the job with that id has ended."""

    tick: float
    after: str | None = None


class TickPlan(Struct, frozen=True):
    """The due ticks that run and those that are missed, and the schedule after that."""

    schedule: ScheduleRecord
    runs: tuple[TickRun, ...] = ()
    missed: tuple[float, ...] = ()


def decide_ticks(schedule: ScheduleRecord, alive: Sequence[str], now: float) -> TickPlan:
    """Decide for every due tick whether it runs or is missed.

    `alive` are the ids of the runs that have not ended, oldest first.
    """
    ticks, uncounted = _due_ticks(schedule, now)
    wanted = _ticks_to_run(schedule, ticks, now)
    runs: list[TickRun] = []
    live = list(alive)
    for tick in wanted:
        if schedule.plan.overlap is Overlap.ALLOW or not live:  # guard: overlap
            runs.append(TickRun(tick))
        elif schedule.plan.overlap is Overlap.QUEUE and len(live) < QUEUED_MAX:
            runs.append(TickRun(tick, live[-1]))
        else:
            continue
        live.append(job_id(schedule.name, tick))
    ran = {run.tick for run in runs}
    missed = tuple(tick for tick in ticks if tick not in ran)
    after = replace(
        schedule,
        last=runs[-1].tick if runs else schedule.last,
        runs=schedule.runs + len(runs),
        # guard: missed_ticks_counted
        missed=schedule.missed + len(missed) + uncounted,
        live=tuple(live[-QUEUED_MAX:]),
    )
    return TickPlan(with_next_tick(after, max([*ticks[-1:], schedule.tick or 0.0])), tuple(runs), missed)


def with_next_tick(schedule: ScheduleRecord, moment: float) -> ScheduleRecord:
    """`schedule` with its next tick, the first after `moment`; with none if it is paused or over."""
    plan = schedule.plan
    is_spent = plan.limit is not None and schedule.runs >= plan.limit  # guard: limit_of_runs
    tick = None if is_spent or schedule.paused is not None else plan.after(moment)
    return replace(schedule, tick=tick, due_at=None if tick is None else due_at(schedule, tick))


def new_schedule(name: str, plan: SchedulePlan, now: float) -> ScheduleRecord:
    """A schedule that is created now, with its first tick."""
    return with_next_tick(ScheduleRecord(name=name, plan=plan, created_at=now, updated_at=now), now)


def with_plan(before: ScheduleRecord, plan: SchedulePlan, now: float, by: str = "") -> ScheduleRecord:
    """The schedule with another plan in force. If its timing stays the same, so does its next tick."""
    after = replace(before, plan=plan, by=by, updated_at=now)
    is_same = before.plan.timing == plan.timing and before.tick is not None
    return with_next_tick(
        after, (before.tick or now) - TICK_RESOLUTION if is_same else max(now, before.last or 0.0)
    )


def ticks_between(schedule: ScheduleRecord, first: float, last: float) -> Iterator[float]:
    """The ticks from `first` to `last`, both included."""
    tick = schedule.plan.after(first - TICK_RESOLUTION)
    while tick is not None and tick <= last:
        yield tick
        tick = schedule.plan.after(tick)


def due_at(schedule: ScheduleRecord, tick: float) -> float:
    """When the job of a tick is due.

    The jitter is derived from the tick, so every process computes the same.
    """
    if not schedule.plan.jitter:
        return tick
    digest = hashlib.blake2b(job_id(schedule.name, tick).encode(), digest_size=4).digest()
    return tick + schedule.plan.jitter * int.from_bytes(digest) / 2**32


class ScheduleOrigin(Struct, frozen=True, rename={"schedule": "errandry.schedule", "tick": "errandry.tick"}):
    """The schedule and tick in the metadata of a job. A run by hand has no tick."""

    schedule: str = ""
    tick: float | None = None


def new_job(schedule: ScheduleRecord, tick: float | None, job: str | None = None) -> NewJob:
    """The job of a tick. Without a tick: a job that runs now, with the id `job`."""
    plan = schedule.plan
    metadata = msgspec.json.decode(plan.job.metadata or "{}") | {_NAME: schedule.name}
    if tick is None:
        return replace(plan.job, id=job or "", metadata=msgspec.json.encode(metadata).decode())
    metadata[_TICK] = tick
    text = msgspec.json.encode(metadata).decode()
    return replace(plan.job, id=job_id(schedule.name, tick), run_at=due_at(schedule, tick), metadata=text)


def seal_context(schedule: str) -> str:
    """The id that the arguments of all jobs of a schedule are sealed for. No job has it."""
    return f"schedule\n{schedule}"


def origin(job: JobRecord) -> ScheduleOrigin | None:
    """The schedule and tick of a job; None if the job does not come from a schedule."""
    if job.metadata is None or f'"{_NAME}"' not in job.metadata:
        return None
    origin = _origin.decode(job.metadata)
    return origin if origin.schedule else None


_NAME, _TICK = "errandry.schedule", "errandry.tick"
_origin = msgspec.json.Decoder(ScheduleOrigin)


def _due_ticks(schedule: ScheduleRecord, now: float) -> tuple[list[float], int]:
    """The due ticks, and how many earlier due ticks are missed without being returned.

    After a long outage there may be very many. Then it computes the first ones, and skips to the last ones
    by the average interval of the first.
    """
    ticks = _first_due_ticks(schedule, schedule.tick, now)
    if len(ticks) < DUE_TICKS_MAX:
        return ticks, 0
    interval = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    recent = schedule.plan.after(max(ticks[-1], now - interval * CATCH_UP_MAX))
    return (newest, len(ticks)) if (newest := _first_due_ticks(schedule, recent, now)) else (ticks, 0)


def _first_due_ticks(schedule: ScheduleRecord, tick: float | None, now: float) -> list[float]:
    ticks: list[float] = []
    while tick is not None and due_at(schedule, tick) <= now and len(ticks) < DUE_TICKS_MAX:
        ticks.append(tick)
        tick = schedule.plan.after(tick)
    return ticks


def _ticks_to_run(schedule: ScheduleRecord, ticks: list[float], now: float) -> list[float]:
    """The due ticks that the catch-up rule and the limit allow to run."""
    plan = schedule.plan
    wanted = ticks[-CATCH_UP_MAX:] if plan.catch_up is CatchUp.ALL else ticks[-1:]
    if plan.catch_up is CatchUp.SKIP:
        wanted = [tick for tick in wanted if now - due_at(schedule, tick) <= LATE_AFTER]
    return wanted if plan.limit is None else wanted[: max(0, plan.limit - schedule.runs)]
