"""The apps of the tests of claimers: on each store, and in memory."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.testing import FakeClock
from tests.app_fixtures import STORES
from tests.store.server import reuse_sessions


@pytest.fixture(params=STORES)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Errandry]:
    """On each store, on a fake clock."""
    with reuse_sessions(), ExitStack() as stack:
        async with Errandry(store=STORES[request.param](tmp_path, clock, stack), clock=clock) as jobs:
            yield jobs


@pytest.fixture
async def memory_jobs(clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry("memory:", clock=clock) as jobs:
        yield jobs
