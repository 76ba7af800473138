"""Fixtures of the fault tests: a store, and processes around it."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from errandry.event_loop import ASYNCIO, LOOP_VARIABLE
from tests.faults.scene import Scene
from tests.faults.troubled import TroubledApp
from tests.machine_load import MachineLoad
from tests.store.server import server

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda folder: server().new_url(),
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


@pytest.fixture(autouse=True)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of the processes: that of asyncio, except in tests that are marked with `BOTH_LOOPS`."""
    monkeypatch.setenv(LOOP_VARIABLE, getattr(request, "param", ASYNCIO))


@pytest.fixture
async def scene(url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """A store, an app on it, and processes that end with the test."""
    async with Scene(url, tmp_path) as scene:
        yield scene


@pytest.fixture
def load() -> Iterator[MachineLoad]:
    """The load of the machine since the test began."""
    with MachineLoad() as load:
        yield load


@pytest.fixture
async def troubled() -> AsyncIterator[TroubledApp]:
    """An app on a store in memory that fails on demand."""
    troubled = TroubledApp()
    async with troubled.app:
        yield troubled
