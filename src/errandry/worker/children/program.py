"""The program of a child process, `python -m errandry.worker.children.program 7 8 9`: its worker starts it, nobody else.

The main thread imports the app and calls the handlers: they may do there what only a main thread can. It
takes its jobs from one line and hands back outcomes. What interrupts comes on a second line, read by a thread
that no handler keeps from seeing a stop, or the end of the worker.
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
from errandry.api.context import JobContext
from errandry.codec.json_codec import PlainCodec
from errandry.core import check
from errandry.core.command import Outcome, RetryOutcome
from errandry.core.job import Failure, LogLine, Progress
from errandry.core.size import short
from errandry.errors import CommandFailed
from errandry.worker.attempt import AttemptRunner, Outcomes, failure
from errandry.worker.children import process
from errandry.worker.children.app_import import found, load
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
    framed,
    frames_to_child,
)
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.log_capture import JobLogHandler

log = logging.getLogger("errandry.worker")

DATA = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
"""What a limit of memory limits. On Linux what is really the process's own, not what it merely maps."""


class WorkerConnection:
    """A connection to the worker; any thread may send."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._frames = frames_to_child()

    def send(self, message: ToWorker) -> None:
        with self._lock, suppress(OSError):  # the worker is gone: who listens will see to that
            self._socket.sendall(framed(message))

    def messages(self) -> Iterator[ToChild]:
        """What the worker says, until it is gone."""
        with suppress(OSError):
            while data := self._socket.recv(65_536):
                yield from self._frames.feed(data)


class ChildProgram:
    """Does one call after the other."""

    def __init__(self, line: WorkerConnection, hello: Hello, broken: Failure | None) -> None:
        self._line, self._hello, self._broken = line, hello, broken
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._batch: HandlerCall | None = None
        self._number, self._halts = 0, list[StopJobs]()
        self._kept: dict[tuple[int, str], Future[None]] = {}
        self._is_plain = False
        self._jobs = 0

    def live(self, messages: Iterator[ToChild]) -> None:
        """Until the worker wants no more; on the main thread."""
        signal.signal(signal.SIGTERM, self._terminated)
        self._line.send(ChildReady())
        for message in messages:
            if isinstance(message, RunCall):
                self._do(message)

    def listen(self, line: WorkerConnection) -> None:
        """Obey what interrupts; on a thread of its own."""
        for message in line.messages():
            if isinstance(message, StopJobs):
                with self._lock:
                    self._halts.append(message)
                    self._stop()
            elif isinstance(message, StepSaved) and (
                kept := self._kept.pop((message.place, message.name), None)
            ):
                if message.error:
                    kept.set_exception(CommandFailed("PutStep", message.error))
                else:
                    kept.set_result(None)
        if self._batch is not None:  # the worker died: its jobs are another's soon
            os.killpg(0, signal.SIGKILL)

    def _stop(self) -> None:
        """Stop what should and is there: a halt may be here before its call, or after."""
        for halt in self._halts:
            if self._batch is not None and halt.number == self._number:
                for place, why in halt.stops:
                    self._batch.runs[place].stop(why)

    def _do(self, do: RunCall) -> None:
        batch = self._made(do)
        with self._lock:
            self._batch, self._number = batch, do.number
            self._stop()
        is_sound = True
        try:
            outcomes = self._outcomes(batch, do)
        except Exception as error:  # not the handler's: what this process needs is broken
            log.exception("%s could not be run", batch)
            outcomes, is_sound = [RetryOutcome(failure(error))] * len(do.jobs), False
        self._jobs += len(do.jobs)
        is_last = self._is_last() or not is_sound
        with self._lock:
            self._batch, self._is_plain = None, False
            self._halts.clear()
        self._line.send(CallEnded([_storable(outcome) for outcome in outcomes], is_last))

    def _made(self, do: RunCall) -> HandlerCall:
        runs = []
        for place, job in enumerate(do.jobs):
            run = JobRun(job, float("inf"), self, self._loop)
            run.ctx = JobContext(job, partial(self._note, place), partial(self._step, place))
            if do.steps:
                run.ctx.load_steps(do.steps[place])
            runs.append(run)
        batch = HandlerCall(runs[0], do.size)
        for run in runs[1:]:
            batch.add(run)
        return batch

    def _outcomes(self, batch: HandlerCall, do: RunCall) -> Outcomes:
        if self._broken is not None:
            return [RetryOutcome(self._broken)] * len(do.jobs)
        task = found(do)
        if not isinstance(task.app, Errandry):
            raise TypeError(f"task {task.name} belongs to a {type(task.app).__name__}, not to an Errandry")
        arguments = [task.signature.read(job.payload) for job in do.jobs]
        attempts = AttemptRunner(task.app, PlainCodec(), self._call)
        if batch.is_stopped:
            return attempts.stopped(batch, asyncio.CancelledError())
        attempt, context = attempts.outcomes(batch, task, arguments), contextvars.Context()
        try:
            with limited(do.memory):
                if task.is_async or task.app.middlewares:
                    outcomes = self._on_loop(batch, attempt, context)
                else:
                    outcomes = context.run(_driven, attempt)
        except asyncio.CancelledError as error:  # before the attempt had begun
            return attempts.stopped(batch, error)
        return outcomes if do.memory is None else [_explained(outcome, do.memory) for outcome in outcomes]

    def _on_loop(
        self, batch: HandlerCall, attempt: "AttemptCoroutine", context: contextvars.Context
    ) -> Outcomes:
        """The attempt as a task that a stop cancels."""
        task: asyncio.Task[Any] = self._loop.create_task(attempt, context=context)
        batch.handler = task
        outcomes: Outcomes = self._loop.run_until_complete(task)
        return outcomes

    async def _call(self, function: Callable[[], Any], batch: HandlerCall) -> Any:
        """Right here. It finds no loop running, as in a thread, and may run one of its own."""
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        self._is_plain = True
        try:
            value = function()
        finally:
            self._is_plain = False
            asyncio._set_running_loop(loop)
        if batch.is_stopped:  # it was asked, so its answer is to that
            raise asyncio.CancelledError
        return value

    def _is_last(self) -> bool:
        """Whether it has done enough, or grown too large; one that could not import may do better anew."""
        most, memory = self._hello.recycle_jobs, self._hello.recycle_memory
        if self._broken is not None or (most is not None and self._jobs >= most):
            return True
        return memory is not None and resident() >= memory

    def _note(self, place: int, progress: Progress | None, logs: tuple[LogLine, ...]) -> None:
        """At once: what was said just before a crash is what one wants to read."""
        if progress is not None:
            progress = replace(progress, text=check.capped(progress.text))
        lines = tuple(replace(line, text=check.capped(line.text)) for line in logs)
        self._line.send(JobNotes(place, progress, lines))

    def write_notes(self, run: JobRun) -> None:
        """They are not kept here until then."""

    def keep(self, run: JobRun, name: str, text: str) -> "Future[None]":
        return self._step(0 if self._batch is None else self._batch.runs.index(run), name, text)

    def _step(self, place: int, name: str, text: str) -> "Future[None]":
        """The worker has it written, and says when it is."""
        kept: Future[None] = Future()
        kept.set_running_or_notify_cancel()
        self._kept[place, name] = kept
        self._line.send(StepResult(place, name, text))
        return kept

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        """SIGTERM after a stop that was not obeyed: a plain function is left by an exception.

        Without one it came to the whole group or service: the worker drains, and so its children go on.
        """
        if self._batch is not None and self._batch.is_stopped and self._is_plain:
            raise SystemExit(128 + signal.SIGTERM)


AttemptCoroutine = Coroutine[Any, Any, Outcomes]


def _driven(attempt: AttemptCoroutine) -> Outcomes:
    """An attempt that waits for nothing needs no loop."""
    try:
        attempt.send(None)
    except StopIteration as done:
        outcomes: Outcomes = done.value
        return outcomes
    raise RuntimeError("an attempt without middleware waited for something")


class LogForwarder(logging.Handler):
    """Has the worker log what is logged here, where the app sets up no logging of its own."""

    def __init__(self, line: WorkerConnection) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.send(WorkerLogLine(record.name, record.levelno, check.capped(self.format(record))))
        except Exception:
            self.handleError(record)


@contextmanager
def limited(memory: int | None) -> Iterator[None]:
    """No more memory than this, while it lasts: what asks for more gets a MemoryError, or crashes."""
    if memory is None:
        yield
        return
    soft, hard = resource.getrlimit(DATA)
    resource.setrlimit(DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(DATA, (soft, hard))


def resident() -> int:
    """How much memory this process has, in bytes; where that cannot be known, how much it had at most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1_024


def die_with(parent: int) -> None:
    """Be killed by the system when the worker ends, where it can do that: no handler can be in its way."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(0)


def _explained(outcome: Outcome | None, memory: int) -> Outcome | None:
    """An error for want of memory says how much there was: Python's own has no message."""
    given: Failure | None = getattr(outcome, "failure", None)
    if outcome is None or given is None or given.type != "MemoryError" or given.message:
        return outcome
    return replace(outcome, failure=replace(given, message=f"the task may have {short(memory)} of memory"))


def _storable(outcome: Outcome | None) -> Outcome | None:
    """`outcome` with texts that can be sent: an error's may hold what is not even UTF-8."""
    given: Failure | None = getattr(outcome, "failure", None)
    if outcome is None or given is None:
        return outcome
    texts = {name: check.capped(getattr(given, name)) for name in ("type", "message", "traceback")}
    return replace(outcome, failure=replace(given, **texts))


def _let_go(descriptor: int) -> None:
    """In a fork of this process, which must not stand for it when it has died. The number stays taken."""
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor, inheritable=False)


def main() -> None:
    kept = [int(number) for number in sys.argv[1:]]
    for descriptor in kept:
        os.set_inheritable(descriptor, False)
        os.register_at_fork(after_in_child=partial(_let_go, descriptor))
    signal.signal(signal.SIGTERM, lambda *_: None)
    line, interrupts = WorkerConnection(kept[0]), WorkerConnection(kept[1])
    faulthandler.enable(kept[2], all_threads=False)
    messages = line.messages()
    hello = next(messages, None)
    if not isinstance(hello, Hello):
        return
    die_with(hello.parent)
    process.is_child = True
    root = logging.getLogger()
    before = list(root.handlers)
    broken = load(hello)
    if root.handlers == before:
        root.addHandler(LogForwarder(line))
        root.setLevel(min(root.level, hello.level))
    root.addHandler(JobLogHandler())
    child = ChildProgram(line, hello, broken)
    threading.Thread(target=child.listen, args=(interrupts,), name="errandry-listen", daemon=True).start()
    child.live(messages)


if __name__ == "__main__":
    main()
