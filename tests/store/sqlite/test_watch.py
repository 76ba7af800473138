"""A process notices that another one has written the SQLite file."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from errandry.core.answer import Inserted
from errandry.store.sqlite import driver, watch
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.turnstile import Turnstile
from errandry.testing.conformance import requests
from tests.machine_load import MachineLoad
from tests.store.sqlite.processes import Start, starts_programs
from tests.store.sqlite.stores import (
    new_job,
    open_store,
)


@pytest.fixture(params=["inotify", "polling"])
def watch_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a process notices the commits of others."""
    if request.param == "polling":
        monkeypatch.setattr(watch, "_inotify", lambda *_: None)
    return str(request.param)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The result of each look for commits of others."""
    results: list[bool] = []
    look = driver._OpenFile._has_foreign_commit

    def recorded(self: driver._OpenFile) -> bool:
        results.append(look(self))
        return results[-1]

    monkeypatch.setattr(driver._OpenFile, "_has_foreign_commit", recorded)
    return results


class TestWaitForChange:
    async def test_a_commit_of_this_process_wakes_at_once(self, path: Path, watch_method: str) -> None:
        async with open_store(path, durability="process") as store:
            waiting = asyncio.create_task(store.wait_for_change(store.version(), 60))
            await asyncio.sleep(0)
            await requests.insert(store, new_job("a"))
            began = time.perf_counter()

            with MachineLoad() as load:
                assert await waiting

            assert time.perf_counter() - began < load.scaled(0.5)

    @starts_programs
    async def test_a_commit_of_another_process_wakes_soon(
        self, path: Path, start: Start, watch_method: str
    ) -> None:
        async with open_store(path, durability="process") as store:
            child = start("insert", path, "job")
            child.send()
            child.receive()
            await requests.claim_ids(store)
            delays = []
            with MachineLoad() as load:
                for n in range(1, 31):
                    version = store.version()
                    assert await requests.claim_ids(store) == []
                    child.send()

                    woken = await store.wait_for_change(version, 30)

                    delays.append(time.monotonic() - child.receive())
                    assert woken
                    assert await requests.claim_ids(store) == [f"job-{n}"]
            assert sorted(delays)[15] < load.scaled(0.05)

    @starts_programs
    @pytest.mark.parametrize("between", ["nothing", "a read", "a pass", "a claim that finds nothing"])
    async def test_a_commit_before_the_wait_is_not_missed(
        self, path: Path, start: Start, watch_method: str, between: str
    ) -> None:
        async with open_store(path, durability="process") as store:
            child = start("insert", path, "job")
            for n in range(3):
                version = store.version()
                assert await requests.claim_ids(store) == []
                child.send()
                child.receive()
                if between == "a read":
                    assert await store.counts()
                elif between == "a pass":
                    await requests.insert(store, new_job(f"mine-{n}", queue="other"))
                    await requests.claim_ids(store, queues=("other",))
                elif between == "a claim that finds nothing":
                    assert await requests.claim_ids(store, queues=("other",)) == []

                assert await store.wait_for_change(version, 30)

                assert await requests.claim_ids(store) == [f"job-{n}"]

    @starts_programs
    async def test_a_commit_that_was_seen_wakes_no_waiter(
        self, path: Path, start: Start, watch_method: str
    ) -> None:
        async with open_store(path, durability="process") as store:
            child = start("insert", path, "job")
            child.send()
            child.receive()
            version = store.version()
            assert await requests.claim_ids(store) == ["job-0"]
            assert await store.wait_for_change(version, 30)
            version = store.version()

            assert not await store.wait_for_change(version, 0.05)

    @starts_programs
    async def test_a_commit_wakes_all_waiters(self, path: Path, start: Start, watch_method: str) -> None:
        async with open_store(path, durability="process") as store:
            child = start("insert", path, "job")
            child.send()
            child.receive()
            await requests.claim_ids(store)
            version = store.version()
            waiting = [asyncio.create_task(store.wait_for_change(version, 30)) for _ in range(3)]
            canceled = asyncio.create_task(store.wait_for_change(version, 30))
            await asyncio.sleep(0)
            canceled.cancel()
            await asyncio.wait([canceled])
            child.send()

            assert await asyncio.gather(*waiting) == [True] * 3

    async def test_a_wait_without_a_commit_ends_with_the_timeout(self, path: Path, watch_method: str) -> None:
        async with open_store(path, durability="process") as store:
            began = time.perf_counter()

            with MachineLoad() as load:
                assert not await store.wait_for_change(store.version(), 0.05)

            assert 0.04 < time.perf_counter() - began < load.scaled(1.0)

    @pytest.mark.parametrize("end", ["canceled", "timed out", "closed"])
    async def test_a_waiter_that_stops_waiting_leaves_no_task_and_no_watch(
        self, path: Path, end: str
    ) -> None:
        loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
        async with open_store(path, durability="process") as store:
            descriptor = turn_descriptor(store)
            waiting = asyncio.create_task(
                store.wait_for_change(store.version(), 0.5 if end == "timed out" else 30)
            )
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert is_watched(loop, descriptor)
            if end == "canceled":
                waiting.cancel()
            elif end == "closed":
                await store.close()
            await asyncio.wait([waiting])

            assert waiting.cancelled() == (end == "canceled")
            assert is_watched(loop, descriptor) == (end != "closed")  # a woken waiter usually waits again
            if left := asyncio.all_tasks() - before:
                await asyncio.wait(left, timeout=30)
            assert not is_watched(loop, descriptor)
            assert asyncio.all_tasks() == before

    async def test_repeated_waits_share_one_watching_task(self, path: Path) -> None:
        async with open_store(path, durability="process") as store:
            before = asyncio.all_tasks()
            watchers: set[asyncio.Task[Any]] = set()
            for _ in range(3):
                assert not await store.wait_for_change(store.version(), 0.01)
                watchers |= asyncio.all_tasks() - before
            waiting = asyncio.create_task(store.wait_for_change(store.version(), 30))
            await asyncio.sleep(2 * driver.WATCH_LINGER)

            assert len(watchers) == 1
            assert asyncio.all_tasks() - before == {*watchers, waiting}
            waiting.cancel()

    async def test_a_waiter_uses_no_processor_time(
        self, path: Path, watch_method: str, looks: list[bool]
    ) -> None:
        async with open_store(path, durability="process") as store:
            assert not await store.wait_for_change(store.version(), 0.3)

        assert 1 <= len(looks) <= (3 if watch_method == "inotify" else 0.3 / watch.POLL_INTERVAL + 2)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify exists only on Linux")
    async def test_a_commit_that_is_visible_long_after_the_write_to_the_log_is_noticed(
        self, path: Path
    ) -> None:
        log = path.with_name(f"{path.name}-wal")
        log.touch()
        path.touch()
        turnstile = Turnstile(str(path), 60)
        is_visible = False
        file_watch = watch.FileWatch(str(path), lambda: is_visible)
        waiting = asyncio.create_task(file_watch.wait())
        await asyncio.sleep(0.01)
        with log.open("ab") as file:
            file.write(b"frame")
        await asyncio.sleep(0.1)
        is_visible = True

        async with asyncio.timeout(30):
            await waiting
        file_watch.close()
        turnstile.close()

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify exists only on Linux")
    async def test_a_waiter_does_not_look_while_another_process_writes(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "_QUIET_TIME", 0.2)
        log = path.with_name(f"{path.name}-wal")
        log.touch()
        path.touch()
        turnstile = Turnstile(str(path), 60)
        looks: list[float] = []

        def look() -> bool:
            looks.append(time.perf_counter())
            return len(looks) > 1

        file_watch = watch.FileWatch(str(path), look)
        waiting = asyncio.create_task(file_watch.wait())
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        with log.open("ab", buffering=0) as file:
            for _ in range(20):
                file.write(b"frame")
                await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            await waiting

        assert looks[0] < began
        assert looks[1] >= began + 0.2
        file_watch.close()
        turnstile.close()

    async def test_a_signal_that_cannot_be_sent_does_not_undo_the_commit(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(_file: int) -> None:
            raise PermissionError

        async with open_store(path, durability="process") as store:
            monkeypatch.setattr(os, "utime", refused)
            assert await requests.insert(store, new_job("a")) == Inserted(("a",))
            monkeypatch.undo()

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify exists only on Linux")
    async def test_the_turnstile_signals_a_visible_commit(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "_POLL_INTERVALS", (3_600.0,))
        path.touch()
        path.with_name(f"{path.name}-wal").touch()
        turnstile = Turnstile(str(path), 60)
        looks = iter((False, True))
        file_watch = watch.FileWatch(str(path), lambda: next(looks))
        waiting = asyncio.create_task(file_watch.wait())
        await asyncio.sleep(0.01)
        assert not waiting.done()

        turnstile.signal_commit()

        async with asyncio.timeout(30):
            await waiting
        file_watch.close()
        turnstile.close()

    async def test_a_write_that_is_rolled_back_wakes_no_waiter(
        self, path: Path, watch_method: str, looks: list[bool]
    ) -> None:
        async with open_store(path, durability="process") as store:
            waiting = asyncio.create_task(store.wait_for_change(store.version(), 0.3))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            db = apsw.Connection(str(path))
            db.pragma("cache_size", 5)
            db.execute("BEGIN IMMEDIATE; CREATE TABLE big (x)")
            for _ in range(50):
                db.execute("INSERT INTO big VALUES (randomblob(4000))")
            db.execute("ROLLBACK")
            db.close()

            assert not await waiting

        assert not any(looks)
        assert len(looks) <= 0.3 / watch.POLL_INTERVAL + 12


def turn_descriptor(store: SqliteStore) -> int:
    assert store._open is not None
    store._open.watch._set_up()
    descriptor = store._open.watch._turn_signals
    assert descriptor is not None
    return descriptor


def is_watched(loop: asyncio.AbstractEventLoop, descriptor: int) -> bool:
    selector: Any = vars(loop)["_selector"]
    return descriptor in selector.get_map()
