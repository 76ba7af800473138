"""Schedules: jobs that are made again and again; what they are told, and the commands that tell them.

A tick is a moment of a schedule's cron expression or interval, and has at most one job, whose id is made of
both: whoever makes it twice makes it once. The job of the next tick is there before its time, scheduled.
"""

from enum import StrEnum

import msgspec
from msgspec import Struct

from errandry.core import check
from errandry.core.cron import Cron
from errandry.core.duration import iso, short
from errandry.core.gate import PauseInfo
from errandry.core.job import NewJob
from errandry.errors import InvalidValue

NAME_MAX = 150
EVERY_MIN = 1.0
BACKFILL_MAX = 1_000
BY_ITSELF = "errandry: "
"""So begins who has paused a schedule that could not go on."""

MOMENT = 1e-6
"""Ticks are further apart than this."""


class Overlap(StrEnum):
    """What becomes of a tick that is due while the last run lives.

    allow  it runs beside it
    skip   it is missed
    queue  it waits for that run
    """

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


class CatchUp(StrEnum):
    """What becomes of ticks that nobody was there to run.

    skip  they are missed, if they are more than a minute old
    one   the last of them runs
    all   they run, the last hundred of them at most
    """

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class SchedulePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule is told: a job like `job` at every tick, of a `cron` expression or `every` so often.

    Ticks of `every` are counted from `start`, or else from 1970. There are none before `start` and after
    `end`, and no more than `limit` runs. Each runs up to `jitter` seconds after its tick.
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
    def words(self) -> str:
        """When, as it was written."""
        return f"every {short(self.every)}" if self.every is not None else f"{self.cron}"

    @property
    def timing(self) -> tuple[object, ...]:
        """All that its ticks depend on."""
        return self.cron, self.every, self.zone, self.start, self.end, self.jitter

    def after(self, moment: float) -> float | None:
        """The first tick after `moment`; None if there is none. A zone that is gone is an InvalidValue."""
        if self.start is not None and moment < self.start:
            moment = self.start - MOMENT
        tick = self._cron.after(moment) if self.every is None else self._step(self.every, moment)
        return None if tick is None or (self.end is not None and tick > self.end) else tick

    @property
    def _cron(self) -> Cron:
        return Cron(self.cron or "", self.zone)

    def _step(self, every: float, moment: float) -> float:
        anchor = self.start or 0.0
        steps = (moment - anchor) // every
        return next(tick for more in (1, 2) if (tick := anchor + (steps + more) * every) > moment)


def check_plan(name: str, plan: SchedulePlan) -> None:
    """Refuse what no schedule can be. Not when it is read: what was stored may have become impossible."""
    check.name("schedule", name)
    if len(name) > NAME_MAX:
        raise InvalidValue("schedule", name, f"a schedule's name has at most {NAME_MAX} characters")
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
            raise InvalidValue(field, value, "is not for the jobs of a schedule: that says when, and overlap")
    if plan.job.metadata is not None and not isinstance(msgspec.json.decode(plan.job.metadata), dict):
        raise InvalidValue("metadata", plan.job.metadata, "must be a JSON object")
    if plan.cron is not None:
        plan._cron  # noqa: B018 - reading checks it


class ScheduleRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as stored. `tick` is the next one, whose job is due at `due_at`; None while it rests.

    `last` is the last tick that ran. `live` are its latest runs, as far as they may still live. `owner` is
    who declares it in code; one made by hand has none. `by` is who has put it.
    """

    name: str
    plan: SchedulePlan
    created_at: float
    updated_at: float
    owner: str = ""
    by: str = ""
    paused: PauseInfo | None = None
    tick: float | None = None
    due_at: float | None = None
    last: float | None = None
    runs: int = 0
    missed: int = 0
    live: tuple[str, ...] = ()

    @property
    def job(self) -> str | None:
        """The id of the job of its next tick."""
        return None if self.tick is None else job_id(self.name, self.tick)

    @property
    def is_over(self) -> bool:
        """Whether there are no more ticks, though nobody has paused it."""
        return self.tick is None and self.paused is None


def job_id(name: str, tick: float) -> str:
    """The id of the job of a tick."""
    return f"{name}@{iso(round(tick * 1_000_000))}"


class PutSchedule(Struct, frozen=True, gc=False):
    """This schedule holds from now on, whatever it was before. Answer: WRITTEN, or ALREADY if it was this."""

    name: str
    plan: SchedulePlan
    owner: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        check_plan(self.name, self.plan)
        for field in ("owner", "by"):
            if getattr(self, field):
                check.name(field, getattr(self, field))


class PauseSchedule(Struct, frozen=True, gc=False):
    """No ticks until it is resumed. What runs goes on. Answer: WRITTEN or ALREADY."""

    name: str
    by: str = ""

    def __post_init__(self) -> None:
        check.name("schedule", self.name)
        if self.by:
            check.name("by", self.by)


class ResumeSchedule(Struct, frozen=True, gc=False):
    """Undo a pause; ticks meanwhile are not made up for. Answer: WRITTEN or ALREADY."""

    name: str

    def __post_init__(self) -> None:
        check.name("schedule", self.name)


class RemoveSchedule(Struct, frozen=True, gc=False):
    """There is no such schedule any more; what runs goes on. Answer: WRITTEN or ALREADY."""

    name: str

    def __post_init__(self) -> None:
        check.name("schedule", self.name)


class RunSchedule(Struct, frozen=True, gc=False):
    """Run its job now, beside its ticks, under the id `job`. Answer: `Inserted`."""

    name: str
    job: str

    def __post_init__(self) -> None:
        check.name("schedule", self.name)
        check.name("job", self.job)


class Backfill(Struct, frozen=True, gc=False):
    """Run now the ticks from `first` to `last` that have no job, up to `limit`. Answer: `Backfilled`."""

    name: str
    first: float
    last: float
    limit: int = BACKFILL_MAX

    def __post_init__(self) -> None:
        check.name("schedule", self.name)
        if check.instant("first", self.first) > check.instant("last", self.last):
            raise InvalidValue("last", self.last, f"is before the first ({self.first})")
        check.whole("limit", self.limit, 1, BACKFILL_MAX)


class Backfilled(Struct, frozen=True, gc=False):
    """The jobs of these ticks, and which were there before; `first`, if there are more, is where to go on."""

    ids: tuple[str, ...] = ()
    existed: frozenset[str] = frozenset()
    first: float | None = None


ScheduleCommand = PutSchedule | PauseSchedule | ResumeSchedule | RemoveSchedule | RunSchedule | Backfill
