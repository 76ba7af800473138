"""Where claims have been, so that nobody reads there again while what has died cannot be cleaned away.

A claimed job leaves a dead entry at the head of its lane, and later one where leases end first. Mostly the
next reader puts them away. As long as somebody keeps an old snapshot open it cannot, and every claim reads
past all that were claimed since. Then a claim begins where the last one of the same lane and priority has
ended. It sees new jobs of any priority. One that has come to stand before that (its transaction took long, or
the claim of it failed) is found when everything is read again, as often as that takes a tenth of the time.
"""

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import NamedTuple

MANY = 10_000
"""Who reads so many entries is slowed down by them."""
REST = 2e-6
"""So many seconds pass for each entry read until all are read again: about ten times what it took."""
EVERY = 1.0
"""How often entries are counted while there seem to be few."""
PRIORITIES = 16
"""Of so many priorities of a lane it is known where the last claim ended."""
ALWAYS = float("-inf")
_LEAST, _MOST = -(2**62), 2**62


class LanePart(NamedTuple):
    """A part of a lane: what stands behind a place, in the same priority or in others below a third."""

    priority: int = _LEAST
    place: int = _LEAST
    below: int = _MOST


class DueFloors(NamedTuple):
    """From when on something may be due, a lease end or a deadline be."""

    run_at: float = ALWAYS
    lease_until: float = ALWAYS
    deadline: float = ALWAYS


WHOLE = (LanePart(),)
Parts = Mapping[int, tuple[LanePart, ...]]
"""By lane, the parts that are to be read; any other lane is read as a whole."""


class ScanPositions:
    """What all connections of a store know of it together."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: dict[int, dict[int, int]] = {}
        self._floors = DueFloors()
        self._counted = self._until = ALWAYS

    def is_counting(self, now: float) -> bool:
        """Whether who reads everything now is to count the entries."""
        return now >= (self._counted + EVERY if self._until == ALWAYS else self._until)

    def parts(self, now: float) -> Parts:
        """Those of lanes that are not to be read as a whole."""
        if now >= self._until:
            return {}
        with self._lock:
            return {lane: tuple(_behind(ends)) for lane, ends in self._ends.items()}

    def floors(self, now: float) -> DueFloors | None:
        """None, if everything is to be read."""
        return self._floors if now < self._until else None

    def has_read(
        self, entries: int, firsts: Mapping[int, tuple[int, int]], floors: DueFloors, now: float
    ) -> None:
        """Somebody has read everything, so many entries: these are the first in their lanes, by priority and
        place, and nothing is before these times."""
        with self._lock:
            self._counted = now
            if entries < MANY:
                self._until, self._ends = ALWAYS, {}
                return
            self._until, self._floors = now + entries * REST, floors
        for lane, spot in firsts.items():
            self.came(lane, [spot])

    def came(self, lane: int, spots: Iterable[tuple[int, int]]) -> None:
        """Jobs have come to stand at these spots of a lane."""
        with self._lock:
            ends = self._ends.get(lane, {})
            for priority, place in spots:
                if 0 < place <= ends.get(priority, 0):
                    del ends[priority]

    def emptied(self, lane: int, spots: Iterable[tuple[int, int]]) -> None:
        """The jobs at these spots were the first of a lane, and have left it. Who stands in front of all who
        came before, at a negative place, leaves nothing behind that is known to be empty."""
        if self._until == ALWAYS:
            return
        with self._lock:
            ends = self._ends.setdefault(lane, {})
            for priority, place in spots:
                if place > 0:
                    ends[priority] = max(place, ends.get(priority, 0))
            while len(ends) > PRIORITIES:
                del ends[next(iter(ends))]


def _behind(ends: Mapping[int, int]) -> Iterable[LanePart]:
    priority, place = _LEAST, _LEAST
    for below in sorted(ends):
        yield LanePart(priority, place, below)
        priority, place = below, ends[below]
    yield LanePart(priority, place)
