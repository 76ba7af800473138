"""The tracks passes run on beside each other: each a connection and a thread.

What workers write about their claims has a track of its own: no heap of inserts and no lock of a stranger's
transaction keeps a lease from being renewed or an outcome from being written.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from errandry.core.command import (
    Beat,
    Command,
    Insert,
    Note,
    PutStep,
    Renew,
    Settle,
    Start,
    Upkeep,
    inserted_jobs,
    touched_ids,
)
from errandry.core.selection import JobSelection
from errandry.errors import StoreClosed
from errandry.store.postgres.address import Address
from errandry.store.postgres.connection import PostgresConnection

P = ParamSpec("P")
T = TypeVar("T")
TrackCall = tuple[Callable[[], Any], asyncio.Future[Any]]

HELD, USUAL, BULK = range(3)
TIMEOUTS = ("300ms", "1s", "1s")
"""How long a pass of each track waits for a lock; then its commands go one by one, and one is refused."""
LIMITS = (9.0, 15.0, 120.0)
"""A server that is silent for so many seconds is no longer there, whatever the connection says."""
LARGE = 1_000
"""A command about so many jobs is bulk."""

_HELD = frozenset((Start, Renew, Note, PutStep, Settle, Beat))


def track_of(command: Command) -> int:
    kind = type(command)
    if isinstance(command, Insert):
        return BULK if len(command.jobs) >= LARGE or wants_key(command) else USUAL
    if kind in _HELD and len(inserted_jobs(command)) < LARGE:
        return HELD
    if kind is Upkeep or (isinstance(command, JobSelection) and not command.ids):
        return BULK
    return (
        BULK if isinstance(command, JobSelection | Settle) and len(touched_ids(command)) >= LARGE else USUAL
    )


def wants_key(command: Insert) -> bool:
    """Whether it may have to wait for who knows whose decision on a unique key."""
    return any(job.unique is not None for job in command.jobs)


class Track:
    """A connection that only its own thread uses."""

    def __init__(self, address: Address, name: str, writes: bool = True) -> None:
        self.link = PostgresConnection(address, writes)
        self.is_busy = self._is_over = False
        self._name = f"errandry-{name}"
        self._calls: SimpleQueue[TrackCall | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._ended: Future[None] = Future()

    async def run(self, limit: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns, called on the thread. A server silent for `limit` seconds is given up."""
        if self._is_over:
            raise StoreClosed(self._name, "the store was closed: this was not sent")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        alarm: asyncio.TimerHandle

        def give_up() -> None:
            nonlocal alarm
            self.link.break_off()
            alarm = loop.call_later(limit, give_up)  # the next connection may be no better

        alarm = loop.call_later(limit, give_up)
        self.is_busy = True
        self._begin()
        self._calls.put((partial(function, *args, **kwargs), answer))
        try:
            return await answer
        finally:
            alarm.cancel()

    def end(self) -> Future[None]:
        """Close the connection after what is under way; nothing comes after."""
        self._is_over = True
        self._begin()
        self._calls.put(None)
        return self._ended

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            tell = partial(_tell, answer)
            if not answer.cancelled():
                try:
                    tell = partial(_tell, answer, function())
                except BaseException as error:
                    tell = partial(_tell, answer, error=error)
            self.is_busy = False
            del call, function
            with suppress(RuntimeError):  # a loop that was closed has nobody waiting
                answer.get_loop().call_soon_threadsafe(tell)
        self.link.close()
        self._ended.set_result(None)


def _tell(answer: asyncio.Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
