"""Insert jobs over the caller's own connection to the file, in the caller's transaction."""

import os
from typing import cast

import apsw

from errandry.clock import StoreClock
from errandry.core.answer import Inserted
from errandry.core.command import Insert
from errandry.errors import InvalidValue
from errandry.store.contract import StoreLimits
from errandry.store.engine.reply import answer_or_raise
from errandry.store.execute.apply import apply
from errandry.store.sqlite.file import explain_errors, is_up_to_date
from errandry.store.sqlite.fork import FORK_GUARD
from errandry.store.sqlite.tables import SqliteTables


class SqliteBinding:
    """Runs a pass on `connection` that neither begins nor commits a transaction."""

    is_async = False
    is_alone = True  # while the caller has the write lock, no other process can write

    def __init__(self, connection: object, path: str, clock: StoreClock, limits: StoreLimits) -> None:
        if not isinstance(connection, apsw.Connection):
            why = (
                "cannot be used with bind: an SQLite store takes an apsw.Connection, because two copies of "
                "SQLite in one process would damage the file"
            )
            kind = type(connection)
            raise InvalidValue("connection", f"{kind.__module__}.{kind.__qualname__}", why)
        self._db, self._path, self._clock, self._limits = connection, path, clock, limits

    async def insert(self, command: Insert) -> Inserted:
        return self.insert_sync(command)

    def insert_sync(self, command: Insert) -> Inserted:
        self._check()
        with explain_errors(self._path, self._db), FORK_GUARD, self._db:
            tables = SqliteTables(self._db)
            now = self._clock.now(tables.begin())
            answer = answer_or_raise(apply([command], tables, now, self._limits)[0])
            tables.save_state(now)
        return cast("Inserted", answer)

    def _check(self) -> None:
        name = self._db.filename
        if not (name and os.path.exists(name) and os.path.samefile(name, self._path)):
            raise InvalidValue(
                "connection", name, f"leads to another file: open {self._path}, where the jobs are"
            )
        if not self._db.in_transaction:
            raise InvalidValue("connection", name, "has no open transaction: execute BEGIN IMMEDIATE first")
        if not is_up_to_date(self._db, self._path):
            raise InvalidValue(
                "connection", name, "leads to a file without jobs: run `errandry migrate` first"
            )
