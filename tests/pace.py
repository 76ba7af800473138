"""How slow this machine is just now: limits on time are for Errandry, not for who else is at work here."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

REST = 0.005
LOAD = Path("/proc/loadavg")
PATIENCE = 60.0
"""So long, on a machine with other things to do, may anything take that does happen."""
COUNT = 20
"""After so many rests it is counted who wants to run."""


class Pace:
    """Measures beside a test how late a thread that only sleeps is let go on, and how many want to run.

    Each alone says too little: a sleeper is soon let on where those with much to do wait for each other.
    Asked when it is over.
    """

    def __init__(self) -> None:
        self._worst = 0.0
        self._looks = self._crowd = 0
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

    def allowed(self, seconds: float) -> float:
        """A limit for what takes several turns of two processes: `seconds`, and more on a busy machine."""
        share = self._crowd / max(1, self._looks) / (os.cpu_count() or 1)
        return seconds * max(1.0, share) + 10 * self._worst

    def _watch(self) -> None:
        turn = 0
        while not self._is_over.is_set():
            began = time.perf_counter()
            time.sleep(REST)
            self._worst = max(self._worst, time.perf_counter() - began - REST)
            if turn % COUNT == 0:
                self._looks += 1
                self._crowd += _wanting()
            turn += 1


def _wanting() -> int:
    """How many threads want to run on this machine, this one left out; 0 where that cannot be told."""
    try:
        return int(LOAD.read_text("ascii").split()[3].partition("/")[0]) - 1
    except OSError:
        return 0
