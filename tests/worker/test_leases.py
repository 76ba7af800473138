"""Leases of running jobs: renewed, lost, and kept while the store is away."""

import asyncio

from errandry import Errandry, Event, JobContext
from errandry.errors import StoreUnavailable
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import outlast_lease, running_worker
from tests.worker.gate import Gate


async def test_a_handler_that_runs_longer_than_the_lease_keeps_it(jobs: Errandry, clock: FakeClock) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> str:
        await outlast_lease(jobs, clock, ctx.id, lease=0.9)
        return "once"

    job = await work.enqueue()
    async with running_worker(jobs, lease=0.9, renew_every=0.1):
        assert await job.result(WAIT_TIMEOUT) == "once"

    assert (job.record.attempts, job.record.crashes) == (1, 0)


async def test_a_lost_lease_stops_the_handler_and_nothing_is_written(live: Errandry, gate: Gate) -> None:
    stopped = asyncio.Event()

    @live.task
    async def work() -> str:
        try:
            await gate.pass_through()
        finally:
            stopped.set()
        return "never"

    job = await work.enqueue()
    async with running_worker(live, renew_every=0.02):
        await gate.begun.wait()
        await live.remove(job.id, force=True)
        await asyncio.wait_for(stopped.wait(), 30)

    assert (await live.list()).jobs == ()


async def test_a_lease_that_is_not_renewed_in_time_is_an_error_event(
    jobs: Errandry, clock: FakeClock, gate: Gate
) -> None:
    """A store that hangs raises no error that could be reported."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    @jobs.on("error")
    async def hear(event: Event) -> None:
        heard.put_nowait(event.text)

    @jobs.task
    async def work() -> None:
        await gate.pass_through()

    await work.enqueue()
    async with running_worker(jobs) as worker:
        await gate.begun.wait()
        clock.advance(31)
        text = await asyncio.wait_for(heard.get(), WAIT_TIMEOUT)

    assert text == f"worker {worker.id}: lost leases: they could not be renewed in time"


async def test_an_unavailable_store_for_a_moment_costs_no_job(live: Errandry) -> None:
    @live.task
    async def work(n: int) -> int:
        if n == 3:
            assert isinstance(live.store, MemoryStore)
            live.store.fail_before += [StoreUnavailable("memory", "away")] * 3
        return n

    jobs = [await work.enqueue(n) for n in range(6)]
    async with running_worker(live, concurrency=2):
        assert [await job.result(30) for job in jobs] == list(range(6))

    assert {job.record.attempts for job in jobs} == {1}
