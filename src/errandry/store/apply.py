"""Carry out the commands of a pass on some tables.

Every decision is a function of `core.move`; here commands are matched with the jobs they name
and the answers made. A handler checks everything before it changes anything, so a command that is refused
leaves no trace and its neighbours go on.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.command import (
    ALREADY,
    CANCEL,
    HELD,
    WRITTEN,
    Answer,
    Beat,
    Cancel,
    Cause,
    Claim,
    Claims,
    Command,
    Complete,
    Edit,
    Insert,
    Lost,
    Mark,
    Note,
    Postpone,
    Promote,
    Ref,
    Remove,
    Renew,
    Renewed,
    Rerun,
    Resolve,
    Settle,
    Start,
    Upkeep,
)
from errandry.core.event import Kind
from errandry.core.gate import Pause, PutRule, Resume
from errandry.core.job import Job
from errandry.core.state import HELD as HELD_STATES
from errandry.core.state import Move, State
from errandry.errors import ErrandryError
from errandry.store import gating, insert, operate, tidy
from errandry.store.contract import Bounds
from errandry.store.ledger import Ledger
from errandry.store.tables import Tables


def apply(commands: Sequence[Command], tables: Tables, now: float, bounds: Bounds) -> list[Answer]:
    """Carry out a pass in order; one answer, or error as a value, per command."""
    ledger = Ledger(tables, now, bounds)
    insert.load(ledger, commands)
    answers: list[Answer] = []
    for command in commands:
        try:
            answers.append(_HANDLERS[type(command)](ledger, command))
        except ErrandryError as error:
            answers.append(error)
    ledger.close()
    return answers


def claim(ledger: Ledger, command: Claim) -> Claims:
    tables, now = ledger.tables, ledger.now
    ledger.flush()
    claims = ledger.claims.setdefault(command.worker, {})
    refs = tables.recall(command.worker).get(command.nonce)
    if refs is not None:
        claims[command.nonce] = refs
        return Claims(tuple(_still_held(ledger, refs)), _due_in(ledger))
    tidy.before_claim(ledger)
    taken = _taken(ledger, command)
    taken += _company(ledger, command, taken)
    if taken:
        claims[command.nonce] = tuple(Ref(job.id, job.fence) for job in taken)
        tables.remember(command.worker, claims, now)
        for queue in {job.queue: None for job in taken}:
            if tables.is_drained(queue):
                ledger.tell(Kind.DRAINED, queue)
    return Claims(tuple(taken), _due_in(ledger))


def _taken(ledger: Ledger, command: Claim) -> list[Job]:
    """The most urgent jobs, claimed; what has lapsed fails instead, and suspects beyond their number stay."""
    now, made, suspects = ledger.now, Move.CLAIM, command.suspects
    later = {batch.task for batch in command.batches if not batch.start}
    taken: list[Job] = []
    while len(taken) < command.limit:
        wanted = replace(command, limit=command.limit - len(taken), suspects=suspects)
        candidates = ledger.tables.ready(wanted)
        if not candidates:
            break
        for job in candidates:
            if job.deadline is not None and job.deadline <= now:
                ledger.move(Move.LAPSE, job, move.lapsed(job, now))
                continue
            if job.crashes and suspects is not None:
                if not suspects:
                    continue
                suspects -= 1
            start = command.start and job.task not in later
            held = move.claimed(job, command.worker, command.lease, start, now)
            taken.append(ledger.move(made, job, held))
        ledger.flush()
    return taken


def _company(ledger: Ledger, command: Claim, taken: list[Job]) -> list[Job]:
    """What comes along in the batches that `taken` begins."""
    found: list[Job] = []
    for batch in command.batches:
        begun = sum(job.task == batch.task and not job.crashes for job in taken)
        if room := -begun % batch.size:
            wanted = replace(command, tasks=(batch.task,), without=(), limit=room, suspects=0)
            found += _taken(ledger, wanted)
    return found


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
    ledger.move(Move.NOTE, job, move.noted(job, command.progress, command.logs, ledger.now))
    if command.progress is not None:
        ledger.tell(Kind.PROGRESS, job.queue, job.task, job.id, f"{command.progress.share:g}")
    for line in command.logs:
        ledger.tell(Kind.LOG, job.queue, job.task, job.id, check.capped(line.text, 200))
    return WRITTEN


def settle(ledger: Ledger, command: Settle) -> Mark | Lost:
    ref, outcome = command.ref, command.outcome
    job = ledger.get(ref.job)
    if job is not None and job.fence == ref.fence and _is_repeat(job, outcome.move):
        return ALREADY
    held = move.held(job, ref, outcome.move, ledger.now)
    if isinstance(held, Cause):
        return Lost(held)
    if isinstance(outcome, Complete) and outcome.result is not None:
        check.sized("result", outcome.result, ledger.bounds.result)
    ledger.move(outcome.move, held, move.settled(held, outcome, ledger.now))
    return WRITTEN


def beat(ledger: Ledger, command: Beat) -> Mark:
    ledger.tables.beat(command, ledger.now)
    if command.gone:
        gating.forget_worker(ledger, command.worker)
    return WRITTEN


def _is_repeat(job: Job, outcome: Move) -> bool:
    """Whether this outcome has been written already; a job canceled before it began has been given up."""
    if job.state in HELD_STATES:
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


def _still_held(ledger: Ledger, refs: Sequence[Ref]) -> Iterator[Job]:
    ledger.load(ref.job for ref in refs)
    for ref in refs:
        job = move.held(ledger.get(ref.job), ref, Move.RENEW, ledger.now)
        if not isinstance(job, Cause):
            yield job


def _due_in(ledger: Ledger) -> float | None:
    run_at = ledger.tables.marks().run_at
    return None if run_at is None else max(0.0, run_at - ledger.now)


_HANDLERS: dict[type, Callable[[Ledger, Any], Answer]] = {
    Insert: insert.insert,
    Claim: claim,
    Start: start,
    Renew: renew,
    Note: note,
    Settle: settle,
    Cancel: operate.cancel,
    Rerun: operate.rerun,
    Edit: operate.edit,
    Postpone: operate.postpone,
    Promote: operate.promote,
    Resolve: operate.resolve,
    Remove: operate.remove,
    Pause: gating.pause,
    Resume: gating.resume,
    PutRule: gating.put_rule,
    Beat: beat,
    Upkeep: tidy.upkeep,
}
