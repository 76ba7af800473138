"""Keeping the leases of running jobs, and learning which jobs should stop.

Runs on the engine's loop: a handler that blocks its own loop keeps its lease all the same. What reads runs
apart from what renews, so that no slow read costs a lease.
"""

import asyncio
import logging

from errandry.clock import Clock
from errandry.core.answer import CANCEL, Lost, Renewed
from errandry.core.command import Renew
from errandry.errors import ErrandryError
from errandry.store.engine.engine import Engine
from errandry.worker.handler_call import JobRun, StopReason
from errandry.worker.options import WorkerOptions
from errandry.worker.throttled_log import ThrottledLog

log = logging.getLogger("errandry.worker")

LOOK_EVERY = 0.03
TICK = 1.0


class Leases:
    """Taken and dropped by the worker's loop, kept by the engine's."""

    def __init__(self, engine: Engine, clock: Clock, worker: str, options: WorkerOptions) -> None:
        self._engine, self._clock, self._worker, self._options = engine, clock, worker, options
        self._held: dict[str, JobRun] = {}
        self._unwatched = ThrottledLog(clock, "nobody can see what is canceled", "cancels are seen again")
        self._unrenewed = ThrottledLog(clock, "leases could not be renewed", "leases are renewed again")

    def take(self, run: JobRun) -> None:
        """Keep the lease of a job just claimed. If this worker had it before, that claim no longer stands."""
        if (before := self._held.get(run.job.id)) is not None:
            self._lose(before, "claimed again")
        self._held[run.job.id] = run

    def drop(self, run: JobRun) -> None:
        """Nothing more is to be written under its claim."""
        if self._held.get(run.job.id) is run:
            del self._held[run.job.id]

    def is_idle(self) -> bool:
        """Whether nothing is held, and everything that was has been settled."""
        return not self._held

    async def keep(self) -> None:
        """Renew all leases in one command every so often; give up those that have run out all the same."""
        every = self._options.renewal
        due, renewing = self._clock.monotonic() + every, None
        while True:
            now = self._clock.monotonic()
            if now >= due and (renewing is None or renewing.done()):
                renewing, due = asyncio.create_task(self._renew()), now + every
            for run in list(self._held.values()):
                if run.lease_until <= now:
                    self._lose(run, "it could not be renewed in time")
            await asyncio.sleep(min(TICK, every / 4))

    async def watch(self) -> None:
        """Look for cancels whenever something may have changed."""
        store = self._engine.store
        while True:
            pulse = store.version()
            try:
                if self._held:
                    await self._look_for_cancels()
                if await store.wait_for_change(pulse, TICK):
                    await asyncio.sleep(LOOK_EVERY)
                self._unwatched.end()
            except ErrandryError as error:
                self._unwatched.make(error)
                await asyncio.sleep(TICK)

    async def _look_for_cancels(self) -> None:
        for ref in await self._engine.store.cancels(self._worker):
            run = self._held.get(ref.job)
            if run is not None and run.ref == ref:
                run.stop(StopReason.CANCEL)

    async def _renew(self) -> None:
        now = self._clock.monotonic()
        runs = [run for run in list(self._held.values()) if run.needs_lease(now)]
        if not runs or await self._renewed(runs, now):
            return
        if len(runs) > 1:  # perhaps because of one of them, whose row somebody keeps locked
            left = [run for run in runs if run.needs_lease(now)]
            await asyncio.gather(*[self._renewed([run], now) for run in left])

    async def _renewed(self, runs: list[JobRun], now: float) -> bool:
        """Renew these leases together, as of `now`; False if the store cannot at present."""
        try:
            answer = await self._engine.submit(Renew(tuple(run.ref for run in runs), self._options.lease))
        except ErrandryError as error:
            self._unrenewed.make(error)
            return False
        self._unrenewed.end()
        if isinstance(answer, Renewed):
            for run, mark in zip(runs, answer.acks, strict=True):
                if isinstance(mark, Lost):
                    self._lose(run, mark.cause)
                    continue
                run.lease_until = now + self._options.lease
                if mark is CANCEL:
                    run.stop(StopReason.CANCEL)
        return True

    def _lose(self, run: JobRun, why: str) -> None:
        if self._held.get(run.job.id) is run and not run.is_lost and not run.is_settling:
            run.is_lost = True
            log.warning("job %s (%s): its lease is lost: %s", run.job.id, run.job.task, why)
            run.stop(StopReason.LOST)
