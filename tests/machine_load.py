"""Measure the load of this machine, so that other programs on it do not break the time limits of tests."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SLEEP_TIME = 0.005
"""Seconds of one sleep of the measuring thread."""
LOAD_FILE = Path("/proc/loadavg")
WAIT_TIMEOUT = 60.0
"""Seconds after which a test gives up waiting; long enough for a busy machine."""
SLEEPS_PER_COUNT = 20
"""Number of sleeps after which the runnable threads are counted again."""


class MachineLoad:
    """Measures during a test how late a sleeping thread wakes up, and how many threads are runnable.

    One of the two is not enough: a sleeping thread wakes up soon even where busy threads wait for each other.
    Use the result after the `with` block.
    """

    def __init__(self) -> None:
        self._longest_delay = 0.0
        self._counts = self._runnable = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def scaled(self, seconds: float) -> float:
        """A time limit for several round trips between two processes: `seconds`, more on a busy machine."""
        share = self._runnable / max(1, self._counts) / (os.cpu_count() or 1)
        return seconds * max(1.0, share) + 10 * self._longest_delay

    def _watch(self) -> None:
        sleeps = 0
        while not self._is_over.is_set():
            began = time.perf_counter()
            time.sleep(SLEEP_TIME)
            self._longest_delay = max(self._longest_delay, time.perf_counter() - began - SLEEP_TIME)
            if sleeps % SLEEPS_PER_COUNT == 0:
                self._counts += 1
                self._runnable += _runnable_threads()
            sleeps += 1


def _runnable_threads() -> int:
    """The number of runnable threads of this machine without this one; 0 where it is unknown."""
    try:
        return int(LOAD_FILE.read_text("ascii").split()[3].partition("/")[0]) - 1
    except OSError:
        return 0
