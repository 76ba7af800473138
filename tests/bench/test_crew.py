"""The worker processes of a run: none outlives it, and one that breaks says why."""

import os
from pathlib import Path

import pytest

from errandry.bench.bench_store import BenchStore
from errandry.bench.tasks import declared
from errandry.bench.worker_processes import WorkerEnded, WorkerProcesses
from errandry.worker import WorkerOptions


def _place(folder: Path, url: str) -> BenchStore:
    return BenchStore(url, declared(url), folder, None)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow(reason="starts workers in processes")
async def test_workers_begin_together_and_say_when_they_worked(tmp_path: Path) -> None:
    place = _place(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    async with place.app, WorkerProcesses(place) as crew:
        await place.app.enqueue_many([place.app.tasks["noop"].new(i=i) for i in range(50)])
        hands = await crew.hire(2, WorkerOptions(burst=True))
        assert await place.app.counts() == {"default": {"waiting": 50}}

        for hand in hands:
            hand.go()
        shifts = [await hand.shift() for hand in hands]

        assert await place.app.counts() == {"default": {"completed": 50}}
        assert all(shift.began < shift.ended for shift in shifts)


@pytest.mark.slow(reason="starts workers in processes")
async def test_no_worker_outlives_its_crew(tmp_path: Path) -> None:
    place = _place(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    async with place.app:
        async with WorkerProcesses(place) as crew:
            waiting = await crew.hire(1, WorkerOptions())
            working = await crew.at_work(2, WorkerOptions())
            await crew.kill(working[0])
            assert [_is_there(hand.pid) for hand in (*waiting, *working)] == [True, False, True]

        assert [_is_there(hand.pid) for hand in (*waiting, *working)] == [False] * 3


@pytest.mark.slow(reason="starts a worker in a process")
async def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with WorkerProcesses(_place(tmp_path, f"sqlite:///{tmp_path}/none/jobs.db")) as crew:
        with pytest.raises(WorkerEnded, match=r"ended with 1: .*there is no such folder"):
            await crew.hire(1, WorkerOptions())
