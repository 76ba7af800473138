"""Errandry on SQLite, as it is without any setting: every write synced, results and history kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.peers.work import URL, Put, mark
from errandry import Errandry, Worker

jobs = Errandry(f"sqlite:///{URL}")


@jobs.task
async def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with jobs:
        yield noop.enqueue


def work() -> None:
    asyncio.run(Worker(jobs).run(signals=True))
