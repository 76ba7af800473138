"""Enqueue over the caller's apsw connection to the SQLite file of the store."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from errandry import Errandry
from errandry.errors import InvalidValue, TooLarge
from errandry.store.contract import StoreLimits
from tests.run_worker import event_kinds, running_worker


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Errandry]:
    async with Errandry(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        yield jobs


@pytest.fixture
def db(jobs: Errandry, tmp_path: Path) -> apsw.Connection:
    return apsw.Connection(str(tmp_path / "jobs.db"))


async def test_a_job_exists_after_the_commit_and_never_after_a_rollback(
    jobs: Errandry, db: apsw.Connection
) -> None:
    @jobs.task
    async def send(to: str) -> str:
        return f"sent to {to}"

    async with running_worker(jobs):
        db.execute("BEGIN IMMEDIATE")
        lost = send.sync.bind(db).enqueue("grace")
        db.execute("ROLLBACK")
        db.execute("BEGIN IMMEDIATE")
        job = send.sync.bind(db).enqueue("ada")
        [again] = jobs.sync.bind(db).enqueue_many([send.using(id=job.id).new("ida")])
        db.execute("COMMIT")

        assert await (await jobs.get(job.id)).result(timeout=30) == "sent to ada"
    assert again.id == job.id
    assert await event_kinds(jobs, lost.id) == []
    assert await jobs.totals() == {"default": {"completed": 1, "inserted": 1}}


async def test_a_refused_job_leaves_the_transaction_usable(tmp_path: Path) -> None:
    async with Errandry(f"sqlite:///{tmp_path}/small.db", store_limits=StoreLimits(payload=10)) as jobs:
        db = apsw.Connection(str(tmp_path / "small.db"))
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(TooLarge):
            jobs.sync.bind(db).enqueue("send", {"to": "x" * 100})
        jobs.sync.bind(db).enqueue("send")
        db.execute("COMMIT")
        assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_connections_that_cannot_be_used(jobs: Errandry, db: apsw.Connection, tmp_path: Path) -> None:
    for connection, why in (
        (db, "has no open transaction: execute BEGIN IMMEDIATE first"),
        (apsw.Connection(str(tmp_path / "other.db")), "leads to another file: open .*jobs.db"),
        (apsw.Connection(":memory:"), "leads to another file"),
    ):
        with pytest.raises(InvalidValue, match=why):
            jobs.sync.bind(connection).enqueue("send")
    with (
        closing(sqlite3.connect(tmp_path / "third.db")) as third,
        pytest.raises(InvalidValue, match=r"sqlite3\.Connection.*takes an apsw.Connection"),
    ):
        jobs.bind(third)
    with pytest.raises(InvalidValue, match=r"blocks: bind it with jobs\.sync\.bind"):
        await jobs.bind(db).enqueue("send")


async def test_a_file_without_the_schema_is_refused(tmp_path: Path) -> None:
    jobs, db = Errandry(f"sqlite:///{tmp_path}/new.db"), apsw.Connection(str(tmp_path / "new.db"))
    db.execute("BEGIN IMMEDIATE")

    with pytest.raises(InvalidValue, match="without jobs: run `errandry migrate` first"):
        jobs.sync.bind(db).enqueue("send")
