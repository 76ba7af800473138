"""Uniqueness: the key that a job holds, for how long, and what happens to another job with the same key."""

from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

from errandry.core import check
from errandry.core.duration import format_duration
from errandry.errors import InvalidValue

FOR_EVER = 365 * 86_400.0
"""Seconds for which a key of the scope `ever` is held: a year."""


class UniqueScope(StrEnum):
    """How long a key is held. In all scopes but `alive`, the end of the job does not free it.

    alive   until the job has finished or is removed
    window  for a given time after the insert
    second  through the second, by UTC, in which the job is due
    minute  through the minute in which the job is due
    hour    through the hour in which the job is due
    day     through the day in which the job is due
    week    through the week in which the job is due, which begins on Monday
    month   through the month in which the job is due
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
    """What happens to a new job if another job holds its key.

    return   the job is not inserted; the holder of the key is returned
    raise    nothing of the insert is written, and `DuplicateJob` is raised
    replace  the holder gets the arguments and `run_at` of the new job, if no worker has claimed it yet
    """

    RETURN = "return"
    RAISE = "raise"
    REPLACE = "replace"


class UniqueKey(Struct, frozen=True, omit_defaults=True, gc=False):
    """The unique key of a job.

    One job at a time holds it, in the whole store or, with `per_queue`, in its queue.
    """

    key: str
    scope: UniqueScope = UniqueScope.ALIVE
    window: float | None = None
    per_queue: bool = False

    def __post_init__(self) -> None:
        check.name("unique", self.key)
        if type(self.scope) is not UniqueScope:
            raise InvalidValue("scope", self.scope, "must be a UniqueScope")
        if (self.window is not None) != (self.scope is UniqueScope.WINDOW):
            raise InvalidValue("window", self.window, f"belongs to the scope window, not to {self.scope}")
        if self.window is not None and check.span("window", self.window) == 0:
            raise InvalidValue("window", self.window, "must be more than 0 seconds")

    @property
    def is_aligned(self) -> bool:
        """Whether each period of the calendar, from second to month, has a key of its own."""
        return self.scope in _ALIGNED

    @property
    def is_bound_to_queue(self) -> bool:
        """Whether the key moves with the job to another queue."""
        return self.per_queue and self.scope is UniqueScope.ALIVE

    @property
    def span(self) -> str:
        """How long the key is held, for people."""
        match self.scope:
            case UniqueScope.ALIVE:
                return "while the job is alive"
            case UniqueScope.EVER:
                return "for a year"
            case UniqueScope.WINDOW:
                return f"for {format_duration(self.window or 0.0)} from the insert"
            case _:
                return f"through the {self.scope} it was due in"

    def slot(self, queue: str, due: float) -> str:
        """The slot in which the store keeps the key of a job in `queue`.

        Names have no control characters, so the separators are unambiguous.
        """
        slot = f"{queue}\n{self.key}" if self.per_queue else self.key
        if self.is_aligned:
            slot += f"\t{self.scope} {int(_period(self.scope, due)[0])}"
        return slot

    def until(self, due: float, now: float) -> float | None:
        """When the key is free again; None if the end of the job frees it."""
        if self.scope is UniqueScope.ALIVE:
            return None
        if self.scope is UniqueScope.EVER:
            return now + FOR_EVER
        return _period(self.scope, due)[1] if self.window is None else now + self.window


class KeyHolder(Struct, frozen=True, gc=False):
    """The job that holds a key, and until when; None: until the job ends."""

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


def _period(scope: UniqueScope, due: float) -> tuple[float, float]:
    """The beginning and the end of the UTC period, from second to month, that contains `due`."""
    if scope is UniqueScope.MONTH:
        first = datetime.fromtimestamp(due // 1, UTC).replace(day=1, hour=0, minute=0, second=0)
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        return first.timestamp(), following.timestamp()
    origin = _FIRST_MONDAY if scope is UniqueScope.WEEK else 0
    length = _LENGTHS[scope]
    begin = (due - origin) // length * length + origin
    return begin, begin + length
