"""Where the fault tests find their store and their processes. A store joins with a line in `STORES`."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from errandry.event_loop import ASYNCIO, VARIABLE
from tests.faults.scene import Scene
from tests.pace import Pace
from tests.store.server import server

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda folder: server().fresh(),
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORES[request.param](tmp_path)


@pytest.fixture(autouse=True)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop of the processes: asyncio's, but where a test is for `BOTH_LOOPS`."""
    monkeypatch.setenv(VARIABLE, getattr(request, "param", ASYNCIO))


@pytest.fixture
async def scene(url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """A store, an app to look at it, and processes that are gone when the test is over."""
    async with Scene(url, tmp_path) as scene:
        yield scene


@pytest.fixture
def pace() -> Iterator[Pace]:
    """How slow the machine has been since the test began."""
    with Pace() as pace:
        yield pace
