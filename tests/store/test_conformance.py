"""Run the conformance suite on memory, SQLite and PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from errandry.clock import Clock
from errandry.store.contract import Store, StoreLimits
from errandry.store.memory.driver import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from errandry.testing.conformance import Conformance, MakeStore
from tests.store.server import reuse_sessions, server

STORES: Mapping[str, Callable[[Path, Clock, StoreLimits, ExitStack], Store]] = {
    "memory": lambda _, clock, limits, stack: MemoryStore(clock, limits),
    "sqlite": lambda path, clock, limits, stack: SqliteStore(path, clock, limits, durability="process"),
    "postgres": lambda _, clock, limits, stack: store_at(
        stack.enter_context(server().lend_url()), clock, limits
    ),
}


def _lend_url(stack: ExitStack) -> str:
    return stack.enter_context(server().lend_url())


@pytest.fixture(params=list(STORES))
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    opened: list[Store] = []
    with reuse_sessions(), ExitStack() as stack:

        async def make(clock: Clock, limits: StoreLimits) -> Store:
            store = STORES[request.param](tmp_path / f"{len(opened)}.db", clock, limits, stack)
            await store.open()
            opened.append(store)
            return store

        yield make
        for store in opened:
            await store.close()


class TestConformance(Conformance):
    """The whole suite, on each store."""


def test_no_two_areas_of_the_suite_have_a_test_of_the_same_name() -> None:
    areas = [area for area in Conformance.__mro__ if area.__module__.startswith("errandry.testing")]
    tests = [name for area in areas for name in vars(area) if name.startswith("test")]

    assert sorted(tests) == sorted(set(tests))
    assert len(tests) > 100


@pytest.mark.parametrize("name", ["test_a_new_store_is_empty", "store", "pytestmark"])
def test_a_store_cannot_change_the_suite(name: str) -> None:
    with pytest.raises(TypeError, match=f"changes {name}"):
        type("TestLenient", (Conformance,), {name: None})
