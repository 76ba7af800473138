"""An app for every test: in memory, on a clock that stands still, or with a worker beside it."""

from collections.abc import AsyncIterator

import pytest

from errandry import Errandry
from errandry.testing import FakeClock
from tests.store.server import server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def jobs(clock: FakeClock) -> AsyncIterator[Errandry]:
    """Nothing happens here unless the test drains it or moves the clock."""
    async with Errandry("memory:", clock=clock) as jobs:
        yield jobs


@pytest.fixture
async def live() -> AsyncIterator[Errandry]:
    """On this host's clock, for tests with a worker."""
    async with Errandry("memory:") as jobs:
        yield jobs


@pytest.fixture
async def shop() -> AsyncIterator[Errandry]:
    """On PostgreSQL, for callers who bring a connection."""
    with server().lent() as url:
        async with Errandry(url) as shop:
            yield shop
