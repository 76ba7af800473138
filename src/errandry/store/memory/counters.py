"""The totals and figures of a store in memory. No rules."""

from collections import Counter

from errandry.core.stats import DAY, KEPT, StatsRow
from errandry.store.memory.schedules import MemorySchedules
from errandry.store.tables.counters import ROLLED, CounterSums, add, counters, rolling, within
from errandry.store.tables.protocol import Deltas


class MemoryCounters(MemorySchedules):
    """A part of the tables: sums of all that was counted."""

    def __init__(self) -> None:
        super().__init__()
        self._sums = CounterSums(Counter(), Counter())

    def count(self, now: float, deltas: Deltas) -> None:
        for (queue, task), changes in deltas.items():
            add(self._sums, now, queue, task, dict(changes))

    def counters(self) -> dict[str, dict[str, int]]:
        return counters((), self._sums)

    def stats(self, since: float, until: float) -> list[StatsRow]:
        return within(self._sums.listed(), since, until)

    def _roll(self, now: float) -> None:
        """Add an hour of minutes that are old to the hours, and a day of hours to the days."""
        figures = self._sums.figures
        for span, into in ROLLED.items():
            old = rolling(span, min((at for of, at, *_ in figures if of == span), default=None), now)
            if old is not None:
                for key in [key for key in figures if key[0] == span and key[1] < old[1]]:
                    _, at, queue, task, name = key
                    figures[into, at // into * into, queue, task, name] += figures.pop(key)
        for key in [key for key in figures if key[0] == DAY and key[1] < now - KEPT[DAY]]:
            del figures[key]
