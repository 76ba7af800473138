"""Clocks: the protocol, the clock of this host, and the clock of a store, which never goes back."""

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
    """The time of a store, from the clock of this host or of the server. It never goes back.

    When the wall clock is set back, this clock runs at half speed until the wall clock has caught up.
    Stopping it instead would keep the leases of dead workers alive for the length of the step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0.0
        self._seen = clock.monotonic()
        self.is_ahead = False
        """Whether this clock is ahead of the wall clock, and therefore runs at half speed."""

    def now(self, floor: float = 0.0, wall: float | None = None) -> float:
        """The time of the store, at least `floor`, the latest time that another process has written.

        `wall` is the time of the server, for a store that uses the server's clock.
        """
        with self._lock:
            wall = self._clock.time() if wall is None else wall
            seen = self._clock.monotonic()
            slow = self._last + max(0.0, seen - self._seen) / 2  # not from `floor`, which is a time of now
            self._seen = seen
            self._last = max(wall, slow, floor)
            self.is_ahead = self._last > wall
            return self._last

    def estimate(self) -> float:
        """An estimate of the store's time without asking the server. Does not advance the clock."""
        with self._lock:
            return self._last + max(0.0, self._clock.monotonic() - self._seen)
