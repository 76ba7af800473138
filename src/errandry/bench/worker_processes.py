"""The worker processes of a run: start them, let them work, kill them, and end them with the run.

No worker outlives the run, even if the run is killed with -9: each stops when its pipe to the run closes.
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

START_TIMEOUT = 30.0
"""Maximum seconds for a worker to start."""
STOP_TIMEOUT = 5.0
POLL_INTERVAL = 0.02
MESSAGE_MAX = 500


class WorkerEnded(BenchFailed):
    """A worker process of the run ended unexpectedly."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"a worker process of the run ended with exit code {self.code}: {self.message or 'no output'}"


class WorkerUsage(Struct, frozen=True):
    """When a worker started and ended, and the CPU seconds of its process."""

    began: float
    ended: float
    cpu: float


class WorkerProcess:
    """A worker process."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: socket.socket, log: Path) -> None:
        self._process, self._pipe, self._log = process, pipe, log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_ready(self) -> None:
        """Return when the worker waits for `go`."""
        async with asyncio.timeout(START_TIMEOUT):
            if not await asyncio.get_running_loop().sock_recv(self._pipe, 1):
                raise WorkerEnded(await self._process.wait(), self._last_log_line())

    def go(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for mypy
        self._process.stdin.write(b"go\n")

    async def usage(self) -> WorkerUsage:
        """Wait until the worker has ended by itself, and return its usage."""
        output, _ = await self._process.communicate()
        if self._process.returncode:
            raise WorkerEnded(self._process.returncode, self._last_log_line())
        return json.decode(output, type=WorkerUsage)

    async def kill(self) -> None:
        """Kill the worker as `kill -9` does, and wait until it is dead."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._pipe.close()

    async def stop(self) -> None:
        """Stop the worker: it releases its jobs at once and ends; kill it if it takes too long."""
        with suppress(OSError):
            self._pipe.send(STOP * 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._process.communicate()
        await self.kill()

    def _last_log_line(self) -> str:
        """The last line of its log, which has the error of a traceback."""
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][-MESSAGE_MAX:] if lines else ""


class WorkerProcesses:
    """The worker processes on one store; each logs to a file in the run's folder."""

    def __init__(self, store: BenchStore) -> None:
        self._store, self._numbers = store, count()
        self.processes: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await asyncio.gather(*(process.kill() for process in self.processes))
        else:
            await asyncio.gather(*(process.stop() for process in self.processes))

    async def start(self, number: int, options: WorkerOptions) -> Sequence[WorkerProcess]:
        """Start more workers and wait until they are ready; each begins to work at its `go`."""
        processes = [await self._start_process(options) for _ in range(number)]
        await asyncio.gather(*(process.wait_until_ready() for process in processes))
        return processes

    async def start_working(self, number: int, options: WorkerOptions) -> Sequence[WorkerProcess]:
        """Start more workers, let them work, and wait until the store has a heartbeat of each."""
        processes = await self.start(number, options)
        for process in processes:
            process.go()
        async with asyncio.timeout(START_TIMEOUT):
            while not {process.pid for process in processes} <= await self._beating_pids():  # noqa: ASYNC110 - others decide
                await asyncio.sleep(POLL_INTERVAL)
        return processes

    async def _beating_pids(self) -> set[int]:
        return {worker.pid for worker in await self._store.app.workers.list()}

    async def kill(self, process: WorkerProcess) -> None:
        self.processes.remove(process)
        await process.kill()

    async def _start_process(self, options: WorkerOptions) -> WorkerProcess:
        own_end, worker_end = socket.socketpair()
        own_end.setblocking(False)
        arguments = (json.encode(options).decode(), str(worker_end.fileno()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDRY_")}
        path = self._store.folder / f"worker-{next(self._numbers)}.log"
        with worker_end, path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "errandry.bench.worker_program", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                pass_fds=(worker_end.fileno(),),
                start_new_session=True,  # Ctrl-C is for the run, which ends its workers
                env=environment | {"ERRANDRY_URL": self._store.url},
            )
        worker = WorkerProcess(process, own_end, path)
        self.processes.append(worker)
        return worker
