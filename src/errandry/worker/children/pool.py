"""The child processes of a worker: started when needed, used again, and whose turn it is.

What a child is and how it is spoken to: `process`. Its own program: `child`.
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
from errandry.core.command import ReleaseOutcome
from errandry.errors import ProcessDied
from errandry.worker.attempt import Outcomes
from errandry.worker.children.messages import Hello, MainProgram, RunCall
from errandry.worker.children.process import ChildProcess, start
from errandry.worker.handler_call import HandlerCall
from errandry.worker.options import WorkerOptions

START_LIMIT = 120.0
"""How long a child may take to import the app."""
MOMENT, AHEAD = 0.01, 16
"""Where handlers are quicker than this, the next jobs are claimed before a child is free: so many at most."""
PATIENCE, RELEASES = 0.25, 5
"""How long such a job waits for its turn before it is given back, and how often that may happen to it."""


class ChildPool:
    """The child processes of a worker. `lock` is a descriptor they keep open: the worker's sign of life."""

    def __init__(self, app: Errandry, options: WorkerOptions) -> None:
        self._app, self._options = app, options
        self._free = options.processes
        self._line: deque[asyncio.Future[bool]] = deque()
        self._pace = float("inf")
        self._begun: dict[HandlerCall, float] = {}
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._numbers = count(1)
        self.lock: int | None = None

    def spare(self) -> int:
        """How many jobs to claim beyond the children there are: what quick handlers do in a moment.

        Else each child would idle from the end of a job to the pass that claims the next. From any thread.
        """
        late = self._app.clock.monotonic() - MOMENT
        if any(begun < late for begun in list(self._begun.values())):
            return 0
        return self._options.processes * min(AHEAD, int(MOMENT / self._pace))

    async def attempt(self, batch: HandlerCall, task: Task[..., Any], payloads: list[str]) -> Outcomes:
        """How the call ended there. ProcessDied if its process did; canceled, that is seen to.

        A job claimed for a quick turn that does not come is given back, for another worker may be free.
        """
        if not await self._turn(batch):
            return [ReleaseOutcome()] * len(batch.runs)
        try:
            return await self._attempt(batch, task, payloads)
        finally:
            self._call_next()

    async def _turn(self, batch: HandlerCall) -> bool:
        """Whether it is this call's turn; it returns when it is, or has waited long enough."""
        if self._free:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._line.append(turn)
        is_patient = any(run.job.releases >= RELEASES for run in batch.runs)
        timer = None if is_patient else loop.call_later(PATIENCE, _leave, turn)
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

    async def _attempt(self, batch: HandlerCall, task: Task[..., Any], payloads: list[str]) -> Outcomes:
        child = await self._ready()
        self._begun[batch] = begun = self._app.clock.monotonic()
        batch.begins(begun, self._options.grace)
        pairs, function = zip(batch.runs, payloads, strict=True), task.function
        jobs = tuple(replace(run.job, payload=payload) for run, payload in pairs)
        do = RunCall(
            next(self._numbers),
            jobs,
            function.__module__,
            function.__qualname__,
            task.rules.batch,
            task.rules.memory,
            tuple(run.ctx.journal.found for run in batch.runs) if any(job.steps for job in jobs) else (),
        )
        try:
            with batch.timed():
                answer = await child.work(batch, do)
        finally:
            del self._begun[batch]
            took = self._app.clock.monotonic() - begun + 1e-6
            self._pace = took if self._pace == float("inf") else 0.7 * self._pace + 0.3 * took
            if not child.is_alive:
                self._all.discard(child)
        if answer.is_last:
            self._all.discard(child)
            await child.retire()
        else:
            self._idle.append(child)
        return answer.outcomes

    async def close(self) -> None:
        """End them all."""
        children, self._idle = list(self._all), []
        self._all.clear()
        await asyncio.gather(*(child.retire() for child in children))

    async def _ready(self) -> "ChildProcess":
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
            path=tuple(map(str, sys.path)),
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


def _leave(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


def _main() -> MainProgram:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return MainProgram(os.path.abspath(str(main.__file__)), spec.parent if spec is not None else "")
