"""Procrastinate on PostgreSQL: a hundred handlers at once; jobs stay in its table, results are not kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector

from bench.peers.work import URL, Put, PutMany, mark

app = App(connector=PsycopgConnector(conninfo=URL))


@app.task(name="noop")
async def noop(i: int, sent: float) -> int:
    return mark(i, sent)


@asynccontextmanager
async def connected() -> AsyncIterator[None]:
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        yield


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with connected():

        async def put(i: int, sent: float) -> None:
            await noop.defer_async(i=i, sent=sent)

        yield put


@asynccontextmanager
async def bulk() -> AsyncIterator[PutMany]:
    async with connected():

        async def put_many(numbers: list[int], sent: float) -> None:
            await noop.batch_defer_async(*({"i": i, "sent": sent} for i in numbers))

        yield put_many


def work() -> None:
    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=100, install_signal_handlers=False)

    asyncio.run(run())
