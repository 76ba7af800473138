"""A server that tests can stop and kill, and a proxy that disturbs connections to it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults.command import descendants, is_alive
from tests.faults.postgres.proxy import Proxy
from tests.store.server import Server


class Mortal(Server):
    """A server that can be killed like a machine that loses power, and started again."""

    def __init__(self, **settings: str) -> None:
        # A commit then reaches the operating system, which survives; only a real power cut needs fsync.
        super().__init__(synchronous_commit="on", **settings)

    def kill(self) -> None:
        """`kill -9` of all its processes."""
        assert self._process is not None
        below = descendants(self._process.pid)
        self.stop(signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError):  # it may have seen its parent die
                os.kill(pid, signal.SIGKILL)
        while any(map(is_alive, below)):
            time.sleep(0.001)

    def schema(self) -> str:
        """The name of an unused schema."""
        return self.new_url().rpartition("=")[2]


@pytest.fixture(scope="session")
def mortal() -> Iterator[Mortal]:
    """One server for all tests of a process: creating one takes longer than restarting it."""
    mortal = Mortal()
    yield mortal
    mortal.remove()


@pytest.fixture
def url(mortal: Mortal) -> str:
    return mortal.new_url()


@pytest.fixture
def proxy(mortal: Mortal) -> Iterator[Proxy]:
    with Proxy(mortal.folder) as proxy:
        yield proxy
