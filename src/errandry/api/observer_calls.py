"""Calls the functions registered with `@jobs.on`, for workers and claimers."""

import asyncio
import inspect
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from errandry.api.events import Event, event_at
from errandry.api.threads import ThreadPool
from errandry.claims.trouble import TroubleReporter
from errandry.core.event import EventKind, EventRecord

if TYPE_CHECKING:
    from errandry.api.app import Errandry, Observer

log = logging.getLogger("errandry.worker")

PENDING_MAX = 100
"""Maximum number of `error` events that wait for an observer; of more, it gets the newest."""


class ObserverCalls:
    """Calls the observers of an app on the running loop, each with one event at a time.

    They get the `error` events of their own worker or claimer at once, without the store. A slow observer
    delays no other.
    """

    def __init__(self, app: "Errandry", trouble: TroubleReporter) -> None:
        self._app, self._trouble, self._threads = app, trouble, ThreadPool()
        self._loop = asyncio.get_running_loop()
        self.followers = [Follower(observer) for observer in app.observers]
        self._deliveries = [
            asyncio.create_task(self._deliver_errors(follower)) for follower in self.followers
        ]
        trouble.set_observer(self._receive)

    async def start(self) -> None:
        """Begin with the next event. `error` events are delivered from the beginning."""
        if self.followers:
            cursor = await self._app.latest_cursor()
            for follower in self.followers:
                follower.cursor = cursor

    async def finish(self) -> None:
        """Deliver the `error` events that have come so far; later ones are dropped."""
        for follower in self.followers:
            follower.put(None)
        if self._deliveries:
            await asyncio.wait(self._deliveries)

    async def close(self) -> None:
        """Cancel the calls that have not ended."""
        for task in self._deliveries:
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)
        self._threads.close()

    async def notify(self, follower: "Follower", event: Event) -> None:
        """Call an observer. If it raises, that is logged and reported as trouble."""
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

    def _receive(self, record: EventRecord) -> None:
        """Pass an `error` event of this worker or claimer to the observers. From any thread."""
        now = self._app.clock.time()
        for follower in self.followers:
            if follower.observer.event_filter.matches(record):
                # It has no place in the log yet: a reader continues where the follower is.
                event = event_at(record, now, follower.cursor)
                with suppress(RuntimeError):  # the loop was closed: the worker or claimer has ended
                    self._loop.call_soon_threadsafe(follower.put, event)

    async def _deliver_errors(self, follower: "Follower") -> None:
        while (event := await follower.pending.get()) is not None:
            await self.notify(follower, event)


class Follower:
    """An observer, the cursor after the last event it has got, and the `error` events that wait for it.

    `lock`: it gets one event at a time.
    """

    def __init__(self, observer: "Observer") -> None:
        self.observer, self.cursor, self.lock = observer, "", asyncio.Lock()
        self.pending: asyncio.Queue[Event | None] = asyncio.Queue()

    def put(self, event: Event | None) -> None:
        """Put an `error` event at the end of the queue, or None to end it. On the loop of the observers."""
        if event is not None and self.pending.qsize() >= PENDING_MAX:
            self.pending.get_nowait()
        self.pending.put_nowait(event)
