"""Callers of `bind`: a connection of each library, with its commit and rollback.

Blocking connections run in their own thread, as in a program: Django refuses to run on a loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import django
import django.conf
import psycopg
import sqlalchemy
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from errandry import Errandry, Flow, Job
from errandry.api.sync import SyncJob
from errandry.api.task import Call, Task
from tests.machine_load import WAIT_TIMEOUT
from tests.store.server import Server, server

if not django.conf.settings.configured:
    django.conf.settings.configure()
    django.setup()


R = TypeVar("R")


class Caller:
    """A connection with an open transaction. Its methods are async for blocking libraries too."""

    def __init__(self, connection: Any, commit: Callable[[], Any], rollback: Callable[[], Any]) -> None:
        self.connection, self._commit, self._rollback = connection, commit, rollback

    async def commit(self) -> None:
        await self.call(self._commit)

    async def rollback(self) -> None:
        await self.call(self._rollback)

    async def enqueue(self, request: Call[Any]) -> Job[Any]:
        [job] = await request.task.app.bind(self.connection).enqueue_many([request])
        return job

    async def flow(self, jobs: Errandry, flow: Flow[R]) -> Job[R]:
        return await jobs.bind(self.connection).enqueue_flow(flow)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await function(*args)


class BlockingCaller(Caller):
    """A caller with a blocking connection, used in its own thread."""

    def __init__(self, thread: ThreadPoolExecutor, *args: Any) -> None:
        super().__init__(*args)
        self._thread = thread

    async def enqueue(self, request: Call[Any]) -> Job[Any]:
        bound = request.task.app.bind(self.connection)
        jobs: list[SyncJob[Any]] = await self.call(bound.sync.enqueue_many, [request])
        return jobs[0]._mirrored

    async def flow(self, jobs: Errandry, flow: Flow[R]) -> Job[R]:
        job: SyncJob[R] = await self.call(jobs.sync.bind(self.connection).enqueue_flow, flow)
        return job._mirrored

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


async def enqueue(caller: Caller, task: Task[[str], Any], to: str, **options: Any) -> Job[Any]:
    return await caller.enqueue(task.using(**options).new(to))


@asynccontextmanager
async def asyncpg_connection(server: Server) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(host=str(server.folder), user="errandry", database="postgres")
    transaction = connection.transaction()
    await transaction.start()
    yield Caller(connection, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def asyncpg_pool(server: Server) -> AsyncIterator[Caller]:
    where = {"host": str(server.folder), "user": "errandry", "database": "postgres"}
    async with asyncpg.create_pool(min_size=1, **where) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def psycopg_async(server: Server) -> AsyncIterator[Caller]:
    connection = await psycopg.AsyncConnection.connect(server.url())
    yield Caller(connection, connection.commit, connection.rollback)
    await connection.close()


@asynccontextmanager
async def psycopg_sync(server: Server) -> AsyncIterator[Caller]:
    with ThreadPoolExecutor(1) as thread, psycopg.connect(server.url()) as connection:
        yield BlockingCaller(thread, connection, connection.commit, connection.rollback)


@asynccontextmanager
async def sqlalchemy_connection(server: Server) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(alchemy(server, "psycopg"))
    with ThreadPoolExecutor(1) as thread, engine.connect() as connection:
        yield BlockingCaller(thread, connection, connection.commit, connection.rollback)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(server: Server) -> AsyncIterator[Caller]:
    engine = sqlalchemy.create_engine(alchemy(server, "psycopg"))
    with ThreadPoolExecutor(1) as thread, Session(engine) as session:
        yield BlockingCaller(thread, session, session.commit, session.rollback)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection(server: Server) -> AsyncIterator[Caller]:
    engine = create_async_engine(alchemy(server, "asyncpg"))
    async with engine.connect() as connection:
        yield Caller(connection, connection.commit, connection.rollback)
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(server: Server) -> AsyncIterator[Caller]:
    engine = create_async_engine(alchemy(server, "psycopg"))
    async with AsyncSession(engine) as session:
        yield Caller(session, session.commit, session.rollback)
    await engine.dispose()


@asynccontextmanager
async def django_connection(server: Server) -> AsyncIterator[Caller]:
    where = {"NAME": "postgres", "USER": "errandry", "HOST": str(server.folder)}
    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.postgresql", **where}})

    def open_connection() -> Any:
        connection = handler["default"]
        connection.set_autocommit(False)
        return connection

    with ThreadPoolExecutor(1) as thread:
        connection = await asyncio.get_running_loop().run_in_executor(thread, open_connection)
        caller = BlockingCaller(thread, connection, connection.commit, connection.rollback)
        yield caller
        await caller.rollback()
        await caller.call(connection.close)


def alchemy(server: Server, driver: str) -> str:
    return f"postgresql+{driver}:///postgres?host={server.folder}&user=errandry"


CALLERS: dict[str, Callable[[Server], AbstractAsyncContextManager[Caller]]] = {
    "asyncpg": asyncpg_connection,
    "asyncpg-pool": asyncpg_pool,
    "psycopg": psycopg_sync,
    "psycopg-async": psycopg_async,
    "sqlalchemy": sqlalchemy_connection,
    "sqlalchemy-session": sqlalchemy_session,
    "sqlalchemy-async": sqlalchemy_async_connection,
    "sqlalchemy-async-session": sqlalchemy_async_session,
    "django": django_connection,
}


async def wait_for_blocked_lock() -> None:
    """Wait until some transaction waits for a lock."""
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        await psycopg.AsyncConnection.connect(server().url(), autocommit=True) as db,
    ):
        while True:
            if await (await db.execute("SELECT 1 FROM pg_locks WHERE NOT granted")).fetchone():
                return
            await asyncio.sleep(0.01)
