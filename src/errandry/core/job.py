"""The records: a job, what a client hands in to make one, and the parts of both.

Times are seconds since 1970 by the store's clock, lengths of time are seconds, payload, result and
metadata are JSON text.
"""

from copy import copy
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from errandry.core import check
from errandry.core.retry import Backoff
from errandry.core.state import SCHEDULED, TERMINAL, Move, Reason, State
from errandry.core.step import StepState
from errandry.core.unique import Conflict, UniqueKey
from errandry.errors import InvalidValue

DAY = 86_400.0
ERRORS_MAX = 20
LOGS_MAX = 200
LOG_TEXT_MAX = 2_000
LEVEL_MAX = 40
RELEASES_MAX = 20
LAST_MAX = 10_000
"""So many finished jobs of a task can be kept by number: to find the oldest that stays, they are counted."""
INSERT_MAX = 20_000
METADATA_MAX = 65_536


class JobOrder(StrEnum):
    FIFO = "fifo"
    LIFO = "lifo"


class Keep(Struct, frozen=True, omit_defaults=True, gc=False):
    """How long a finished job stays, by the state it ended in. 0: it is removed at once.

    `last_…`: and only the newest so many of its task in that state, of those that say how many.
    """

    completed: float = 7 * DAY
    failed: float = 30 * DAY
    canceled: float = 7 * DAY
    last_completed: int | None = None
    last_failed: int | None = None
    last_canceled: int | None = None

    def __post_init__(self) -> None:
        for state in ("completed", "failed", "canceled"):
            check.span(f"keep.{state}", getattr(self, state))
        if self.is_by_number:
            for name in ("last_completed", "last_failed", "last_canceled"):
                if (last := getattr(self, name)) is not None:
                    check.whole(f"keep.{name}", last, 1, LAST_MAX)

    def last(self, state: State) -> int | None:
        """How many jobs of a task that ended in `state` stay; None: as many as there are."""
        last: int | None = getattr(self, f"last_{state}")
        return last

    @property
    def is_by_number(self) -> bool:
        """Whether it says how many stay in any state."""
        return (self.last_completed, self.last_failed, self.last_canceled) != (None, None, None)

    def span(self, state: State) -> float:
        """How long a job that ended in `state` stays."""
        return float(getattr(self, state))


class Failure(Struct, frozen=True, omit_defaults=True, gc=False):
    """What went wrong in an attempt, as its worker saw it."""

    kind: Reason = Reason.ERROR
    type: str = ""
    message: str = ""
    traceback: str = ""

    def __post_init__(self) -> None:
        if type(self.kind) is not Reason:
            raise InvalidValue("kind", self.kind, "must be a Reason")


class AttemptError(Struct, frozen=True, omit_defaults=True, gc=False):
    """A failure in the job's record: which attempt, by whom, when."""

    attempt: int
    worker: str | None
    started: float | None
    ended: float
    kind: Reason
    type: str = ""
    message: str = ""
    traceback: str = ""


class LogLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """One line a handler logged."""

    at: float
    text: str
    level: str = "info"


class Progress(Struct, frozen=True, omit_defaults=True, gc=False):
    """How far a handler says it is: a share from 0 to 1, and words."""

    share: float
    text: str = ""

    def __post_init__(self) -> None:
        if type(self.share) not in (int, float) or not 0 <= self.share <= 1:
            raise InvalidValue("progress", self.share, "must be a share from 0 to 1")


class JobRecord(Struct, frozen=True, gc=False):
    """One request to run a task, as stored.

    `seq` numbers jobs in the order they were inserted. `place` orders the waiting jobs of a
    priority, lowest first. `settled` is the outcome last written under `fence`, which is how a
    repeated settle is told from a stale one. `children` and `parents` are how many jobs of its flow it has
    under and over itself; `open_children` is how many it still waits for while it is blocked. `steps` is None
    for a job that has none.
    """

    seq: int
    id: str
    task: str
    queue: str
    group: str
    state: State
    order: JobOrder
    reason: Reason | None
    settled: Move | None
    payload: str
    priority: int
    place: int | None
    run_at: float | None
    attempts: int
    max_attempts: int
    releases: int
    crashes: int
    max_crashes: int
    open_children: int
    children: int
    parents: int
    timeout: float | None
    deadline: float | None
    fence: int
    worker: str | None
    lease_until: float | None
    cancel_requested: bool
    result: str | None
    metadata: str | None
    created_at: float
    updated_at: float
    claimed_at: float | None
    started_at: float | None
    finished_at: float | None
    expires_at: float | None
    backoff: Backoff | None
    keep: Keep | None
    progress: Progress | None
    tags: tuple[str, ...]
    errors: tuple[AttemptError, ...]
    logs: tuple[LogLine, ...]
    unique: UniqueKey | None
    steps: StepState | None

    @property
    def awaits(self) -> str | None:
        """The name of the signal it waits for, if it does."""
        is_waiting = self.state is SCHEDULED and self.settled is Move.WAIT and self.steps is not None
        return self.steps.signal if is_waiting and self.steps is not None else None

    @property
    def finished(self) -> bool:
        return self.state in TERMINAL


class NewJob(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a client hands in. It checks itself: a job that cannot be stored cannot be made.

    `delay` counts from the store's now and is the safe choice between hosts; `run_at` is an
    instant. `on_conflict` is what becomes of it if another job holds its `unique` key.
    """

    id: str
    task: str
    payload: str
    queue: str = "default"
    group: str = ""
    priority: int = 0
    order: JobOrder = JobOrder.FIFO
    run_at: float | None = None
    delay: float | None = None
    max_attempts: int = 5
    max_crashes: int = 3
    timeout: float | None = None
    deadline: float | None = None
    backoff: Backoff | None = None
    keep: Keep | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    unique: UniqueKey | None = None
    on_conflict: Conflict = Conflict.RETURN

    def __post_init__(self) -> None:
        check.name("id", self.id)
        check.name("task", self.task)
        check.name("queue", self.queue)
        check.document("payload", self.payload)
        if type(self.order) is not JobOrder:
            raise InvalidValue("order", self.order, "must be Order.FIFO or Order.LIFO")
        check.whole("priority", self.priority, -(2**31), 2**31 - 1)
        check.whole("max_attempts", self.max_attempts, 1, 10_000)
        check.whole("max_crashes", self.max_crashes, 1, 10_000)
        if self.group:
            check.name("group", self.group)
        if self.tags:
            check_tags(self.tags)
        if type(self.on_conflict) is not Conflict:
            raise InvalidValue("on_conflict", self.on_conflict, "must be Conflict.RETURN, RAISE or REPLACE")
        if self.metadata is not None:
            check.sized("metadata", check.document("metadata", self.metadata), METADATA_MAX)
        self._check_times()

    def _check_times(self) -> None:
        if self.delay is not None:
            check.span("delay", self.delay)
            if self.run_at is not None:
                raise InvalidValue("run_at", self.run_at, f"give either run_at or delay ({self.delay})")
        if self.run_at is not None:
            check.instant("run_at", self.run_at)
        if self.deadline is not None:
            check.instant("deadline", self.deadline)
        if self.timeout is not None and check.span("timeout", self.timeout) == 0:
            raise InvalidValue("timeout", self.timeout, "must be more than 0 seconds, or None for no timeout")


def like(job: NewJob, **fields: Any) -> NewJob:
    """`job` with other fields, which are right: what has been checked is not checked again for every call."""
    made = copy(job)
    for name, value in fields.items():
        force_setattr(made, name, value)
    return made


def check_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Few, short, visible."""
    if len(tags) > check.TAGS_MAX:
        raise InvalidValue("tags", tags, f"a job has at most {check.TAGS_MAX} tags, not {len(tags)}")
    for tag in tags:
        check.name("tag", tag)
    return tags


_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit that says the variant of a UUID, for the one that stood there: it keeps its last two bits."""


def uuid7(now: float, entropy: bytes) -> str:
    """An id that sorts by its time: UUIDv7 (RFC 9562) from a time and 10 random bytes."""
    time, rest = f"{int(now * 1000):012x}", entropy.hex()
    return f"{time[:8]}-{time[8:]}-7{rest[1:4]}-{_VARIANT[rest[4]]}{rest[5:8]}-{rest[8:20]}"
