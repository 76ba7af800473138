"""Dramatiq on Redis: acknowledged after the handler, results kept."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.peers.work import URL, Put, mark

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    yield noop.send


def work() -> None:
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    try:
        while True:
            time.sleep(3_600)
    finally:
        worker.stop()
