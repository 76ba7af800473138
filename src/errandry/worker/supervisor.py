"""Runs several worker processes: starts them, restarts those that end, and stops them together.

A worker that dies leaves its lock file unlocked: the others notice that within a second and expire its
leases. A worker whose supervisor dies stops by itself, see `supervisor_pipe`.
"""

import asyncio
import logging
import os
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from errandry.worker.children.process import describe_exit
from errandry.worker.reload import watch_files
from errandry.worker.stop_signals import StopSignals
from errandry.worker.supervisor_pipe import EXIT_MARGIN, READY, STOP

log = logging.getLogger("errandry.supervisor")

BACKOFF, BACKOFF_MAX = 0.5, 30.0
"""Seconds before the first restart, doubled after each failure; maximum seconds."""
JITTER = 0.25
"""Maximum share by which the back-off is randomly shortened or lengthened."""
HEALTHY_AFTER = 60.0
"""Seconds a worker has to run for its earlier failures not to lengthen the back-off."""
FAILED_STARTS_MAX = 3
"""Number of workers in a row that may end before they were ready; then the supervisor gives up."""
POLL_INTERVAL = 0.5
"""Seconds between two checks of the time limit of a stopped worker."""
USAGE_ERROR, STORE_REFUSED = 2, 78
"""Exit codes of a worker whose command line or app is wrong, and of one that must not use its store.

Another start would end the same."""
_FINAL = {USAGE_ERROR: "a usage error", STORE_REFUSED: "it must not use its store"}
STOP_TIMEOUT = 5.0
"""Seconds a worker may take to exit after a second stop, which skips the grace."""


class Supervisor:
    """Keeps `count` workers running. `command` is their command line, to which it adds options of its own.

    With `reload`, they restart whenever a Python file below this folder changes.
    """

    def __init__(self, command: Sequence[str], count: int, grace: float, reload: str | None = None) -> None:
        self._command, self._count, self._grace, self._reload = command, count, grace, reload
        self._stops = 0
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._failed_starts = 0
        self._store_exists = False
        self._changed = asyncio.Event()
        self._workers: set[_Worker] = set()

    async def run(self) -> int:
        """Run until a signal of `StopSignals`; a second one skips the grace. Returns the exit code."""
        watcher = None if self._reload is None else asyncio.create_task(self._restart_on_change(self._reload))
        try:
            with StopSignals(self.stop):
                await asyncio.gather(*(self._keep_worker_running(n) for n in range(1, self._count + 1)))
        finally:
            if watcher is not None:
                watcher.cancel()
        return self._exit_code

    def stop(self) -> None:
        self._stops += 1
        if self._stops == 1 and not self._exit_code:
            log.info("workers claim no more; handlers may finish for %g s", self._grace)
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    async def _keep_worker_running(self, number: int) -> None:
        """Run one worker, and another when it ends, until the supervisor stops or a worker exits with 0."""
        failures = 0
        while not self._stopping.is_set():
            self._changed.clear()
            began = monotonic()
            worker = await _Worker.start(self._command, self._has_been_ready())
            self._workers.add(worker)
            if self._stopping.is_set() or self._changed.is_set():
                worker.stop()  # while it was started, it could not be told
            log.info("started worker %d, process %d", number, worker.pid)
            code = await self._wait_for_exit(worker)
            self._has_been_ready()
            self._workers.discard(worker)
            if self._stopping.is_set() or (code == 0 and not worker.is_stopped):
                return
            if worker.is_stopped:
                continue  # for a reload
            failures = 1 if monotonic() - began >= HEALTHY_AFTER else failures + 1
            self._failed_starts = 0 if worker.was_ready else self._failed_starts + 1
            is_final = code == STORE_REFUSED or (code == USAGE_ERROR and monotonic() - began < HEALTHY_AFTER)
            if is_final and self._reload is None:
                why = f"{describe_exit(code)}, {_FINAL[code]}"
                log.error("worker %d %s: a restart would not help", number, why)
                self._give_up(code)
                return
            await self._wait_before_restart(number, code, failures)

    def _has_been_ready(self) -> bool:
        """Whether any worker has been ready, and so has opened the store."""
        self._store_exists = self._store_exists or any(worker.was_ready for worker in self._workers)
        return self._store_exists

    async def _wait_for_exit(self, worker: "_Worker") -> int:
        """Return its exit code; kill it if it was stopped and does not exit in time.

        It has its grace and `EXIT_MARGIN`, or after a second stop only `STOP_TIMEOUT`.
        """
        while (code := await worker.exit_code(POLL_INTERVAL)) is None:
            limit = STOP_TIMEOUT if self._stops > 1 else self._grace + EXIT_MARGIN
            if worker.stopped_for > limit:
                log.warning("worker process %d did not exit within %g s, killing it", worker.pid, limit)
                worker.kill()
        return code

    def _give_up(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self.stop()

    async def _wait_before_restart(self, number: int, code: int, failures: int) -> None:
        """Wait before a worker is restarted, longer after each failure. Give up if none becomes ready."""
        ending = describe_exit(code)
        if self._reload is not None and (self._failed_starts or code in _FINAL):
            log.error("worker %d %s; a changed file restarts it", number, ending)
            await _wait_for_any(self._changed, self._stopping)
        elif self._failed_starts >= FAILED_STARTS_MAX:
            log.error(
                "worker %d %s before it was ready, as did the %d before it: giving up",
                number,
                ending,
                FAILED_STARTS_MAX - 1,
            )
            self._give_up(1)
        else:
            jitter = 1 + random.uniform(-JITTER, JITTER)
            delay = min(BACKOFF_MAX, BACKOFF * 2 ** min(failures - 1, 16) * jitter)
            log.warning("worker %d %s: restarting it in %.1f s", number, ending, delay)
            await _wait_for_any(self._stopping, timeout=delay)

    async def _restart_on_change(self, folder: str) -> None:
        async for path in watch_files(folder):
            log.info("%s has changed: restarting the workers", path.removeprefix(f"{folder}{os.sep}"))
            self._changed.set()
            for worker in self._workers:
                worker.stop()


class _Worker:
    """A worker process and the supervisor's end of its pipe."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: socket.socket) -> None:
        self._process, self._pipe = process, pipe
        self._exit = asyncio.ensure_future(process.wait())
        self._stops = 0
        self._stopped_at: float | None = None
        self._was_ready = False

    @classmethod
    async def start(cls, command: Sequence[str], store_exists: bool) -> "_Worker":
        """Start a worker. With `store_exists`, it makes no new store in place of one that was deleted."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            options = [
                "--supervisor-pipe",
                str(theirs.fileno()),
                *(["--store-exists"] if store_exists else []),
            ]
            process = await asyncio.create_subprocess_exec(
                *command,
                *options,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C must reach only the supervisor, which stops the workers
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
            self._was_ready = self._was_ready or self._pipe.recv(1) == READY
        return self._was_ready

    def stop(self) -> None:
        self._stops += 1
        if self._stops <= 2:  # the second stop starts a new time limit, which a third must not extend
            self._stopped_at = monotonic()
        with suppress(OSError):
            self._pipe.send(STOP)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def exit_code(self, timeout: float) -> int | None:
        """Wait for its exit code; None if it does not exit within `timeout` seconds."""
        await asyncio.wait({self._exit}, timeout=timeout)
        if not self._exit.done():
            return None
        if self._pipe.fileno() >= 0:
            _ = self.was_ready
            self._pipe.close()
        return self._exit.result()


async def _wait_for_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Return when one of these is set, or after the timeout."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
