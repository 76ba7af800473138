"""The worker's upkeep: promotes, expires and prunes jobs, and expires the leases of dead workers at once."""

import asyncio
import logging
import socket
from collections.abc import Callable

from errandry.claims.liveness import is_dead, remove_lock_file, remove_stale_lock_files
from errandry.claims.log_record import log_expiries
from errandry.claims.throttled_log import ThrottledLog
from errandry.claims.trouble import TroubleReporter
from errandry.clock import Clock
from errandry.core.answer import UpkeepResult
from errandry.core.command import Beat, Upkeep
from errandry.errors import ErrandryError
from errandry.store.engine.engine import Engine

log = logging.getLogger("errandry.worker")

UPKEEP_INTERVAL = 1.0
"""Seconds between two upkeeps."""
CLEANUP_INTERVAL = 3_600.0
"""Seconds between two looks for the lock files of workers that died long ago."""


class UpkeepLoop:
    """Runs upkeep regularly. `last_run` is the monotonic time of the last upkeep that succeeded.

    `may_prune` returns whether upkeep may delete finished jobs: not if the app has an archiver, which deletes
    them itself, after archiving.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        trouble: TroubleReporter,
        may_prune: Callable[[], bool],
        interval: float = UPKEEP_INTERVAL,
    ) -> None:
        self._engine, self._clock, self._trouble, self._interval = engine, clock, trouble, interval
        self._may_prune = may_prune
        self.last_run: float | None = None
        self._next_cleanup = clock.monotonic()
        self._throttled_log = ThrottledLog(
            clock, "upkeep failed, retrying", "upkeep succeeds again", trouble.report
        )

    async def run(self) -> None:
        """Run upkeep every `interval` seconds, or at once while there is more to do. On the engine's loop."""
        while True:
            try:
                while await self.run_once():
                    pass
                self._throttled_log.report_recovery()
            except ErrandryError as error:
                self._throttled_log.report_failure(error)
            await asyncio.sleep(self._interval)

    async def run_once(self) -> bool:
        """Run upkeep once; whether there is more to do.

        If it did nothing but prune, sleep as long as it took: half of the time is left to other commands.
        """
        dead, began = await self._dead_workers(), self._clock.monotonic()
        answer = await self._engine.submit(
            Upkeep(dead=tuple(dead), prune=self._may_prune(), worker=self._trouble.worker)
        )
        self.last_run = self._clock.monotonic()
        if isinstance(answer, UpkeepResult):
            log_expiries(answer.expiries)
        if isinstance(answer, UpkeepResult) and answer.more:
            if not (answer.expired or answer.promoted or answer.lapsed or answer.ticked):
                await asyncio.sleep(self.last_run - began)
            return True
        for worker, path in dead.items():
            await self._engine.submit(Beat(worker=worker, gone=True))
            if remove_lock_file(path):  # several workers may notice; the one that removes the file logs it
                log.warning("worker %s has died, its jobs are released", worker)
                self._trouble.report(f"worker {worker} has died")
        if self.last_run >= self._next_cleanup:
            self._next_cleanup = self.last_run + CLEANUP_INTERVAL
            remove_stale_lock_files()
        return False

    async def _dead_workers(self) -> dict[str, str]:
        """Workers of this host that are known to be dead, with their lock files."""
        host = socket.gethostname()
        own = self._trouble.worker
        beats = [info.beat for info in await self._engine.store.workers() if info.beat.worker != own]
        return {beat.worker: beat.alive for beat in beats if beat.host == host and is_dead(beat.alive)}
