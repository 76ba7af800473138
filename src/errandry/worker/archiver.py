"""Archives finished jobs before they are pruned, while a worker runs, if the app has an archiver."""

import asyncio
import logging
from typing import Any

from errandry.api.app import Errandry
from errandry.api.archive import ARCHIVE_SLICE, Archive, archive_and_remove
from errandry.api.job import Job

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 30.0
"""Seconds before an archiver that raised is called again."""


async def archive_forever(app: Errandry, archive: Archive, interval: float) -> None:
    """Archive in slices, on the worker's main loop, like handlers; leases are renewed on another."""
    while True:
        delay = interval
        try:
            while await _archive_slice(app, archive):
                pass
        except Exception:
            log.exception("cannot archive jobs, keeping them and retrying in %g s", RETRY_AFTER)
            delay = RETRY_AFTER
        await asyncio.sleep(delay)


async def _archive_slice(app: Errandry, archive: Archive) -> bool:
    """Archive one slice; whether there may be more."""
    records = await app.engine.call(app.store.prunable, ARCHIVE_SLICE)
    jobs: list[Job[Any]] = [Job(app, record) for record in records]
    moved = await archive_and_remove(app, archive, jobs)
    return len(jobs) == ARCHIVE_SLICE and bool(moved.moved)
