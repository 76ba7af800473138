"""SQLite files that are damaged, foreign or replaced while they are open."""

import json
import os
import random
import shutil
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from errandry.core.answer import Inserted
from errandry.core.command import (
    CancelJobs,
    Insert,
)
from errandry.errors import (
    ForeignDatabase,
    SchemaTooNew,
    StoreCorrupt,
    StoreReplaced,
)
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given
from tests.store.sqlite.stores import (
    SIDES,
    connection,
    file_contents,
    job_ids,
    new_job,
    open_error,
    open_store,
)


class TestDamage:
    @pytest.mark.parametrize("size", [2, 99, 100, 512, 4_096, 100_000])
    async def test_a_file_that_is_no_database_is_refused_and_not_changed(
        self, tmp_path: Path, path: Path, size: int
    ) -> None:
        path.write_bytes(random.Random(size).randbytes(size))
        before = file_contents(tmp_path)

        error = await open_error(path)

        assert type(error) is StoreCorrupt
        assert str(path) in str(error)
        assert "restore a backup or move it away" in str(error)
        assert file_contents(tmp_path) == before

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    async def test_a_truncated_file_is_refused_and_not_changed(
        self, tmp_path: Path, path: Path, share: float
    ) -> None:
        async with open_store(path) as store:
            await requests.insert(store, *(new_job(f"job-{n}") for n in range(100)))
        os.truncate(path, int(path.stat().st_size * share))
        before = file_contents(tmp_path)

        error = await open_error(path)

        assert type(error) is StoreCorrupt
        assert file_contents(tmp_path) == before

    @pytest.mark.slow("opens the file once for each of its pages")
    @pytest.mark.parametrize("fill", ["zeros", "noise", "text"])
    async def test_a_damaged_page_raises_only_the_error_for_damage(self, path: Path, fill: str) -> None:
        clock = FakeClock()
        async with open_store(path, clock=clock, durability="process") as store:
            given = Given(store)
            for n in range(4):
                await given.completed(payload=json.dumps("x" * 1_500 * n))
                await given.failed(tags=("a",))
                await given.running(queue=f"queue-{n}")
                await given.scheduled(payload=json.dumps("y" * 1_500 * n))
            size = store.writer.pragma("page_size")
        sound = path.read_bytes()
        damaged_pages_met = 0
        for start in range(0, len(sound), size):
            noise = random.Random(start).randbytes(size)
            page = {"zeros": bytes(size), "noise": noise, "text": b'"errandry"' * size}[fill][:size]
            path.write_bytes(sound[:start] + page + sound[start + size :])
            damaged_pages_met += await meets_damage(path, clock)

        assert damaged_pages_met > len(sound) / size / 3

    async def test_a_payload_that_is_no_text_is_damage(self, path: Path) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("bad"), new_job("good"))
            store.writer.execute("UPDATE live SET payload = CAST(x'ff80' AS TEXT) WHERE id = 'bad'")
            store.writer.execute("UPDATE live SET tags = 'no JSON' WHERE id = 'good'")

            for name in ("bad", "good"):
                with pytest.raises(StoreCorrupt, match="not a sound database"):
                    await store.get([name])
            answers = await store.commit([CancelJobs(ids=("bad",)), Insert((new_job("new"),))])

        assert type(answers[0]) is StoreCorrupt
        assert answers[1] == Inserted(("new",))


async def meets_damage(path: Path, clock: FakeClock) -> bool:
    """Use all of a store; True if StoreCorrupt was raised. Other errors are not caught."""
    errors = 0
    with suppress(StoreCorrupt):
        async with open_store(path, clock=clock, durability="process") as store:
            uses: list[Coroutine[Any, Any, object]] = [
                requests.list_jobs(store),
                store.counts(),
                requests.read_events(store),
                store.queues(),
                requests.claim(store, limit=10),
                requests.run_upkeep(store),
                requests.insert(store, new_job("new", queue="new")),
            ]
            for use in uses:
                try:
                    await use
                except StoreCorrupt:
                    errors += 1
            return errors > 0
    return True


class TestForeign:
    @pytest.mark.parametrize(
        "statements",
        [
            "CREATE TABLE live (x); INSERT INTO live VALUES (1)",
            "CREATE VIEW v AS SELECT 1",
            "PRAGMA application_id = 7",
            "PRAGMA user_version = 1",
            "PRAGMA journal_mode = wal; CREATE TABLE t (x)",
        ],
    )
    async def test_a_file_of_another_program_is_refused_and_not_changed(
        self, tmp_path: Path, path: Path, statements: str
    ) -> None:
        with connection(path) as db:
            db.execute(statements).fetchall()
        before = file_contents(tmp_path)

        error = await open_error(path)

        assert type(error) is ForeignDatabase
        assert str(error) == f"{path}: holds another program's data: give Errandry a file of its own"
        assert file_contents(tmp_path) == before

    async def test_the_log_that_a_crash_of_another_program_left_is_not_changed(
        self, tmp_path: Path, path: Path
    ) -> None:
        theirs = tmp_path / "theirs.db"
        with connection(theirs) as db:
            db.execute("PRAGMA journal_mode = wal; CREATE TABLE t (x)").fetchall()
            for side in ("", "-wal"):
                shutil.copy(f"{theirs}{side}", f"{path}{side}")
        before = path.read_bytes(), Path(f"{path}-wal").read_bytes()

        assert type(await open_error(path)) is ForeignDatabase

        assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before

    async def test_a_newer_schema_is_refused_and_not_changed(self, tmp_path: Path, path: Path) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
        with connection(path) as db:
            db.pragma("user_version", 9_999)
        before = file_contents(tmp_path)

        error = await open_error(path)

        assert type(error) is SchemaTooNew
        assert "has schema 9999" in str(error)
        assert "upgrade Errandry" in str(error)
        assert file_contents(tmp_path) == before

    async def test_an_empty_file_becomes_a_store(self, path: Path) -> None:
        path.touch()

        async with open_store(path) as store:
            assert await requests.insert(store, new_job("a")) == Inserted(("a",))


class TestReplaced:
    @pytest.mark.parametrize("side", ["", "-wal", "-shm"])
    async def test_a_deleted_file_is_noticed_by_the_next_pass_and_the_next_read(
        self, path: Path, side: str
    ) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
            os.unlink(f"{path}{side}")

            for use in (requests.insert(store, new_job("b")), store.get(["a"])):
                with pytest.raises(StoreReplaced, match=rf"jobs\.db{side} was deleted"):
                    await use

    @pytest.mark.parametrize("side", ["", "-wal", "-shm"])
    async def test_a_replaced_file_is_noticed_by_the_next_pass_and_the_next_read(
        self, path: Path, side: str
    ) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
            os.rename(f"{path}{side}", f"{path}.old")
            shutil.copy(f"{path}.old", f"{path}{side}")

            for use in (requests.insert(store, new_job("b")), store.get(["a"])):
                with pytest.raises(StoreReplaced, match="another file was put in its place"):
                    await use

    async def test_a_file_that_replaced_another_keeps_all_its_jobs(self, path: Path) -> None:
        async with open_store(path) as old:
            await requests.insert(old, new_job("old"))
            for side in SIDES:
                os.unlink(f"{path}{side}")
            async with open_store(path) as new:
                await requests.insert(new, new_job("new"))

                for use in (requests.insert(old, new_job("late")), old.counts()):
                    with pytest.raises(StoreReplaced, match="another file was put in its place"):
                        await use
                await old.close()

                await requests.insert(new, new_job("newer"))
                assert await job_ids(new) == {"new", "newer"}
                crashed = path.with_name("crashed.db")
                for side in ("", "-wal"):
                    shutil.copy(f"{path}{side}", f"{crashed}{side}")
            async with open_store(crashed) as recovered:
                assert await job_ids(recovered) == {"new", "newer"}

    async def test_a_store_that_is_opened_again_uses_the_new_file(self, tmp_path: Path, path: Path) -> None:
        async with open_store(tmp_path / "other.db") as other:
            await requests.insert(other, new_job("other"))
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
            os.replace(tmp_path / "other.db", path)
            with pytest.raises(StoreReplaced):
                await requests.insert(store, new_job("b"))
            os.unlink(f"{path}-wal")

            await store.close()
            await store.open()

            assert await job_ids(store) == {"other"}
