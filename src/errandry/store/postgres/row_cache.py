"""A cache of the jobs that workers hold, as this process last wrote them: it need not read them again.

Every row version has the id of the transaction that wrote it (`xmin`), which locks do not change. So an entry
is valid if the row still has the transaction id and the `updated_at` that this process wrote. `updated_at` is
compared because a server reuses transaction ids after it lost its last commits, or when they wrap around.
"""

from collections.abc import Iterable, Mapping, Sequence
from sys import getsizeof
from threading import Lock

from errandry.core.command import (
    Command,
    CompleteOutcome,
    FailOutcome,
    Note,
    Renew,
    RetryOutcome,
    Settle,
    Start,
)
from errandry.core.job import JobRecord
from errandry.store.tables import rows

BYTES_MAX = 32 * 1024 * 1024
"""Maximum size of the cache in bytes, approximately. The oldest entries are dropped first."""
JOB_BYTES_MAX = BYTES_MAX // 16
"""Maximum size of a cached job in bytes. A larger one would displace many others."""
JOB_OVERHEAD_BYTES = 1_000
"""Approximate size of a job in bytes, without its texts."""

Stamp = tuple[str, bytes, float]
"""The id of a job, the id of the transaction that wrote its row (as bytes), and `updated_at`."""


class RowCache:
    """Shared by the threads of a store. A pass reads the rows that are missing or that have changed."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Stamp, JobRecord, int]] = {}
        self._lock = Lock()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def missing_ids(self, ids: Iterable[str]) -> list[str]:
        """The ids that are not in the cache."""
        entries = self._entries
        return [job_id for job_id in ids if job_id not in entries]

    def are_self_contained(self, commands: Sequence[Command], ids: Iterable[str]) -> bool:
        """Whether the commands need no locks beyond the jobs they name: no parent, no child, no gate."""
        return _are_plain(commands) and not any(
            entry is None or entry[1].parents or entry[1].children for entry in map(self._entries.get, ids)
        )

    def unchanged_jobs(self, stamps: Iterable[Stamp]) -> dict[str, JobRecord]:
        """The cached jobs whose rows still have the stamp of their entry."""
        get = self._entries.get
        # guard: foreign_versions
        return {
            stamp[0]: entry[1]
            for stamp in stamps
            if (entry := get(stamp[0])) is not None and entry[0] == stamp
        }

    def save(self, number: bytes, written: Mapping[str, JobRecord | None]) -> None:
        """Save jobs as the committed transaction `number` wrote them; None: no worker holds the job now."""
        with self._lock:
            for job_id, job in written.items():
                self._discard_one(job_id)
                if job is not None and (size := size_of(job)) < JOB_BYTES_MAX:
                    self._entries[job_id] = (job_id, number, job.updated_at), job, size
                    self.size += size
            while self.size > BYTES_MAX:
                self._discard_one(next(iter(self._entries)))

    def discard(self, ids: Iterable[str]) -> None:
        with self._lock:
            for job_id in ids:
                self._discard_one(job_id)

    def _discard_one(self, job_id: str) -> None:
        if (entry := self._entries.pop(job_id, None)) is not None:
            self.size -= entry[2]


def _are_plain(commands: Sequence[Command]) -> bool:
    """Whether the commands start, renew, note or settle held jobs, and touch no gate."""
    outcomes = [command.outcome for command in commands if type(command) is Settle]
    return (
        {type(command) for command in commands} <= {Start, Renew, Note, Settle}
        and {type(outcome) for outcome in outcomes} <= {CompleteOutcome, FailOutcome, RetryOutcome}
        and not any(type(outcome) is RetryOutcome and outcome.pause_group for outcome in outcomes)
    )


def size_of(job: JobRecord) -> int:
    """Approximate size of a job in bytes."""
    size = JOB_OVERHEAD_BYTES + getsizeof(job.payload)
    if job.metadata is not None:
        size += getsizeof(job.metadata)
    if job.errors or job.logs:
        size += getsizeof(rows.text((job.errors, job.logs)))
    return size
