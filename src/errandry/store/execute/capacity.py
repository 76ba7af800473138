"""Queues and groups that take only so many waiting jobs: an insert is refused, or the oldest make room.

Only inserts are held to it: a job that comes back, or comes due, is never turned away.
"""

from collections import Counter
from collections.abc import Sequence

from errandry.core import move
from errandry.core.job import NewJob
from errandry.core.rule import Overflow
from errandry.core.state import Move
from errandry.errors import QueueFull
from errandry.store.execute.unit_of_work import UnitOfWork

QueueOrGroup = tuple[str, str | None]
"""A queue, or with a name a group of it."""


def make_room(ledger: UnitOfWork, jobs: Sequence[NewJob]) -> None:
    """See to it that these jobs fit in, all of them; `QueueFull` if they do not."""
    bounds = _bounds(ledger, jobs)
    if not bounds:
        return
    ledger.lock_sizes()
    coming = Counter[QueueOrGroup]()
    for job in jobs:
        if move.is_ready(job, ledger.now):
            coming[job.queue, None] += 1
            coming[job.queue, job.group] += 1
    excess: dict[QueueOrGroup, int] = {}
    for place, bound in bounds.items():
        size = ledger.size(*place)
        over = size + coming[place] - bound
        if coming[place] and over > 0:  # guard: full_queue
            drops = ledger.rule(place[0]).overflow is Overflow.DROP_OLDEST
            if not drops or coming[place] > bound:  # guard: dropped_unasked
                raise QueueFull(place[0], size, bound, place[1] or "")
            excess[place] = over
    for place in sorted(excess, key=lambda place: place[1] is None):
        _drop(ledger, place, ledger.size(*place) + coming[place] - bounds[place])
    for place, number in coming.items():
        ledger.grow(place, number)


def _bounds(ledger: UnitOfWork, jobs: Sequence[NewJob]) -> dict[QueueOrGroup, int]:
    found: dict[QueueOrGroup, int] = {}
    for queue, group in {(job.queue, job.group) for job in jobs}:
        rule = ledger.rule(queue)
        if rule.max_size is not None:
            found[queue, None] = rule.max_size
        if rule.group_max_size is not None and group:
            found[queue, group] = rule.group_max_size
    return found


def _drop(ledger: UnitOfWork, place: QueueOrGroup, number: int) -> None:
    """The oldest fail: those that came in line first."""
    if number <= 0:
        return
    ledger.flush()
    tables = ledger.tables
    elders = tables.oldest_jobs(tables.lanes_of(*place), number, suspects=True)
    oldest = sorted((elder.spot for elder in elders), key=lambda spot: abs(spot.place))[:number]
    for job in tables.jobs_by_seq([spot.seq for spot in oldest]):
        ledger.move(Move.DROP, job, move.dropped(job, ledger.now))
        for one in ((job.queue, None), (job.queue, job.group)):
            ledger.grow(one, -1)
