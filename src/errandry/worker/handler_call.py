"""Jobs that a worker runs, with their leases, stop requests and notes; and the handler call they share."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from time import time
from typing import Any, Protocol

from msgspec.structs import replace

from errandry.api.context import BatchContext, JobContext
from errandry.api.job import Job
from errandry.api.task import Runner
from errandry.claims.leases import StopReason
from errandry.core.command import Note, Ref
from errandry.core.job import LOGS_MAX, JobRecord, LogLine, Progress

NOTE_INTERVAL = 0.2
"""Seconds between the first unwritten note of a run and its write, which collects later notes."""


class JobRun:
    """A job between its claim and its outcome. `loop` is the event loop of its handler.

    `is_lost`: the worker no longer has its lease. `is_settling`: its outcome is being written. `is_released`:
    a worker that stops has given it back, so its handler's outcome is not written. `is_discarded`: its
    arguments are invalid, so its job is removed. `ended_at`: the monotonic time at which its handler ended.
    """

    is_released = is_discarded = False
    call: "HandlerCall"

    def __init__(
        self, job: JobRecord, lease_until: float, sink: "RunSink", loop: asyncio.AbstractEventLoop
    ) -> None:
        self.job = job
        self.ref = Ref(job.id, job.fence)
        self.ctx = JobContext(job, sink.make_job, self.note, self.save_step)
        self.lease_until = lease_until
        self.renew_until: float | None = None
        self.stop_reason: StopReason | None = None
        self.is_lost = self.is_settling = False
        self.ended_at: float | None = None
        self.loop = loop
        self._sink = sink
        self._lock = Lock()
        self._progress: Progress | None = None
        self._logs: tuple[LogLine, ...] = ()

    def __str__(self) -> str:
        return f"job {self.job.id} ({self.job.task})"

    def needs_renewal(self, now: float) -> bool:
        """Whether the worker should renew its lease: it holds one, and nothing is about to end it."""
        if self.is_lost or self.is_settling:
            return False
        return self.renew_until is None or now < self.renew_until

    def stop(self, reason: StopReason) -> None:
        """Ask the attempt to stop; the first reason counts. From any thread."""
        if self.mark_stopped(reason):
            self.call.request_stop([self])

    def mark_lost(self, cause: str) -> None:  # noqa: ARG002 - the log has the cause
        """Note that the worker no longer has its lease, and ask the attempt to stop. From any thread."""
        self.is_lost = True
        self.stop(StopReason.LOST)

    def mark_stopped(self, reason: StopReason) -> bool:
        """Note the reason and tell the handler's context; False if the run was stopped before."""
        if self.stop_reason is not None:
            return False
        self.stop_reason = reason
        self.ctx._request_stop()
        return True

    def note(self, progress: Progress | None, logs: tuple[LogLine, ...]) -> None:
        """Keep progress and log lines until they are written, at most `LOGS_MAX` lines. From any thread."""
        lines = [replace(line, at=line.at or time()) for line in logs]
        with self._lock:
            is_first = self._progress is None and not self._logs
            self._progress = progress or self._progress
            self._logs = (*self._logs, *lines)[-LOGS_MAX:]
        if is_first:
            self.loop.call_soon_threadsafe(self.loop.call_later, NOTE_INTERVAL, self._sink.write_notes, self)

    def save_step(self, name: str, text: str) -> "Future[None]":
        """Write the result of a step; the future is done when it is durable. From any thread."""
        return self._sink.save_step(self, name, text)

    def take_notes(self) -> Note | None:
        """Take what was noted since the last call, None if nothing. On its loop."""
        if self._progress is None and not self._logs:
            return None
        with self._lock:
            note = Note(self.ref, self._progress, self._logs)
            self._progress, self._logs = None, ()
        return note


class HandlerCall:
    """One call of a handler: for one job or, if `size` is given, for up to `size` jobs of a batch task.

    Jobs are added, and may be removed, before the call begins. A job that is stopped later stays in the call,
    and the call goes on until all its jobs are stopped; `on_stop` is called with each stopped run. A suspect,
    a job that was running when its worker died, shares no call. `begun_at`: the monotonic time at which the
    handler was called. `logged_traceback`: what the log has of its jobs.

    While the main loop is blocked, the engine's thread may give the jobs back. A call either begins or is
    given back, never both. `is_abandoned`: its jobs were settled although the handler goes on.
    """

    logged_traceback = ""
    handler: asyncio.Task[None] | None = None
    on_stop: Callable[[list[JobRun]], None] | None = None
    is_abandoned = False
    _has_begun = _is_given_back = _cancel_was_sent = False
    _timeout_from: float | None = None

    def __init__(self, run: JobRun, size: int | None = None, runner: Runner = Runner.ASYNC) -> None:
        job = run.job
        self.runs, self.size, self.runner, self.loop = [run], size, runner, run.loop
        self.task, self.is_suspect = job.task, job.crashes > 0
        self.ctx: JobContext = run.ctx
        self.begun_at: float | None = None
        self._lock = Lock()
        run.call = self

    def __str__(self) -> str:
        return f"{self.label} ({self.task})"

    @property
    def label(self) -> str:
        """The jobs of this call, for log lines."""
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"job {self.runs[0].job.id}{more}" if self.runs else "no job"

    @property
    def is_full(self) -> bool:
        return len(self.runs) >= (self.size or 1)

    @property
    def is_stopped(self) -> bool:
        """Whether all its jobs should stop."""
        return bool(self.runs) and all(run.stop_reason is not None for run in self.runs)

    @property
    def is_canceled(self) -> bool:
        """Whether all its jobs should stop because they were canceled."""
        return all(run.stop_reason is StopReason.CANCEL for run in self.runs)

    @property
    def has_begun(self) -> bool:
        """Whether its handler may have been called."""
        return self._has_begun

    @property
    def timeout(self) -> float | None:
        """The shortest timeout of its jobs."""
        if self.size is None:
            return self.runs[0].job.timeout
        return min((run.job.timeout for run in self.runs if run.job.timeout is not None), default=None)

    def add(self, run: JobRun) -> None:
        run.call = self
        self.runs.append(run)

    def share_context(self) -> None:
        """Give all jobs of the call one context; after this, no job is added or removed."""
        self.ctx = BatchContext(tuple(run.ctx for run in self.runs))

    def remove(self, run: JobRun) -> bool:
        """Remove a run before the call begins. False if it was given back: the caller must not settle it."""
        with self._lock:
            self.runs.remove(run)
            return not self._is_given_back

    def begin(self) -> bool:
        """Take the jobs for the handler, or to settle them. False if they were given back.

        After it has returned True, they are not given back. On the loop of the call.
        """
        with self._lock:
            self._has_begun = not self._is_given_back
            return self._has_begun

    def give_back(self) -> list[JobRun]:
        """Take the jobs away, to release them, if the call has not begun; otherwise none. From any thread."""
        with self._lock:
            if self._has_begun or self._is_given_back:
                return []
            self._is_given_back, runs = True, list(self.runs)
        for run in runs:
            run.is_lost = True
        if stopped := [run for run in runs if run.mark_stopped(StopReason.LOST)]:
            self.request_stop(stopped)
        return runs

    def end(self) -> None:
        """End the call after its handler has returned.

        It lets go of its runs, which refer to it: a reference cycle would stay until the garbage collector
        runs. Log `str(call)` instead of the call, because its label needs the runs.
        """
        for run in self.runs:
            if run.stop_reason is None:
                run.ctx._detach()
        self.runs = []

    def start_timeout(self, sent_at: float, grace: float) -> None:
        """Count the timeout from `sent_at`, the monotonic time at which the claim or the Start was sent.

        The leases are renewed until timeout and grace are over, so they expire even if the handler does not
        stop.
        """
        self._timeout_from = sent_at
        if (timeout := self.timeout) is not None:
            for run in self.runs:
                run.renew_until = sent_at + timeout + grace

    @contextmanager
    def time_limit(
        self, now: float, grace: float = 0.0, on_overdue: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Stop the call if its timeout is over, at monotonic time `now` or during the block. On its loop.

        `on_overdue` is called if the block then lasts for `grace` more seconds.
        """
        if (timeout := self.timeout) is None:
            yield
            return
        since = 0.0 if self._timeout_from is None else now - self._timeout_from
        left = max(0.0, timeout - since)
        if not left:
            self.stop(StopReason.TIMEOUT)

        def time_out() -> None:
            self.stop(StopReason.TIMEOUT)
            if on_overdue is not None:  # not earlier: the loop may have been blocked for longer
                timers.append(self.loop.call_later(grace, on_overdue))

        timers = [self.loop.call_later(left, time_out)]
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def stop(self, reason: StopReason) -> None:
        """Ask all its jobs to stop; for each, the first reason counts. From any thread."""
        if stopped := [run for run in self.runs if run.mark_stopped(reason)]:
            self.request_stop(stopped)

    def request_stop(self, runs: list[JobRun]) -> None:
        """Pass on that these runs should stop; if all runs should, cancel the handler. From any thread.

        If all jobs of a batch should stop, so should their handler, which has one context for them.
        """
        if self.size is not None and self.is_stopped:
            self.ctx._request_stop()
        self.loop.call_soon_threadsafe(self._deliver_stop, runs)

    def _deliver_stop(self, runs: list[JobRun]) -> None:
        if self.on_stop is not None:
            self.on_stop(runs)
        if self.handler is not None and self.is_stopped and not self._cancel_was_sent:
            self._cancel_was_sent = True
            self.handler.cancel()


class RunSink(Protocol):
    """Writes the notes and step results of a run, and makes the job that its handler sees."""

    def make_job(self, record: JobRecord) -> Job[Any]: ...

    def write_notes(self, run: JobRun) -> None: ...

    def save_step(self, run: JobRun, name: str, text: str) -> "Future[None]": ...
