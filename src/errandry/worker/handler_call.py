"""Running jobs: their claims, why they should stop, what they have noted; and the call they share."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from enum import StrEnum
from threading import Lock
from time import time
from typing import Protocol

from msgspec.structs import replace

from errandry.api.context import BatchContext, JobContext
from errandry.api.task import Runner
from errandry.core.command import Note, Ref
from errandry.core.job import LOGS_MAX, JobRecord, LogLine, Progress

NOTE_EVERY = 0.2


class StopReason(StrEnum):
    """Why a handler is stopped."""

    CANCEL = "cancel"
    LOST = "lost"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


class JobRun:
    """A job between its claim and its outcome. `loop` is the one its handler belongs to.

    `is_lost`: its lease is another's, or nobody's. `is_settling`: its outcome is being written just now.
    """

    batch: "HandlerCall"

    def __init__(
        self, job: JobRecord, lease_until: float, desk: "RunSink", loop: asyncio.AbstractEventLoop
    ) -> None:
        self.job = job
        self.ref = Ref(job.id, job.fence)
        self.ctx = JobContext(job, self.note, self.keep)
        self.lease_until = lease_until
        self.renew_until: float | None = None
        self.stopped: StopReason | None = None
        self.is_lost = self.is_settling = False
        self.loop = loop
        self._desk = desk
        self._lock = Lock()
        self._progress: Progress | None = None
        self._logs: tuple[LogLine, ...] = ()

    def __str__(self) -> str:
        return f"job {self.job.id} ({self.job.task})"

    def needs_lease(self, now: float) -> bool:
        """Whether its lease is to be prolonged: it stands, and nothing has been said that ends it."""
        if self.is_lost or self.is_settling:
            return False
        return self.renew_until is None or now < self.renew_until

    def stop(self, why: StopReason) -> None:
        """Its attempt should stop; the first reason counts. From any thread."""
        if self.mark(why):
            self.batch.heed([self])

    def mark(self, why: StopReason) -> bool:
        """Note and tell its context why it should stop; False if that was known."""
        if self.stopped is not None:
            return False
        self.stopped = why
        self.ctx.stop()
        return True

    def note(self, progress: Progress | None, logs: tuple[LogLine, ...]) -> None:
        """Keep a note until it is written; the newest lines stay. From any thread."""
        dated = [replace(line, at=line.at or time()) for line in logs]
        with self._lock:
            is_first = self._progress is None and not self._logs
            self._progress = progress or self._progress
            self._logs = (*self._logs, *dated)[-LOGS_MAX:]
        if is_first:
            self.loop.call_soon_threadsafe(self.loop.call_later, NOTE_EVERY, self._desk.write_notes, self)

    def keep(self, name: str, text: str) -> "Future[None]":
        """Have the result of a step written. From any thread."""
        return self._desk.keep(self, name, text)

    def notes(self) -> Note | None:
        """What was noted since the last time. On its loop."""
        if self._progress is None and not self._logs:
            return None
        with self._lock:
            note = Note(self.ref, self._progress, self._logs)
            self._progress, self._logs = None, ()
        return note


class HandlerCall:
    """One call of a handler: for one job or, where `size` is given, for up to so many of its task.

    Jobs come before the call begins; some may leave before. Those that should stop later stay: the call goes
    on as long as there is one that should not. `told` hears of each that should. A suspect, which was running
    when its worker died, is alone.
    """

    handler: asyncio.Task[None] | None = None
    told: Callable[[list[JobRun]], None] | None = None
    _is_canceled = False

    def __init__(self, run: JobRun, size: int | None = None, runner: Runner = Runner.ASYNC) -> None:
        job = run.job
        self.runs, self.size, self.runner, self.loop = [run], size, runner, run.loop
        self.task, self.is_suspect = job.task, job.crashes > 0
        self.ctx: JobContext = run.ctx
        run.batch = self

    def __str__(self) -> str:
        return f"{self.said} ({self.task})"

    @property
    def said(self) -> str:
        """Its jobs in words."""
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"job {self.runs[0].job.id}{more}" if self.runs else "no job"

    @property
    def is_full(self) -> bool:
        return len(self.runs) >= (self.size or 1)

    @property
    def is_stopped(self) -> bool:
        """Whether all of it should stop."""
        return bool(self.runs) and all(run.stopped is not None for run in self.runs)

    @property
    def timeout(self) -> float | None:
        """The shortest of its jobs': they share one call."""
        if self.size is None:
            return self.runs[0].job.timeout
        return min((run.job.timeout for run in self.runs if run.job.timeout is not None), default=None)

    def add(self, run: JobRun) -> None:
        run.batch = self
        self.runs.append(run)

    def share(self) -> None:
        """Give all jobs of the call one context: nobody comes or leaves any more."""
        self.ctx = BatchContext(tuple(run.ctx for run in self.runs))

    def leave(self, run: JobRun) -> None:
        """The call is to begin without this one."""
        self.runs.remove(run)

    def end(self) -> None:
        """The handler has returned. Its jobs point here, and are pointed at no more: what is left in a circle
        stays until the garbage collector has looked for it. Who logs this later says `str` of it before."""
        for run in self.runs:
            if run.stopped is None:
                run.ctx.leave()
        self.runs = []

    def begins(self, now: float, grace: float) -> None:
        """The handler is called now. Leases end after timeout and grace, whether it stops or not."""
        if (timeout := self.timeout) is not None:
            for run in self.runs:
                run.renew_until = now + timeout + grace

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Stopped when its time is up, which begins here. On its loop."""
        if (timeout := self.timeout) is None:
            yield
            return
        timer = self.loop.call_later(timeout, self.stop, StopReason.TIMEOUT)
        try:
            yield
        finally:
            timer.cancel()

    def stop(self, why: StopReason) -> None:
        """All of it should stop, each for the first reason it was given. From any thread."""
        if marked := [run for run in self.runs if run.mark(why)]:
            self.heed(marked)

    def heed(self, runs: list[JobRun]) -> None:
        """These should stop; when they are all there are, the handler is. From any thread."""
        if self.size is not None and self.is_stopped:
            self.ctx.stop()
        self.loop.call_soon_threadsafe(self._heed, runs)

    def _heed(self, runs: list[JobRun]) -> None:
        if self.told is not None:
            self.told(runs)
        if self.handler is not None and self.is_stopped and not self._is_canceled:
            self._is_canceled = True
            self.handler.cancel()


class RunSink(Protocol):
    """Where a run has things written."""

    def write_notes(self, run: JobRun) -> None: ...

    def keep(self, run: JobRun, name: str, text: str) -> "Future[None]": ...
