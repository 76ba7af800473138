"""The program of a child process; its worker starts it by `python -m errandry.worker.children.program 7 8 9`.

The main thread imports the app and calls the handlers, so that they may do what only a main thread can. It
receives calls on one socket and sends back their outcomes. Stops come on a second socket, read by a thread,
so that a busy handler cannot delay a stop, or hide the death of the worker.
"""

import asyncio
import contextvars
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from msgspec.structs import replace

from errandry.api.app import Errandry
from errandry.api.context import JobContext, current_job_fields
from errandry.api.job import Job
from errandry.api.task import Task
from errandry.claims.failure import failure
from errandry.claims.log_record import traceback_of
from errandry.codec.json_codec import PlainCodec
from errandry.core import check
from errandry.core.command import Outcome, RetryOutcome
from errandry.core.job import Failure, JobRecord, LogLine, Progress
from errandry.core.printable import log_trace
from errandry.core.size import format_size
from errandry.errors import CommandFailed
from errandry.worker.attempt import AttemptRunner, Outcomes
from errandry.worker.children import process
from errandry.worker.children.app_import import find_task, import_app
from errandry.worker.children.messages import (
    CallEnded,
    ChildReady,
    Hello,
    JobNotes,
    RunCall,
    StepResult,
    StepSaved,
    StopJobs,
    ToChild,
    ToWorker,
    WorkerLogLine,
    encode_frame,
    frames_to_child,
)
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.log_capture import JobLogHandler

log = logging.getLogger("errandry.worker")

MEMORY_RESOURCE = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
"""The resource that a memory limit applies to. On Linux, memory that the process only maps does not count."""


class WorkerConnection:
    """A socket to the worker; any thread may send."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._frames = frames_to_child()

    def send(self, message: ToWorker) -> None:
        with self._lock, suppress(OSError):  # the worker died: `read_interrupts` ends the process
            self._socket.sendall(encode_frame(message))

    def messages(self) -> Iterator[ToChild]:
        """Messages from the worker, until it closes the connection or dies."""
        with suppress(OSError):
            while data := self._socket.recv(65_536):
                yield from self._frames.feed(data)


class ChildProgram:
    """Runs calls for the worker, one at a time."""

    def __init__(self, connection: WorkerConnection, hello: Hello, import_failure: Failure | None) -> None:
        self._connection, self._hello, self._import_failure = connection, hello, import_failure
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._call: HandlerCall | None = None
        self._call_number, self._stops = 0, list[StopJobs]()
        self._unsaved_steps: dict[tuple[int, str], Future[None]] = {}
        self._is_in_plain_function = False
        self._job_count = 0

    def run_calls(self, messages: Iterator[ToChild]) -> None:
        """Run calls until the worker closes the connection. On the main thread."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)
        self._connection.send(ChildReady())
        with _exit_on_error():
            for message in messages:
                if isinstance(message, RunCall):
                    self._run_call(message)

    def read_interrupts(self, connection: WorkerConnection) -> None:
        """Read stops and saved steps. If the worker dies during a call, kill the process group."""
        with _exit_on_error():
            for message in connection.messages():
                self._interrupt(message)
        if self._call is not None:  # the worker died: another worker will soon run its jobs
            os.killpg(0, signal.SIGKILL)

    def _interrupt(self, message: ToChild) -> None:
        if isinstance(message, StopJobs):
            with self._lock:
                self._stops.append(message)
                self._apply_stops()
        elif isinstance(message, StepSaved) and (
            saved := self._unsaved_steps.pop((message.place, message.name), None)
        ):
            if message.error:
                saved.set_exception(CommandFailed("PutStep", message.error))
            else:
                saved.set_result(None)

    def _apply_stops(self) -> None:
        """Apply the stops of the current call. A stop may arrive before its call, or after it."""
        for message in self._stops:
            if self._call is not None and message.number == self._call_number:
                for place, reason in message.stops:
                    self._call.runs[place].stop(reason)

    def _run_call(self, message: RunCall) -> None:
        call = self._make_call(message)
        with self._lock:
            self._call, self._call_number = call, message.number
            self._apply_stops()
        is_healthy = True
        try:
            outcomes = self._outcomes(call, message)
        except Exception as error:  # not from the handler: this process is broken
            log.exception("cannot run %s in this child process, retrying later in a new one", call)
            outcomes, is_healthy = [RetryOutcome(failure(error))] * len(message.jobs), False
        self._job_count += len(message.jobs)
        is_last = self._should_end() or not is_healthy
        with self._lock:
            self._call, self._is_in_plain_function = None, False
            self._stops.clear()
        self._connection.send(CallEnded([_make_storable(outcome) for outcome in outcomes], is_last))

    def _make_call(self, message: RunCall) -> HandlerCall:
        self._message = message
        runs = []
        for place, job in enumerate(message.jobs):
            run = JobRun(job, float("inf"), self, self._loop)
            note, save_step = partial(self._send_notes, place), partial(self._send_step, place)
            run.ctx = JobContext(job, self.make_job, note, save_step)
            run.ctx._can_have_children = False
            if message.steps:
                run.ctx._load_steps(message.steps[place])
            runs.append(run)
        call = HandlerCall(runs[0], message.size)
        for run in runs[1:]:
            call.add(run)
        return call

    def _outcomes(self, call: HandlerCall, message: RunCall) -> Outcomes:
        if self._import_failure is not None:
            return [RetryOutcome(self._import_failure)] * len(message.jobs)
        task, app = _find_task_and_app(message)
        arguments = [task.signature.read(job.payload) for job in message.jobs]
        attempts = AttemptRunner(app, PlainCodec(), self._call_plain)
        if call.is_stopped:
            return attempts.stop_outcomes(call, asyncio.CancelledError())
        attempt, context = attempts.outcomes(call, task, arguments), contextvars.Context()
        try:
            with memory_limit(message.memory):
                if task.is_async or app.middlewares:
                    outcomes = self._run_on_loop(call, attempt, context)
                else:
                    outcomes = context.run(_run_without_loop, attempt)
        except asyncio.CancelledError as error:  # canceled before the attempt began
            return attempts.stop_outcomes(call, error)
        return (
            outcomes
            if message.memory is None
            else [_explain_memory_error(outcome, message.memory) for outcome in outcomes]
        )

    def _run_on_loop(
        self, call: HandlerCall, attempt: "AttemptCoroutine", context: contextvars.Context
    ) -> Outcomes:
        """Run the attempt as a task, which a stop cancels."""
        task: asyncio.Task[Any] = self._loop.create_task(attempt, context=context)
        call.handler = task
        outcomes: Outcomes = self._loop.run_until_complete(task)
        return outcomes

    async def _call_plain(self, function: Callable[[], Any], call: HandlerCall) -> Any:
        """Call a plain function on this thread. As in a worker's thread, it may run its own event loop."""
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
        if loop is not None and task is not None:
            asyncio.tasks._leave_task(loop, task)
        asyncio._set_running_loop(None)
        self._is_in_plain_function = True
        try:
            value = function()
        finally:
            self._is_in_plain_function = False
            asyncio._set_running_loop(loop)
            if loop is not None and task is not None:
                asyncio.tasks._enter_task(loop, task)
        if call.is_stopped:  # it returned because it was asked to stop: there is no result
            raise asyncio.CancelledError
        return value

    def _should_end(self) -> bool:
        """Whether the process should be replaced: after enough jobs, too much memory, or a failed import."""
        jobs_max, memory = self._hello.recycle_jobs, self._hello.recycle_memory
        if self._import_failure is not None or (jobs_max is not None and self._job_count >= jobs_max):
            return True
        return memory is not None and memory_used() >= memory

    def _send_notes(self, place: int, progress: Progress | None, logs: tuple[LogLine, ...]) -> None:
        """Send notes to the worker at once, so that those before a crash are not lost."""
        if progress is not None:
            progress = replace(progress, text=check.storable_text(progress.text))
        lines = tuple(replace(line, text=check.storable_text(line.text)) for line in logs)
        self._connection.send(JobNotes(place, progress, lines))

    def make_job(self, record: JobRecord) -> Job[Any]:
        """The job that its handler sees. The worker has unsealed the payload already."""
        _, app = _find_task_and_app(self._message)
        return Job(app, record, codec=PlainCodec())

    def write_notes(self, run: JobRun) -> None:
        """Do nothing: `_send_notes` has sent them."""

    def save_step(self, run: JobRun, name: str, text: str) -> "Future[None]":
        return self._send_step(0 if self._call is None else self._call.runs.index(run), name, text)

    def _send_step(self, place: int, name: str, text: str) -> "Future[None]":
        """Send the result to the worker, which writes it; the future is done when it is durable."""
        saved: Future[None] = Future()
        saved.set_running_or_notify_cancel()
        self._unsaved_steps[place, name] = saved
        self._connection.send(StepResult(place, name, text))
        return saved

    def _handle_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        """On SIGTERM after a stop, leave a plain function by an exception.

        Without a stop, the signal came from a service manager to all processes: the worker drains, and this
        process goes on.
        """
        if self._call is not None and self._call.is_stopped and self._is_in_plain_function:
            raise SystemExit(128 + signal.SIGTERM)


AttemptCoroutine = Coroutine[Any, Any, Outcomes]


def _run_without_loop(attempt: AttemptCoroutine) -> Outcomes:
    """Run an attempt of a plain function without middleware: it never waits, and needs no event loop."""
    try:
        attempt.send(None)
    except StopIteration as done:
        outcomes: Outcomes = done.value
        return outcomes
    raise RuntimeError("the attempt of a plain function without middleware must not wait")


class LogForwarder(logging.Handler):
    """Forwards log lines to the worker if the app does not configure logging itself."""

    def __init__(self, connection: WorkerConnection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text, trace = check.storable_text(record.getMessage()), log_trace(traceback_of(record))
            fields = current_job_fields()
            self._connection.send(WorkerLogLine(record.name, record.levelno, text, trace, fields))
        except Exception:
            self.handleError(record)


@contextmanager
def memory_limit(memory: int | None) -> Iterator[None]:
    """Limit the memory of this process to `memory` bytes: exceeding it raises MemoryError, or crashes."""
    if memory is None:
        yield
        return
    soft, hard = resource.getrlimit(MEMORY_RESOURCE)
    resource.setrlimit(
        MEMORY_RESOURCE, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(MEMORY_RESOURCE, (soft, hard))


def memory_used() -> int:
    """Resident memory of this process in bytes; its peak where the current value is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1_024


def end_with_parent(parent: int) -> None:
    """On Linux, have the kernel kill this process when the worker dies: no handler can prevent that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(0)


def _explain_memory_error(outcome: Outcome | None, memory: int) -> Outcome | None:
    """Add the limit to a MemoryError, which has no message of its own."""
    failed: Failure | None = getattr(outcome, "failure", None)
    if outcome is None or failed is None or failed.type != "MemoryError" or failed.message:
        return outcome
    return replace(
        outcome, failure=replace(failed, message=f"the task may have {format_size(memory)} of memory")
    )


def _make_storable(outcome: Outcome | None) -> Outcome | None:
    """The outcome with error texts that can be sent: they may contain invalid UTF-8."""
    failed: Failure | None = getattr(outcome, "failure", None)
    if outcome is None or failed is None:
        return outcome
    texts = {name: check.storable_text(getattr(failed, name)) for name in ("type", "message", "traceback")}
    return replace(outcome, failure=replace(failed, **texts))


def _find_task_and_app(message: RunCall) -> tuple[Task[..., Any], Errandry]:
    task = find_task(message)
    if not isinstance(task.app, Errandry):
        raise TypeError(f"task {task.name} belongs to a {type(task.app).__name__}, not to an Errandry")
    return task, task.app


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """Exit at once after an error, such as a message that cannot be read: the worker reports a dead process.

    Without it, the call would hang: an exit in good order waits for the threads that its handler has started.
    """
    try:
        yield
    except Exception:
        log.exception("cannot read a message of the worker, ending this child process")
        os._exit(1)


def _close_in_fork(descriptor: int) -> None:
    """Close a descriptor in a fork of this process, which must not keep the worker's lock or sockets open.

    The number is reopened on /dev/null, so that code which still uses it reaches no other file.
    """
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor, inheritable=False)


def main() -> None:
    descriptors = [int(number) for number in sys.argv[1:]]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=partial(_close_in_fork, descriptor))
    signal.signal(signal.SIGTERM, lambda *_: None)
    connection, interrupts = WorkerConnection(descriptors[0]), WorkerConnection(descriptors[1])
    faulthandler.enable(descriptors[2], all_threads=False)
    messages = connection.messages()
    hello = next(messages, None)
    if not isinstance(hello, Hello):
        return
    end_with_parent(hello.parent)
    process.is_child = True
    root = logging.getLogger()
    before = list(root.handlers)
    import_failure = import_app(hello)
    if root.handlers == before:
        root.addHandler(LogForwarder(connection))
        root.setLevel(min(root.level, hello.level))
    root.addHandler(JobLogHandler())
    child = ChildProgram(connection, hello, import_failure)
    threading.Thread(
        target=child.read_interrupts, args=(interrupts,), name="errandry-listen", daemon=True
    ).start()
    child.run_calls(messages)


if __name__ == "__main__":
    main()
