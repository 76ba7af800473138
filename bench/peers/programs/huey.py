"""Huey on SQLite: WAL, every commit synced, results kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from huey import SqliteHuey

from bench.peers.work import URL, Put, mark

huey = SqliteHuey(filename=URL, fsync=True, results=True)


@huey.task()
def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    yield noop


def work() -> None:
    huey.create_consumer(workers=1, worker_type="thread", initial_delay=0.1, max_delay=0.1).run()
