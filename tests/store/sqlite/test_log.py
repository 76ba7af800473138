"""The write-ahead log of the SQLite store."""

import asyncio
import os
from pathlib import Path

import apsw
import pytest

from errandry.core.answer import Inserted
from errandry.errors import (
    StoreRefused,
)
from errandry.store.sqlite import driver, file, health
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.conformance import requests
from tests.store.sqlite.stores import (
    job_ids,
    new_job,
    open_store,
)


class TestLog:
    """Checkpoints copy the write-ahead log into the database while passes go on."""

    @pytest.fixture(autouse=True)
    def short_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "CHECKPOINT_PAGES", 40)

    async def test_the_log_restarts_and_no_job_is_lost(self, path: Path) -> None:
        longest = restarts = 0
        async with open_store(path) as store:
            store.writer.pragma(
                "journal_size_limit", 0
            )  # cut the file when the log restarts, so that its size shows it
            written = set[str]()
            async with asyncio.timeout(60):
                while restarts < 5:
                    before = log_size(path)
                    await insert_jobs(store, written, 1)
                    restarts += log_size(path) < before
                    longest = max(longest, log_size(path))
            assert await job_ids(store) == written

        assert longest < 40 * 4_096 * 20
        assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"

    async def test_the_log_grows_only_while_a_reader_holds_a_snapshot(self, path: Path) -> None:
        async with open_store(path) as store:
            store.writer.pragma("journal_size_limit", 0)
            written = set[str]()
            await insert_jobs(store, written, 1)
            reader = apsw.Connection(str(path))
            reader.execute("BEGIN")
            snapshot = reader.execute("SELECT count(*) FROM live").fetchall()
            await insert_jobs(store, written, 60)
            assert reader.execute("SELECT count(*) FROM live").fetchall() == snapshot
            grown_size = log_size(path)
            assert grown_size > 40 * 4_096
            reader.close()

            async with asyncio.timeout(60):
                while log_size(path) >= grown_size:
                    await insert_jobs(store, written, 1)
            assert await job_ids(store) == written

    async def test_the_log_shrinks_after_a_long_reader(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "LOG_SIZE_KEPT", 80 * 4_096)
        async with open_store(path) as store:
            written = set[str]()
            await insert_jobs(store, written, 1)
            reader = apsw.Connection(str(path))
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM live").fetchall()
            while log_size(path) <= 160 * 4_096:
                await insert_jobs(store, written, 1)
            reader.close()

            async with asyncio.timeout(60):
                while log_size(path) > 80 * 4_096:
                    await insert_jobs(store, written, 1)
            assert await job_ids(store) == written

    def test_the_log_keeps_more_than_it_usually_needs(self) -> None:
        assert file.CHECKPOINT_PAGES * 4_096 < file.LOG_SIZE_KEPT < health.LOG_SIZE_MAX

    async def test_passes_go_on_when_the_reading_thread_has_ended(self, path: Path) -> None:
        async with open_store(path) as store:
            assert store._open is not None
            store._open.thread.shutdown()
            for number in range(60):
                assert await requests.insert(store, new_job(f"job-{number}")) == Inserted((f"job-{number}",))
        async with open_store(path) as store:
            assert len(await job_ids(store)) == 60

    async def test_passes_go_on_when_the_log_cannot_be_copied(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(_self: file.DatabaseFile) -> apsw.Connection:
            raise StoreRefused(str(path), "no more files may be open")

        monkeypatch.setattr(file.DatabaseFile, "reader", refused)
        async with open_store(path) as store:
            written = set[str]()
            await insert_jobs(store, written, 60)
            monkeypatch.undo()
            assert await job_ids(store) == written


async def insert_jobs(store: SqliteStore, written: set[str], passes: int) -> None:
    """Insert one job per pass, and add their ids to `written`."""
    for number in range(len(written), len(written) + passes):
        await requests.insert(store, new_job(f"job-{number}"))
        written.add(f"job-{number}")


def log_size(path: Path) -> int:
    return os.path.getsize(f"{path}-wal")
