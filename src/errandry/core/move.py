"""The effect of each move: pure functions from a job to the job after the move.

Each function checks the move against `TABLE`, so that all stores have the same lifecycle. Before a
fenced move, call `held_job()`. A move from a state that `TABLE` does not list raises `InvalidMove`. A job
that waits again gets its new place from the store.
"""

from typing import Any

from msgspec.structs import replace

from errandry.core import check, retry
from errandry.core.answer import LossCause
from errandry.core.command import (
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    Ref,
    ReleaseOutcome,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.flow import AwaitOutcome
from errandry.core.job import (
    ERRORS_MAX,
    LEVEL_MAX,
    LOG_TEXT_MAX,
    LOGS_MAX,
    RELEASES_MAX,
    AttemptError,
    Failure,
    JobRecord,
    Keep,
    LogLine,
    NewJob,
    Progress,
)
from errandry.core.state import (
    CANCELED,
    CLAIMED,
    COMPLETED,
    FAILED,
    HELD_STATES,
    RUNNING,
    SCHEDULED,
    TABLE,
    WAITING,
    Move,
    Reason,
    State,
)
from errandry.core.step import StepState, WaitOutcome
from errandry.core.unique import KeyHolder, UniqueKey, UniqueScope
from errandry.core.worker_loss import WorkerLoss
from errandry.errors import InvalidMove

_KEEP = Keep()
_WORKER_ENDED = Failure(Reason.WORKER_LOST, "WorkerLost", "the worker ended although nothing had stopped it")


def created(new: NewJob, seq: int, now: float, children: int = 0, parents: int = 0) -> JobRecord:
    """The job as inserted. If it is ready, `seq` determines its place."""
    run_at = _run_at(new, now)
    state = _ready_state(children, run_at, now)
    return JobRecord(
        seq,
        new.id,
        new.task,
        new.queue,
        new.group,
        state,
        new.lifo,
        None,
        None,
        new.payload,
        new.priority,
        place(new.lifo, seq) if state is WAITING else None,
        run_at,
        0,
        new.max_attempts,
        0,
        0,
        new.max_crashes,
        children,
        children,
        parents,
        new.timeout,
        new.deadline,
        0,
        None,
        None,
        False,
        None,
        new.metadata,
        now,
        now,
        None,
        None,
        None,
        None,
        None,
        None,
        new.backoff,
        new.keep,
        None,
        new.tags,
        (),
        (),
        new.unique,
        None,
    )


def slot_of(job: JobRecord | NewJob, unique: UniqueKey, now: float) -> str:
    """The slot in which the store keeps the unique key of a job that is inserted or rerun."""
    if unique.scope is UniqueScope.ALIVE and not unique.per_queue:
        return unique.key
    return unique.slot(job.queue, _due_at(job, now) if unique.is_aligned else now)


def holder_of(job: JobRecord, unique: UniqueKey, now: float) -> KeyHolder:
    """The holder of the unique key, this job, and until when it holds the key."""
    if unique.scope is UniqueScope.ALIVE:
        return KeyHolder(job.id, None)
    return KeyHolder(job.id, unique.until(_due_at(job, now) if unique.is_aligned else now, now))


def place(lifo: bool, number: int) -> int:
    """The place of the job with this number: behind all others of its priority; for lifo, before them."""
    return -number if lifo else number


def held_job(job: JobRecord | None, ref: Ref, move: Move, now: float) -> JobRecord | LossCause:
    """The job, if the claim `ref` allows this fenced move; otherwise the cause why it does not."""
    if job is None or job.state not in HELD_STATES:
        return LossCause.NOT_HELD
    if job.fence != ref.fence:  # guard: fence_match
        return LossCause.OTHER_FENCE
    if job.lease_until is None or job.lease_until <= now:  # guard: lease_check, lease_boundary
        return LossCause.EXPIRED
    return job if job.state in TABLE[move].leads else LossCause.NOT_HELD


def claimed(job: JobRecord, worker: str, lease: float, start: bool, now: float) -> JobRecord:
    """Claimed by `worker` under a new fence; with `start`, running."""
    return replace(
        job,
        state=_allowed_state(job, Move.CLAIM, RUNNING if start else CLAIMED),
        updated_at=now,
        place=None,
        attempts=job.attempts + 1,
        # guard: fence_rises
        fence=max(job.fence + 1, int(now * 1_000_000)),
        worker=worker,
        lease_until=now + lease,
        claimed_at=now,
        started_at=now if start else None,
        progress=None,
        settled=None,
    )


def started(job: JobRecord, now: float) -> JobRecord:
    return _moved(job, Move.START, now, started_at=now)


def renewed(job: JobRecord, lease: float, now: float) -> JobRecord:
    return _moved(job, Move.RENEW, now, lease_until=now + lease)


def noted(job: JobRecord, progress: Progress | None, logs: tuple[LogLine, ...], now: float) -> JobRecord:
    """With the progress replaced and the log lines appended. The newest lines stay."""
    lines = tuple(
        replace(
            line,
            text=check.storable_text(line.text, LOG_TEXT_MAX),
            level=check.storable_text(line.level, LEVEL_MAX),
        )
        for line in logs
    )
    if progress is not None:
        progress = replace(progress, text=check.storable_text(progress.text, LOG_TEXT_MAX))
    return _moved(job, Move.NOTE, now, progress=progress or job.progress, logs=(job.logs + lines)[-LOGS_MAX:])


def stepped(job: JobRecord, steps: StepState, now: float) -> JobRecord:
    return _moved(job, Move.STEP, now, steps=steps)


def settled(job: JobRecord, outcome: Outcome, now: float) -> JobRecord:
    """The job after its attempt ended. A cancel request takes precedence over every outcome."""
    if job.cancel_requested:  # guard: cancel_wins
        return _given_up(job, outcome, now)
    match outcome:
        case CompleteOutcome():
            return _completed(job, outcome, now)
        case FailOutcome(failure=failure):
            return _failed(job, outcome.move, now, failure)
        case RetryOutcome():
            return _retried(job, outcome, now)
        case SnoozeOutcome() | WaitOutcome():
            return _snoozed(job, outcome, now)
        case ReleaseOutcome():
            return _released_by_worker(job, outcome, now)
        case AwaitOutcome():
            return _blocked(job, outcome.move, now)
        case GiveUpOutcome():
            return _given_up(job, outcome, now)


def unblocked(job: JobRecord, now: float) -> JobRecord:
    """Waiting or scheduled, because all children have ended."""
    return _moved(job, Move.UNBLOCK, now, to=_ready_state(job.open_children, job.run_at, now))


def child_failed(job: JobRecord, child: str, now: float) -> JobRecord:
    """Failed because a child failed."""
    failure = Failure(Reason.CHILD_FAILED, "ChildFailed", f"job {child}, which it waited for, has failed")
    errors = _with_error(job, failure, now)
    return _finished(job, Move.CHILD_FAILED, now, FAILED, reason=failure.kind, errors=errors)


def retry_delay(job: JobRecord, outcome: RetryOutcome) -> float:
    """Seconds until the retry."""
    if outcome.delay is not None:
        return outcome.delay
    return (job.backoff or retry.DEFAULT_BACKOFF).delay(job.attempts, job.id)


def expired(job: JobRecord, now: float, loss: WorkerLoss) -> JobRecord:
    """Waiting again because its worker has lost it; failed at a limit, or canceled if that was requested.

    If this crash reaches `max_crashes`, but the worker may still be alive, the job is scheduled for the time
    at which that is decided.
    """
    if job.state is CLAIMED:
        return _released(job, Move.EXPIRE, now, 0.0, None)
    final_at = None if loss.lives else loss.final_at
    changes: dict[str, Any] = {
        "errors": _with_error(job, loss.failure, now),
        "crashes": job.crashes if loss.lives else job.crashes + 1,
    }
    if job.cancel_requested:  # guard: cancel_wins_at_expiry
        return _finished(job, Move.EXPIRE, now, CANCELED, reason=Reason.CANCELED, **changes)
    is_capped = changes["crashes"] >= job.max_crashes and not loss.lives
    # guard: attempts_of_expiry, crash_cap
    if job.attempts >= job.max_attempts or (is_capped and final_at is None):
        return _finished(job, Move.EXPIRE, now, FAILED, reason=Reason.WORKER_LOST, **changes)
    delay = final_at - now if is_capped and final_at is not None else 0.0
    return _requeued(
        job, Move.EXPIRE, now, delay, lost_by=None if final_at is None else job.worker, **changes
    )


def awaits_final_crash(job: JobRecord) -> bool:
    """Whether it is scheduled only because the crash that fails it may still be taken back."""
    is_lost = job.lost_by is not None and job.settled is None
    return job.state is SCHEDULED and is_lost and job.crashes >= job.max_crashes


def lost(job: JobRecord, now: float) -> JobRecord:
    """Failed: its crashes are at their cap, and the last one is final."""
    return _finished(job, Move.LOSE, now, FAILED, reason=Reason.WORKER_LOST)


def crash_confirmed(job: JobRecord) -> JobRecord:
    """With its last crash final: the worker is known to have died."""
    return replace(job, lost_by=None)


def crash_taken_back(job: JobRecord, now: float) -> JobRecord:
    """With one crash less, as the worker that lost it lives. Waiting, if it only waited for that worker."""
    job_before = replace(job, crashes=max(0, job.crashes - 1), lost_by=None, updated_at=now)
    return promoted(job_before, now) if awaits_final_crash(job) else job_before


def promoted(job: JobRecord, now: float) -> JobRecord:
    """The waiting job. A promotion before `run_at` also sets `run_at`; otherwise an edit would undo it."""
    early = job.run_at is not None and job.run_at > now
    return _moved(job, Move.PROMOTE, now, run_at=now if early else job.run_at)


def is_ready(new: NewJob, now: float) -> bool:
    """Whether a job without children is waiting as soon as it is inserted."""
    run_at = now + new.delay if new.delay is not None else new.run_at
    return _ready_state(0, run_at, now) is WAITING


def dropped(job: JobRecord, now: float) -> JobRecord:
    """Failed to make room in a full queue."""
    return _finished(job, Move.DROP, now, FAILED, reason=Reason.DROPPED)


def lapsed(job: JobRecord, now: float) -> JobRecord:
    return _finished(job, Move.LAPSE, now, FAILED, reason=Reason.DEADLINE)


def canceled(job: JobRecord, now: float, force: bool = False, reason: Reason = Reason.CANCELED) -> JobRecord:
    """Canceled; a running job gets a cancel request instead. `force` also cancels finished jobs."""
    if force and job.state in TABLE[Move.CANCEL_FORCED].leads:
        return _finished(job, Move.CANCEL_FORCED, now, CANCELED, reason=Reason.CANCELED)
    if job.state is RUNNING:
        return _moved(job, Move.CANCEL, now, cancel_requested=True)
    return _finished(job, Move.CANCEL, now, CANCELED, reason=reason)


def rerun(job: JobRecord, run_at: float | None, reset_attempts: bool, now: float) -> JobRecord:
    """Ready again with at least one attempt. Errors and steps stay; a deadline that has passed is removed."""
    attempts = 0 if reset_attempts else job.attempts
    lapsed = job.deadline is not None and job.deadline <= now
    return _moved(
        job,
        Move.RERUN,
        now,
        to=_ready_state(job.open_children, run_at, now),
        run_at=run_at,
        attempts=attempts,
        max_attempts=max(job.max_attempts, attempts + 1),
        crashes=0 if reset_attempts else job.crashes,
        releases=0,
        lost_by=None,
        worker=None,
        reason=None,
        result=None,
        progress=None,
        cancel_requested=False,
        claimed_at=None,
        started_at=None,
        finished_at=None,
        expires_at=None,
        unhandled_since=None,
        deadline=None if lapsed else job.deadline,
    )


def edited(job: JobRecord, edit: EditJobs, now: float) -> JobRecord:
    """The job with the given fields replaced, in the state that follows from them."""
    run_at = job.run_at if edit.run_at is None else edit.run_at
    return _moved(
        job,
        Move.EDIT,
        now,
        to=_ready_state(job.open_children, run_at, now),
        run_at=run_at,
        payload=job.payload if edit.payload is None else edit.payload,
        metadata=job.metadata if edit.metadata is None else edit.metadata,
        priority=job.priority if edit.priority is None else edit.priority,
        max_attempts=job.max_attempts if edit.max_attempts is None else edit.max_attempts,
        tags=job.tags if edit.tags is None else edit.tags,
        queue=job.queue if edit.queue is None else edit.queue,
        unhandled_since=None,
    )


def replaced(job: JobRecord, new: NewJob, now: float) -> JobRecord:
    """With the arguments and the time of a new job that has the same unique key."""
    run_at = _run_at(new, now)
    ready = _ready_state(job.open_children, run_at, now)
    changes = {"run_at": run_at, "payload": new.payload, "metadata": new.metadata}
    return _moved(job, Move.EDIT, now, to=ready, unhandled_since=None, **changes)


def postponed(job: JobRecord, run_at: float, now: float) -> JobRecord:
    return _moved(job, Move.POSTPONE, now, run_at=run_at)


def resolved(job: JobRecord, state: State, result: str | None, message: str, now: float) -> JobRecord:
    """Settled by an operator."""
    if state is COMPLETED:
        return _finished(job, Move.RESOLVE, now, state, result=result)
    failure = Failure(Reason.UNRECOVERABLE, "Resolved", message or "resolved as failed by an operator")
    return _finished(
        job, Move.RESOLVE, now, state, reason=failure.kind, errors=_with_error(job, failure, now)
    )


def removal(job: JobRecord, force: bool) -> Move:
    """The move that removes `job`. Raises InvalidMove if the job is held and `force` is not set."""
    move = Move.REMOVE_FORCED if force else Move.REMOVE
    _target_state(job, move)
    return move


def _run_at(new: NewJob, now: float) -> float | None:
    return now + new.delay if new.delay is not None else new.run_at


def _due_at(job: JobRecord | NewJob, now: float) -> float:
    run_at = _run_at(job, now) if isinstance(job, NewJob) else job.run_at
    return now if run_at is None else max(now, run_at)


def _ready_state(open_children: int, run_at: float | None, now: float) -> State:
    if open_children:
        return State.BLOCKED
    return SCHEDULED if run_at is not None and run_at > now else WAITING


def _target_state(job: JobRecord, move: Move) -> State | None:
    rule = TABLE[move]
    if job.state not in rule.leads:
        raise InvalidMove(job.id, move.removesuffix("_forced"), job.state, rule.sources)
    return rule.leads[job.state]


def _allowed_state(job: JobRecord, move: Move, to: State) -> State:
    """`to`, if the table allows the move from the job's state to lead there."""
    rule = TABLE[move]
    if job.state not in rule.leads or (to is not rule.leads[job.state] and to not in rule.otherwise):
        raise InvalidMove(job.id, move.removesuffix("_forced"), job.state, rule.sources)
    return to


def _moved(job: JobRecord, move: Move, now: float, to: State | None = None, **changes: Any) -> JobRecord:
    """`job` after `move`: in the plain target state of the table, or in `to`, which the table must allow."""
    state = _target_state(job, move) if to is None else _allowed_state(job, move, to)
    new_place = job.place if state is WAITING else None
    return replace(job, state=state, updated_at=now, place=new_place, **changes)


def _finished(job: JobRecord, move: Move, now: float, to: State, **changes: Any) -> JobRecord:
    """Ended, without a lease, and with the time at which its record expires."""
    return replace(
        job,
        state=_allowed_state(job, move, to),
        updated_at=now,
        place=None,
        lease_until=None,
        finished_at=now,
        expires_at=now + (job.keep or _KEEP).span(to),
        lost_by=None,
        unhandled_since=None,
        **changes,
    )


def _completed(job: JobRecord, outcome: CompleteOutcome, now: float) -> JobRecord:
    """Like `_finished`, but in half the time; this is the most frequent end."""
    return replace(
        job,
        state=_allowed_state(job, Move.COMPLETE, COMPLETED),
        updated_at=now,
        place=None,
        lease_until=None,
        finished_at=now,
        expires_at=now + (job.keep or _KEEP).completed,
        lost_by=None,
        unhandled_since=None,
        result=outcome.result,
        settled=Move.COMPLETE,
    )


def _requeued(
    job: JobRecord, move: Move, now: float, delay: float, to: State | None = None, **changes: Any
) -> JobRecord:
    """No longer held: waiting again, or scheduled after a delay.

    Its handler may have begun, unless `changes` say since when workers give the job back.
    """
    to = to or (SCHEDULED if delay > 0 else WAITING)
    changes = {"unhandled_since": None, **changes}
    return _moved(job, move, now, to=to, run_at=now + delay, worker=None, lease_until=None, **changes)


def _released(job: JobRecord, move: Move, now: float, delay: float, settled_by: Move | None) -> JobRecord:
    """Released with its attempt given back; failed at `RELEASES_MAX` releases."""
    releases = job.releases + 1
    if releases >= RELEASES_MAX:  # guard: release_cap
        failure = Failure(Reason.WORKER_LOST, "Released", f"released {releases:,} times without finishing")
        return _finished(
            job,
            move,
            now,
            FAILED,
            reason=failure.kind,
            errors=_with_error(job, failure, now),
            releases=releases,
            settled=settled_by,
        )
    return _requeued(
        job,
        move,
        now,
        delay,
        attempts=_attempts_given_back(job),
        releases=releases,
        unhandled_since=None if job.state is RUNNING else job.unhandled_since,  # guard: handler_began
        settled=settled_by,
    )


def _given_back(job: JobRecord, move: Move, now: float, delay: float, settled_by: Move) -> JobRecord:
    """Released by a worker that cannot run it, with its attempt given back.

    These releases are not counted: during a long deploy there may be more of them than `RELEASES_MAX`.
    """
    return _requeued(
        job,
        move,
        now,
        delay,
        attempts=_attempts_given_back(job),
        unhandled_since=now if job.unhandled_since is None else job.unhandled_since,  # guard: unhandled_since
        settled=settled_by,
    )


def _released_by_worker(job: JobRecord, outcome: ReleaseOutcome, now: float) -> JobRecord:
    if outcome.crashed and job.state is RUNNING:
        return _crashed(job, outcome.move, now)
    release = _given_back if outcome.unhandled else _released
    return release(job, outcome.move, now, outcome.delay, outcome.move)


def _crashed(job: JobRecord, move: Move, now: float) -> JobRecord:
    """Released by a worker that ends unasked: the attempt is spent, as if the worker had been killed."""
    crashes, errors = job.crashes + 1, _with_error(job, _WORKER_ENDED, now)
    if job.attempts >= job.max_attempts or crashes >= job.max_crashes:  # guard: cap_of_crashed_release
        reason = Reason.WORKER_LOST
        return _finished(job, move, now, FAILED, reason=reason, errors=errors, crashes=crashes, settled=move)
    return _requeued(job, move, now, 0.0, errors=errors, crashes=crashes, settled=move)


def _failed(job: JobRecord, move: Move, now: float, failure: Failure) -> JobRecord:
    errors = _with_error(job, failure, now)
    return _finished(job, move, now, FAILED, reason=failure.kind, errors=errors, settled=move)


def _retried(job: JobRecord, outcome: RetryOutcome, now: float) -> JobRecord:
    if job.attempts >= job.max_attempts:  # guard: attempts_of_retry
        return _failed(job, outcome.move, now, outcome.failure)
    errors = _with_error(job, outcome.failure, now)
    return _requeued(job, outcome.move, now, retry_delay(job, outcome), errors=errors, settled=outcome.move)


def _blocked(job: JobRecord, move: Move, now: float) -> JobRecord:
    """Blocked; waiting again if no child is open."""
    to = State.BLOCKED if job.open_children else WAITING
    return _requeued(job, move, now, 0.0, to, attempts=_attempts_given_back(job), settled=move)


def _snoozed(job: JobRecord, outcome: SnoozeOutcome | WaitOutcome, now: float) -> JobRecord:
    """Scheduled for the end of the snooze or wait; waiting if its signal has already come."""
    delay = outcome.delay if isinstance(outcome, SnoozeOutcome) else outcome.timeout
    to = SCHEDULED if delay or isinstance(outcome, SnoozeOutcome) else WAITING
    return _requeued(
        job, outcome.move, now, delay, to, attempts=_attempts_given_back(job), settled=outcome.move
    )


def _given_up(job: JobRecord, outcome: Outcome, now: float) -> JobRecord:
    """Canceled. The result or error of the handler stays in the record."""
    failure: Failure | None = getattr(outcome, "failure", None)
    result = job.result
    if isinstance(outcome, CompleteOutcome):
        result = outcome.result
        failure = Failure(Reason.CANCELED, "Canceled", "the attempt completed although it was to be canceled")
    errors = job.errors if failure is None else _with_error(job, failure, now)
    changes = {"reason": Reason.CANCELED, "result": result, "errors": errors, "settled": outcome.move}
    return _finished(job, outcome.move, now, CANCELED, **changes)


def _attempts_given_back(job: JobRecord) -> int:
    return max(0, job.attempts - 1)


def _with_error(job: JobRecord, failure: Failure, now: float) -> tuple[AttemptError, ...]:
    error = AttemptError(
        job.attempts,
        job.worker,
        job.started_at,
        now,
        failure.kind,
        check.storable_text(failure.type, 200),
        check.storable_text(failure.message, 4_000),
        check.storable_text(failure.traceback),
    )
    return (*job.errors, error)[-ERRORS_MAX:]
