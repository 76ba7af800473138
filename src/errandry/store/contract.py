"""The store contract: one method that writes, some that read, and one that waits for changes.

`commit` gets the commands of one pass in the order of `RANK`, at most one command about each job; the
committer takes care of both. Each command is atomic and has its own answer. The call returns when everything
is durable. After `ReplyLost` the same commands may be sent again.
"""

import builtins
from collections.abc import Mapping, Sequence
from typing import Protocol, get_args

from msgspec import Struct

from errandry.core import check
from errandry.core.answer import Answer, Inserted
from errandry.core.command import (
    Beat,
    CancelJobs,
    Claim,
    Command,
    EditJobs,
    Insert,
    Note,
    PostponeJobs,
    PromoteJobs,
    PutStep,
    Ref,
    RemoveJobs,
    Renew,
    ReportTrouble,
    RerunJobs,
    ResolveJobs,
    Settle,
    Start,
    Upkeep,
    WorkerRecord,
)
from errandry.core.event import EventRecord
from errandry.core.flow import EdgeRecord
from errandry.core.gate import GateCommand, GateKind, GateRecord, GateStatus, PauseRecord
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.core.rule import Rate
from errandry.core.schedule import ScheduleCommand, ScheduleRecord
from errandry.core.stats import StatsRow
from errandry.core.step import SendSignal, StepRecord
from errandry.store.health import Finding

_ORDER: tuple[type, ...] = (
    *(Start, Renew, Note, PutStep, Settle),
    Insert,
    *(CancelJobs, RerunJobs, EditJobs, PostponeJobs, PromoteJobs, ResolveJobs, RemoveJobs, SendSignal),
    *(*get_args(GateCommand), *get_args(ScheduleCommand), Beat, ReportTrouble),
    Upkeep,
    Claim,
)
RANK: Mapping[type, int] = {kind: rank for rank, kind in enumerate(_ORDER)}
"""The order of commands in a pass: what workers report comes first, claims come last."""


ANSWERS_AGE = 600.0
"""Seconds for which the answer to a command is saved, in case the command is sent again."""


class StoreLimits(Struct, frozen=True, kw_only=True):
    """Maximum sizes of what a store accepts, in bytes, and retention of events and workers, in seconds.

    payload      maximum size of the arguments of one job
    result       maximum size of the result of one job
    step         maximum size of the result of one step, or of the payload of a signal
    events       maximum number of events kept
    events_age   how long an event is kept
    workers_age  how long a worker without heartbeats stays listed
    scan         maximum number of jobs one pass reads for an operator command that selects jobs by query
    """

    payload: int = 1_048_576
    result: int = 1_048_576
    step: int = 262_144
    events: int = 1_000_000
    events_age: float = 86_400.0
    workers_age: float = 86_400.0
    scan: int = 10_000

    def __post_init__(self) -> None:
        for name in ("payload", "result", "step", "events", "scan"):
            check.whole(name, getattr(self, name), 1, check.INT_MAX)
        for name in ("events_age", "workers_age"):
            check.span(name, getattr(self, name))


class SchemaChange(Struct, frozen=True):
    """The version of the schema that `open` found, 0 if it created the store, and the one it left."""

    before: int
    after: int


class RecordPage(Struct, frozen=True):
    """Jobs, newest first. `cursor` gets the next page; None on the last page."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class EventEntry(Struct, frozen=True):
    """An event, its time, and the cursor that continues after it."""

    cursor: str
    at: float
    event: EventRecord


class EventPage(Struct, frozen=True):
    """Events in commit order. `cursor` continues after them; `missed`: events before them were deleted."""

    entries: tuple[EventEntry, ...]
    cursor: str
    missed: bool = False


class GroupRecord(Struct, frozen=True):
    """A group of a queue as it is now.

    waiting  number of waiting jobs, counted up to a maximum
    held     number of claimed and running jobs
    gate     pause and rule of the group itself
    limit    the limit in force, which may come from the rule of the queue; so may `rate`
    """

    waiting: int
    held: int
    gate: GateRecord
    limit: int | None
    rate: Rate | None


class QueueRecord(Struct, frozen=True):
    """A queue as it is now: jobs by state, seconds that the first waiting job has waited, and the pause."""

    name: str
    states: Mapping[str, int]
    waited: float | None
    paused: PauseRecord | None


class Binding(Protocol):
    """Inserts jobs over a connection of the caller, in the caller's transaction.

    `is_async` says which method works: `insert`, or the blocking `insert_sync`. If `is_alone`, the store need
    not be open and must not be read: its passes may be waiting for the caller's commit.
    """

    is_async: bool
    is_alone: bool

    async def insert(self, command: Insert) -> Inserted: ...

    def insert_sync(self, command: Insert) -> Inserted: ...


class Store(Protocol):
    """The interface of every driver.

    `tracks` is the number of passes it can write concurrently, one per track. If there are several, the last
    one is for commands that may take long.
    """

    tracks: int

    @property
    def schema_change(self) -> SchemaChange | None:
        """What the last `open` did to the schema; None for a store without one, or never opened."""

    def track(self, command: Command) -> int:
        """Return the track of a command, from 0. A pure function; called from any thread."""

    async def needs_setup(self) -> str | None:
        """Return in words what `open` would have to create or migrate, None if nothing. Changes nothing."""

    def allow_read_only(self) -> None:
        """Let `open` open a store that cannot be written; each write then raises StoreRefused."""

    async def open(self) -> None:
        """Open the store; create or migrate it if necessary. A second call changes nothing."""

    async def close(self) -> None:
        """Close the store. A second call changes nothing."""

    async def commit(self, commands: Sequence[Command]) -> builtins.list[Answer]:
        """Write a pass and return the answers. Called on the engine's own loop, which it may block."""

    def bind(self, connection: object) -> Binding:
        """Return a way to insert over this connection. InvalidValue says which connections are possible."""

    @property
    def identity(self) -> str:
        """Random id of the store, the same in each process; empty until the first pass."""

    def version(self) -> int:
        """Return a number that changes with the store. Get it, read, then call `wait_for_change` with it."""

    async def wait_for_change(self, version: int, timeout: float) -> bool:
        """Wait until the version differs from `version`; return False after `timeout` seconds.

        This is only a hint: callers must poll too, in case a change was not noticed.
        """

    async def get(self, ids: Sequence[str]) -> builtins.list[JobRecord | None]:
        """Return the jobs with these ids, in this order; None for each that does not exist."""

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        """Return ids that begin or end with `part`, sorted, so that a user can abbreviate an id."""

    async def list(self, query: Query = ..., cursor: str | None = None, limit: int = 50) -> RecordPage:
        """Return the jobs that match, newest first."""

    async def children(self, parent: str) -> builtins.list[EdgeRecord]:
        """Return the edges to the children of a job, in their order, with their outcomes."""

    async def steps(self, job: str) -> builtins.list[StepRecord]:
        """Return the steps, sleeps and signals of a job, in the order in which they began."""

    async def counts(self) -> dict[str, dict[str, int]]:
        """Return for each queue the number of jobs in each state."""

    async def totals(self) -> dict[str, dict[str, int]]:
        """Return each queue's totals: inserted, completed, failed, canceled, retried, expired, removed."""

    async def stats(self, since: float, until: float) -> builtins.list[StatsRow]:
        """Return statistics of this time span: by minute, then by hour, then by day for older times."""

    async def queues(self) -> builtins.list[QueueRecord]:
        """Return every queue that has jobs, has had some, or is paused."""

    async def paused(self) -> dict[GateKind, dict[str, PauseRecord]]:
        """Return the paused queues, tasks and workers, by name. Paused groups are in `rules`."""

    async def rules(self) -> builtins.list[GateRecord]:
        """Return every queue, task and group that is paused, has a rule, or is closed until a time."""

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupRecord]:
        """Return the groups of one queue or all with waiting or held jobs or with rules, by name."""

    async def gates(self, queue: str, task: str, group: str = "") -> builtins.list[GateStatus]:
        """Return the gates that a job of this queue, task and group has to pass, and if they are open."""

    async def schedule(self, name: str) -> ScheduleRecord | None:
        """Return the schedule with this name, None if there is none."""

    async def schedules(self, after: str = "", limit: int = 1_000) -> builtins.list[ScheduleRecord]:
        """Return the schedules whose names come after `after`, by name."""

    async def workers(self) -> builtins.list[WorkerRecord]:
        """Return the workers, with their last heartbeats."""

    async def held(self, limit: int = 100) -> builtins.list[JobRecord]:
        """Return claimed and running jobs; those whose lease ends first come first."""

    async def now(self) -> float:
        """Return the time of the store's clock, which may differ from this host's."""

    async def cancels(self, worker: str) -> tuple[Ref, ...]:
        """Return the running jobs of `worker` with a cancel request. Cheap, because every worker polls it."""

    async def events(self, after: str | None = None, limit: int = 1_000) -> EventPage:
        """Return events after this cursor; with None, from the oldest event kept."""

    async def latest_cursor(self, back: int = 0) -> str:
        """Return the cursor after the newest event, or `back` passes earlier."""

    async def diagnose(self) -> builtins.list[Finding]:
        """Check the store's durability, settings and health. Each finding says what to do about it."""

    async def prunable(self, limit: int = 500) -> builtins.list[JobRecord]:
        """Return the finished jobs that upkeep would delete next."""

    async def due_in(self) -> float | None:
        """Return the seconds until the next job or tick is due or a gate opens, None if neither will."""
