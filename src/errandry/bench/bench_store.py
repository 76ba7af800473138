"""Where a run takes place: a store of its own, or one that is named and holds nobody else's jobs."""

import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from errandry.api.app import Errandry
from errandry.bench.raw_writes import RawWrites, raw_at
from errandry.bench.tasks import declared
from errandry.core.query import quoted
from errandry.core.why import SILENT_AFTER
from errandry.errors import InvalidValue, StoreRefused

PREFIX = "errandry-bench-"
"""What the names of a run's queues begin with, and those of its folders."""
SHOWN = 5
RIGHT = "name an empty store, or leave --url out for one that is made for this"
_PASSWORD = re.compile(r":[^:@/]*@")


class BenchFailed(Exception):
    """The run cannot go on; the text says why."""


class BenchStore(Struct, frozen=True):
    """An open app, a folder for logs, and the raw writes of the store if there are any."""

    url: str
    app: Errandry
    folder: Path
    raw: RawWrites | None

    @property
    def is_shared(self) -> bool:
        """Whether other processes can work on the store."""
        return not self.url.startswith("memory:")

    def queue(self, name: str) -> str:
        return f"{PREFIX}{name}"


@asynccontextmanager
async def place(url: str | None = None) -> AsyncIterator[BenchStore]:
    """A new SQLite file in the current folder, or the store at `url`. Of the run nothing stays behind."""
    here = Path(getattr(declared(url).store, "path", "./")).parent if url else Path.cwd()
    with _folder(here) as name:
        folder = Path(name)
        address = url or f"sqlite:///{folder / 'store.db'}"
        async with declared(address) as app:
            await _must_be_free(app, _PASSWORD.sub(":…@", address))
            await clear(app)
            raw = raw_at(address, app.store, folder)
            try:
                yield BenchStore(address, app, folder, raw)
            finally:
                if raw is not None:
                    raw.close()
                if url is not None:
                    await clear(app)


def _folder(here: Path) -> "tempfile.TemporaryDirectory[str]":
    """Beside the store, so that raw writes go to the same disk."""
    try:
        return tempfile.TemporaryDirectory(prefix=PREFIX, dir=here)
    except OSError as error:
        raise StoreRefused(str(here), f"no folder can be made in it for the run: {error.strerror}") from None


async def clear(app: Errandry) -> None:
    """Remove what runs have left in the store, this one or one that was killed."""
    for queue in await app.counts():
        if queue.startswith(PREFIX):
            await app.remove(query=f"queue:{quoted(queue)}", force=True)


async def _must_be_free(app: Errandry, url: str) -> None:
    """A run beside somebody's jobs would measure them too, and somebody's workers would take its own."""
    counts = {queue: sum(states.values()) for queue, states in (await app.counts()).items()}
    others = {queue: count for queue, count in counts.items() if count and not queue.startswith(PREFIX)}
    if others:
        some = ", ".join(list(others)[:SHOWN]) + ("…" if len(others) > SHOWN else "")
        why = f"holds jobs already ({sum(others.values()):,} in {some}): {RIGHT}"
        raise InvalidValue("url", url, why)
    now = app.clock.time()
    alive = [info.beat.worker for info in await app.workers() if now - info.seen_at <= SILENT_AFTER]
    if alive:
        why = f"a worker is at work there ({alive[0]}): stop it; or {RIGHT}"
        raise InvalidValue("url", url, why)
