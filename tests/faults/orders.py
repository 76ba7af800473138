"""A program with a table of its own: it writes each order and the jobs of that order in one transaction.

Each order has a random number of jobs, whose ids begin with that of the order. Some orders are rolled back.
The failpoints are `before_order`, `before_bound_insert`, `before_commit` and `after_commit`.
"""

import asyncio
import logging
import os
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

import apsw
import asyncpg
import psycopg

from errandry import Errandry, failpoint
from errandry.core.job import uuid7
from tests.faults.handlers import journal
from tests.faults.history import EnqueueAcked, EnqueueSent

log = logging.getLogger("orders")

TASKS: Sequence[tuple[str, dict[str, float]]] = (
    ("quick", {}),
    ("stumble", {}),
    ("collect", {"seconds": 0.05}),
)
"""What orders enqueue: tasks and their arguments."""
LOST = (
    *(psycopg.OperationalError, psycopg.InterfaceError, OSError),
    *(asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError),
    asyncpg.InternalClientError,  # if the connection is lost between two statements
)
"""Errors of a lost connection. The program cannot know whether its transaction was committed."""
RECONNECT_PAUSE = 0.05
"""Seconds between two attempts to connect."""

CREATE = "CREATE TABLE {table} (id text PRIMARY KEY, jobs int NOT NULL)"
INSERT = "INSERT INTO {table} VALUES ('{id}', {jobs})"
SELECT = "SELECT id, jobs FROM {table}"


class OrderDatabase(Protocol):
    """A connection of the caller's own, and the name of the table."""

    table: str

    async def execute(self, sql: str) -> None: ...
    async def rows(self, sql: str) -> list[tuple[str, int]]: ...
    async def enqueue(self, app: Errandry, job: str, task: str, arguments: dict[str, float]) -> None: ...
    async def close(self) -> None: ...


class SqliteOrders:
    """The table is in the file of the jobs."""

    table = "orders"

    def __init__(self, url: str) -> None:
        self._db = apsw.Connection(url.removeprefix("sqlite:///"))
        self._db.set_busy_timeout(60_000)

    async def execute(self, sql: str) -> None:
        await asyncio.to_thread(self._db.execute, "BEGIN IMMEDIATE" if sql == "BEGIN" else sql)

    async def rows(self, sql: str) -> list[tuple[str, int]]:
        return [(str(order), int(str(count))) for order, count in self._db.execute(sql)]

    async def enqueue(self, app: Errandry, job: str, task: str, arguments: dict[str, float]) -> None:
        app.sync.bind(self._db).enqueue(task, arguments, id=job)

    async def close(self) -> None:
        self._db.close()


class PsycopgOrders:
    """The table is beside the tables of the jobs."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], schema: str) -> None:
        self._db, self.table = connection, f"{schema}.orders"

    @classmethod
    async def open(cls, url: str) -> Self:
        server, schema = split_schema(url)
        return cls(await psycopg.AsyncConnection.connect(server, autocommit=True), schema)

    async def execute(self, sql: str) -> None:
        await self._db.execute(sql.encode())

    async def rows(self, sql: str) -> list[tuple[str, int]]:
        return await (await self._db.execute(sql.encode())).fetchall()

    async def enqueue(self, app: Errandry, job: str, task: str, arguments: dict[str, float]) -> None:
        await app.bind(self._db).enqueue(task, arguments, id=job)

    async def close(self) -> None:
        await self._db.close()


class AsyncpgOrders:
    """The same over asyncpg."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._db, self.table = connection, f"{schema}.orders"

    @classmethod
    async def open(cls, url: str) -> Self:
        server, schema = split_schema(url)
        return cls(await asyncpg.connect(server), schema)

    async def execute(self, sql: str) -> None:
        await self._db.execute(sql)

    async def rows(self, sql: str) -> list[tuple[str, int]]:
        return [tuple(row) for row in await self._db.fetch(sql)]

    async def enqueue(self, app: Errandry, job: str, task: str, arguments: dict[str, float]) -> None:
        await app.bind(self._db).enqueue(task, arguments, id=job)

    async def close(self) -> None:
        self._db.terminate()  # it may be lost already


def split_schema(url: str) -> tuple[str, str]:
    """The URL of the server, without the schema of the store, and that schema."""
    address, _, query = url.partition("?")
    options = dict(part.split("=", 1) for part in query.split("&"))
    schema = options.pop("schema")
    return f"{address}?{'&'.join(f'{name}={value}' for name, value in options.items())}", schema


async def open_orders(url: str, library: str = "psycopg") -> OrderDatabase:
    """A new connection; for a PostgreSQL store over `psycopg` or `asyncpg`."""
    if url.startswith("sqlite:"):
        return SqliteOrders(url)
    return await (PsycopgOrders if library == "psycopg" else AsyncpgOrders).open(url)


async def create_orders(url: str) -> None:
    db = await open_orders(url)
    await db.execute(CREATE.format(table=db.table))
    await db.close()


async def jobs_of_orders(url: str) -> set[str]:
    """The ids of the jobs that must exist, according to the table of orders."""
    db = await open_orders(url)
    rows = await db.rows(SELECT.format(table=db.table))
    await db.close()
    return {f"{order}/{number}" for order, count in rows for number in range(count)}


def is_of_order(job: str) -> bool:
    return "/" in job


class Clerk:
    """Writes orders over one connection, and opens another when that one is lost."""

    def __init__(self, app: Errandry, seed: float, rollbacks: float = 0.2, library: str = "psycopg") -> None:
        self._app, self._dice, self._rollbacks, self._library = app, random.Random(seed), rollbacks, library
        self._db: OrderDatabase | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Write orders until `stop` is set."""
        while not stop.is_set():
            try:
                if self._db is None:
                    self._db = await open_orders(os.environ["ERRANDRY_URL"], self._library)
                await self.place_order(self._db)
            except LOST as error:
                log.info("lost the connection: %s", error)
                if self._db is not None:
                    await self._db.close()
                self._db = None
                await asyncio.sleep(RECONNECT_PAUSE)
            await asyncio.sleep(self._dice.uniform(0, 0.02))
        if self._db is not None:
            await self._db.close()

    async def place_order(self, db: OrderDatabase) -> None:
        """Write an order and its jobs, and commit or roll back."""
        order, count = uuid7(time.time(), secrets.token_bytes(10)), self._dice.randint(1, 3)
        jobs, pid = [f"{order}/{number}" for number in range(count)], os.getpid()
        await db.execute("BEGIN")
        failpoint.reach("before_order")
        await db.execute(INSERT.format(table=db.table, id=order, jobs=count))
        for job in jobs:
            failpoint.reach("before_bound_insert")
            journal().write(EnqueueSent(job, pid, time.time()))
            await db.enqueue(self._app, job, *self._dice.choice(TASKS))
        failpoint.reach("before_commit")
        if self._dice.random() < self._rollbacks:
            await db.execute("ROLLBACK")
            return
        await db.execute("COMMIT")
        failpoint.reach("after_commit")
        journal().write(*[EnqueueAcked(job, pid, time.time()) for job in jobs])
