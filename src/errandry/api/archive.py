"""Hand finished jobs to the program's archive function before they are deleted."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from errandry.api.job import Job
from errandry.core.answer import Moved
from errandry.core.duration import format_time

if TYPE_CHECKING:
    from errandry.api.client import Client

ARCHIVE_SLICE = 500
"""Maximum number of jobs handed to the archive function in one call."""
PRUNABLE_QUERY = "expires<=0s"
"""Selects the jobs whose `keep` time is over."""
Archive = Callable[[Sequence[Job[Any]]], Any]
"""Gets jobs before they are deleted; plain or async."""
ArchiveFunction = TypeVar("ArchiveFunction", bound=Archive)


def only_finished(query: str) -> str:
    """The query, narrowed to finished jobs."""
    return f"state:completed,failed,canceled {query}".rstrip()


async def archive_and_remove(client: "Client", function: Archive, jobs: Sequence[Job[Any]]) -> Moved:
    """Hand jobs to the archive, then delete those that have not been rerun since.

    After a crash between the two steps the archive gets the same jobs again.
    """
    if not jobs:
        return Moved()
    if inspect.iscoroutinefunction(function):
        await function(jobs)
    else:
        await asyncio.to_thread(function, jobs)
    # One microsecond more: rounding a float on the way to the store could leave the newest job out.
    finished_until = ceil(max(job.record.finished_at or 0.0 for job in jobs) * 1e6) + 1
    unchanged = only_finished(f"finished<={format_time(finished_until)}")
    return await client.remove(*[job.id for job in jobs], query=unchanged)
