"""The pool of a worker's child processes: it starts and reuses them, and queues calls when all are busy.

`process` has a child as the worker sees it; `program` is what runs in the child.
"""

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Any

from msgspec.structs import replace

from errandry.api.app import Errandry
from errandry.api.task import Runner, Task
from errandry.claims.trouble import OnTrouble
from errandry.core.command import ReleaseOutcome
from errandry.errors import ProcessDied
from errandry.worker.attempt import Outcomes
from errandry.worker.children.messages import Hello, MainProgram, RunCall
from errandry.worker.children.process import ChildProcess, start_child
from errandry.worker.handler_call import HandlerCall
from errandry.worker.options import WorkerOptions

log = logging.getLogger("errandry.worker")

START_TIMEOUT = 120.0
"""Seconds that a child may take to import the app."""
QUICK_CALL = 0.01
"""Maximum average seconds of a call for which jobs are claimed before a child is free."""
EXTRA_JOBS_MAX = 16
"""Maximum number of jobs to claim early, for each child."""
TURN_TIMEOUT = 0.25
"""Seconds that a job claimed early waits for a child before it is released."""
RELEASES_MAX = 5
"""Number of releases of a job after which it waits for a child without a timeout."""


class ChildPool:
    """The child processes of a worker. They keep `lock_descriptor` open, the worker's liveness lock."""

    def __init__(self, app: Errandry, options: WorkerOptions, on_trouble: OnTrouble) -> None:
        self._app, self._options, self._on_trouble = app, options, on_trouble
        self._free = options.process_slots
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._average_duration = float("inf")
        self._began: dict[HandlerCall, float] = {}
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._numbers = count(1)
        self.lock_descriptor: int | None = None

    def extra_jobs(self) -> int:
        """Number of jobs to claim beyond the number of children, if handlers are quick. From any thread.

        Without them, each child would be idle from the end of one job to the pass that claims the next.
        """
        began_before = self._app.clock.monotonic() - QUICK_CALL
        if any(began < began_before for began in list(self._began.values())):
            return 0
        return self._options.process_slots * min(EXTRA_JOBS_MAX, int(QUICK_CALL / self._average_duration))

    async def attempt(self, call: HandlerCall, task: Task[..., Any], payloads: list[str]) -> Outcomes:
        """Run a call in a child and return its outcomes; raise ProcessDied if the process dies.

        If canceled, the call is stopped. A job that was claimed early and gets no child soon is released:
        another worker may be free.
        """
        if not await self._wait_for_turn(call):
            return [ReleaseOutcome()] * len(call.runs)
        try:
            return await self._run_in_child(call, task, payloads)
        except (ProcessDied, OSError) as error:
            self._on_trouble(f"a child process failed in task {task.name}", error)
            raise
        finally:
            self._give_turn()

    async def _wait_for_turn(self, call: HandlerCall) -> bool:
        """Wait for a free child; False if there was none within `TURN_TIMEOUT`."""
        if self._free:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        has_waited = any(run.job.releases >= RELEASES_MAX - 1 for run in call.runs)
        timer = None if has_waited else loop.call_later(TURN_TIMEOUT, _give_up_turn, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._give_turn()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _give_turn(self) -> None:
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(True)
                return
        self._free += 1

    async def _run_in_child(self, call: HandlerCall, task: Task[..., Any], payloads: list[str]) -> Outcomes:
        child = await self._ready_child()
        if not call.begin():  # given back while the child started
            self._idle.append(child)
            return [None] * len(call.runs)
        self._began[call] = call.begun_at = began = self._app.clock.monotonic()
        call.start_timeout(began, self._options.grace)  # the start of a child is not part of the attempt
        pairs, function = zip(call.runs, payloads, strict=True), task.function
        jobs = tuple(replace(run.job, payload=payload) for run, payload in pairs)
        message = RunCall(
            next(self._numbers),
            jobs,
            function.__module__,
            function.__qualname__,
            task.run_rules.batch,
            task.run_rules.memory,
            tuple(run.ctx._journal.loaded for run in call.runs) if any(job.steps for job in jobs) else (),
        )
        try:
            with call.time_limit(self._app.clock.monotonic()):
                answer = await child.run_call(call, message)
        finally:
            del self._began[call]
            duration = self._app.clock.monotonic() - began + 1e-6
            self._average_duration = (
                duration
                if self._average_duration == float("inf")
                else 0.7 * self._average_duration + 0.3 * duration
            )
            if not child.is_alive:
                self._all.discard(child)
        if answer.is_last:
            self._all.discard(child)
            await child.retire()
        else:
            self._idle.append(child)
        return answer.outcomes

    async def close(self) -> None:
        """End all children."""
        children, self._idle = list(self._all), []
        self._all.clear()
        await asyncio.gather(*(child.retire() for child in children))

    async def _ready_child(self) -> "ChildProcess":
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            self._all.discard(child)
            log.warning("an idle child process has died")
            self._on_trouble("an idle child process has died", child.death)
        child = await start_child(self._make_hello(), self.lock_descriptor)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await child.ready
        except BaseException as error:
            await child.kill()
            if isinstance(error, TimeoutError):
                modules = ", ".join(self._modules())
                raise ProcessDied(
                    f"its process had not imported {modules} after {START_TIMEOUT:g} s"
                ) from None
            raise
        self._all.add(child)
        return child

    def _make_hello(self) -> Hello:
        modules = self._modules()
        return Hello(
            parent=os.getpid(),
            path=tuple(map(str, sys.path)),
            argv=tuple(sys.argv),
            main=_main_program() if "__main__" in modules else None,
            modules=modules,
            level=logging.getLogger().getEffectiveLevel(),
            recycle_jobs=self._options.recycle_jobs,
            recycle_memory=self._options.recycle_memory,
        )

    def _modules(self) -> tuple[str, ...]:
        """The modules of the tasks that run in processes, and of middleware and backoff functions."""
        dependencies: Iterable[Any] = (*self._app.middlewares, *self._app.backoffs.values())
        handlers = [task.function for task in self._app.tasks.values() if task.runner is Runner.PROCESS]
        return tuple(dict.fromkeys(getattr(f, "__module__", "") or "" for f in (*dependencies, *handlers)))


def _give_up_turn(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


def _main_program() -> MainProgram:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return MainProgram(os.path.abspath(str(main.__file__)), spec.parent if spec is not None else "")
