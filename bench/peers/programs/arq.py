"""arq on Redis: its default polling, a hundred handlers at once, results kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.work import URL, Put, mark

settings = RedisSettings.from_dsn(URL)


async def noop(_ctx: dict[str, Any], i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    pool = await create_pool(settings)
    yield partial(pool.enqueue_job, "noop")
    await pool.aclose()


def work() -> None:
    async def run() -> None:
        await Worker([noop], redis_settings=settings, max_jobs=100, handle_signals=False).async_run()

    asyncio.run(run())
