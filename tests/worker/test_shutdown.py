"""What a stopping worker does with its jobs."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from errandry import Errandry, State, Worker, WorkerOptions
from errandry.core.state import Reason
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import running_worker, wait_for_state
from tests.worker.gate import Gate


async def test_a_stop_lets_handlers_finish(live: Errandry, gate: Gate) -> None:
    @live.task
    async def work() -> str:
        await gate.pass_through()
        return "finished"

    job, later = await work.enqueue(), await work.using(delay=60).enqueue()
    async with running_worker(live) as worker:
        await gate.begun.wait()
        worker.stop()
        await live.promote(later.id)
        gate.opened.set()
        assert await job.result(30) == "finished"

    assert (await later.refresh()).state is State.WAITING


async def test_a_worker_reports_at_once_that_it_drains(live: Errandry, gate: Gate) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    async def wait_until_draining() -> None:
        version = live.store.version()
        while not [worker for worker in await live.workers.list() if worker.draining]:
            await live.engine.call(live.store.wait_for_change, version, 1.0)
            version = live.store.version()

    await work.enqueue()
    async with running_worker(live, beat_every=3_600) as worker:
        await gate.begun.wait()
        assert [worker.draining for worker in await live.workers.list()] == [False]
        worker.stop()
        await asyncio.wait_for(wait_until_draining(), WAIT_TIMEOUT)
        gate.opened.set()

    assert await live.workers.list() == []


async def test_a_job_that_does_not_finish_within_the_grace_is_released_without_cost(
    live: Errandry, gate: Gate
) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    job = await work.enqueue()
    async with running_worker(live, grace=0.02) as worker:
        await gate.begun.wait()
        worker.stop()
        record = await wait_for_state(live, job.id, State.WAITING)

    assert (record.attempts, record.releases, record.errors) == (0, 1, ())


PROGRAM_THAT_IS_SIGNALED_TWICE = """
import asyncio, os, signal
from errandry import Errandry, Worker

async def main():
    async with Errandry("memory:") as jobs:
        running = asyncio.create_task(Worker(jobs).run(signals=True))
        while not await jobs.workers.list():
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        for number in (signal.SIGINT, signal.SIGTERM):  # while the program closes its store
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
    print("closed")

asyncio.run(main())
"""


def test_a_signal_after_the_worker_has_stopped_by_one_does_not_interrupt_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM_THAT_IS_SIGNALED_TWICE],
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def cancel_all_tasks() -> None:
    """What `asyncio.run` does when its program ends."""
    test = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not test:
            task.cancel()


@pytest.mark.parametrize("is_program", [False, True])
async def test_jobs_whose_handlers_are_canceled_together_with_their_worker(
    live: Errandry, gate: Gate, is_program: bool
) -> None:
    """They are released without cost; if the program is the worker, a handler may have ended it."""

    @live.task(max_attempts=2)
    async def work() -> None:
        await gate.pass_through()

    job = await work.enqueue()
    working = asyncio.create_task(Worker(live).run(is_program=is_program))
    await gate.begun.wait()
    cancel_all_tasks()
    with pytest.raises(asyncio.CancelledError):
        await working

    record = await live.client.record(job.id)
    assert record.state is State.WAITING
    if is_program:
        assert (record.attempts, record.releases, record.crashes) == (1, 0, 1)
        assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
    else:
        assert (record.attempts, record.releases, record.crashes, record.errors) == (0, 1, 0, ())


async def test_a_handler_that_cancels_all_tasks_is_released_with_its_worker(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work() -> None:
        for task in asyncio.all_tasks():
            if task is not test:
                task.cancel()
        await asyncio.Event().wait()

    test, job = asyncio.current_task(), await work.enqueue()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(Worker(live).run())

    record = await live.client.record(job.id)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def test_a_cancel_while_the_worker_drains_ends_the_grace(
    live: Errandry, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "errandry.worker")

    @live.task(max_attempts=1)
    async def work() -> None:
        await gate.pass_through()

    job, worker = await work.enqueue(), Worker(live, WorkerOptions(grace=3_600.0))
    working = asyncio.create_task(worker.run())
    await gate.begun.wait()
    worker.stop()
    async with asyncio.timeout(WAIT_TIMEOUT):
        while "handlers may finish" not in caplog.text:  # noqa: ASYNC110 - a log line sets no event
            await asyncio.sleep(0.001)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    record = await live.client.record(job.id)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def test_closing_the_app_ends_its_worker_first(tmp_path: Path, gate: Gate) -> None:
    jobs = Errandry(f"sqlite:////{tmp_path}/jobs.db")

    @jobs.task(max_attempts=1)
    async def work() -> None:
        await gate.pass_through()

    async with jobs:
        job = await work.enqueue()
        working = asyncio.create_task(jobs.run_worker())
        await gate.begun.wait()

    await working
    async with jobs:
        record = await jobs.client.record(job.id)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def test_a_handler_may_close_its_app(tmp_path: Path) -> None:
    jobs = Errandry(f"sqlite:////{tmp_path}/jobs.db")

    @jobs.task(max_attempts=1)
    async def work() -> None:
        await jobs.close()

    await jobs.open()
    job = await work.enqueue()
    await jobs.run_worker()
    await jobs.close()

    async with jobs:
        record = await jobs.client.record(job.id)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)
