"""Maximum sizes of queues and groups: a full queue refuses an insert, or drops its oldest waiting jobs.

Only inserts are checked. A job that is retried or comes due always gets back into its queue.
"""

from collections import Counter
from collections.abc import Sequence

from errandry.core import move
from errandry.core.job import NewJob
from errandry.core.rule import Overflow
from errandry.core.state import Move
from errandry.core.suspect import SuspectKind
from errandry.errors import QueueFull
from errandry.store.execute.unit_of_work import UnitOfWork

QueueOrGroup = tuple[str, str | None]
"""A queue (with None), or a group of it."""


def make_room(work: UnitOfWork, jobs: Sequence[NewJob]) -> None:
    """Make room for all these jobs: drop the oldest jobs if the rule allows it, else raise `QueueFull`."""
    max_sizes = _max_sizes(work, jobs)
    if not max_sizes:
        return
    work.lock_queue_sizes()
    coming = Counter[QueueOrGroup]()
    for job in jobs:
        if move.is_ready(job, work.now):
            coming[job.queue, None] += 1
            coming[job.queue, job.group] += 1
    excess: dict[QueueOrGroup, int] = {}
    for key, max_size in max_sizes.items():
        size = work.queue_size(*key)
        over = size + coming[key] - max_size
        if coming[key] and over > 0:  # guard: full_queue
            may_drop = work.rule(key[0]).overflow is Overflow.DROP_OLDEST
            if not may_drop or coming[key] > max_size:  # guard: drop_needs_rule
                raise QueueFull(key[0], size, max_size, key[1] or "")
            excess[key] = over
    for key in sorted(excess, key=lambda key: key[1] is None):
        _drop_oldest(work, key, work.queue_size(*key) + coming[key] - max_sizes[key])
    for key, number in coming.items():
        work.add_to_size(key, number)


def _max_sizes(work: UnitOfWork, jobs: Sequence[NewJob]) -> dict[QueueOrGroup, int]:
    max_sizes: dict[QueueOrGroup, int] = {}
    for queue, group in {(job.queue, job.group) for job in jobs}:
        rule = work.rule(queue)
        if rule.max_size is not None:
            max_sizes[queue, None] = rule.max_size
        if rule.group_max_size is not None and group:
            max_sizes[queue, group] = rule.group_max_size
    return max_sizes


def _drop_oldest(work: UnitOfWork, key: QueueOrGroup, number: int) -> None:
    """Fail the jobs that have waited longest."""
    if number <= 0:
        return
    work.flush()
    tables = work.tables
    candidates = tables.oldest_jobs(tables.lanes_of(*key), number, SuspectKind.ANY)
    positions = sorted((oldest.position for oldest in candidates), key=lambda position: abs(position.place))
    for job in tables.jobs_by_seq([position.seq for position in positions[:number]]):
        work.move(Move.DROP, job, move.dropped(job, work.now))
        for size_key in ((job.queue, None), (job.queue, job.group)):
            work.add_to_size(size_key, -1)
