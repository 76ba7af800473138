"""A minimal transaction pooler: clients share a few sessions, and each gets one for a transaction at a time.

So the state of a session is lost between transactions: prepared statements, LISTEN, settings. The state of
a transaction is not. The pooler parses only enough of the protocol to see the end of a transaction.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SOCKET = ".s.PGSQL.5432"
ENDS_IN_READY = b"QS"
"""Messages of a client that the server answers with `ReadyForQuery`."""
READY = b"Z\x00\x00\x00\x05I"
"""`ReadyForQuery` outside a transaction."""


class Pooler:
    """Clients connect to the socket in `folder` and share `sessions` sessions of `server`."""

    def __init__(self, server: Path, folder: Path, sessions: int) -> None:
        self._server, self._folder, self.missing = server, folder, sessions
        self._greeting = b""
        self._opening = asyncio.Lock()
        self._clients: set[asyncio.Task[None]] = set()
        self.free: deque[Pipe] = deque()
        self.freed = asyncio.Condition()
        self.transactions = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Pooler"]:
        listening = await asyncio.start_unix_server(self._accept, self._folder / SOCKET)
        try:
            yield self
        finally:
            listening.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            for _, writer in self.free:
                writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._greet(reader, writer)
                await _Client(self, writer).serve(reader)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open the sessions with the startup message of the first client, and replay the greeting to each."""
        [length] = struct.unpack("!i", await reader.readexactly(4))
        startup = struct.pack("!i", length) + await reader.readexactly(length - 4)
        async with self._opening:
            while self.missing:
                server = await asyncio.open_unix_connection(self._server / SOCKET)
                server[1].write(startup)
                self._greeting = b""
                while not self._greeting.endswith(READY):
                    reply = await read_message(server[0])
                    # Clients of a pooler get cancel keys of its own.
                    self._greeting += (
                        reply if reply[:1] != b"K" else reply[:5] + b"\x00\x00\x00\x07" + reply[9:]
                    )
                async with self.freed:
                    self.free.append(server)
                    self.freed.notify()
                self.missing -= 1
        writer.write(self._greeting)


class _Client:
    """A client. It has a session from its first message until it has all replies and no open transaction."""

    def __init__(self, pooler: Pooler, writer: asyncio.StreamWriter) -> None:
        self._pooler, self._writer = pooler, writer
        self._session: Pipe | None = None
        self._replies_due, self._is_in_request = 0, False
        self._answering: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        try:
            while (request := await read_message(reader))[:1] != b"X":
                if self._session is None:
                    self._session = await self._borrow()
                    self._answering = asyncio.create_task(self._answer(self._session))
                is_end = request[:1] in ENDS_IN_READY
                self._replies_due += is_end
                self._is_in_request = not is_end
                self._session[1].write(request)
        finally:
            if self._answering is not None:
                self._answering.cancel()
            if self._session is not None:  # left in a transaction, so no other client can use it
                self._session[1].close()
                self._pooler.missing += 1

    async def _borrow(self) -> Pipe:
        async with self._pooler.freed:
            await self._pooler.freed.wait_for(lambda: self._pooler.free)
            return self._pooler.free.popleft()

    async def _answer(self, session: Pipe) -> None:
        while True:
            reply = await read_message(session[0])
            if reply[:1] != b"A":  # a pooler does not forward notifications
                self._writer.write(reply)
            if reply[:1] == b"Z":
                self._replies_due -= 1
                if not self._replies_due and not self._is_in_request and reply == READY:
                    break
        self._session = None
        self._pooler.transactions += 1
        async with self._pooler.freed:
            self._pooler.free.append(session)
            self._pooler.freed.notify()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
