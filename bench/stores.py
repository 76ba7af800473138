"""Empty stores for measurements: a new SQLite file, and a private PostgreSQL server that syncs commits."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers.server import SYNCED_SETTINGS
from tests.store.server import Server

STORES = ("sqlite", "postgres")


@contextmanager
def empty_stores(names: Iterable[str] = STORES) -> Iterator[dict[str, str]]:
    """The URLs of empty stores, which are removed at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        factories = {
            "sqlite": lambda: f"sqlite:///{folder.absolute()}/jobs.db",
            "postgres": lambda: _server(stack),
        }
        yield {name: factories[name]() for name in names}


def _server(stack: ExitStack) -> str:
    server = Server(**SYNCED_SETTINGS)
    stack.callback(server.remove)
    return server.new_url()
