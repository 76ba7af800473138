"""Functions registered with `@jobs.on` are told of events while a worker works."""

import asyncio
import inspect
import logging
from functools import partial

from errandry.api.app import Errandry, Observer
from errandry.errors import ErrandryError
from errandry.store.contract import EventEntry
from errandry.worker.threads import ThreadPool

log = logging.getLogger("errandry.worker")

AGAIN = 1.0
"""How long to wait for a store that cannot be read."""
LAST_CALL = 2.0
"""How long observers have at the end for what they have not been told yet."""


class Observers:
    """Each observer follows the event log by itself: one that is slow keeps neither others nor jobs waiting.

    On the worker's own loop, as handlers are.
    """

    def __init__(self, app: Errandry) -> None:
        self._app, self._threads = app, ThreadPool()
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Tell of everything from now on."""
        if self._app.observers:
            cursor = await self._app.latest_cursor()
            self._tasks = [asyncio.create_task(self._follow(one, cursor)) for one in self._app.observers]

    async def close(self) -> None:
        """Tell what is left to tell, if that does not take long."""
        self._closing.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=LAST_CALL)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._threads.close()

    async def _follow(self, observer: Observer, cursor: str) -> None:
        while True:
            try:
                async for happened in self._app.events(cursor, until=self._closing):
                    if observer.wanted.has(happened.event):
                        await self._tell(observer, happened)
                    cursor = happened.cursor
                return
            except ErrandryError as error:
                log.warning("observers wait for the store: %s", error)
                if self._closing.is_set():
                    return
                await asyncio.sleep(AGAIN)

    async def _tell(self, observer: Observer, happened: EventEntry) -> None:
        function = observer.function
        try:
            if inspect.iscoroutinefunction(function):
                await function(happened)
            else:
                await self._threads.call(partial(function, happened))
        except Exception:
            name = getattr(function, "__qualname__", function)
            log.exception("observer %s raised at %s of job %s", name, happened.event.kind, happened.event.job)
