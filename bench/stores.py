"""Empty stores for figures that every store has: a new file, a private server that syncs its commits."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers.server import SYNCED
from tests.store.server import Server

STORES = ("sqlite", "postgres")


@contextmanager
def empty(names: Iterable[str] = STORES) -> Iterator[dict[str, str]]:
    """Their addresses, while this lasts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        made = {
            "sqlite": lambda: f"sqlite:///{folder.absolute()}/jobs.db",
            "postgres": lambda: _server(stack),
        }
        yield {name: made[name]() for name in names}


def _server(stack: ExitStack) -> str:
    server = Server(**SYNCED)
    stack.callback(server.remove)
    return server.fresh()
