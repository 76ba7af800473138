"""The store contract: one verb that writes, a few reads, and a wake-up that is only a hint.

`commit` takes the commands of one pass in the order of `RANK`, at most one of them about
any one job; the committer sees to both. Each command is atomic and answered by itself; the call
returns when all of it is durable. After `ReplyLost` the same commands may be sent again.
"""

import builtins
from collections.abc import Mapping, Sequence
from typing import Protocol, get_args

from msgspec import Struct

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
    RerunJobs,
    ResolveJobs,
    Settle,
    Start,
    Upkeep,
    WorkerInfo,
)
from errandry.core.event import Event
from errandry.core.flow import EdgeRecord
from errandry.core.gate import GateKind, GateRecord, GateStatus, Pause, PauseInfo, PutRule, Resume
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.core.rule import Rate
from errandry.core.schedule import ScheduleCommand, ScheduleRecord
from errandry.core.stats import StatsRow
from errandry.core.step import SendSignal, Step
from errandry.store.health import Finding

_ORDER: tuple[type, ...] = (
    *(Start, Renew, Note, PutStep, Settle),
    Insert,
    *(CancelJobs, RerunJobs, EditJobs, PostponeJobs, PromoteJobs, ResolveJobs, RemoveJobs, SendSignal),
    *(Pause, Resume, PutRule, *get_args(ScheduleCommand), Beat),
    Upkeep,
    Claim,
)
RANK: Mapping[type, int] = {kind: rank for rank, kind in enumerate(_ORDER)}


class StoreLimits(Struct, frozen=True, kw_only=True):
    """How much a store takes and for how long it keeps what nobody asked for.

    payload      how large the arguments of one job may be
    result       how large its result may be
    step         how large the result of one of its steps may be, or what comes with a signal
    events       how many events are kept
    events_age   how long an event is kept
    workers_age  how long a worker that no longer beats is listed
    scan         how many jobs a pass looks at to find those of a query that is carried out in slices
    """

    payload: int = 1_048_576
    result: int = 1_048_576
    step: int = 262_144
    events: int = 1_000_000
    events_age: float = 86_400.0
    workers_age: float = 86_400.0
    scan: int = 10_000


class RecordPage(Struct, frozen=True):
    """Jobs, newest first; `cursor` continues below them, None at the end."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class EventEntry(Struct, frozen=True):
    """An event with its time, and the cursor that continues after it."""

    cursor: str
    at: float
    event: Event


class EventPage(Struct, frozen=True):
    """Events in commit order. `cursor` continues after them; `missed` says some before them are gone."""

    entries: tuple[EventEntry, ...]
    cursor: str
    missed: bool = False


class GroupInfo(Struct, frozen=True):
    """A group of a queue as it is now: how many jobs wait (counted up to a bound) and how many workers have.

    `gate` has what is said of it by itself; `limit` and `rate` hold, and may be those of its queue.
    """

    waiting: int
    held: int
    gate: GateRecord
    limit: int | None
    rate: Rate | None


class QueueInfo(Struct, frozen=True):
    """A queue as it is now: jobs by state, how long the job next in line has waited, whether it is paused."""

    name: str
    states: Mapping[str, int]
    waited: float | None
    paused: PauseInfo | None


class Binding(Protocol):
    """A way to insert over a connection of the caller's: the jobs come with its commit.

    `is_async` says which of the two it has: `insert` is awaited, `insert_sync` blocks. With `is_alone` the
    store need not be open, and must not be asked anything: its passes may be waiting for the caller's commit.
    """

    is_async: bool
    is_alone: bool

    async def insert(self, command: Insert) -> Inserted: ...

    def insert_sync(self, command: Insert) -> Inserted: ...


class Store(Protocol):
    """What every driver does, in the same way.

    `tracks` is how many passes it writes beside each other. A command goes on the track `track` says; the
    last of several is for what may take long.
    """

    tracks: int

    def track(self, command: Command) -> int:
        """The track of a command, from 0. Pure, and from any thread."""

    async def needs_setup(self) -> str | None:
        """What `open` would have to make, in words; None if it is there. Makes nothing itself."""

    async def open(self) -> None:
        """Make it ready, migrating it if need be. A second call changes nothing."""

    async def close(self) -> None:
        """Let go of it. A second call changes nothing."""

    async def commit(self, commands: Sequence[Command]) -> builtins.list[Answer]:
        """Write a pass. It runs on the engine's own loop and may block it."""

    def bind(self, connection: object) -> Binding:
        """Insert over `connection` from now on. InvalidValue says which ones it takes."""

    def version(self) -> int:
        """A number that changes when something may have changed. Take it, look, then `wake` with it."""

    async def wait_for_change(self, pulse: int, timeout: float) -> bool:
        """True as soon as the pulse is no longer `pulse`, False when the time is up.

        A hint: losing it costs only time.
        """

    async def get(self, ids: Sequence[str]) -> builtins.list[JobRecord | None]:
        """The jobs with these ids, in this order."""

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        """Ids that begin or end with `part`, in their order: what a person means who gives part of one."""

    async def list(self, query: Query = ..., cursor: str | None = None, limit: int = 50) -> RecordPage:
        """Jobs that match, live and finished, newest first."""

    async def children(self, parent: str) -> builtins.list[EdgeRecord]:
        """The children of a job in their order, and how they ended."""

    async def steps(self, job: str) -> builtins.list[Step]:
        """The steps of a job in the order they were begun, its sleeps, and the signals sent to it."""

    async def counts(self) -> dict[str, dict[str, int]]:
        """For each queue: how many jobs are in each state."""

    async def totals(self) -> dict[str, dict[str, int]]:
        """For each queue, over its life: inserted, completed, failed, canceled, retried, expired, removed."""

    async def stats(self, since: float, until: float) -> builtins.list[StatsRow]:
        """What happened then, counted by the minute, the hour or the day: as far back as they are kept."""

    async def queues(self) -> builtins.list[QueueInfo]:
        """Every queue that has jobs, has had some, or is paused."""

    async def paused(self) -> dict[GateKind, dict[str, PauseInfo]]:
        """The queues, the tasks and the workers that are paused, by name. Groups are among the `rules`."""

    async def rules(self) -> builtins.list[GateRecord]:
        """Every queue, task and group that is paused, has a rule, or is closed for a while."""

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupInfo]:
        """The groups, of one queue or all, with waiting or held jobs or with rules; by name."""

    async def gates(self, queue: str, task: str, group: str = "") -> builtins.list[GateStatus]:
        """What a job of this queue, task and group has to pass, with or without rules, and how it stands."""

    async def schedule(self, name: str) -> ScheduleRecord | None:
        """The schedule of this name."""

    async def schedules(self, after: str = "", limit: int = 1_000) -> builtins.list[ScheduleRecord]:
        """Schedules by name, after one."""

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Workers that have beaten lately."""

    async def held(self, limit: int = 100) -> builtins.list[JobRecord]:
        """Jobs that workers have, claimed or running; those whose lease ends first come first."""

    async def now(self) -> float:
        """What time it is for the store, whatever the clock of this host shows."""

    async def cancels(self, worker: str) -> tuple[Ref, ...]:
        """The running jobs of `worker` whose cancel was requested. Cheap."""

    async def events(self, after: str | None = None, limit: int = 1_000) -> EventPage:
        """What happened after `after`, at most `limit` of it; with None, from the oldest event kept."""

    async def latest_cursor(self, back: int = 0) -> str:
        """The cursor of this moment, or of `back` passes ago: only what happens from then on comes after."""

    async def diagnose(self) -> builtins.list[Finding]:
        """How it is: what it survives, what is in its way, and what to do about that."""

    async def prunable(self, limit: int = 500) -> builtins.list[JobRecord]:
        """Finished jobs that upkeep would prune now, in that order: outlived, or too many."""

    async def due_in(self) -> float | None:
        """Seconds until the next scheduled job is due; None if there is none."""
