"""Run a worker beside a test, and wait for jobs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from errandry import Errandry, State, Worker, WorkerOptions
from errandry.core.command import Upkeep
from errandry.core.event import EventKind
from errandry.core.job import JobRecord
from errandry.testing import FakeClock
from tests.machine_load import WAIT_TIMEOUT


@asynccontextmanager
async def running_worker(jobs: Errandry, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs inside the `with` block. At the end it releases its jobs at once."""
    worker = Worker(jobs, WorkerOptions(**options))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await running


async def run_burst(jobs: Errandry, **options: Any) -> None:
    """Run a worker until no job is ready."""
    await Worker(jobs, WorkerOptions(burst=True, **options)).run()


async def wait_for_job(jobs: Errandry, job_id: str, holds: Callable[[JobRecord], bool]) -> JobRecord:
    """The record of a job as soon as `holds` is true of it. Waits for events, so it does not poll."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        head = await jobs.engine.call(jobs.store.latest_cursor)
        record = await jobs.client.record(job_id)
        if holds(record):
            return record
        async for event in jobs.events(after=head):
            if event.job == job_id:
                record = await jobs.client.record(job_id)
                if holds(record):
                    return record
    raise AssertionError(f"{job_id} did not get there: {record}")


async def wait_for_state(jobs: Errandry, job_id: str, *states: State) -> JobRecord:
    """The record of a job as soon as it is in one of these states."""
    return await wait_for_job(jobs, job_id, lambda record: record.state in states)


async def event_kinds(jobs: Errandry, job_id: str) -> list[EventKind]:
    """The events of a job, in order."""
    page = await jobs.engine.call(jobs.store.events, None, 10_000)
    return [entry.event.kind for entry in page.entries if entry.event.job == job_id]


async def outlast_lease(jobs: Errandry, clock: FakeClock, job_id: str, lease: float) -> None:
    """Move the clock past the lease of a job in steps, each followed by a renewal and upkeep."""
    for _ in range(5):
        clock.advance(0.4 * lease)
        async with asyncio.timeout(WAIT_TIMEOUT):
            while ((await jobs.client.record(job_id)).lease_until or 0.0) < clock.time() + lease:  # noqa: ASYNC110 - a renewal has no event
                await asyncio.sleep(0.005)
        await jobs.engine.submit(Upkeep())
