"""Statements over one connection, as many as there are in one round trip.

Between `begin` and `end` a statement is only put in line; what has gathered is sent when an answer is wanted,
or at the end. So a process that is stopped in between has nothing under way that others would wait for, and
the server is woken once. Statements are prepared when they are first used, and take their values as text.
"""

import re
import select
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from errandry.store.tables.rows import Row

StatementParams = Mapping[str, Any] | tuple[Any, ...] | list[Any]

_BINARY = pq.Format.BINARY
_ENDED = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_PLACE = re.compile(r"%(?:\((\w+)\)s|(s)|(%))")


class Statement(NamedTuple):
    """A statement as the server takes it; `names` are those of its parameters, in their order, if any."""

    name: bytes
    text: bytes
    names: tuple[str, ...]

    def values(self, params: StatementParams) -> list[bytes | None]:
        given = [params[name] for name in self.names] if isinstance(params, Mapping) else params
        return [None if value is None else _as_text(value) for value in given]


class PendingResult:
    """What the server says to a statement, once it is there; it is `wanted` when it may not be kept back."""

    __slots__ = ("is_wanted", "preparing", "result")

    def __init__(self, preparing: str | None = None) -> None:
        self.preparing = preparing
        self.is_wanted = False
        self.result: pq.abc.PGresult | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was carried out, as far as is known."""
        return self.result is not None and self.result.status in _ENDED


class Pipeline:
    """`sql` has the statements by name. Behind a pooler nothing stays prepared: see `prepares`."""

    def __init__(self, connection: psycopg.Connection[Any], sql: Mapping[str, str], prepares: bool) -> None:
        self._connection, self._pg, self._sql, self._prepares = connection, connection.pgconn, sql, prepares
        self._rows = Transformer(connection)
        self._prepared: set[str] = set()
        self._pending: deque[PendingResult] = deque()
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)

    def notice(self) -> None:
        """Take in what has come while nothing was asked: notices, or that the connection is lost."""
        with suppress(psycopg.Error):  # it is lost, as whoever looks will see
            while self._pg.status == pq.ConnStatus.OK and self._poll.poll(0):
                self._pg.consume_input()

    def begin(self, how: str) -> None:
        """Begin a transaction with this statement."""
        self._pg.enter_pipeline_mode()
        self.send(how)

    def end(self) -> None:
        """Send what is left and wait until all is done. Raises the first error there was."""
        self._pg.pipeline_sync()
        self._pending.append(PendingResult())
        try:
            self._receive()
        finally:
            if self._pg.status == pq.ConnStatus.OK:
                self._pg.exit_pipeline_mode()

    def roll_back(self) -> None:
        """End the transaction, whatever has become of it."""
        if self._pg.pipeline_status:
            with suppress(psycopg.Error):  # it was raised before, or comes of that
                self.end()
        if self._pg.transaction_status != pq.TransactionStatus.IDLE:
            self.begin("rollback")
            self.end()

    def send(self, name: str, params: StatementParams = ()) -> PendingResult:
        """Put a statement in line."""
        statement = _statement(name, self._sql[name])
        values, reply = statement.values(params), PendingResult()
        if not self._prepares:
            self._pg.send_query_params(statement.text, values, result_format=_BINARY)
        else:
            if name not in self._prepared:
                self._pg.send_prepare(statement.name, statement.text)
                self._prepared.add(name)
                self._pending.append(PendingResult(name))
            self._pg.send_query_prepared(statement.name, values, result_format=_BINARY)
        self._pending.append(reply)
        return reply

    def push(self) -> None:
        """Send what is in line as far as that goes without waiting: the server begins with it."""
        self._pg.flush()

    def call(self) -> None:
        """Want what is in line answered as soon as it is done, whatever comes after it."""
        self._pg.send_flush_request()
        for reply in reversed(self._pending):
            if reply.is_wanted:
                break
            reply.is_wanted = True

    def fetch(self, reply: PendingResult) -> list[Row]:
        """The rows a statement gives."""
        if reply.result is None:
            if not reply.is_wanted:
                self.call()
            self._receive(reply)
        if (result := reply.result) is None:
            raise psycopg.InterfaceError("it was sent in a transaction that has ended")
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)

    def _receive(self, last: PendingResult | None = None) -> None:
        """Read until `last`, or all, is answered. What comes after an error was not carried out."""
        failed: pq.abc.PGresult | None = None
        self._flush()
        while self._pending and (last is None or last.result is None):
            reply = self._pending[0]
            result = self._next()
            while result is not None and result.status != pq.ExecStatus.PIPELINE_SYNC:
                reply.result = result
                result = self._next()
            self._pending.popleft()
            if reply.result is not None and not reply.is_done:
                failed = failed or reply.result
                if reply.preparing is not None:
                    self._prepared.discard(reply.preparing)
        if failed is not None:
            raise _error(failed)

    def _next(self) -> pq.abc.PGresult | None:
        while self._pg.is_busy():
            self._poll.poll()
            self._pg.consume_input()
        return self._pg.get_result()

    def _flush(self) -> None:
        """Send all there is, and take what comes meanwhile: else both sides might wait for each other."""
        while self._pg.flush():
            self._poll.modify(self._pg.socket, select.POLLIN | select.POLLOUT)
            if any(event & select.POLLIN for _, event in self._poll.poll()):
                self._pg.consume_input()
            self._poll.modify(self._pg.socket, select.POLLIN)


@cache
def _statement(name: str, text: str) -> Statement:
    names: list[str] = []

    def placed(found: re.Match[str]) -> str:
        named, plain, _ = found.groups()
        if named is None and plain is None:
            return "%"
        if named is None or named not in names:
            names.append(named or "")
            return f"${len(names)}"
        return f"${names.index(named) + 1}"

    # Named by what it says: in a pooler's session a store of another schema, or version, may have its own.
    own = f"errandry_{name}_{crc32(text.encode()):08x}"
    return Statement(own.encode(), _PLACE.sub(placed, text).encode(), tuple(names))


def _as_text(value: Any) -> bytes:
    if value is True or value is False:
        return b"t" if value else b"f"
    text = (value if isinstance(value, str) else str(value)).encode()
    if b"\0" in text:
        raise psycopg.DataError("a text must not have the character U+0000")
    return text


def _error(result: pq.abc.PGresult) -> psycopg.Error:
    """Without a code it is libpq that speaks: of a connection that is lost."""
    error = error_from_result(result)
    return error if error.sqlstate else psycopg.OperationalError(str(error))
