"""A transaction pooler, as small as can be: clients share a few sessions, each for a transaction at a time.

So what a session keeps is lost between transactions: prepared statements, LISTEN, settings. What a
transaction keeps is not. It understands just enough of the protocol to know when one is over.
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
"""Messages of a client after which the server says when it is ready again."""
READY = b"Z\x00\x00\x00\x05I"
"""What it says then, in no transaction."""


class Pooler:
    """Clients connect to the socket in `folder`; so many `sessions` with `server` are theirs in turn."""

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
        listening = await asyncio.start_unix_server(self._met, self._folder / SOCKET)
        try:
            yield self
        finally:
            listening.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            for _, writer in self.free:
                writer.close()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        """The first client says who all of them are."""
        [length] = struct.unpack("!i", await reader.readexactly(4))
        startup = struct.pack("!i", length) + await reader.readexactly(length - 4)
        async with self._opening:
            while self.missing:
                server = await asyncio.open_unix_connection(self._server / SOCKET)
                server[1].write(startup)
                self._greeting = b""
                while not self._greeting.endswith(READY):
                    one = await message(server[0])
                    # A pooler's clients are given keys of its own.
                    self._greeting += one if one[:1] != b"K" else one[:5] + b"\x00\x00\x00\x07" + one[9:]
                async with self.freed:
                    self.free.append(server)
                    self.freed.notify()
                self.missing -= 1
        writer.write(self._greeting)


class _Client:
    """Has a session from its first message until the server is ready, in no transaction, and owes nothing."""

    def __init__(self, pooler: Pooler, writer: asyncio.StreamWriter) -> None:
        self._pooler, self._writer = pooler, writer
        self._session: Pipe | None = None
        self._owed, self._is_midway = 0, False
        self._answering: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        try:
            while (asked := await message(reader))[:1] != b"X":
                if self._session is None:
                    self._session = await self._lent()
                    self._answering = asyncio.create_task(self._answer(self._session))
                is_end = asked[:1] in ENDS_IN_READY
                self._owed += is_end
                self._is_midway = not is_end
                self._session[1].write(asked)
        finally:
            if self._answering is not None:
                self._answering.cancel()
            if self._session is not None:  # left in the middle: nobody else can have it as it is
                self._session[1].close()
                self._pooler.missing += 1

    async def _lent(self) -> Pipe:
        async with self._pooler.freed:
            await self._pooler.freed.wait_for(lambda: self._pooler.free)
            return self._pooler.free.popleft()

    async def _answer(self, session: Pipe) -> None:
        while True:
            one = await message(session[0])
            if one[:1] != b"A":  # nobody is there to be notified
                self._writer.write(one)
            if one[:1] == b"Z":
                self._owed -= 1
                if not self._owed and not self._is_midway and one == READY:
                    break
        self._session = None
        self._pooler.transactions += 1
        async with self._pooler.freed:
            self._pooler.free.append(session)
            self._pooler.freed.notify()


async def message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
