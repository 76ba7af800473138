"""Counters and statistics of the memory store."""

from collections import Counter

from errandry.core.stats import DAY, RETENTION, StatsRow
from errandry.store.memory.schedules import MemorySchedules
from errandry.store.tables.counters import (
    ROLLED_INTO,
    CounterSums,
    add_counters,
    counters,
    roll_up_range,
    rows_between,
)
from errandry.store.tables.protocol import Deltas


class MemoryCounters(MemorySchedules):
    """The part of the tables with the sums of all counters."""

    def __init__(self) -> None:
        super().__init__()
        self._sums = CounterSums(Counter(), Counter())

    def count(self, now: float, deltas: Deltas) -> None:
        for (queue, task), changes in deltas.items():
            add_counters(self._sums, now, queue, task, dict(changes))

    def counters(self) -> dict[str, dict[str, int]]:
        return counters((), self._sums)

    def stats(self, since: float, until: float) -> list[StatsRow]:
        return rows_between(self._sums.stats_rows(), since, until)

    def _roll(self, now: float) -> None:
        """Add an hour of old minutes to the hours, and a day of old hours to the days; delete old days."""
        figures = self._sums.figures
        for span, into in ROLLED_INTO.items():
            old = roll_up_range(span, min((at for of, at, *_ in figures if of == span), default=None), now)
            if old is not None:
                for key in [key for key in figures if key[0] == span and key[1] < old[1]]:
                    _, at, queue, task, name = key
                    figures[into, at // into * into, queue, task, name] += figures.pop(key)
        for key in [key for key in figures if key[0] == DAY and key[1] < now - RETENTION[DAY]]:
            del figures[key]
