"""Archives finished jobs before they are pruned, while a worker runs, if the app has an archiver."""

import asyncio
import logging
from functools import partial
from typing import Any

from errandry.api.app import Errandry
from errandry.api.archive import ARCHIVE_SLICE, Archive, archive_and_remove
from errandry.api.job import Job
from errandry.claims.trouble import OnTrouble
from errandry.codec.redaction import redact_text
from errandry.core.job import JobRecord

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 30.0
"""Seconds before an archiver that raised is called again."""


async def archive_forever(app: Errandry, archive: Archive, interval: float, on_trouble: OnTrouble) -> None:
    """Archive in slices, on the worker's main loop, like handlers; leases are renewed on another."""
    while True:
        delay, records, is_more = interval, list[JobRecord](), True
        try:
            while is_more:
                records = await app.engine.call(app.store.prunable, ARCHIVE_SLICE)
                jobs: list[Job[Any]] = [Job(app, record) for record in records]
                moved = await archive_and_remove(app, archive, jobs)
                is_more = len(jobs) == ARCHIVE_SLICE and bool(moved.moved)
        except Exception as error:
            log.exception("cannot archive jobs, keeping them and retrying in %g s", RETRY_AFTER)
            redact = partial(redact_text, jobs=records, codec=app.codec)
            on_trouble("cannot archive jobs, retrying", error, redact)
            delay = RETRY_AFTER
        await asyncio.sleep(delay)
