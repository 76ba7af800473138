"""Wait for jobs to finish: one reader of the event log serves all waiters.

A change of the store costs one read of the log, however many waiters there are. Everything here runs on the
engine's loop.
"""

import asyncio
import copy
from collections.abc import Coroutine
from typing import Any

from errandry.core.event import FINAL_KINDS
from errandry.core.job import JobRecord
from errandry.errors import ErrandryError
from errandry.store.contract import Store

EVENTS_PAGE = 1_000
"""Maximum number of events read at a time."""
RECHECK_INTERVAL = 1.0
"""Seconds after which a waiter reads the store again, in case a change notification was lost."""


class CompletionWatcher:
    """Resolves a future for each waiter when its job has finished. Bound to the loop that creates it."""

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self._store = store
        self._waiters: dict[str, set[asyncio.Future[JobRecord | None]]] = {}
        self._unchecked: set[str] = set()
        self._watch_task: asyncio.Task[None] | None = None
        self._waiter_added = asyncio.Event()

    async def wait_finished(self, job_id: str, timeout: float | None) -> JobRecord | None:
        """Wait for a job and return its record, or None if the job is gone; TimeoutError after `timeout`."""
        if timeout is not None and timeout <= 0:
            return await self._get_finished(job_id)
        waiter: asyncio.Future[JobRecord | None] = self.loop.create_future()
        self._waiters.setdefault(job_id, set()).add(waiter)
        self._unchecked.add(job_id)
        self._waiter_added.set()
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._watch_events())
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            raise TimeoutError(f"job {job_id} has not finished within {timeout:g} s") from None
        finally:
            self._remove_waiter(job_id, waiter)

    async def _get_finished(self, job_id: str) -> JobRecord | None:
        [job] = await self._store.get([job_id])
        if job is not None and not job.finished:
            raise TimeoutError(f"job {job_id} has not finished: it is {job.state}")
        return job

    def _remove_waiter(self, job_id: str, waiter: asyncio.Future[JobRecord | None]) -> None:
        waiters = self._waiters.get(job_id, set())
        waiters.discard(waiter)
        if not waiters:
            self._waiters.pop(job_id, None)
            self._unchecked.discard(job_id)

    async def _watch_events(self) -> None:
        """Read events and wake the waiters of finished jobs, until no waiter is left."""
        try:
            cursor = await self._store.latest_cursor()
            while self._waiters:
                version = self._store.version()
                self._waiter_added.clear()
                unchecked, self._unchecked = self._unchecked, set()
                cursor, ended = await self._read_ended(cursor)
                await self._wake_waiters(unchecked | ended)
                if self._waiters and not self._unchecked:
                    await self._wait_for_change(version)
        except Exception as error:
            self._fail_waiters(error)

    async def _read_ended(self, cursor: str) -> tuple[str, set[str]]:
        """The next cursor, and the awaited jobs that ended since `cursor`, or all if events were missed."""
        ended: set[str] = set()
        while True:
            page = await self._store.events(cursor, EVENTS_PAGE)
            if page.missed:
                ended |= self._waiters.keys()
            ended |= {entry.event.job for entry in page.entries if entry.event.kind in FINAL_KINDS}
            cursor = page.cursor
            if len(page.entries) < EVENTS_PAGE:
                return cursor, ended & self._waiters.keys()

    async def _wake_waiters(self, ids: set[str]) -> None:
        if not ids:
            return
        job_ids = list(ids)
        for job_id, job in zip(job_ids, await self._store.get(job_ids), strict=True):
            if job is None or job.finished:
                for waiter in self._waiters.pop(job_id, set()):
                    if not waiter.done():
                        waiter.set_result(job)

    async def _wait_for_change(self, version: int) -> None:
        """Wait until the store has changed or a waiter was added.

        An error of the store ends all waits: retrying here would hide a store that cannot be watched.
        """
        await wait_for_first(
            self._store.wait_for_change(version, RECHECK_INTERVAL), self._waiter_added.wait()
        )

    def _fail_waiters(self, error: Exception) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in (waiter for of_job in waiters.values() for waiter in of_job):
            if not waiter.done():
                waiter.set_exception(copy.copy(error) if isinstance(error, ErrandryError) else error)


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one coroutine has returned or raised, then cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
