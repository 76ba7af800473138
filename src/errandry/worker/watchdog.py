"""Noticing that a handler blocks the loop all handlers share, and saying which one and where.

Runs on the engine's loop, which is not blocked by it.
"""

import asyncio
import logging
import sys
import threading
from types import FrameType

from errandry.clock import Clock
from errandry.worker.attempt import AttemptRunner
from errandry.worker.handler_call import HandlerCall

log = logging.getLogger("errandry.worker")


class Watchdog:
    """Made on the loop it watches."""

    def __init__(self, clock: Clock, stall_after: float) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._clock, self._stall_after = clock, stall_after
        self._answered = clock.monotonic()
        self._barked = False

    async def run(self) -> None:
        """Call on the loop again and again; when it does not answer, look what it is doing."""
        while True:
            self._loop.call_soon_threadsafe(self._answer)
            asleep = self._clock.monotonic()
            await asyncio.sleep(self._stall_after / 2)
            now = self._clock.monotonic()
            silence = now - self._answered
            if silence < self._stall_after:
                self._barked = False
            elif not self._barked:
                self._barked = self._bark(silence, is_sure=now - asleep < self._stall_after)

    def _answer(self) -> None:
        self._answered = self._clock.monotonic()

    def _bark(self, silence: float, is_sure: bool) -> bool:
        """Say who it is; nothing if it is nobody, and the whole process may just have been stopped."""
        batch, place = None, "an unknown place"
        frame = sys._current_frames().get(self._thread)
        while frame is not None and batch is None:
            inner, frame = frame, frame.f_back
            if frame is not None and frame.f_code is AttemptRunner.handle.__code__:
                batch, place = _batch(frame), f"{inner.f_code.co_filename}:{inner.f_lineno}"
        if batch is None and not is_sure:
            return False
        what = f"task {batch.task} ({batch.said})" if batch is not None else "something"
        log.warning(
            "%s has blocked the event loop for %.1f s, at %s. Leases are kept, but no other async handler "
            "runs meanwhile: make the handler a plain function (it then runs in a thread) or await",
            what,
            silence,
            place,
        )
        return True


def _batch(frame: FrameType) -> HandlerCall | None:
    found = frame.f_locals.get("batch")
    return found if isinstance(found, HandlerCall) else None
