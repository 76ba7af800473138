"""Shows the other workers of a store that this one is alive: a locked file and regular heartbeats."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable

from msgspec.structs import replace

from errandry.claims.liveness import Liveness
from errandry.claims.trouble import TroubleReporter
from errandry.core.command import Beat
from errandry.errors import ErrandryError
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.engine.engine import Engine

log = logging.getLogger("errandry.worker")

RETRY_INTERVAL = 1.0
"""Seconds until the next heartbeat after one that could not be written."""
CLOSE_TIMEOUT = 2.0
"""Seconds that a stopping worker waits for a store that does not answer."""


def new_worker_id(name: str | None) -> str:
    """An id that begins with `name`, by default the host's. Unique for each start.

    A worker that finds another one dead expires all leases under its id, so no two starts may share one.
    """
    return f"{(name or socket.gethostname())[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


class Presence:
    """Locks a file until `close`, and writes heartbeats. `describe` returns what the worker does now.

    Without a heartbeat before the first claim, the other workers would notice a crash only when the leases
    expire.
    """

    def __init__(
        self, engine: Engine, trouble: TroubleReporter, describe: Callable[[], Beat], interval: float
    ) -> None:
        self._engine, self._trouble, self._describe, self._interval = engine, trouble, describe, interval
        self._liveness = Liveness()
        self._requests = ChangeCounter()

    @property
    def descriptor(self) -> int | None:
        """The descriptor of the lock; None if it could not be taken."""
        return self._liveness.descriptor

    async def report_forever(self) -> None:
        """Write a heartbeat at each interval, and when `report_soon` was called. On the engine's loop."""
        was_written, requests = True, self._requests.version
        while True:
            interval = self._interval if was_written else min(self._interval, RETRY_INTERVAL)
            await self._requests.wait(requests, interval)
            requests = self._requests.version
            was_written = await self.report()

    def report_soon(self) -> None:
        """Write a heartbeat now: it takes back the crashes of jobs that this worker lost. From any thread."""
        self._requests.increment()

    async def report(self, *, gone: bool = False) -> bool:
        """Write a heartbeat; with `gone` the last one. If the store cannot write it, log a warning."""
        self._liveness.touch()
        beat = replace(
            self._describe(), host=socket.gethostname(), pid=os.getpid(), alive=self._liveness.path, gone=gone
        )
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT if gone else None):
                await self._engine.submit(beat)
                return True
        except (ErrandryError, TimeoutError) as error:
            slow = TimeoutError("the store did not answer in time")
            trouble = slow if isinstance(error, TimeoutError) else error
            self._trouble.report("cannot write heartbeats", trouble)
            log.warning("cannot write the heartbeat of worker %s: %s", beat.worker, trouble)
            return False

    def close(self) -> None:
        """Unlock the file, after the last heartbeat. See `Liveness.close`."""
        self._liveness.close()
