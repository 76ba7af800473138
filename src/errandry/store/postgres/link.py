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
from psycopg.types.numeric import FloatDumper, Int8Dumper

from errandry.store.postgres.address import Address
from errandry.store.postgres.tables import PostgresTables


class Link:
    """A connection to `address` and the tables seen through it."""

    def __init__(self, address: Address, writes: bool) -> None:
        self._address, self._writes = address, writes
        self._sql = address.statements()
        self._connection: psycopg.Connection[Any] | None = None
        self._tables: PostgresTables | None = None
        self._prepares = True
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
            if not self._prepares:
                self._connection.prepare_threshold = None
        return self._connection

    @property
    def tables(self) -> PostgresTables:
        connection = self.connection
        if self._tables is None:
            self._tables = PostgresTables(connection, self._sql, self._writes)
        return self._tables

    def forget_prepared(self) -> None:
        """Statements do not stay prepared behind a transaction pooler: prepare none from now on."""
        self._prepares = False
        self.close()

    def run(self, name: str, params: Any = None) -> None:
        self.connection.execute(self._sql[name], params)

    def last_event(self) -> int:
        """The number of the newest row of the event log."""
        found = self.connection.execute(self._sql["last_event"]).fetchone()
        return int(found[0]) if found else 0

    def commit(self, last: tuple[Any, ...] | None) -> None:
        """Commit, with a last row for the event log. Sent together: nothing of ours can come between them.

        Else a process that is stopped there would keep the log locked for all others.
        """
        if last is None:
            self.run("commit")
            return
        with self.connection.pipeline():
            self.run("append", last)
            self.run("commit")

    def roll_back(self) -> None:
        """Leave no transaction behind; a connection that cannot do that is given up."""
        if self._connection is None:
            return
        try:
            if not self._connection.closed and self._connection.info.transaction_status:
                self.run("rollback")
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        connection, self._connection, self._tables = self._connection, None, None
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
        connection, self._connection, self._tables = self._connection, None, None
        if connection is not None and not connection.closed:
            _LEFT_BEHIND.append(connection)
            with suppress(OSError, psycopg.Error):
                nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(nothing, connection.fileno(), inheritable=False)
                os.close(nothing)


def connect(address: Address) -> psycopg.Connection[Any]:
    connection = psycopg.connect(address.conninfo, autocommit=True)
    # One type for all numbers of a kind, or statements would be prepared once for each size.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_dumper(float, FloatDumper)
    return connection


_LINKS: WeakSet[Link] = WeakSet()
_LEFT_BEHIND: list[psycopg.Connection[Any]] = []
"""In the child of a fork: the parent's connections, which must not even be collected."""


def _forked() -> None:
    for link in list(_LINKS):
        link.inherited()


os.register_at_fork(after_in_child=_forked)
