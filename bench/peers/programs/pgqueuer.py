"""pgqueuer on PostgreSQL with asyncpg, in batches; it logs how jobs ended, and keeps no results."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.models import Job

from bench.peers.work import BATCH, URL, Put, PutMany, mark


@asynccontextmanager
async def connected() -> AsyncIterator[Queries]:
    connection = await asyncpg.connect(URL)
    queries = Queries.from_asyncpg_connection(connection)
    if not await queries.has_table("pgqueuer"):
        await queries.install()
    yield queries
    await connection.close()


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    async with connected() as queries:

        async def put(i: int, sent: float) -> None:
            await queries.enqueue("noop", payload(i, sent))

        yield put


@asynccontextmanager
async def bulk() -> AsyncIterator[PutMany]:
    async with connected() as queries:

        async def put_many(numbers: list[int], sent: float) -> None:
            count = len(numbers)
            await queries.enqueue(["noop"] * count, [payload(i, sent) for i in numbers], [0] * count)

        yield put_many


def payload(i: int, sent: float) -> bytes:
    return json.dumps({"i": i, "sent": sent}).encode()


def work() -> None:
    async def run() -> None:
        queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(URL))

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            arguments = json.loads(job.payload or b"")
            mark(arguments["i"], arguments["sent"])

        await queuer.run(batch_size=BATCH)

    asyncio.run(run())
