"""An app in this process on a memory store that fails on demand."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from errandry import Errandry, JobContext, Worker, WorkerOptions
from errandry.clock import SystemClock
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.core.state import State
from errandry.errors import StoreFull, StoreUnavailable
from errandry.store.contract import Store
from errandry.store.memory.driver import MemoryStore

FULL = StoreFull("memory", "no space left")
AWAY = StoreUnavailable("memory", "not reachable")
LEASE = 60.0


class FailingStore:
    """A store that raises `error_for(command)`, and awaits `before_read[name]()` before a read."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.received: list[Command] = []
        self.error_for: Callable[[Command], Exception | None] = lambda _: None
        self.before_read: dict[str, Callable[[], Awaitable[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if name not in self.before_read:
            return method

        async def read(*args: Any) -> Any:
            await self.before_read[name]()
            return await method(*args)

        return read

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.received += commands
        for command in commands:
            if (error := self.error_for(command)) is not None:
                raise error
        return await self.store.commit(commands)

    def go_away(self) -> None:
        """Fail all commits, and the reads of a worker."""

        async def fail() -> None:
            raise AWAY

        self.error_for = lambda _: AWAY
        self.before_read = dict.fromkeys(("cancels", "events", "latest_cursor", "workers"), fail)

    def come_back(self) -> None:
        self.error_for, self.before_read = lambda _: None, {}

    def count(self, kind: type[Command]) -> int:
        return sum(isinstance(command, kind) for command in self.received)


class SkewedClock(SystemClock):
    """The clock of a machine that has slept for `skew` seconds, while its store has not."""

    skew = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skew


class TroubledApp:
    """An app on a failing store, with an async task that waits for `may_finish` and a thread task.

    Leases are long enough for a busy machine. Where one must expire, the test sets the clock ahead.
    """

    def __init__(self) -> None:
        self.store, self.clock = FailingStore(), SkewedClock()
        self.app = Errandry(store=cast("Store", self.store), clock=self.clock)
        self.may_finish, self.may_commit = asyncio.Event(), threading.Event()
        self.began: list[str] = []
        self.ended: list[str] = []

        @self.app.task
        async def wait(ctx: JobContext) -> str:
            self.began.append(ctx.id)
            try:
                await self.may_finish.wait()
            except asyncio.CancelledError:
                self.ended.append("canceled")
                raise
            return "done"

        @self.app.task
        def answer(ctx: JobContext) -> str:
            self.began.append(ctx.id)
            return "done"

        self.wait, self.answer = wait, answer

    @asynccontextmanager
    async def running_worker(self, **options: Any) -> AsyncIterator[Worker]:
        defaults = {"lease": LEASE, "renew_every": 0.05, "grace": 0.1, "upkeep_every": 0.02}
        worker = Worker(self.app, WorkerOptions(**defaults | options))
        work = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await work

    async def state(self, job_id: str) -> State:
        return (await self.app.client.record(job_id)).state
