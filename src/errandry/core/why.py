"""Why a job is not running, or what else it does: facts in, reasons in words out.

Each gate is a function that looks at one thing which can keep a job from running. What more can
(limits, groups, flows) is one more gate in `GATES`, and one more fact.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from errandry.core import check
from errandry.core.batch import call_count
from errandry.core.command import Beat, WorkerInfo
from errandry.core.duration import iso, rough
from errandry.core.gate import GateKind, GateRecord, GateStatus, PauseInfo
from errandry.core.job import AttemptError, JobRecord
from errandry.core.state import Move, State
from errandry.core.tick import origin
from errandry.core.unique import UniqueScope

SILENT_AFTER = 30.0
"""Who has not beaten for so long is not counted on."""


class WhyCode(StrEnum):
    """What kind of reason it is, for programs."""

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
    SUSPECT = "suspect"
    IN_LINE = "in_line"
    ANY_MOMENT = "any_moment"
    UNIQUE = "unique"


class WhyReason(Struct, frozen=True):
    """One reason, for programs and in words."""

    code: WhyCode
    text: str


class Why(Struct, frozen=True):
    """The answer: at least one reason, the weightiest first."""

    job: str
    state: State
    reasons: tuple[WhyReason, ...]


NAMES_SHOWN = 5
"""So many children are named."""


class WhyFacts(Struct, frozen=True, kw_only=True):
    """All that is looked at: the gates the job has to pass, every worker, and the line.

    `held` are the jobs workers have. `ahead` is how many jobs of its queue are before it, None where
    `in_queue` are too many to count. `children` are the ids of those it waits for.
    """

    job: JobRecord
    now: float
    passages: tuple[GateStatus, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    held: tuple[JobRecord, ...] = ()
    ahead: int | None = 0
    in_queue: int = 0
    children: tuple[str, ...] = ()


Check = Callable[[WhyFacts], Iterator[WhyReason]]


def why(facts: WhyFacts) -> Why:
    """What keeps the job from running; if nothing does, what it is doing."""
    job = facts.job
    reasons = [because for gate in CHECKS[job.state] for because in gate(facts)]
    if not reasons:
        reasons.append(
            WhyReason(WhyCode.ANY_MOMENT, "Nothing holds it back: a worker should take it any moment.")
        )
    return Why(job.id, job.state, (*reasons, *_unique(facts)))


def _finished(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    when = _ago(job.finished_at, facts.now)
    match job.state:
        case State.COMPLETED:
            yield WhyReason(WhyCode.COMPLETED, f"It is done: completed {when}, in attempt {job.attempts}.")
        case State.CANCELED:
            yield WhyReason(WhyCode.CANCELED, f"It was canceled {when}. A rerun would start it again.")
        case _:
            last = f", last with {_error(job.errors[-1])}" if job.errors else ""
            reason = str(job.reason or "error").replace("_", " ")
            tried = f"after attempt {job.attempts} of {job.max_attempts}"
            yield WhyReason(
                WhyCode.FAILED, f"It failed {when} ({reason}) {tried}{last}. A rerun would try it again."
            )


def _held(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    left = (job.lease_until or 0.0) - facts.now
    lease = f"its lease lasts {rough(left)} more" if left > 0 else f"its lease ran out {rough(-left)} ago"
    if job.state is State.RUNNING:
        since = _ago(job.started_at, facts.now)
        tried = f"attempt {job.attempts} of {job.max_attempts}"
        yield WhyReason(
            WhyCode.RUNNING, f"It is running on {job.worker}, started {since} ({tried}); {lease}."
        )
    else:
        since = _ago(job.claimed_at, facts.now)
        yield WhyReason(
            WhyCode.CLAIMED, f"{job.worker} has claimed it {since} and has no free slot yet; {lease}."
        )
    if job.cancel_requested:
        yield WhyReason(
            WhyCode.CANCELING, "Its cancel was requested: the worker stops it as soon as the handler lets it."
        )
    if left <= 0:
        yield WhyReason(WhyCode.LEASE_EXPIRED, "The next worker that looks gives it to another one.")
    silent = [facts.now - one.seen_at for one in facts.workers if one.beat.worker == job.worker]
    if not silent or silent[0] > SILENT_AFTER:
        heard = f"has been silent for {rough(silent[0])}" if silent else "is not known any more"
        rescue = "If it is dead, the job goes to another when the lease has run out."
        yield WhyReason(WhyCode.WORKER_SILENT, f"The worker {heard}. {rescue}")


def _blocked(facts: WhyFacts) -> Iterator[WhyReason]:
    waits = f"It waits for {_number(facts.job.open_children, 'child', 'children')} to end"
    named = ", ".join(facts.children[:NAMES_SHOWN])
    more = ", …" if len(facts.children) > NAMES_SHOWN else ""
    yield WhyReason(WhyCode.BLOCKED, f"{waits}: {named}{more}" if named else f"{waits}.")


def _lapsed(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    if job.deadline is None:
        return
    if job.deadline <= facts.now:
        yield WhyReason(
            WhyCode.LAPSED, f"Its deadline passed {_ago(job.deadline, facts.now)}: it fails instead."
        )
    elif job.run_at is not None and job.deadline <= job.run_at and job.state is State.SCHEDULED:
        yield WhyReason(WhyCode.LAPSED, "Its deadline is before the time it is scheduled for: it will fail.")


def _scheduled(facts: WhyFacts) -> Iterator[WhyReason]:
    job = facts.job
    run_at = job.run_at or 0.0
    if run_at <= facts.now:
        yield WhyReason(
            WhyCode.DUE, f"It was due {_ago(run_at, facts.now)}: the next worker that looks takes it up."
        )
        return
    when = f"in {rough(run_at - facts.now)}, at {iso(int(run_at) * 1_000_000)}"
    if job.awaits is not None:
        until = "" if run_at - facts.now > check.SPAN_MAX / 2 else f", or goes on without {when}"
        yield WhyReason(WhyCode.SIGNAL, f"It waits for the signal {job.awaits!r}{until}.")
    elif job.settled is Move.RETRY and job.errors:
        tried = f"attempt {job.attempts} of {job.max_attempts} ended with {_error(job.errors[-1])}"
        yield WhyReason(WhyCode.RETRY, f"It is tried again {when}: {tried}.")
    else:
        how = {Move.SNOOZE: "its handler snoozed it", Move.RELEASE: "a worker gave it back"}
        because = f": {how[job.settled]}" if job.settled in how else _tick(job)
        yield WhyReason(WhyCode.SCHEDULED, f"It is scheduled to run {when}{because}.")


def _tick(job: JobRecord) -> str:
    """Whose next tick it is."""
    found = None if job.fence else origin(job)
    return "" if found is None else f": it is the next tick of schedule {found.schedule}"


def _due(facts: WhyFacts) -> Iterator[WhyReason]:
    """Only a worker makes a due job waiting, and paused or without slots it would not run then either."""
    if (facts.job.run_at or 0.0) <= facts.now:
        yield from _gates(facts)
        yield from _workers(facts)


def _gates(facts: WhyFacts) -> Iterator[WhyReason]:
    """What holds all jobs of its queue, its task or its group back."""
    now = facts.now
    for passage in facts.passages:
        gate, name = passage.gate, f"The {_named(passage.gate)}"
        if gate.paused is not None:
            yield WhyReason(_PAUSED[gate.kind], f"{name} was paused {_since(gate.paused, now)}.")
        if gate.closed_until > now:
            left = rough(gate.closed_until - now)
            yield WhyReason(WhyCode.CLOSED, f"{name} rests for {left} more: a handler asked to slow down.")
        if passage.limit is not None and passage.held >= passage.limit:
            yield WhyReason(
                WhyCode.LIMIT, f"{name} is at its limit: {passage.held} of {passage.limit} running."
            )
        if passage.wait:
            left = rough(passage.wait)
            yield WhyReason(
                WhyCode.RATE, f"{name} is at its rate of {passage.rate}: the next may begin in {left}."
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
    misfits = {one.beat.worker: _misfit(job, one, now) for one in facts.workers}
    fitting = [one for one in facts.workers if misfits[one.beat.worker] is None]
    if not fitting:
        each = "; ".join(f"{worker} {misfit}" for worker, misfit in misfits.items())
        whom = f"No worker takes jobs of task {job.task} from queue {job.queue}"
        yield WhyReason(WhyCode.NO_WORKER, f"{whom}: {each}.")
        return
    slots = [(one.beat.worker, *_slots(facts, one.beat)) for one in fitting]
    if all(taken >= total > 0 for _, taken, total in slots):
        each = ", ".join(f"{worker} {taken} of {total}" for worker, taken, total in slots)
        yield WhyReason(
            WhyCode.WORKERS_BUSY, f"All slots of the workers that could take it are taken: {each}."
        )
    suspecting = {held.worker for held in facts.held if held.crashes}
    if job.crashes and suspecting >= {one.beat.worker for one in fitting}:
        rule = "such jobs run one at a time on a worker, and each has one already"
        yield WhyReason(
            WhyCode.SUSPECT,
            f"It was running when its worker died, {job.crashes} of {job.max_crashes} times: {rule}.",
        )


def _line(facts: WhyFacts) -> Iterator[WhyReason]:
    if facts.ahead is None:
        yield WhyReason(
            WhyCode.IN_LINE, f"It stands in line: {facts.in_queue:,} jobs wait in queue {facts.job.queue}."
        )
    elif facts.ahead:
        before = _number(facts.ahead, "job is", "jobs are")
        yield WhyReason(WhyCode.IN_LINE, f"{before} before it in queue {facts.job.queue}.")


CHECKS: Mapping[State, tuple[Check, ...]] = {
    State.BLOCKED: (_lapsed, _blocked),
    State.SCHEDULED: (_lapsed, _scheduled, _due),
    State.WAITING: (_lapsed, _gates, _workers, _line),
    State.CLAIMED: (_held,),
    State.RUNNING: (_held,),
    State.COMPLETED: (_finished,),
    State.FAILED: (_finished,),
    State.CANCELED: (_finished,),
}


def _unique(facts: WhyFacts) -> Iterator[WhyReason]:
    """No reason not to run, but why there is no other job like it."""
    job, unique = facts.job, facts.job.unique
    if unique is not None and not (job.finished and unique.scope is UniqueScope.ALIVE):
        text = f"Its unique key {unique.key!r} is held {unique.span}: no second job gets it."
        yield WhyReason(WhyCode.UNIQUE, text)


def _misfit(job: JobRecord, worker: WorkerInfo, now: float) -> str | None:
    """Why this worker would not take the job; None if it would."""
    beat = worker.beat
    if now - worker.seen_at > SILENT_AFTER:
        return f"has been silent for {rough(now - worker.seen_at)}"
    if worker.paused is not None:
        return f"was paused {_since(worker.paused, now)}"
    if beat.queues is not None and job.queue not in beat.queues:
        return f"only serves {_names('queue', beat.queues)}"
    if beat.tasks is not None and job.task not in beat.tasks:
        return f"only has {_names('task', beat.tasks)}"
    return None


def _slots(facts: WhyFacts, beat: Beat) -> tuple[int, int]:
    """How many of the slots the job could have on this worker are taken, and how many there are."""
    apart = {task: share for share in beat.shares for task in share.tasks}
    share = apart.get(facts.job.task)
    running = [job for job in facts.held if job.worker == beat.worker and job.state is State.RUNNING]
    taken = slots_taken(beat, [job for job in running if apart.get(job.task) is share])
    return taken, beat.concurrency if share is None else share.slots


def slots_taken(beat: Beat, jobs: Sequence[JobRecord]) -> int:
    """How many slots of a worker these jobs have: those of a batch, which started together, share one."""
    starts: dict[float | None, list[JobRecord]] = {}
    for job in jobs:
        starts.setdefault(job.started_at, []).append(job)
    return sum(call_count(together, beat.batches) for together in starts.values())


def _named(gate: GateRecord) -> str:
    return f"group {gate.group} of queue {gate.name}" if gate.group else f"{gate.kind} {gate.name}"


def _since(paused: PauseInfo, now: float) -> str:
    return f"{_ago(paused.at, now)}{f' by {paused.by}' if paused.by else ''}"


def _ago(at: float | None, now: float) -> str:
    return "at an unknown time" if at is None else f"{rough(max(0.0, now - at))} ago"


def _error(error: AttemptError) -> str:
    text = f"{error.type}: {error.message}" if error.type else str(error.kind).replace("_", " ")
    return text if len(text) <= 200 else f"{text[:200]}…"


def _names(kind: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{kind}{'s' if len(names) != 1 else ''} {', '.join(names[:8]) or 'none'}{more}"


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
