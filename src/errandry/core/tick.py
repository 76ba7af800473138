"""What becomes of the ticks of a schedule: which are due, which of them run, and which is next.

Nothing here reads a clock, and the same is decided whoever decides it.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from errandry.core.job import JobRecord, NewJob
from errandry.core.schedule import MOMENT, CatchUp, Overlap, PutSchedule, ScheduleRecord, job_id

LATE = 60.0
"""So late may a tick be and still count as in time."""
CATCH_UP_MAX = 100
"""So many ticks of an outage are run afterwards, at most."""
QUEUED_MAX = 16
"""So many runs of a schedule stand behind each other, at most."""
LOOKED_AT = 300
"""So many ticks that have passed are looked at one by one."""


class TickRun(Struct, frozen=True, gc=False):
    """A tick that runs, `after` the job with that id has ended."""

    tick: float
    after: str | None = None


class TickPlan(Struct, frozen=True):
    """What is to be done about the ticks that are due, and the schedule with that done."""

    schedule: ScheduleRecord
    runs: tuple[TickRun, ...] = ()
    missed: tuple[float, ...] = ()


def turn(schedule: ScheduleRecord, alive: Sequence[str], now: float) -> TickPlan:
    """Run or miss every tick that is due. `alive` are the runs that have not ended, oldest first."""
    ticks, uncounted = _due(schedule, now)
    wanted = _caught_up(schedule, ticks, now)
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
        # guard: missed_uncounted
        missed=schedule.missed + len(missed) + uncounted,
        live=tuple(live[-QUEUED_MAX:]),
    )
    return TickPlan(planned(after, max([*ticks[-1:], schedule.tick or 0.0])), tuple(runs), missed)


def planned(schedule: ScheduleRecord, moment: float) -> ScheduleRecord:
    """`schedule` with its next tick, the first after `moment`; without one, if it is paused or over."""
    plan = schedule.plan
    is_spent = plan.limit is not None and schedule.runs >= plan.limit  # guard: limit_of_runs
    tick = None if is_spent or schedule.paused is not None else plan.after(moment)
    return replace(schedule, tick=tick, due_at=None if tick is None else due_at(schedule, tick))


def put(command: PutSchedule, before: ScheduleRecord | None, now: float) -> ScheduleRecord:
    """The schedule as it is from now on. While its ticks stay the same, so does the next one."""
    if before is None:
        fresh = ScheduleRecord(name=command.name, plan=command.plan, created_at=now, updated_at=now)
        return planned(replace(fresh, owner=command.owner, by=command.by), now)
    after = replace(before, plan=command.plan, owner=command.owner, by=command.by, updated_at=now)
    is_same = before.plan.timing == command.plan.timing and before.tick is not None
    return planned(after, (before.tick or now) - MOMENT if is_same else max(now, before.last or 0.0))


def ticks_between(schedule: ScheduleRecord, first: float, last: float) -> Iterator[float]:
    """Its ticks from `first` to `last`."""
    tick = schedule.plan.after(first - MOMENT)
    while tick is not None and tick <= last:
        yield tick
        tick = schedule.plan.after(tick)


def due_at(schedule: ScheduleRecord, tick: float) -> float:
    """When a tick is due: the same for whoever asks."""
    if not schedule.plan.jitter:
        return tick
    digest = hashlib.blake2b(job_id(schedule.name, tick).encode(), digest_size=4).digest()
    return tick + schedule.plan.jitter * int.from_bytes(digest) / 2**32


class ScheduleOrigin(
    Struct, frozen=True, rename={"schedule": "errandry.api.schedule_options", "tick": "errandry.tick"}
):
    """What the metadata of a job says of the schedule it comes from; a run by hand has no tick."""

    schedule: str = ""
    tick: float | None = None


def new_job(schedule: ScheduleRecord, tick: float | None, job: str | None = None) -> NewJob:
    """The job of a tick; or one for now, with its id."""
    plan = schedule.plan
    metadata = msgspec.json.decode(plan.job.metadata or "{}") | {_NAME: schedule.name}
    if tick is None:
        return replace(plan.job, id=job or "", metadata=msgspec.json.encode(metadata).decode())
    metadata[_TICK] = tick
    text = msgspec.json.encode(metadata).decode()
    return replace(plan.job, id=job_id(schedule.name, tick), run_at=due_at(schedule, tick), metadata=text)


def sealed_for(schedule: str) -> str:
    """For what the arguments of all jobs of a schedule are sealed; no job has this id."""
    return f"schedule\n{schedule}"


def origin(job: JobRecord) -> ScheduleOrigin | None:
    """The schedule a job comes from and its tick; None for one that was enqueued."""
    if job.metadata is None or f'"{_NAME}"' not in job.metadata:
        return None
    found = _origin.decode(job.metadata)
    return found if found.schedule else None


_NAME, _TICK = "errandry.api.schedule_options", "errandry.tick"
_origin = msgspec.json.Decoder(ScheduleOrigin)


def _due(schedule: ScheduleRecord, now: float) -> tuple[list[float], int]:
    """The ticks that are due; of very many the last ones, and of the others how many were counted."""
    ticks = _some_due(schedule, schedule.tick, now)
    if len(ticks) < LOOKED_AT:
        return ticks, 0
    apart = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    near = schedule.plan.after(max(ticks[-1], now - apart * CATCH_UP_MAX))
    return (newest, len(ticks)) if (newest := _some_due(schedule, near, now)) else (ticks, 0)


def _some_due(schedule: ScheduleRecord, tick: float | None, now: float) -> list[float]:
    ticks: list[float] = []
    while tick is not None and due_at(schedule, tick) <= now and len(ticks) < LOOKED_AT:
        ticks.append(tick)
        tick = schedule.plan.after(tick)
    return ticks


def _caught_up(schedule: ScheduleRecord, ticks: list[float], now: float) -> list[float]:
    """Those of the ticks that are due which run, as far as overlap and limit let them."""
    plan = schedule.plan
    wanted = ticks[-CATCH_UP_MAX:] if plan.catch_up is CatchUp.ALL else ticks[-1:]
    if plan.catch_up is CatchUp.SKIP:
        wanted = [tick for tick in wanted if now - due_at(schedule, tick) <= LATE]
    return wanted if plan.limit is None else wanted[: max(0, plan.limit - schedule.runs)]
