"""taskiq on Redis streams: acknowledged after the handler, a hundred handlers at once, results kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.peers.work import URL, Put, mark

broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL))


@broker.task(task_name="noop")
async def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    await broker.startup()
    yield noop.kiq
    await broker.shutdown()


def work() -> None:
    async def run() -> None:
        broker.is_worker_process = True
        await run_receiver_task(broker, max_async_tasks=100, run_startup=True)

    asyncio.run(run())
