"""Several processes on one SQLite file: they work at once, are killed and stopped, and take turns."""

import asyncio
import fcntl
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from errandry.core.answer import Inserted
from errandry.core.state import State
from errandry.errors import StoreUnavailable
from errandry.store.sqlite.turnstile import Turnstile
from errandry.testing.conformance import requests
from tests.machine_load import MachineLoad
from tests.store.sqlite.processes import Start, starts_programs
from tests.store.sqlite.stores import (
    check_integrity,
    job_ids,
    new_job,
    open_store,
)


@starts_programs
class TestTogether:
    async def test_eight_processes_create_one_store_at_the_same_time(
        self, tmp_path: Path, start: Start
    ) -> None:
        children = [start("make", f"job-{n}") for n in range(8)]
        for child in children:
            assert child.receive() == "ready"
        for attempt in range(5):
            for child in children:
                child.send(f"{tmp_path}/{attempt}.db")

            assert [child.receive() for child in children] == ["made"] * 8

            async with open_store(tmp_path / f"{attempt}.db", durability="process") as store:
                assert await job_ids(store) == {f"job-{n}" for n in range(8)}
                assert store.writer.execute("SELECT count(*) FROM migrations").fetchall() == [(1,)]
                await check_integrity(store)

    async def test_each_job_is_claimed_by_one_process(self, path: Path, start: Start) -> None:
        children = [start("work", path, f"worker-{n}", 150) for n in range(4)]
        for child in children:
            assert child.receive() == "ready"
        for child in children:
            child.send()
        results = [child.finish()[0] for child in children]

        async with open_store(path, durability="process") as store:
            left = await requests.claim_ids(store, limit=10_000)
            await check_integrity(store)
            finished = {job.id for job in await requests.list_jobs(store) if job.state is State.COMPLETED}

        inserted = [job_id for result in results for job_id in result["inserted"]]
        claimed = [job_id for result in results for job_id in result["claimed"]]
        assert len(inserted) == 4 * 150 * 3
        assert len(claimed) == len(set(claimed))
        assert sorted(claimed + left) == sorted(inserted)
        assert finished == set(claimed)
        assert all(result["claimed"] for result in results)

    async def test_a_pass_waits_for_a_program_that_has_locked_the_file(
        self, path: Path, start: Start
    ) -> None:
        async with open_store(path, durability="process") as store:
            child = start("lock", path, 0.3)
            assert child.receive() == "locked"

            assert await requests.insert(store, new_job("a")) == Inserted(("a",))

            assert time.monotonic() >= child.receive()

    async def test_a_stopped_process_does_not_stop_the_others(self, path: Path, start: Start) -> None:
        child = start("insert", path, "child")
        child.send()
        assert child.receive()
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)

        async with open_store(path, durability="process") as store:
            assert await requests.insert(store, new_job("mine")) == Inserted(("mine",))
            assert await requests.claim_ids(store) == ["child-0", "mine"]

            os.kill(child.pid, signal.SIGCONT)
            child.send()
            assert child.receive()
            assert await requests.claim_ids(store) == ["child-1"]


@starts_programs
class TestKilled:
    @pytest.mark.parametrize("durability", ["power", "process"])
    async def test_jobs_whose_insert_was_acknowledged_survive_a_kill(
        self, path: Path, start: Start, durability: str
    ) -> None:
        dice = random.Random(durability)
        acked: set[str] = set()
        for attempt in range(2):
            children = [start("churn", path, f"{attempt}-{n}", durability) for n in range(2)]
            for child in children:
                for _ in range(dice.randrange(5, 60)):
                    acked |= set(child.receive())
            for child in children:
                child.kill()
                for inserted in child.receive_rest():
                    acked |= set(inserted)

            async with open_store(path, durability="process") as store:
                assert acked <= await job_ids(store)
                await check_integrity(store)

    @pytest.mark.parametrize("point", ["begin", "write_jobs", "append_events", "save_state", "committed"])
    async def test_a_pass_is_written_whole_or_not_at_all(self, path: Path, start: Start, point: str) -> None:
        async with open_store(path, durability="process") as store:
            child = start("die", path, point)
            assert child.receive() == ["before"]
            assert child.receive_rest() == []
            assert child.process.returncode == -signal.SIGKILL

            written = {"in-1", "in-2"} if point == "committed" else set()
            assert await job_ids(store) == {"before"} | written
            again = await requests.insert(store, new_job("in-1"), new_job("in-2"))
            assert again == Inserted(("in-1", "in-2"), frozenset(written))
            await check_integrity(store)


class TestTurnstile:
    @starts_programs
    async def test_a_light_process_is_not_kept_waiting_by_a_busy_one(self, path: Path, start: Start) -> None:
        child = start("saturate", path)
        assert child.receive() == "busy"
        durations = []
        async with open_store(path, durability="process") as store:
            with MachineLoad() as load:
                for n in range(200):
                    began = time.perf_counter()
                    await requests.insert(store, new_job(f"light-{n}"))
                    durations.append(time.perf_counter() - began)
                    await asyncio.sleep(0.002)
            assert child.process.poll() is None
        child.kill()

        assert sorted(durations)[197] < load.scaled(0.1)

    def test_a_waiting_process_gets_its_turn_before_one_that_comes_back(self, path: Path) -> None:
        path.touch()
        first, second = Turnstile(str(path), 60), Turnstile(str(path), 60)
        order = []

        def wait() -> None:
            with second:
                order.append("second")

        with first:
            waiting = threading.Thread(target=wait)
            waiting.start()
            wait_until(lambda: is_locked(f"{path}-next"))
            order.append("first")
        with first:
            order.append("first again")
        waiting.join()
        first.close()
        second.close()

        assert order == ["first", "second", "first again"]

    def test_a_wait_ends_with_its_timeout_and_the_next_one_gets_the_turn(self, path: Path) -> None:
        path.touch()
        suspended, waiting = Turnstile(str(path), 60), Turnstile(str(path), 0.01)

        with suspended:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"kept its turn to write for 0\.01 s"), waiting:
                    pass
        wait_until(lambda: not is_locked(f"{path}-turn"))  # the turn that came late was not kept
        with waiting:
            assert is_locked(f"{path}-turn")

        assert not is_locked(f"{path}-turn")
        suspended.close()
        waiting.close()

    def test_a_turn_that_comes_after_the_close_is_not_kept(self, path: Path) -> None:
        path.touch()
        suspended, closed = Turnstile(str(path), 60), Turnstile(str(path), 0.01)

        with suspended:
            with pytest.raises(StoreUnavailable), closed:
                pass
            closed.close()

        wait_until(lambda: not is_locked(f"{path}-turn"))
        suspended.close()

    async def test_a_process_that_keeps_its_turn_makes_writes_fail_and_reads_go_on(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("errandry.store.sqlite.driver.TURN_TIMEOUT", 0.01)
        async with open_store(path, durability="process") as store:
            suspended = Turnstile(store.path, 60)
            with suspended:
                with pytest.raises(StoreUnavailable, match="suspended"):
                    await requests.insert(store, new_job("refused"))
                assert await store.get(["refused"]) == [None]

            await requests.insert(store, new_job("accepted"))
            assert await job_ids(store) == {"accepted"}
            suspended.close()


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def is_locked(path: str) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
