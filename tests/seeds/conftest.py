"""The stores on which the pages of the seeds are replayed, and their clock."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from errandry.clock import Clock
from errandry.store.contract import Store
from errandry.store.memory.driver import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from tests.store.server import reuse_sessions, server

STORES: dict[str, Callable[[Path, Clock, ExitStack], Store]] = {
    "memory": lambda folder, clock, stack: MemoryStore(clock),
    "sqlite": lambda folder, clock, stack: SqliteStore(folder / "jobs.db", clock, durability="process"),
    "postgres": lambda folder, clock, stack: store_at(stack.enter_context(server().lend_url()), clock),
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    with reuse_sessions(), ExitStack() as stack:
        store = STORES[request.param](tmp_path, clock, stack)
        await store.open()
        yield store
        await store.close()
