"""Calls the functions registered with `@jobs.on` for each event while a worker runs."""

import asyncio
import inspect
import logging
from functools import partial

from errandry.api.app import Errandry, Observer
from errandry.errors import ErrandryError
from errandry.store.contract import EventEntry
from errandry.worker.threads import ThreadPool

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 1.0
"""Seconds between tries to read events from a store that cannot be read."""
CLOSE_TIMEOUT = 2.0
"""Seconds that observers have for the remaining events when the worker stops."""


class Observers:
    """Follows the event log once for each observer, so that a slow one delays neither others nor jobs.

    Observers run on the worker's main loop, like handlers.
    """

    def __init__(self, app: Errandry) -> None:
        self._app, self._threads = app, ThreadPool()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin with the next event."""
        if self._app.observers:
            cursor = await self._app.latest_cursor()
            self._tasks = [
                asyncio.create_task(self._follow(observer, cursor)) for observer in self._app.observers
            ]

    async def close(self) -> None:
        """Deliver the remaining events, for at most `CLOSE_TIMEOUT`."""
        self._closing.set()
        if self._tasks:
            _, unfinished = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        self._threads.close()

    async def _follow(self, observer: Observer, cursor: str) -> None:
        while True:
            try:
                async for entry in self._app.events(cursor, until=self._closing):
                    if observer.event_filter.matches(entry.event):
                        await self._notify(observer, entry)
                    cursor = entry.cursor
                return
            except ErrandryError as error:
                log.warning("cannot read events for observers, retrying: %s", error)
                if self._closing.is_set():
                    return
                await asyncio.sleep(RETRY_AFTER)

    async def _notify(self, observer: Observer, entry: EventEntry) -> None:
        function = observer.function
        try:
            if inspect.iscoroutinefunction(function):
                await function(entry)
            else:
                await self._threads.call(partial(function, entry))
        except Exception:
            name = getattr(function, "__qualname__", function)
            log.exception(
                "observer %s raised for event %s of job %s, skipping it",
                name,
                entry.event.kind,
                entry.event.job,
            )
