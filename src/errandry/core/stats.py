"""What happened when, in figures: how many jobs ended how, how long they waited and ran.

Every pass carries its counts; they are added up by the minute, later by the hour and by the day. Times are
counted in buckets whose bounds grow by the square root of two, so a quantile is right to a fifth.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from errandry.errors import InvalidValue

MINUTE, HOUR, DAY = 60, 3_600, 86_400
KEPT = {MINUTE: 3 * HOUR, HOUR: 8 * DAY, DAY: 400 * DAY}
"""How long figures are kept by the minute, by the hour and by the day, in seconds."""

BOUNDS = tuple(0.001 * 2 ** (number / 2) for number in range(61))
"""Seconds from a millisecond to twelve days; what took longer is in a bucket of its own."""
WAIT, RUN = "wait.", "run."
WAITS = tuple(f"{WAIT}{number}" for number in range(len(BOUNDS) + 1))
RUNS = tuple(f"{RUN}{number}" for number in range(len(BOUNDS) + 1))
COUNTED = "total."
"""Counters with this prefix say what happened, and are figures too."""


def bucket(names: tuple[str, ...], seconds: float) -> str:
    """The counter of a time, of `WAITS` or `RUNS`."""
    return names[bisect_left(BOUNDS, seconds)]


def is_time(name: str) -> bool:
    """Whether a counter is of times only, and no total of a store."""
    return name.startswith((WAIT, RUN))


def is_figure(name: str) -> bool:
    return name.startswith((COUNTED, WAIT, RUN))


class StatsRow(NamedTuple):
    """One counter of a queue and task, from `at` on for `span` seconds."""

    span: int
    at: int
    queue: str
    task: str
    name: str
    value: int


class DurationHistogram(Struct, frozen=True):
    """How long something took, by the number of a bucket of `BOUNDS`: how often."""

    buckets: Mapping[int, int] = {}

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def quantile(self, share: float) -> float | None:
        """Seconds that this share took at most: 0.99 for the 99th percentile. None if nothing was timed."""
        if not 0 <= share <= 1:
            raise InvalidValue("share", share, "must be from 0 to 1")
        numbers = sorted(self.buckets)
        sums = list(accumulate(self.buckets[number] for number in numbers))
        if not sums:
            return None
        number = numbers[bisect_left(sums, share * sums[-1])]
        return BOUNDS[number] if number < len(BOUNDS) else float("inf")


class Counts(Struct, frozen=True):
    """How often a job was inserted, ended, and so on."""

    inserted: int = 0
    completed: int = 0
    failed: int = 0
    canceled: int = 0
    retried: int = 0
    expired: int = 0
    removed: int = 0
    moved_in: int = 0
    moved_out: int = 0


class TimeSlice(Struct, frozen=True):
    """What happened from `at` on for `span` seconds: counts by what it was, waiting and running times.

    A job waits from when it could have run until its handler begins, and runs until that has ended.
    """

    at: float
    span: float
    counts: Counts = Counts()
    wait: DurationHistogram = DurationHistogram()
    run: DurationHistogram = DurationHistogram()

    @property
    def rate(self) -> float:
        """How many jobs ended a second."""
        counts = self.counts
        return (counts.completed + counts.failed + counts.canceled) / self.span if self.span else 0.0


class Stats(Struct, frozen=True):
    """The figures of a time. Its ends are those of the minutes, hours or days that they are kept by."""

    since: float
    until: float
    figures: tuple[StatsRow, ...]

    @property
    def total(self) -> TimeSlice:
        """All of it."""
        return summed(self.figures, self.since, self.until - self.since)

    @property
    def queues(self) -> dict[str, TimeSlice]:
        return self._by(lambda figure: figure.queue)

    @property
    def tasks(self) -> dict[str, TimeSlice]:
        return self._by(lambda figure: figure.task)

    def series(self, parts: int) -> list[TimeSlice]:
        """The time in so many parts of equal length, each with what is kept of it."""
        if parts < 1:
            raise InvalidValue("parts", parts, "must be at least 1")
        span = (self.until - self.since) / parts
        found: list[list[StatsRow]] = [[] for _ in range(parts)]
        for figure in self.figures:
            middle = figure.at + figure.span / 2
            found[min(parts - 1, max(0, int((middle - self.since) / span)))].append(figure)
        return [summed(own, self.since + number * span, span) for number, own in enumerate(found)]

    def _by(self, key: Callable[[StatsRow], str]) -> dict[str, TimeSlice]:
        found: dict[str, list[StatsRow]] = {}
        for figure in self.figures:
            found.setdefault(key(figure), []).append(figure)
        span = self.until - self.since
        return {name: summed(found[name], self.since, span) for name in sorted(found)}


def summed(figures: Iterable[StatsRow], at: float, span: float) -> TimeSlice:
    sums: Counter[str] = Counter()
    for figure in figures:
        sums[figure.name] += figure.value
    counts = Counts(**{name: sums[COUNTED + name] for name in Counts.__struct_fields__})
    return TimeSlice(at, span, counts, _times(sums, WAIT), _times(sums, RUN))


def _times(sums: Mapping[str, int], prefix: str) -> DurationHistogram:
    return DurationHistogram(
        {int(name.removeprefix(prefix)): n for name, n in sums.items() if name.startswith(prefix)}
    )


def stats(figures: Iterable[StatsRow], since: float, until: float) -> Stats:
    """Figures that are of this time, with the ends of what they are kept by."""
    found = tuple(figures)
    first = min([since, *(figure.at for figure in found)])
    last = max([until, *(figure.at + figure.span for figure in found if figure.span > MINUTE)])
    return Stats(first, last, found)
