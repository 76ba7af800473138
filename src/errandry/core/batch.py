"""Jobs that one call of a handler takes together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct

from errandry.core import check
from errandry.core.job import JobRecord

BATCH_MAX = 1_000
CLAIM_MAX = 1_000
"""How many jobs a claim that could go on with batches for all its calls brings before it is asked again."""


class BatchSpec(Struct, frozen=True, gc=False):
    """One call of this task's handler is for up to `size` jobs; without `start` it waits for more to come."""

    task: str
    size: int
    start: bool = True

    def __post_init__(self) -> None:
        check.name("task", self.task)
        check.whole("size", self.size, 1, BATCH_MAX)


def call_count(jobs: Iterable[JobRecord], batches: Sequence[BatchSpec]) -> int:
    """How many calls these jobs are: one each, but for those that share a batch. Suspects share none."""
    sizes = {batch.task: batch.size for batch in batches}
    counts = Counter(job.task if job.task in sizes and not job.crashes else None for job in jobs)
    return counts.pop(None, 0) + sum(ceil(count / sizes[task]) for task, count in counts.items() if task)


def free_places(jobs: Iterable[JobRecord], batch: BatchSpec) -> int:
    """How many more the last of the batches that these jobs make could take."""
    return -sum(job.task == batch.task and not job.crashes for job in jobs) % batch.size
