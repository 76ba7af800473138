"""Reports errors of a worker or its store as `error` events, to observers in this process and to the store.

Observers get them at once. The store itself may be failing, so reports for it wait until it has written them.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from errandry.claims.failure import failure
from errandry.clock import Clock
from errandry.core.command import REPORT_MAX, ReportTrouble
from errandry.core.event import EventKind, EventRecord, trouble_event, trouble_prefix
from errandry.errors import StoreReplaced
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.engine.engine import Engine

log = logging.getLogger("errandry.worker")

QUIET_AFTER = 60.0
"""Seconds that an error must be absent before it is reported again."""
KNOWN_MAX = 1_000
"""Maximum number of different errors to remember."""
RETRY_AFTER = 1.0
"""Seconds before reports that the store could not write are sent again."""
UNSTORED_MAX = REPORT_MAX - 1
"""Maximum number of reports that wait for the store. The number of dropped reports is stored with them."""
WAKE_INTERVAL = 60.0
"""Maximum seconds between two checks for new reports; a new report wakes the loop at once."""


class OnTrouble(Protocol):
    """Called from any thread when something of the worker fails.

    `what` says what failed, in the same words each time. `redact` is applied to the message of the error.
    """

    def __call__(
        self, what: str, error: BaseException | None = None, redact: Callable[[str], str] = str
    ) -> None: ...


def ignore_trouble(
    what: str,
    error: BaseException | None = None,
    redact: Callable[[str], str] = str,
) -> None:
    """The `OnTrouble` of parts that run without a worker."""


class TroubleReporter:
    """The reports of one worker. A lasting error, such as an unavailable store, is reported once.

    At most `UNSTORED_MAX` reports wait for the store: the newest. The number of dropped ones is stored too.
    """

    def __init__(self, engine: Engine, clock: Clock, worker: str) -> None:
        self.worker, self._engine, self._clock = worker, engine, clock
        self._prefix = trouble_prefix(worker)
        self._lock = threading.Lock()
        self._last_seen: dict[tuple[str, str], float] = {}
        self._unstored: list[str] = []
        self._dropped = 0
        self._changes = ChangeCounter()
        self._is_closing = False
        self._observer: Callable[[EventRecord], None] | None = None
        self._on_lost_store: Callable[[StoreReplaced], None] | None = None

    def set_observer(self, observer: Callable[[EventRecord], None]) -> None:
        """Call `observer` with each `error` event of this worker, from the thread that reports it."""
        self._observer = observer

    def watch_for_lost_store(self, on_lost_store: Callable[[StoreReplaced], None]) -> None:
        """Call `on_lost_store` with each report that the store was deleted or replaced. From any thread."""
        self._on_lost_store = on_lost_store

    def is_own(self, event: EventRecord) -> bool:
        """Whether this worker has reported this event."""
        return event.kind is EventKind.ERROR and event.text.startswith(self._prefix)

    def report(
        self, what: str, error: BaseException | None = None, redact: Callable[[str], str] = str
    ) -> None:
        """Report trouble, unless the same has occurred in the last `QUIET_AFTER` seconds. From any thread."""
        if self._on_lost_store is not None and isinstance(error, StoreReplaced):
            self._on_lost_store(error)
        text, kind = what, ""
        if error is not None:
            failed = failure(error)
            kind, text = failed.type, f"{what}: {failed.type}: {redact(failed.message)}"
        with self._lock:
            if not self._is_new((what, kind)):
                return
            self._unstored.append(text)
            self._drop_oldest()
        if self._observer is not None:
            self._observer(trouble_event(self.worker, text))
        self._changes.increment()

    def _is_new(self, trouble: tuple[str, str]) -> bool:
        now, last_seen = self._clock.monotonic(), self._last_seen
        while last_seen and (last_seen[first := next(iter(last_seen))] + QUIET_AFTER <= now):
            del last_seen[first]  # the one seen least recently
        is_new = last_seen.pop(trouble, None) is None
        if len(last_seen) >= KNOWN_MAX:
            del last_seen[next(iter(last_seen))]
        last_seen[trouble] = now
        return is_new

    async def store_forever(self) -> None:
        """Store reports as they come; after `close`, until none is left. On the engine's loop."""
        while True:
            version = self._changes.version
            texts, dropped = self._take()
            if texts:
                note = (
                    (f"{dropped:,} older errors were dropped while the store could not write them",)
                    if dropped
                    else ()
                )
                try:
                    await self._engine.submit(ReportTrouble(self.worker, (*note, *texts)))
                except Exception as error:  # not reported: that would be another report to store
                    log.debug("cannot store %d error events, retrying: %s", len(texts), error)
                    self._put_back(texts, dropped)
                    await asyncio.sleep(RETRY_AFTER)
            elif self._is_closing:
                return
            else:
                await self._changes.wait(version, WAKE_INTERVAL)

    def close(self) -> None:
        """Let `store_forever` return when all reports are stored."""
        self._is_closing = True
        self._changes.increment()

    async def finish_storing(self, storing: "asyncio.Task[None]", timeout: float) -> None:
        """Wait until the task of `store_forever` has stored all reports, then end it."""
        self.close()
        await asyncio.wait([storing], timeout=timeout)
        storing.cancel()
        await asyncio.gather(storing, return_exceptions=True)

    def _take(self) -> tuple[list[str], int]:
        """Take all reports, oldest first, and the number of dropped ones."""
        with self._lock:
            taken = [*self._unstored], self._dropped
            self._unstored, self._dropped = [], 0
        return taken

    def _put_back(self, texts: list[str], dropped: int) -> None:
        with self._lock:
            self._unstored, self._dropped = [*texts, *self._unstored], self._dropped + dropped
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        excess = max(0, len(self._unstored) - UNSTORED_MAX)
        self._unstored, self._dropped = self._unstored[excess:], self._dropped + excess
