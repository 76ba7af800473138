"""A TCP proxy in front of a server that can cut, delay and silence connections. It runs on its own thread.

It forwards all bytes as they come, until a test disturbs it. It counts connections.
"""

import asyncio
import re
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

COMMIT = re.compile(rb"Q\x00\x00\x00.COMMIT;?\x00", re.DOTALL)
"""The message of a client that commits, if it is not part of a pipeline."""
COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""The message of a server after a commit."""
ENCRYPTION_REQUESTS = (80877103, 80877104)
"""The codes of requests for TLS and GSS encryption, which come before the startup message."""


class Proxy:
    """Between a program and the server whose socket is in `folder`.

    delay            seconds by which every reply is delayed
    refuses          a new connection is closed at once
    is_silent        a new connection is accepted, and never gets a reply
    error            code and text of the error that a new connection gets, as from a server that is starting
    commits_to_lose  number of commits that are lost next before they reach the server, with their connection
    replies_to_lose  number of replies to a commit that are lost next, with their connection

    `accepted` counts attempts to connect, `lost_commits` and `lost_replies` what was lost.
    """

    def __init__(self, folder: Path) -> None:
        self._target = folder / ".s.PGSQL.5432"
        self.delay = 0.0
        self.refuses = self.is_silent = False
        self.error: tuple[str, str] | None = None
        self.commits_to_lose = self.replies_to_lose = self.accepted = self.port = 0
        self.lost_commits = self.lost_replies = 0
        self._connections: set[_ProxiedConnection] = set()
        self._loop = asyncio.new_event_loop()
        self._ready, self._stopped = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def url(self, schema: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://errandry@127.0.0.1:{self.port}/postgres?schema={schema}{more}"

    def cut(self) -> None:
        """Abort every connection, even in the middle of a message."""
        self._loop.call_soon_threadsafe(self._abort)

    def silence(self) -> None:
        """Stop forwarding, as if the server had lost power. Existing connections stay silent."""
        self.is_silent = True
        for connection in list(self._connections):
            connection.is_dead = True

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        self._abort()
        while self._connections:  # noqa: ASYNC110 - they end by themselves, now that they are aborted
            await asyncio.sleep(0.001)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = _ProxiedConnection(writer, self.is_silent)
        self._connections.add(connection)
        try:
            if self.error is not None:
                await self._answer_with_error(reader, writer, *self.error)
            elif not self.refuses:
                server_reader, connection.back = await asyncio.open_unix_connection(self._target)
                await asyncio.gather(
                    self._forward_requests(reader, connection.back, connection),
                    self._forward_replies(server_reader, writer, connection),
                )
        except OSError:
            pass  # the server is away, or one of the two has closed the connection
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _answer_with_error(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, code: str, text: str
    ) -> None:
        """Answer the startup message, after a request for encryption if there is one, and disconnect."""
        while True:
            length = int.from_bytes(await reader.readexactly(4))
            if int.from_bytes((await reader.readexactly(length - 4))[:4]) not in ENCRYPTION_REQUESTS:
                break
            writer.write(b"N")
        fields = f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode()
        writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _forward_requests(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, connection: "_ProxiedConnection"
    ) -> None:
        while data := await source.read(65_536):
            if self.commits_to_lose and COMMIT.search(data):
                self.commits_to_lose -= 1
                self.lost_commits += 1
                break
            if not connection.is_dead:
                target.write(data)
                await target.drain()
        connection.abort()

    async def _forward_replies(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, connection: "_ProxiedConnection"
    ) -> None:
        tail = b""
        while data := await source.read(65_536):
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.replies_to_lose and COMMITTED in tail + data:
                self.replies_to_lose -= 1
                self.lost_replies += 1
                break
            tail = data[-len(COMMITTED) :]
            if not connection.is_dead:
                target.write(data)
                await target.drain()
        if not connection.is_dead:
            connection.abort()

    def _abort(self) -> None:
        for connection in self._connections:
            connection.abort()


class _ProxiedConnection:
    """Both halves of a connection."""

    def __init__(self, front: asyncio.StreamWriter, is_dead: bool) -> None:
        self.front, self.is_dead = front, is_dead
        self.back: asyncio.StreamWriter | None = None

    def abort(self) -> None:
        for half in (self.front, self.back):
            if half is not None:
                with suppress(OSError):
                    half.transport.abort()
