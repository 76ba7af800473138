"""Batches: several jobs of a task that one call of its handler takes together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct

from errandry.core import check
from errandry.core.job import JobRecord

BATCH_MAX = 1_000
"""Maximum number of jobs in a batch."""
CLAIM_MAX = 1_000
"""Number of jobs at which a claim stops adding batches. The worker then claims again."""


class BatchSpec(Struct, frozen=True, gc=False):
    """One call of this task's handler takes up to `size` jobs.

    Without `start` the claimed jobs do not start at once: the worker waits for more, to fill the batch.
    """

    task: str
    size: int
    start: bool = True

    def __post_init__(self) -> None:
        check.name("task", self.task)
        check.whole("size", self.size, 1, BATCH_MAX)
        check.flag("start", self.start)


def call_count(jobs: Iterable[JobRecord], batches: Sequence[BatchSpec]) -> int:
    """The number of handler calls for these jobs. Jobs of a batch share a call; suspects never do."""
    sizes = {batch.task: batch.size for batch in batches}
    counts = Counter(job.task if job.task in sizes and not job.crashes else None for job in jobs)
    return counts.pop(None, 0) + sum(ceil(count / sizes[task]) for task, count in counts.items() if task)


def free_places(jobs: Iterable[JobRecord], batch: BatchSpec) -> int:
    """How many more jobs fit into the last batch of these jobs."""
    return -sum(job.task == batch.task and not job.crashes for job in jobs) % batch.size
