"""Adding up what passes count: totals for ever, and figures by the minute."""

from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from errandry.core.stats import DAY, HOUR, KEPT, MINUTE, StatsRow, is_figure, is_time

_deltas = msgspec.json.Decoder(list[tuple[str, str, dict[str, int]]])

ROLLED = {MINUTE: HOUR, HOUR: DAY}
"""What the figures of each span go into when they are old."""


class CounterSums(Struct):
    """What event rows add to totals and to figures; `last` is the number of the last of them, 0 if none."""

    totals: Counter[tuple[str, str, str]]
    figures: Counter[tuple[int, int, str, str, str]]
    last: int = 0

    def listed(self) -> list[StatsRow]:
        return [StatsRow(*key, value) for key, value in self.figures.items()]


def summed(rows: Iterable[tuple[int, float, str]]) -> CounterSums:
    """The sums of event rows: their numbers, times and deltas."""
    sums = CounterSums(Counter(), Counter())
    for n, at, deltas in rows:
        sums.last = n
        for queue, task, changes in _deltas.decode(deltas):
            add(sums, at, queue, task, changes)
    return sums


def add(sums: CounterSums, at: float, queue: str, task: str, changes: dict[str, int]) -> None:
    minute = int(at // MINUTE) * MINUTE
    for name, change in changes.items():
        if not is_time(name):
            sums.totals[queue, task, name] += change
        if is_figure(name):
            sums.figures[MINUTE, minute, queue, task, name] += change


def counters(totals: Iterable[tuple[str, str, int]], newest: CounterSums) -> dict[str, dict[str, int]]:
    """Each queue's counters, of rows that are added up by queue and name and of what came after."""
    found: dict[str, dict[str, int]] = {}
    for queue, name, value in totals:
        found.setdefault(queue, {})[name] = value
    for (queue, _, name), value in newest.totals.items():
        own = found.setdefault(queue, {})
        own[name] = own.get(name, 0) + value
    return dict(sorted(found.items()))


def merged(figures: Iterable[StatsRow]) -> list[StatsRow]:
    """Each counter of a time once, in order."""
    sums: Counter[tuple[int, int, str, str, str]] = Counter()
    for span, at, queue, task, name, value in figures:
        sums[span, at, queue, task, name] += value
    return sorted(StatsRow(*key, value) for key, value in sums.items())


def within(figures: Iterable[StatsRow], since: float, until: float) -> list[StatsRow]:
    return [one for one in figures if one.at < until and one.at + one.span > since]


def rolling(span: int, oldest: int | None, now: float) -> tuple[int, int] | None:
    """Which figures of a span are to be rolled up, from when to before when; None if none are old enough."""
    if oldest is None:
        return None
    into = ROLLED[span]
    start = oldest // into * into
    return (start, start + into) if start + into <= now - KEPT[span] else None
