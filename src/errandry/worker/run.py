"""One running job: its handler, its claim, why it should stop, and what it has noted."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from threading import Lock
from time import time

from msgspec.structs import replace

from errandry.context import JobContext
from errandry.core.command import Note, Ref
from errandry.core.job import LOGS_MAX, Job, Log, Progress

NOTE_EVERY = 0.2


class Stop(StrEnum):
    """Why a handler is stopped."""

    CANCEL = "cancel"
    LOST = "lost"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


class Run:
    """A job between its claim and its outcome. `loop` is the one its handler belongs to.

    `is_lost`: its lease is another's, or nobody's. `is_settling`: its outcome is being written just now.
    """

    def __init__(self, job: Job, lease_until: float, write: "Write", loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.ref = Ref(job.id, job.fence)
        self.ctx = JobContext(job, self.note)
        self.lease_until = lease_until
        self.renew_until: float | None = None
        self.stopped: Stop | None = None
        self.is_lost = self.is_settling = False
        self.handler: asyncio.Task[None] | None = None
        self._write = write
        self._loop = loop
        self._lock = Lock()
        self._progress: Progress | None = None
        self._logs: list[Log] = []

    def begins(self, now: float, grace: float) -> None:
        """The handler is called now. Its lease ends after timeout and grace, whether it stops or not."""
        if self.job.timeout is not None:
            self.renew_until = now + self.job.timeout + grace

    def needs_lease(self, now: float) -> bool:
        """Whether its lease is to be prolonged: it stands, and nothing has been said that ends it."""
        if self.is_lost or self.is_settling:
            return False
        return self.renew_until is None or now < self.renew_until

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Stopped when the job's time is up, which begins here. On its loop."""
        if self.job.timeout is None:
            yield
            return
        timer = self._loop.call_later(self.job.timeout, self.stop, Stop.TIMEOUT)
        try:
            yield
        finally:
            timer.cancel()

    def stop(self, why: Stop) -> None:
        """Ask the handler to stop; the first reason counts. From any thread."""
        if self.stopped is None:
            self.stopped = why
            self.ctx.stop()
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.handler is not None:
            self.handler.cancel()

    def note(self, progress: Progress | None, logs: tuple[Log, ...]) -> None:
        """Keep a note until it is written; the newest lines stay. From any thread."""
        with self._lock:
            is_first = self._progress is None and not self._logs
            self._progress = progress or self._progress
            self._logs += [replace(line, at=line.at or time()) for line in logs]
            del self._logs[:-LOGS_MAX]
        if is_first:
            self._loop.call_soon_threadsafe(self._loop.call_later, NOTE_EVERY, self._write, self)

    def notes(self) -> Note | None:
        """What was noted since the last time."""
        with self._lock:
            if self._progress is None and not self._logs:
                return None
            note = Note(self.ref, self._progress, tuple(self._logs))
            self._progress, self._logs = None, []
        return note


Write = Callable[[Run], None]
"""Has what a run has noted written."""
