"""Apply the commands of a pass to the tables of a store.

Each handler finds the jobs that a command names, moves them by the functions of `core.move`, and returns the
answer. It checks everything before it changes anything, so a refused command leaves no trace, and the other
commands of the pass still run.
"""

from collections.abc import Callable, Sequence
from typing import Any

from errandry.core import check, move
from errandry.core.answer import ALREADY, CANCEL, HELD, WRITTEN, Ack, Answer, LossCause, Lost, Renewed
from errandry.core.command import (
    Beat,
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    EditJobs,
    Insert,
    Note,
    Outcome,
    PostponeJobs,
    PromoteJobs,
    PutStep,
    Ref,
    RemoveJobs,
    Renew,
    ReportTrouble,
    RerunJobs,
    ResolveJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
)
from errandry.core.event import EventKind, trouble_text
from errandry.core.flow import AwaitOutcome
from errandry.core.gate import DeclareRule, Pause, PutRule, ResetRule, Resume
from errandry.core.job import JobRecord, LogLine
from errandry.core.schedule import (
    Backfill,
    DeclareSchedule,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResetSchedule,
    ResumeSchedule,
    RunSchedule,
)
from errandry.core.state import HELD_STATES, Move, State
from errandry.core.step import SendSignal, WaitOutcome
from errandry.errors import ErrandryError
from errandry.store.contract import StoreLimits
from errandry.store.execute import claim, flow, gate, insert, operator, schedule, step, upkeep
from errandry.store.execute.repeat import Repeats, nonces_of
from errandry.store.execute.unit_of_work import UnitOfWork
from errandry.store.tables.protocol import Tables

OnUnexpected = Callable[[Command, Exception], Answer]
"""Returns the answer to a command that has raised an unexpected error."""


def apply(
    commands: Sequence[Command],
    tables: Tables,
    now: float,
    limits: StoreLimits,
    on_unexpected: OnUnexpected | None = None,
) -> list[Answer]:
    """Apply the commands in order; return for each its answer, or an error as a value.

    An unexpected error is raised, so that the store rolls the pass back and applies each command alone. A
    store that cannot roll back passes `on_unexpected`: the other commands of the pass are then applied.
    """
    work = UnitOfWork(tables, now, limits, commands)
    repeats = Repeats(tables, nonces) if (nonces := nonces_of(commands)) else None
    insert.load(work, commands)
    answers: list[Answer] = []
    for command in commands:
        if work.flow_ends and type(command) not in _FENCED:
            flow.propagate_ends(work)
        try:
            answer = None if repeats is None else repeats.answer(command)
            if answer is None:
                answer = _HANDLERS[type(command)](work, command)
                if repeats is not None:
                    repeats.record(command, answer)
            answers.append(answer)
        except ErrandryError as error:
            answers.append(error)
        except Exception as error:
            if on_unexpected is None:
                raise
            answers.append(on_unexpected(command, error))
    flow.propagate_ends(work)
    if repeats is not None:
        repeats.save(now)
    work.close()
    return answers


def start(work: UnitOfWork, command: Start) -> Ack | Lost:
    ref, job = command.ref, work.get(command.ref.job)
    held = move.held_job(job, ref, Move.START, work.now)
    if not isinstance(held, LossCause):
        work.move(Move.START, held, move.started(held, work.now))
        return WRITTEN
    if job is not None and job.fence == ref.fence:
        if job.state is State.CANCELED:
            return CANCEL
        if not isinstance(move.held_job(job, ref, Move.COMPLETE, work.now), LossCause):
            return ALREADY
    return Lost(held)


def renew(work: UnitOfWork, command: Renew) -> Renewed:
    return Renewed(tuple(_renew_job(work, ref, command.lease) for ref in command.refs))


def note(work: UnitOfWork, command: Note) -> Ack | Lost:
    job = move.held_job(work.get(command.ref.job), command.ref, Move.NOTE, work.now)
    if isinstance(job, LossCause):
        return Lost(job)
    after = move.noted(job, command.progress, command.logs, work.now)
    if _are_written(job, after.logs[-len(command.logs) :] if command.logs else ()):
        return WRITTEN
    work.move(Move.NOTE, job, after)
    if command.progress is not None:
        work.emit(EventKind.PROGRESS, job.queue, job.task, job.id, f"{command.progress.share:g}")
    for line in command.logs:
        work.emit(EventKind.LOG, job.queue, job.task, job.id, check.storable_text(line.text, 200))
    return WRITTEN


def _are_written(job: JobRecord, lines: Sequence[LogLine]) -> bool:
    """Return True if the job's log ends with these lines. Each line has its time, so this is a repeat."""
    return bool(lines) and job.logs[-len(lines) :] == lines and all(line.at for line in lines)


def settle(work: UnitOfWork, command: Settle) -> Ack | Lost:
    ref, outcome = command.ref, command.outcome
    job = work.get(ref.job)
    held = move.held_job(job, ref, outcome.move, work.now)
    if not isinstance(held, JobRecord):
        return ALREADY if _is_repeat(job, ref, outcome.move) else Lost(held)  # guard: settle_repeat
    if type(outcome) is CompleteOutcome:
        if outcome.result is not None:
            check.size("result", outcome.result, work.limits.result)
    elif isinstance(outcome, AwaitOutcome | WaitOutcome | SnoozeOutcome) and not held.cancel_requested:
        held, outcome = _record_wait(work, held, outcome)
    work.move(outcome.move, held, move.settled(held, outcome, work.now))
    if type(outcome) is RetryOutcome and outcome.pause_group:  # guard: slow_down
        gate.close_gate_of(work, held, move.retry_delay(held, outcome))
    return WRITTEN


def _record_wait(
    work: UnitOfWork, job: JobRecord, outcome: AwaitOutcome | WaitOutcome | SnoozeOutcome
) -> tuple[JobRecord, Outcome]:
    """Save what a running job is about to wait for; return the job and the outcome to settle it with."""
    match outcome:
        case AwaitOutcome():
            return insert.insert_awaited_children(work, job, outcome), outcome
        case WaitOutcome():
            return step.record_wait(work, job, outcome)
        case _:
            return step.record_sleep(work, job, outcome), outcome


def beat(work: UnitOfWork, command: Beat) -> Ack:
    if not command.gone:
        upkeep.take_crashes_back(work, command.worker)
    work.tables.save_beat(command, work.now)
    if command.gone:
        gate.forget_worker(work, command.worker)
    return WRITTEN


def report_trouble(work: UnitOfWork, command: ReportTrouble) -> Ack:
    for text in command.texts:
        work.emit(EventKind.ERROR, text=trouble_text(command.worker, text))
    return WRITTEN


def _is_repeat(job: JobRecord | None, ref: Ref, outcome: Move) -> bool:
    """Return True if this outcome is written already. A job canceled before it started counts as given up."""
    if job is None or job.fence != ref.fence or job.state in HELD_STATES:
        return False
    return job.settled is outcome or (outcome is Move.GIVE_UP and job.state is State.CANCELED)


def _renew_job(work: UnitOfWork, ref: Ref, lease: float) -> Ack | Lost:
    job = work.get(ref.job)
    held = move.held_job(job, ref, Move.RENEW, work.now)
    if isinstance(held, LossCause):
        was_canceled = job is not None and job.fence == ref.fence and job.state is State.CANCELED
        return CANCEL if was_canceled else Lost(held)
    work.move(Move.RENEW, held, move.renewed(held, lease, work.now))
    return CANCEL if held.cancel_requested else HELD


_FENCED = frozenset((Start, Renew, Note, PutStep, Settle))
_HANDLERS: dict[type, Callable[[UnitOfWork, Any], Answer]] = {
    Insert: insert.insert,
    Claim: claim.claim,
    Start: start,
    Renew: renew,
    Note: note,
    PutStep: step.put,
    Settle: settle,
    CancelJobs: operator.cancel,
    RerunJobs: operator.rerun,
    EditJobs: operator.edit,
    PostponeJobs: operator.postpone,
    PromoteJobs: operator.promote,
    ResolveJobs: operator.resolve,
    RemoveJobs: operator.remove,
    SendSignal: step.signal,
    Pause: gate.pause,
    Resume: gate.resume,
    PutRule: gate.put_rule,
    ResetRule: gate.reset,
    DeclareRule: gate.declare,
    PutSchedule: schedule.put,
    DeclareSchedule: schedule.declare,
    ResetSchedule: schedule.reset,
    PauseSchedule: schedule.pause,
    ResumeSchedule: schedule.resume,
    RemoveSchedule: schedule.remove,
    RunSchedule: schedule.run,
    Backfill: schedule.backfill,
    Beat: beat,
    ReportTrouble: report_trouble,
    Upkeep: upkeep.upkeep,
}
