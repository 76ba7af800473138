"""The memory store: the reference implementation of the contract. Nothing survives the process.

Tests can inject latency and failures, to see what a program does when its store is slow or unavailable.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from errandry.clock import Clock
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.errors import ErrandryError, InvalidValue, StoreClosed
from errandry.store.contract import Binding, StoreLimits
from errandry.store.execute.apply import apply
from errandry.store.health import Finding, Grade
from errandry.store.memory.tables import MemoryTables
from errandry.store.table_store import TableStore, command_failed
from errandry.store.tables.protocol import Tables

T = TypeVar("T")


class MemoryStore(TableStore):
    """The whole contract on plain dictionaries.

    `latency` delays each commit, in seconds. `fail_before` and `fail_after` are errors that the next commits
    raise, one each: before anything is written, or after everything is.
    """

    def __init__(self, clock: Clock | None = None, limits: StoreLimits | None = None) -> None:
        super().__init__(clock, limits)
        self.tables = MemoryTables()
        self.latency = 0.0
        self.fail_before: list[ErrandryError] = []
        self.fail_after: list[ErrandryError] = []
        self._closed = False

    @property
    def identity(self) -> str:
        return self.tables.identity

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self.changes.increment()

    async def diagnose(self) -> list[Finding]:
        return [Finding(Grade.NOTE, "durability", "in memory: nothing survives the process")]

    def bind(self, connection: object) -> Binding:
        why = "a store in memory has no transactions to join: use sqlite: or postgresql:"
        raise InvalidValue("connection", type(connection).__name__, why)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self._closed:
            raise StoreClosed("memory", "the store is closed")
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.fail_before:
            raise self.fail_before.pop(0)
        self.tables.is_dirty = False
        answers = apply(commands, self.tables, self.clock.now(), self.limits, command_failed)
        if self.tables.is_dirty:  # an empty claim changes nothing, and must not wake the worker that sent it
            self.changes.increment()
        if self.fail_after:
            raise self.fail_after.pop(0)
        return answers

    async def read(self, reader: Callable[[Tables, float], T]) -> T:
        if self._closed:
            raise StoreClosed("memory", "the store is closed")
        return reader(self.tables, self.clock.now())
