"""The stores the seeds' pages are replayed on, and the clock that moves them. A store joins with one line."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from errandry.clock import Clock
from errandry.store.contract import Store
from errandry.store.memory import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.clock import FakeClock

STORES: dict[str, Callable[[Path, Clock], Store]] = {
    "memory": lambda folder, clock: MemoryStore(clock),
    "sqlite": lambda folder, clock: SqliteStore(folder / "jobs.db", clock),
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[request.param](tmp_path, clock)
    await store.open()
    yield store
    await store.close()
