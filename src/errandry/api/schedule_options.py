"""`schedule=…` as people write it: when, in which time zone, and what becomes of ticks that clash."""

from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct

from errandry.api.unique_options import word
from errandry.core.duration import moment, seconds
from errandry.core.job import NewJob
from errandry.core.schedule import CatchUp, Overlap, SchedulePlan, check_plan
from errandry.errors import InvalidValue

EVERY = "every "
_NOTHING = NewJob(id="-", task="-", payload="{}")


class ScheduleOptions(Struct, frozen=True):
    """When a task is to run, again and again.

    when      cron, with 5, 6 or 7 fields or as "@daily"; or "every 5 minutes", or a timedelta
    timezone  whose clocks cron goes by
    start     there are no ticks before; those of an interval are counted from here
    end       there are none after
    limit     how often it runs, at most
    jitter    how much later than its tick a run may be: always the same for the same tick
    overlap   what a tick does while the last run lives: allow it beside, skip it, or queue behind
    catch_up  what becomes of ticks nobody was there for: skip them, run one (the last), or all
    """

    when: str | timedelta
    timezone: str = "UTC"
    start: float | datetime | str | None = None
    end: float | datetime | str | None = None
    limit: int | None = None
    jitter: float | timedelta | str = 0.0
    overlap: Literal["allow", "skip", "queue"] = "allow"
    catch_up: Literal["skip", "one", "all"] = "one"

    def __post_init__(self) -> None:
        check_plan("-", self.plan(_NOTHING))

    def plan(self, job: NewJob) -> SchedulePlan:
        """A job like `job` at every tick."""
        every = _every(self.when)
        return SchedulePlan(
            job=job,
            cron=None if every is not None else _text(self.when),
            every=every,
            zone=self.timezone,
            start=None if self.start is None else moment("start", self.start),
            end=None if self.end is None else moment("end", self.end),
            limit=self.limit,
            jitter=seconds(self.jitter, "jitter"),
            overlap=Overlap(word("overlap", self.overlap, tuple(Overlap))),
            catch_up=CatchUp(word("catch_up", self.catch_up, tuple(CatchUp))),
        )


def of_plan(plan: SchedulePlan) -> ScheduleOptions:
    """A plan as people would write it."""
    return ScheduleOptions(
        plan.words,
        plan.zone,
        plan.start,
        plan.end,
        plan.limit,
        plan.jitter,
        plan.overlap.value,
        plan.catch_up.value,
    )


def schedule(name: str, value: Any) -> ScheduleOptions | None:
    """What was given for `schedule`: nothing, when, or all of it."""
    if value is None or isinstance(value, ScheduleOptions):
        return value
    if isinstance(value, str | timedelta):
        return ScheduleOptions(value)
    raise InvalidValue(name, value, 'must be cron ("0 3 * * *"), "every 5 minutes", or Schedule(…)')


def _every(when: Any) -> float | None:
    if isinstance(when, timedelta):
        return seconds(when, "every")
    if isinstance(when, str) and when.strip().lower().startswith(EVERY):
        return seconds(when.strip()[len(EVERY) :], "every")
    return None


def _text(when: Any) -> str:
    if not isinstance(when, str):
        raise InvalidValue("when", when, 'must be cron ("0 3 * * *"), "every 5 minutes", or a timedelta')
    return when.strip()
