"""Schedules: jobs that are inserted again and again. Their plans, their records and their commands.

A tick is a time at which a schedule is due, by its cron expression or interval. It has at most one job, whose
id is derived from the schedule and the tick, so that inserting it twice has no effect. The job of the next
tick already exists before its time, as a scheduled job.
"""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from errandry.core import check
from errandry.core.cron import Cron, time_zone
from errandry.core.duration import format_duration, format_time
from errandry.core.gate import PauseRecord
from errandry.core.job import NewJob
from errandry.core.once import OnceCommand
from errandry.core.rule_info import Source
from errandry.errors import InvalidValue

NAME_MAX = 150
EVERY_MIN = 1.0
BACKFILL_MAX = 1_000
SYSTEM_PREFIX = "errandry: "
"""Prefix of `PauseRecord.by` of a schedule that the store paused because it could not continue."""

TICK_RESOLUTION = 1e-6
"""Seconds between two moments that are told apart; less than the time between two ticks."""


class Overlap(StrEnum):
    """What happens to a tick that is due while the last run has not ended.

    allow  both run at the same time
    skip   the tick is missed
    queue  the tick waits for the last run to end
    """

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


class CatchUp(StrEnum):
    """What happens to ticks that were due while no worker was running.

    skip  they are missed if they are more than a minute old
    one   only the last of them runs
    all   the last 100 of them run
    """

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class SchedulePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan of a schedule: run a job like `job` at each tick, of a `cron` expression or `every` n seconds.

    Ticks of `every` count from `start`, or from 1970 without one. There are no ticks before `start` or after
    `end`, and at most `limit` runs. Each job is due up to `jitter` seconds after its tick.
    """

    job: NewJob
    cron: str | None = None
    every: float | None = None
    zone: str = "UTC"
    start: float | None = None
    end: float | None = None
    limit: int | None = None
    jitter: float = 0.0
    overlap: Overlap = Overlap.ALLOW
    catch_up: CatchUp = CatchUp.ONE

    @property
    def timing_text(self) -> str:
        """The interval or cron expression, for people."""
        return f"every {format_duration(self.every)}" if self.every is not None else f"{self.cron}"

    @property
    def timing(self) -> tuple[object, ...]:
        """All fields that determine the ticks and when they are due."""
        return self.cron, self.every, self.zone, self.start, self.end, self.jitter

    def after(self, moment: float) -> float | None:
        """The first tick after `moment`; None if there is none.

        Raises InvalidValue if this host no longer knows the time zone.
        """
        if self.start is not None and moment < self.start:
            moment = self.start - TICK_RESOLUTION
        tick = self._cron.after(moment) if self.every is None else self._next_interval(self.every, moment)
        return None if tick is None or (self.end is not None and tick > self.end) else tick

    @property
    def _cron(self) -> Cron:
        return Cron(self.cron or "", self.zone)

    def _next_interval(self, every: float, moment: float) -> float:
        anchor = self.start or 0.0
        steps = (moment - anchor) // every
        return next(tick for more in (1, 2) if (tick := anchor + (steps + more) * every) > moment)


def check_plan(name: str, plan: SchedulePlan) -> None:
    """Refuse an invalid plan. Not checked on reading: a stored plan may have become invalid since."""
    check_schedule_name(name)
    if (plan.cron is None) == (plan.every is None):
        raise InvalidValue("cron", plan.cron, f"give either cron or every ({plan.every})")
    if plan.every is not None and check.span("every", plan.every) < EVERY_MIN:
        raise InvalidValue("every", plan.every, f"must be at least {EVERY_MIN:g} second")
    for field in ("start", "end"):
        if (moment := getattr(plan, field)) is not None:
            check.instant(field, moment)
    if plan.limit is not None:
        check.whole("limit", plan.limit, 1, check.INT_MAX)
    check.span("jitter", plan.jitter)
    for field in ("run_at", "delay", "deadline", "unique"):
        if (value := getattr(plan.job, field)) is not None:
            raise InvalidValue(field, value, "cannot be set for the jobs of a schedule: its plan says when")
    if plan.job.metadata is not None and not isinstance(msgspec.json.decode(plan.job.metadata), dict):
        raise InvalidValue("metadata", plan.job.metadata, "must be a JSON object")
    time_zone(plan.zone)
    if plan.cron is not None:
        plan._cron  # noqa: B018 - reading checks it
    _check_has_ticks(plan)


def check_schedule_name(name: str) -> None:
    """Raise InvalidValue if a schedule cannot have this name. The ids of its jobs are longer than it."""
    check.name("schedule", name)
    if len(name) > NAME_MAX:
        raise InvalidValue("schedule", name, f"a schedule's name has at most {NAME_MAX} characters")


def _check_has_ticks(plan: SchedulePlan) -> None:
    if plan.start is None or plan.end is None:
        return
    if plan.end < plan.start:
        raise InvalidValue("end", _time_text(plan.end), f"is before start, {_time_text(plan.start)}")
    if plan.after(plan.start - TICK_RESOLUTION) is None:
        why = f"there is no tick between start, {_time_text(plan.start)}, and end, {_time_text(plan.end)}"
        raise InvalidValue("when", plan.timing_text, why)


def _time_text(at: float) -> str:
    return format_time(round(at * 1_000_000))


def differences(first: SchedulePlan, second: SchedulePlan) -> dict[str, tuple[str, str]]:
    """What is different in two plans: the names of the options, with the values of both as text.

    The values are written as in code: `30s`, `linear from 1s`. Arguments and metadata are left out, because
    they may be secret.
    """
    options = _option_texts(first), _option_texts(second)
    changed = {
        name: (value, options[1][name]) for name, value in options[0].items() if value != options[1][name]
    }
    for field in NewJob.__struct_fields__:
        values = getattr(first.job, field), getattr(second.job, field)
        if values[0] != values[1]:
            name = "arguments" if field == "payload" else field
            changed[name] = _job_option_text(field, values[0]), _job_option_text(field, values[1])
    return changed


def _job_option_text(field: str, value: Any) -> str:
    """An option of a job in words; "…" for what may be secret."""
    if field in ("payload", "metadata"):
        return "…"
    if value is None or value in ("", ()):
        return "default" if field in ("backoff", "keep") else "none"
    if field == "timeout":
        return format_duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _option_texts(plan: SchedulePlan) -> dict[str, str]:
    moments = {field: getattr(plan, field) for field in ("start", "end")}
    return {
        "when": plan.timing_text,
        "timezone": plan.zone,
        **{field: "none" if at is None else _time_text(at) for field, at in moments.items()},
        "limit": "none" if plan.limit is None else str(plan.limit),
        "jitter": format_duration(plan.jitter),
        "overlap": plan.overlap.value,
        "catch_up": plan.catch_up.value,
    }


class ScheduleRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as stored.

    `tick` is the next tick, whose job is due at `due_at`; both are None while there is none. `last` is the
    last tick that ran. `live` are the ids of the latest runs that may not have ended. `owners` are the
    programs that declare it in code; a schedule made by hand has none. `by` is the operator who changed it
    last. `declared` is the plan that code declares while the plan of an operator is in force.
    """

    name: str
    plan: SchedulePlan
    created_at: float
    updated_at: float
    owners: tuple[str, ...] = ()
    by: str = ""
    paused: PauseRecord | None = None
    tick: float | None = None
    due_at: float | None = None
    last: float | None = None
    runs: int = 0
    missed: int = 0
    live: tuple[str, ...] = ()
    declared: SchedulePlan | None = None

    @property
    def source(self) -> Source:
        """Where the plan in force comes from."""
        return Source.CODE if self.owners and self.declared is None else Source.OPERATOR

    @property
    def declared_plan(self) -> SchedulePlan | None:
        """The plan that code declares, in force or not."""
        return self.plan if self.source is Source.CODE else self.declared

    @property
    def job(self) -> str | None:
        """The id of the job of the next tick."""
        return None if self.tick is None else job_id(self.name, self.tick)

    @property
    def is_over(self) -> bool:
        """Whether the schedule has no more ticks, and not because it is paused."""
        return self.tick is None and self.paused is None


def job_id(name: str, tick: float) -> str:
    """The id of the job of this tick."""
    return f"{name}@{_time_text(tick)}"


class PutSchedule(OnceCommand, frozen=True, gc=False):
    """Create or replace a schedule, as an operator. Answer: WRITTEN, or ALREADY if nothing changed.

    The plan is in force until it is reset, whatever code declares. `edited` is the plan in force that this
    one was made from: if another plan is in force by now, the store writes nothing and answers with
    ScheduleChanged. Without it, any plan is replaced.
    """

    name: str
    plan: SchedulePlan
    by: str = ""
    edited: SchedulePlan | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plan(self.name, self.plan)
        if self.by:
            check.name("by", self.by)


class DeclareSchedule(Struct, frozen=True, gc=False):
    """Declare a schedule in the code of the program `owner`. Answer: WRITTEN, or ALREADY if it stays so.

    The plan of an operator stays in force. Programs that declare the same plan own it together. Without a
    plan, the program no longer owns the declaration. It is removed with its last owner: the schedule with it,
    unless it has the plan of an operator.
    """

    name: str
    plan: SchedulePlan | None
    owner: str

    def __post_init__(self) -> None:
        if self.plan is not None:
            check_plan(self.name, self.plan)
        check.name("schedule", self.name)
        check.name("owner", self.owner)


class ResetSchedule(OnceCommand, frozen=True, gc=False):
    """Put the plan that code declares in force again. Answer: WRITTEN, or ALREADY if there is none other."""

    name: str
    by: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("schedule", self.name)
        if self.by:
            check.name("by", self.by)


class PauseSchedule(OnceCommand, frozen=True, gc=False):
    """Stop the ticks until the schedule is resumed. Running jobs continue. Answer: WRITTEN or ALREADY."""

    name: str
    by: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("schedule", self.name)
        if self.by:
            check.name("by", self.by)


class ResumeSchedule(OnceCommand, frozen=True, gc=False):
    """Undo a pause. Ticks during the pause do not run. Answer: WRITTEN or ALREADY."""

    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("schedule", self.name)


class RemoveSchedule(OnceCommand, frozen=True, gc=False):
    """Delete the schedule. Running jobs continue. Answer: WRITTEN or ALREADY."""

    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("schedule", self.name)


class RunSchedule(OnceCommand, frozen=True, gc=False):
    """Run the job of the schedule now, in addition to its ticks, under the id `job`. Answer: `Inserted`."""

    name: str
    job: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("schedule", self.name)
        check.name("job", self.job)


class Backfill(OnceCommand, frozen=True, gc=False):
    """Run the ticks from `first` to `last` that have no job, at most `limit`, now. Answer: `Backfilled`."""

    name: str
    first: float
    last: float
    limit: int = BACKFILL_MAX

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("schedule", self.name)
        if check.instant("first", self.first) > check.instant("last", self.last):
            raise InvalidValue("until", _time_text(self.last), f"is before since, {_time_text(self.first)}")
        check.whole("limit", self.limit, 1, BACKFILL_MAX)


class Backfilled(Struct, frozen=True, gc=False):
    """The ids of the jobs of these ticks, and those of them that existed before.

    If there are more ticks than the limit, `first` is the value to send with the next command.
    """

    ids: tuple[str, ...] = ()
    existed: frozenset[str] = frozenset()
    first: float | None = None


ScheduleCommand = (
    PutSchedule
    | DeclareSchedule
    | ResetSchedule
    | PauseSchedule
    | ResumeSchedule
    | RemoveSchedule
    | RunSchedule
    | Backfill
)
