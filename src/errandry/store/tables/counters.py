"""Sums of the counters in event rows: lifetime totals, and statistics by minute, hour and day."""

from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from errandry.core.stats import DAY, HOUR, MINUTE, RETENTION, StatsRow, is_figure, is_time

_deltas = msgspec.json.Decoder(list[tuple[str, str, dict[str, int]]])

ROLLED_INTO = {MINUTE: HOUR, HOUR: DAY}
"""For each span of statistics, in seconds, the longer span that its old rows are added to."""


class CounterSums(Struct):
    """Totals by (queue, task, counter), and figures by (span, start, queue, task, counter).

    `last` is the number of the last event row they include, 0 if there was none.
    """

    totals: Counter[tuple[str, str, str]]
    figures: Counter[tuple[int, int, str, str, str]]
    last: int = 0

    def stats_rows(self) -> list[StatsRow]:
        return [StatsRow(*key, value) for key, value in self.figures.items()]


def sum_event_rows(rows: Iterable[tuple[int, float, str]]) -> CounterSums:
    """Add up event rows of number, time and deltas (JSON)."""
    sums = CounterSums(Counter(), Counter())
    for n, at, deltas in rows:
        sums.last = n
        for queue, task, changes in _deltas.decode(deltas):
            add_counters(sums, at, queue, task, changes)
    return sums


def add_counters(sums: CounterSums, at: float, queue: str, task: str, changes: dict[str, int]) -> None:
    minute = int(at // MINUTE) * MINUTE
    for name, change in changes.items():
        if not is_time(name):
            sums.totals[queue, task, name] += change
        if is_figure(name):
            sums.figures[MINUTE, minute, queue, task, name] += change


def counters(totals: Iterable[tuple[str, str, int]], newest: CounterSums) -> dict[str, dict[str, int]]:
    """The counters of each queue: stored totals (queue, counter, value) plus the newest event rows."""
    by_queue: dict[str, dict[str, int]] = {}
    for queue, name, value in totals:
        by_queue.setdefault(queue, {})[name] = value
    for (queue, _, name), value in newest.totals.items():
        values = by_queue.setdefault(queue, {})
        values[name] = values.get(name, 0) + value
    return dict(sorted(by_queue.items()))


def merge_stats(figures: Iterable[StatsRow]) -> list[StatsRow]:
    """Add up rows of the same span, start, queue, task and counter; sorted."""
    sums: Counter[tuple[int, int, str, str, str]] = Counter()
    for span, at, queue, task, name, value in figures:
        sums[span, at, queue, task, name] += value
    return sorted(StatsRow(*key, value) for key, value in sums.items())


def rows_between(figures: Iterable[StatsRow], since: float, until: float) -> list[StatsRow]:
    return [row for row in figures if row.at < until and row.at + row.span > since]


def roll_up_range(span: int, oldest: int | None, now: float) -> tuple[int, int] | None:
    """The times (from, to) between which rows of a span are to be rolled up; None if none is old enough."""
    if oldest is None:
        return None
    into = ROLLED_INTO[span]
    start = oldest // into * into
    return (start, start + into) if start + into <= now - RETENTION[span] else None
