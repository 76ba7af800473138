"""New jobs, inserts and open stores for the tests of this folder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from errandry.clock import Clock
from errandry.core.command import Insert
from errandry.core.job import NewJob
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at


def new_job(job_id: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": job_id, "task": "task", "payload": "{}"} | fields))


def insert(*ids: str, **fields: Any) -> Insert:
    """Insert jobs with these ids and the same fields."""
    return Insert(tuple(new_job(job_id, **fields) for job_id in ids))


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
