"""A clock that stands still until it is moved."""

START = 1_750_000_000.0


class FakeClock:
    """A clock that tests move: `advance` lets time pass, `jump` sets the wall clock, as NTP may do."""

    def __init__(self, start: float = START) -> None:
        self._wall = start
        self._monotonic = 1_000.0

    def time(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass on both the wall clock and the monotonic clock."""
        if seconds < 0:
            raise ValueError(f"time does not pass backwards ({seconds} s): use jump")
        self._wall += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or, with a negative number, back; the monotonic clock stays."""
        self._wall += seconds
