"""The worker processes of a benchmark run: none outlives the run, and a failing one reports why."""

import os
from pathlib import Path

import pytest

from errandry.bench.bench_store import BenchStore
from errandry.bench.tasks import declare_app
from errandry.bench.worker_processes import WorkerEnded, WorkerProcesses
from errandry.worker import WorkerOptions


def _store(folder: Path, url: str) -> BenchStore:
    return BenchStore(url, declare_app(url), folder, None)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow(reason="starts workers in processes")
async def test_workers_start_together_and_report_their_usage(tmp_path: Path) -> None:
    store = _store(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    async with store.app, WorkerProcesses(store) as workers:
        await store.app.enqueue_many([store.app.tasks["noop"].new(i=i) for i in range(50)])
        processes = await workers.start(2, WorkerOptions(burst=True))
        assert await store.app.counts() == {"default": {"waiting": 50}}

        for process in processes:
            process.go()
        usages = [await process.usage() for process in processes]

        assert await store.app.counts() == {"default": {"completed": 50}}
        assert all(usage.began < usage.ended for usage in usages)


@pytest.mark.slow(reason="starts workers in processes")
async def test_no_worker_outlives_the_run(tmp_path: Path) -> None:
    store = _store(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    async with store.app:
        async with WorkerProcesses(store) as workers:
            waiting = await workers.start(1, WorkerOptions())
            working = await workers.start_working(2, WorkerOptions())
            await workers.kill(working[0])
            assert [_is_alive(process.pid) for process in (*waiting, *working)] == [True, False, True]

        assert [_is_alive(process.pid) for process in (*waiting, *working)] == [False] * 3


@pytest.mark.slow(reason="starts a worker in a process")
async def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with WorkerProcesses(_store(tmp_path, f"sqlite:///{tmp_path}/none/jobs.db")) as workers:
        with pytest.raises(WorkerEnded, match=r"ended with exit code 1: .*the folder does not exist"):
            await workers.start(1, WorkerOptions())
