"""Every move from every state, generated from the transition table and compared with the memory store."""

from collections.abc import Awaitable, Callable, Mapping
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from errandry.core.answer import (
    ALREADY,
    CANCEL,
    HELD,
    WRITTEN,
    Answer,
    Claims,
    Expiry,
    Inserted,
    LossCause,
    Lost,
    Moved,
    Renewed,
    UpkeepResult,
)
from errandry.core.command import (
    BEAT_INTERVAL,
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Insert,
    Note,
    Outcome,
    PostponeJobs,
    PromoteJobs,
    PutStep,
    ReleaseOutcome,
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
from errandry.core.flow import AwaitOutcome, Edge
from errandry.core.job import JobRecord, NewJob, Progress
from errandry.core.selection import JobSelection
from errandry.core.state import TABLE, Move, State
from errandry.core.step import SendSignal, WaitOutcome
from errandry.errors import InvalidMove, UnknownJob
from errandry.store.contract import Store
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

MOVES_WITHOUT_A_COMMAND = frozenset({Move.UNBLOCK, Move.CHILD_FAILED, Move.DROP})
"""Two follow from the end of a child (see `flows.py`), the third from an insert."""

STATES: tuple[State | None, ...] = (None, *State)


def _settle(outcome: Outcome) -> Callable[[JobRecord], Command]:
    return lambda job: Settle(ref(job), outcome)


def _settle_with_child(job: JobRecord) -> Command:
    child = NewJob(id=f"child of {job.id}", task="child", payload="{}", delay=60.0)
    return Settle(ref(job), AwaitOutcome((child,), (Edge(job.id, child.id),)))


COMMANDS: Mapping[Move, Callable[[JobRecord], Command]] = {
    Move.INSERT: lambda job: Insert((NewJob(id=job.id, task=job.task, payload="[]"),)),
    Move.PROMOTE: lambda job: PromoteJobs(ids=(job.id,)),
    Move.LAPSE: lambda _: Upkeep(),
    Move.CLAIM: lambda _: Claim(worker="worker", nonce="nonce", start=False),
    Move.START: lambda job: Start(ref(job)),
    Move.RENEW: lambda job: Renew((ref(job),)),
    Move.NOTE: lambda job: Note(ref(job), Progress(0.5)),
    Move.STEP: lambda job: PutStep(ref(job), "charge"),
    Move.COMPLETE: _settle(CompleteOutcome("1")),
    Move.RETRY: _settle(RetryOutcome(delay=60.0)),
    Move.FAIL: _settle(FailOutcome()),
    Move.SNOOZE: _settle(SnoozeOutcome(60.0)),
    Move.AWAIT: _settle_with_child,
    Move.WAIT: _settle(WaitOutcome("go", 60.0)),
    Move.RELEASE: _settle(ReleaseOutcome()),
    Move.GIVE_UP: _settle(GiveUpOutcome()),
    Move.EXPIRE: lambda _: Upkeep(),
    Move.LOSE: lambda _: Upkeep(),
    Move.CANCEL: lambda job: CancelJobs(ids=(job.id,)),
    Move.CANCEL_FORCED: lambda job: CancelJobs(ids=(job.id,), force=True),
    Move.RESOLVE: lambda job: ResolveJobs(ids=(job.id,)),
    Move.POSTPONE: lambda job: PostponeJobs(ids=(job.id,), delay=60.0),
    Move.EDIT: lambda job: EditJobs(ids=(job.id,), payload="[1]"),
    Move.RERUN: lambda job: RerunJobs(ids=(job.id,)),
    Move.REMOVE: lambda job: RemoveJobs(ids=(job.id,)),
    Move.REMOVE_FORCED: lambda job: RemoveJobs(ids=(job.id,), force=True),
}

REPEAT_ANSWERS: Mapping[tuple[Move, State | None], Answer] = {
    (Move.START, State.RUNNING): ALREADY,
    (Move.START, State.CANCELED): CANCEL,
    (Move.RENEW, State.CANCELED): Renewed((CANCEL,)),
    (Move.COMPLETE, State.COMPLETED): ALREADY,
    (Move.FAIL, State.FAILED): ALREADY,
    (Move.GIVE_UP, State.CANCELED): ALREADY,
}
"""Answers that are neither a move nor a refusal: the same move was made before, or a cancel came first."""

EVENTS_OF_MOVES: Mapping[Move, tuple[EventKind, ...]] = {
    Move.INSERT: (EventKind.WAITING,),
    Move.PROMOTE: (EventKind.WAITING,),
    Move.LAPSE: (EventKind.FAILED,),
    Move.CLAIM: (EventKind.CLAIMED,),
    Move.START: (EventKind.STARTED,),
    Move.RENEW: (),
    Move.NOTE: (EventKind.PROGRESS,),
    Move.STEP: (),
    Move.COMPLETE: (EventKind.COMPLETED,),
    Move.RETRY: (EventKind.RETRYING,),
    Move.FAIL: (EventKind.FAILED,),
    Move.SNOOZE: (EventKind.SCHEDULED,),
    Move.AWAIT: (EventKind.SCHEDULED, EventKind.BLOCKED),
    Move.WAIT: (EventKind.SCHEDULED,),
    Move.RELEASE: (EventKind.WAITING,),
    Move.GIVE_UP: (EventKind.CANCELED,),
    Move.EXPIRE: (EventKind.STALLED, EventKind.WAITING),
    Move.LOSE: (EventKind.FAILED,),
    Move.CANCEL: (EventKind.CANCELED,),
    Move.CANCEL_FORCED: (EventKind.CANCELED,),
    Move.RESOLVE: (EventKind.COMPLETED,),
    Move.POSTPONE: (EventKind.SCHEDULED,),
    Move.EDIT: (EventKind.EDITED,),
    Move.RERUN: (EventKind.WAITING,),
    Move.REMOVE: (EventKind.REMOVED,),
    Move.REMOVE_FORCED: (EventKind.REMOVED,),
}
"""The events of each move that reaches its usual state in `TABLE`, without `drained`."""


def targets_of(move: Move) -> Mapping[State | None, State | None]:
    """The state that the command of a move reaches from each state; a forced cancel includes a plain one."""
    plain = TABLE[Move.CANCEL].leads if move is Move.CANCEL_FORCED else {}
    return {**TABLE[move].leads, **plain}


ALLOWED_MOVES = [pair for pair in product(COMMANDS, STATES) if pair[1] in targets_of(pair[0])]
REFUSED_MOVES = [pair for pair in product(COMMANDS, STATES) if pair[1] not in targets_of(pair[0])]


def _case_ids(pairs: list[tuple[Move, State | None]]) -> list[str]:
    return [f"{move}-{state or 'absent'}" for move, state in pairs]


class TransitionTable:
    async def test_every_move_has_a_command_or_is_listed_as_having_none(self) -> None:
        assert set(COMMANDS) | MOVES_WITHOUT_A_COMMAND == set(Move)
        assert set(COMMANDS) & MOVES_WITHOUT_A_COMMAND == set()
        assert len(ALLOWED_MOVES) + len(REFUSED_MOVES) == 26 * 9

    @pytest.mark.parametrize(("move", "state"), ALLOWED_MOVES, ids=_case_ids(ALLOWED_MOVES))
    async def test_an_allowed_move_reaches_the_state_in_the_table(
        self, store: Store, clock: FakeClock, given: Given, move: Move, state: State | None
    ) -> None:
        job = await _prepared_job(given, clock, move, state)
        cursor = await store.latest_cursor()

        answer = await requests.send(store, COMMANDS[move](job))

        [after] = await store.get([job.id])
        assert (after.state if after else None) is targets_of(move)[state]
        assert answer == _expected_answer(move, job, after)
        asked_to_stop = after is not None and after.cancel_requested
        left_waiting = state is State.WAITING and targets_of(move)[state] is not State.WAITING
        assert await requests.event_kinds(store, cursor) == (
            [] if asked_to_stop else [*EVENTS_OF_MOVES[move], *[EventKind.DRAINED] * left_waiting]
        )
        assert await _records(store) == await _expected_records(move, state)

    @pytest.mark.parametrize(("move", "state"), REFUSED_MOVES, ids=_case_ids(REFUSED_MOVES))
    async def test_a_move_the_table_does_not_allow_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, move: Move, state: State | None
    ) -> None:
        job = await _prepared_job(given, clock, move, state)
        before = await requests.snapshot(store)

        answer = await requests.send(store, COMMANDS[move](job))

        _check_refusal(answer, move, state, job)
        assert await requests.snapshot(store) == before


async def _expected_records(move: Move, state: State | None) -> list[JobRecord]:
    """The records in the memory store after the same move."""
    reference, clock = _memory_store()
    job = await _prepared_job(Given(reference), clock, move, state)
    await requests.send(reference, COMMANDS[move](job))
    return await _records(reference)


def _memory_store() -> tuple[Store, FakeClock]:
    clock = FakeClock()
    return MemoryStore(clock), clock


async def _records(store: Store) -> list[JobRecord]:
    """All jobs, without their numbers: the numbers of a store may have gaps."""
    return [
        replace(job, seq=0, place=None if job.place is None else 0) for job in await requests.list_jobs(store)
    ]


async def _prepared_job(given: Given, clock: FakeClock, move: Move, state: State | None) -> JobRecord:
    """A job in `state`; for `expire`, `lose` and `lapse`, at the moment when the move is due."""
    match move:
        case Move.LOSE if state is State.SCHEDULED:
            job = await given.lost_at_the_cap(clock)
            clock.advance(2 * BEAT_INTERVAL)
        case Move.EXPIRE:
            job = await given.in_state(state, **_lease(state, 30.0))
            clock.advance(30)
        case Move.LAPSE:
            job = await given.in_state(state, deadline=clock.time() + 60, **_lease(state, 120.0))
            clock.advance(60)
        case _:
            job = await given.in_state(state)
    return job


def _lease(state: State | None, lease: float) -> dict[str, float]:
    return {"lease": lease} if state in (State.CLAIMED, State.RUNNING) else {}


def _expected_answer(move: Move, job: JobRecord, after: JobRecord | None) -> Answer:
    match move:
        case Move.INSERT:
            return Inserted((job.id,))
        case Move.CLAIM:
            return Claims((after,) if after else ())
        case Move.RENEW:
            return Renewed((HELD,))
        case Move.EXPIRE | Move.LOSE:
            assert after is not None
            return UpkeepResult(expired=1, expiries=(Expiry.of(job, after),))
        case Move.LAPSE:
            return UpkeepResult(lapsed=1)
        case _:
            return Moved((job.id,)) if isinstance(COMMANDS[move](job), JobSelection) else WRITTEN


def _check_refusal(answer: Answer, move: Move, state: State | None, job: JobRecord) -> None:
    if (move, state) in REPEAT_ANSWERS:
        assert answer == REPEAT_ANSWERS[move, state]
    elif move in (Move.CANCEL, Move.CANCEL_FORCED) and state is State.CANCELED:
        assert answer == Moved(already=(job.id,))
    elif TABLE[move].fenced:
        lost = Lost(LossCause.NOT_HELD)
        assert answer == (Renewed((lost,)) if move is Move.RENEW else lost)
    elif move is Move.INSERT:
        assert answer == Inserted((job.id,), frozenset({job.id}))
    elif move is Move.CLAIM:
        assert isinstance(answer, Claims)
        assert answer.jobs == ()
    elif move in (Move.EXPIRE, Move.LOSE, Move.LAPSE):
        assert answer == UpkeepResult()
    else:
        _check_operators_refusal(answer, move, state, job)


def _check_operators_refusal(answer: Answer, move: Move, state: State | None, job: JobRecord) -> None:
    assert isinstance(answer, Moved)
    [(job_id, error)] = answer.refused
    assert answer == Moved(refused=((job.id, error),))
    assert job_id == job.id
    if state is None:
        assert isinstance(error, UnknownJob)
        assert error.job_id == job.id
    else:
        assert isinstance(error, InvalidMove)
        assert (error.job_id, error.move) == (job.id, move.removesuffix("_forced"))
        assert (error.state, error.allowed) == (state, TABLE[move].sources)


# Moves that reach another state under a condition.

Scenario = Callable[[Store, FakeClock, Given], Awaitable[JobRecord]]


def _settle_with(outcome: Outcome, **fields: Any) -> Scenario:
    async def scenario(_store: Store, _clock: FakeClock, given: Given) -> JobRecord:
        return await given.settled(outcome, **fields)

    return scenario


def _settle_after_cancel_request(outcome: Outcome) -> Scenario:
    async def scenario(store: Store, _clock: FakeClock, given: Given) -> JobRecord:
        job = await given.running()
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.settle(store, job, outcome)
        return job

    return scenario


def _insert_with(**fields: Any) -> Scenario:
    async def scenario(_store: Store, _clock: FakeClock, given: Given) -> JobRecord:
        return await given.waiting(**fields)

    return scenario


def _send_operator_command(
    state: State, command: Callable[[JobRecord, float], JobSelection], **fields: Any
) -> Scenario:
    async def scenario(store: Store, clock: FakeClock, given: Given) -> JobRecord:
        job = await given.in_state(state, **fields)
        await store.commit([command(job, clock.time())])  # type: ignore[list-item]  # an operator command
        return job

    return scenario


def _expire(cancel: bool = False, **fields: Any) -> Scenario:
    async def scenario(store: Store, clock: FakeClock, given: Given) -> JobRecord:
        job = await given.running(**fields)
        if cancel:
            await requests.operate(store, CancelJobs(ids=(job.id,)))
        clock.advance(30)
        await requests.run_upkeep(store)
        return job

    return scenario


async def _release_too_often(store: Store, _clock: FakeClock, given: Given) -> JobRecord:
    job = await given.claimed()
    for number in range(999):
        claim = Claim(worker="w", nonce=f"{number}", start=False)
        _, answer = await store.commit([Settle(ref(job), ReleaseOutcome()), claim])
        assert isinstance(answer, Claims)
        [job] = answer.jobs
    await requests.settle(store, job, ReleaseOutcome())
    return job


async def _claim_and_start(_store: Store, _clock: FakeClock, given: Given) -> JobRecord:
    return await given.running()


CONDITIONAL_MOVES: list[tuple[Move, State, str, Scenario]] = [
    (Move.INSERT, State.SCHEDULED, "delay", _insert_with(delay=1.0)),
    (Move.INSERT, State.BLOCKED, "open children", lambda _store, _clock, given: given.blocked()),
    (Move.CLAIM, State.RUNNING, "start", _claim_and_start),
    (Move.COMPLETE, State.CANCELED, "cancel asked", _settle_after_cancel_request(CompleteOutcome())),
    (Move.RETRY, State.WAITING, "no delay", _settle_with(RetryOutcome(delay=0.0))),
    (Move.RETRY, State.FAILED, "attempts spent", _settle_with(RetryOutcome(delay=0.0), max_attempts=1)),
    (Move.RETRY, State.CANCELED, "cancel asked", _settle_after_cancel_request(RetryOutcome())),
    (Move.FAIL, State.CANCELED, "cancel asked", _settle_after_cancel_request(FailOutcome())),
    (Move.SNOOZE, State.CANCELED, "cancel asked", _settle_after_cancel_request(SnoozeOutcome(1.0))),
    (Move.AWAIT, State.WAITING, "no child", _settle_with(AwaitOutcome())),
    (Move.AWAIT, State.CANCELED, "cancel asked", _settle_after_cancel_request(AwaitOutcome())),
    (
        Move.WAIT,
        State.WAITING,
        "signal there",
        lambda store, _clock, given: _wait_for_an_early_signal(store, given),
    ),
    (Move.WAIT, State.CANCELED, "cancel asked", _settle_after_cancel_request(WaitOutcome("go"))),
    (Move.RELEASE, State.SCHEDULED, "delay", _settle_with(ReleaseOutcome(1.0))),
    (Move.RELEASE, State.FAILED, "1,000 releases", _release_too_often),
    (Move.RELEASE, State.CANCELED, "cancel asked", _settle_after_cancel_request(ReleaseOutcome())),
    (Move.EXPIRE, State.FAILED, "attempts spent", _expire(max_attempts=1)),
    (Move.EXPIRE, State.FAILED, "crashes at their cap", _expire(max_crashes=1)),
    (Move.EXPIRE, State.CANCELED, "cancel asked", _expire(cancel=True)),
    (
        Move.EXPIRE,
        State.SCHEDULED,
        "crashes at their cap, worker silent",
        lambda _store, clock, given: given.lost_at_the_cap(clock),
    ),
    (
        Move.RESOLVE,
        State.FAILED,
        "as failed",
        _send_operator_command(State.WAITING, lambda job, _: ResolveJobs(ids=(job.id,), state=State.FAILED)),
    ),
    (
        Move.EDIT,
        State.SCHEDULED,
        "run_at ahead",
        _send_operator_command(State.WAITING, lambda job, now: EditJobs(ids=(job.id,), run_at=now + 1)),
    ),
    (
        Move.EDIT,
        State.WAITING,
        "run_at has come",
        _send_operator_command(State.SCHEDULED, lambda job, now: EditJobs(ids=(job.id,), run_at=now)),
    ),
    (
        Move.RERUN,
        State.SCHEDULED,
        "run_at ahead",
        _send_operator_command(State.FAILED, lambda job, now: RerunJobs(ids=(job.id,), run_at=now + 1)),
    ),
    (
        Move.RERUN,
        State.BLOCKED,
        "open children",
        lambda store, _clock, given: _rerun_with_open_children(store, given),
    ),
]


async def _rerun_with_open_children(store: Store, given: Given) -> JobRecord:
    job = await given.blocked()
    await requests.operate(store, CancelJobs(ids=(job.id,)))
    await requests.operate(store, RerunJobs(ids=(job.id,)))
    return job


async def _wait_for_an_early_signal(store: Store, given: Given) -> JobRecord:
    job = await given.running()
    await requests.send(store, SendSignal(job.id, "go"))
    await requests.settle(store, job, WaitOutcome("go"))
    return job


class ConditionalTransitions:
    async def test_every_conditional_target_of_the_table_has_a_case(self) -> None:
        named = {(move, state) for move in COMMANDS for state in TABLE[move].otherwise}

        assert {(move, state) for move, state, _, _ in CONDITIONAL_MOVES} == named

    @pytest.mark.parametrize(
        ("state", "scenario"),
        [(state, scenario) for _, state, _, scenario in CONDITIONAL_MOVES],
        ids=[f"{move}-{state}-{why}" for move, state, why, _ in CONDITIONAL_MOVES],
    )
    async def test_a_move_reaches_another_state_under_its_condition(
        self, store: Store, clock: FakeClock, given: Given, state: State, scenario: Scenario
    ) -> None:
        job = await scenario(store, clock, given)

        assert (await requests.current_job(store, job)).state is state
        reference, its_clock = _memory_store()
        await scenario(reference, its_clock, Given(reference))
        assert await _records(store) == await _records(reference)
