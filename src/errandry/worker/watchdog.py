"""Detects that the event loop of all handlers is blocked, and logs which handler blocks it and where.

Runs on the engine's loop, which the handler does not block.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType

from errandry.claims.trouble import OnTrouble
from errandry.clock import Clock
from errandry.worker.attempt import AttemptRunner
from errandry.worker.handler_call import HandlerCall

log = logging.getLogger("errandry.worker")

PROBE_INTERVAL = 0.1
"""Maximum seconds between two probes of the loop. It is blocked if it has not answered one until the next."""
GIVE_BACK_AFTER = 1.0
"""Seconds after which the jobs that a blocked loop could not begin are given back."""


class Watchdog:
    """Probes a loop: asks it to call a function, and looks an interval later whether it has.

    While the loop is blocked, a worker claims nothing. `on_answer` is called on the loop when it answers
    again. `give_back` is called at each probe after it has been blocked for `GIVE_BACK_AFTER`. `on_change` is
    called when `blocked_by` changes: after `stall_after` seconds, with a warning, and when the loop answers.
    """

    def __init__(
        self,
        clock: Clock,
        stall_after: float,
        on_trouble: OnTrouble,
        on_answer: Callable[[], None],
        give_back: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._clock, self._stall_after, self._on_trouble = clock, stall_after, on_trouble
        self._on_answer, self._give_back, self._on_change = on_answer, give_back, on_change
        self._interval = min(PROBE_INTERVAL, stall_after / 2)
        self._asked = self._answered = 0
        self._asked_at = 0.0
        self._misses = 0
        self.blocked_by = ""

    @property
    def is_blocked(self) -> bool:
        """Whether the loop has not answered the last probe in time. From any thread."""
        return self._misses > 0 and self._answered != self._asked

    def attach(self) -> None:
        """Watch the running loop."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    async def run(self) -> None:
        """Probe the loop regularly. On the engine's loop."""
        while True:
            if self._answered == self._asked:
                self._misses = 0
                self._asked += 1
                self._asked_at = self._clock.monotonic()
                self._loop.call_soon_threadsafe(self._answer, self._asked)
            slept_at = self._clock.monotonic()
            await asyncio.sleep(self._interval)
            if self._answered == self._asked:
                self._set_blocked_by("")
            else:
                self._handle_miss(slept_at)

    def _answer(self, number: int) -> None:
        self._answered = number
        if self._misses:
            self._on_answer()

    def _handle_miss(self, slept_at: float) -> None:
        """Count a probe that was not answered. The count, unlike a clock, stands still with the process."""
        self._misses += 1
        now = self._clock.monotonic()
        if not self.blocked_by and now - self._asked_at >= self._stall_after:
            self._set_blocked_by(self._warn(now - self._asked_at, is_sure=now - slept_at < self._stall_after))
        if self._misses * self._interval >= GIVE_BACK_AFTER:
            self._give_back()

    def _set_blocked_by(self, what: str) -> None:
        if what != self.blocked_by:
            self.blocked_by = what
            self._on_change()

    def _warn(self, blocked_for: float, is_sure: bool) -> str:
        """Log what blocks the loop, and where, and return what; empty if nothing was logged.

        Without a handler that does, warn only if this loop was on time (`is_sure`): if it was not, the whole
        process may have been suspended.
        """
        call, place = None, "an unknown place"
        frame = sys._current_frames().get(self._thread)
        while frame is not None and call is None:
            inner, frame = frame, frame.f_back
            if frame is not None and frame.f_code is AttemptRunner.call_handler.__code__:
                call, place = _call_of_frame(frame), f"{inner.f_code.co_filename}:{inner.f_lineno}"
        if call is None and not is_sure:
            return ""
        blocker = f"task {call.task} ({call.label})" if call is not None else "something"
        log.warning(
            "%s has blocked the event loop for %.1f s, at %s. Leases are kept, but no other async handler "
            "runs meanwhile, and the worker claims no jobs: make the handler a plain function (it then runs "
            "in a thread) or await",
            blocker,
            blocked_for,
            place,
        )
        self._on_trouble(f"{'something' if call is None else f'task {call.task}'} blocks the event loop")
        return blocker


def _call_of_frame(frame: FrameType) -> HandlerCall | None:
    call = frame.f_locals.get("call")
    return call if isinstance(call, HandlerCall) else None
