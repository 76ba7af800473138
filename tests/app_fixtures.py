"""Apps as fixtures: in memory on a fake clock, in memory on the real clock, on PostgreSQL; all stores."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.clock import Clock
from errandry.store.contract import Store
from errandry.store.memory.driver import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from errandry.testing import FakeClock
from tests.store.server import server

STORES: dict[str, Callable[[Path, Clock, ExitStack], Store]] = {
    "memory": lambda folder, clock, stack: MemoryStore(clock),
    "sqlite": lambda folder, clock, stack: SqliteStore(folder / "jobs.db", clock, durability="process"),
    "postgres": lambda folder, clock, stack: store_at(stack.enter_context(server().lend_url()), clock),
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def jobs(clock: FakeClock) -> AsyncIterator[Errandry]:
    """In memory, on a fake clock. No worker runs: a test drains the app or moves the clock."""
    async with Errandry("memory:", clock=clock) as jobs:
        yield jobs


@pytest.fixture
async def live() -> AsyncIterator[Errandry]:
    """In memory, on this host's clock, for tests with a worker."""
    async with Errandry("memory:") as jobs:
        yield jobs


@pytest.fixture
async def shop() -> AsyncIterator[Errandry]:
    """On PostgreSQL, for tests with a connection of the caller."""
    with server().lend_url() as url:
        async with Errandry(url) as shop:
            yield shop
