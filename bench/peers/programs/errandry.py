"""Errandry on SQLite or PostgreSQL with default options except the slots: writes synced, results kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.peers.work import BATCH, URL, Put, PutMany, mark
from errandry import Errandry, Worker, WorkerOptions, event_loop

jobs = Errandry(URL if "://" in URL else f"sqlite:///{URL}")


@jobs.task
async def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with jobs:
        yield noop.enqueue


@asynccontextmanager
async def bulk() -> AsyncIterator[PutMany]:
    async with jobs:

        async def put_many(numbers: list[int], sent: float) -> None:
            await jobs.enqueue_many([noop.new(i, sent) for i in numbers])

        yield put_many


def work() -> None:
    """Run a worker as `errandry worker` does."""
    event_loop.run(Worker(jobs, WorkerOptions(concurrency=BATCH)).run(signals=True))
