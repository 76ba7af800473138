"""One connection: made when it is first needed, made again after it was lost, used by one thread.

After a fork the child must neither use nor close what it has inherited: closing says goodbye to the server
in its parent's name. It puts nothing in the place of the sockets: so the server notices when the parent dies.
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
    """A connection to `address` and the tables seen through it."""

    def __init__(self, address: Address, writes: bool) -> None:
        self._address, self._writes = address, writes
        self._sql = address.statements()
        self._connection: psycopg.Connection[Any] | None = None
        self._wire: Pipeline | None = None
        self._tables: PostgresTables | None = None
        self._prepares = True
        self.is_in_doubt = False
        """Whether nobody knows what has become of the last commit."""
        _LINKS.add(self)

    @property
    def is_up(self) -> bool:
        return self._connection is not None and not self._connection.closed

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection; a new one if there is none, or it was lost."""
        if self._connection is None or self._connection.closed:
            self.close()
            self._connection = connect(self._address)
        return self._connection

    @property
    def wire(self) -> Pipeline:
        connection = self.connection
        if self._wire is None:
            self._wire = Pipeline(connection, self._sql, self._prepares)
        return self._wire

    @property
    def tables(self) -> PostgresTables:
        wire = self.wire
        if self._tables is None:
            self._tables = PostgresTables(wire, self._writes)
        return self._tables

    def forget_prepared(self) -> None:
        """Statements do not stay prepared behind a transaction pooler: prepare none from now on."""
        self._prepares = False
        self.close()

    def last_event(self) -> int:
        """The number of the newest row of the event log."""
        found = self.connection.execute(self._sql["last_event"]).fetchone()
        return int(found[0]) if found else 0

    def notice(self) -> None:
        """See whether the server has closed the connection while nobody used it: then it is made anew."""
        if self._wire is not None and self.is_up:
            self._wire.notice()

    def begin(self, how: str = "begin") -> PostgresTables:
        """Begin a transaction. Until it ends nothing is waited for but answers."""
        self.is_in_doubt = False  # first: there may be no connection to be had
        tables = self.tables
        self.wire.begin(how)
        return tables

    def commit(self, name: str | None = None, params: tuple[Any, ...] = ()) -> list[Any]:
        """Commit, with this last statement: what it gives. Nothing of ours can come between them.

        Else a process that is stopped there would keep the event log locked for all others. An error that
        comes after the commit, from a server on its way out, changes nothing.
        """
        last = None if name is None else self.wire.send(name, params)
        commit = self.wire.send("commit")
        try:
            self.wire.end()
        except psycopg.Error as error:
            if not commit.is_done:
                self.is_in_doubt = commit.result is None or _may_hide_a_commit(error)
                raise
        return [] if last is None else self.wire.fetch(last)

    def roll_back(self) -> None:
        """Leave no transaction behind; a connection that cannot do that is given up."""
        try:
            if self._wire is not None and self.is_up:
                self._wire.roll_back()
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        connection = self._forgotten()
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def break_off(self) -> None:
        """From another thread: whoever waits for the server gets an error at once."""
        connection = self._connection
        if connection is not None and not connection.closed:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def inherited(self) -> None:
        """This process is a child: let go of the parent's connection without a word."""
        connection = self._forgotten()
        if connection is not None and not connection.closed:
            _LEFT_BEHIND.append(connection)
            with suppress(OSError, psycopg.Error):
                nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(nothing, connection.fileno(), inheritable=False)
                os.close(nothing)

    def _forgotten(self) -> psycopg.Connection[Any] | None:
        """The connection there was."""
        connection = self._connection
        self._connection = self._wire = self._tables = None
        return connection


def _may_hide_a_commit(error: psycopg.Error) -> bool:
    """Whether it is libpq's word for a connection that is lost, or a server's that is being stopped."""
    return error.sqlstate is None or error.sqlstate.startswith("57P")


def connect(address: Address) -> psycopg.Connection[Any]:
    # What stays prepared is known to the wire alone.
    return psycopg.connect(address.conninfo, autocommit=True, prepare_threshold=None)


_LINKS: WeakSet[PostgresConnection] = WeakSet()
_LEFT_BEHIND: list[psycopg.Connection[Any]] = []
"""In the child of a fork: the parent's connections, which must not even be collected."""


def _forked() -> None:
    for link in list(_LINKS):
        link.inherited()


os.register_at_fork(after_in_child=_forked)
