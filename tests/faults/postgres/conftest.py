"""Servers these tests may do anything to, and bad lines to them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults.command import children, is_alive
from tests.faults.postgres.proxy import Proxy
from tests.store.server import Server


class Mortal(Server):
    """A server that dies as a machine does when its power goes, and comes back as it was."""

    def __init__(self) -> None:
        # What was committed is in the system's hands then, which survives; only a real power cut needs fsync.
        super().__init__(synchronous_commit="on")

    def kill(self) -> None:
        """`kill -9` of all its processes."""
        assert self._process is not None
        below = children(self._process.pid)
        self.stop(signal.SIGKILL)
        for pid in below:
            with suppress(ProcessLookupError):  # it may have seen its parent die
                os.kill(pid, signal.SIGKILL)
        while any(map(is_alive, below)):
            time.sleep(0.001)

    def schema(self) -> str:
        """The name of one nobody has used."""
        return self.fresh().rpartition("=")[2]


@pytest.fixture(scope="session")
def mortal() -> Iterator[Mortal]:
    """One for all tests of a process: to make one takes longer than to restart it."""
    mortal = Mortal()
    yield mortal
    mortal.remove()


@pytest.fixture
def url(mortal: Mortal) -> str:
    return mortal.fresh()


@pytest.fixture
def proxy(mortal: Mortal) -> Iterator[Proxy]:
    with Proxy(mortal.folder) as proxy:
        yield proxy
