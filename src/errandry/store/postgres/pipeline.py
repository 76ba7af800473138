"""Sends many statements over one connection in one round trip, with libpq's pipeline mode.

Between `begin` and `end`, `send` only queues a statement. The queue is sent when a result is needed, or at
the end. So a process that is stopped in between holds no locks for statements that it has queued, and the
server wakes up once. Statements are prepared at first use, and take their values as text.
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
_SUCCEEDED = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|(s)|(%))")


class Statement(NamedTuple):
    """A statement with numbered placeholders. `names` has the names of its parameters in order, if any."""

    name: bytes
    text: bytes
    names: tuple[str, ...]

    def values(self, params: StatementParams) -> list[bytes | None]:
        values = [params[name] for name in self.names] if isinstance(params, Mapping) else params
        return [None if value is None else _as_text(value) for value in values]


class PendingResult:
    """The result of a statement, once the server has sent it.

    `is_requested` says that the server was asked to send it at once, without waiting for more statements.
    `preparing` is the name of the statement if this is the reply to its preparation.
    """

    __slots__ = ("is_requested", "preparing", "result")

    def __init__(self, preparing: str | None = None) -> None:
        self.preparing = preparing
        self.is_requested = False
        self.result: pq.abc.PGresult | None = None

    @property
    def is_done(self) -> bool:
        """Whether the server has reported success."""
        return self.result is not None and self.result.status in _SUCCEEDED


class Pipeline:
    """Queues, sends and receives. `sql` has the statements by name.

    `prepares` is False behind a transaction pooler, where prepared statements do not stay.
    """

    def __init__(self, connection: psycopg.Connection[Any], sql: Mapping[str, str], prepares: bool) -> None:
        self._connection, self._pg, self._sql, self._prepares = connection, connection.pgconn, sql, prepares
        self._row_loader = Transformer(connection)
        self._prepared: set[str] = set()
        self._pending: deque[PendingResult] = deque()
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)

    def receive_notices(self) -> None:
        """Read what has arrived while the connection was idle: notices, or the end of the connection."""
        with suppress(psycopg.Error):  # the connection is lost, as its status shows
            while self._pg.status == pq.ConnStatus.OK and self._poll.poll(0):
                self._pg.consume_input()

    def begin(self, statement: str) -> None:
        """Begin a transaction with this statement."""
        self._pg.enter_pipeline_mode()
        self.send(statement)

    def end(self) -> None:
        """Send the rest of the queue and wait for all results. Raises the first error."""
        self._pg.pipeline_sync()
        self._pending.append(PendingResult())
        try:
            self._receive()
        finally:
            if self._pg.status == pq.ConnStatus.OK:
                self._pg.exit_pipeline_mode()

    def roll_back(self) -> None:
        """Roll back the transaction, unless it has ended."""
        if self._pg.pipeline_status:
            with suppress(psycopg.Error):  # the caller has seen this error, or the one that caused it
                self.end()
        if self._pg.transaction_status != pq.TransactionStatus.IDLE:
            self.begin("rollback")
            self.end()

    def send(self, name: str, params: StatementParams = ()) -> PendingResult:
        """Queue a statement."""
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

    def flush(self) -> None:
        """Send as much of the queue as the socket takes now, so that the server can begin."""
        self._pg.flush()

    def request_replies(self) -> None:
        """Ask the server to send the results of the queued statements as soon as it has them."""
        self._pg.send_flush_request()
        for reply in reversed(self._pending):
            if reply.is_requested:
                break
            reply.is_requested = True

    def fetch(self, reply: PendingResult) -> list[Row]:
        """The rows of a statement. Waits for them."""
        if reply.result is None:
            if not reply.is_requested:
                self.request_replies()
            self._receive(reply)
        if (result := reply.result) is None:
            raise psycopg.InterfaceError("the statement was sent in a transaction that has ended")
        self._row_loader.set_pgresult(result)
        return self._row_loader.load_rows(0, result.ntuples, tuple)

    def _receive(self, last: PendingResult | None = None) -> None:
        """Read results up to `last`, or all. The server skips the statements after an error."""
        failed: pq.abc.PGresult | None = None
        self._flush_all()
        while self._pending and (last is None or last.result is None):
            reply = self._pending[0]
            result = self._next_result()
            while result is not None and result.status != pq.ExecStatus.PIPELINE_SYNC:
                reply.result = result
                result = self._next_result()
            self._pending.popleft()
            if reply.result is not None and not reply.is_done:
                failed = failed or reply.result
                if reply.preparing is not None:
                    self._prepared.discard(reply.preparing)
        if failed is not None:
            raise _error(failed)

    def _next_result(self) -> pq.abc.PGresult | None:
        while self._pg.is_busy():
            self._poll.poll()
            self._pg.consume_input()
        return self._pg.get_result()

    def _flush_all(self) -> None:
        """Send the whole queue. Read results meanwhile, or both sides could block on full buffers."""
        while self._pg.flush():
            self._poll.modify(self._pg.socket, select.POLLIN | select.POLLOUT)
            if any(event & select.POLLIN for _, event in self._poll.poll()):
                self._pg.consume_input()
            self._poll.modify(self._pg.socket, select.POLLIN)


@cache
def _statement(name: str, text: str) -> Statement:
    names: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        named, plain, _ = match.groups()
        if named is None and plain is None:
            return "%"
        if named is None or named not in names:
            names.append(named or "")
            return f"${len(names)}"
        return f"${names.index(named) + 1}"

    # The name has a checksum of the text: stores of other schemas or versions may share a pooler's session.
    unique_name = f"errandry_{name}_{crc32(text.encode()):08x}"
    return Statement(unique_name.encode(), _PLACEHOLDER.sub(placeholder, text).encode(), tuple(names))


def _as_text(value: Any) -> bytes:
    if value is True or value is False:
        return b"t" if value else b"f"
    text = (value if isinstance(value, str) else str(value)).encode()
    if b"\0" in text:
        raise psycopg.DataError("a text must not contain the character U+0000")
    return text


def _error(result: pq.abc.PGresult) -> psycopg.Error:
    """The error of a result. Errors without a code come from libpq and mean that the connection is lost."""
    error = error_from_result(result)
    return error if error.sqlstate else psycopg.OperationalError(str(error))
