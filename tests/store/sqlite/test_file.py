"""The file of the SQLite store: who may use it, what is refused, what it survives.

What every store does is in the conformance suite. Run as a program, this file is the other process of
some tests; `python tests.store.sqlite.test_file.py schema` prints what `schema.sql` should hold.
"""

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from errandry.core.answer import CANCEL, WRITTEN, Claims, Inserted, LossCause, Lost, Renewed
from errandry.core.command import (
    CancelJobs,
    Claim,
    CompleteOutcome,
    Insert,
    Ref,
    RemoveJobs,
    Renew,
    Settle,
    Upkeep,
)
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import (
    CommandFailed,
    ErrandryError,
    ForeignDatabase,
    InvalidCursor,
    InvalidValue,
    SchemaTooNew,
    StoreClosed,
    StoreCorrupt,
    StoreFull,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
)
from errandry.store.sqlite import driver, file
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

NOBODY = 65_534
SIDES = ("", "-wal", "-shm", "-next", "-turn")
SCHEMA = Path(__file__).with_name("schema.sql")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@asynccontextmanager
async def opened(path: Path | str, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def job(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


async def refusal(path: Path | str) -> ErrandryError:
    """The error with which a store at `path` does not open."""
    with pytest.raises(ErrandryError) as raised:
        async with opened(path):
            pass
    return raised.value


async def ids(store: SqliteStore) -> set[str]:
    return {job.id for job in await requests.jobs(store)}


def modes(path: Path) -> set[int]:
    return {os.stat(f"{path}{side}").st_mode & 0o777 for side in SIDES}


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(folder.iterdir()) if one.is_file()}


class TestMode:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
    async def test_only_their_owner_may_use_new_files(self, path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            async with opened(path) as store:
                await requests.insert(store, job("a"))
                found = modes(path)
        finally:
            os.umask(before)

        assert found == {0o600}

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
    async def test_an_existing_file_keeps_its_mode_and_the_others_follow_it(
        self, path: Path, mode: int
    ) -> None:
        path.touch()
        path.chmod(mode)

        async with opened(path) as store:
            await requests.insert(store, job("a"))
            found = modes(path)

        assert found == {mode}

    async def test_files_beside_one_whose_mode_was_changed_follow_it(self, path: Path) -> None:
        async with opened(path):
            pass
        path.chmod(0o660)

        async with opened(path):
            found = modes(path)

        assert found == {0o660}


class TestPath:
    @pytest.mark.parametrize(
        ("name", "kind", "advice"),
        [
            ("missing/jobs.db", StoreRefused, "no such folder: make it first"),
            ("file/jobs.db", StoreRefused, "Not a directory"),
            ("folder", StoreRefused, "not a file: name one"),
            ("link", StoreRefused, "not a file: name one"),
            ("pipe", StoreRefused, "not a file: name one"),
            ("nul\0", InvalidValue, "null byte"),
            ("surrogate\udcff", InvalidValue, "surrogates not allowed"),
            ("x" * 300, StoreRefused, "name too long"),
        ],
        ids=lambda value: str(value)[:20].replace("\0", "0"),
    )
    async def test_a_path_where_no_file_can_be_is_refused(
        self, tmp_path: Path, name: str, kind: type[ErrandryError], advice: str
    ) -> None:
        (tmp_path / "file").write_text("not a folder")
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("nowhere")
        os.mkfifo(tmp_path / "pipe")
        before = sorted(os.listdir(tmp_path))

        error = await refusal(f"{tmp_path}/{name}")

        assert type(error) is kind
        assert advice in str(error)
        assert f"{tmp_path}/{name}" in error.args
        assert sorted(os.listdir(tmp_path)) == before

    async def test_a_name_may_look_like_an_address(self, tmp_path: Path) -> None:
        path = tmp_path / "file:jobs #1.db?mode=ro&x=%20"

        async with opened(path) as store:
            await requests.insert(store, job("a"))

        assert path.stat().st_size > 0

    async def test_a_relative_path_stays_where_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        store = SqliteStore("jobs.db")
        monkeypatch.chdir(tmp_path / "elsewhere")

        await store.open()
        await store.close()

        assert (tmp_path / "jobs.db").exists()

    async def test_a_link_leads_to_the_same_store(self, tmp_path: Path, path: Path) -> None:
        link = tmp_path / "link.db"
        async with opened(path) as store:
            link.symlink_to(path)
            async with opened(link) as same:
                await requests.insert(same, job("a"))
                assert await ids(store) == {"a"}
                assert {one.name for one in tmp_path.iterdir()} == {
                    "link.db",
                    *(f"jobs.db{side}" for side in SIDES),
                }

    @pytest.mark.slow("starts another program")
    @pytest.mark.parametrize("name", ["new", "in a closed folder", "read-only", "secret"])
    async def test_a_user_without_the_right_to_write_is_told_so(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            path = Path(folder) / "jobs.db"
            if name != "new":
                async with opened(path) as store:
                    await requests.insert(store, job("a"))
                for side in ("", "-next", "-turn"):
                    os.chmod(f"{path}{side}", {"read-only": 0o444, "secret": 0o000}.get(name, 0o666))
            os.chmod(folder, 0o777 if name in {"read-only", "secret"} else 0o555)
            before = contents(Path(folder)) if name != "secret" or os.geteuid() == 0 else {}

            kind, message = run("open_as_nobody", path)

            assert kind == "StoreRefused"
            assert str(path) in message
            assert "owner and mode" in message
            assert not before or contents(Path(folder)) == before


class TestDamage:
    @pytest.mark.parametrize("size", [2, 99, 100, 512, 4_096, 100_000])
    async def test_a_file_that_is_no_database_is_refused_untouched(
        self, tmp_path: Path, path: Path, size: int
    ) -> None:
        path.write_bytes(random.Random(size).randbytes(size))
        before = contents(tmp_path)

        error = await refusal(path)

        assert type(error) is StoreCorrupt
        assert str(path) in str(error)
        assert "restore a backup or move it away" in str(error)
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    async def test_a_truncated_file_is_refused_untouched(
        self, tmp_path: Path, path: Path, share: float
    ) -> None:
        async with opened(path) as store:
            await requests.insert(store, *(job(f"job-{n}") for n in range(100)))
        os.truncate(path, int(path.stat().st_size * share))
        before = contents(tmp_path)

        error = await refusal(path)

        assert type(error) is StoreCorrupt
        assert contents(tmp_path) == before

    @pytest.mark.slow("opens the file once for each of its pages")
    @pytest.mark.parametrize("fill", ["zeros", "noise", "text"])
    async def test_a_damaged_page_is_reported_as_that_and_as_nothing_else(
        self, path: Path, fill: str
    ) -> None:
        clock = FakeClock()
        async with opened(path, clock=clock, durability="process") as store:
            given = Given(store)
            for n in range(4):
                await given.completed(payload=json.dumps("x" * 1_500 * n))
                await given.failed(tags=("a",))
                await given.running(queue=f"queue-{n}")
                await given.scheduled(payload=json.dumps("y" * 1_500 * n))
            size = store.writer.pragma("page_size")
        sound = path.read_bytes()
        found = 0
        for start in range(0, len(sound), size):
            noise = random.Random(start).randbytes(size)
            page = {"zeros": bytes(size), "noise": noise, "text": b'"errandry"' * size}[fill][:size]
            path.write_bytes(sound[:start] + page + sound[start + size :])
            found += await meets_damage(path, clock)

        assert found > len(sound) / size / 3

    async def test_a_payload_that_is_no_longer_text_is_damage(self, path: Path) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("bad"), job("good"))
            store.writer.execute("UPDATE live SET payload = CAST(x'ff80' AS TEXT) WHERE id = 'bad'")
            store.writer.execute("UPDATE live SET tags = 'no JSON' WHERE id = 'good'")

            for name in ("bad", "good"):
                with pytest.raises(StoreCorrupt, match="not a sound database"):
                    await store.get([name])
            answers = await store.commit([CancelJobs(ids=("bad",)), Insert((job("new"),))])

        assert type(answers[0]) is StoreCorrupt
        assert answers[1] == Inserted(("new",))


async def meets_damage(path: Path, clock: FakeClock) -> bool:
    """Use everything a store has; True if damage was met. Any error but StoreCorrupt comes through."""
    found = 0
    with suppress(StoreCorrupt):
        async with opened(path, clock=clock, durability="process") as store:
            uses: list[Coroutine[Any, Any, object]] = [
                requests.jobs(store),
                store.counts(),
                requests.events(store),
                store.queues(),
                requests.claim(store, limit=10),
                requests.upkeep(store),
                requests.insert(store, job("new", queue="new")),
            ]
            for use in uses:
                try:
                    await use
                except StoreCorrupt:
                    found += 1
            return found > 0
    return True


class TestForeign:
    @pytest.mark.parametrize(
        "made",
        [
            "CREATE TABLE live (x); INSERT INTO live VALUES (1)",
            "CREATE VIEW v AS SELECT 1",
            "PRAGMA application_id = 7",
            "PRAGMA user_version = 1",
            "PRAGMA journal_mode = wal; CREATE TABLE t (x)",
        ],
    )
    async def test_what_belongs_to_another_program_is_refused_untouched(
        self, tmp_path: Path, path: Path, made: str
    ) -> None:
        with connected(path) as db:
            db.execute(made).fetchall()
        before = contents(tmp_path)

        error = await refusal(path)

        assert type(error) is ForeignDatabase
        assert str(error) == f"{path}: holds another program's data: give Errandry a file of its own"
        assert contents(tmp_path) == before

    async def test_the_log_another_program_left_in_a_crash_is_left_to_it(
        self, tmp_path: Path, path: Path
    ) -> None:
        theirs = tmp_path / "theirs.db"
        with connected(theirs) as db:
            db.execute("PRAGMA journal_mode = wal; CREATE TABLE t (x)").fetchall()
            for side in ("", "-wal"):
                shutil.copy(f"{theirs}{side}", f"{path}{side}")
        before = path.read_bytes(), Path(f"{path}-wal").read_bytes()

        assert type(await refusal(path)) is ForeignDatabase

        assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before

    async def test_a_newer_schema_is_refused_untouched(self, tmp_path: Path, path: Path) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("a"))
        with connected(path) as db:
            db.pragma("user_version", 9_999)
        before = contents(tmp_path)

        error = await refusal(path)

        assert type(error) is SchemaTooNew
        assert "has schema 9999" in str(error)
        assert "upgrade Errandry" in str(error)
        assert contents(tmp_path) == before

    async def test_an_empty_file_is_taken(self, path: Path) -> None:
        path.touch()

        async with opened(path) as store:
            assert await requests.insert(store, job("a")) == Inserted(("a",))


class TestReplaced:
    @pytest.mark.parametrize("side", ["", "-wal", "-shm"])
    async def test_a_deleted_file_is_noticed_by_the_next_pass_and_the_next_read(
        self, path: Path, side: str
    ) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("a"))
            os.unlink(f"{path}{side}")

            for use in (requests.insert(store, job("b")), store.get(["a"])):
                with pytest.raises(StoreReplaced, match=rf"jobs\.db{side} was deleted"):
                    await use

    @pytest.mark.parametrize("side", ["", "-wal", "-shm"])
    async def test_a_file_in_its_place_is_noticed_by_the_next_pass_and_the_next_read(
        self, path: Path, side: str
    ) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("a"))
            os.rename(f"{path}{side}", f"{path}.old")
            shutil.copy(f"{path}.old", f"{path}{side}")

            for use in (requests.insert(store, job("b")), store.get(["a"])):
                with pytest.raises(StoreReplaced, match="another file was put in its place"):
                    await use

    async def test_a_file_put_in_its_place_keeps_everything_written_to_it(self, path: Path) -> None:
        async with opened(path) as old:
            await requests.insert(old, job("old"))
            for side in SIDES:
                os.unlink(f"{path}{side}")
            async with opened(path) as new:
                await requests.insert(new, job("new"))

                for use in (requests.insert(old, job("late")), old.counts()):
                    with pytest.raises(StoreReplaced, match="another file was put in its place"):
                        await use
                await old.close()

                await requests.insert(new, job("newer"))
                assert await ids(new) == {"new", "newer"}
                crashed = path.with_name("crashed.db")
                for side in ("", "-wal"):
                    shutil.copy(f"{path}{side}", f"{crashed}{side}")
            async with opened(crashed) as again:
                assert await ids(again) == {"new", "newer"}

    async def test_reopened_it_uses_the_file_that_is_there_now(self, tmp_path: Path, path: Path) -> None:
        async with opened(tmp_path / "other.db") as other:
            await requests.insert(other, job("other"))
        async with opened(path) as store:
            await requests.insert(store, job("a"))
            os.replace(tmp_path / "other.db", path)
            with pytest.raises(StoreReplaced):
                await requests.insert(store, job("b"))
            os.unlink(f"{path}-wal")

            await store.close()
            await store.open()

            assert await ids(store) == {"other"}


class TestReopening:
    async def test_everything_is_as_it_was(self, path: Path) -> None:
        clock = FakeClock()
        async with opened(path, clock=clock) as store:
            given = Given(store)
            held = await given.running(max_attempts=2)
            await given.completed()
            await given.failed()
            await given.gone()
            before, head = await requests.everything(store), await store.latest_cursor()
            page = await store.list(limit=1)

        async with opened(path, clock=clock) as store:
            assert await requests.everything(store) == before
            assert (await store.events(head)).entries == ()
            rest = await store.list(cursor=page.cursor, limit=50)
            assert len(page.jobs + rest.jobs) == 3
            clock.advance(60)
            await requests.upkeep(store)
            clock.advance(3_600)
            [again] = await requests.claim(store)
            assert (again.id, again.seq) == (held.id, held.seq)
            assert again.fence > held.fence
            assert await requests.settle(store, held, CompleteOutcome()) == Lost(LossCause.OTHER_FENCE)
            assert (await store.events(head)).entries[0].event.job == held.id
            await requests.conserved(store)

    async def test_a_cursor_of_another_file_is_refused(self, tmp_path: Path, path: Path) -> None:
        async with opened(path) as store, opened(tmp_path / "other.db") as other:
            for one in (store, other):
                await requests.insert(one, job("a"), job("b"))
            page = await store.list(limit=1)

            with pytest.raises(InvalidCursor, match="another store"):
                await other.list(cursor=page.cursor)
            with pytest.raises(InvalidCursor, match="another store"):
                await other.events(await store.latest_cursor())

    async def test_open_and_close_may_be_repeated(self, path: Path) -> None:
        store = SqliteStore(path)
        with pytest.raises(StoreClosed, match="not open"):
            await store.counts()
        await store.open()
        await requests.insert(store, job("a"))
        await store.open()
        assert await ids(store) == {"a"}
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed, match="not open"):
            await store.commit([Upkeep()])
        assert {one.name for one in path.parent.iterdir()} == {"jobs.db", "jobs.db-next", "jobs.db-turn"}

    async def test_a_refused_store_can_be_opened_later(self, path: Path) -> None:
        store = SqliteStore(path.parent / "folder" / "jobs.db")
        with pytest.raises(StoreRefused):
            await store.open()
        (path.parent / "folder").mkdir()

        await store.open()
        await store.close()


class TestTwoStores:
    """Two stores on one file are two processes to SQLite."""

    async def test_they_share_jobs_and_never_a_claim(self, path: Path) -> None:
        async with opened(path) as one, opened(path) as other:
            for n in range(20):
                await requests.insert((one, other)[n % 2], job(f"job-{n}"))
            claimed = []
            for n in range(10):
                claimed += await requests.order((one, other)[n % 2], limit=2)

            assert claimed == [f"job-{n}" for n in range(20)]
            for store in (one, other):
                await requests.conserved(store)

    async def test_what_the_other_did_to_a_job_counts_for_the_one_that_holds_it(self, path: Path) -> None:
        clock = FakeClock()
        async with opened(path, clock=clock) as one, opened(path, clock=clock) as other:
            given = Given(one)
            canceled = await given.running()
            removed = await given.running()
            expired = await given.running(lease=10)
            done = await given.running()
            await other.commit([CancelJobs(ids=(canceled.id,)), RemoveJobs(ids=(removed.id,), force=True)])
            await requests.settle(other, done, CompleteOutcome('"by the other"'))
            clock.advance(11)
            await requests.upkeep(other)
            clock.advance(15)

            refs = tuple(Ref(job.id, job.fence) for job in (canceled, removed, expired, done))
            answers = await one.commit([Renew(refs)])

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
            assert await requests.settle(one, expired, CompleteOutcome()) == Lost(LossCause.NOT_HELD)
            [stored] = await one.get([done.id])
            assert stored is not None
            assert stored.result == '"by the other"'

    async def test_both_number_their_jobs_without_a_clash(self, path: Path) -> None:
        async with opened(path) as one, opened(path) as other:
            for n in range(10):
                await requests.insert((one, other)[n % 2], job(f"job-{n}"))

            found = await requests.jobs(one)

        assert [job.id for job in sorted(found, key=lambda job: job.seq)] == [f"job-{n}" for n in range(10)]


class TestMigrations:
    async def test_the_schema_is_the_one_on_record(self, path: Path) -> None:
        async with opened(path):
            pass

        assert schema(path) == SCHEMA.read_text(), (
            "the schema has changed. If that is meant: python tests.store.sqlite.test_file.py schema"
            f" > {SCHEMA.relative_to(Path.cwd()) if SCHEMA.is_relative_to(Path.cwd()) else SCHEMA}"
        )

    async def test_each_runs_once(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("a"))
            before = await requests.everything(store)
        number, *_ = file._MIGRATIONS[-1]
        more = [(number + 1, "one", "CREATE TABLE one (x)"), (number + 2, "two", "CREATE TABLE two (x)")]
        with monkeypatch.context() as newer:
            newer.setattr(file, "_MIGRATIONS", file._MIGRATIONS + more)
            for _ in range(2):
                async with opened(path) as store:
                    assert await requests.everything(store) == before
                    applied = store.writer.execute("SELECT number, name FROM migrations").fetchall()
                    assert applied[-2:] == [(number + 1, "one"), (number + 2, "two")]
                    assert [one for one, _ in applied] == list(range(1, number + 3))

        assert type(await refusal(path)) is SchemaTooNew

    async def test_one_that_fails_leaves_the_file_as_it_was(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("a"))
        number, *_ = file._MIGRATIONS[-1]
        before = schema(path)
        with monkeypatch.context() as newer:
            bad = (number + 1, "bad", "CREATE TABLE one (x); INSERT INTO nowhere VALUES (1)")
            newer.setattr(file, "_MIGRATIONS", [*file._MIGRATIONS, bad])
            with pytest.raises(apsw.SQLError, match="no such table: nowhere"):
                await SqliteStore(path).open()

        assert schema(path) == before
        async with opened(path) as store:
            assert await ids(store) == {"a"}

    @pytest.mark.slow("starts another program")
    @pytest.mark.parametrize("rows", [1, 5_000], ids=["in memory", "already in the log"])
    @pytest.mark.parametrize("is_new", [True, False], ids=["of a new file", "of an old file"])
    async def test_one_killed_midway_leaves_the_file_as_it_was(
        self, path: Path, rows: int, is_new: bool
    ) -> None:
        if not is_new:
            async with opened(path) as store:
                await requests.insert(store, job("a"))

        with pytest.raises(subprocess.CalledProcessError) as died:
            run("die_migrating", path, rows)

        assert died.value.returncode == -signal.SIGKILL
        async with opened(path) as store:
            assert await ids(store) == (set() if is_new else {"a"})
            assert await requests.insert(store, job("b")) == Inserted(("b",))
            assert store.writer.pragma("integrity_check") == "ok"
        assert schema(path) == SCHEMA.read_text()


class TestDurability:
    def test_the_library_has_no_wal_reset_bug(self) -> None:
        version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))

        assert version >= (3, 51, 3)
        assert version != (3, 52, 0)

    @pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
    async def test_it_is_what_was_asked_for(self, path: Path, durability: str, synchronous: int) -> None:
        async with opened(path, durability=durability) as store:
            assert store.writer.pragma("synchronous") == synchronous
            assert store.writer.pragma("journal_mode") == "wal"

    async def test_a_power_cut_is_survived_unless_told_otherwise(self, path: Path) -> None:
        async with opened(path) as store:
            assert store.writer.pragma("synchronous") == 2

    @pytest.mark.parametrize("durability", ["", "full", "POWER", None, 2])
    def test_a_wrong_one_is_refused(self, path: Path, durability: Any) -> None:
        with pytest.raises(InvalidValue, match=r"durability=.*: must be power or process"):
            SqliteStore(path, durability=durability)


class TestLog:
    """The write-ahead log, which is copied back while passes go on."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "LOG_PAGES", 40)

    async def test_it_begins_anew_and_nothing_is_lost(self, path: Path) -> None:
        longest, shrunk = 0, 0
        async with opened(path) as store:
            store.writer.pragma("journal_size_limit", 0)  # cut when it begins anew, so that it can be seen
            written = set[str]()
            async with asyncio.timeout(60):
                while shrunk < 5:
                    before = log_size(path)
                    await write(store, written, 1)
                    shrunk += log_size(path) < before
                    longest = max(longest, log_size(path))
            assert await ids(store) == written

        assert longest < 40 * 4_096 * 20
        assert apsw.Connection(str(path)).pragma("integrity_check") == "ok"

    async def test_who_reads_for_long_keeps_it_only_meanwhile(self, path: Path) -> None:
        async with opened(path) as store:
            store.writer.pragma("journal_size_limit", 0)
            written = set[str]()
            await write(store, written, 1)
            reader = apsw.Connection(str(path))
            reader.execute("BEGIN")
            seen = reader.execute("SELECT count(*) FROM live").fetchall()
            await write(store, written, 60)
            assert reader.execute("SELECT count(*) FROM live").fetchall() == seen
            kept = log_size(path)
            assert kept > 40 * 4_096
            reader.close()

            async with asyncio.timeout(60):
                while log_size(path) >= kept:
                    await write(store, written, 1)
            assert await ids(store) == written

    async def test_a_program_that_ends_copies_nothing_any_more(self, path: Path) -> None:
        async with opened(path) as store:
            assert store._open is not None
            store._open.thread.shutdown()
            for number in range(60):
                assert await requests.insert(store, job(f"job-{number}")) == Inserted((f"job-{number}",))
        async with opened(path) as store:
            assert len(await ids(store)) == 60

    async def test_a_log_that_cannot_be_copied_harms_nobody(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(_self: file.DatabaseFile) -> apsw.Connection:
            raise StoreRefused(str(path), "no more files may be open")

        monkeypatch.setattr(file.DatabaseFile, "reader", lost)
        async with opened(path) as store:
            written = set[str]()
            await write(store, written, 60)
            monkeypatch.undo()
            assert await ids(store) == written


async def write(store: SqliteStore, written: set[str], passes: int) -> None:
    """Insert one job after the other, noting them."""
    for number in range(len(written), len(written) + passes):
        await requests.insert(store, job(f"job-{number}"))
        written.add(f"job-{number}")


def log_size(path: Path) -> int:
    return os.path.getsize(f"{path}-wal")


class TestFullDisk:
    async def test_nothing_written_is_lost_and_it_works_again_with_more_space(self, path: Path) -> None:
        async with opened(path, durability="process") as store:
            await requests.insert(store, job("first"))
            [held] = await requests.claim(store)
            store.writer.pragma("max_page_count", store.writer.pragma("page_count") + 20)
            written = {"first"}
            with pytest.raises(StoreFull, match=f"{path}: no space left"):
                await insert_pairs(store, written)

            assert await ids(store) == written
            await requests.conserved(store)
            with pytest.raises(StoreFull):
                await requests.insert(store, big(1_000))
            assert await requests.settle(store, held, CompleteOutcome()) is WRITTEN
            store.writer.pragma("max_page_count", 100_000)
            await requests.insert(store, big(1_000))
            assert await ids(store) == written | {"big-1000"}
            await requests.conserved(store)
        async with opened(path) as store:
            assert await ids(store) == written | {"big-1000"}

    @pytest.mark.slow("starts another program")
    async def test_a_quota_of_the_system_is_a_full_disk_too(self, path: Path) -> None:
        acked, error, after = run("fill", path)

        assert error == ["StoreFull", f"{path}: no space left on the disk: nothing of this was written"]
        assert acked
        async with opened(path) as store:
            assert await ids(store) == {*acked, *after}
            assert store.writer.pragma("integrity_check") == "ok"
            await requests.conserved(store)

    @pytest.mark.slow("starts another program")
    async def test_a_new_file_that_does_not_fit_is_refused(self, path: Path) -> None:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            run("fill", path, 8_192)

        assert f"StoreFull: {path}" in failed.value.stderr
        async with opened(path) as store:
            assert await requests.insert(store, job("a")) == Inserted(("a",))


async def insert_pairs(store: SqliteStore, written: set[str]) -> None:
    """Insert large and small jobs in passes of two until it fails, noting what was answered."""
    for n in range(1_000):
        await store.commit([Insert((big(n),)), Insert((job(f"small-{n}"),))])
        written |= {f"big-{n}", f"small-{n}"}


class TestBadCommand:
    @pytest.mark.parametrize("way", ["ABORT", "FAIL", "ROLLBACK"])
    async def test_one_that_cannot_be_written_fails_alone(self, path: Path, way: str) -> None:
        async with opened(path) as store:
            store.writer.execute(
                "CREATE TRIGGER no BEFORE INSERT ON live WHEN new.id LIKE 'bad%'"
                f" BEGIN SELECT RAISE({way}, 'not this one'); END"
            )
            names = ["a", "bad-1", "b", "c", "bad-2", "d"]

            answers = await store.commit([Insert((job(name),)) for name in names])

            for name, answer in zip(names, answers, strict=True):
                if name.startswith("bad"):
                    assert isinstance(answer, CommandFailed)
                    assert "Insert could not be written" in str(answer)
                    assert "not this one" in str(answer)
                else:
                    assert answer == Inserted((name,))
            assert await ids(store) == {"a", "b", "c", "d"}
            assert await requests.order(store) == ["a", "b", "c", "d"]
            await requests.conserved(store)

    async def test_its_neighbours_of_other_kinds_are_written_too(self, path: Path) -> None:
        async with opened(path) as store:
            given = Given(store)
            good, bad = await given.running(), await given.running()
            store.writer.execute(
                f"CREATE TRIGGER no BEFORE INSERT ON history WHEN new.id = '{bad.id}'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
            wanted = Claim(worker="worker", nonce="once", limit=9)

            answers = await store.commit(
                [
                    Settle(Ref(good.id, good.fence), CompleteOutcome()),
                    Settle(Ref(bad.id, bad.fence), CompleteOutcome()),
                    Insert((job("new"),)),
                    wanted,
                ]
            )

            assert answers[0] is WRITTEN
            assert isinstance(answers[1], CommandFailed)
            assert answers[2] == Inserted(("new",))
            assert isinstance(answers[3], Claims)
            assert [one.id for one in answers[3].jobs] == ["new"]
            store.writer.execute("DROP TRIGGER no")
            assert await requests.settle(store, bad, CompleteOutcome()) is WRITTEN
            await requests.conserved(store)

    async def test_a_claim_that_could_not_be_written_is_no_claim(self, path: Path) -> None:
        async with opened(path) as store:
            await requests.insert(store, job("a"))
            store.writer.execute(
                "CREATE TRIGGER no BEFORE INSERT ON claims WHEN new.worker = 'bad'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )

            [answer] = await store.commit([Claim(worker="bad", nonce="nonce")])

            assert isinstance(answer, CommandFailed)
            [stored] = await store.get(["a"])
            assert stored is not None
            assert stored.state is State.WAITING
            assert await requests.one(store, Settle(Ref("a", stored.fence + 1), CompleteOutcome())) == Lost(
                LossCause.NOT_HELD
            )
            assert await requests.order(store) == ["a"]
            await requests.conserved(store)

    async def test_a_job_that_fails_takes_its_whole_insert_with_it(self, path: Path) -> None:
        async with opened(path) as store:
            store.writer.execute(
                "CREATE TRIGGER no BEFORE INSERT ON live WHEN new.id = 'bad'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )

            [answer, _] = await store.commit([Insert((job("a"), job("bad"))), Insert((job("b"),))])

            assert isinstance(answer, CommandFailed)
            assert await ids(store) == {"b"}


class TestLocked:
    async def test_a_program_that_keeps_the_file_locked_is_named_as_the_cause(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "BUSY", 20)
        async with opened(path) as store:
            with connected(path) as db:
                db.execute("BEGIN IMMEDIATE")

                with pytest.raises(StoreUnavailable, match="another program has kept the file locked"):
                    await requests.insert(store, job("a"))
                assert await ids(store) == set()

            assert await requests.insert(store, job("a")) == Inserted(("a",))

    async def test_a_new_file_others_look_at_is_waited_for(self, path: Path) -> None:
        path.touch()
        is_over = threading.Event()
        with connected(path) as db:

            def end() -> None:
                is_over.set()
                db.execute("COMMIT")

            db.execute("BEGIN IMMEDIATE")
            looking = threading.Timer(0.1, end)
            looking.start()

            async with opened(path) as store:
                assert is_over.is_set()
                assert await requests.insert(store, job("a")) == Inserted(("a",))
            looking.join()

    async def test_a_new_file_others_keep_to_themselves_is_refused(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "BUSY", 20)
        path.touch()
        with connected(path) as db:
            db.execute("BEGIN IMMEDIATE")

            error = await refusal(path)

        assert type(error) is StoreUnavailable
        assert "another program has kept the file locked" in str(error)


# Small things, and what the other processes run.


def big(number: int) -> NewJob:
    return job(f"big-{number}", payload=json.dumps("x" * 20_000))


@contextmanager
def connected(path: Path | str) -> Iterator[apsw.Connection]:
    """A plain connection to a file, as another program would have."""
    db = apsw.Connection(str(path))
    try:
        yield db
    finally:
        db.close()


def schema(path: Path) -> str:
    """What the file holds but rows, and the tables SQLite makes for itself."""
    with connected(path) as db:
        found = db.execute(
            "SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY tbl_name, name"
        ).fetchall()
    return "\n".join(f"{text};\n" for (text,) in found if "sqlite_" not in str(text))


def run(name: str, *args: object) -> Any:
    """What the function of this name below answers in a process of its own."""
    command = [sys.executable, __file__, name, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def open_as_nobody(path: str) -> Iterator[object]:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        asyncio.run(SqliteStore(path).open())
        yield from ("opened", "")
    except ErrandryError as error:
        yield from (type(error).__name__, str(error))


def die_migrating(path: str, rows: str) -> Iterator[object]:
    """Killed in the last statement of a migration, which has written so many rows."""
    connect = file._connect

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def deadly(path: str, durability: file.Durability, flags: int = 0) -> apsw.Connection:
        db = connect(path, durability, flags)
        db.create_scalar_function("die", die)
        db.pragma("cache_size", 10)
        return db

    text = f"""
        CREATE TABLE big (x);
        INSERT INTO big
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})
            SELECT randomblob(1000) FROM n;
        SELECT die();
    """
    file._connect = deadly
    file._MIGRATIONS.append((file._MIGRATIONS[-1][0] + 1, "deadly", text))
    asyncio.run(SqliteStore(path).open())
    yield "survived"


def fill(path: str, size: str = "400000") -> Iterator[object]:
    """Insert until the system refuses to make a file longer; then once more, when it may be."""

    async def main() -> Iterator[object]:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), hard))
        acked = []
        async with opened(path, durability="process") as store:
            try:
                for n in range(1_000):
                    await requests.insert(store, big(n))
                    acked.append(f"big-{n}")
                error: object = None
            except ErrandryError as raised:
                error = type(raised).__name__, str(raised)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            answer = await requests.insert(store, big(1_000))
        return iter((acked, error, answer.ids))

    yield from asyncio.run(main())


def main(name: str, *args: str) -> None:
    if name == "schema":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.db"
            asyncio.run(SqliteStore(path).open())
            sys.stdout.write(schema(path))
    else:
        roles: dict[str, Callable[..., Iterator[object]]] = {
            "open_as_nobody": open_as_nobody,
            "die_migrating": die_migrating,
            "fill": fill,
        }
        sys.stdout.write(json.dumps(list(roles[name](*args))))


if __name__ == "__main__":
    main(*sys.argv[1:])
