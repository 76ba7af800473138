"""The stores on which the pages of the seeds are replayed, and their clock."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from tests.app_fixtures import STORES
from tests.store.server import reuse_sessions


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


@pytest.fixture(params=STORES)
async def app(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Errandry]:
    """An app on each store, for a page that is replayed through the public API."""
    with reuse_sessions(), ExitStack() as stack:
        async with Errandry(store=STORES[request.param](tmp_path, clock, stack), clock=clock) as app:
            yield app
