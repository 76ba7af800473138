"""Detects a handler that blocks the event loop all handlers share, and logs which one and where.

Runs on the engine's loop, which the handler does not block.
"""

import asyncio
import logging
import sys
import threading
from types import FrameType

from errandry.claims.trouble import OnTrouble
from errandry.clock import Clock
from errandry.worker.attempt import AttemptRunner
from errandry.worker.handler_call import HandlerCall

log = logging.getLogger("errandry.worker")


class Watchdog:
    """Watches the loop on which it is created."""

    def __init__(self, clock: Clock, stall_after: float, on_trouble: OnTrouble) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._clock, self._stall_after, self._on_trouble = clock, stall_after, on_trouble
        self._last_answer = clock.monotonic()
        self._has_warned = False

    async def run(self) -> None:
        """Call a function on the loop regularly; if it is not called in time, log what the loop is doing."""
        while True:
            self._loop.call_soon_threadsafe(self._answer)
            slept_at = self._clock.monotonic()
            await asyncio.sleep(self._stall_after / 2)
            now = self._clock.monotonic()
            blocked_for = now - self._last_answer
            if blocked_for < self._stall_after:
                self._has_warned = False
            elif not self._has_warned:
                self._has_warned = self._warn(blocked_for, is_sure=now - slept_at < self._stall_after)

    def _answer(self) -> None:
        self._last_answer = self._clock.monotonic()

    def _warn(self, blocked_for: float, is_sure: bool) -> bool:
        """Log which handler blocks the loop, and where; whether a warning was logged.

        Without such a handler, warn only if this loop was on time (`is_sure`): if it was not, the whole
        process may have been suspended.
        """
        call, place = None, "an unknown place"
        frame = sys._current_frames().get(self._thread)
        while frame is not None and call is None:
            inner, frame = frame, frame.f_back
            if frame is not None and frame.f_code is AttemptRunner.call_handler.__code__:
                call, place = _call_of_frame(frame), f"{inner.f_code.co_filename}:{inner.f_lineno}"
        if call is None and not is_sure:
            return False
        blocker = f"task {call.task} ({call.label})" if call is not None else "something"
        log.warning(
            "%s has blocked the event loop for %.1f s, at %s. Leases are kept, but no other async handler "
            "runs meanwhile: make the handler a plain function (it then runs in a thread) or await",
            blocker,
            blocked_for,
            place,
        )
        self._on_trouble(f"{'something' if call is None else f'task {call.task}'} blocks the event loop")
        return True


def _call_of_frame(frame: FrameType) -> HandlerCall | None:
    call = frame.f_locals.get("call")
    return call if isinstance(call, HandlerCall) else None
