"""Fixtures for the tests of the suite."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from errandry.clock import Clock
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

MakeStore = Callable[[Clock, StoreLimits], Awaitable[Store]]
"""Opens a new, empty store. The fixture that provides this function closes the stores it opened."""


class Fixtures:
    """A store, its clock, and jobs for it. After each test the counters of the store must equal a recount."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest_asyncio.fixture
    async def open_store(self, make_store: MakeStore) -> AsyncIterator[MakeStore]:
        opened: list[Store] = []

        async def make(clock: Clock, limits: StoreLimits) -> Store:
            opened.append(await make_store(clock, limits))
            return opened[-1]

        yield make
        for store in opened:
            await requests.check_counters(store)
            await requests.run_upkeep(store)
            await requests.check_counters(store)

    @pytest_asyncio.fixture
    async def store(self, open_store: MakeStore, clock: FakeClock) -> Store:
        return await open_store(clock, StoreLimits())

    @pytest.fixture
    def given(self, store: Store) -> Given:
        return Given(store)
