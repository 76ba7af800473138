"""Calls the functions registered with `@jobs.on` for each event while a worker runs."""

import asyncio
import logging
from contextlib import suppress

from errandry.api.app import Errandry
from errandry.api.observer_calls import Follower, ObserverCalls
from errandry.claims.throttled_log import ThrottledLog
from errandry.claims.trouble import TroubleReporter

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 1.0
"""Seconds between tries to read events from a store that cannot be read."""
CLOSE_TIMEOUT = 2.0
"""Seconds that observers have for the remaining events when the worker stops."""


class Observers:
    """Follows the event log once for each observer, so that a slow one delays neither others nor jobs.

    Observers run on the worker's main loop, like handlers. They get the `error` events of their own worker at
    once, without the store.
    """

    def __init__(self, app: Errandry, trouble: TroubleReporter) -> None:
        self._app, self._trouble, self._calls = app, trouble, ObserverCalls(app, trouble)
        self._closing = asyncio.Event()
        self._reading: list[asyncio.Task[None]] = []
        self._read_log = ThrottledLog(
            app.clock,
            "cannot read events for observers, retrying",
            "events can be read again",
            trouble.report,
        )

    async def start(self) -> None:
        """Begin with the next event."""
        await self._calls.start()
        self._reading = [asyncio.create_task(self._follow(follower)) for follower in self._calls.followers]

    async def close(self) -> None:
        """Deliver the remaining events, for at most `CLOSE_TIMEOUT`."""
        self._closing.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._reading:
                    await asyncio.wait(self._reading)
                await self._calls.finish()  # only now: an observer may have raised meanwhile
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._calls.close()

    async def _follow(self, follower: Follower) -> None:
        while True:
            try:
                async for event in self._app.events(follower.cursor, until=self._closing):
                    self._read_log.report_recovery()
                    is_known = self._trouble.is_own(event)
                    if follower.observer.event_filter.matches(event) and not is_known:
                        await self._calls.notify(follower, event)
                    follower.cursor = event.cursor
                return
            except Exception as error:
                self._read_log.report_failure(error)
                if self._closing.is_set():
                    return
                await asyncio.sleep(RETRY_AFTER)
