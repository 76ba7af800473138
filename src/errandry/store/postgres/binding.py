"""Inserts jobs over a connection of the caller's, in its transaction.

The database has a function that inserts, `insert_jobs`; this module calls it through the library of the
connection. It recognizes the library by the class of the connection, so it imports none of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from errandry.core import check
from errandry.core.answer import Inserted
from errandry.core.command import Insert
from errandry.core.flow import parents_first
from errandry.errors import DuplicateJob, InvalidValue, QueueFull, StoreRefused
from errandry.store.postgres.address import Address
from errandry.store.tables.rows import text

BindParams = Mapping[str, Any]


class HeldKey(Struct, frozen=True):
    """A unique key and the job that holds it."""

    key: str
    job: str


class BindAnswer(Struct, frozen=True):
    """What `insert_jobs` returns."""

    ids: tuple[str, ...] = ()
    existed: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    duplicate: HeldKey | None = None


_answer_decoder = msgspec.json.Decoder(BindAnswer | None)


class StoreInfo(NamedTuple):
    """The identity of the store, its time (None: the server's), and its maximum size of a payload."""

    identity: str
    now: float | None
    payload: int


class ConnectionLibrary(Struct, frozen=True):
    """A library: the classes of its connections, and how they run a statement that returns one value.

    `is_other` says whether a connection leads to another kind of database.
    """

    name: str
    classes: tuple[str, ...]
    call: Callable[[Any, str, BindParams], Any]
    is_async: bool = False
    is_other: Callable[[Any], bool] = lambda _connection: False


class PostgresBinding:
    """Inserts over `connection`. Without an open transaction on it, each insert is durable at once."""

    is_alone = False

    def __init__(self, connection: object, address: Address, store_info: Callable[[], StoreInfo]) -> None:
        self._connection, self._address, self._store_info = connection, address, store_info
        self._library = _library_of(connection)
        self._sql = address.statements()["insert_jobs"]
        self.is_async = self._library.is_async
        if self._library.is_other(connection):
            raise self._wrong_connection("leads to a database that is not PostgreSQL")

    async def insert(self, command: Insert) -> Inserted:
        with self._translated_errors():
            answer = await self._library.call(self._connection, self._sql, self._params(command))
            return self._answer(command, answer)

    def insert_sync(self, command: Insert) -> Inserted:
        with self._translated_errors():
            return self._answer(
                command, self._library.call(self._connection, self._sql, self._params(command))
            )

    def _params(self, command: Insert) -> BindParams:
        info = self._store_info()
        for job in command.jobs:
            check.size("payload", job.payload, info.payload)
        jobs = parents_first(command.jobs, command.edges) if command.edges else command.jobs
        return {"jobs": text(jobs), "store": info.identity, "at": info.now, "edges": text(command.edges)}

    def _answer(self, command: Insert, answer: str | None) -> Inserted:
        result = _answer_decoder.decode(answer or "null")
        if result is None:
            raise self._wrong_connection("leads to another store")
        if result.duplicate is not None:
            raise DuplicateJob(result.duplicate.key, result.duplicate.job)
        ids = result.ids
        if command.edges:  # they were sent in another order
            result_ids = dict(
                zip([job.id for job in parents_first(command.jobs, command.edges)], ids, strict=True)
            )
            ids = tuple([result_ids[job.id] for job in command.jobs])
        return Inserted(ids, result.existed, result.replaced)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the errors of `insert_jobs` and of a wrong connection. All others pass unchanged."""
        try:
            yield
        except Exception as error:
            state = _sqlstate(error)
            if state in _MISSING_STATES:
                raise self._wrong_connection(
                    f"leads to a database without {self._address.schema}.insert_jobs"
                ) from error
            if state == _QUEUE_FULL_STATE and (match := _QUEUE_FULL_MESSAGE.search(str(error))) is not None:
                raise QueueFull(*_queue_full_decoder.decode(match[1])) from error
            if state == _FLOW_ERROR_STATE and (match := _FLOW_ERROR_MESSAGE.search(str(error))) is not None:
                raise InvalidValue(*_flow_error_decoder.decode(match[1])) from error
            if state == _DENIED_STATE:
                grant = f"GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION {self._address.schema}.insert_jobs"
                why = f"the user of the connection must not enqueue: {grant} to it"
                raise StoreRefused(self._address.name, why) from error
            raise

    def _wrong_connection(self, how: str) -> InvalidValue:
        right = f"give one to {self._address.name}, where the jobs are"
        return InvalidValue("connection", self._library.name, f"{how}: {right}")


_MISSING_STATES = ("3F000", "42883", "42P01")
_DENIED_STATE = "42501"
_QUEUE_FULL_STATE, _FLOW_ERROR_STATE = "EQ001", "EQ002"
_QUEUE_FULL_MESSAGE = re.compile(r"queue full: (\[.*\])")
_FLOW_ERROR_MESSAGE = re.compile(r"flow: (\[.*\])")
_flow_error_decoder = msgspec.json.Decoder(tuple[str, str, str])
_queue_full_decoder = msgspec.json.Decoder(tuple[str, int, int, str])


def _sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error. Some libraries wrap the error of the driver."""
    for wrapped in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(wrapped, "sqlstate", None) or getattr(wrapped, "pgcode", None)
        if code is not None:
            return str(code)
    return None


def _library_of(connection: object) -> ConnectionLibrary:
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__}
    for library in _LIBRARIES:
        if names.intersection(library.classes):
            return library
    known = ", ".join(dict.fromkeys(library.name for library in _LIBRARIES))
    why = f"cannot be used with bind: a PostgreSQL store takes connections of {known}"
    raise InvalidValue("connection", f"{type(connection).__module__}.{type(connection).__qualname__}", why)


async def _asyncpg(connection: Any, sql: str, params: BindParams) -> Any:
    for number, name in enumerate(params, 1):
        sql = sql.replace(f"%({name})s", f"${number}")
    return await connection.fetchval(sql, *params.values())


def _psycopg(connection: Any, sql: str, params: BindParams) -> Any:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    with Cursor(connection, row_factory=tuple_row) as cursor:  # not the row factory of the caller
        [value] = cursor.execute(sql, params).fetchone() or (None,)
        return value


async def _psycopg_async(connection: Any, sql: str, params: BindParams) -> Any:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(sql, params)
        [value] = await cursor.fetchone() or (None,)
        return value


def _sqlalchemy(connection: Any, sql: str, params: BindParams) -> Any:
    return connection.execute(_sqlalchemy_text(sql, params), params).scalar_one()


async def _sqlalchemy_async(connection: Any, sql: str, params: BindParams) -> Any:
    return (await connection.execute(_sqlalchemy_text(sql, params), params)).scalar_one()


def _sqlalchemy_text(sql: str, params: BindParams) -> Any:
    from sqlalchemy import text

    for name in params:
        sql = sql.replace(f"%({name})s", f":{name}")
    return text(sql)


def _is_other_dialect(connection: Any) -> bool:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    return bool(bind.dialect.name != "postgresql")


def _django(connection: Any, sql: str, params: BindParams) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]


_LIBRARIES = (
    ConnectionLibrary("psycopg 3", ("psycopg.Connection",), _psycopg),
    ConnectionLibrary("psycopg 3", ("psycopg.AsyncConnection",), _psycopg_async, is_async=True),
    ConnectionLibrary(
        "asyncpg",
        ("asyncpg.connection.Connection", "asyncpg.pool.PoolConnectionProxy"),
        _asyncpg,
        is_async=True,
    ),
    ConnectionLibrary(
        "SQLAlchemy 2",
        (
            "sqlalchemy.engine.base.Connection",
            "sqlalchemy.orm.session.Session",
            "sqlalchemy.orm.scoping.scoped_session",
        ),
        _sqlalchemy,
        is_other=_is_other_dialect,
    ),
    ConnectionLibrary(
        "SQLAlchemy 2",
        (
            "sqlalchemy.ext.asyncio.engine.AsyncConnection",
            "sqlalchemy.ext.asyncio.session.AsyncSession",
            "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
        ),
        _sqlalchemy_async,
        is_async=True,
        is_other=_is_other_dialect,
    ),
    ConnectionLibrary(
        "Django",
        ("django.db.backends.base.base.BaseDatabaseWrapper", "django.utils.connection.ConnectionProxy"),
        _django,
        is_other=lambda connection: bool(connection.vendor != "postgresql"),
    ),
)
