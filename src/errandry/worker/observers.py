"""Calls the functions registered with `@jobs.on` for each event while a worker runs."""

import asyncio
import inspect
import logging
from contextlib import suppress
from functools import partial

from errandry.api.app import Errandry, Observer
from errandry.api.events import Event, event_at
from errandry.claims.throttled_log import ThrottledLog
from errandry.claims.trouble import TroubleReporter
from errandry.core.event import EventKind, EventRecord
from errandry.worker.threads import ThreadPool

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 1.0
"""Seconds between tries to read events from a store that cannot be read."""
CLOSE_TIMEOUT = 2.0
"""Seconds that observers have for the remaining events when the worker stops."""
UNSEEN_MAX = 100
"""Maximum number of `error` events that wait for an observer; of more, it gets the newest."""


class Observers:
    """Follows the event log once for each observer, so that a slow one delays neither others nor jobs.

    Observers run on the worker's main loop, like handlers. They get the `error` events of their own worker at
    once, without the store.
    """

    def __init__(self, app: Errandry, trouble: TroubleReporter) -> None:
        self._app, self._trouble, self._threads = app, trouble, ThreadPool()
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._followers = [Follower(observer) for observer in app.observers]
        self._reading: list[asyncio.Task[None]] = []
        self._passing_on: list[asyncio.Task[None]] = []
        self._read_log = ThrottledLog(
            app.clock,
            "cannot read events for observers, retrying",
            "events can be read again",
            trouble.report,
        )
        trouble.listen(self._receive)

    async def start(self) -> None:
        """Begin with the next event."""
        if self._followers:
            cursor = await self._app.latest_cursor()
            for follower in self._followers:
                follower.cursor = cursor
            self._reading = [asyncio.create_task(self._follow(follower)) for follower in self._followers]
            self._passing_on = [
                asyncio.create_task(self._pass_on_trouble(follower)) for follower in self._followers
            ]

    async def close(self) -> None:
        """Deliver the remaining events, for at most `CLOSE_TIMEOUT`."""
        self._closing.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._reading:
                    await asyncio.wait(self._reading)
                for follower in self._followers:  # only now: an observer may have raised meanwhile
                    follower.put(None)
                if self._passing_on:
                    await asyncio.wait(self._passing_on)
        tasks = [*self._reading, *self._passing_on]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.close()

    def _receive(self, record: EventRecord) -> None:
        """Pass an `error` event of this worker to the observers. From any thread."""
        now = self._app.clock.time()
        for follower in self._followers:
            if follower.observer.event_filter.matches(record):
                # It has no place in the log yet: a reader continues where the follower is.
                event = event_at(record, now, follower.cursor)
                with suppress(RuntimeError):  # the loop was closed: the worker has ended
                    self._loop.call_soon_threadsafe(follower.put, event)

    async def _pass_on_trouble(self, follower: "Follower") -> None:
        while (event := await follower.unseen.get()) is not None:
            await self._notify(follower, event)

    async def _follow(self, follower: "Follower") -> None:
        while True:
            try:
                async for event in self._app.events(follower.cursor, until=self._closing):
                    self._read_log.report_recovery()
                    is_known = self._trouble.is_own(event)
                    if follower.observer.event_filter.matches(event) and not is_known:
                        await self._notify(follower, event)
                    follower.cursor = event.cursor
                return
            except Exception as error:
                self._read_log.report_failure(error)
                if self._closing.is_set():
                    return
                await asyncio.sleep(RETRY_AFTER)

    async def _notify(self, follower: "Follower", event: Event) -> None:
        function = follower.observer.function
        async with follower.lock:
            try:
                if inspect.iscoroutinefunction(function):
                    await function(event)
                else:
                    await self._threads.call(partial(function, event))
            except Exception as error:
                name = getattr(function, "__qualname__", function)
                log.exception(
                    "observer %s raised for event %s of job %s, skipping it", name, event.kind, event.job
                )
                # Trouble with an `error` event is only logged: as an event, it would cause the next one.
                if event.kind is not EventKind.ERROR:
                    self._trouble.report(f"observer {name} raised", error)


class Follower:
    """An observer, the cursor after the last event it has got, and the `error` events that wait for it.

    `lock`: it gets one event at a time.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer, self.cursor, self.lock = observer, "", asyncio.Lock()
        self.unseen: asyncio.Queue[Event | None] = asyncio.Queue()

    def put(self, event: Event | None) -> None:
        """Put an `error` event at the end of the queue, or None to end it. On the worker's main loop."""
        if event is not None and self.unseen.qsize() >= UNSEEN_MAX:
            self.unseen.get_nowait()
        self.unseen.put_nowait(event)
