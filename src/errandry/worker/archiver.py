"""Finished jobs that are to go are archived while a worker works, if its program wants that."""

import asyncio
import logging

from errandry.api.app import Errandry
from errandry.api.archive import SLICE, Archive, archived

log = logging.getLogger("errandry.worker")

AGAIN = 30.0
"""So long an archive rests that has raised."""


async def archive_forever(app: Errandry, archive: Archive, every: float) -> None:
    """Slice by slice, on the worker's own loop, as handlers are: it keeps no lease waiting."""
    while True:
        rest = every
        try:
            while await _slice(app, archive):
                pass
        except Exception:
            log.exception("jobs were not archived, and stay; it is tried again in %g s", AGAIN)
            rest = AGAIN
        await asyncio.sleep(rest)


async def _slice(app: Errandry, archive: Archive) -> bool:
    """Archive a few; whether there may be more."""
    jobs = await app.engine.call(app.store.prunable, SLICE)
    moved = await archived(app, archive, jobs)
    return len(jobs) == SLICE and bool(moved.moved)
