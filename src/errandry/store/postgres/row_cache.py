"""What this process has last written of the jobs workers hold, so that it need not be read again.

A version of a row has the number of the transaction that wrote it (`xmin`); locks do not change that. So a
row with the number and the time of what was written here is still what was written. The time is for a
server that has lost its last commits, or went round all numbers: it gives the same ones away again.
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

BYTES = 32 * 1024 * 1024
"""So much is kept, about; the oldest goes first."""
HEAVY = BYTES // 16
"""A job that takes so much is not kept: many others would have to go."""
EACH = 1_000
"""What a job takes without its texts, about."""

Stamp = tuple[str, bytes, float]
"""The id of a job, the number of the transaction that wrote its row, as it is sent, and `updated_at`."""


class RowCache:
    """Shared by the threads of a store. Whoever finds nothing, or what is no longer so, reads the row."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Stamp, JobRecord, int]] = {}
        self._lock = Lock()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def unknown(self, ids: Iterable[str]) -> list[str]:
        """Those of which nothing is known."""
        entries = self._entries
        return [one for one in ids if one not in entries]

    def are_alone(self, commands: Sequence[Command], ids: Iterable[str]) -> bool:
        """Whether nothing has to be had for these but the jobs they name: no parent, no child, no gate."""
        return _are_plain(commands) and not any(
            entry is None or entry[1].parents or entry[1].children for entry in map(self._entries.get, ids)
        )

    def still(self, stamps: Iterable[Stamp]) -> dict[str, JobRecord]:
        """The jobs whose rows have the stamp that is known."""
        get = self._entries.get
        # guard: foreign_versions
        return {
            stamp[0]: entry[1]
            for stamp in stamps
            if (entry := get(stamp[0])) is not None and entry[0] == stamp
        }

    def learn(self, number: bytes, written: Mapping[str, JobRecord | None]) -> None:
        """The transaction `number` has left these jobs so, and is durable; None: no worker holds it now."""
        with self._lock:
            for one, job in written.items():
                self._drop(one)
                if job is not None and (size := size_of(job)) < HEAVY:
                    self._entries[one] = (one, number, job.updated_at), job, size
                    self.size += size
            while self.size > BYTES:
                self._drop(next(iter(self._entries)))

    def forget(self, ids: Iterable[str]) -> None:
        with self._lock:
            for one in ids:
                self._drop(one)

    def _drop(self, one: str) -> None:
        if (entry := self._entries.pop(one, None)) is not None:
            self.size -= entry[2]


def _are_plain(commands: Sequence[Command]) -> bool:
    """Whether they are about jobs that workers hold, and leave them as they are, waiting, or ended."""
    outcomes = [command.outcome for command in commands if type(command) is Settle]
    return (
        {type(command) for command in commands} <= {Start, Renew, Note, Settle}
        and {type(outcome) for outcome in outcomes} <= {CompleteOutcome, FailOutcome, RetryOutcome}
        and not any(type(outcome) is RetryOutcome and outcome.pause_group for outcome in outcomes)
    )


def size_of(job: JobRecord) -> int:
    """How many bytes a job takes, about."""
    size = EACH + getsizeof(job.payload)
    if job.metadata is not None:
        size += getsizeof(job.metadata)
    if job.errors or job.logs:
        size += getsizeof(rows.text((job.errors, job.logs)))
    return size
