"""Durable steps, sleeps and signals of jobs.

A step is written under the fence of the attempt that made it. A signal may come from any client. If it comes
before the timeout of the wait, one pass writes it and promotes the job that waits for it. A later signal is
refused: the handler may already have got TimeoutError for it.
"""

from typing import Any

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.answer import ALREADY, WRITTEN, Ack, LossCause, Lost
from errandry.core.command import PutStep, SnoozeOutcome
from errandry.core.job import JobRecord
from errandry.core.state import TERMINAL, Move, State
from errandry.core.step import STEPS_MAX, SendSignal, StepKind, StepRecord, StepState, WaitOutcome
from errandry.errors import InvalidMove, InvalidValue, UnknownJob
from errandry.store.execute.unit_of_work import UnitOfWork

OPEN = tuple(state for state in State if state not in TERMINAL)


def put(work: UnitOfWork, command: PutStep) -> Ack | Lost:
    job = move.held_job(work.get(command.ref.job), command.ref, Move.STEP, work.now)  # guard: step_fence
    if isinstance(job, LossCause):
        return Lost(job)
    check.size("step", command.result, work.limits.step)  # guard: step_size
    if _find_step(work, job, StepKind.STEP, command.name) is not None:  # guard: step_once
        return ALREADY
    steps = _add_step(work, job, StepKind.STEP, command.name, result=command.result, at=work.now)
    work.move(Move.STEP, job, move.stepped(job, steps, work.now))
    return WRITTEN


def record_sleep(work: UnitOfWork, job: JobRecord, outcome: SnoozeOutcome) -> JobRecord:
    """Save the sleep that a running job is about to begin; return the job."""
    if outcome.step is None or _find_step(work, job, StepKind.SLEEP, outcome.step) is not None:
        return job
    now = work.now
    return replace(
        job, steps=_add_step(work, job, StepKind.SLEEP, outcome.step, at=now, until=now + outcome.delay)
    )


def record_wait(work: UnitOfWork, job: JobRecord, outcome: WaitOutcome) -> tuple[JobRecord, WaitOutcome]:
    """Save the wait for a signal that a running job begins; return job and outcome with the time left."""
    saved, now = _find_step(work, job, StepKind.SIGNAL, outcome.name), work.now
    if saved is None:
        until = now + outcome.timeout
        steps = _add_step(work, job, StepKind.SIGNAL, outcome.name, until=until)
        return replace(job, steps=replace(steps, signal=outcome.name)), outcome
    has_come = saved.at is not None
    left = 0.0 if has_come else max(0.0, (saved.until or now) - now)
    return replace(job, steps=StepState(_step_count(job), outcome.name)), WaitOutcome(outcome.name, left)


def signal(work: UnitOfWork, command: SendSignal) -> Ack:
    job = work.get(command.job)
    if job is None:
        raise UnknownJob(command.job)
    if job.finished:
        raise InvalidMove(job.id, "signal", job.state, OPEN)
    check.size("payload", command.payload, work.limits.step)
    saved, now = _find_step(work, job, StepKind.SIGNAL, command.name), work.now
    if saved is None:
        steps = _add_step(work, job, StepKind.SIGNAL, command.name, result=command.payload, at=now)
        work.update(job, replace(job, steps=steps, updated_at=now))
        return WRITTEN
    if saved.at is not None:  # guard: signal_once
        return ALREADY
    if saved.until is not None and saved.until <= max(now, job.claimed_at or 0.0):  # guard: signal_late
        why = f"the wait of job {job.id} for this signal has timed out"
        raise InvalidValue("signal", command.name, why)
    work.tables.put_step(replace(saved, result=command.payload, at=now))
    if job.awaited_signal == command.name:  # guard: signal_wakes
        work.move(Move.PROMOTE, job, move.promoted(job, now))
    return WRITTEN


def _find_step(work: UnitOfWork, job: JobRecord, kind: StepKind, name: str) -> StepRecord | None:
    return None if job.steps is None else work.tables.step(job.id, kind, name)


def _add_step(work: UnitOfWork, job: JobRecord, kind: StepKind, name: str, **fields: Any) -> StepState:
    """Insert a step; return the job's new step state."""
    count = _step_count(job)
    if count >= STEPS_MAX:  # guard: steps_max
        why = f"job {job.id} has {count:,} steps, sleeps and signals, the maximum: move work into other jobs"
        raise InvalidValue(kind, name, why)
    work.tables.put_step(StepRecord(job.id, count, kind, name, **fields))
    return StepState(count + 1, None if job.steps is None else job.steps.signal)


def _step_count(job: JobRecord) -> int:
    return 0 if job.steps is None else job.steps.count
