"""A connection that is opened when first needed, and opened again after it was lost. One thread uses it.

After a fork, the child must neither use nor close the inherited connection: closing it would end the parent's
session. The child replaces the socket by /dev/null, so that the server notices when the parent dies.
"""

import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import psycopg

from errandry.store.postgres.address import Address
from errandry.store.postgres.pipeline import Pipeline
from errandry.store.postgres.tables import PostgresTables


class PostgresConnection:
    """A connection to `address` and its tables. `raw` is the connection of psycopg."""

    def __init__(self, address: Address, writes: bool) -> None:
        self._address, self._writes = address, writes
        self._sql = address.statements()
        self._raw: psycopg.Connection[Any] | None = None
        self._pipeline: Pipeline | None = None
        self._tables: PostgresTables | None = None
        self._prepares = True
        self.is_in_doubt = False
        """Whether it is unknown if the last commit succeeded."""
        _CONNECTIONS.add(self)

    @property
    def is_up(self) -> bool:
        return self._raw is not None and not self._raw.closed

    @property
    def raw(self) -> psycopg.Connection[Any]:
        """The connection of psycopg. Connects if there is none, or if it was lost."""
        if self._raw is None or self._raw.closed:
            self.close()
            self._raw = connect(self._address)
        return self._raw

    @property
    def pipeline(self) -> Pipeline:
        connection = self.raw
        if self._pipeline is None:
            self._pipeline = Pipeline(connection, self._sql, self._prepares)
        return self._pipeline

    @property
    def tables(self) -> PostgresTables:
        pipeline = self.pipeline
        if self._tables is None:
            self._tables = PostgresTables(pipeline, self._writes)
        return self._tables

    def stop_preparing(self) -> None:
        """Prepare no statements from now on: behind a transaction pooler they do not stay prepared."""
        self._prepares = False
        self.close()

    def last_event(self) -> int:
        """The number of the newest row of the event log."""
        row = self.raw.execute(self._sql["last_event"]).fetchone()
        return int(row[0]) if row else 0

    def receive_notices(self) -> None:
        """Read pending messages, to notice that the server has closed an idle connection."""
        if self._pipeline is not None and self.is_up:
            self._pipeline.receive_notices()

    def begin(self, statement: str = "begin") -> PostgresTables:
        """Begin a transaction. Until it ends, its thread waits for nothing but replies."""
        self.is_in_doubt = False  # first, because connecting may fail
        tables = self.tables
        self.pipeline.begin(statement)
        return tables

    def commit(self, name: str | None = None, params: tuple[Any, ...] = ()) -> list[Any]:
        """Send a last statement and the commit together; return the rows of that statement.

        Together, because the last statement locks the event log: a process that is stopped between the two
        would block all others. An error after the commit, from a server that is shutting down, is ignored.
        """
        last = None if name is None else self.pipeline.send(name, params)
        commit = self.pipeline.send("commit")
        try:
            self.pipeline.end()
        except psycopg.Error as error:
            if not commit.is_done:
                self.is_in_doubt = commit.result is None or _may_have_committed(error)
                raise
        return [] if last is None else self.pipeline.fetch(last)

    def roll_back(self) -> None:
        """End the transaction. Close the connection if that fails."""
        try:
            if self._pipeline is not None and self.is_up:
                self._pipeline.roll_back()
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        connection = self._detach()
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def abort(self) -> None:
        """Shut the socket down from another thread: the thread of this connection gets an error at once."""
        connection = self._raw
        if connection is not None and not connection.closed:
            with (
                suppress(OSError, psycopg.Error),
                socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
            ):
                duplicate.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Replace the socket in the child of a fork, without a message to the server."""
        connection = self._detach()
        if connection is not None and not connection.closed:
            _ABANDONED.append(connection)
            with suppress(OSError, psycopg.Error):
                devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(devnull, connection.fileno(), inheritable=False)
                os.close(devnull)

    def _detach(self) -> psycopg.Connection[Any] | None:
        """Forget the connection, and return it."""
        connection = self._raw
        self._raw = self._pipeline = self._tables = None
        return connection


def _may_have_committed(error: psycopg.Error) -> bool:
    """Whether libpq reports a lost connection, or the server that it is shutting down."""
    return error.sqlstate is None or error.sqlstate.startswith("57P")


def connect(address: Address) -> psycopg.Connection[Any]:
    # The pipeline prepares statements itself and keeps track of them.
    return psycopg.connect(address.conninfo, autocommit=True, prepare_threshold=None)


_CONNECTIONS: WeakSet[PostgresConnection] = WeakSet()
_ABANDONED: list[psycopg.Connection[Any]] = []
"""The parent's connections in the child of a fork. Garbage collection would close them."""


def _abandon_all() -> None:
    for connection in list(_CONNECTIONS):
        connection.abandon()


os.register_at_fork(after_in_child=_abandon_all)
