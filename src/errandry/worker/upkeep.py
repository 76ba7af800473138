"""The worker's upkeep: promotes, expires and prunes jobs, and expires the leases of dead workers at once."""

import asyncio
import logging
import socket

from errandry.api.app import Errandry
from errandry.core.answer import UpkeepResult
from errandry.core.command import Beat, Upkeep
from errandry.errors import ErrandryError
from errandry.worker.liveness import is_dead, remove_lock_file
from errandry.worker.throttled_log import ThrottledLog
from errandry.worker.trouble import TroubleReporter

log = logging.getLogger("errandry.worker")


class UpkeepLoop:
    """Runs upkeep regularly. `last_run` is the monotonic time of the last upkeep that succeeded."""

    def __init__(self, app: Errandry, trouble: TroubleReporter, interval: float) -> None:
        self._app, self._trouble, self._interval = app, trouble, interval
        self.last_run: float | None = None
        self._throttled_log = ThrottledLog(
            app.clock, "upkeep failed, retrying", "upkeep succeeds again", trouble.report
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
        dead, began = await self._dead_workers(), self._app.clock.monotonic()
        prune = self._app.archiver is None  # an archiver removes the jobs itself, after archiving them
        answer = await self._app.engine.submit(Upkeep(dead=tuple(dead), prune=prune))
        self.last_run = self._app.clock.monotonic()
        if isinstance(answer, UpkeepResult) and answer.more:
            if not (answer.expired or answer.promoted or answer.lapsed or answer.ticked):
                await asyncio.sleep(self.last_run - began)
            return True
        for worker, path in dead.items():
            await self._app.engine.submit(Beat(worker=worker, gone=True))
            if remove_lock_file(path):  # only one of the workers that notice the death removes it
                log.warning("worker %s has died, its jobs are released", worker)
                self._trouble.report(f"worker {worker} has died")
        return False

    async def _dead_workers(self) -> dict[str, str]:
        """Workers of this host that are known to be dead, with their lock files."""
        host = socket.gethostname()
        own = self._trouble.worker
        beats = [info.beat for info in await self._app.store.workers() if info.beat.worker != own]
        return {beat.worker: beat.alive for beat in beats if beat.host == host and is_dead(beat.alive)}
