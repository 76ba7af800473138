"""Upkeep by a worker: what is due moves on, and the leases of workers that have died run out at once."""

import asyncio
import socket

from errandry.api.app import Errandry
from errandry.core.answer import UpkeepResult
from errandry.core.command import Beat, Upkeep
from errandry.errors import ErrandryError
from errandry.worker.liveness import bury, is_dead
from errandry.worker.throttled_log import ThrottledLog


class UpkeepLoop:
    """`last` is the monotonic time of the last upkeep that succeeded."""

    def __init__(self, app: Errandry, worker: str, every: float) -> None:
        self._app, self._worker, self._every = app, worker, every
        self.last: float | None = None
        self._complaint = ThrottledLog(app.clock, "upkeep did not succeed", "upkeep succeeds again")

    async def run(self) -> None:
        """Upkeep every so often, at once again while there is more; on the engine's loop."""
        while True:
            try:
                while await self.turn():
                    pass
                self._complaint.end()
            except ErrandryError as error:
                self._complaint.make(error)
            await asyncio.sleep(self._every)

    async def turn(self) -> bool:
        """Upkeep once; whether there is more to do.

        Where that is only to throw away what is old, half of the time is left to others.
        """
        dead, began = await self._dead(), self._app.clock.monotonic()
        prune = self._app.archiver is None  # else what is to go is seen by it first
        answer = await self._app.engine.submit(Upkeep(dead=tuple(dead), prune=prune))
        self.last = self._app.clock.monotonic()
        if isinstance(answer, UpkeepResult) and answer.more:
            if not (answer.expired or answer.promoted or answer.lapsed or answer.ticked):
                await asyncio.sleep(self.last - began)
            return True
        for worker, path in dead.items():
            await self._app.engine.submit(Beat(worker=worker, gone=True))
            bury(path)
        return False

    async def _dead(self) -> dict[str, str]:
        """Workers of this host that are known to be dead, with their lock files."""
        host = socket.gethostname()
        beats = [info.beat for info in await self._app.store.workers() if info.beat.worker != self._worker]
        return {beat.worker: beat.alive for beat in beats if beat.host == host and is_dead(beat.alive)}
