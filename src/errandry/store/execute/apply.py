"""Carry out the commands of a pass on some tables.

Every decision is a function of `core.move`; here commands are matched with the jobs they name
and the answers made. A handler checks everything before it changes anything, so a command that is refused
leaves no trace and its neighbours go on.
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
    RerunJobs,
    ResolveJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
)
from errandry.core.event import EventKind
from errandry.core.flow import AwaitOutcome
from errandry.core.gate import Pause, PutRule, Resume
from errandry.core.job import JobRecord, LogLine
from errandry.core.schedule import (
    Backfill,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
)
from errandry.core.state import HELD_STATES, Move, State
from errandry.core.step import SendSignal, WaitOutcome
from errandry.errors import ErrandryError
from errandry.store.contract import StoreLimits
from errandry.store.execute import claim, flow, gate, insert, operator, schedule, step, upkeep
from errandry.store.execute.unit_of_work import UnitOfWork
from errandry.store.tables.protocol import Tables


def apply(commands: Sequence[Command], tables: Tables, now: float, bounds: StoreLimits) -> list[Answer]:
    """Carry out a pass in order; one answer, or error as a value, per command."""
    ledger = UnitOfWork(tables, now, bounds, commands)
    insert.load(ledger, commands)
    answers: list[Answer] = []
    for command in commands:
        if ledger.ended and type(command) not in _FENCED:
            flow.release(ledger)
        try:
            answers.append(_HANDLERS[type(command)](ledger, command))
        except ErrandryError as error:
            answers.append(error)
    flow.release(ledger)
    ledger.close()
    return answers


def start(ledger: UnitOfWork, command: Start) -> Ack | Lost:
    ref, job = command.ref, ledger.get(command.ref.job)
    held = move.held(job, ref, Move.START, ledger.now)
    if not isinstance(held, LossCause):
        ledger.move(Move.START, held, move.started(held, ledger.now))
        return WRITTEN
    if job is not None and job.fence == ref.fence:
        if job.state is State.CANCELED:
            return CANCEL
        if not isinstance(move.held(job, ref, Move.COMPLETE, ledger.now), LossCause):
            return ALREADY
    return Lost(held)


def renew(ledger: UnitOfWork, command: Renew) -> Renewed:
    return Renewed(tuple(_renewed(ledger, ref, command.lease) for ref in command.refs))


def note(ledger: UnitOfWork, command: Note) -> Ack | Lost:
    job = move.held(ledger.get(command.ref.job), command.ref, Move.NOTE, ledger.now)
    if isinstance(job, LossCause):
        return Lost(job)
    after = move.noted(job, command.progress, command.logs, ledger.now)
    if _are_noted(job, after.logs[-len(command.logs) :] if command.logs else ()):
        return WRITTEN
    ledger.move(Move.NOTE, job, after)
    if command.progress is not None:
        ledger.tell(EventKind.PROGRESS, job.queue, job.task, job.id, f"{command.progress.share:g}")
    for line in command.logs:
        ledger.tell(EventKind.LOG, job.queue, job.task, job.id, check.capped(line.text, 200))
    return WRITTEN


def _are_noted(job: JobRecord, lines: Sequence[LogLine]) -> bool:
    """Whether these are the last lines it has: each has its time, so they were sent again."""
    return bool(lines) and job.logs[-len(lines) :] == lines and all(line.at for line in lines)


def settle(ledger: UnitOfWork, command: Settle) -> Ack | Lost:
    ref, outcome = command.ref, command.outcome
    job = ledger.get(ref.job)
    held = move.held(job, ref, outcome.move, ledger.now)
    if not isinstance(held, JobRecord):
        return ALREADY if _is_repeat(job, ref, outcome.move) else Lost(held)  # guard: settle_repeat
    if type(outcome) is CompleteOutcome:
        if outcome.result is not None:
            check.sized("result", outcome.result, ledger.bounds.result)
    elif isinstance(outcome, AwaitOutcome | WaitOutcome | SnoozeOutcome) and not held.cancel_requested:
        held, outcome = _going_on(ledger, held, outcome)
    ledger.move(outcome.move, held, move.settled(held, outcome, ledger.now))
    if type(outcome) is RetryOutcome and outcome.pause_group:  # guard: slow_down
        gate.close_for(ledger, held, move.backing_off(held, outcome))
    return WRITTEN


def _going_on(
    ledger: UnitOfWork, job: JobRecord, outcome: AwaitOutcome | WaitOutcome | SnoozeOutcome
) -> tuple[JobRecord, Outcome]:
    """Write down what a job waits for that is to run again, and what is left of the outcome."""
    match outcome:
        case AwaitOutcome():
            return insert.awaited(ledger, job, outcome), outcome
        case WaitOutcome():
            return step.awaiting(ledger, job, outcome)
        case _:
            return step.slept(ledger, job, outcome), outcome


def beat(ledger: UnitOfWork, command: Beat) -> Ack:
    ledger.tables.beat(command, ledger.now)
    if command.gone:
        gate.forget_worker(ledger, command.worker)
    return WRITTEN


def _is_repeat(job: JobRecord | None, ref: Ref, outcome: Move) -> bool:
    """Whether this outcome has been written already; a job canceled before it began has been given up."""
    if job is None or job.fence != ref.fence or job.state in HELD_STATES:
        return False
    return job.settled is outcome or (outcome is Move.GIVE_UP and job.state is State.CANCELED)


def _renewed(ledger: UnitOfWork, ref: Ref, lease: float) -> Ack | Lost:
    job = ledger.get(ref.job)
    held = move.held(job, ref, Move.RENEW, ledger.now)
    if isinstance(held, LossCause):
        was_canceled = job is not None and job.fence == ref.fence and job.state is State.CANCELED
        return CANCEL if was_canceled else Lost(held)
    ledger.move(Move.RENEW, held, move.renewed(held, lease, ledger.now))
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
    PutSchedule: schedule.put,
    PauseSchedule: schedule.pause,
    ResumeSchedule: schedule.resume,
    RemoveSchedule: schedule.remove,
    RunSchedule: schedule.run,
    Backfill: schedule.backfill,
    Beat: beat,
    Upkeep: upkeep.upkeep,
}
