"""Stores, clocks and commands for the tests of the committer and the engine.

The committer runs on the test's own loop, with a memory store and a clock that stands still.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from errandry.core.answer import WRITTEN, Answer
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    Insert,
    Note,
    Ref,
    Renew,
    Settle,
)
from errandry.errors import StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.committer import Committer
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from tests.new_jobs import insert


class RecordingStore(MemoryStore):
    """A memory store that records its passes, and that a test can block inside `commit`."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.passes: list[list[Command]] = []
        self.entered = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()

    def block(self) -> None:
        self._gate.clear()
        self.entered.clear()

    def release(self) -> None:
        self._gate.set()

    async def next_pass(self) -> None:
        """Let the current pass end, and block the next one."""
        self.release()
        await asyncio.sleep(0)
        self.block()
        await self.entered.wait()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.passes.append(list(commands))
        self.entered.set()
        await self._gate.wait()
        return await super().commit(commands)


class ScriptedStore(RecordingStore):
    """Answers each commit with the next entry of a script, and with WRITTEN after its end."""

    def __init__(self, *script: BaseException | list[Answer]) -> None:
        super().__init__()
        self.script = list(script)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.passes.append(list(commands))
        self.entered.set()
        await self._gate.wait()
        written: list[Answer] = [WRITTEN] * len(commands)
        step = self.script.pop(0) if self.script else written
        if isinstance(step, BaseException):
            raise step
        return step


class FakeSleep:
    """A sleep that advances the fake clock instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.sleeps: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)


def claim(worker: str = "w", limit: int = 1) -> Claim:
    return Claim(worker=worker, nonce="n", limit=limit)


def settle(job: str, result: str | None = None) -> Settle:
    return Settle(Ref(job, 1), CompleteOutcome(result))


def renew(*jobs: str) -> Renew:
    return Renew(tuple(Ref(job, 1) for job in jobs))


def command_keys(command: Command) -> set[Any]:
    """The keys of a command, computed independently of the backlog."""
    match command:
        case Insert():
            return {job.id for job in command.jobs}
        case Settle() | Note():
            return {command.ref.job}
        case Renew():
            return {ref.job for ref in command.refs}
        case CancelJobs():
            return set(command.ids)
        case Claim():
            return {("worker", command.worker)}
        case _:
            return {type(command)}


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    """Wait for all calls; return their results or errors."""
    return await asyncio.gather(*calls, return_exceptions=True)


async def submit_behind(
    committer: Committer, store: RecordingStore, *commands: Command, first: Command | None = None
) -> list[asyncio.Task[Answer]]:
    """Submit `commands` while the store is blocked in a pass with `first`. It is still blocked on return."""
    store.block()
    tasks = [asyncio.create_task(committer.submit(first or insert("first")))]
    await store.entered.wait()
    tasks += [asyncio.create_task(committer.submit(command)) for command in commands]
    for _ in range(3):  # submitted, handed in
        await asyncio.sleep(0)
    return tasks


class ClaimSource:
    """A source of piggyback claims: one claim for one job with every pass."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Answer]] = []

    def __call__(self) -> list[tuple[Claim, asyncio.Future[Answer]]]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return [(Claim(worker="w", nonce=f"nonce-{len(self.answers)}"), self.answers[-1])]


async def passes_behind(limits: WriteLimits, *commands: Command) -> list[list[Command]]:
    """Return the passes of these commands when all of them wait together."""
    store = RecordingStore()
    committer = Committer(store, limits)
    tasks = await submit_behind(committer, store, *commands)
    store.release()
    await outcomes(*tasks)
    return store.passes[1:]


REJECTED: Answer = StoreUnavailable("s", "locked")
