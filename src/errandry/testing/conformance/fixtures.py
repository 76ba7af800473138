"""What every test of the suite may ask for."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from errandry.clock import Clock
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

MakeStore = Callable[[Clock, StoreLimits], Awaitable[Store]]
"""Opens a new, empty store; the fixture that gives it closes them all."""


class Fixtures:
    """A store, its clock, and jobs for it. Whatever a test did, the counters must add up after it."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest_asyncio.fixture
    async def open_store(self, make_store: MakeStore) -> AsyncIterator[MakeStore]:
        opened: list[Store] = []

        async def make(clock: Clock, bounds: StoreLimits) -> Store:
            opened.append(await make_store(clock, bounds))
            return opened[-1]

        yield make
        for store in opened:
            await requests.conserved(store)
            await requests.upkeep(store)
            await requests.conserved(store)

    @pytest_asyncio.fixture
    async def store(self, open_store: MakeStore, clock: FakeClock) -> Store:
        return await open_store(clock, StoreLimits())

    @pytest.fixture
    def given(self, store: Store) -> Given:
        return Given(store)
