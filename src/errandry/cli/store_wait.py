"""Open a store that cannot be reached yet, as when a worker and its database server start together."""

import asyncio
import logging
from typing import TYPE_CHECKING

from errandry.errors import StoreClosed, StoreFull, StoreReplaced, StoreUnavailable

if TYPE_CHECKING:
    from errandry.api.app import Errandry

log = logging.getLogger("errandry.worker")

FIRST_PAUSE, PAUSE_MAX = 0.5, 15.0
"""Seconds before the second attempt to open a store, doubled after each; maximum seconds."""


async def open_store(jobs: "Errandry", *, waits: bool, must_exist: bool) -> None:
    """Open the store of the app. With `waits`, try again as long as it cannot be reached.

    An error that time does not mend, such as a wrong password, is raised at once. With `must_exist`, a store
    that is missing is not created.
    """
    pause = FIRST_PAUSE
    while True:
        try:
            if must_exist and (missing := await jobs.store.needs_setup()) is not None:
                raise StoreReplaced(missing, "was deleted while its workers ran")
            await jobs.open()
            return
        except (StoreFull, StoreClosed):
            raise
        except StoreUnavailable as error:
            if not waits:
                raise
            log.warning("cannot open the store, trying again in %g s: %s", pause, error)
        await asyncio.sleep(pause)
        pause = min(PAUSE_MAX, 2 * pause)
