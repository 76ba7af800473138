"""Several worker processes: started, started again when they end, stopped together.

A worker that dies leaves its lock file unlocked: the others see that within a second and expire its leases.
A worker whose supervisor dies stops by itself, see `lifeline`.
"""

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from errandry.worker.children.process import ended
from errandry.worker.reload import changed
from errandry.worker.supervisor_pipe import MARGIN, READY, STOP

log = logging.getLogger("errandry.supervisor")

BACKOFF, BACKOFF_MAX, JITTER = 0.5, 30.0, 0.25
HEALTHY = 60.0
"""A worker that has lived so long starts again at once when it ends."""
STARTS = 3
"""How often in a row workers may end without ever having been ready."""
LOOK = 0.5
HURRY = 5.0
"""How long workers that must not wait for their handlers may take."""


class Supervisor:
    """Keeps `count` workers alive. `command` makes one, given the descriptor of its lifeline.

    With `reload`, they start again whenever a Python file below this folder changes.
    """

    def __init__(
        self, command: Callable[[int], Sequence[str]], count: int, grace: float, reload: str | None = None
    ) -> None:
        self._command, self._count, self._grace, self._reload = command, count, grace, reload
        self._stops = 0
        self._stopping = asyncio.Event()
        self._hopeless = False
        self._unready = 0
        self._changed = asyncio.Event()
        self._workers: set[_Worker] = set()

    async def run(self) -> int:
        """Until stopped by SIGTERM or SIGINT; a second one does not wait. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        watching = None if self._reload is None else asyncio.create_task(self._watch(self._reload))
        try:
            await asyncio.gather(*(self._keep(number) for number in range(1, self._count + 1)))
        finally:
            if watching is not None:
                watching.cancel()
        return 1 if self._hopeless else 0

    def stop(self) -> None:
        self._stops += 1
        if self._stops == 1 and not self._hopeless:
            log.info("workers claim no more; handlers may finish for %g s", self._grace)
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    async def _keep(self, number: int) -> None:
        """One worker after the other, until the supervisor stops or it has done what it should."""
        failures = 0
        while not self._stopping.is_set():
            self._changed.clear()
            began = monotonic()
            worker = await _Worker.start(self._command)
            self._workers.add(worker)
            log.info("worker %d is process %d", number, worker.pid)
            code = await self._ended(worker)
            self._workers.discard(worker)
            if self._stopping.is_set() or (code == 0 and not worker.is_stopped):
                return
            if worker.is_stopped:
                continue  # for a reload
            failures = 1 if monotonic() - began >= HEALTHY else failures + 1
            self._unready = 0 if worker.was_ready else self._unready + 1
            await self._rest(number, ended(code), failures)

    async def _ended(self, worker: "_Worker") -> int:
        """Its exit code. Once stopped, it has its grace, and then a little; after a second stop only that."""
        while (code := await worker.over(LOOK)) is None:
            limit = HURRY if self._stops > 1 else self._grace + MARGIN
            if worker.stopped_for > limit:
                log.warning("process %d does not end: it is killed", worker.pid)
                worker.kill()
        return code

    async def _rest(self, number: int, how: str, failures: int) -> None:
        """Before a worker starts again: the longer, the more often it has ended."""
        if self._reload is not None and self._unready:
            log.error("worker %d %s before it was ready: it starts again when a file changes", number, how)
            await _first(self._changed, self._stopping)
        elif self._unready >= STARTS:
            log.error(
                "worker %d %s, as did %d before it that never were ready: giving up", number, how, STARTS - 1
            )
            self._hopeless = True
            self.stop()
        else:
            jitter = 1 + random.uniform(-JITTER, JITTER)
            delay = min(BACKOFF_MAX, BACKOFF * 2 ** min(failures - 1, 16) * jitter)
            log.warning("worker %d %s: another one starts in %.1f s", number, how, delay)
            await _first(self._stopping, timeout=delay)

    async def _watch(self, folder: str) -> None:
        async for path in changed(folder):
            log.info("%s has changed: workers start again", path.removeprefix(f"{folder}{os.sep}"))
            self._changed.set()
            for worker in self._workers:
                worker.stop()


class _Worker:
    """A worker process and our end of its lifeline."""

    def __init__(self, process: asyncio.subprocess.Process, line: socket.socket) -> None:
        self._process, self._line = process, line
        self._over = asyncio.ensure_future(process.wait())
        self._stops = 0
        self._stopped_at: float | None = None
        self._was_ready = False

    @classmethod
    async def start(cls, command: Callable[[int], Sequence[str]]) -> "_Worker":
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C is for the supervisor, which tells the workers
            )
        return cls(process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        return self._stopped_at is not None

    @property
    def stopped_for(self) -> float:
        return 0.0 if self._stopped_at is None else monotonic() - self._stopped_at

    @property
    def was_ready(self) -> bool:
        with suppress(OSError):
            self._was_ready = self._was_ready or self._line.recv(1) == READY
        return self._was_ready

    def stop(self) -> None:
        self._stops += 1
        if self._stops <= 2:  # the second gives it a time of its own, which a third does not prolong
            self._stopped_at = monotonic()
        with suppress(OSError):
            self._line.send(STOP)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def over(self, timeout: float) -> int | None:
        """Its exit code; None if it has not ended yet."""
        await asyncio.wait({self._over}, timeout=timeout)
        if not self._over.done():
            return None
        if self._line.fileno() >= 0:
            _ = self.was_ready
            self._line.close()
        return self._over.result()


async def _first(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Until one of these is set."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
