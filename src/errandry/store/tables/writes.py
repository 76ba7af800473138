"""What a pass writes, sorted by the statement that writes it: the same for every SQL store."""

from collections.abc import Callable, Iterable

from errandry.core.job import JobRecord
from errandry.core.state import CLAIMED, HELD_STATES, RUNNING, TERMINAL, WAITING
from errandry.store.tables import rows
from errandry.store.tables.protocol import Change

WRITES = (
    *("finish_live", "delete_live", "delete_history"),
    *("finish", "make", "insert", "update", "claim", "start", "renew"),
)
"""Deletions first: a row that moves to the other table, or is written anew, keeps its number and id."""

ENDED = (8, 9)
FINISHED = (rows.FIELDS.index("finished_at"), rows.FIELDS.index("expires_at"))
"""Where in a row of `finish_live` and of `finish` the time of the end and that of the expiry stand."""

Batches = dict[str, list[rows.Row]]


def planned(changes: Iterable[Change], lane: Callable[[JobRecord], int]) -> Batches:
    """For each statement its rows; `lane` gives the lane a waiting job stands in."""
    batches: Batches = {name: [] for name in WRITES}
    for before, after in changes:
        _plan(before, after, batches, lane)
    return batches


def by_rest(batch: Iterable[rows.Row], own: int) -> dict[rows.Row, list[rows.Row]]:
    """Rows by what follows on their own first values: mostly the same from one to the next."""
    found: dict[rows.Row, list[rows.Row]] = {}
    last, alike = None, list[rows.Row]()
    for row in batch:
        if row[own:] != last:
            last = row[own:]
            alike = found.setdefault(last, [])
        alike.append(row)
    return found


def _plan(
    before: JobRecord | None, after: JobRecord | None, batches: Batches, lane: Callable[[JobRecord], int]
) -> None:
    """Which statements bring a row from before to after."""
    was_live = before is not None and before.state not in TERMINAL
    if after is not None and after.state not in TERMINAL:
        if before is not None and after.state in HELD_STATES and _take(before, after, batches):
            return
        spot = lane(after) if after.state is WAITING else None
        if before is None:
            batches["make"].append(rows.from_fresh(after, spot))
            return
        batches["update" if was_live else "insert"].append(rows.from_job(after, spot))
        if was_live:
            return
    elif after is not None and was_live:
        batches["finish_live"].append(_ended(after))
    elif after is not None:
        batches["finish"].append(rows.from_job(after))
    if before is not None:
        name, key = ("delete_live", before.seq) if was_live else ("delete_history", before.id)
        batches[name].append((key,))


def _ended(job: JobRecord) -> rows.Row:
    """What an end changes of a row."""
    return (
        job.seq,
        job.result,
        rows.text(job.errors) if job.errors else None,
        job.state,
        job.reason,
        job.settled,
        job.releases,
        job.crashes,
        job.updated_at,
        job.expires_at,
    )


def _take(before: JobRecord, after: JobRecord, batches: Batches) -> bool:
    """Plan the commonest writes, which change little of a row: claims, starts, renewals; False for others."""
    if before.state is WAITING:
        row = (
            after.seq,
            after.state,
            after.attempts,
            after.fence,
            after.worker,
            after.lease_until,
            after.updated_at,
            after.started_at,
        )
        batches["claim"].append(row)
        return True
    if before.state is CLAIMED and after.state is RUNNING:
        batches["start"].append((after.seq, after.updated_at))
        return True
    if (
        before.state is after.state
        and before.fence == after.fence
        and before.cancel_requested is after.cancel_requested
        and before.progress is after.progress
        and before.logs is after.logs
        and before.parents == after.parents
        and before.steps is after.steps
    ):
        batches["renew"].append((after.seq, after.lease_until, after.updated_at))
        return True
    return False
