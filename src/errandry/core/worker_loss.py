"""What the store knows of a worker when the lease of a job that it ran has ended."""

from msgspec import Struct

from errandry.core.command import WorkerRecord
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason

_LEASE_EXPIRED = Failure(Reason.WORKER_LOST, "WorkerLost", "the worker stopped renewing its lease")
_DIED = Failure(Reason.WORKER_LOST, "WorkerLost", "the process of the worker died")


class WorkerLoss(Struct, frozen=True):
    """How a worker lost a job: `failure` is the error of the attempt.

    If the worker `lives`, the loss is no crash. Otherwise it is one: until `final_at` it fails no job, and a
    heartbeat of the worker takes it back. A `final_at` of None: the crash is final at once.
    """

    failure: Failure
    lives: bool = False
    final_at: float | None = None


DIED = WorkerLoss(_DIED)
LIVES = WorkerLoss(_LEASE_EXPIRED, lives=True)
UNKNOWN = WorkerLoss(_LEASE_EXPIRED)


def expiry_loss(job: JobRecord, holder: WorkerRecord | None, sender: str, now: float) -> WorkerLoss:
    """Return how the worker of an expired job has lost it; `holder` is its last heartbeat, if there is one.

    The worker lives if it sent the pass that expires the job, or a heartbeat after the lease had ended.
    """
    if sender and job.worker == sender:
        return LIVES
    if holder is None:
        return UNKNOWN
    if job.lease_until is not None and holder.seen_at > job.lease_until:
        return LIVES
    silent_at = holder.seen_at + holder.beat.silence_limit
    # After an outage of the store every worker has been silent: each has some time to show that it lives.
    return WorkerLoss(_LEASE_EXPIRED, final_at=max(silent_at, now + 2 * holder.beat.interval))
