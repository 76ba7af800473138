"""Time: what a clock is, this host's clock, and the clock of a store that never goes back."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """`time` is wall-clock seconds since 1970 and may jump; `monotonic` only ever rises, for durations."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """This host's clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class StoreClock:
    """The time of a store: `clock`, this host's or its server's, but it never goes back.

    After a step backwards it neither repeats an instant nor stands still, which would keep
    dead leases alive for the length of the step: it runs at half speed until the wall clock
    has caught up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0.0
        self._seen = clock.monotonic()
        self.is_ahead = False
        """Whether it goes slowly just now, for the wall clock to catch up."""

    def now(self, floor: float = 0.0, wall: float | None = None) -> float:
        """The store's time; at least `floor`, what another process has already written.

        `wall` is what a server's clock shows, where that is the one that counts.
        """
        with self._lock:
            wall = self._clock.time() if wall is None else wall
            seen = self._clock.monotonic()
            slow = self._last + max(0.0, seen - self._seen) / 2  # `floor` is of now, not of our last look
            self._seen = seen
            self._last = max(wall, slow, floor)
            self.is_ahead = self._last > wall
            return self._last

    def guess(self) -> float:
        """About what it shows now, where a server's counts that nobody has asked. Nothing is kept of it."""
        with self._lock:
            return self._last + max(0.0, self._clock.monotonic() - self._seen)
