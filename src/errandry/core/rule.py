"""Rules of queues, tasks and groups: their limits, rates, sizes, and the order of their jobs.

A rule is stored with its gate and can be changed at any time. `core/gate.py` and `core/permit.py` apply it.
"""

import re
from enum import StrEnum
from typing import Any

from msgspec import Struct

from errandry.core import check
from errandry.core.duration import format_duration, seconds
from errandry.errors import InvalidValue

COUNT_MAX = 10_000_000
PERIOD_MIN = 0.001
"""Minimum number of seconds of the period of a rate."""
_USAGE = 'write a count and a time: "100/minute", "5/s", "1000/90s"'
_RATE = re.compile(r"\s*([0-9][0-9_,]*)\s*/\s*([0-9].*|[a-zA-Z]+)\s*", re.ASCII)


class Rate(Struct, frozen=True, gc=False):
    """`count` jobs in each `period` of seconds, evenly spread, of which `burst` may come at once.

    No interval of one period has more than `count + burst` jobs.
    """

    count: int
    period: float
    burst: int

    def __post_init__(self) -> None:
        check.whole("rate.count", self.count, 1, COUNT_MAX)
        check.whole("rate.burst", self.burst, 1, COUNT_MAX)
        if check.span("rate.period", self.period) < PERIOD_MIN:
            raise InvalidValue("rate.period", self.period, f"must be at least a millisecond; {_USAGE}")

    @property
    def every(self) -> float:
        """Seconds from one job to the next."""
        return self.period / self.count

    def __str__(self) -> str:
        """The rate as `rate` parses it, with the period in the largest unit of which it is a multiple."""
        return f"{self.count}/{_PERIOD_NAMES.get(self.period) or _period_text(self.period)}"


def rate(text: object, burst: int | None = None, name: str = "rate") -> Rate:
    """Parse a rate such as "100/minute". The default `burst` is a tenth of the count, at least 1.

    `name` is the option that an error names.
    """
    burst_name = name.replace("rate", "burst")
    if isinstance(text, Rate):
        if burst is not None:
            raise InvalidValue(burst_name, burst, f"a Rate has its own burst ({text.burst}): give it there")
        return text
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidValue(name, text, f"not a rate; {_USAGE}")
    digits, unit = match[1].replace("_", "").replace(",", ""), match[2]
    try:
        period = seconds(unit if unit[0].isdigit() else f"1{unit}", name)
    except InvalidValue:
        raise InvalidValue(name, text, f"{unit!r} is not a length of time; {_USAGE}") from None
    if not 1 <= int(digits[:20]) <= COUNT_MAX or period < PERIOD_MIN:
        raise InvalidValue(name, text, f"must be 1 to {COUNT_MAX:,} jobs in a millisecond or more; {_USAGE}")
    if burst is not None:
        check.whole(burst_name, burst, 1, COUNT_MAX)
    count = int(digits)
    return Rate(count, period, max(1, count // 10) if burst is None else burst)


def _period_text(period: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if period % size == 0:
            return f"{int(period) // size}{unit}"
    return f"{int(period)}s" if period == int(period) else f"{period!r}s"


_PERIOD_NAMES = {1.0: "second", 60.0: "minute", 3_600.0: "hour", 86_400.0: "day"}


class Overflow(StrEnum):
    """What happens to an insert into a full queue or group.

    refuse       it raises QueueFull
    drop_oldest  the oldest waiting jobs fail, with the reason `dropped`, to make room
    wait         the client waits until there is room
    """

    REFUSE = "refuse"
    DROP_OLDEST = "drop_oldest"
    WAIT = "wait"


class OnReturn(StrEnum):
    """Where a job of a group returns to after a retry, a snooze, a release or an expiry.

    keep_place  to its original place, before all jobs that were inserted later
    hold_group  to its original place; while it is scheduled, no other job of its group is claimed
    """

    KEEP_PLACE = "keep_place"
    HOLD_GROUP = "hold_group"


class Rule(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The limits of a queue, a task or a group. None means no limit.

    limit           the maximum number of jobs that are claimed or running, across all workers
    rate            how many jobs are claimed in a time, across all workers
    weight          how often a group has its turn, compared with groups of weight 1
    group_limit     the limit of each group of the queue without a limit of its own
    group_rate      the rate of each group of the queue without a rate of its own
    max_size        the maximum number of jobs that wait in the queue
    group_max_size  the maximum number of jobs that wait in each of its groups
    overflow        what happens to an insert beyond these sizes
    ageing          after this many seconds of waiting a job goes before all others of its queue
    on_return       where a job of a group goes that returns after a retry, snooze, release or expiry
    """

    limit: int | None = None
    rate: Rate | None = None
    weight: float | None = None
    group_limit: int | None = None
    group_rate: Rate | None = None
    max_size: int | None = None
    group_max_size: int | None = None
    overflow: Overflow | None = None
    ageing: float | None = None
    on_return: OnReturn | None = None

    def __post_init__(self) -> None:
        for field in ("limit", "group_limit", "max_size", "group_max_size"):
            if (value := getattr(self, field)) is not None:
                check.whole(field, value, 1, COUNT_MAX)
        if self.weight is not None and not 0.001 <= check.span("weight", self.weight) <= 1_000:
            raise InvalidValue("weight", self.weight, "must be from 0.001 to 1,000; 1 is the usual weight")
        if self.ageing is not None and check.span("ageing", self.ageing) == 0:
            raise InvalidValue("ageing", self.ageing, "must be more than 0 seconds, or None for no ageing")
        for field, kind in (
            ("rate", Rate),
            ("group_rate", Rate),
            ("overflow", Overflow),
            ("on_return", OnReturn),
        ):
            value = getattr(self, field)
            if value is not None and type(value) is not kind:
                raise InvalidValue(field, value, f"must be of type {kind.__name__}")

    @property
    def given_fields(self) -> tuple[str, ...]:
        """The names of the fields that are set."""
        return tuple(field for field in self.__struct_fields__ if getattr(self, field) is not None)

    def describe(self, field: str) -> str:
        """A field in words: "rate 100/minute (burst 5)", "group limit none"."""
        return f"{field.replace('_', ' ')} {format_value(field, getattr(self, field))}"


def format_value(field: str, value: Any) -> str:
    """The value of a field in words: "100/minute (burst 5)", "none"."""
    if value is None:
        return "none"
    if isinstance(value, Rate):
        return f"{value} (burst {value.burst:,})"
    if field == "ageing":
        return format_duration(value)
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


NO_RULE = Rule()
