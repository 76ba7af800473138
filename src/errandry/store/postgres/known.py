"""What this process has last written of the jobs workers hold, so that it need not be read again.

A version of a row has the number of the transaction that wrote it (`xmin`); locks do not change that. So a
row with the number and the time of what was written here is still what was written. The time is for a
server that has lost its last commits, or went round all numbers: it gives the same ones away again.
"""

from collections.abc import Iterable, Mapping
from sys import getsizeof
from threading import Lock

from errandry.core.command import Command, Complete, Fail, Note, Renew, Retry, Settle, Start, touched
from errandry.core.job import Job
from errandry.store import row as rows

BYTES = 32 * 1024 * 1024
"""So much is kept, about; the oldest goes first."""
HEAVY = BYTES // 16
"""A job that takes so much is not kept: many others would have to go."""
EACH = 1_000
"""What a job takes without its texts, about."""

Stamp = tuple[str, bytes, float]
"""The id of a job, the number of the transaction that wrote its row, as it is sent, and `updated_at`."""


class Known:
    """Shared by the threads of a store. Whoever finds nothing, or what is no longer so, reads the row."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Stamp, Job, int]] = {}
        self._lock = Lock()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def unknown(self, ids: Iterable[str]) -> list[str]:
        """Those of which nothing is known."""
        entries = self._entries
        return [one for one in ids if one not in entries]

    def are_alone(self, commands: Iterable[Command]) -> bool:
        """Whether nothing has to be had for these but the jobs they name: no parent, no child, no gate."""
        get = self._entries.get
        for command in commands:
            if not _is_plain(command):
                return False
            for one in touched(command):
                entry = get(one)
                if entry is None or entry[1].parents or entry[1].children:
                    return False
        return True

    def still(self, stamps: Iterable[Stamp]) -> dict[str, Job]:
        """The jobs whose rows have the stamp that is known."""
        get = self._entries.get
        return {
            stamp[0]: entry[1]
            for stamp in stamps
            if (entry := get(stamp[0])) is not None and entry[0] == stamp
        }

    def learn(self, number: bytes, written: Mapping[str, Job | None]) -> None:
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


def _is_plain(command: Command) -> bool:
    """Whether it is about jobs that workers hold, and leaves them as they are, waiting, or ended."""
    if type(command) is not Settle:
        return type(command) in (Start, Renew, Note)
    outcome = command.outcome
    return type(outcome) in (Complete, Fail) or (type(outcome) is Retry and not outcome.pause_group)


def size_of(job: Job) -> int:
    """How many bytes a job takes, about."""
    size = EACH + getsizeof(job.payload)
    if job.metadata is not None:
        size += getsizeof(job.metadata)
    if job.errors or job.logs:
        size += getsizeof(rows.text((job.errors, job.logs)))
    return size
