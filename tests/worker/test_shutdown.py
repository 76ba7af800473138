"""What a stopping worker does with its jobs."""

import asyncio
import subprocess
import sys

from errandry import Errandry, State
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
