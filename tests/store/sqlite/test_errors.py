"""Errors while an SQLite store is used: a full disk, a command that cannot be written, a locked file."""

import subprocess
import threading
from pathlib import Path

import pytest

from errandry.core.answer import WRITTEN, Claims, Inserted, LossCause, Lost
from errandry.core.command import (
    Claim,
    CompleteOutcome,
    Insert,
    Ref,
    Settle,
)
from errandry.core.state import State
from errandry.errors import (
    CommandFailed,
    StoreFull,
    StoreUnavailable,
)
from errandry.store.sqlite import file
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing.conformance import requests
from errandry.testing.given import Given
from tests.store.sqlite.processes import run_program
from tests.store.sqlite.stores import (
    big_job,
    connection,
    job_ids,
    new_job,
    open_error,
    open_store,
)


class TestFullDisk:
    async def test_a_full_disk_loses_no_job_and_the_store_works_again_with_more_space(
        self, path: Path
    ) -> None:
        async with open_store(path, durability="process") as store:
            await requests.insert(store, new_job("first"))
            [held] = await requests.claim(store)
            store.writer.pragma("max_page_count", store.writer.pragma("page_count") + 20)
            written = {"first"}
            with pytest.raises(StoreFull, match=f"{path}: no space left"):
                await insert_pairs(store, written)

            assert await job_ids(store) == written
            await requests.check_counters(store)
            with pytest.raises(StoreFull):
                await requests.insert(store, big_job(1_000))
            assert await requests.settle(store, held, CompleteOutcome()) is WRITTEN
            store.writer.pragma("max_page_count", 100_000)
            await requests.insert(store, big_job(1_000))
            assert await job_ids(store) == written | {"big-1000"}
            await requests.check_counters(store)
        async with open_store(path) as store:
            assert await job_ids(store) == written | {"big-1000"}

    @pytest.mark.slow("starts another program")
    async def test_a_file_size_limit_of_the_system_is_reported_as_a_full_disk(self, path: Path) -> None:
        acked, error, after = run_program("fill", path)

        assert error == ["StoreFull", f"{path}: no space left on the disk: nothing of this was written"]
        assert acked
        async with open_store(path) as store:
            assert await job_ids(store) == {*acked, *after}
            assert store.writer.pragma("integrity_check") == "ok"
            await requests.check_counters(store)

    @pytest.mark.slow("starts another program")
    async def test_a_new_file_that_does_not_fit_on_the_disk_is_refused(self, path: Path) -> None:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            run_program("fill", path, 8_192)

        assert f"StoreFull: {path}" in failed.value.stderr
        async with open_store(path) as store:
            assert await requests.insert(store, new_job("a")) == Inserted(("a",))


async def insert_pairs(store: SqliteStore, written: set[str]) -> None:
    """Insert a large and a small job per pass until a pass fails; add their ids to `written`."""
    for n in range(1_000):
        await store.commit([Insert((big_job(n),)), Insert((new_job(f"small-{n}"),))])
        written |= {f"big-{n}", f"small-{n}"}


class TestBadCommand:
    @pytest.mark.parametrize("way", ["ABORT", "FAIL", "ROLLBACK"])
    async def test_a_command_that_cannot_be_written_fails_alone(self, path: Path, way: str) -> None:
        async with open_store(path) as store:
            store.writer.execute(
                "CREATE TRIGGER no BEFORE INSERT ON live WHEN new.id LIKE 'bad%'"
                f" BEGIN SELECT RAISE({way}, 'not this one'); END"
            )
            names = ["a", "bad-1", "b", "c", "bad-2", "d"]

            answers = await store.commit([Insert((new_job(name),)) for name in names])

            for name, answer in zip(names, answers, strict=True):
                if name.startswith("bad"):
                    assert isinstance(answer, CommandFailed)
                    assert "Insert could not be written" in str(answer)
                    assert "not this one" in str(answer)
                else:
                    assert answer == Inserted((name,))
            assert await job_ids(store) == {"a", "b", "c", "d"}
            assert await requests.claim_ids(store) == ["a", "b", "c", "d"]
            await requests.check_counters(store)

    async def test_the_other_commands_of_its_pass_are_written(self, path: Path) -> None:
        async with open_store(path) as store:
            given = Given(store)
            good, bad = await given.running(), await given.running()
            store.writer.execute(
                f"CREATE TRIGGER no BEFORE INSERT ON history WHEN new.id = '{bad.id}'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
            claim = Claim(worker="worker", nonce="once", limit=9)

            answers = await store.commit(
                [
                    Settle(Ref(good.id, good.fence), CompleteOutcome()),
                    Settle(Ref(bad.id, bad.fence), CompleteOutcome()),
                    Insert((new_job("new"),)),
                    claim,
                ]
            )

            assert answers[0] is WRITTEN
            assert isinstance(answers[1], CommandFailed)
            assert answers[2] == Inserted(("new",))
            assert isinstance(answers[3], Claims)
            assert [job.id for job in answers[3].jobs] == ["new"]
            store.writer.execute("DROP TRIGGER no")
            assert await requests.settle(store, bad, CompleteOutcome()) is WRITTEN
            await requests.check_counters(store)

    async def test_a_claim_that_cannot_be_written_leaves_the_job_waiting(self, path: Path) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
            store.writer.execute(
                "CREATE TRIGGER no BEFORE INSERT ON claims WHEN new.worker = 'bad'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )

            [answer] = await store.commit([Claim(worker="bad", nonce="nonce")])

            assert isinstance(answer, CommandFailed)
            [stored] = await store.get(["a"])
            assert stored is not None
            assert stored.state is State.WAITING
            assert await requests.send(store, Settle(Ref("a", stored.fence + 1), CompleteOutcome())) == Lost(
                LossCause.NOT_HELD
            )
            assert await requests.claim_ids(store) == ["a"]
            await requests.check_counters(store)

    async def test_a_job_that_cannot_be_written_fails_its_whole_insert(self, path: Path) -> None:
        async with open_store(path) as store:
            store.writer.execute(
                "CREATE TRIGGER no BEFORE INSERT ON live WHEN new.id = 'bad'"
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )

            [answer, _] = await store.commit(
                [Insert((new_job("a"), new_job("bad"))), Insert((new_job("b"),))]
            )

            assert isinstance(answer, CommandFailed)
            assert await job_ids(store) == {"b"}


class TestLocked:
    async def test_the_error_names_another_program_that_keeps_the_file_locked(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "BUSY_TIMEOUT", 20)
        async with open_store(path) as store:
            with connection(path) as db:
                db.execute("BEGIN IMMEDIATE")

                with pytest.raises(StoreUnavailable, match="another program has kept the file locked"):
                    await requests.insert(store, new_job("a"))
                assert await job_ids(store) == set()

            assert await requests.insert(store, new_job("a")) == Inserted(("a",))

    async def test_opening_a_new_file_waits_for_the_lock_of_another_program(self, path: Path) -> None:
        path.touch()
        is_unlocked = threading.Event()
        with connection(path) as db:

            def unlock() -> None:
                is_unlocked.set()
                db.execute("COMMIT")

            db.execute("BEGIN IMMEDIATE")
            timer = threading.Timer(0.1, unlock)
            timer.start()

            async with open_store(path) as store:
                assert is_unlocked.is_set()
                assert await requests.insert(store, new_job("a")) == Inserted(("a",))
            timer.join()

    async def test_a_new_file_that_another_program_keeps_locked_is_refused(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "BUSY_TIMEOUT", 20)
        path.touch()
        with connection(path) as db:
            db.execute("BEGIN IMMEDIATE")

            error = await open_error(path)

        assert type(error) is StoreUnavailable
        assert "another program has kept the file locked" in str(error)
