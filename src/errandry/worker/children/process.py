"""A child process for handlers that may block, crash or be killed, as its worker sees it.

The child never sees the store: the worker claims, renews and settles, and only the handler runs there. It is
in a process group of its own, so that what its handler has started is killed with it.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO, cast

from errandry.errors import ProcessDied
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
    WorkerLogLine,
    framed,
    frames_to_worker,
)
from errandry.worker.handler_call import HandlerCall, JobRun, StopReason

log = logging.getLogger("errandry.worker")

ASK, TERMINATE = 0.2, 0.3
"""How long a handler has to stop: after it was asked, and after SIGTERM. Then comes SIGKILL."""
EXIT_LIMIT = 1.0
"""How long a child that is no longer needed may take to end by itself."""
TRACE_MAX = 8_000
NOT_FOR_CHILDREN = ("ERRANDRY_FAILPOINT", "ERRANDRY_WORKER_")
"""What begins so speaks to the worker. The rest of the environment is the app's own, which the child imports:
`ERRANDRY_URL` too, or what its handlers enqueue would go elsewhere."""

GUARD = (
    "a child process of a worker imports the program it belongs to: "
    'write `if __name__ == "__main__":` above what only the program itself should do'
)

is_child = False
"""Whether this process is a child itself. Set by the program of the child."""


def refuse_in_child() -> None:
    """A program that starts a worker as soon as it is imported would do so in every child, without end."""
    if is_child:
        raise RuntimeError(GUARD)


async def start(hello: Hello, lock: int | None) -> "ChildProcess":
    """A new child, on its way to be ready. It has no descriptors but its two lines, `trace` and the lock."""
    with ExitStack() as ours:
        line, theirs, interrupts, interrupted = (
            ours.enter_context(end) for pair in (socket.socketpair(), socket.socketpair()) for end in pair
        )
        trace = ours.enter_context(tempfile.TemporaryFile())
        kept = [theirs.fileno(), interrupted.fileno(), trace.fileno(), *([] if lock is None else [lock])]
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - it must be a child of this thread, to die with it
            [sys.executable, "-P", "-m", "errandry.worker.children.program", *map(str, kept)],
            stdin=subprocess.DEVNULL,
            pass_fds=kept,
            process_group=0,
            env={name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_CHILDREN)},
        )
        ours.pop_all()  # from here on they are the child's, which closes them when it is over
    theirs.close()
    interrupted.close()
    child = ChildProcess(process, interrupts, trace)
    await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=line)
    child.send(hello)
    return child


class ChildProcess(asyncio.Protocol):
    """One child process, as its worker sees it. In `trace` it leaves where it was when it crashed."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", interrupts: socket.socket, trace: IO[bytes]
    ) -> None:
        self._process, self._interrupts, self._trace = process, interrupts, trace
        self._frames = frames_to_worker()
        self._batch: HandlerCall | None = None
        self._answer: asyncio.Future[CallEnded] | None = None
        self._late: CallEnded | None = None
        self._number, self._halted = 0, set[JobRun]()
        self._line: asyncio.Transport | None = None
        self._is_leaving = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """Whether it may be given a job."""
        return self._line is not None and not self._line.is_closing()

    def send(self, message: ToChild) -> None:
        if self._line is not None:
            self._line.write(framed(message))

    async def work(self, batch: HandlerCall, do: RunCall) -> CallEnded:
        """Have it do a call. Canceled, the handler is asked to stop, and in the end its process is killed."""
        first: asyncio.Future[CallEnded] = asyncio.get_running_loop().create_future()
        self._batch, self._answer, self._late = batch, first, None
        self._number, self._halted, batch.told = do.number, set(), self._halt
        self.send(do)
        self._halt([run for run in batch.runs if run.stopped is not None])
        try:
            return await first
        except asyncio.CancelledError:
            answer = self._again()
            self._halt(batch.runs)
            await asyncio.wait({answer}, timeout=ASK)
            if not answer.done():
                self._signal(signal.SIGTERM)
                await asyncio.wait({answer}, timeout=TERMINATE)
            if not answer.done() or answer.exception() is not None:
                raise
            return answer.result()
        finally:
            is_over = self._answer.done()
            batch.told = self._batch = self._answer = None
            if not is_over:
                await self.kill()

    def _halt(self, runs: list[JobRun]) -> None:
        """Have attempts stopped; the others of the call go on."""
        places = {run: place for place, run in enumerate(self._batch.runs)} if self._batch is not None else {}
        news = [run for run in runs if run in places and run not in self._halted]
        self._halted.update(news)
        if news:
            stops = tuple((places[run], run.stopped or StopReason.SHUTDOWN) for run in news)
            with suppress(OSError):
                self._interrupts.sendall(framed(StopJobs(self._number, stops)))

    def _again(self) -> "asyncio.Future[CallEnded]":
        """Another wait for the answer: the first was canceled with whoever waited."""
        self._answer = asyncio.get_running_loop().create_future()
        if self._late is not None:
            self._answer.set_result(self._late)
        return self._answer

    async def retire(self) -> None:
        """Let it end; it may say goodbye in its own way, but not for long."""
        self._is_leaving = True
        if self._line is not None:
            self._line.close()
        if await self._code(EXIT_LIMIT) is None:
            await self.kill()
        self._close()

    async def kill(self) -> None:
        """Kill it, with all it has started. Returns when it is dead."""
        self._is_leaving = True
        await self._killed()
        self._close()

    async def _killed(self) -> int:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._line is not None:
            self._line.close()
        return await self._code() or 0

    async def _code(self, limit: float = float("inf")) -> int | None:
        """Its exit code, once there is one. It is near: nobody needs to tell."""
        pause, waited = 0.001, 0.0
        while (code := self._process.poll()) is None and waited < limit:
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(0.05, pause * 2)
        return code

    def _close(self) -> None:
        self._trace.close()
        self._interrupts.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._line = cast("asyncio.Transport", transport)  # which uvloop's is in all but name

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            match message:
                case JobNotes(place, progress, logs) if self._batch is not None:
                    self._batch.runs[place].note(progress, logs)
                case StepResult(place, name, result) if self._batch is not None:
                    kept = self._batch.runs[place].keep(name, result)
                    kept.add_done_callback(partial(self._kept, place, name))
                case WorkerLogLine(logger, level, text):
                    logging.getLogger(logger).log(level, "%s", text)
                case CallEnded() if self._answer is not None and self._answer.cancelled():
                    self._late = message
                case CallEnded() if self._answer is not None:
                    self._answer.set_result(message)
                case ChildReady() if not self.ready.done():
                    self.ready.set_result(None)

    def _kept(self, place: int, name: str, kept: "Future[None]") -> None:
        error = kept.exception()
        with suppress(OSError):
            self._interrupts.sendall(framed(StepSaved(place, name, "" if error is None else str(error))))

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        if not self._is_leaving:
            self._burial = asyncio.ensure_future(self._bury())

    async def _bury(self) -> None:
        """Say how it ended to who waits for it. What its handler had started goes with it."""
        died = ProcessDied(f"the process {ended(await self._killed())}")
        self._trace.seek(0)
        if last_words := self._trace.read(TRACE_MAX).decode(errors="replace"):
            died.add_note(last_words)
        self._close()
        for waiting in (self.ready, self._answer):
            if waiting is not None and not waiting.done():
                waiting.set_exception(died)


def ended(code: int) -> str:
    """How a process ended, in words, from its exit code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (from outside: perhaps memory ran out)" if -code == signal.SIGKILL else ""
    return f"ended with {name}{hint}"
