"""Explain the state of a job: why it is not running, or what it is doing. Each reason has a text.

Each check is a function that looks at one thing that may keep a job from running. `CHECKS` lists the checks
for each state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from errandry.core import check
from errandry.core.argument_version import FIRST_VERSION, version_of
from errandry.core.batch import call_count
from errandry.core.command import Beat, WorkerRecord
from errandry.core.duration import format_time, rough_duration
from errandry.core.gate import GateKind, GateRecord, GateStatus, PauseRecord
from errandry.core.job import AttemptError, JobRecord
from errandry.core.state import Move, State
from errandry.core.suspect import SuspectKind
from errandry.core.tick import origin
from errandry.core.unique import UniqueScope

SILENT_AFTER = 30.0
"""Seconds without a beat after which a worker counts as silent."""


class WhyCode(StrEnum):
    """The kind of a reason, for programs."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    RUNNING = "running"
    CLAIMED = "claimed"
    CANCELING = "canceling"
    LEASE_EXPIRED = "lease_expired"
    WORKER_SILENT = "worker_silent"
    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    SIGNAL = "signal"
    RETRY = "retry"
    DUE = "due"
    LAPSED = "lapsed"
    QUEUE_PAUSED = "queue_paused"
    TASK_PAUSED = "task_paused"
    GROUP_PAUSED = "group_paused"
    CLOSED = "closed"
    LIMIT = "limit"
    RATE = "rate"
    NO_WORKER = "no_worker"
    WORKERS_BUSY = "workers_busy"
    WORKERS_BLOCKED = "workers_blocked"
    SUSPECT = "suspect"
    UNHANDLED = "unhandled"
    IN_LINE = "in_line"
    ANY_MOMENT = "any_moment"
    UNIQUE = "unique"


class WhyReason(Struct, frozen=True):
    """One reason, with a code for programs and a text for people."""

    code: WhyCode
    text: str


class Why(Struct, frozen=True):
    """The explanation: at least one reason, the most important first."""

    job: str
    state: State
    reasons: tuple[WhyReason, ...]


CHILDREN_SHOWN_MAX = 5
"""Maximum number of children that a reason names."""


class WhyFacts(Struct, frozen=True, kw_only=True):
    """All facts that the checks use: the job, its gates, every worker, and the jobs before it.

    `held` are the jobs that workers hold. `ahead` is the number of jobs before it in its queue; None if the
    jobs of the queue, `in_queue`, are too many to count those. `children` are the ids of the children that
    the job waits for.
    """

    job: JobRecord
    now: float
    gates: tuple[GateStatus, ...] = ()
    workers: tuple[WorkerRecord, ...] = ()
    held: tuple[JobRecord, ...] = ()
    ahead: int | None = 0
    in_queue: int = 0
    children: tuple[str, ...] = ()


Check = Callable[[WhyFacts], Iterator[WhyReason]]


def why(facts: WhyFacts) -> Why:
    """Explain what keeps the job from running or, if nothing does, what it is doing."""
    job = facts.job
    reasons = [reason for explain in CHECKS[job.state] for reason in explain(facts)]
    if not reasons:
        reasons.append(
            WhyReason(WhyCode.ANY_MOMENT, "Nothing holds it back: a worker should claim it at any moment.")
        )
    return Why(job.id, job.state, (*reasons, *_unique(facts)))


def _finished(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    when = _ago(job.finished_at, facts.now)
    match job.state:
        case State.COMPLETED:
            tried = f"in attempt {job.attempts}" if job.attempts else "before an attempt"
            yield WhyReason(WhyCode.COMPLETED, f"It is done: completed {when}, {tried}.")
        case State.CANCELED:
            yield WhyReason(WhyCode.CANCELED, f"It was canceled {when}. A rerun would start it again.")
        case _:
            last = f", last with {_error(job.errors[-1])}" if job.errors else ""
            reason = str(job.reason or "error").replace("_", " ")
            tried = "after" if job.attempts else "before"
            tried += f" attempt {max(1, job.attempts)} of {job.max_attempts}"
            yield WhyReason(
                WhyCode.FAILED, f"It failed {when} ({reason}) {tried}{last}. A rerun would try it again."
            )


def _held(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    left = (job.lease_until or 0.0) - facts.now
    lease = (
        f"its lease lasts {rough_duration(left)} more"
        if left > 0
        else f"its lease ran out {rough_duration(-left)} ago"
    )
    if job.state is State.RUNNING:
        since = _ago(job.started_at, facts.now)
        tried = f"attempt {job.attempts} of {job.max_attempts}"
        yield WhyReason(
            WhyCode.RUNNING, f"It is running on {job.worker}, started {since} ({tried}); {lease}."
        )
    else:
        since = _ago(job.claimed_at, facts.now)
        yield WhyReason(
            WhyCode.CLAIMED, f"{job.worker} claimed it {since} and has no free slot yet; {lease}."
        )
    if job.cancel_requested:
        yield WhyReason(
            WhyCode.CANCELING, "A cancel was requested: the worker stops it as soon as the handler allows."
        )
    if left <= 0:
        yield WhyReason(WhyCode.LEASE_EXPIRED, "The next claim or upkeep takes it from this worker.")
    blocked_by = {worker.beat.worker: worker.beat.blocked_by for worker in facts.workers}.get(
        job.worker or ""
    )
    if blocked_by:
        text = f"The event loop of this worker is blocked by {blocked_by}: async handlers wait."
        yield WhyReason(WhyCode.WORKERS_BLOCKED, text)
    silent = [facts.now - worker.seen_at for worker in facts.workers if worker.beat.worker == job.worker]
    if not silent or silent[0] > SILENT_AFTER:
        silence = f"has been silent for {rough_duration(silent[0])}" if silent else "is no longer known"
        rescue = "If it is dead, another worker gets the job when the lease has run out."
        yield WhyReason(WhyCode.WORKER_SILENT, f"The worker {silence}. {rescue}")


def _blocked(facts: WhyFacts) -> Iterator[WhyReason]:
    waits = f"It waits for {_number(facts.job.open_children, 'child', 'children')} to end"
    named = ", ".join(facts.children[:CHILDREN_SHOWN_MAX])
    more = ", …" if len(facts.children) > CHILDREN_SHOWN_MAX else ""
    yield WhyReason(WhyCode.BLOCKED, f"{waits}: {named}{more}" if named else f"{waits}.")


def _lapsed(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    if job.deadline is None:
        return
    if job.deadline <= facts.now:
        yield WhyReason(WhyCode.LAPSED, f"Its deadline passed {_ago(job.deadline, facts.now)}: it will fail.")
    elif job.run_at is not None and job.deadline <= job.run_at and job.state is State.SCHEDULED:
        yield WhyReason(WhyCode.LAPSED, "Its deadline is before its scheduled time: it will fail.")


def _scheduled(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    run_at = job.run_at or 0.0
    if run_at <= facts.now:
        yield WhyReason(
            WhyCode.DUE,
            f"It was due {_ago(run_at, facts.now)}: the next worker that claims makes it waiting.",
        )
        return
    when = f"in {rough_duration(run_at - facts.now)}, at {format_time(int(run_at) * 1_000_000)}"
    if job.awaited_signal is not None:
        until = "" if run_at - facts.now > check.SPAN_MAX / 2 else f", or goes on without {when}"
        yield WhyReason(WhyCode.SIGNAL, f"It waits for the signal {job.awaited_signal!r}{until}.")
    elif job.settled is Move.RETRY and job.errors and job.attempts:  # a reset of its attempts keeps `settled`
        tried = f"attempt {job.attempts} of {job.max_attempts} ended with {_error(job.errors[-1])}"
        yield WhyReason(WhyCode.RETRY, f"It will be tried again {when}: {tried}.")
    else:
        how = {Move.SNOOZE: "its handler snoozed it", Move.RELEASE: "a worker gave it back"}
        because = f": {how[job.settled]}" if job.settled in how else _tick(job)
        yield WhyReason(WhyCode.SCHEDULED, f"It is scheduled to run {when}{because}.")


def _unhandled(facts: WhyFacts) -> Iterator[WhyReason]:
    """That workers give it back because they cannot run it."""
    job = facts.job
    if job.unhandled_since is None:
        return
    lasted = rough_duration(max(0.0, facts.now - job.unhandled_since))
    version = version_of(job.metadata)
    of_version = "" if version == FIRST_VERSION else f" of version {version}"
    text = (
        f"Workers have given it back for {lasted}: the programs of those that claimed it have no task"
        f" {job.task}{of_version}, or not all of its arguments. It fails if that lasts for their"
        " unknown_timeout, by default 24 hours, unless a live worker has the task."
    )
    yield WhyReason(WhyCode.UNHANDLED, text)


def _tick(job: JobRecord) -> str:
    """The schedule of which the job is the next tick."""
    source = None if job.fence else origin(job)
    return "" if source is None else f": it is the next tick of schedule {source.schedule}"


def _due(facts: WhyFacts) -> Iterator[WhyReason]:
    """What keeps a due job from running. It becomes waiting only when a worker claims."""
    if (facts.job.run_at or 0.0) <= facts.now:
        yield from _gates(facts)
        yield from _workers(facts)


def _gates(facts: WhyFacts) -> Iterator[WhyReason]:
    """The pauses, limits and rates of its queue, its task and its group."""
    now = facts.now
    for status in facts.gates:
        gate, name = status.gate, f"The {_gate_name(status.gate)}"
        if gate.paused is not None:
            yield WhyReason(_PAUSED[gate.kind], f"{name} was paused {_since(gate.paused, now)}.")
        if gate.closed_until > now:
            left = rough_duration(gate.closed_until - now)
            yield WhyReason(
                WhyCode.CLOSED, f"{name} is closed for {left} more: a handler asked to slow down."
            )
        if status.limit is not None and status.held >= status.limit:
            yield WhyReason(
                WhyCode.LIMIT, f"{name} is at its limit: {status.held} of {status.limit} running."
            )
        if status.wait:
            left = rough_duration(status.wait)
            yield WhyReason(
                WhyCode.RATE, f"{name} is at its rate of {status.rate}: the next job may begin in {left}."
            )


_PAUSED = {
    GateKind.QUEUE: WhyCode.QUEUE_PAUSED,
    GateKind.TASK: WhyCode.TASK_PAUSED,
    GateKind.GROUP: WhyCode.GROUP_PAUSED,
}


def _workers(facts: WhyFacts) -> Iterator[WhyReason]:
    job, now = facts.job, facts.now
    if not facts.workers:
        yield WhyReason(WhyCode.NO_WORKER, "No worker is running.")
        return
    misfits = {worker.beat.worker: _misfit(job, worker, now) for worker in facts.workers}
    fitting = [worker for worker in facts.workers if misfits[worker.beat.worker] is None]
    if not fitting:
        each = "; ".join(f"{worker} {misfit}" for worker, misfit in misfits.items())
        text = f"No worker takes jobs of task {job.task} from queue {job.queue}: {each}."
        yield WhyReason(WhyCode.NO_WORKER, text)
        return
    able = [worker for worker in fitting if not worker.beat.blocked_by]
    slots = [(worker.beat.worker, *_slots(facts, worker.beat)) for worker in able]
    is_busy = all(taken >= total > 0 for _, taken, total in slots)
    if is_busy and len(able) < len(fitting):
        each = ", ".join(
            f"{worker.beat.worker} by {worker.beat.blocked_by}" for worker in fitting if worker not in able
        )
        text = f"Workers with a blocked event loop claim nothing: {each}."
        yield WhyReason(WhyCode.WORKERS_BLOCKED, text)
    if is_busy and able:
        each = ", ".join(f"{worker} {taken} of {total}" for worker, taken, total in slots)
        yield WhyReason(
            WhyCode.WORKERS_BUSY, f"All slots of the workers that could run it are taken: {each}."
        )
    if job.crashes:
        yield from _suspect(facts, fitting)


def _suspect(facts: WhyFacts, fitting: Sequence[WorkerRecord]) -> Iterator[WhyReason]:
    """A suspect that waits for its turn: the workers that could run it are running other suspects."""
    job = facts.job
    running = {held.worker for held in facts.held if held.crashes}
    if job.suspect is SuspectKind.ISOLATED:
        hosts = {worker.beat.host for worker in facts.workers if worker.beat.worker in running}
        is_blocked = hosts >= {worker.beat.host for worker in fitting}
        rule = "the next loss would fail it, so it waits until no other such job runs on the host"
    else:
        is_blocked = running >= {worker.beat.worker for worker in fitting}
        rule = "such jobs share a quarter of a worker's slots, and take turns"
    if is_blocked:
        text = f"It was running when its worker was lost, {job.crashes} of {job.max_crashes} times: {rule}."
        yield WhyReason(WhyCode.SUSPECT, text)


def _line(facts: WhyFacts) -> Iterator[WhyReason]:
    if facts.ahead is None:
        yield WhyReason(
            WhyCode.IN_LINE, f"It waits in line: {facts.in_queue:,} jobs wait in queue {facts.job.queue}."
        )
    elif facts.ahead:
        before = _number(facts.ahead, "job is", "jobs are")
        yield WhyReason(WhyCode.IN_LINE, f"{before} before it in queue {facts.job.queue}.")


CHECKS: Mapping[State, tuple[Check, ...]] = {
    State.BLOCKED: (_lapsed, _blocked),
    State.SCHEDULED: (_lapsed, _scheduled, _unhandled, _due),
    State.WAITING: (_lapsed, _unhandled, _gates, _workers, _line),
    State.CLAIMED: (_held,),
    State.RUNNING: (_held,),
    State.COMPLETED: (_finished,),
    State.FAILED: (_finished,),
    State.CANCELED: (_finished,),
}


def _unique(facts: WhyFacts) -> Iterator[WhyReason]:
    """The unique key that the job holds: no reason for waiting, but why no other job like it exists."""
    job, unique = facts.job, facts.job.unique
    if unique is not None and not (job.finished and unique.scope is UniqueScope.ALIVE):
        text = f"Its unique key {unique.key!r} is held {unique.span}: no other job gets it."
        yield WhyReason(WhyCode.UNIQUE, text)


def _misfit(job: JobRecord, worker: WorkerRecord, now: float) -> str | None:
    """Why this worker would not take the job; None if it would."""
    beat = worker.beat
    if now - worker.seen_at > SILENT_AFTER:
        return f"has been silent for {rough_duration(now - worker.seen_at)}"
    if beat.draining:
        return "is stopping and claims no more jobs"
    if worker.paused is not None:
        return f"was paused {_since(worker.paused, now)}"
    if beat.queues is not None and job.queue not in beat.queues:
        return f"only serves {_names('queue', beat.queues)}"
    if beat.tasks is not None and job.task not in beat.tasks:
        return f"only has {_names('task', beat.tasks)}"
    if not beat.lists(job.task, version := version_of(job.metadata)):
        return f"has version {beat.version(job.task)} of the task, older than version {version} of the job"
    return None


def _slots(facts: WhyFacts, beat: Beat) -> tuple[int, int]:
    """The number of taken slots and of all slots of the worker that are for the task of the job."""
    shares = {task: share for share in beat.shares for task in share.tasks}
    share = shares.get(facts.job.task)
    running = [job for job in facts.held if job.worker == beat.worker and job.state is State.RUNNING]
    taken = slots_taken(beat, [job for job in running if shares.get(job.task) is share])
    return taken, beat.concurrency if share is None else share.slots


def slots_taken(beat: Beat, jobs: Sequence[JobRecord]) -> int:
    """The number of slots that these jobs take. The jobs of a batch, which started together, share one."""
    starts: dict[float | None, list[JobRecord]] = {}
    for job in jobs:
        starts.setdefault(job.started_at, []).append(job)
    return sum(call_count(together, beat.batches) for together in starts.values())


def _gate_name(gate: GateRecord) -> str:
    return f"group {gate.group} of queue {gate.name}" if gate.group else f"{gate.kind} {gate.name}"


def _since(paused: PauseRecord, now: float) -> str:
    return f"{_ago(paused.at, now)}{f' by {paused.by}' if paused.by else ''}"


def _ago(at: float | None, now: float) -> str:
    return "at an unknown time" if at is None else f"{rough_duration(max(0.0, now - at))} ago"


def _error(error: AttemptError) -> str:
    text = f"{error.type}: {error.message}" if error.type else str(error.kind).replace("_", " ")
    return text if len(text) <= 200 else f"{text[:200]}…"


def _names(kind: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{kind}{'s' if len(names) != 1 else ''} {', '.join(names[:8]) or 'none'}{more}"


def _number(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"
