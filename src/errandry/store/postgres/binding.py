"""Inserting over a connection of the caller's, in its transaction, whichever library it is of.

The database has a function that inserts; here is how each library calls it. None of them is imported for
that: a connection says by its class what it is.
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
from errandry.core.flow import in_order
from errandry.errors import DuplicateJob, InvalidValue, QueueFull, StoreRefused
from errandry.store.postgres.address import Address
from errandry.store.tables.rows import text

BindParams = Mapping[str, Any]


class HeldKey(Struct, frozen=True):
    """A unique key that is held, and by whom."""

    key: str
    job: str


class BindAnswer(Struct, frozen=True):
    """What the function in the database answers."""

    ids: tuple[str, ...] = ()
    existed: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    duplicate: HeldKey | None = None


_told = msgspec.json.Decoder(BindAnswer | None)


class StoreInfo(NamedTuple):
    """What the store says when something is inserted: who it is, its time (None: the server's), its bound."""

    identity: str
    now: float | None
    payload: int


class ConnectionLibrary(Struct, frozen=True):
    """How connections of these classes run a statement that gives one value.

    `is_other` tells those that lead to another kind of database.
    """

    name: str
    classes: tuple[str, ...]
    call: Callable[[Any, str, BindParams], Any]
    is_async: bool = False
    is_other: Callable[[Any], bool] = lambda _connection: False


class PostgresBinding:
    """Inserts over `connection`. Who has begun no transaction on it has each insert durable at once."""

    is_alone = False

    def __init__(self, connection: object, address: Address, said: Callable[[], StoreInfo]) -> None:
        self._connection, self._address, self._said = connection, address, said
        self._library = _library_of(connection)
        self._sql = address.statements()["insert_jobs"]
        self.is_async = self._library.is_async
        if self._library.is_other(connection):
            raise self._misled("leads to a database that is not PostgreSQL")

    async def insert(self, command: Insert) -> Inserted:
        with self._explained():
            told = await self._library.call(self._connection, self._sql, self._params(command))
            return self._answer(command, told)

    def insert_sync(self, command: Insert) -> Inserted:
        with self._explained():
            return self._answer(
                command, self._library.call(self._connection, self._sql, self._params(command))
            )

    def _params(self, command: Insert) -> BindParams:
        said = self._said()
        for job in command.jobs:
            check.sized("payload", job.payload, said.payload)
        jobs = in_order(command.jobs, command.edges) if command.edges else command.jobs
        return {"jobs": text(jobs), "store": said.identity, "at": said.now, "edges": text(command.edges)}

    def _answer(self, command: Insert, answer: str | None) -> Inserted:
        told = _told.decode(answer or "null")
        if told is None:
            raise self._misled("leads to another store")
        if told.duplicate is not None:
            raise DuplicateJob(told.duplicate.key, told.duplicate.job)
        ids = told.ids
        if command.edges:  # they went in another order
            known = dict(zip([job.id for job in in_order(command.jobs, command.edges)], ids, strict=True))
            ids = tuple([known[job.id] for job in command.jobs])
        return Inserted(ids, told.existed, told.replaced)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the caller can only mend by another connection; all else is between it and its library."""
        try:
            yield
        except Exception as error:
            state = _sqlstate(error)
            if state in _MISSING:
                raise self._misled(
                    f"leads to a database without {self._address.schema}.insert_jobs"
                ) from error
            if state == _FULL and (found := _QUEUE_FULL.search(str(error))) is not None:
                raise QueueFull(*_full.decode(found[1])) from error
            if state == _TANGLED and (found := _FLOW.search(str(error))) is not None:
                raise InvalidValue(*_wrong.decode(found[1])) from error
            if state == _DENIED:
                grant = f"GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION {self._address.schema}.insert_jobs"
                why = f"the user of the connection must not enqueue: {grant} to it"
                raise StoreRefused(self._address.name, why) from error
            raise

    def _misled(self, how: str) -> InvalidValue:
        right = f"give one to {self._address.name}, where the jobs are"
        return InvalidValue("connection", self._library.name, f"{how}: {right}")


_MISSING = ("3F000", "42883", "42P01")
_DENIED = "42501"
_FULL, _TANGLED = "EQ001", "EQ002"
_QUEUE_FULL = re.compile(r"queue full: (\[.*\])")
_FLOW = re.compile(r"flow: (\[.*\])")
_wrong = msgspec.json.Decoder(tuple[str, str, str])
_full = msgspec.json.Decoder(tuple[str, int, int, str])


def _sqlstate(error: BaseException) -> str | None:
    """The code of an error, which some libraries wrap."""
    for one in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if code is not None:
            return str(code)
    return None


def _library_of(connection: object) -> ConnectionLibrary:
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__}
    for library in _LIBRARIES:
        if names.intersection(library.classes):
            return library
    known = ", ".join(dict.fromkeys(library.name for library in _LIBRARIES))
    why = f"cannot be joined: a PostgreSQL store takes connections of {known}"
    raise InvalidValue("connection", f"{type(connection).__module__}.{type(connection).__qualname__}", why)


async def _asyncpg(connection: Any, sql: str, params: BindParams) -> Any:
    for number, name in enumerate(params, 1):
        sql = sql.replace(f"%({name})s", f"${number}")
    return await connection.fetchval(sql, *params.values())


def _psycopg(connection: Any, sql: str, params: BindParams) -> Any:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    with Cursor(connection, row_factory=tuple_row) as cursor:  # whatever the caller's are like
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
