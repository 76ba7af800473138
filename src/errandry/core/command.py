"""Commands, the only way to change a store.

Each command is atomic and has its own answer: one of `core.answer`, or an `ErrandryError` as a
value, which the committer raises in the caller.
"""

from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, ClassVar

from msgspec import Struct

from errandry.core import check
from errandry.core.argument_version import FIRST_VERSION, check_version
from errandry.core.batch import BatchSpec
from errandry.core.flow import AwaitOutcome, Edge, check_edges, check_jobs
from errandry.core.gate import GateCommand, PauseRecord
from errandry.core.job import INSERT_MAX, METADATA_MAX, Failure, LogLine, NewJob, Progress, check_tags
from errandry.core.once import OnceCommand
from errandry.core.schedule import ScheduleCommand
from errandry.core.selection import JobSelection
from errandry.core.state import Move, Reason, State
from errandry.core.step import SendSignal, WaitOutcome
from errandry.core.suspect import SuspectKind
from errandry.errors import InvalidValue

DEFAULT_LEASE = 30.0
BEAT_INTERVAL = 5.0
"""Seconds between two heartbeats of a worker, by default."""
STRICT = "strict"
BEAT_TASKS_MAX = 1_000
"""Maximum number of tasks that a beat lists."""
REPORT_MAX = 100
"""Maximum number of texts in one `ReportTrouble`."""


class Ref(Struct, frozen=True, gc=False):
    """The identity of a claim. Every write by a worker names it."""

    job: str
    fence: int

    def __post_init__(self) -> None:
        check.name("job", self.job)
        check.whole("fence", self.fence, 0, check.INT_MAX)


# Outcomes: how an attempt ended.


class CompleteOutcome(Struct, frozen=True, gc=False, tag="complete"):
    """Done, with a result (JSON text)."""

    move: ClassVar[Move] = Move.COMPLETE
    result: str | None = None

    def __post_init__(self) -> None:
        if self.result is not None:
            check.document("result", self.result)


class RetryOutcome(Struct, frozen=True, gc=False, tag="retry"):
    """Try again after `delay` seconds; None means after the job's backoff. Fails when attempts are spent.

    With `pause_group` no other job of its group is claimed before then. If the job has no group, no other job
    of its task is.
    """

    move: ClassVar[Move] = Move.RETRY
    failure: Failure = Failure()
    delay: float | None = None
    pause_group: bool = False

    def __post_init__(self) -> None:
        if self.delay is not None:
            check.span("delay", self.delay)


class FailOutcome(Struct, frozen=True, gc=False, tag="fail"):
    """Failed for good, even if attempts are left."""

    move: ClassVar[Move] = Move.FAIL
    failure: Failure = Failure(Reason.UNRECOVERABLE)


class SnoozeOutcome(Struct, frozen=True, gc=False, tag="snooze"):
    """Run again after `delay` seconds; this attempt does not count. `step` names the sleep that this ends."""

    move: ClassVar[Move] = Move.SNOOZE
    delay: float
    step: str | None = None

    def __post_init__(self) -> None:
        check.span("delay", self.delay)
        if self.step is not None:
            check.name("sleep", self.step)


class ReleaseOutcome(Struct, frozen=True, gc=False, tag="release"):
    """Give the job back, for another worker; this attempt does not count.

    A job that is released too often fails, because its workers kept stopping. `unhandled`: the worker cannot
    run the job, because it seems to be of a newer program. Such a release is not counted; the job records
    since when workers give it back. `crashed`: its worker ends although nothing stopped it, which the job may
    have caused; if it runs, that counts like the death of the worker.
    """

    move: ClassVar[Move] = Move.RELEASE
    delay: float = 0.0
    unhandled: bool = False
    crashed: bool = False

    def __post_init__(self) -> None:
        check.span("delay", self.delay)
        check.flag("unhandled", self.unhandled)
        check.flag("crashed", self.crashed)


class GiveUpOutcome(Struct, frozen=True, gc=False, tag="give_up"):
    """Canceled by its handler, or stopped because a cancel was requested."""

    move: ClassVar[Move] = Move.GIVE_UP
    failure: Failure | None = None


Outcome = (
    CompleteOutcome
    | RetryOutcome
    | FailOutcome
    | SnoozeOutcome
    | ReleaseOutcome
    | GiveUpOutcome
    | AwaitOutcome
    | WaitOutcome
)


# Commands of clients and workers.


class Insert(OnceCommand, frozen=True, gc=False):
    """Insert all of these jobs, or none. With edges they form a flow. Answer: `Inserted`.

    It needs no nonce if its sender has just made the ids of all jobs, none of them replaces another job, and
    none is removed as soon as it ends: a repeat then finds the jobs by their ids.
    """

    jobs: tuple[NewJob, ...]
    edges: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.jobs:
            raise InvalidValue("jobs", 0, f"an insert takes 1 to {INSERT_MAX:,} jobs")
        check_jobs(self.jobs)
        if self.edges:
            check_edges(self.jobs, self.edges)


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    """Take up to `limit` waiting jobs, most urgent first. The jobs of a batch count as one. Answer: `Claims`.

    `queues` and `tasks` of None mean all; `without` excludes tasks. With `start` the jobs come back running.
    At most `suspects` of the jobs (None: any number) are suspects, and only of the kind `suspect_kind`. If a
    claimed job is of a task in `batches`, more jobs of that task are added until its batches are full; a
    suspect is never part of a batch. If the command is sent again with the same nonce, the answer is those of
    the same claims that are still valid.

    `order` says which of the `queues` comes first. None: the queue of the most urgent job. `STRICT`: the
    order of `queues`. A tuple: a weight for each queue; it comes first in proportion to its weight.
    """

    worker: str
    nonce: str
    limit: int = 1
    queues: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    suspects: int | None = None
    suspect_kind: SuspectKind = SuspectKind.ANY
    start: bool = True
    batches: tuple[BatchSpec, ...] = ()
    lease: float = DEFAULT_LEASE
    queue_order: str | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check.name("worker", self.worker)
        if self.queue_order is not None:
            check_queue_order(self.queues, self.queue_order)
        check.name("nonce", self.nonce)
        check.whole("limit", self.limit, 1, 10_000)
        if self.suspects is not None:
            check.whole("suspects", self.suspects, 0, 10_000)
        if type(self.suspect_kind) is not SuspectKind:
            raise InvalidValue("suspect_kind", self.suspect_kind, "must be a SuspectKind")
        check.lease(self.lease)
        check.names(self.queues, self.tasks)
        check.names(None, self.without)

    @property
    def suspect_filter(self) -> SuspectKind:
        """The suspects that it may take."""
        return SuspectKind.NONE if self.suspects == 0 else self.suspect_kind


class Start(Struct, frozen=True, gc=False):
    """The worker is about to call the handler. Answer: WRITTEN, ALREADY, CANCEL or Lost."""

    ref: Ref


class Renew(Struct, frozen=True, gc=False):
    """Extend leases to `lease` seconds from now. Answer: `Renewed`; HELD, CANCEL or Lost for each ref."""

    refs: tuple[Ref, ...]
    lease: float = DEFAULT_LEASE

    def __post_init__(self) -> None:
        check.lease(self.lease)


class Note(Struct, frozen=True, gc=False):
    """Store progress and log lines of a running job. Answer: WRITTEN or Lost."""

    ref: Ref
    progress: Progress | None = None
    logs: tuple[LogLine, ...] = ()

    def __post_init__(self) -> None:
        if self.progress is not None and type(self.progress) is not Progress:
            raise InvalidValue("progress", self.progress, "must be a Progress")
        for line in self.logs:
            if type(line) is not LogLine:
                raise InvalidValue("line", line, "must be a LogLine")


class PutStep(Struct, frozen=True, gc=False):
    """Store the result (JSON text) of a step of a running job. Answer: WRITTEN, ALREADY or Lost."""

    ref: Ref
    name: str
    result: str = "null"

    def __post_init__(self) -> None:
        check.name("step", self.name)
        check.document("result", self.result)


class Settle(Struct, frozen=True, gc=False):
    """Write down how the attempt ended. Answer: WRITTEN, ALREADY or Lost."""

    ref: Ref
    outcome: Outcome

    def __post_init__(self) -> None:
        if type(self.outcome) is AwaitOutcome:
            check_jobs(self.outcome.jobs)
            check_edges(self.outcome.jobs, self.outcome.edges, self.ref.job)


# Commands of operators, for the jobs that `JobSelection` selects. Answer: `Moved`.


class CancelJobs(JobSelection, frozen=True, gc=False):
    """Cancel jobs. A running job gets a cancel request; any other is canceled at once.

    `force` also cancels completed and failed jobs. With `children`, the children that a job waits for are
    canceled with it.
    """

    force: bool = False
    children: bool = True

    @property
    def moves(self) -> tuple[Move, ...]:
        return (Move.CANCEL, Move.CANCEL_FORCED) if self.force else (Move.CANCEL,)


class RerunJobs(JobSelection, frozen=True, gc=False):
    """Run a finished job again: now, after `delay`, or at `run_at`. It gets at least one attempt.

    It keeps the steps that it has finished; `from_start` deletes them.
    """

    moves: ClassVar[tuple[Move, ...]] = (Move.RERUN,)
    run_at: float | None = None
    delay: float | None = None
    reset_attempts: bool = False
    from_start: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.run_at_or_delay(self.run_at, self.delay)


class EditJobs(JobSelection, frozen=True, gc=False):
    """Change the given fields of jobs that no worker has claimed yet.

    A job that moves to another `queue` keeps its priority and its place.
    """

    moves: ClassVar[tuple[Move, ...]] = (Move.EDIT,)
    payload: str | None = None
    priority: int | None = None
    run_at: float | None = None
    max_attempts: int | None = None
    tags: tuple[str, ...] | None = None
    queue: str | None = None
    metadata: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queue is not None:
            check.name("queue", self.queue)
        if self.payload is not None:
            check.document("payload", self.payload)
        if self.metadata is not None:
            check.size("metadata", check.document("metadata", self.metadata), METADATA_MAX)
        if self.priority is not None:
            check.whole("priority", self.priority, -(2**31), 2**31 - 1)
        if self.run_at is not None:
            check.instant("run_at", self.run_at)
        if self.max_attempts is not None:
            check.whole("max_attempts", self.max_attempts, 1, 10_000)
        if self.tags is not None:
            check_tags(self.tags)


class PostponeJobs(JobSelection, frozen=True, gc=False):
    """Run a job later: after `delay` or at `run_at`."""

    moves: ClassVar[tuple[Move, ...]] = (Move.POSTPONE,)
    run_at: float | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check.run_at_or_delay(self.run_at, self.delay)
        if self.run_at is None and self.delay is None:
            raise InvalidValue("run_at", None, "say when: give run_at or delay")


class PromoteJobs(JobSelection, frozen=True, gc=False):
    """Run a scheduled job now."""

    moves: ClassVar[tuple[Move, ...]] = (Move.PROMOTE,)


class ResolveJobs(JobSelection, frozen=True, gc=False):
    """Settle a job by hand that no worker has claimed: completed with a result, or failed with a message."""

    moves: ClassVar[tuple[Move, ...]] = (Move.RESOLVE,)
    state: State = State.COMPLETED
    result: str | None = None
    message: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state not in (State.COMPLETED, State.FAILED):
            raise InvalidValue("state", self.state, "a job is resolved as completed or failed")
        check.text("message", self.message)
        if self.result is not None:
            check.document("result", self.result)


class RemoveJobs(JobSelection, frozen=True, gc=False):
    """Delete the record. `force` also deletes claimed and running jobs; their workers lose the claim."""

    force: bool = False

    @property
    def moves(self) -> tuple[Move, ...]:
        return (Move.REMOVE_FORCED,) if self.force else (Move.REMOVE,)


# Commands about queues, workers and the store.


class SlotShare(Struct, frozen=True, gc=False):
    """Slots of a worker that are reserved for these tasks. The tasks use no other slots."""

    tasks: tuple[str, ...]
    slots: int

    def __post_init__(self) -> None:
        check.names(None, self.tasks)
        check.whole("slots", self.slots, 0, check.INT_MAX)


class TaskVersion(Struct, frozen=True, gc=False):
    """The version of a task's arguments in the program of a worker."""

    task: str
    version: int

    def __post_init__(self) -> None:
        check.name("task", self.task)
        check_version("version", self.version)


class Beat(Struct, frozen=True, kw_only=True, gc=False):
    """A worker reports that it is alive, and its load; with `gone`, that it has stopped. Answer: WRITTEN.

    A worker that is `draining` stops: it claims no more jobs and finishes those it has.

    `alive` is the path of a file on its host that the worker keeps locked while it lives. `shares` are
    slots in addition to `concurrency`. A batch takes one slot; `running` counts slots. `tasks` of None means
    all, or more than a beat lists. `versions` has the versions of the tasks whose arguments were changed.
    `lease` is the lease of its claims, and `interval` the time between two beats, both in seconds.
    `blocked_by` is what blocks the worker's event loop, so that it claims nothing; empty if the loop is not
    blocked.
    """

    worker: str
    host: str = ""
    pid: int = 0
    alive: str = ""
    queues: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    concurrency: int = 0
    running: int = 0
    shares: tuple[SlotShare, ...] = ()
    batches: tuple[BatchSpec, ...] = ()
    versions: tuple[TaskVersion, ...] = ()
    started_at: float = 0.0
    lease: float = DEFAULT_LEASE
    interval: float = BEAT_INTERVAL
    draining: bool = False
    blocked_by: str = ""
    gone: bool = False

    def __post_init__(self) -> None:
        # Readers decode stored beats by their types, so a wrong type would fail each of them.
        check.name("worker", self.worker)
        if self.host != "":
            check.name("host", self.host)
        if self.alive != "":
            check.path("alive", self.alive)
        for field in ("pid", "concurrency", "running"):
            check.whole(field, getattr(self, field), 0, check.INT_MAX)
        check.instant("started_at", self.started_at)
        check.lease(self.lease)
        check.span("interval", self.interval)
        check.text("blocked_by", self.blocked_by)
        check.names(self.queues, self.tasks)
        if self.tasks is not None and len(self.tasks) > BEAT_TASKS_MAX:
            raise InvalidValue("tasks", len(self.tasks), f"a beat lists at most {BEAT_TASKS_MAX:,} tasks")
        check.tuple_of("shares", self.shares, SlotShare)
        check.tuple_of("batches", self.batches, BatchSpec)
        check.tuple_of("versions", self.versions, TaskVersion)
        check.flag("draining", self.draining)
        check.flag("gone", self.gone)

    @property
    def silence_limit(self) -> float:
        """Seconds without a beat after which the worker counts as dead."""
        return self.lease + 2 * self.interval

    def version(self, task: str) -> int:
        """The version of the arguments that this worker knows of a task it lists."""
        return next((known.version for known in self.versions if known.task == task), FIRST_VERSION)

    def lists(self, task: str, version: int) -> bool:
        """Whether it lists the task, in this version of its arguments or a newer one."""
        return self.tasks is None or (task in self.tasks and self.version(task) >= version)


def listed_tasks(tasks: Collection[str] | None) -> tuple[str, ...] | None:
    """The tasks as a beat lists them: None, as for all tasks, if they are too many."""
    return None if tasks is None or len(tasks) > BEAT_TASKS_MAX else tuple(sorted(tasks))


class WorkerRecord(Struct, frozen=True):
    """The last beat of a worker and when it came; if the worker is paused, when and by which operator."""

    beat: Beat
    seen_at: float
    paused: PauseRecord | None = None


class ReportTrouble(Struct, frozen=True, gc=False):
    """Write an `error` event for each of these texts: trouble of a worker, not of a job. Answer: WRITTEN.

    If the command is sent again after a lost reply, the events may be written twice.
    """

    worker: str
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        check.name("worker", self.worker)
        if not 1 <= len(self.texts) <= REPORT_MAX:
            raise InvalidValue("texts", len(self.texts), f"a report has 1 to {REPORT_MAX} texts")
        for text in self.texts:
            check.text("text", text)


class Upkeep(Struct, frozen=True, gc=False):
    """Expire, tick, promote, lapse, prune, trim and fold, up to `limit` jobs of each. Answer: `UpkeepResult`.

    `worker` is the worker that sends it. `dead` names workers that have certainly died: their leases expire
    at once. Without `prune` finished jobs stay; the sender deletes them in another way, such as after
    archiving.
    """

    limit: int = 1_000
    dead: tuple[str, ...] = ()
    prune: bool = True
    worker: str = ""

    def __post_init__(self) -> None:
        if self.worker:
            check.name("worker", self.worker)
        check.whole("limit", self.limit, 1, 100_000)
        for worker in self.dead:
            check.name("worker", worker)


OperatorCommand = CancelJobs | RerunJobs | EditJobs | PostponeJobs | PromoteJobs | ResolveJobs | RemoveJobs
Command = (
    Insert
    | Claim
    | Start
    | Renew
    | Note
    | PutStep
    | Settle
    | OperatorCommand
    | SendSignal
    | GateCommand
    | ScheduleCommand
    | Beat
    | ReportTrouble
    | Upkeep
)


def inserted_jobs(command: Command) -> tuple[NewJob, ...]:
    """The jobs that a command inserts."""
    if type(command) is Insert:
        return command.jobs
    if type(command) is Settle and type(command.outcome) is AwaitOutcome:
        return command.outcome.jobs
    return ()


def touched_ids(command: Command) -> tuple[str, ...]:
    """The ids of the jobs that a command names. A query names none."""
    ids_of = _TOUCHED_IDS.get(type(command))
    return ids_of(command) if ids_of is not None else ()


def _inserted_ids(command: Insert) -> tuple[str, ...]:
    jobs = command.jobs
    return (jobs[0].id,) if len(jobs) == 1 else tuple([job.id for job in jobs])


def _settled_ids(command: Settle) -> tuple[str, ...]:
    outcome, job = command.outcome, command.ref.job
    return (job, *[child.id for child in outcome.jobs]) if type(outcome) is AwaitOutcome else (job,)


_TOUCHED_IDS: dict[type, Callable[[Any], tuple[str, ...]]] = {
    **dict.fromkeys((Start, Note, PutStep), lambda command: (command.ref.job,)),
    Settle: _settled_ids,
    Insert: _inserted_ids,
    Renew: lambda command: tuple([ref.job for ref in command.refs]),
    SendSignal: lambda command: (command.job,),
    **dict.fromkeys(
        (CancelJobs, RerunJobs, EditJobs, PostponeJobs, PromoteJobs, ResolveJobs, RemoveJobs),
        attrgetter("ids"),
    ),
}


def check_queue_order(queues: tuple[str, ...] | None, queue_order: object) -> None:
    """Refuse `queue_order` unless it is `STRICT` or has one weight for each of the queues."""
    if queues is None:
        raise InvalidValue("queue_order", queue_order, "needs a list of queues to order")
    if queue_order == STRICT:
        return
    if not isinstance(queue_order, tuple) or len(queue_order) != len(queues):
        why = f"must be {STRICT!r}, or {len(queues)} weights, one for each of the queues"
        raise InvalidValue("queue_order", queue_order, why)
    for weight in queue_order:
        if not 0.001 <= check.span("weight", weight) <= 1_000:
            raise InvalidValue("weight", weight, "must be from 0.001 to 1,000; 1 is the usual weight")
