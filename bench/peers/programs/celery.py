"""Celery on Redis: one process without a pool, acknowledged after the handler, results kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery

from bench.peers.work import URL, Put, mark

app = Celery("peers", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=128, broker_connection_retry_on_startup=True)


@app.task(name="noop")
def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    yield noop.delay


def work() -> None:
    app.worker_main(["worker", "--pool=solo", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])
