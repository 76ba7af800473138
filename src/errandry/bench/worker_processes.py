"""The worker processes of a run: started, let go together, killed, and all gone at the end.

None of them outlives the run, even one killed with -9: each stops by itself when its lifeline breaks.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct, json

from errandry.bench.bench_store import BenchFailed, BenchStore
from errandry.worker import WorkerOptions
from errandry.worker.supervisor_pipe import STOP

PATIENCE = 30.0
"""How long a worker may take to be ready."""
GRACE = 5.0
LOOK = 0.02
LAST_WORDS = 500


class WorkerEnded(BenchFailed):
    """A worker of the run ended though nobody told it to."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(code, said)
        self.code, self.said = code, said

    def __str__(self) -> str:
        return f"a worker process of the run ended with {self.code}: {self.said or 'it said nothing'}"


class WorkerUsage(Struct, frozen=True):
    """When a worker worked, and how much processor time its process had in all."""

    began: float
    ended: float
    cpu: float


class WorkerProcess:
    """A worker process."""

    def __init__(self, process: asyncio.subprocess.Process, line: socket.socket, log: Path) -> None:
        self._process, self._line, self._log = process, line, log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        """Return when it waits for `go`."""
        async with asyncio.timeout(PATIENCE):
            if not await asyncio.get_running_loop().sock_recv(self._line, 1):
                raise WorkerEnded(await self._process.wait(), self._said())

    def go(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for mypy
        self._process.stdin.write(b"go\n")

    async def shift(self) -> WorkerUsage:
        """What it says when it has ended by itself."""
        said, _ = await self._process.communicate()
        if self._process.returncode:
            raise WorkerEnded(self._process.returncode, self._said())
        return json.decode(said, type=WorkerUsage)

    async def kill(self) -> None:
        """As `kill -9` does. Returns when it is dead."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._line.close()

    async def end(self) -> None:
        """Have it stop at once, give back what it has, and be gone."""
        with suppress(OSError):
            self._line.send(STOP * 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._process.communicate()
        await self.kill()

    def _said(self) -> str:
        """Its last words: the last line of a traceback is the one that counts."""
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][-LAST_WORDS:] if lines else ""


class WorkerProcesses:
    """Workers at one place. What each of them logs goes into a file there."""

    def __init__(self, place: BenchStore) -> None:
        self._place, self._numbers = place, count()
        self.hands: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await asyncio.gather(*(hand.kill() for hand in self.hands))
        else:
            await asyncio.gather(*(hand.end() for hand in self.hands))

    async def hire(self, number: int, options: WorkerOptions) -> Sequence[WorkerProcess]:
        """So many more, all ready; none does anything before its `go`."""
        hired = [await self._start(options) for _ in range(number)]
        await asyncio.gather(*(hand.ready() for hand in hired))
        return hired

    async def at_work(self, number: int, options: WorkerOptions) -> Sequence[WorkerProcess]:
        """So many more, let go; all of them have said to the store that they are there."""
        hired = await self.hire(number, options)
        for hand in hired:
            hand.go()
        async with asyncio.timeout(PATIENCE):
            while not {hand.pid for hand in hired} <= await self._beating():  # noqa: ASYNC110 - others decide
                await asyncio.sleep(LOOK)
        return hired

    async def _beating(self) -> set[int]:
        return {info.beat.pid for info in await self._place.app.workers()}

    async def kill(self, hand: WorkerProcess) -> None:
        self.hands.remove(hand)
        await hand.kill()

    async def _start(self, options: WorkerOptions) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        words = (json.encode(options).decode(), str(theirs.fileno()))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDRY_")}
        path = self._place.folder / f"worker-{next(self._numbers)}.log"
        with theirs, path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "errandry.bench.worker_program", *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the run, which ends its workers
                env=clean | {"ERRANDRY_URL": self._place.url},
            )
        hand = WorkerProcess(process, ours, path)
        self.hands.append(hand)
        return hand
