"""The store of a benchmark run: a new SQLite file, or a given store that holds no other jobs."""

import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from msgspec import Struct

from errandry.api.app import Errandry
from errandry.bench.raw_writes import RawWrites, raw_writes_for
from errandry.bench.tasks import declare_app
from errandry.core.query import quote
from errandry.core.why import SILENT_AFTER
from errandry.errors import InvalidValue, StoreRefused

PREFIX = "errandry-bench-"
"""Prefix of the names of a run's queues and folders."""
QUEUES_SHOWN = 5
ADVICE = "name an empty store, or leave out --url for a new one"
_PASSWORD = re.compile(r":[^:@/]*@")


class BenchFailed(Exception):
    """The run cannot continue; the text says why."""


class BenchStore(Struct, frozen=True):
    """An open app, a folder for logs, and raw writes to the store if it supports them."""

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
async def open_store(url: str | None = None) -> AsyncIterator[BenchStore]:
    """Open a new SQLite file in the current folder, or the store at `url`; remove everything at the end."""
    parent = Path(getattr(declare_app(url).store, "path", "./")).parent if url else Path.cwd()
    with _temporary_folder(parent) as name:
        folder = Path(name)
        address = url or f"sqlite:///{folder / 'store.db'}"
        async with declare_app(address) as app:
            await _require_unused(app, _PASSWORD.sub(":…@", address))
            await remove_jobs(app)
            raw = raw_writes_for(address, app.store, folder)
            try:
                yield BenchStore(address, app, folder, raw)
            finally:
                if raw is not None:
                    raw.close()
                if url is not None:
                    await remove_jobs(app)


def _temporary_folder(parent: Path) -> "tempfile.TemporaryDirectory[str]":
    """Create a folder beside the store, so that raw writes go to the same disk."""
    try:
        return tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent)
    except OSError as error:
        raise StoreRefused(str(parent), f"cannot create a folder for the run: {error.strerror}") from None


async def remove_jobs(app: Errandry) -> None:
    """Remove the jobs of this run, and of killed runs, from the store."""
    for queue in await app.counts():
        if queue.startswith(PREFIX):
            await app.remove(query=f"queue:{quote(queue)}", force=True)


async def _require_unused(app: Errandry, url: str) -> None:
    """Refuse a store with other jobs, which would be measured too, or with workers, which would claim."""
    counts = {queue: sum(states.values()) for queue, states in (await app.counts()).items()}
    others = {queue: count for queue, count in counts.items() if count and not queue.startswith(PREFIX)}
    if others:
        names = ", ".join(list(others)[:QUEUES_SHOWN]) + ("…" if len(others) > QUEUES_SHOWN else "")
        why = f"already holds jobs ({sum(others.values()):,} in {names}): {ADVICE}"
        raise InvalidValue("url", url, why)
    silent_since = await app.now() - timedelta(seconds=SILENT_AFTER)
    alive = [worker.id for worker in await app.workers.list() if worker.seen_at >= silent_since]
    if alive:
        why = f"the worker {alive[0]} is using it: stop it; or {ADVICE}"
        raise InvalidValue("url", url, why)
