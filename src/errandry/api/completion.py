"""Waiting for jobs to finish. However many wait, a change costs one look at the event log.

Everything here runs on the engine's loop.
"""

import asyncio
import copy
from collections.abc import Coroutine
from typing import Any

from errandry.core.event import FINAL_KINDS
from errandry.core.job import JobRecord
from errandry.errors import ErrandryError
from errandry.store.contract import Store

PAGE = 1_000
PATIENCE = 1.0
"""A wake may be lost; nobody waits longer than this for the next look."""


class CompletionWatcher:
    """Who waits for which job. Belongs to the loop it is made on."""

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self._store = store
        self._waiters: dict[str, set[asyncio.Future[JobRecord | None]]] = {}
        self._unseen: set[str] = set()
        self._pump: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def finished(self, job_id: str, timeout: float | None) -> JobRecord | None:
        """The job once it has finished, or None if it is gone; TimeoutError when the time is up."""
        if timeout is not None and timeout <= 0:
            return await self._as_it_is(job_id)
        waiter: asyncio.Future[JobRecord | None] = self.loop.create_future()
        self._waiters.setdefault(job_id, set()).add(waiter)
        self._unseen.add(job_id)
        self._news.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            raise TimeoutError(f"job {job_id} has not finished within {timeout:g} s") from None
        finally:
            self._leave(job_id, waiter)

    async def _as_it_is(self, job_id: str) -> JobRecord | None:
        [job] = await self._store.get([job_id])
        if job is not None and not job.finished:
            raise TimeoutError(f"job {job_id} has not finished: it is {job.state}")
        return job

    def _leave(self, job_id: str, waiter: asyncio.Future[JobRecord | None]) -> None:
        waiters = self._waiters.get(job_id, set())
        waiters.discard(waiter)
        if not waiters:
            self._waiters.pop(job_id, None)
            self._unseen.discard(job_id)

    async def _watch(self) -> None:
        """Look, tell, wait for the next change, while anybody waits."""
        try:
            cursor = await self._store.latest_cursor()
            while self._waiters:
                pulse = self._store.version()
                self._news.clear()
                unseen, self._unseen = self._unseen, set()
                cursor, ended = await self._ended(cursor)
                await self._tell(unseen | ended)
                if self._waiters and not self._unseen:
                    await self._rest(pulse)
        except Exception as error:
            self._fail(error)

    async def _ended(self, cursor: str) -> tuple[str, set[str]]:
        """The jobs somebody waits for that ended since `cursor`; all of them if events were missed."""
        ended: set[str] = set()
        while True:
            page = await self._store.events(cursor, PAGE)
            if page.missed:
                ended |= self._waiters.keys()
            ended |= {one.event.job for one in page.entries if one.event.kind in FINAL_KINDS}
            cursor = page.cursor
            if len(page.entries) < PAGE:
                return cursor, ended & self._waiters.keys()

    async def _tell(self, ids: set[str]) -> None:
        if not ids:
            return
        wanted = list(ids)
        for job_id, job in zip(wanted, await self._store.get(wanted), strict=True):
            if job is None or job.finished:
                for waiter in self._waiters.pop(job_id, set()):
                    if not waiter.done():
                        waiter.set_result(job)

    async def _rest(self, pulse: int) -> None:
        """Until the store has changed or somebody new waits."""
        # A store that cannot be watched is an error, not a reason to look again.
        await first(self._store.wait_for_change(pulse, PATIENCE), self._news.wait())

    def _fail(self, error: Exception) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in (one for several in waiters.values() for one in several):
            if not waiter.done():
                waiter.set_exception(copy.copy(error) if isinstance(error, ErrandryError) else error)


async def first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of these is done, or raises; the others are canceled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
