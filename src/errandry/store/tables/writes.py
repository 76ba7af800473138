"""Sort the changes of a pass by the SQL statement that writes them. Used by every SQL store."""

from collections.abc import Callable, Iterable

from errandry.core.job import JobRecord
from errandry.core.state import CLAIMED, HELD_STATES, RUNNING, TERMINAL, WAITING
from errandry.store.tables import rows
from errandry.store.tables.protocol import Change

WRITES = (
    *("finish_live", "delete_live", "delete_history"),
    *("finish", "insert_new", "insert_from_history", "update", "claim", "start", "renew"),
)
"""The statements that write jobs, in the order in which they run.

Deletions come first: a row that moves to the other table, or is replaced, keeps its number and id.
"""

FINISH_LIVE_TIMES = (8, 9)
FINISH_TIMES = (rows.FIELDS.index("finished_at"), rows.FIELDS.index("expires_at"))
"""Indexes of `finished_at` and `expires_at` in a row of `finish_live`, and in one of `finish`."""

Batches = dict[str, list[rows.Row]]


def plan_writes(changes: Iterable[Change], lane: Callable[[JobRecord], int]) -> Batches:
    """Return the rows for each statement. `lane` returns the lane of a waiting job."""
    batches: Batches = {name: [] for name in WRITES}
    for before, after in changes:
        _plan_write(before, after, batches, lane)
    return batches


def group_by_tail(batch: Iterable[rows.Row], own: int) -> dict[rows.Row, list[rows.Row]]:
    """Group rows that are equal from column `own` on. Most rows of a batch are.

    So a statement takes the common values once, and a list of the first columns.
    """
    groups: dict[rows.Row, list[rows.Row]] = {}
    tail, group = None, list[rows.Row]()
    for row in batch:
        if row[own:] != tail:
            tail = row[own:]
            group = groups.setdefault(tail, [])
        group.append(row)
    return groups


def _plan_write(
    before: JobRecord | None, after: JobRecord | None, batches: Batches, lane: Callable[[JobRecord], int]
) -> None:
    """Add the rows that turn `before` into `after` to the batches of their statements."""
    was_live = before is not None and before.state not in TERMINAL
    if after is not None and after.state not in TERMINAL:
        if before is not None and after.state in HELD_STATES and _plan_held_job(before, after, batches):
            return
        lane_id = lane(after) if after.state is WAITING else None
        if before is None:
            batches["insert_new"].append(rows.from_new_job(after, lane_id))
            return
        batches["update" if was_live else "insert_from_history"].append(rows.from_job(after, lane_id))
        if was_live:
            return
    elif after is not None and was_live:
        batches["finish_live"].append(_finish_row(after))
    elif after is not None:
        batches["finish"].append(rows.from_job(after))
    if before is not None:
        name, key = ("delete_live", before.seq) if was_live else ("delete_history", before.id)
        batches[name].append((key,))


def _finish_row(job: JobRecord) -> rows.Row:
    """The columns that change when a job finishes."""
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


def _plan_held_job(before: JobRecord, after: JobRecord, batches: Batches) -> bool:
    """Plan a claim, a start or a renewal, which write only a few columns; return False for other moves."""
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
        and before.crashes == after.crashes
        and before.lost_by == after.lost_by
        and before.cancel_requested is after.cancel_requested
        and before.progress is after.progress
        and before.logs is after.logs
        and before.parents == after.parents
        and before.steps is after.steps
    ):
        batches["renew"].append((after.seq, after.lease_until, after.updated_at))
        return True
    return False
