"""pgqueuer on PostgreSQL with asyncpg: batches of a hundred; it logs how jobs ended, and keeps no results."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.models import Job

from bench.peers.work import URL, Put, mark


@asynccontextmanager
async def producer() -> AsyncIterator[Put]:
    connection = await asyncpg.connect(URL)
    queries = Queries.from_asyncpg_connection(connection)
    if not await queries.has_table("pgqueuer"):
        await queries.install()

    async def put(i: int, sent: float) -> None:
        await queries.enqueue("noop", json.dumps({"i": i, "sent": sent}).encode())

    yield put
    await connection.close()


def work() -> None:
    async def run() -> None:
        queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(URL))

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            arguments = json.loads(job.payload or b"")
            mark(arguments["i"], arguments["sent"])

        await queuer.run(batch_size=100)

    asyncio.run(run())
