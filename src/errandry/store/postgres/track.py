"""Tracks: connections with a thread each, on which passes run in parallel.

Commands of workers about the jobs they hold, and about themselves, have a track of their own. So a backlog of
inserts, or a lock of another transaction, delays no renewal of a lease and no outcome.
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
    ReportTrouble,
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

WORKER_TRACK, USUAL_TRACK, BULK_TRACK = range(3)
LOCK_TIMEOUTS = ("300ms", "1s", "1s")
"""Lock timeout of each track. After it, the commands of a pass are written one by one."""
REPLY_TIMEOUTS = (9.0, 15.0, 120.0)
"""Seconds without a reply on each track after which the server is considered lost."""
BULK_SIZE = 1_000
"""Number of jobs from which a command goes to the bulk track."""

_WORKER_COMMANDS = frozenset((Start, Renew, Note, PutStep, Settle, Beat, ReportTrouble))


def track_of(command: Command) -> int:
    kind = type(command)
    if isinstance(command, Insert):
        return BULK_TRACK if len(command.jobs) >= BULK_SIZE or has_unique_key(command) else USUAL_TRACK
    if kind in _WORKER_COMMANDS and len(inserted_jobs(command)) < BULK_SIZE:
        return WORKER_TRACK
    if kind is Upkeep or (isinstance(command, JobSelection) and not command.ids):
        return BULK_TRACK
    return (
        BULK_TRACK
        if isinstance(command, JobSelection | Settle) and len(touched_ids(command)) >= BULK_SIZE
        else USUAL_TRACK
    )


def has_unique_key(command: Insert) -> bool:
    """Whether a job has a unique key: the insert may have to wait for another transaction that takes it."""
    return any(job.unique is not None for job in command.jobs)


class Track:
    """A connection, and the only thread that uses it."""

    def __init__(self, address: Address, name: str, writes: bool = True) -> None:
        self.connection = PostgresConnection(address, writes)
        self.is_busy = self._is_closed = False
        self._name = f"errandry-{name}"
        self._calls: SimpleQueue[TrackCall | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed: Future[None] = Future()

    async def run(self, limit: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` on the thread and return its result. Abort the connection after `limit` seconds."""
        if self._is_closed:
            raise StoreClosed(self._name, "the store was closed before this was sent")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        timer: asyncio.TimerHandle

        def give_up() -> None:
            nonlocal timer
            self.connection.abort()
            timer = loop.call_later(limit, give_up)  # the next connection may be lost too

        timer = loop.call_later(limit, give_up)
        self.is_busy = True
        self._start_thread()
        self._calls.put((partial(function, *args, **kwargs), answer))
        try:
            return await answer
        finally:
            timer.cancel()

    def close(self) -> Future[None]:
        """Close the connection after the queued calls, and accept no more."""
        self._is_closed = True
        self._start_thread()
        self._calls.put(None)
        return self._closed

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run_calls, name=self._name, daemon=True)
            self._thread.start()

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            set_answer = partial(_set_answer, answer)
            if not answer.cancelled():
                try:
                    set_answer = partial(_set_answer, answer, function())
                except BaseException as error:
                    set_answer = partial(_set_answer, answer, error=error)
            self.is_busy = False
            del call, function
            with suppress(RuntimeError):  # on a closed loop, no caller waits
                answer.get_loop().call_soon_threadsafe(set_answer)
        self.connection.close()
        self._closed.set_result(None)


def _set_answer(answer: asyncio.Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
