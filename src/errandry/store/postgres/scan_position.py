"""Scan positions: where claims have stopped, so that the next ones do not scan dead index entries again.

A claimed job leaves a dead entry at the head of its lane, and later one at the head of the lease index.
Mostly the next scan removes them. While another transaction holds an old snapshot, it cannot, and every
claim scans all entries that died since. A claim then starts where the last one of the same lane and
priority stopped. It still finds new jobs of any priority. It misses a job that appears before that
position, because its transaction took long or its claim failed. A full scan finds such jobs; full scans
take a tenth of the time.
"""

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import NamedTuple

SLOW_SCAN_ENTRIES = 10_000
"""Number of index entries in a full scan above which claims use scan positions."""
RESCAN_DELAY_PER_ENTRY = 2e-6
"""Seconds until the next full scan, for each entry that the last one read: about ten times its duration."""
COUNT_INTERVAL = 1.0
"""Seconds between two counts of the scanned entries while these are few."""
PRIORITIES_MAX = 16
"""Maximum number of priorities of a lane with a scan position."""
NEVER_BEFORE = float("-inf")
"""A time before all others."""
_LEAST, _MOST = -(2**62), 2**62


class LanePart(NamedTuple):
    """A part of a lane: the jobs after (`priority`, `place`) whose priority is less than `below`."""

    priority: int = _LEAST
    place: int = _LEAST
    below: int = _MOST


class DueFloors(NamedTuple):
    """The earliest times at which a job may be due, a lease may expire, and a deadline may pass."""

    run_at: float = NEVER_BEFORE
    lease_until: float = NEVER_BEFORE
    deadline: float = NEVER_BEFORE


WHOLE = (LanePart(),)
Parts = Mapping[int, tuple[LanePart, ...]]
"""The parts of each lane to scan. Any other lane is scanned as a whole."""


class ScanPositions:
    """The scan positions of a store, shared by its threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: dict[int, dict[int, int]] = {}
        self._floors = DueFloors()
        self._counted_at = self._rescan_at = NEVER_BEFORE

    def wants_count(self, now: float) -> bool:
        """Whether a full scan now should count the entries it reads."""
        return now >= (
            self._counted_at + COUNT_INTERVAL if self._rescan_at == NEVER_BEFORE else self._rescan_at
        )

    def parts(self, now: float) -> Parts:
        """The parts of lanes to scan now; empty for a full scan."""
        if now >= self._rescan_at:
            return {}
        with self._lock:
            return {lane: tuple(_parts_after(ends)) for lane, ends in self._ends.items()}

    def floors(self, now: float) -> DueFloors | None:
        """The times from which to scan for due jobs; None for a full scan."""
        return self._floors if now < self._rescan_at else None

    def record_scan(
        self, entries: int, firsts: Mapping[int, tuple[int, int]], floors: DueFloors, now: float
    ) -> None:
        """Record a full scan, which read `entries` index entries.

        `firsts` has the priority and place of the first job of each lane; before `floors`, nothing is due.
        """
        with self._lock:
            self._counted_at = now
            if entries < SLOW_SCAN_ENTRIES:
                self._rescan_at, self._ends = NEVER_BEFORE, {}
                return
            self._rescan_at, self._floors = now + entries * RESCAN_DELAY_PER_ENTRY, floors
        for lane, first in firsts.items():
            self.record_arrivals(lane, [first])

    def record_arrivals(self, lane: int, places: Iterable[tuple[int, int]]) -> None:
        """Record that jobs were put into a lane, each with its priority and place."""
        with self._lock:
            ends = self._ends.get(lane, {})
            for priority, place in places:
                if 0 < place <= ends.get(priority, 0):
                    del ends[priority]

    def record_taken(self, lane: int, places: Iterable[tuple[int, int]]) -> None:
        """Record that the first jobs of a lane were claimed, each with its priority and place.

        Lifo jobs, which have negative places, do not move the scan position: the next one comes before them.
        """
        if self._rescan_at == NEVER_BEFORE:
            return
        with self._lock:
            ends = self._ends.setdefault(lane, {})
            for priority, place in places:
                if place > 0:
                    ends[priority] = max(place, ends.get(priority, 0))
            while len(ends) > PRIORITIES_MAX:
                del ends[next(iter(ends))]


def _parts_after(ends: Mapping[int, int]) -> Iterable[LanePart]:
    priority, place = _LEAST, _LEAST
    for below in sorted(ends):
        yield LanePart(priority, place, below)
        priority, place = below, ends[below]
    yield LanePart(priority, place)
