"""Uniqueness: which key a job holds, for how long, and what becomes of another job that wants it."""

from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

from errandry.core import check
from errandry.core.duration import short
from errandry.errors import InvalidValue

EVER = 365 * 86_400.0
"""So long is a key held "for ever"."""


class UniqueScope(StrEnum):
    """How long a key is held.

    alive   until its job has finished, or is gone
    window  for a while, counted from the insert, whatever becomes of its job
    second  through the second, by UTC, that its job is due in, whatever becomes of it
    minute  through the minute it is due in
    hour    through the hour
    day     through the day
    week    through the week, from Monday on
    month   through the month
    ever    for a year
    """

    ALIVE = "alive"
    WINDOW = "window"
    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    EVER = "ever"


class Conflict(StrEnum):
    """What becomes of a new job whose key is held.

    return   it is not inserted: the job that holds the key is the answer
    raise    nothing of the insert is written, and `DuplicateJob` raised
    replace  the holder gets its arguments and its time to run, if no worker has claimed that one yet
    """

    RETURN = "return"
    RAISE = "raise"
    REPLACE = "replace"


class UniqueKey(Struct, frozen=True, omit_defaults=True, gc=False):
    """The key of a job: only one job holds it at a time, in the whole store or `per_queue`."""

    key: str
    scope: UniqueScope = UniqueScope.ALIVE
    window: float | None = None
    per_queue: bool = False

    def __post_init__(self) -> None:
        check.name("unique", self.key)
        if type(self.scope) is not UniqueScope:
            raise InvalidValue("scope", self.scope, "must be a Scope")
        if (self.window is not None) != (self.scope is UniqueScope.WINDOW):
            raise InvalidValue("window", self.window, f"belongs to the scope window, not to {self.scope}")
        if self.window is not None and check.span("window", self.window) == 0:
            raise InvalidValue("window", self.window, "must be more than 0 seconds")

    @property
    def is_aligned(self) -> bool:
        """Whether each second … month has a key of its own."""
        return self.scope in _ALIGNED

    @property
    def is_of_queue(self) -> bool:
        """Whether the job takes it along into another queue."""
        return self.per_queue and self.scope is UniqueScope.ALIVE

    @property
    def span(self) -> str:
        """How long the key is held, in words."""
        match self.scope:
            case UniqueScope.ALIVE:
                return "while the job is alive"
            case UniqueScope.EVER:
                return "for a year"
            case UniqueScope.WINDOW:
                return f"for {short(self.window or 0.0)} from the insert"
            case _:
                return f"through the {self.scope} it was due in"

    def slot(self, queue: str, due: float) -> str:
        """Under what the store keeps the key of a job in `queue`; no key and no queue has these controls."""
        slot = f"{queue}\n{self.key}" if self.per_queue else self.key
        if self.is_aligned:
            slot += f"\t{self.scope} {int(_span(self.scope, due)[0])}"
        return slot

    def until(self, due: float, now: float) -> float | None:
        """When the key is free again, whatever becomes of the job; None: that frees it."""
        if self.scope is UniqueScope.ALIVE:
            return None
        if self.scope is UniqueScope.EVER:
            return now + EVER
        return _span(self.scope, due)[1] if self.window is None else now + self.window


class KeyHolder(Struct, frozen=True, gc=False):
    """Who holds a key, and until when; None: while it is alive."""

    job: str
    expires_at: float | None


_ALIGNED = frozenset(UniqueScope) - {UniqueScope.ALIVE, UniqueScope.WINDOW, UniqueScope.EVER}
_LENGTHS = {
    UniqueScope.SECOND: 1,
    UniqueScope.MINUTE: 60,
    UniqueScope.HOUR: 3_600,
    UniqueScope.DAY: 86_400,
    UniqueScope.WEEK: 7 * 86_400,
}
_FIRST_MONDAY = 4 * 86_400


def _span(scope: UniqueScope, due: float) -> tuple[float, float]:
    """The beginning and the end of the UTC second … month that `due` is in."""
    if scope is UniqueScope.MONTH:
        first = datetime.fromtimestamp(due // 1, UTC).replace(day=1, hour=0, minute=0, second=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        return first.timestamp(), following.timestamp()
    origin = _FIRST_MONDAY if scope is UniqueScope.WEEK else 0
    length = _LENGTHS[scope]
    begin = (due - origin) // length * length + origin
    return begin, begin + length
