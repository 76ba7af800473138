"""Migrations of the SQLite schema.

Run as a program, this module prints what `schema.sql` should contain.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest

from errandry.core.answer import Inserted
from errandry.errors import (
    SchemaTooNew,
)
from errandry.store.sqlite import file
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.conformance import requests
from tests.store.sqlite.processes import run_program
from tests.store.sqlite.stores import (
    job_ids,
    new_job,
    open_error,
    open_store,
    read_schema,
)

SCHEMA = Path(__file__).with_name("schema.sql")


class TestMigrations:
    async def test_the_schema_is_the_one_in_the_dump(self, path: Path) -> None:
        async with open_store(path):
            pass

        assert read_schema(path) == SCHEMA.read_text(), (
            "the schema has changed. If that is intended: python -m tests.store.sqlite.test_migrations"
            f" > {SCHEMA.relative_to(Path.cwd()) if SCHEMA.is_relative_to(Path.cwd()) else SCHEMA}"
        )

    async def test_each_migration_runs_once(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
            before = await requests.snapshot(store)
        number, *_ = file._MIGRATIONS[-1]
        more = [(number + 1, "one", "CREATE TABLE one (x)"), (number + 2, "two", "CREATE TABLE two (x)")]
        with monkeypatch.context() as newer:
            newer.setattr(file, "_MIGRATIONS", file._MIGRATIONS + more)
            for _ in range(2):
                async with open_store(path) as store:
                    assert await requests.snapshot(store) == before
                    applied = store.writer.execute("SELECT number, name FROM migrations").fetchall()
                    assert applied[-2:] == [(number + 1, "one"), (number + 2, "two")]
                    assert [number for number, _ in applied] == list(range(1, number + 3))

        assert type(await open_error(path)) is SchemaTooNew

    async def test_a_migration_that_fails_does_not_change_the_file(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
        number, *_ = file._MIGRATIONS[-1]
        before = read_schema(path)
        with monkeypatch.context() as newer:
            bad = (number + 1, "bad", "CREATE TABLE one (x); INSERT INTO nowhere VALUES (1)")
            newer.setattr(file, "_MIGRATIONS", [*file._MIGRATIONS, bad])
            with pytest.raises(apsw.SQLError, match="no such table: nowhere"):
                await SqliteStore(path).open()

        assert read_schema(path) == before
        async with open_store(path) as store:
            assert await job_ids(store) == {"a"}

    @pytest.mark.slow("starts another program")
    @pytest.mark.parametrize("rows", [1, 5_000], ids=["in memory", "already in the log"])
    @pytest.mark.parametrize("is_new", [True, False], ids=["of a new file", "of an old file"])
    async def test_a_migration_that_is_killed_does_not_change_the_file(
        self, path: Path, rows: int, is_new: bool
    ) -> None:
        if not is_new:
            async with open_store(path) as store:
                await requests.insert(store, new_job("a"))

        with pytest.raises(subprocess.CalledProcessError) as killed:
            run_program("die_migrating", path, rows)

        assert killed.value.returncode == -signal.SIGKILL
        async with open_store(path) as store:
            assert await job_ids(store) == (set() if is_new else {"a"})
            assert await requests.insert(store, new_job("b")) == Inserted(("b",))
            assert store.writer.pragma("integrity_check") == "ok"
        assert read_schema(path) == SCHEMA.read_text()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(SqliteStore(f"{folder}/jobs.db").open())
        sys.stdout.write(read_schema(Path(folder) / "jobs.db"))
