"""A line to a server that can be made bad: a TCP proxy with a thread of its own.

It passes on what it is given, byte by byte as it comes, until it is told not to. It counts who connects.
"""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""What a server says when a transaction has become durable."""


class Proxy:
    """Between a program and the server whose socket is in `folder`.

    delay      every reply comes so many seconds later
    refuses    who connects is thrown out at once
    is_silent  who connects is let in, and never gets an answer
    deaf       the next so many replies to a commit are lost with their line

    `accepted` counts connections that were tried, `lost` replies that were kept back.
    """

    def __init__(self, folder: Path) -> None:
        self._target = folder / ".s.PGSQL.5432"
        self.delay = 0.0
        self.refuses = self.is_silent = False
        self.deaf = self.accepted = self.lost = self.port = 0
        self._lines: set[_Line] = set()
        self._loop = asyncio.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def url(self, schema: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://errandry@127.0.0.1:{self.port}/postgres?schema={schema}{more}"

    def cut(self) -> None:
        """Every line ends, in the middle of whatever is on it."""
        self._loop.call_soon_threadsafe(self._abort)

    def silence(self) -> None:
        """The server's machine is gone: nobody answers, whatever is sent. The lines of now stay so."""
        self.is_silent = True
        for line in list(self._lines):
            line.is_dead = True

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        self._abort()
        while self._lines:  # noqa: ASYNC110 - they end by themselves, now that they are aborted
            await asyncio.sleep(0.001)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        line = _Line(writer, self.is_silent)
        self._lines.add(line)
        try:
            if not self.refuses:
                there, line.back = await asyncio.open_unix_connection(self._target)
                await asyncio.gather(
                    self._asked(reader, line.back, line), self._answered(there, writer, line)
                )
        except OSError:
            pass  # the server is away, or one of the two has left
        finally:
            line.abort()
            self._lines.discard(line)

    async def _asked(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, line: "_Line") -> None:
        while data := await source.read(65_536):
            if not line.is_dead:
                target.write(data)
                await target.drain()
        line.abort()

    async def _answered(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, line: "_Line"
    ) -> None:
        tail = b""
        while data := await source.read(65_536):
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.deaf and COMMITTED in tail + data:
                self.deaf -= 1
                self.lost += 1
                break
            tail = data[-len(COMMITTED) :]
            if not line.is_dead:
                target.write(data)
                await target.drain()
        if not line.is_dead:
            line.abort()

    def _abort(self) -> None:
        for line in self._lines:
            line.abort()


class _Line:
    """Both halves of a connection."""

    def __init__(self, front: asyncio.StreamWriter, is_dead: bool) -> None:
        self.front, self.is_dead = front, is_dead
        self.back: asyncio.StreamWriter | None = None

    def abort(self) -> None:
        for half in (self.front, self.back):
            if half is not None:
                with suppress(OSError):
                    half.transport.abort()
