"""Unique keys: who holds one, until when, and what becomes of another job that wants it."""

from collections.abc import Callable
from typing import Any

import pytest

from errandry.core.answer import Claims, Inserted
from errandry.core.command import (
    CancelJobs,
    Claim,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Insert,
    OperatorCommand,
    Outcome,
    PostponeJobs,
    Ref,
    RemoveJobs,
    ResolveJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
)
from errandry.core.event import EventKind
from errandry.core.job import Keep
from errandry.core.state import State
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.errors import DuplicateJob, TooLarge
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given

KEY = UniqueKey("invoice 7")
HOUR = UniqueKey("invoice 7", UniqueScope.WINDOW, 3_600.0)
EVER = UniqueKey("invoice 7", UniqueScope.EVER)
RAISE, REPLACE = Conflict.RAISE, Conflict.REPLACE
LIVE = (State.BLOCKED, State.SCHEDULED, State.WAITING, State.CLAIMED, State.RUNNING)
ENDED = (State.COMPLETED, State.FAILED, State.CANCELED)
UNTAKEN = (State.BLOCKED, State.SCHEDULED, State.WAITING)


async def is_free(store: Store, given: Given, unique: UniqueKey = KEY, **fields: Any) -> bool:
    """Whether another job gets the key. It does not keep it."""
    new = given.job(unique=unique, **fields)
    answer = await requests.insert(store, new)
    if answer == Inserted((new.id,)):
        await requests.operate(store, RemoveJobs(ids=(new.id,)))
        return True
    return False


class Holding:
    """While a job is alive."""

    async def test_a_key_is_kept_with_its_job(self, store: Store, given: Given) -> None:
        unique = UniqueKey("Größe ☂ 😀 '\"\\", UniqueScope.WINDOW, 0.25, per_queue=True)

        job = await given.waiting(unique=unique)

        assert job.unique == unique
        assert [one.unique for one in await requests.jobs(store)] == [unique]
        ended = await requests.current(store, await given.completed(unique=KEY))
        assert ended.unique == KEY

    @pytest.mark.parametrize("state", LIVE)
    async def test_a_live_job_keeps_its_key_from_others(
        self, store: Store, given: Given, state: State
    ) -> None:
        holder = await given.brought(state, unique=KEY)
        before = await requests.everything(store)

        answer = await requests.insert(store, given.job(unique=KEY, payload="[2]", queue="elsewhere"))

        assert answer == Inserted((holder.id,), frozenset({holder.id}))
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("state", LIVE)
    async def test_raise_refuses_and_names_the_holder(self, store: Store, given: Given, state: State) -> None:
        holder = await given.brought(state, unique=KEY)
        before = await requests.everything(store)

        answer = await requests.one(store, Insert((given.job(unique=KEY, on_conflict=RAISE),)))

        assert isinstance(answer, DuplicateJob)
        assert (answer.key, answer.job_id) == ("invoice 7", holder.id)
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("state", [*ENDED, None])
    async def test_the_key_of_a_job_that_is_alive_no_more_is_free(
        self, store: Store, given: Given, state: State | None
    ) -> None:
        await given.brought(state, unique=KEY)

        assert await is_free(store, given)

    @pytest.mark.parametrize("outcome", [CompleteOutcome(), FailOutcome(), GiveUpOutcome()])
    async def test_a_job_kept_for_no_time_frees_its_key(
        self, store: Store, given: Given, outcome: Outcome
    ) -> None:
        job = await given.running(unique=KEY, keep=Keep(0, 0, 0))
        await requests.settle(store, job, outcome)

        assert await requests.is_gone(store, job)
        assert await is_free(store, given)

    @pytest.mark.parametrize(
        "outcome", [RetryOutcome(delay=0), RetryOutcome(delay=60.0), SnoozeOutcome(60.0)]
    )
    async def test_a_job_that_is_to_run_again_keeps_its_key(
        self, store: Store, given: Given, outcome: Outcome
    ) -> None:
        await given.settled(outcome, unique=KEY)

        assert not await is_free(store, given)

    @pytest.mark.parametrize(
        "command",
        [
            lambda ids: CancelJobs(ids=ids),
            lambda ids: RemoveJobs(ids=ids),
            lambda ids: ResolveJobs(ids=ids),
            lambda ids: ResolveJobs(ids=ids, state=State.FAILED),
        ],
    )
    async def test_what_an_operator_ends_frees_its_key(
        self, store: Store, given: Given, command: Callable[[tuple[str, ...]], OperatorCommand]
    ) -> None:
        job = await given.waiting(unique=KEY)
        await requests.operate(store, command((job.id,)))

        assert await is_free(store, given)

    @pytest.mark.parametrize(
        "command",
        [
            lambda ids: EditJobs(ids=ids, payload="[2]", priority=5),
            lambda ids: PostponeJobs(ids=ids, delay=60.0),
        ],
    )
    async def test_what_an_operator_changes_keeps_its_key(
        self, store: Store, given: Given, command: Callable[[tuple[str, ...]], OperatorCommand]
    ) -> None:
        job = await given.waiting(unique=KEY)
        await requests.operate(store, command((job.id,)))

        assert not await is_free(store, given)

    async def test_a_lapsed_job_and_one_whose_workers_died_free_their_keys(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(unique=KEY, deadline=clock.time() + 10)
        other = UniqueKey("other")
        await given.running(unique=other, max_attempts=1, lease=10)
        clock.advance(11)
        await requests.upkeep(store)

        assert await is_free(store, given)
        assert await is_free(store, given, other)

    async def test_a_key_that_a_pass_frees_can_be_taken_in_that_pass(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(unique=KEY)
        new = given.job(unique=KEY, on_conflict=RAISE)

        _, answer = await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome()), Insert((new,))])

        assert answer == Inserted((new.id,))
        assert not await is_free(store, given)

    async def test_of_two_inserts_in_one_pass_the_first_gets_the_key(
        self, store: Store, given: Given
    ) -> None:
        first, second, third = (given.job(unique=KEY) for _ in range(3))
        third = given.job(unique=KEY, on_conflict=RAISE)

        answers = await store.commit([Insert((first,)), Insert((second,)), Insert((third,))])

        assert answers[:2] == [Inserted((first.id,)), Inserted((first.id,), frozenset({first.id}))]
        assert isinstance(answers[2], DuplicateJob)
        assert [job.id for job in await requests.jobs(store)] == [first.id]

    async def test_a_job_that_runs_in_the_pass_that_inserts_it_has_its_key(
        self, store: Store, given: Given
    ) -> None:
        new = given.job(unique=KEY)
        _, claims = await store.commit([Insert((new,)), Claim(worker="w", nonce="n")])

        assert isinstance(claims, Claims)
        assert [job.unique for job in claims.jobs] == [KEY]
        assert not await is_free(store, given)

    async def test_keys_differ_and_jobs_without_one_are_many(self, store: Store, given: Given) -> None:
        answer = await requests.insert(
            store,
            *(
                given.job(unique=UniqueKey(key))
                for key in ("a", "A", "a ", "á", "\N{FULLWIDTH LATIN SMALL LETTER A}")
            ),
            *(given.job() for _ in range(3)),
        )

        assert answer.existed == frozenset()
        assert len(await requests.jobs(store)) == 8

    async def test_per_queue_every_queue_has_a_key_of_its_own(self, store: Store, given: Given) -> None:
        mine = UniqueKey("k", per_queue=True)
        mail = await given.waiting(unique=mine, queue="mail")

        assert await is_free(store, given, mine, queue="print")
        assert await is_free(store, given, UniqueKey("k"), queue="mail")
        assert (await requests.insert(store, given.job(unique=mine, queue="mail"))).ids == (mail.id,)

    async def test_an_insert_sent_again_is_no_conflict_with_itself(self, store: Store, given: Given) -> None:
        new = given.job(unique=KEY, on_conflict=RAISE)
        await requests.insert(store, new)

        assert await requests.insert(store, new) == Inserted((new.id,), frozenset({new.id}))

    async def test_an_id_that_is_there_counts_before_the_key(self, store: Store, given: Given) -> None:
        holder, other = await given.waiting(unique=KEY), await given.waiting()

        answer = await requests.insert(store, given.job(id=other.id, unique=KEY, on_conflict=RAISE))

        assert answer == Inserted((other.id,), frozenset({other.id}))
        assert not await is_free(store, given)
        await requests.operate(store, RemoveJobs(ids=(holder.id,)))
        assert await is_free(store, given)


class HoldingInBulk:
    async def test_each_job_is_answered_with_the_one_that_holds_its_key(
        self, store: Store, given: Given
    ) -> None:
        holder = await given.waiting(unique=KEY)
        a, b, c = given.job(), given.job(unique=KEY), given.job(unique=UniqueKey("other"))

        answer = await requests.insert(store, a, b, c)

        assert answer == Inserted((a.id, holder.id, c.id), frozenset({holder.id}))
        assert {job.id for job in await requests.jobs(store)} == {holder.id, a.id, c.id}

    async def test_of_equal_keys_the_first_gets_it(self, store: Store, given: Given) -> None:
        a, b = given.job(unique=KEY), given.job(unique=KEY)

        assert await requests.insert(store, a, b) == Inserted((a.id, a.id))
        assert [job.id for job in await requests.jobs(store)] == [a.id]

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_raise_refuses_the_whole_insert(self, store: Store, given: Given, place: int) -> None:
        holder = await given.waiting(unique=KEY)
        before = await requests.everything(store)
        jobs = [given.job(unique=UniqueKey("a")), given.job(unique=UniqueKey("b"))]
        jobs.insert(place, given.job(unique=KEY, on_conflict=RAISE))

        answer = await requests.one(store, Insert(tuple(jobs)))

        assert isinstance(answer, DuplicateJob)
        assert answer.job_id == holder.id
        assert await requests.everything(store) == before
        assert await is_free(store, given, UniqueKey("a"))
        assert await is_free(store, given, UniqueKey("b"))

    async def test_two_equal_keys_and_raise_refuse_each_other(self, store: Store, given: Given) -> None:
        a, b = (given.job(unique=KEY, on_conflict=RAISE) for _ in range(2))
        before = await requests.everything(store)

        answer = await requests.one(store, Insert((a, b)))

        assert isinstance(answer, DuplicateJob)
        assert (answer.key, answer.job_id) == ("invoice 7", a.id)
        assert await requests.everything(store) == before

    async def test_a_refused_insert_takes_no_key(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(payload=10))
        given = Given(store)

        answer = await requests.one(store, Insert((given.job(unique=KEY), given.job(payload='"123456789"'))))

        assert isinstance(answer, TooLarge)
        assert await is_free(store, given)

    async def test_thousands_of_keys_at_once(self, store: Store, given: Given) -> None:
        jobs = [given.job(task="t", unique=UniqueKey(f"key {number}")) for number in range(3_000)]
        assert (await requests.insert(store, *jobs)).existed == frozenset()

        again = [given.job(task="t", unique=UniqueKey(f"key {number}")) for number in range(2_000, 4_000)]
        answer = await requests.insert(store, *again)

        assert answer.ids[:1_000] == tuple(job.id for job in jobs[2_000:])
        assert len(answer.existed) == 1_000
        assert await store.counts() == {"default": {"waiting": 4_000}}


class Replacing:
    """Debounce: the last of several that come before a worker does is the one that counts."""

    @pytest.mark.parametrize("state", UNTAKEN)
    async def test_the_holder_gets_the_payload_and_the_time(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        holder = await given.brought(state, unique=KEY, payload="[1]", metadata="[1]", tags=("old",))
        clock.advance(1)

        new = given.job(unique=KEY, on_conflict=REPLACE, payload="[2]", metadata="[2]", delay=30.0)
        answer = await requests.insert(store, new)

        assert answer == Inserted((holder.id,), frozenset({holder.id}), frozenset({holder.id}))
        job = await requests.current(store, holder)
        assert (job.payload, job.run_at, job.tags) == ("[2]", clock.time() + 30.0, ("old",))
        assert job.metadata == "[2]", "it says of what version the arguments are, and which are not shown"
        assert job.state is (State.BLOCKED if state is State.BLOCKED else State.SCHEDULED)
        assert (job.seq, job.created_at, job.task) == (holder.seq, holder.created_at, holder.task)

    @pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
    async def test_a_holder_that_a_worker_has_is_left_alone(
        self, store: Store, given: Given, state: State
    ) -> None:
        holder = await given.brought(state, unique=KEY)
        before = await requests.everything(store)

        answer = await requests.insert(store, given.job(unique=KEY, on_conflict=REPLACE, payload="[2]"))

        assert answer == Inserted((holder.id,), frozenset({holder.id}))
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("state", [*ENDED, None])
    async def test_a_holder_that_has_ended_or_is_gone_is_left_alone(
        self, store: Store, given: Given, state: State | None
    ) -> None:
        holder = await given.brought(state, unique=HOUR)
        before = await requests.everything(store)

        answer = await requests.insert(store, given.job(unique=HOUR, on_conflict=REPLACE, payload="[2]"))

        assert answer == Inserted((holder.id,), frozenset({holder.id}))
        assert await requests.everything(store) == before

    async def test_the_event_is_edited(self, store: Store, given: Given) -> None:
        holder = await given.scheduled(unique=KEY)
        head = await store.latest_cursor()

        await requests.insert(store, given.job(unique=KEY, on_conflict=REPLACE))

        [event] = await requests.events(store, head)
        assert (event.kind, event.job) == (EventKind.EDITED, holder.id)
        assert (await requests.current(store, holder)).state is State.WAITING

    async def test_who_is_in_line_already_keeps_the_place(self, store: Store, given: Given) -> None:
        first = await given.waiting(unique=KEY, task="t")
        second = await given.waiting(task="t")

        await requests.insert(store, given.job(unique=KEY, on_conflict=REPLACE, payload="[2]"))

        assert await requests.order(store) == [first.id, second.id]

    async def test_in_one_insert_the_last_one_counts(self, store: Store, given: Given) -> None:
        a, b = (given.job(unique=KEY, on_conflict=REPLACE, payload=text) for text in ("[1]", "[2]"))

        answer = await requests.insert(store, a, b)

        assert answer == Inserted((a.id, a.id), frozenset(), frozenset({a.id}))
        assert [(job.id, job.payload) for job in await requests.jobs(store)] == [(a.id, "[2]")]

    async def test_a_free_key_is_simply_taken(self, store: Store, given: Given) -> None:
        new = given.job(unique=KEY, on_conflict=REPLACE, delay=5.0)

        assert await requests.insert(store, new) == Inserted((new.id,))
        assert not await is_free(store, given)
