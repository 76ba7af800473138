"""Child processes for handlers that may block, crash or be killed: started when needed, used again.

The child never sees the store: the worker claims, renews and settles, and only the handler runs there. A
child is in a process group of its own, so that what its handler has started is killed with it.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from msgspec.structs import replace

from errandry.app import Errandry
from errandry.core.command import Outcome, Release
from errandry.errors import ProcessDied
from errandry.task import Runner, Task
from errandry.worker.message import (
    Do,
    Ended,
    Halt,
    Hello,
    Logged,
    Main,
    Noted,
    Ready,
    ToChild,
    framed,
    frames_to_worker,
)
from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run, Stop

log = logging.getLogger("errandry.worker")

ASK, TERMINATE = 0.2, 0.3
"""How long a handler has to stop: after it was asked, and after SIGTERM. Then comes SIGKILL."""
START_LIMIT = 120.0
"""How long a child may take to import the app."""
EXIT_LIMIT = 1.0
"""How long a child that is no longer needed may take to end by itself."""
MOMENT, AHEAD = 0.01, 16
"""Where handlers are quicker than this, the next jobs are claimed before a child is free: so many at most."""
PATIENCE, RELEASES = 0.25, 5
"""How long such a job waits for its turn before it is given back, and how often that may happen to it."""
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


class Children:
    """The child processes of a worker. `lock` is a descriptor they keep open: the worker's sign of life."""

    def __init__(self, app: Errandry, options: WorkerOptions) -> None:
        self._app, self._options = app, options
        self._free = options.processes
        self._line: deque[asyncio.Future[bool]] = deque()
        self._pace = float("inf")
        self._begun: dict[Run, float] = {}
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self.lock: int | None = None

    def spare(self) -> int:
        """How many jobs to claim beyond the children there are: what quick handlers do in a moment.

        Else each child would idle from the end of a job to the pass that claims the next. From any thread.
        """
        late = self._app.clock.monotonic() - MOMENT
        if any(begun < late for begun in list(self._begun.values())):
            return 0
        return self._options.processes * min(AHEAD, int(MOMENT / self._pace))

    async def attempt(self, run: Run, task: Task[..., Any], payload: str) -> Outcome | None:
        """How the attempt ended there. ProcessDied if its process did; canceled, that is seen to.

        A job claimed for a quick turn that does not come is given back, for another worker may be free.
        """
        if not await self._turn(run):
            return Release()
        try:
            return await self._attempt(run, task, payload)
        finally:
            self._call_next()

    async def _turn(self, run: Run) -> bool:
        """Whether it is this run's turn; it returns when it is, or has waited long enough."""
        if self._free:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._line.append(turn)
        timer = loop.call_later(PATIENCE, _leave, turn) if run.job.releases < RELEASES else None
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._call_next()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _call_next(self) -> None:
        while self._line:
            if not (turn := self._line.popleft()).done():
                turn.set_result(True)
                return
        self._free += 1

    async def _attempt(self, run: Run, task: Task[..., Any], payload: str) -> Outcome | None:
        child = await self._ready()
        self._begun[run] = begun = self._app.clock.monotonic()
        run.begins(begun, self._options.grace)
        function, job = task.function, replace(run.job, payload=payload)
        try:
            with run.timed():
                answer = await child.work(
                    run, Do(job, function.__module__, function.__qualname__, task.rules.memory)
                )
        finally:
            del self._begun[run]
            took = self._app.clock.monotonic() - begun + 1e-6
            self._pace = took if self._pace == float("inf") else 0.7 * self._pace + 0.3 * took
            if not child.is_alive:
                self._all.discard(child)
        if answer.is_last:
            self._all.discard(child)
            await child.retire()
        else:
            self._idle.append(child)
        return answer.outcome

    async def close(self) -> None:
        """End them all."""
        children, self._idle = list(self._all), []
        self._all.clear()
        await asyncio.gather(*(child.retire() for child in children))

    async def _ready(self) -> "Child":
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            self._all.discard(child)
        child = await start(self._hello(), self.lock)
        try:
            async with asyncio.timeout(START_LIMIT):
                await child.ready
        except BaseException as error:
            await child.kill()
            if isinstance(error, TimeoutError):
                why = f"its process had not imported {', '.join(self._modules())} after {START_LIMIT:g} s"
                raise ProcessDied(why) from None
            raise
        self._all.add(child)
        return child

    def _hello(self) -> Hello:
        modules = self._modules()
        return Hello(
            parent=os.getpid(),
            path=tuple(sys.path),
            argv=tuple(sys.argv),
            main=_main() if "__main__" in modules else None,
            modules=modules,
            level=logging.getLogger().getEffectiveLevel(),
            recycle_jobs=self._options.recycle_jobs,
            recycle_memory=self._options.recycle_memory,
        )

    def _modules(self) -> tuple[str, ...]:
        """Where the tasks for processes are declared, and what they need: middleware, backoffs."""
        around: Iterable[Any] = (*self._app.middlewares, *self._app.backoffs.values())
        tasks = [task.function for task in self._app.tasks.values() if task.runner is Runner.PROCESS]
        return tuple(dict.fromkeys(getattr(one, "__module__", "") or "" for one in (*around, *tasks)))


async def start(hello: Hello, lock: int | None) -> "Child":
    """A new child, on its way to be ready. It has no descriptors but its two lines, `trace` and the lock."""
    (ours, theirs), (interrupts, interrupted) = socket.socketpair(), socket.socketpair()
    trace = tempfile.TemporaryFile()  # noqa: SIM115 - the child closes it when it is over
    with theirs, interrupted:
        kept = [theirs.fileno(), interrupted.fileno(), trace.fileno(), *([] if lock is None else [lock])]
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - it must be a child of this thread, to die with it
            [sys.executable, "-P", "-m", "errandry.worker.child", *map(str, kept)],
            stdin=subprocess.DEVNULL,
            pass_fds=kept,
            process_group=0,
            env={name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_CHILDREN)},
        )
    child = Child(process, interrupts, trace)
    await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
    child.send(hello)
    return child


class Child(asyncio.Protocol):
    """One child process, as its worker sees it. In `trace` it leaves where it was when it crashed."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", interrupts: socket.socket, trace: IO[bytes]
    ) -> None:
        self._process, self._interrupts, self._trace = process, interrupts, trace
        self._frames = frames_to_worker()
        self._run: Run | None = None
        self._answer: asyncio.Future[Ended] | None = None
        self._late: Ended | None = None
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

    async def work(self, run: Run, do: Do) -> Ended:
        """Have it do a job. Canceled, the handler is asked to stop, and in the end its process is killed."""
        first: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._run, self._answer, self._late = run, first, None
        self.send(do)
        try:
            return await first
        except asyncio.CancelledError:
            answer = self._again()
            with suppress(OSError):
                self._interrupts.send(framed(Halt(do.job.fence, run.stopped or Stop.SHUTDOWN)))
            await asyncio.wait({answer}, timeout=ASK)
            if not answer.done():
                self._signal(signal.SIGTERM)
                await asyncio.wait({answer}, timeout=TERMINATE)
            if not answer.done() or answer.exception() is not None:
                raise
            return answer.result()
        finally:
            is_over = self._answer.done()
            self._run = self._answer = None
            if not is_over:
                await self.kill()

    def _again(self) -> "asyncio.Future[Ended]":
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
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream socket gives
        self._line = transport

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            match message:
                case Noted(progress, logs) if self._run is not None:
                    self._run.note(progress, logs)
                case Logged(logger, level, text):
                    logging.getLogger(logger).log(level, "%s", text)
                case Ended() if self._answer is not None and self._answer.cancelled():
                    self._late = message
                case Ended() if self._answer is not None:
                    self._answer.set_result(message)
                case Ready() if not self.ready.done():
                    self.ready.set_result(None)

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


def _leave(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


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


def _main() -> Main:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return Main(os.path.abspath(str(main.__file__)), spec.parent if spec is not None else "")
