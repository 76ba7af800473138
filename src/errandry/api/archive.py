"""Finished jobs that are to go, handed to a function of the program's first."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from errandry.core.answer import Moved
from errandry.core.duration import iso
from errandry.core.job import JobRecord

if TYPE_CHECKING:
    from errandry.api.client import Client

SLICE = 500
OVER = "expires<=0s"
"""The jobs whose time is over, as a query."""
Archive = Callable[[Sequence[JobRecord]], Any]
"""Sees jobs before they go; plain or async."""
A = TypeVar("A", bound=Archive)


def finished(query: str) -> str:
    """Those of a query that have finished."""
    return f"state:completed,failed,canceled {query}".rstrip()


async def archived(client: "Client", function: Archive, jobs: Sequence[JobRecord]) -> Moved:
    """Hand these to the archive, then delete those that are still as they were handed over.

    Payloads and results are as they are stored: what was sealed stays so. After a crash between the two steps
    the archive sees them again.
    """
    if not jobs:
        return Moved()
    if inspect.iscoroutinefunction(function):
        await function(jobs)
    else:
        await asyncio.to_thread(function, jobs)
    ended = ceil(max(job.finished_at or 0.0 for job in jobs) * 1e6) + 1  # or it could become less on its way
    return await client.remove(*[job.id for job in jobs], query=finished(f"finished<={iso(ended)}"))
