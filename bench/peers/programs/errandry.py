"""Errandry as it is without any setting, on SQLite or PostgreSQL: writes synced, results and history kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.peers.work import URL, Put, mark
from errandry import Errandry, Worker

jobs = Errandry(URL if "://" in URL else f"sqlite:///{URL}")


@jobs.task
async def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with jobs:
        yield noop.enqueue


def work() -> None:
    asyncio.run(Worker(jobs).run(signals=True))
