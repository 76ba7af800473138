"""All errors that Errandry raises on purpose.

    ErrandryError
    ├── InvalidValue (ValueError)        a value is invalid
    │   ├── TooLarge                     a value is larger than its limit
    │   └── InvalidArguments (TypeError)  the task does not take these arguments
    ├── QueryError (ValueError)          the query has a syntax error
    ├── UnknownJob (LookupError)         no job has this id
    ├── UnknownSchedule (LookupError)    no schedule has this name
    ├── UnknownWorker (LookupError)      no worker has this id
    ├── ScheduleChanged                  the schedule was changed after it was read
    ├── InvalidMove                      the state of the job does not allow it
    ├── AlreadySettled                   the claim of the job was settled before
    ├── DuplicateJob                     another job holds its unique key
    ├── QueueFull                        the queue has its maximum number of waiting jobs
    ├── QueueInUse                       workers hold jobs of the queue to remove
    ├── UnknownTask (LookupError)        this program declares no task of this name
    ├── UpgradeFailed                    the upgrade of a job's older arguments raised an error
    ├── JobFailed                        the job has no result, because it failed
    ├── JobCanceled                      the job has no result, because it was canceled
    ├── ProcessDied                      the process of a handler ended before the handler did
    ├── SealBroken                       a payload or result is not the one that was sealed for its job
    ├── UnknownKey (LookupError)         this program does not have the key of a payload or result
    └── StoreError
        ├── LeaseLost                    the worker no longer holds the job
        ├── InvalidCursor (ValueError)   not a cursor of this store
        ├── CommandFailed                the store could not write one command
        ├── StoreUnavailable             nothing was written; try again later
        │   ├── ReplyLost                unknown whether it was written; send it again
        │   ├── StoreFull                no space left
        │   └── StoreClosed              closed, or closing
        └── StoreRefused                 this version must not use the store
            ├── ForeignDatabase          it has data of another program
            ├── SchemaTooNew             a newer Errandry has written it
            ├── StoreCorrupt             it is damaged
            └── StoreReplaced            the file was deleted or replaced while open

Each keeps its arguments as attributes and can be pickled. Messages name the thing, its value and what
would be right.
"""

from datetime import datetime, timedelta
from typing import Any


class ErrandryError(Exception):
    """The root of the tree. Catch it to catch every error that Errandry raises on purpose."""


class InvalidValue(ErrandryError, ValueError):
    """The value cannot be stored or used. Nothing was written."""

    def __init__(self, name: str, value: Any, why: str) -> None:
        super().__init__(name, value, why)
        self.name, self.value, self.why = name, value, why

    def __str__(self) -> str:
        return f"{self.name}={short_repr(self.value)}: {self.why}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy it with the text of a value that may not be picklable, such as a function."""
        value = self.value if _is_plain(self.value) else ValueText(short_repr(self.value))
        args = tuple(value if arg is self.value else arg for arg in self.args)
        return type(self), args, vars(self) | {"value": value}


class TooLarge(InvalidValue):
    """The value is larger than its limit. Store large data elsewhere and pass a reference to it."""

    def __init__(self, name: str, size: int, bound: int) -> None:
        ErrandryError.__init__(self, name, size, bound)
        self.name, self.value, self.size, self.bound = name, size, size, bound
        self.why = f"at most {bound:,} bytes are allowed"

    def __str__(self) -> str:
        return f"{self.name} has {self.size:,} bytes: {self.why}"


class InvalidArguments(InvalidValue, TypeError):
    """The task does not take these arguments; `why` names the wrong one. Nothing was enqueued."""

    def __init__(self, task: str, why: str) -> None:
        ErrandryError.__init__(self, task, why)
        self.name, self.value, self.task, self.why = "arguments", task, task, why

    def __str__(self) -> str:
        return f"task {self.task}: {self.why}"


class QueryError(ErrandryError, ValueError):
    """The query has a syntax error at `position`, which counts characters from 0."""

    def __init__(self, text: str, position: int, why: str) -> None:
        super().__init__(text, position, why)
        self.text, self.position, self.why = text, position, why

    def __str__(self) -> str:
        start = max(0, self.position - 60)
        line = self.text[start : self.position + 60].replace("\n", " ").replace("\t", " ")
        return f"{self.why}\n  {line}\n  {' ' * (self.position - start)}^"


class UnknownJob(ErrandryError, LookupError):
    """No job has this id: it was never inserted, or it has been removed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"there is no job {short_repr(self.job_id)}"


class UnknownSchedule(ErrandryError, LookupError):
    """No schedule has this name: it was never put, or it has been removed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no schedule {short_repr(self.name)}"


class UnknownWorker(ErrandryError, LookupError):
    """No worker has this id: it was never started, or it has stopped. Every start has a new id."""

    def __init__(self, worker_id: str, known: tuple[str, ...]) -> None:
        super().__init__(worker_id, known)
        self.worker_id, self.known = worker_id, known

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return f"there is no worker {short_repr(self.worker_id)}; known workers: {known}"


class ScheduleChanged(ErrandryError):
    """The plan of the schedule was changed after it was read for an edit. Nothing was written."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"the schedule {short_repr(self.name)} was changed during the edit: edit it again"


class InvalidMove(ErrandryError):
    """The move is not allowed from the state of the job. Nothing was changed."""

    def __init__(self, job_id: str, move: str, state: str, allowed: tuple[str, ...]) -> None:
        super().__init__(job_id, move, state, allowed)
        self.job_id, self.move, self.state, self.allowed = job_id, move, state, allowed

    def __str__(self) -> str:
        return f"cannot {self.move} job {self.job_id}: it is {self.state}, not {' or '.join(self.allowed)}"


class AlreadySettled(ErrandryError):
    """The program has settled this claim of the job, or is about to, so it cannot act under it again."""

    def __init__(self, job_id: str, action: str, outcome: str) -> None:
        super().__init__(job_id, action, outcome)
        self.job_id, self.action, self.outcome = job_id, action, outcome

    def __str__(self) -> str:
        end = f"is settled, or being settled, by {self.outcome}"
        return f"cannot {self.action} job {self.job_id}: its claim {end}"


class DuplicateJob(ErrandryError):
    """Another job holds the unique key. Nothing was inserted or rerun."""

    def __init__(self, key: str, job_id: str) -> None:
        super().__init__(key, job_id)
        self.key, self.job_id = key, job_id

    def __str__(self) -> str:
        return f"the unique key {short_repr(self.key)} is held by job {self.job_id}"


class QueueFull(ErrandryError):
    """The queue, or one of its groups, has its maximum number of waiting jobs. Nothing was inserted."""

    def __init__(self, queue: str, size: int, bound: int, group: str = "") -> None:
        super().__init__(queue, size, bound, group)
        self.queue, self.size, self.bound, self.group = queue, size, bound, group

    def __str__(self) -> str:
        what = f"the queue {short_repr(self.queue)}"
        if self.group:
            what = f"the group {short_repr(self.group)} of {what}"
        return f"{what} is full: {self.size:,} waiting (maximum {self.bound:,})"


class QueueInUse(ErrandryError):
    """Workers hold jobs of the queue. Nothing was removed."""

    def __init__(self, queue: str, held: int) -> None:
        super().__init__(queue, held)
        self.queue, self.held = queue, held

    def __str__(self) -> str:
        has = f"{self.held:,} of its jobs" if self.held > 1 else "one of its jobs"
        return (
            f"the queue {short_repr(self.queue)} is in use: workers have {has}; wait for them, or use force"
        )


class UnknownTask(ErrandryError, LookupError):
    """This program declares no task of this name."""

    def __init__(self, task: str, known: tuple[str, ...]) -> None:
        super().__init__(task, known)
        self.task, self.known = task, known

    def __str__(self) -> str:
        return f"there is no task {short_repr(self.task)}; declared tasks: {', '.join(self.known) or 'none'}"


class UpgradeFailed(ErrandryError):
    """The upgrade of a task's arguments from an older `version` raised an error, or returned no arguments.

    The job is tried again, as after an error of its handler.
    """

    def __init__(self, task: str, version: int, why: str) -> None:
        super().__init__(task, version, why)
        self.task, self.version, self.why = task, version, why

    def __str__(self) -> str:
        return f"task {self.task}: its upgrade from version {self.version} {self.why}"


class JobFailed(ErrandryError):
    """The job has failed for good; `error` is the error of its last attempt."""

    def __init__(self, job_id: str, reason: str, error: str, traceback: str = "") -> None:
        super().__init__(job_id, reason, error, traceback)
        self.job_id, self.reason, self.error, self.traceback = job_id, reason, error, traceback

    def __str__(self) -> str:
        return f"job {self.job_id} failed ({self.reason}): {self.error or 'no error was recorded'}"


class JobCanceled(ErrandryError):
    """The job was canceled, so it has no result."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"job {self.job_id} was canceled"


class ProcessDied(ErrandryError):
    """The process of a handler has ended by a segfault, an exit or a kill. The worker continues."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class SealBroken(ErrandryError):
    """A payload or result was changed, moved from another job, or never sealed. It is not used."""

    def __init__(self, job_id: str, field: str, why: str) -> None:
        super().__init__(job_id, field, why)
        self.job_id, self.field, self.why = job_id, field, why

    def __str__(self) -> str:
        return f"the {self.field} of job {self.job_id} cannot be trusted: {self.why}"


class UnknownKey(ErrandryError, LookupError):
    """A payload or result is sealed under a key that this program does not have. Others may have it."""

    def __init__(self, job_id: str, field: str, key: str, known: tuple[str, ...]) -> None:
        super().__init__(job_id, field, key, known)
        self.job_id, self.field, self.key, self.known = job_id, field, key, known

    def __str__(self) -> str:
        known = ", ".join(self.known)
        return (
            f"the {self.field} of job {self.job_id} is sealed under key {self.key}: "
            f"this program has the keys {known}"
        )


class StoreError(ErrandryError):
    """The store could not do what it was asked to do."""


class LeaseLost(StoreError):
    """Another worker may hold the job now. Stop, and write nothing.

    `cause` is `expired`, `other_fence` (another claim holds the job) or `not_held` (no worker holds it).
    """

    def __init__(self, job_id: str, fence: int, cause: str) -> None:
        super().__init__(job_id, fence, cause)
        self.job_id, self.fence, self.cause = job_id, fence, cause

    def __str__(self) -> str:
        why = describe_loss(self.cause)
        return f"the lease on job {self.job_id} (fence {self.fence}) is no longer held: {why}"


class InvalidCursor(StoreError, ValueError):
    """Not a cursor of this store, or not of this query."""

    def __init__(self, cursor: str, why: str) -> None:
        super().__init__(cursor, why)
        self.cursor, self.why = cursor, why

    def __str__(self) -> str:
        return f"cursor {short_repr(self.cursor)}: {self.why}"


class CommandFailed(StoreError):
    """The store could not write this command. Other commands of the same pass were written."""

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
    """The call may or may not have been written. It is safe to send it again; the answer says which."""


class StoreFull(StoreUnavailable):
    """The disk or memory of the store is full. Free some space; everything acknowledged is safe."""


class StoreClosed(StoreUnavailable):
    """The store or its committer has been closed."""


class StoreRefused(StoreError):
    """This version of Errandry must not use the store."""

    def __init__(self, store: str, why: str) -> None:
        super().__init__(store, why)
        self.store, self.why = store, why

    def __str__(self) -> str:
        return f"{self.store}: {self.why}"


class ForeignDatabase(StoreRefused):
    """The database has data of another program."""


class SchemaTooNew(StoreRefused):
    """A newer Errandry has written the store. Upgrade this one."""


class StoreCorrupt(StoreRefused):
    """The store is damaged. Restore a backup, or move it away to start with an empty store."""


class StoreReplaced(StoreRefused):
    """The file was deleted or replaced while it was open. Writes to it would be lost."""


def describe_loss(cause: str) -> str:
    """Why a lease was lost, in words."""
    return _LOSS_CAUSES.get(cause, str(cause))


_LOSS_CAUSES = {
    "not_held": "no worker holds it",
    "other_fence": "another claim holds it",
    "expired": "the lease expired",
}


class ObjectOf(str):
    """The name of a value's type, in place of the value, for errors: its repr is `an object of type set`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"an object of type {self}"


class ValueText(str):
    """The text of a value, in place of the value: its repr is the text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_PLAIN_TYPES = (str, ObjectOf, ValueText, int, float, bool, type(None), bytes, timedelta, datetime)
_PLAIN_DEPTH_MAX = 20


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether this is made only of values that can be pickled and that any program can read."""
    if type(value) in _PLAIN_TYPES:
        return True
    if depth > _PLAIN_DEPTH_MAX:
        return False
    if type(value) is dict:
        return all(_is_plain(part, depth + 1) for pair in value.items() for part in pair)
    return type(value) in (tuple, list, set) and all(_is_plain(part, depth + 1) for part in value)


SHORT_REPR_MAX = 60
"""Maximum number of characters of a value in a message."""


def short_repr(value: Any, bound: int = SHORT_REPR_MAX) -> str:
    """`value` for a message: its repr, shortened to about `bound` characters."""
    if isinstance(value, ValueText):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 4_096:
        return f"a whole number of {value.bit_length():,} bits"
    if isinstance(value, str | bytes) and len(value) > bound:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{repr(value[:bound])[:bound]}… ({len(value):,} {unit})"
    try:
        text = repr(value)
    except Exception as error:
        return f"an object of {type(value).__name__}, whose repr raises {type(error).__name__}"
    return text if len(text) <= bound else f"{text[:bound]}… ({len(text):,} characters)"
