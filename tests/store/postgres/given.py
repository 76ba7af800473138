"""New jobs, inserts and open stores for the tests of this folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from errandry.clock import Clock
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at


@asynccontextmanager
async def opened(url: str, clock: Clock | None = None) -> AsyncIterator[PostgresStore]:
    """A store at `url`, open until the end of the block."""
    store = store_at(url, clock)
    assert isinstance(store, PostgresStore)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]
