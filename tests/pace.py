"""How slow this machine is just now: limits on time are for Errandry, not for who else is at work here."""

import threading
import time
from types import TracebackType
from typing import Self

REST = 0.005
PATIENCE = 60.0
"""So long, on a machine with other things to do, may anything take that does happen."""


class Pace:
    """Measures beside a test how late a thread that only sleeps is let go on. Asked when it is over."""

    def __init__(self) -> None:
        self._worst = 0.0
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
        return seconds + 10 * self._worst

    def _watch(self) -> None:
        while not self._is_over.is_set():
            began = time.perf_counter()
            time.sleep(REST)
            self._worst = max(self._worst, time.perf_counter() - began - REST)
