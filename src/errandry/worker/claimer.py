"""Claiming jobs for free slots, sleeping until there may be one."""

import asyncio
import itertools
import logging
import secrets
from typing import NamedTuple

from errandry.app import Errandry
from errandry.core.command import Claim, Claims, Lost, Ref, Renew, Renewed
from errandry.core.job import Job
from errandry.errors import ErrandryError
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots

log = logging.getLogger("errandry.worker")

BACKSTOP = 1.0
"""Wakes may be lost; nothing waits longer than this for a look."""


Names = tuple[str, ...]


class Wanted(NamedTuple):
    """How many jobs, of which tasks, without which, and whether they start at once."""

    limit: int
    tasks: Names | None
    without: Names
    start: bool


class Claimer:
    """Asks for as many jobs as there are free slots; async and thread handlers have slots of their own."""

    def __init__(self, app: Errandry, worker: str, options: WorkerOptions, slots: Slots) -> None:
        self._app, self._worker, self._options, self._slots = app, worker, options, slots
        self._nonces = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self.due_in: float | None = None

    async def claim(self) -> list[tuple[Job, float]]:
        """What the free slots got, each with the monotonic time its claim was sent."""
        claimed: list[tuple[Job, float]] = []
        for wanted in self._wanted():
            has_suspect = self._slots.has_suspect or any(job.crashes for job, _ in claimed)
            sent = self._app.clock.monotonic()
            try:
                answer = await self._app.engine.submit(self._command(wanted, has_suspect))
                if isinstance(answer, Claims):
                    claimed += await self._standing(answer.jobs, sent)
                    self.due_in = answer.due_in
            except ErrandryError as error:
                if not claimed:
                    raise
                log.warning("no more jobs could be claimed: %s", error)  # what was claimed must run
                break
        return claimed

    async def _standing(self, jobs: tuple[Job, ...], sent: float) -> list[tuple[Job, float]]:
        """These, with when their lease began; of a claim long on its way, what still stands, renewed.

        Counted from when it was sent, its lease could have run out before any handler had begun.
        """
        if jobs and self._app.clock.monotonic() - sent >= self._options.renewal:
            sent = self._app.clock.monotonic()
            refs = tuple(Ref(job.id, job.fence) for job in jobs)
            answer = await self._app.engine.submit(Renew(refs, self._options.lease))
            if isinstance(answer, Renewed):
                marks = zip(jobs, answer.marks, strict=True)
                jobs = tuple(job for job, mark in marks if not isinstance(mark, Lost))
        return [(job, sent) for job in jobs]

    async def sleep(self, pulse: int) -> None:
        """Until something may have changed since `pulse`, or the next job is due."""
        timeout = BACKSTOP if self.due_in is None else min(BACKSTOP, self.due_in)
        try:
            await self._app.engine.call(self._app.store.wake, pulse, timeout)
        except ErrandryError as error:
            log.warning("the store cannot be watched: %s", error)
            await asyncio.sleep(BACKSTOP)

    def _wanted(self) -> list[Wanted]:
        """What to claim: for async handlers, for threads, and ahead of free slots where there are none."""
        in_threads = tuple(sorted(name for name, task in self._app.tasks.items() if not task.is_async))
        only = self._options.tasks
        sync = in_threads if only is None else tuple(name for name in in_threads if name in only)
        rest = None if only is None else tuple(name for name in only if name not in in_threads)
        slots, found = self._slots, []
        if slots.free_async and (rest is None or rest):
            found.append(Wanted(slots.free_async, rest, in_threads if rest is None else (), start=True))
        if slots.free_threads and sync:
            found.append(Wanted(slots.free_threads, sync, (), start=True))
        if slots.free_ahead and not slots.free_async and (rest is None or rest):
            found.append(Wanted(slots.free_ahead, rest, in_threads if rest is None else (), start=False))
        elif slots.free_ahead and not slots.free_threads and sync:
            found.append(Wanted(slots.free_ahead, sync, (), start=False))
        return found

    def _command(self, wanted: Wanted, has_suspect: bool) -> Claim:
        return Claim(
            worker=self._worker,
            nonce=next(self._nonces),
            limit=wanted.limit,
            queues=self._options.queues,
            tasks=wanted.tasks,
            without=wanted.without,
            suspects=0 if has_suspect else 1,
            start=wanted.start,
            lease=self._options.lease,
        )
