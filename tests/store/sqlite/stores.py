"""Helpers of the SQLite tests: open a store, make jobs, look at the file."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw

from errandry.core.job import NewJob
from errandry.errors import (
    ErrandryError,
)
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.conformance import requests

SIDES = ("", "-wal", "-shm", "-next", "-turn")
"""The suffixes of the files of an open store: database, log, index, the two locks of the turnstile."""


@asynccontextmanager
async def open_store(path: Path | str, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def new_job(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


async def job_ids(store: SqliteStore) -> set[str]:
    return {job.id for job in await requests.list_jobs(store)}


async def open_error(path: Path | str) -> ErrandryError:
    """The error that opening a store at `path` raises."""
    try:
        async with open_store(path):
            pass
    except ErrandryError as error:
        return error
    raise AssertionError(f"{path} could be opened")


def file_contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def big_job(number: int) -> NewJob:
    return new_job(f"big-{number}", payload=json.dumps("x" * 20_000))


@contextmanager
def connection(path: Path | str) -> Iterator[apsw.Connection]:
    """A plain connection to a file, as another program would have."""
    db = apsw.Connection(str(path))
    try:
        yield db
    finally:
        db.close()


def read_schema(path: Path) -> str:
    """The SQL of all tables, indexes and views, without those that SQLite creates for itself."""
    with connection(path) as db:
        statements = db.execute(
            "SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY tbl_name, name"
        ).fetchall()
    return "\n".join(f"{text};\n" for (text,) in statements if "sqlite_" not in str(text))


async def check_integrity(store: SqliteStore) -> None:
    assert store.writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    await requests.check_counters(store)
