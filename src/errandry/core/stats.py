"""Statistics: how many jobs were inserted and ended in a time, and how long they waited and ran.

Every pass writes its counts. They are summed by the minute, and old ones by the hour and by the day.
Durations are counted in histogram buckets whose bounds grow by the square root of two. A quantile is the
upper bound of its bucket: for durations over 1 ms, at most √2 times the true value.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from errandry.core.duration import as_datetime
from errandry.errors import InvalidValue

MINUTE, HOUR, DAY = 60, 3_600, 86_400
RETENTION = {MINUTE: 3 * HOUR, HOUR: 8 * DAY, DAY: 400 * DAY}
"""Seconds for which counters are kept by the minute, by the hour and by the day."""

BOUNDS = tuple(0.001 * 2 ** (number / 2) for number in range(61))
"""Upper bounds of the buckets in seconds, from 1 ms to twelve days. A last bucket has all longer ones."""
WAIT_PREFIX, RUN_PREFIX = "wait.", "run."
WAITS = tuple(f"{WAIT_PREFIX}{number}" for number in range(len(BOUNDS) + 1))
RUNS = tuple(f"{RUN_PREFIX}{number}" for number in range(len(BOUNDS) + 1))
TOTAL_PREFIX = "total."
"""Prefix of the counters of events. They are part of the totals and of the statistics by time."""


def bucket(names: tuple[str, ...], seconds: float) -> str:
    """The counter of a duration; `names` is `WAITS` or `RUNS`."""
    return names[bisect_left(BOUNDS, seconds)]


def is_time(name: str) -> bool:
    """Whether a counter is a bucket of durations, which is not part of the totals."""
    return name.startswith((WAIT_PREFIX, RUN_PREFIX))


def is_figure(name: str) -> bool:
    """Whether a counter is part of the statistics by time."""
    return name.startswith((TOTAL_PREFIX, WAIT_PREFIX, RUN_PREFIX))


class StatsRow(NamedTuple):
    """One counter of a queue and task, for the `span` seconds from `at`."""

    span: int
    at: int
    queue: str
    task: str
    name: str
    value: int


class DurationHistogram(Struct, frozen=True):
    """The number of durations in each bucket of `BOUNDS`, by the number of the bucket."""

    buckets: Mapping[int, int] = {}

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def quantile(self, share: float) -> float | None:
        """A quantile in seconds: 0.99 for the 99th percentile. None if there are no durations."""
        if not 0 <= share <= 1:
            raise InvalidValue("share", share, "must be from 0 to 1")
        numbers = sorted(self.buckets)
        sums = list(accumulate(self.buckets[number] for number in numbers))
        if not sums:
            return None
        number = numbers[bisect_left(sums, share * sums[-1])]
        return BOUNDS[number] if number < len(BOUNDS) else float("inf")


class Counts(Struct, frozen=True):
    """The number of jobs that were inserted, completed, and so on."""

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
    """The counts and durations of the `span` seconds from `at`.

    The wait of a job is the time from when it could have run until its handler began; its run is the time
    until the handler ended.
    """

    at: datetime
    span: float
    counts: Counts = Counts()
    wait: DurationHistogram = DurationHistogram()
    run: DurationHistogram = DurationHistogram()

    @property
    def rate(self) -> float:
        """Jobs that ended per second."""
        counts = self.counts
        return (counts.completed + counts.failed + counts.canceled) / self.span if self.span else 0.0


class Stats(Struct, frozen=True):
    """The statistics from `since` until `until`, which are ends of the minutes, hours or days of the rows.

    `figures` are the stored counters that they are made of.
    """

    since: datetime
    until: datetime
    figures: tuple[StatsRow, ...]

    @property
    def total(self) -> TimeSlice:
        """The sums over the whole time."""
        return time_slice(self.figures, self.since, self._span)

    @property
    def queues(self) -> dict[str, TimeSlice]:
        return self._by(lambda figure: figure.queue)

    @property
    def tasks(self) -> dict[str, TimeSlice]:
        return self._by(lambda figure: figure.task)

    def series(self, parts: int) -> list[TimeSlice]:
        """The time in `parts` slices of equal length, each with the sums of its rows."""
        if parts < 1:
            raise InvalidValue("parts", parts, "must be at least 1")
        since, span = self.since.timestamp(), self._span / parts
        slices: list[list[StatsRow]] = [[] for _ in range(parts)]
        for row in self.figures:
            middle = row.at + row.span / 2
            slices[min(parts - 1, max(0, int((middle - since) / span)))].append(row)
        return [
            time_slice(rows, as_datetime(since + number * span), span) for number, rows in enumerate(slices)
        ]

    @property
    def _span(self) -> float:
        return (self.until - self.since).total_seconds()

    def _by(self, key: Callable[[StatsRow], str]) -> dict[str, TimeSlice]:
        groups: dict[str, list[StatsRow]] = {}
        for row in self.figures:
            groups.setdefault(key(row), []).append(row)
        return {name: time_slice(groups[name], self.since, self._span) for name in sorted(groups)}


def time_slice(rows: Iterable[StatsRow], at: datetime, span: float) -> TimeSlice:
    """The sums of the rows, as the counts and durations of the `span` seconds from `at`."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row.name] += row.value
    counts = Counts(**{name: sums[TOTAL_PREFIX + name] for name in Counts.__struct_fields__})
    return TimeSlice(at, span, counts, _histogram(sums, WAIT_PREFIX), _histogram(sums, RUN_PREFIX))


def _histogram(sums: Mapping[str, int], prefix: str) -> DurationHistogram:
    return DurationHistogram(
        {int(name.removeprefix(prefix)): n for name, n in sums.items() if name.startswith(prefix)}
    )


def stats(rows: Iterable[StatsRow], since: float, until: float) -> Stats:
    """The statistics of these rows. Their time is extended to the ends of the first and last hour or day."""
    figures = tuple(rows)
    first = min([since, *(row.at for row in figures)])
    last = max([until, *(row.at + row.span for row in figures if row.span > MINUTE)])
    return Stats(as_datetime(first), as_datetime(last), figures)
