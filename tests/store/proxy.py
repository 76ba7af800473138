"""A connection that can be made bad: a proxy between a program and a server's socket.

It listens on the loopback. Whole passes go through it; what it does to them is said by its switches.
"""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self


class Proxy:
    """`delay` holds up everything by so many seconds; while it `swallows`, nothing gets through, and nobody
    is told; `deaf_after` names bytes of a request after which no reply comes back, once.
    """

    def __init__(self, folder: Path) -> None:
        self._target = folder / ".s.PGSQL.5432"
        self.delay = 0.0
        self.swallows = False
        self.deaf_after: bytes | None = None
        self.dropped = 0
        self._lines: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"postgresql://errandry@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/postgres"

    def cut(self) -> None:
        """Every connection ends, in the middle of whatever it is."""
        for line in self._lines:
            line.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        self._lines |= {writer, back}
        deaf = asyncio.Event()
        ways = self._pass_on(reader, back, deaf, is_request=True), self._pass_on(there, writer, deaf)
        await asyncio.gather(*ways)
        self._lines -= {writer, back}

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        deaf: asyncio.Event,
        is_request: bool = False,
    ) -> None:
        try:
            while data := await source.read(65_536):
                await asyncio.sleep(self.delay)
                if is_request and self.deaf_after is not None and self.deaf_after in data:
                    self.deaf_after = None
                    deaf.set()
                if self.swallows:
                    continue
                if deaf.is_set() and not is_request:
                    self.dropped += 1
                    self.cut()
                    return
                target.write(data)
                await target.drain()
        except (ConnectionError, OSError):
            pass
        finally:
            target.close()
