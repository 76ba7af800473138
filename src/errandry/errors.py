"""Every error Errandry raises on purpose.

    ErrandryError
    ├── InvalidValue (ValueError)        a value nobody could store or obey
    │   ├── TooLarge                     … because of its size
    │   └── InvalidArguments (TypeError)  a task does not take these
    ├── QueryError (ValueError)          a query that cannot be read
    ├── UnknownJob (LookupError)         no job has this id
    ├── UnknownSchedule (LookupError)    no schedule has this name
    ├── InvalidMove                      the job's state does not allow it
    ├── DuplicateJob                     another job holds its unique key
    ├── QueueFull                        the queue takes no more
    ├── QueueInUse                       workers have jobs of a queue that was to go
    ├── UnknownTask (LookupError)        no task of this name is declared here
    ├── JobFailed                        its result was asked for, but it failed
    ├── JobCanceled                      its result was asked for, but it was canceled
    ├── ProcessDied                      the process of a handler ended before the handler did
    ├── SealBroken                       a payload or result is not what was sealed for its job
    ├── UnknownKey (LookupError)         it is sealed under a key that is not known here
    └── StoreError
        ├── LeaseLost                    the worker no longer holds the job
        ├── InvalidCursor (ValueError)   not a cursor of this store
        ├── CommandFailed                one command could not be written
        ├── StoreUnavailable             try again later; nothing was decided
        │   ├── ReplyLost                written or not: nobody knows; send it again
        │   ├── StoreFull                no space left
        │   └── StoreClosed              closed, or closing
        └── StoreRefused                 not a store this version may use
            ├── ForeignDatabase          somebody else's data is in it
            ├── SchemaTooNew             written by a newer Errandry
            ├── StoreCorrupt             damaged
            └── StoreReplaced            the file was deleted or replaced while open

Each keeps its arguments as attributes and survives pickling. Messages name the
thing, its value and what would be right.
"""

from typing import Any


class ErrandryError(Exception):
    """The root of the tree: catch it to catch everything Errandry raises on purpose."""


class InvalidValue(ErrandryError, ValueError):
    """A value that could not be stored, or would make no sense. Nothing was written."""

    def __init__(self, name: str, value: Any, why: str) -> None:
        super().__init__(name, value, why)
        self.name, self.value, self.why = name, value, why

    def __str__(self) -> str:
        return f"{self.name}={shown(self.value)}: {self.why}"


class TooLarge(InvalidValue):
    """Larger than its bound. Keep big things elsewhere and pass where they are."""

    def __init__(self, name: str, size: int, bound: int) -> None:
        ErrandryError.__init__(self, name, size, bound)
        self.name, self.value, self.size, self.bound = name, size, size, bound
        self.why = f"at most {bound:,} bytes are allowed"

    def __str__(self) -> str:
        return f"{self.name} has {self.size:,} bytes: {self.why}"


class InvalidArguments(InvalidValue, TypeError):
    """The task does not take these arguments; `why` has the path of the fault. Nothing was enqueued."""

    def __init__(self, task: str, why: str) -> None:
        ErrandryError.__init__(self, task, why)
        self.name, self.value, self.task, self.why = "arguments", task, task, why

    def __str__(self) -> str:
        return f"task {self.task} does not take these arguments: {self.why}"


class QueryError(ErrandryError, ValueError):
    """A query that cannot be read; `position` counts characters from 0."""

    def __init__(self, text: str, position: int, why: str) -> None:
        super().__init__(text, position, why)
        self.text, self.position, self.why = text, position, why

    def __str__(self) -> str:
        start = max(0, self.position - 60)
        line = self.text[start : self.position + 60].replace("\n", " ").replace("\t", " ")
        return f"{self.why}\n  {line}\n  {' ' * (self.position - start)}^"


class UnknownJob(ErrandryError, LookupError):
    """No job has this id: never inserted, or removed since."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"there is no job {shown(self.job_id)}"


class UnknownSchedule(ErrandryError, LookupError):
    """No schedule has this name: never put, or removed since."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no schedule {shown(self.name)}"


class InvalidMove(ErrandryError):
    """The job is in a state the move does not start from. Nothing was changed."""

    def __init__(self, job_id: str, move: str, state: str, allowed: tuple[str, ...]) -> None:
        super().__init__(job_id, move, state, allowed)
        self.job_id, self.move, self.state, self.allowed = job_id, move, state, allowed

    def __str__(self) -> str:
        return f"cannot {self.move} job {self.job_id}: it is {self.state}, not {' or '.join(self.allowed)}"


class DuplicateJob(ErrandryError):
    """Another job holds the unique key. Nothing was inserted, or run again."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(key, job_id)
        self.key, self.job_id = key, job_id

    def __str__(self) -> str:
        return f"the unique key {shown(self.key)} is held by job {self.job_id}"


class QueueFull(ErrandryError):
    """The queue, or one of its groups, has as many waiting jobs as it may have. Nothing was inserted."""

    def __init__(self, queue: str, size: int, bound: int, group: str = "") -> None:
        super().__init__(queue, size, bound, group)
        self.queue, self.size, self.bound, self.group = queue, size, bound, group

    def __str__(self) -> str:
        what = f"the queue {shown(self.queue)}"
        if self.group:
            what = f"the group {shown(self.group)} of {what}"
        return f"{what} is full: {self.size:,} jobs wait, and at most {self.bound:,} may"


class QueueInUse(ErrandryError):
    """Workers have jobs of the queue. Nothing was removed."""

    def __init__(self, queue: str, held: int) -> None:
        super().__init__(queue, held)
        self.queue, self.held = queue, held

    def __str__(self) -> str:
        has = f"{self.held:,} of its jobs" if self.held > 1 else "one of its jobs"
        return f"the queue {shown(self.queue)} is in use: workers have {has}; wait for them, or use force"


class UnknownTask(ErrandryError, LookupError):
    """No task of this name is declared here."""

    def __init__(self, task: str, known: tuple[str, ...]) -> None:
        super().__init__(task, known)
        self.task, self.known = task, known

    def __str__(self) -> str:
        return f"there is no task {shown(self.task)}; declared are {', '.join(self.known) or 'none'}"


class JobFailed(ErrandryError):
    """The job has failed for good; `error` is what its last attempt ended with."""

    def __init__(self, job_id: str, reason: str, error: str, traceback: str = "") -> None:
        super().__init__(job_id, reason, error, traceback)
        self.job_id, self.reason, self.error, self.traceback = job_id, reason, error, traceback

    def __str__(self) -> str:
        return f"job {self.job_id} failed ({self.reason}): {self.error or 'no more is known'}"


class JobCanceled(ErrandryError):
    """The job was canceled: there is no result."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id} was canceled"


class ProcessDied(ErrandryError):
    """The process a handler ran in has ended: a segfault, an exit, a kill. Its worker lives on."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class SealBroken(ErrandryError):
    """A payload or a result was changed, or moved from another job, or never sealed. It is not used."""

    def __init__(self, job_id: str, field: str, why: str) -> None:
        super().__init__(job_id, field, why)
        self.job_id, self.field, self.why = job_id, field, why

    def __str__(self) -> str:
        return f"the {self.field} of job {self.job_id} cannot be trusted: {self.why}"


class UnknownKey(ErrandryError, LookupError):
    """A payload or a result is sealed under a key that this program does not have. Others may."""

    def __init__(self, job_id: str, field: str, key: str, known: tuple[str, ...]) -> None:
        super().__init__(job_id, field, key, known)
        self.job_id, self.field, self.key, self.known = job_id, field, key, known

    def __str__(self) -> str:
        known = ", ".join(self.known)
        return f"the {self.field} of job {self.job_id} is sealed under key {self.key}: known here are {known}"


class StoreError(ErrandryError):
    """Something between the program and what is stored."""


class LeaseLost(StoreError):
    """Another worker may own the job now. Stop, and write nothing."""

    def __init__(self, job_id: str, fence: int, cause: str) -> None:
        super().__init__(job_id, fence, cause)
        self.job_id, self.fence, self.cause = job_id, fence, cause

    def __str__(self) -> str:
        return f"the lease on job {self.job_id} (fence {self.fence}) is no longer held: {self.cause}"


class InvalidCursor(StoreError, ValueError):
    """Not a cursor this store gave out, or not for this query."""

    def __init__(self, cursor: str, why: str) -> None:
        super().__init__(cursor, why)
        self.cursor, self.why = cursor, why

    def __str__(self) -> str:
        return f"cursor {shown(self.cursor)}: {self.why}"


class CommandFailed(StoreError):
    """The store refused this one command for a reason of its own; its neighbours were written."""

    def __init__(self, command: str, why: str) -> None:
        super().__init__(command, why)
        self.command, self.why = command, why

    def __str__(self) -> str:
        return f"{self.command} could not be written: {self.why}"


class StoreUnavailable(StoreError):
    """The store could not be reached or could not write. Nothing of the call was written."""

    def __init__(self, store: str, why: str) -> None:
        super().__init__(store, why)
        self.store, self.why = store, why

    def __str__(self) -> str:
        return f"{self.store}: {self.why}"


class ReplyLost(StoreUnavailable):
    """The call may or may not have been written. Sending it again is safe and tells."""


class StoreFull(StoreUnavailable):
    """No space left where the store lives. Free some; what was acknowledged is safe."""


class StoreClosed(StoreUnavailable):
    """The store, or the committer in front of it, has been closed."""


class StoreRefused(StoreError):
    """A store this version must not touch."""

    def __init__(self, store: str, why: str) -> None:
        super().__init__(store, why)
        self.store, self.why = store, why

    def __str__(self) -> str:
        return f"{self.store}: {self.why}"


class ForeignDatabase(StoreRefused):
    """It holds somebody else's data."""


class SchemaTooNew(StoreRefused):
    """A newer Errandry has written it. Upgrade this one."""


class StoreCorrupt(StoreRefused):
    """It is damaged. Restore a backup, or move it away to start afresh."""


class StoreReplaced(StoreRefused):
    """The file was deleted or replaced while it was open: writes would go nowhere."""


def shown(value: Any, bound: int = 60) -> str:
    """`value` for a message: quoted, and short however long it is."""
    if isinstance(value, int) and value.bit_length() > 4_096:
        return f"a whole number of {value.bit_length():,} bits"
    text = repr(value[: bound * 2] if isinstance(value, str | bytes) else value)
    return text if len(text) <= bound else f"{text[:bound]}… ({len(text):,} characters)"
