"""A worker beside a test, and a wait for what it does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from errandry import Errandry, State, Worker, WorkerOptions
from errandry.core.command import Upkeep
from errandry.core.event import EventKind
from errandry.core.job import JobRecord
from errandry.testing import FakeClock
from tests.pace import PATIENCE


@asynccontextmanager
async def working(jobs: Errandry, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs while this lasts; what it still runs at the end is given back at once."""
    worker = Worker(jobs, WorkerOptions(**options))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await running


async def burst(jobs: Errandry, **options: Any) -> None:
    """Work until nothing is left to do now."""
    await Worker(jobs, WorkerOptions(burst=True, **options)).run()


async def until(jobs: Errandry, job_id: str, holds: Callable[[JobRecord], bool]) -> JobRecord:
    """The job's record as soon as `holds` is true of it. Woken by events, not by a timer."""
    async with asyncio.timeout(PATIENCE):
        head = await jobs.engine.call(jobs.store.latest_cursor)
        record = await jobs.record(job_id)
        if holds(record):
            return record
        async for happened in jobs.events(after=head):
            if happened.event.job == job_id:
                record = await jobs.record(job_id)
                if holds(record):
                    return record
    raise AssertionError(f"{job_id} never came to that: {record}")


async def reached(jobs: Errandry, job_id: str, *states: State) -> JobRecord:
    """The job's record once it is in one of these states."""
    return await until(jobs, job_id, lambda record: record.state in states)


async def kinds(jobs: Errandry, job_id: str) -> list[EventKind]:
    """Everything that has happened to a job, in order."""
    page = await jobs.engine.call(jobs.store.events, None, 10_000)
    return [one.event.kind for one in page.entries if one.event.job == job_id]


async def outlive(jobs: Errandry, clock: FakeClock, job_id: str, lease: float) -> None:
    """Let more time pass than a lease lasts, no faster than it is renewed, with upkeep on its heels."""
    for _ in range(5):
        clock.advance(0.4 * lease)
        async with asyncio.timeout(PATIENCE):
            while ((await jobs.record(job_id)).lease_until or 0.0) < clock.time() + lease:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.005)
        await jobs.engine.submit(Upkeep())
