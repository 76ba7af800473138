"""Every move from every state, generated from the transition table; memory says what a record is then."""

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
    Cause,
    Claims,
    Inserted,
    Kept,
    Lost,
    Moved,
    Renewed,
)
from errandry.core.command import (
    Cancel,
    Claim,
    Command,
    Complete,
    Edit,
    Fail,
    GiveUp,
    Insert,
    Note,
    Outcome,
    Postpone,
    Promote,
    PutStep,
    Release,
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
from errandry.core.flow import Await, Edge
from errandry.core.job import Job, NewJob, Progress
from errandry.core.operator import Operator
from errandry.core.state import TABLE, Move, State
from errandry.core.step import Signal, Wait
from errandry.errors import InvalidMove, UnknownJob
from errandry.store.contract import Store
from errandry.store.memory import MemoryStore
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import ask
from errandry.testing.given import Given, ref

WITHOUT_A_COMMAND = frozenset({Move.UNBLOCK, Move.CHILD_FAILED, Move.SPAWN, Move.DROP})
"""Two that follow from a child's end, see `flows.py`, one from an insert; one is to come."""

STATES: tuple[State | None, ...] = (None, *State)


def _settle(outcome: Outcome) -> Callable[[Job], Command]:
    return lambda job: Settle(ref(job), outcome)


def _settle_waiting(job: Job) -> Command:
    child = NewJob(id=f"child of {job.id}", task="child", payload="{}", delay=60.0)
    return Settle(ref(job), Await((child,), (Edge(job.id, child.id),)))


COMMANDS: Mapping[Move, Callable[[Job], Command]] = {
    Move.INSERT: lambda job: Insert((NewJob(id=job.id, task=job.task, payload="[]"),)),
    Move.PROMOTE: lambda job: Promote(ids=(job.id,)),
    Move.LAPSE: lambda _: Upkeep(),
    Move.CLAIM: lambda _: Claim(worker="worker", nonce="nonce", start=False),
    Move.START: lambda job: Start(ref(job)),
    Move.RENEW: lambda job: Renew((ref(job),)),
    Move.NOTE: lambda job: Note(ref(job), Progress(0.5)),
    Move.STEP: lambda job: PutStep(ref(job), "charge"),
    Move.COMPLETE: _settle(Complete("1")),
    Move.RETRY: _settle(Retry(delay=60.0)),
    Move.FAIL: _settle(Fail()),
    Move.SNOOZE: _settle(Snooze(60.0)),
    Move.AWAIT: _settle_waiting,
    Move.WAIT: _settle(Wait("go", 60.0)),
    Move.RELEASE: _settle(Release()),
    Move.GIVE_UP: _settle(GiveUp()),
    Move.EXPIRE: lambda _: Upkeep(),
    Move.CANCEL: lambda job: Cancel(ids=(job.id,)),
    Move.CANCEL_FORCED: lambda job: Cancel(ids=(job.id,), force=True),
    Move.RESOLVE: lambda job: Resolve(ids=(job.id,)),
    Move.POSTPONE: lambda job: Postpone(ids=(job.id,), delay=60.0),
    Move.EDIT: lambda job: Edit(ids=(job.id,), payload="[1]"),
    Move.RERUN: lambda job: Rerun(ids=(job.id,)),
    Move.REMOVE: lambda job: Remove(ids=(job.id,)),
    Move.REMOVE_FORCED: lambda job: Remove(ids=(job.id,), force=True),
}

REPEATS: Mapping[tuple[Move, State | None], Answer] = {
    (Move.START, State.RUNNING): ALREADY,
    (Move.START, State.CANCELED): CANCEL,
    (Move.RENEW, State.CANCELED): Renewed((CANCEL,)),
    (Move.COMPLETE, State.COMPLETED): ALREADY,
    (Move.FAIL, State.FAILED): ALREADY,
    (Move.GIVE_UP, State.CANCELED): ALREADY,
}
"""Not moves, but not refused: the worker's move has been made already, or a cancel came before it."""

REPORTS: Mapping[Move, tuple[Kind, ...]] = {
    Move.INSERT: (Kind.WAITING,),
    Move.PROMOTE: (Kind.WAITING,),
    Move.LAPSE: (Kind.FAILED,),
    Move.CLAIM: (Kind.CLAIMED, Kind.DRAINED),
    Move.START: (Kind.ACTIVE,),
    Move.RENEW: (),
    Move.NOTE: (Kind.PROGRESS,),
    Move.STEP: (),
    Move.COMPLETE: (Kind.COMPLETED,),
    Move.RETRY: (Kind.RETRYING,),
    Move.FAIL: (Kind.FAILED,),
    Move.SNOOZE: (Kind.SCHEDULED,),
    Move.AWAIT: (Kind.SCHEDULED, Kind.BLOCKED),
    Move.WAIT: (Kind.SCHEDULED,),
    Move.RELEASE: (Kind.WAITING,),
    Move.GIVE_UP: (Kind.CANCELED,),
    Move.EXPIRE: (Kind.STALLED, Kind.WAITING),
    Move.CANCEL: (Kind.CANCELED,),
    Move.CANCEL_FORCED: (Kind.CANCELED,),
    Move.RESOLVE: (Kind.COMPLETED,),
    Move.POSTPONE: (Kind.SCHEDULED,),
    Move.EDIT: (Kind.EDITED,),
    Move.RERUN: (Kind.WAITING,),
    Move.REMOVE: (Kind.REMOVED,),
    Move.REMOVE_FORCED: (Kind.REMOVED,),
}
"""What each move is reported as when it leads where `TABLE` says it plainly leads."""


def leads(move: Move) -> Mapping[State | None, State | None]:
    """Where a move's command leads; a forced cancel is also a plain one."""
    plain = TABLE[Move.CANCEL].leads if move is Move.CANCEL_FORCED else {}
    return {**TABLE[move].leads, **plain}


ALLOWED = [pair for pair in product(COMMANDS, STATES) if pair[1] in leads(pair[0])]
REFUSED = [pair for pair in product(COMMANDS, STATES) if pair[1] not in leads(pair[0])]


def _named(pairs: list[tuple[Move, State | None]]) -> list[str]:
    return [f"{move}-{state or 'absent'}" for move, state in pairs]


class Moving:
    async def test_every_move_is_made_or_listed_as_having_no_command(self) -> None:
        assert set(COMMANDS) | WITHOUT_A_COMMAND == set(Move)
        assert set(COMMANDS) & WITHOUT_A_COMMAND == set()
        assert len(ALLOWED) + len(REFUSED) == 25 * 9

    @pytest.mark.parametrize(("move", "state"), ALLOWED, ids=_named(ALLOWED))
    async def test_a_move_leads_where_the_table_says(
        self, store: Store, clock: FakeClock, given: Given, move: Move, state: State | None
    ) -> None:
        job = await _brought(given, clock, move, state)
        head = await store.head()

        answer = await ask.one(store, COMMANDS[move](job))

        [after] = await store.get([job.id])
        assert (after.state if after else None) is leads(move)[state]
        assert answer == _granted(move, job, after)
        asked_to_stop = after is not None and after.cancel_requested
        assert await ask.kinds(store, head) == ([] if asked_to_stop else list(REPORTS[move]))
        assert await _records(store) == await _expected(move, state)

    @pytest.mark.parametrize(("move", "state"), REFUSED, ids=_named(REFUSED))
    async def test_a_move_the_table_does_not_allow_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, move: Move, state: State | None
    ) -> None:
        job = await _brought(given, clock, move, state)
        before = await ask.everything(store)

        answer = await ask.one(store, COMMANDS[move](job))

        _check_refusal(answer, move, state, job)
        assert await ask.everything(store) == before


async def _expected(move: Move, state: State | None) -> list[Job]:
    """What the memory store has after the same."""
    reference, clock = _reference()
    job = await _brought(Given(reference), clock, move, state)
    await ask.one(reference, COMMANDS[move](job))
    return await _records(reference)


def _reference() -> tuple[Store, FakeClock]:
    clock = FakeClock()
    return MemoryStore(clock), clock


async def _records(store: Store) -> list[Job]:
    """All jobs, but for their numbers: those of a store may have gaps."""
    return [replace(job, seq=0, place=None if job.place is None else 0) for job in await ask.jobs(store)]


async def _brought(given: Given, clock: FakeClock, move: Move, state: State | None) -> Job:
    """A job in `state`, at a moment when `move` would be due."""
    match move:
        case Move.EXPIRE:
            job = await given.brought(state, **_lease(state, 30.0))
            clock.advance(30)
        case Move.LAPSE:
            job = await given.brought(state, deadline=clock.time() + 60, **_lease(state, 120.0))
            clock.advance(60)
        case _:
            job = await given.brought(state)
    return job


def _lease(state: State | None, lease: float) -> dict[str, float]:
    return {"lease": lease} if state in (State.CLAIMED, State.RUNNING) else {}


def _granted(move: Move, job: Job, after: Job | None) -> Answer:
    match move:
        case Move.INSERT:
            return Inserted((job.id,))
        case Move.CLAIM:
            return Claims((after,) if after else ())
        case Move.RENEW:
            return Renewed((HELD,))
        case Move.EXPIRE:
            return Kept(expired=1)
        case Move.LAPSE:
            return Kept(lapsed=1)
        case _:
            return Moved((job.id,)) if isinstance(COMMANDS[move](job), Operator) else WRITTEN


def _check_refusal(answer: Answer, move: Move, state: State | None, job: Job) -> None:
    if (move, state) in REPEATS:
        assert answer == REPEATS[move, state]
    elif move in (Move.CANCEL, Move.CANCEL_FORCED) and state is State.CANCELED:
        assert answer == Moved(already=(job.id,))
    elif TABLE[move].fenced:
        lost = Lost(Cause.NOT_HELD)
        assert answer == (Renewed((lost,)) if move is Move.RENEW else lost)
    elif move is Move.INSERT:
        assert answer == Inserted((job.id,), frozenset({job.id}))
    elif move is Move.CLAIM:
        assert isinstance(answer, Claims)
        assert answer.jobs == ()
    elif move in (Move.EXPIRE, Move.LAPSE):
        assert answer == Kept()
    else:
        _check_operators_refusal(answer, move, state, job)


def _check_operators_refusal(answer: Answer, move: Move, state: State | None, job: Job) -> None:
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


# Where a move may lead otherwise, and on which condition.

Way = Callable[[Store, FakeClock, Given], Awaitable[Job]]


def _outcome(outcome: Outcome, **fields: Any) -> Way:
    async def way(_store: Store, _clock: FakeClock, given: Given) -> Job:
        return await given.settled(outcome, **fields)

    return way


def _overruled(outcome: Outcome) -> Way:
    async def way(store: Store, _clock: FakeClock, given: Given) -> Job:
        job = await given.running()
        await ask.operate(store, Cancel(ids=(job.id,)))
        await ask.settle(store, job, outcome)
        return job

    return way


def _inserted(**fields: Any) -> Way:
    async def way(_store: Store, _clock: FakeClock, given: Given) -> Job:
        return await given.waiting(**fields)

    return way


def _operated(state: State, command: Callable[[Job, float], Operator], **fields: Any) -> Way:
    async def way(store: Store, clock: FakeClock, given: Given) -> Job:
        job = await given.brought(state, **fields)
        await store.commit([command(job, clock.time())])  # type: ignore[list-item]  # one of its kinds
        return job

    return way


def _expired(cancel: bool = False, **fields: Any) -> Way:
    async def way(store: Store, clock: FakeClock, given: Given) -> Job:
        job = await given.running(**fields)
        if cancel:
            await ask.operate(store, Cancel(ids=(job.id,)))
        clock.advance(30)
        await ask.upkeep(store)
        return job

    return way


async def _released_too_often(store: Store, _clock: FakeClock, given: Given) -> Job:
    job = await given.claimed()
    for _ in range(20):
        await ask.settle(store, job, Release())
        job = await given.taken(job, start=False)
    await ask.settle(store, job, Release())
    return job


async def _expired_unstarted_too_often(store: Store, clock: FakeClock, given: Given) -> Job:
    job = await given.claimed(lease=1.0)
    for _ in range(20):
        clock.advance(1)
        job = await given.taken(job, lease=1.0, start=False)
    clock.advance(1)
    await ask.upkeep(store)
    return job


async def _claimed_and_started(_store: Store, _clock: FakeClock, given: Given) -> Job:
    return await given.running()


OTHERWISE: list[tuple[Move, State, str, Way]] = [
    (Move.INSERT, State.SCHEDULED, "delay", _inserted(delay=1.0)),
    (Move.INSERT, State.BLOCKED, "open children", lambda _store, _clock, given: given.blocked()),
    (Move.CLAIM, State.RUNNING, "start", _claimed_and_started),
    (Move.COMPLETE, State.CANCELED, "cancel asked", _overruled(Complete())),
    (Move.RETRY, State.WAITING, "no delay", _outcome(Retry(delay=0.0))),
    (Move.RETRY, State.FAILED, "attempts spent", _outcome(Retry(delay=0.0), max_attempts=1)),
    (Move.RETRY, State.CANCELED, "cancel asked", _overruled(Retry())),
    (Move.FAIL, State.CANCELED, "cancel asked", _overruled(Fail())),
    (Move.SNOOZE, State.CANCELED, "cancel asked", _overruled(Snooze(1.0))),
    (Move.AWAIT, State.WAITING, "no child", _outcome(Await())),
    (Move.AWAIT, State.CANCELED, "cancel asked", _overruled(Await())),
    (Move.WAIT, State.WAITING, "signal there", lambda store, _clock, given: _signaled_early(store, given)),
    (Move.WAIT, State.CANCELED, "cancel asked", _overruled(Wait("go"))),
    (Move.RELEASE, State.SCHEDULED, "delay", _outcome(Release(1.0))),
    (Move.RELEASE, State.FAILED, "over 20 releases", _released_too_often),
    (Move.RELEASE, State.CANCELED, "cancel asked", _overruled(Release())),
    (Move.EXPIRE, State.FAILED, "attempts spent", _expired(max_attempts=1)),
    (Move.EXPIRE, State.FAILED, "crashes at their cap", _expired(max_crashes=1)),
    (Move.EXPIRE, State.FAILED, "over 20 releases", _expired_unstarted_too_often),
    (Move.EXPIRE, State.CANCELED, "cancel asked", _expired(cancel=True)),
    (
        Move.RESOLVE,
        State.FAILED,
        "as failed",
        _operated(State.WAITING, lambda job, _: Resolve(ids=(job.id,), state=State.FAILED)),
    ),
    (
        Move.EDIT,
        State.SCHEDULED,
        "run_at ahead",
        _operated(State.WAITING, lambda job, now: Edit(ids=(job.id,), run_at=now + 1)),
    ),
    (
        Move.EDIT,
        State.WAITING,
        "run_at has come",
        _operated(State.SCHEDULED, lambda job, now: Edit(ids=(job.id,), run_at=now)),
    ),
    (
        Move.RERUN,
        State.SCHEDULED,
        "run_at ahead",
        _operated(State.FAILED, lambda job, now: Rerun(ids=(job.id,), run_at=now + 1)),
    ),
    (
        Move.RERUN,
        State.BLOCKED,
        "open children",
        lambda store, _clock, given: _rerun_with_open_children(store, given),
    ),
]


async def _rerun_with_open_children(store: Store, given: Given) -> Job:
    job = await given.blocked()
    await ask.operate(store, Cancel(ids=(job.id,)))
    await ask.operate(store, Rerun(ids=(job.id,)))
    return job


async def _signaled_early(store: Store, given: Given) -> Job:
    job = await given.running()
    await ask.one(store, Signal(job.id, "go"))
    await ask.settle(store, job, Wait("go"))
    return job


class MovingOtherwise:
    async def test_every_other_target_of_the_table_has_its_case(self) -> None:
        named = {(move, state) for move in COMMANDS for state in TABLE[move].otherwise}

        assert {(move, state) for move, state, _, _ in OTHERWISE} == named

    @pytest.mark.parametrize(
        ("state", "way"),
        [(state, way) for _, state, _, way in OTHERWISE],
        ids=[f"{move}-{state}-{why}" for move, state, why, _ in OTHERWISE],
    )
    async def test_a_move_leads_elsewhere_on_its_condition(
        self, store: Store, clock: FakeClock, given: Given, state: State, way: Way
    ) -> None:
        job = await way(store, clock, given)

        assert (await ask.current(store, job)).state is state
        reference, its_clock = _reference()
        await way(reference, its_clock, Given(reference))
        assert await _records(store) == await _records(reference)
