"""Durable steps: written under the fence of the attempt that made them; signals by anybody.

What a job waits for and how long stands beside its steps. A signal that comes in time is written and puts
the job in line in one step; one that comes too late is refused: what a handler was told stays so.
"""

from typing import Any

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.answer import ALREADY, WRITTEN, Ack, LossCause, Lost
from errandry.core.command import PutStep, SnoozeOutcome
from errandry.core.job import JobRecord
from errandry.core.state import TERMINAL, Move, State
from errandry.core.step import STEPS_MAX, SendSignal, Step, StepKind, StepState, WaitOutcome
from errandry.errors import InvalidMove, InvalidValue, UnknownJob
from errandry.store.execute.unit_of_work import UnitOfWork

OPEN = tuple(state for state in State if state not in TERMINAL)


def put(ledger: UnitOfWork, command: PutStep) -> Ack | Lost:
    job = move.held(ledger.get(command.ref.job), command.ref, Move.STEP, ledger.now)  # guard: step_fence
    if isinstance(job, LossCause):
        return Lost(job)
    check.sized("step", command.result, ledger.bounds.step)  # guard: step_size
    if _found(ledger, job, StepKind.STEP, command.name) is not None:  # guard: step_once
        return ALREADY
    steps = _added(ledger, job, StepKind.STEP, command.name, result=command.result, at=ledger.now)
    ledger.move(Move.STEP, job, move.stepped(job, steps, ledger.now))
    return WRITTEN


def slept(ledger: UnitOfWork, job: JobRecord, outcome: SnoozeOutcome) -> JobRecord:
    """`job`, which runs, with the sleep written down that it is about to begin."""
    if outcome.step is None or _found(ledger, job, StepKind.SLEEP, outcome.step) is not None:
        return job
    now = ledger.now
    return replace(
        job, steps=_added(ledger, job, StepKind.SLEEP, outcome.step, at=now, until=now + outcome.delay)
    )


def awaiting(ledger: UnitOfWork, job: JobRecord, outcome: WaitOutcome) -> tuple[JobRecord, WaitOutcome]:
    """`job`, which runs, with the signal written down that it is about to wait for; and how long it does."""
    found, now = _found(ledger, job, StepKind.SIGNAL, outcome.name), ledger.now
    if found is None:
        until = now + outcome.timeout
        steps = _added(ledger, job, StepKind.SIGNAL, outcome.name, until=until)
        return replace(job, steps=replace(steps, signal=outcome.name)), outcome
    is_there = found.at is not None
    left = 0.0 if is_there else max(0.0, (found.until or now) - now)
    return replace(job, steps=StepState(_count(job), outcome.name)), WaitOutcome(outcome.name, left)


def signal(ledger: UnitOfWork, command: SendSignal) -> Ack:
    job = ledger.get(command.job)
    if job is None:
        raise UnknownJob(command.job)
    if job.finished:
        raise InvalidMove(job.id, "signal", job.state, OPEN)
    check.sized("payload", command.payload, ledger.bounds.step)
    found, now = _found(ledger, job, StepKind.SIGNAL, command.name), ledger.now
    if found is None:
        steps = _added(ledger, job, StepKind.SIGNAL, command.name, result=command.payload, at=now)
        ledger.put(job, replace(job, steps=steps, updated_at=now))
        return WRITTEN
    if found.at is not None:  # guard: signal_once
        return ALREADY
    if found.until is not None and found.until <= max(now, job.claimed_at or 0.0):  # guard: signal_late
        raise InvalidValue("signal", command.name, f"job {job.id} waits for it no longer: it came too late")
    ledger.tables.put_step(replace(found, result=command.payload, at=now))
    if job.awaits == command.name:  # guard: signal_wakes
        ledger.move(Move.PROMOTE, job, move.promoted(job, now))
    return WRITTEN


def _found(ledger: UnitOfWork, job: JobRecord, kind: StepKind, name: str) -> Step | None:
    return None if job.steps is None else ledger.tables.step(job.id, kind, name)


def _added(ledger: UnitOfWork, job: JobRecord, kind: StepKind, name: str, **fields: Any) -> StepState:
    """Write down a step that was not there; what the record of the job then says."""
    count = _count(job)
    if count >= STEPS_MAX:  # guard: steps_max
        why = f"job {job.id} has {count:,} steps, sleeps and signals, and no job has more: spawn others"
        raise InvalidValue(kind, name, why)
    ledger.tables.put_step(Step(job.id, count, kind, name, **fields))
    return StepState(count + 1, None if job.steps is None else job.steps.signal)


def _count(job: JobRecord) -> int:
    return 0 if job.steps is None else job.steps.count
