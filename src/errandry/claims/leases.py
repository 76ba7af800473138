"""Renews the leases of held jobs, and stops jobs that are canceled.

Runs on the engine's loop, so a handler that blocks the main loop keeps its lease. Cancels are read in a
separate task, so that a slow read delays no renewal.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from errandry.claims.throttled_log import ThrottledLog
from errandry.claims.trouble import OnTrouble, ignore_trouble
from errandry.clock import Clock
from errandry.core.answer import CANCEL, Answer, Lost, Renewed
from errandry.core.command import Ref, Renew, Settle
from errandry.errors import ErrandryError, describe_loss
from errandry.store.engine.engine import Engine

log = logging.getLogger("errandry.worker")

CANCEL_CHECK_INTERVAL = 0.03
"""Minimum seconds between two reads of cancels while the store keeps changing."""
POLL_INTERVAL = 1.0
"""Maximum seconds between two reads of cancels, and between two checks of the leases."""


class StopReason(StrEnum):
    """Why the attempt of a job should stop."""

    CANCEL = "cancel"
    LOST = "lost"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    CRASH = "crash"
    """The worker ends although nothing stopped it: a handler may be the cause."""


class HeldClaim(Protocol):
    """A claim of this worker, from the claim to the outcome. Its methods may be called from any thread.

    `lease_until` is a monotonic time. `is_settling`: its outcome is being written.
    """

    ref: Ref
    lease_until: float
    is_lost: bool
    is_settling: bool

    def needs_renewal(self, now: float) -> bool:
        """Whether the worker should renew its lease."""

    def stop(self, reason: StopReason) -> None:
        """Ask the attempt to stop; the first reason counts."""

    def mark_lost(self, cause: str) -> None:
        """Note that the worker no longer has its lease, and ask the attempt to stop."""


class Leases:
    """The leases a worker holds, by job. `lease` and `interval`, between renewals, are in seconds.

    `on_lost` is called when a lease is lost, on any thread.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        worker: str,
        lease: float,
        interval: float,
        on_trouble: OnTrouble = ignore_trouble,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._clock, self._worker = engine, clock, worker
        self._lease, self._interval = lease, interval
        self._on_trouble, self._on_lost = on_trouble, on_lost
        self._due = clock.monotonic() + interval
        self._held: dict[str, HeldClaim] = {}
        self._watch_log = ThrottledLog(
            clock,
            "cannot read which running jobs are canceled, retrying",
            "cancels can be read again",
            on_trouble,
        )
        self._renewal_log = ThrottledLog(
            clock, "cannot renew leases, retrying", "leases are renewed again", on_trouble
        )

    def add(self, run: HeldClaim) -> None:
        """Renew the lease of a job just claimed. An earlier claim of it by this worker is lost."""
        if (previous := self._held.get(run.ref.job)) is not None:
            self._mark_lost(previous, "claimed again")
        self._held[run.ref.job] = run

    def remove(self, run: HeldClaim) -> None:
        """Stop renewing a lease: nothing more is written under it."""
        if self._held.get(run.ref.job) is run:
            del self._held[run.ref.job]

    def is_idle(self) -> bool:
        """Whether no job is held: all are settled."""
        return not self._held

    async def renew_forever(self) -> None:
        """Renew all leases regularly, in one command; mark those that have expired as lost."""
        interval, renewing = self._interval, None
        while True:
            now = self._clock.monotonic()
            if now >= self._due and (renewing is None or renewing.done()):
                renewing, self._due = asyncio.create_task(self.renew_all()), now + interval
            for run in list(self._held.values()):
                if run.lease_until <= now:
                    self._end_lease(run)
            await asyncio.sleep(min(POLL_INTERVAL, interval / 4))

    async def watch_cancels(self) -> None:
        """Read which jobs are canceled whenever the store may have changed, and stop them."""
        store = self._engine.store
        while True:
            version = store.version()
            try:
                if self._held:
                    await self._stop_canceled()
                if await store.wait_for_change(version, POLL_INTERVAL):
                    await asyncio.sleep(CANCEL_CHECK_INTERVAL)
                self._watch_log.report_recovery()
            except ErrandryError as error:
                self._watch_log.report_failure(error)
                await asyncio.sleep(POLL_INTERVAL)

    async def _stop_canceled(self) -> None:
        for ref in await self._engine.store.cancels(self._worker):
            run = self._held.get(ref.job)
            if run is not None and run.ref == ref:
                run.stop(StopReason.CANCEL)

    async def renew_all(self) -> None:
        """Renew the leases that need it, on the engine's loop."""
        now = self._clock.monotonic()
        runs = [run for run in list(self._held.values()) if run.needs_renewal(now)]
        if not runs or await self._renew_together(runs, now):
            return
        if len(runs) > 1:  # one locked row may have blocked them all: renew them one by one
            remaining = [run for run in runs if run.needs_renewal(now)]
            await asyncio.gather(*[self._renew_together([run], now) for run in remaining])

    async def _renew_together(self, runs: list[HeldClaim], now: float) -> bool:
        """Renew these leases in one command sent at `now`; False if the store could not write it."""
        try:
            answer = await self._engine.submit(Renew(tuple(run.ref for run in runs), self._lease))
        except ErrandryError as error:
            self._renewal_log.report_failure(error)
            return False
        self._renewal_log.report_recovery()
        if isinstance(answer, Renewed):
            for run, ack in zip(runs, answer.acks, strict=True):
                if isinstance(ack, Lost):
                    self._mark_lost(run, describe_loss(ack.cause))
                    continue
                run.lease_until = now + self._lease
                if ack is CANCEL:
                    run.stop(StopReason.CANCEL)
        return True

    def _end_lease(self, run: HeldClaim) -> None:
        """Mark an expired lease as lost; report it if it should have been renewed until its end."""
        if not run.needs_renewal(run.lease_until):
            self._mark_lost(run, "it has expired")
        elif self._mark_lost(run, "it could not be renewed in time"):
            self._on_trouble("lost leases: they could not be renewed in time")

    def _mark_lost(self, run: HeldClaim, reason: str) -> bool:
        """Log that the lease is lost and stop the run; False if it is lost already or its job has ended."""
        if self._held.get(run.ref.job) is not run or run.is_lost or run.is_settling:
            return False
        log.warning("the lease of %s is lost, it should stop: %s", run, reason)
        run.mark_lost(reason)
        self._on_lost()
        return True


async def settle_all(
    engine: Engine, settles: Sequence[Settle], on_trouble: OnTrouble, timeout: float | None = None
) -> Sequence[Answer | TimeoutError]:
    """Write these outcomes and return the answers, or TimeoutError for those that did not come in time.

    Each outcome that could not be written is logged.
    """
    answers: Sequence[Answer | TimeoutError]
    try:
        async with asyncio.timeout(timeout):
            answers = await engine.submit_all(settles)
    except ErrandryError as error:
        answers = [error] * len(settles)
    except TimeoutError:
        answers = [TimeoutError("the store did not answer in time")] * len(settles)
    for settle, answer in zip(settles, answers, strict=True):
        if isinstance(answer, ErrandryError | TimeoutError):
            on_trouble(f"cannot {settle.outcome.move} jobs", answer)
            log.warning(
                "cannot %s job %s, other workers get it when its lease expires: %s",
                settle.outcome.move,
                settle.ref.job,
                answer,
            )
    return answers
