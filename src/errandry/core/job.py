"""The record of a job, what a client sends to insert one, and the parts of both.

Times are seconds since 1970 by the store's clock, durations are seconds; payload, result and metadata
are JSON text.
"""

from copy import copy
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from errandry.core import check
from errandry.core.duration import format_duration
from errandry.core.retry import Backoff
from errandry.core.state import SCHEDULED, TERMINAL, Move, Reason, State
from errandry.core.step import StepState
from errandry.core.suspect import SuspectKind, suspect_kind
from errandry.core.unique import Conflict, UniqueKey
from errandry.errors import InvalidValue

DAY = 86_400.0
ERRORS_MAX = 20
"""Maximum number of errors in the record of a job; the newest stay."""
LOGS_MAX = 200
"""Maximum number of log lines in the record of a job; the newest stay."""
LOG_TEXT_MAX = 2_000
LEVEL_MAX = 40
RELEASES_MAX = 1_000
"""Number of releases at which a job fails."""
KEEP_LAST_MAX = 10_000
"""Maximum of `Keep.last_…`. Upkeep counts that many jobs to find the oldest to keep."""
INSERT_MAX = 20_000
"""Maximum number of jobs in an insert."""
METADATA_MAX = 65_536
"""Maximum size of the metadata of a job, in bytes."""


class Keep(Struct, frozen=True, omit_defaults=True, gc=False):
    """How many seconds a finished job stays, by the state it ended in. 0: it is removed at once.

    `last_…` keeps at most that many of the newest jobs of its task in that state. Jobs without it do not
    count.
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
                    check.whole(f"keep.{name}", last, 1, KEEP_LAST_MAX)

    def __str__(self) -> str:
        """The times in words, completed jobs first: "2 days", "7 days (failed 30 days, last 100)"."""
        states = "completed", "failed", "canceled"
        spans = {state: _days(getattr(self, state)) for state in states}
        numbers = {state: getattr(self, f"last_{state}") for state in states}
        base = spans["completed"]
        others = [f"{state} {span}" for state, span in spans.items() if span != base]
        if len({*numbers.values()}) > 1:
            others += [f"last {number} {state}" for state, number in numbers.items() if number is not None]
        elif self.is_by_number:
            others.append(f"last {self.last_completed}")
        return f"{base} ({', '.join(others)})" if others else base

    def last(self, state: State) -> int | None:
        """The maximum number of jobs of a task that stay in `state`; None: no maximum."""
        last: int | None = getattr(self, f"last_{state}")
        return last

    @property
    def is_by_number(self) -> bool:
        """Whether it limits the number of jobs in any state."""
        return (self.last_completed, self.last_failed, self.last_canceled) != (None, None, None)

    def span(self, state: State) -> float:
        """How many seconds a job that ended in `state` stays."""
        return float(getattr(self, state))


def _days(length: float) -> str:
    """The length of time in days if it is a whole number of them."""
    days, rest = divmod(length, DAY)
    return format_duration(length) if rest or not days else f"{days:g} day{'s' if days > 1 else ''}"


class Failure(Struct, frozen=True, omit_defaults=True, gc=False):
    """The failure of an attempt, as its worker reports it."""

    kind: Reason = Reason.ERROR
    type: str = ""
    message: str = ""
    traceback: str = ""

    def __post_init__(self) -> None:
        if type(self.kind) is not Reason:
            raise InvalidValue("kind", self.kind, "must be a Reason")
        check.text("type", self.type)
        check.text("message", self.message)
        check.text("traceback", self.traceback)


class AttemptError(Struct, frozen=True, omit_defaults=True, gc=False):
    """A failure in the record of a job, with its attempt, its worker and its times."""

    attempt: int
    worker: str | None
    started: float | None
    ended: float
    kind: Reason
    type: str = ""
    message: str = ""
    traceback: str = ""


class LogLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """A line that a handler logged. `at` 0 means the time at which it is written."""

    at: float
    text: str
    level: str = "info"

    def __post_init__(self) -> None:
        check.instant("at", self.at)
        check.text("text", self.text)
        check.text("level", self.level)  # guard: log_fields


class Progress(Struct, frozen=True, omit_defaults=True, gc=False):
    """The progress that a handler reports: a share from 0 to 1, and a text."""

    share: float
    text: str = ""

    def __post_init__(self) -> None:
        if type(self.share) not in (int, float) or not 0 <= self.share <= 1:
            raise InvalidValue("progress", self.share, "must be a share from 0 to 1")
        check.text("text", self.text)


class JobRecord(Struct, frozen=True, gc=False):
    """One request to run a task, as stored.

    `seq` numbers jobs in the order of their insert. `group` is the fairness, limit and order key of jobs in a
    queue. `place` orders the waiting jobs of a priority, lowest first; those of `lifo` jobs are negative.
    `settled` is the outcome last written under `fence`; it distinguishes a repeated settle from a stale one.
    `lost_by` is the worker that lost the job last, while a heartbeat of it would take the crash back.
    `children` and `parents` count the jobs of its flow that it waits for and that wait for it;
    `open_children` counts the children that have not ended while it is blocked. `steps` is None for a job
    without steps. `unhandled_since` is when a worker first gave the job back because it could not run it;
    None if none has, or a handler has begun since, or the job is finished.
    """

    seq: int
    id: str
    task: str
    queue: str
    group: str
    state: State
    lifo: bool
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
    lost_by: str | None
    unhandled_since: float | None
    backoff: Backoff | None
    keep: Keep | None
    progress: Progress | None
    tags: tuple[str, ...]
    errors: tuple[AttemptError, ...]
    logs: tuple[LogLine, ...]
    unique: UniqueKey | None
    steps: StepState | None

    @property
    def awaited_signal(self) -> str | None:
        """The name of the signal that the job waits for; None if it waits for none."""
        is_waiting = self.state is SCHEDULED and self.settled is Move.WAIT and self.steps is not None
        return self.steps.signal if is_waiting and self.steps is not None else None

    @property
    def finished(self) -> bool:
        return self.state in TERMINAL

    @property
    def suspect(self) -> SuspectKind:
        """The kind of suspect that it is when it waits."""
        return suspect_kind(self.crashes, self.max_crashes, self.attempts, self.max_attempts)


class NewJob(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job to insert. Creating one checks it, so that every instance can be stored.

    `group` is the fairness, limit and order key of jobs in a queue: each group of a queue has its turn, and
    may have a limit, a rate and a weight of its own. A `lifo` job goes before the others of its priority,
    newest first. `delay` counts from the time of the store, and is correct even if the clock of the client is
    wrong; `run_at` is a point in time. `on_conflict` says what happens if another job holds the `unique` key.
    """

    id: str
    task: str
    payload: str
    queue: str = "default"
    group: str = ""
    priority: int = 0
    lifo: bool = False
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
        check.flag("lifo", self.lifo)
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
            check.size("metadata", check.document("metadata", self.metadata), METADATA_MAX)
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


def copy_job(job: NewJob, **fields: Any) -> NewJob:
    """A copy of `job` with other values of `fields`. They must be valid: the checks do not run again."""
    new = copy(job)
    for name, value in fields.items():
        force_setattr(new, name, value)
    return new


def check_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse too many tags, and tags that are no names."""
    if len(tags) > check.TAGS_MAX:
        raise InvalidValue("tags", tags, f"a job has at most {check.TAGS_MAX} tags, not {len(tags)}")
    for tag in tags:
        check.name("tag", tag)
    return tags


_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""For each random hex digit, the digit with the variant of a UUID in its upper two bits."""


def uuid7(now: float, entropy: bytes) -> str:
    """A UUIDv7 (RFC 9562) from a time and 10 random bytes. Such ids sort by time."""
    time, rest = f"{int(now * 1000):012x}", entropy.hex()
    return f"{time[:8]}-{time[8:]}-7{rest[1:4]}-{_VARIANT[rest[4]]}{rest[5:8]}-{rest[8:20]}"
