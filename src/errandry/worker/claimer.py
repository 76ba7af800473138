"""Claiming jobs for free slots, sleeping until there may be one."""

import asyncio
import itertools
import logging
import secrets

from errandry.app import Errandry
from errandry.core.command import Claim, Claims
from errandry.core.job import Job
from errandry.errors import ErrandryError
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots

log = logging.getLogger("errandry.worker")

BACKSTOP = 1.0
"""Wakes may be lost; nothing waits longer than this for a look."""


Names = tuple[str, ...]


class Claimer:
    """Asks for as many jobs as there are free slots; async and thread handlers have slots of their own."""

    def __init__(self, app: Errandry, worker: str, options: WorkerOptions, slots: Slots) -> None:
        self._app, self._worker, self._options, self._slots = app, worker, options, slots
        self._nonces = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self.due_in: float | None = None

    async def claim(self) -> list[tuple[Job, float]]:
        """What the free slots got, each with the monotonic time its claim was sent."""
        claimed: list[tuple[Job, float]] = []
        for limit, tasks, without in self._wanted():
            has_suspect = self._slots.has_suspect or any(job.crashes for job, _ in claimed)
            sent = self._app.clock.monotonic()
            try:
                answer = await self._app.engine.submit(self._command(limit, tasks, without, has_suspect))
            except ErrandryError as error:
                if not claimed:
                    raise
                log.warning("no more jobs could be claimed: %s", error)  # what was claimed must run
                break
            if isinstance(answer, Claims):
                claimed += [(job, sent) for job in answer.jobs]
                self.due_in = answer.due_in
        return claimed

    async def sleep(self, pulse: int) -> None:
        """Until something may have changed since `pulse`, or the next job is due."""
        timeout = BACKSTOP if self.due_in is None else min(BACKSTOP, self.due_in)
        try:
            await self._app.engine.call(self._app.store.wake, pulse, timeout)
        except ErrandryError as error:
            log.warning("the store cannot be watched: %s", error)
            await asyncio.sleep(BACKSTOP)

    def _wanted(self) -> list[tuple[int, Names | None, Names]]:
        """How many jobs to claim, of which tasks, without which: for async handlers, and for threads."""
        in_threads = tuple(sorted(name for name, task in self._app.tasks.items() if not task.is_async))
        only = self._options.tasks
        sync = in_threads if only is None else tuple(name for name in in_threads if name in only)
        rest = None if only is None else tuple(name for name in only if name not in in_threads)
        found: list[tuple[int, Names | None, Names]] = []
        if self._slots.free_async and (rest is None or rest):
            found.append((self._slots.free_async, rest, in_threads if rest is None else ()))
        if self._slots.free_threads and sync:
            found.append((self._slots.free_threads, sync, ()))
        return found

    def _command(self, limit: int, tasks: Names | None, without: Names, has_suspect: bool) -> Claim:
        return Claim(
            worker=self._worker,
            nonce=next(self._nonces),
            limit=limit,
            queues=self._options.queues,
            tasks=tasks,
            without=without,
            suspects=0 if has_suspect else 1,
            lease=self._options.lease,
        )
