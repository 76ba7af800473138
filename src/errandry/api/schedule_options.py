"""`ScheduleOptions`: when a schedule ticks, and how overlapping and missed ticks are handled."""

from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from msgspec import Struct

from errandry.api.unique_options import check_word
from errandry.core.duration import moment, seconds
from errandry.core.job import NewJob
from errandry.core.schedule import CatchUp, Overlap, SchedulePlan, check_plan
from errandry.errors import InvalidValue

EVERY_PREFIX = "every "
_ANY_JOB = NewJob(id="-", task="-", payload="{}")


class ScheduleOptions(Struct, frozen=True):
    """When a schedule runs its task.

        ScheduleOptions("0 3 * * *", timezone="Europe/Vienna", overlap="skip")

    when      cron, with 5, 6 or 7 fields or as "@daily"; or "every 5 minutes", or a timedelta
    timezone  the time zone of a cron expression
    start     the time before which there are no ticks; the ticks of an interval are counted from it
    end       the time after which there are no ticks
    limit     maximum number of runs
    jitter    maximum delay of a run after its tick; a tick's delay is always the same
    overlap   on a tick while the last run has not finished: allow a second run, skip the tick, or queue it
    catch_up  for ticks that were missed because no worker ran: skip them, run one (the last), or all
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
        check_plan("-", self.plan(_ANY_JOB))

    def plan(self, job: NewJob) -> SchedulePlan:
        """The plan that enqueues a job like `job` at every tick."""
        interval = _read_interval(self.when)
        return SchedulePlan(
            job=job,
            cron=None if interval is not None else _read_cron(self.when),
            every=interval,
            zone=self.timezone,
            start=None if self.start is None else moment("start", self.start),
            end=None if self.end is None else moment("end", self.end),
            limit=self.limit,
            jitter=seconds(self.jitter, "jitter"),
            overlap=Overlap(check_word("overlap", self.overlap, tuple(Overlap))),
            catch_up=CatchUp(check_word("catch_up", self.catch_up, tuple(CatchUp))),
        )


class TimingOptions(TypedDict, total=False):
    """The fields of `ScheduleOptions` but `when`, for `jobs.schedule` and `jobs.schedules.put`."""

    timezone: str
    start: float | datetime | str | None
    end: float | datetime | str | None
    limit: int | None
    jitter: float | timedelta | str
    overlap: Literal["allow", "skip", "queue"]
    catch_up: Literal["skip", "one", "all"]


class TimingChanges(TimingOptions, total=False):
    """The fields of `ScheduleOptions`, for `jobs.schedules.edit`."""

    when: str | timedelta


def timing_of_plan(plan: SchedulePlan) -> dict[str, Any]:
    """The fields of the options that make this plan.

    Not the options: they are checked, and this host may not know the time zone.
    """
    return {
        "when": plan.timing_text,
        "timezone": plan.zone,
        "start": plan.start,
        "end": plan.end,
        "limit": plan.limit,
        "jitter": plan.jitter,
        "overlap": plan.overlap.value,
        "catch_up": plan.catch_up.value,
    }


def read_schedule(name: str, value: Any) -> ScheduleOptions | None:
    """The value of a `schedule` option: None, a time such as cron or an interval, or ScheduleOptions."""
    if value is None or isinstance(value, ScheduleOptions):
        return value
    if isinstance(value, str | timedelta):
        return ScheduleOptions(value)
    raise InvalidValue(name, value, 'must be cron ("0 3 * * *"), "every 5 minutes", or ScheduleOptions(…)')


def _read_interval(when: Any) -> float | None:
    if isinstance(when, timedelta):
        return seconds(when, "every")
    if isinstance(when, str) and when.strip().lower().startswith(EVERY_PREFIX):
        return seconds(when.strip()[len(EVERY_PREFIX) :], "every")
    return None


def _read_cron(when: Any) -> str:
    if not isinstance(when, str):
        raise InvalidValue("when", when, 'must be cron ("0 3 * * *"), "every 5 minutes", or a timedelta')
    return when.strip()
