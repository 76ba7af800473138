"""Carry out the commands of a pass on some tables.

Every decision is a function of `core.move`; here commands are matched with the jobs they name
and the answers made. A handler checks everything before it changes anything, so a command that is refused
leaves no trace and its neighbours go on.
"""

from collections.abc import Callable, Sequence
from typing import Any

from errandry.core import check, move
from errandry.core.answer import ALREADY, CANCEL, HELD, WRITTEN, Answer, Cause, Lost, Mark, Renewed
from errandry.core.command import (
    Beat,
    Cancel,
    Claim,
    Command,
    Complete,
    Edit,
    Insert,
    Note,
    Outcome,
    Postpone,
    Promote,
    PutStep,
    Ref,
    Remove,
    Renew,
    Rerun,
    Resolve,
    Retry,
    Settle,
    Snooze,
    Start,
    Upkeep,
)
from errandry.core.event import Kind
from errandry.core.flow import Await
from errandry.core.gate import Pause, PutRule, Resume
from errandry.core.job import Job, Log
from errandry.core.schedule import (
    Backfill,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
)
from errandry.core.state import HELD as HELD_STATES
from errandry.core.state import Move, State
from errandry.core.step import Signal, Wait
from errandry.errors import ErrandryError
from errandry.store import claiming, flow, gating, insert, operate, schedule, step, tidy
from errandry.store.contract import Bounds
from errandry.store.ledger import Ledger
from errandry.store.tables import Tables


def apply(commands: Sequence[Command], tables: Tables, now: float, bounds: Bounds) -> list[Answer]:
    """Carry out a pass in order; one answer, or error as a value, per command."""
    ledger = Ledger(tables, now, bounds, commands)
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


def start(ledger: Ledger, command: Start) -> Mark | Lost:
    ref, job = command.ref, ledger.get(command.ref.job)
    held = move.held(job, ref, Move.START, ledger.now)
    if not isinstance(held, Cause):
        ledger.move(Move.START, held, move.started(held, ledger.now))
        return WRITTEN
    if job is not None and job.fence == ref.fence:
        if job.state is State.CANCELED:
            return CANCEL
        if not isinstance(move.held(job, ref, Move.COMPLETE, ledger.now), Cause):
            return ALREADY
    return Lost(held)


def renew(ledger: Ledger, command: Renew) -> Renewed:
    return Renewed(tuple(_renewed(ledger, ref, command.lease) for ref in command.refs))


def note(ledger: Ledger, command: Note) -> Mark | Lost:
    job = move.held(ledger.get(command.ref.job), command.ref, Move.NOTE, ledger.now)
    if isinstance(job, Cause):
        return Lost(job)
    after = move.noted(job, command.progress, command.logs, ledger.now)
    if _are_noted(job, after.logs[-len(command.logs) :] if command.logs else ()):
        return WRITTEN
    ledger.move(Move.NOTE, job, after)
    if command.progress is not None:
        ledger.tell(Kind.PROGRESS, job.queue, job.task, job.id, f"{command.progress.share:g}")
    for line in command.logs:
        ledger.tell(Kind.LOG, job.queue, job.task, job.id, check.capped(line.text, 200))
    return WRITTEN


def _are_noted(job: Job, lines: Sequence[Log]) -> bool:
    """Whether these are the last lines it has: each has its time, so they were sent again."""
    return bool(lines) and job.logs[-len(lines) :] == lines and all(line.at for line in lines)


def settle(ledger: Ledger, command: Settle) -> Mark | Lost:
    ref, outcome = command.ref, command.outcome
    job = ledger.get(ref.job)
    held = move.held(job, ref, outcome.move, ledger.now)
    if not isinstance(held, Job):
        return ALREADY if _is_repeat(job, ref, outcome.move) else Lost(held)
    if type(outcome) is Complete:
        if outcome.result is not None:
            check.sized("result", outcome.result, ledger.bounds.result)
    elif isinstance(outcome, Await | Wait | Snooze) and not held.cancel_requested:
        held, outcome = _going_on(ledger, held, outcome)
    ledger.move(outcome.move, held, move.settled(held, outcome, ledger.now))
    if type(outcome) is Retry and outcome.pause_group:
        gating.close_for(ledger, held, move.backing_off(held, outcome))
    return WRITTEN


def _going_on(ledger: Ledger, job: Job, outcome: Await | Wait | Snooze) -> tuple[Job, Outcome]:
    """Write down what a job waits for that is to run again, and what is left of the outcome."""
    match outcome:
        case Await():
            return insert.awaited(ledger, job, outcome), outcome
        case Wait():
            return step.awaiting(ledger, job, outcome)
        case _:
            return step.slept(ledger, job, outcome), outcome


def beat(ledger: Ledger, command: Beat) -> Mark:
    ledger.tables.beat(command, ledger.now)
    if command.gone:
        gating.forget_worker(ledger, command.worker)
    return WRITTEN


def _is_repeat(job: Job | None, ref: Ref, outcome: Move) -> bool:
    """Whether this outcome has been written already; a job canceled before it began has been given up."""
    if job is None or job.fence != ref.fence or job.state in HELD_STATES:
        return False
    return job.settled is outcome or (outcome is Move.GIVE_UP and job.state is State.CANCELED)


def _renewed(ledger: Ledger, ref: Ref, lease: float) -> Mark | Lost:
    job = ledger.get(ref.job)
    held = move.held(job, ref, Move.RENEW, ledger.now)
    if isinstance(held, Cause):
        was_canceled = job is not None and job.fence == ref.fence and job.state is State.CANCELED
        return CANCEL if was_canceled else Lost(held)
    ledger.move(Move.RENEW, held, move.renewed(held, lease, ledger.now))
    return CANCEL if held.cancel_requested else HELD


_FENCED = frozenset((Start, Renew, Note, PutStep, Settle))
_HANDLERS: dict[type, Callable[[Ledger, Any], Answer]] = {
    Insert: insert.insert,
    Claim: claiming.claim,
    Start: start,
    Renew: renew,
    Note: note,
    PutStep: step.put,
    Settle: settle,
    Cancel: operate.cancel,
    Rerun: operate.rerun,
    Edit: operate.edit,
    Postpone: operate.postpone,
    Promote: operate.promote,
    Resolve: operate.resolve,
    Remove: operate.remove,
    Signal: step.signal,
    Pause: gating.pause,
    Resume: gating.resume,
    PutRule: gating.put_rule,
    PutSchedule: schedule.put,
    PauseSchedule: schedule.pause,
    ResumeSchedule: schedule.resume,
    RemoveSchedule: schedule.remove,
    RunSchedule: schedule.run,
    Backfill: schedule.backfill,
    Beat: beat,
    Upkeep: tidy.upkeep,
}
