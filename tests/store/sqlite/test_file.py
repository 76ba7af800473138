"""The file of the SQLite store: closed and opened again, opened twice, its durability."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from errandry.core.answer import CANCEL, LossCause, Lost, Renewed
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    Ref,
    RemoveJobs,
    Renew,
    Upkeep,
)
from errandry.errors import (
    InvalidCursor,
    InvalidValue,
    StoreClosed,
    StoreRefused,
)
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given
from tests.store.sqlite.stores import (
    job_ids,
    new_job,
    open_store,
)


class TestReopening:
    async def test_a_reopened_store_has_all_jobs_events_and_claims(self, path: Path) -> None:
        clock = FakeClock()
        async with open_store(path, clock=clock) as store:
            given = Given(store)
            held = await given.running(max_attempts=2)
            await given.completed()
            await given.failed()
            await given.removed()
            before, head = await requests.snapshot(store), await store.latest_cursor()
            page = await store.list(limit=1)

        async with open_store(path, clock=clock) as store:
            assert await requests.snapshot(store) == before
            assert (await store.events(head)).entries == ()
            rest = await store.list(cursor=page.cursor, limit=50)
            assert len(page.jobs + rest.jobs) == 3
            clock.advance(60)
            await requests.run_upkeep(store)
            clock.advance(3_600)
            [claimed] = await requests.claim(store)
            assert (claimed.id, claimed.seq) == (held.id, held.seq)
            assert claimed.fence > held.fence
            assert await requests.settle(store, held, CompleteOutcome()) == Lost(LossCause.OTHER_FENCE)
            assert (await store.events(head)).entries[0].event.job == held.id
            await requests.check_counters(store)

    async def test_a_cursor_of_another_file_is_refused(self, tmp_path: Path, path: Path) -> None:
        async with open_store(path) as store, open_store(tmp_path / "other.db") as other:
            for opened in (store, other):
                await requests.insert(opened, new_job("a"), new_job("b"))
            page = await store.list(limit=1)

            with pytest.raises(InvalidCursor, match="another store"):
                await other.list(cursor=page.cursor)
            with pytest.raises(InvalidCursor, match="another store"):
                await other.events(await store.latest_cursor())

    def test_a_relative_path_in_a_deleted_folder_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()

        with pytest.raises(InvalidValue, match=r"path='jobs\.db': is relative .* which was deleted: give"):
            SqliteStore("jobs.db")

    async def test_open_and_close_may_be_repeated(self, path: Path) -> None:
        store = SqliteStore(path)
        with pytest.raises(StoreClosed, match="not open"):
            await store.counts()
        await store.open()
        await requests.insert(store, new_job("a"))
        await store.open()
        assert await job_ids(store) == {"a"}
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed, match="not open"):
            await store.commit([Upkeep()])
        assert {file.name for file in path.parent.iterdir()} == {"jobs.db", "jobs.db-next", "jobs.db-turn"}

    async def test_a_refused_store_can_be_opened_later(self, path: Path) -> None:
        store = SqliteStore(path.parent / "folder" / "jobs.db")
        with pytest.raises(StoreRefused):
            await store.open()
        (path.parent / "folder").mkdir()

        await store.open()
        await store.close()


class TestTwoStores:
    """Two stores on one file are two processes to SQLite."""

    async def test_each_job_is_claimed_by_one_store(self, path: Path) -> None:
        async with open_store(path) as first, open_store(path) as second:
            for n in range(20):
                await requests.insert((first, second)[n % 2], new_job(f"job-{n}"))
            claimed = []
            for n in range(10):
                claimed += await requests.claim_ids((first, second)[n % 2], limit=2)

            assert claimed == [f"job-{n}" for n in range(20)]
            for store in (first, second):
                await requests.check_counters(store)

    async def test_changes_by_the_other_store_count_for_the_holder_of_a_job(self, path: Path) -> None:
        clock = FakeClock()
        async with open_store(path, clock=clock) as first, open_store(path, clock=clock) as second:
            given = Given(first)
            canceled = await given.running()
            removed = await given.running()
            expired = await given.running(lease=10)
            done = await given.running()
            await second.commit([CancelJobs(ids=(canceled.id,)), RemoveJobs(ids=(removed.id,), force=True)])
            await requests.settle(second, done, CompleteOutcome('"by the second store"'))
            clock.advance(11)
            await requests.run_upkeep(second)
            clock.advance(15)

            refs = tuple(Ref(job.id, job.fence) for job in (canceled, removed, expired, done))
            answers = await first.commit([Renew(refs)])

            assert answers == [
                Renewed(
                    (
                        CANCEL,
                        Lost(LossCause.NOT_HELD),
                        Lost(LossCause.NOT_HELD),
                        Lost(LossCause.NOT_HELD),
                    )
                )
            ]
            assert await requests.settle(first, expired, CompleteOutcome()) == Lost(LossCause.NOT_HELD)
            [stored] = await first.get([done.id])
            assert stored is not None
            assert stored.result == '"by the second store"'

    async def test_both_stores_number_their_jobs_without_a_clash(self, path: Path) -> None:
        async with open_store(path) as first, open_store(path) as second:
            for n in range(10):
                await requests.insert((first, second)[n % 2], new_job(f"job-{n}"))

            jobs = await requests.list_jobs(first)

        assert [job.id for job in sorted(jobs, key=lambda job: job.seq)] == [f"job-{n}" for n in range(10)]


class TestDurability:
    def test_the_library_has_no_wal_reset_bug(self) -> None:
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))

        assert version >= (3, 51, 3)
        assert version != (3, 52, 0)

    @pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
    async def test_the_durability_option_sets_the_synchronous_pragma(
        self, path: Path, durability: str, synchronous: int
    ) -> None:
        async with open_store(path, durability=durability) as store:
            assert store.writer.pragma("synchronous") == synchronous
            assert store.writer.pragma("journal_mode") == "wal"

    async def test_the_default_survives_a_power_cut(self, path: Path) -> None:
        async with open_store(path) as store:
            assert store.writer.pragma("synchronous") == 2

    @pytest.mark.parametrize("durability", ["", "full", "POWER", None, 2])
    def test_an_unknown_durability_is_refused(self, path: Path, durability: Any) -> None:
        with pytest.raises(InvalidValue, match=r"durability=.*: must be one of power, process"):
            SqliteStore(path, durability=durability)
