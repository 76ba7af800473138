"""Unique keys: which job holds a key, until when, and what an insert with a held key does."""

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
HOUR_KEY = UniqueKey("invoice 7", UniqueScope.WINDOW, 3_600.0)
FOREVER_KEY = UniqueKey("invoice 7", UniqueScope.EVER)
RAISE, REPLACE = Conflict.RAISE, Conflict.REPLACE
LIVE = (State.BLOCKED, State.SCHEDULED, State.WAITING, State.CLAIMED, State.RUNNING)
FINISHED = (State.COMPLETED, State.FAILED, State.CANCELED)
NOT_CLAIMED = (State.BLOCKED, State.SCHEDULED, State.WAITING)


async def is_free(store: Store, given: Given, unique: UniqueKey = KEY, **fields: Any) -> bool:
    """Whether an insert gets the key. The inserted job is removed again."""
    new_job = given.new_job(unique=unique, **fields)
    answer = await requests.insert(store, new_job)
    if answer == Inserted((new_job.id,)):
        await requests.operate(store, RemoveJobs(ids=(new_job.id,)))
        return True
    return False


class UniqueKeys:
    """Keys that a job holds while it is live, that is, not finished."""

    async def test_a_unique_key_is_stored_with_its_job(self, store: Store, given: Given) -> None:
        unique = UniqueKey("Größe ☂ 😀 '\"\\", UniqueScope.WINDOW, 0.25, per_queue=True)

        job = await given.waiting(unique=unique)

        assert job.unique == unique
        assert [one.unique for one in await requests.list_jobs(store)] == [unique]
        completed = await requests.current_job(store, await given.completed(unique=KEY))
        assert completed.unique == KEY

    @pytest.mark.parametrize("state", LIVE)
    async def test_an_insert_with_the_key_of_a_live_job_answers_that_job(
        self, store: Store, given: Given, state: State
    ) -> None:
        holder = await given.in_state(state, unique=KEY)
        before = await requests.snapshot(store)

        answer = await requests.insert(store, given.new_job(unique=KEY, payload="[2]", queue="elsewhere"))

        assert answer == Inserted((holder.id,), frozenset({holder.id}))
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("state", LIVE)
    async def test_with_raise_a_conflict_is_refused_and_names_the_holder(
        self, store: Store, given: Given, state: State
    ) -> None:
        holder = await given.in_state(state, unique=KEY)
        before = await requests.snapshot(store)

        answer = await requests.send(store, Insert((given.new_job(unique=KEY, on_conflict=RAISE),)))

        assert isinstance(answer, DuplicateJob)
        assert (answer.key, answer.job_id) == ("invoice 7", holder.id)
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("state", [*FINISHED, None])
    async def test_a_finished_or_removed_job_frees_its_key(
        self, store: Store, given: Given, state: State | None
    ) -> None:
        await given.in_state(state, unique=KEY)

        assert await is_free(store, given)

    @pytest.mark.parametrize("outcome", [CompleteOutcome(), FailOutcome(), GiveUpOutcome()])
    async def test_a_job_with_keep_0_frees_its_key(
        self, store: Store, given: Given, outcome: Outcome
    ) -> None:
        job = await given.running(unique=KEY, keep=Keep(0, 0, 0))
        await requests.settle(store, job, outcome)

        assert await requests.is_gone(store, job)
        assert await is_free(store, given)

    @pytest.mark.parametrize(
        "outcome", [RetryOutcome(delay=0), RetryOutcome(delay=60.0), SnoozeOutcome(60.0)]
    )
    async def test_a_retried_or_snoozed_job_keeps_its_key(
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
    async def test_a_job_that_an_operator_ends_frees_its_key(
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
    async def test_a_job_that_an_operator_edits_or_postpones_keeps_its_key(
        self, store: Store, given: Given, command: Callable[[tuple[str, ...]], OperatorCommand]
    ) -> None:
        job = await given.waiting(unique=KEY)
        await requests.operate(store, command((job.id,)))

        assert not await is_free(store, given)

    async def test_lapsed_and_expired_jobs_free_their_keys(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(unique=KEY, deadline=clock.time() + 10)
        other = UniqueKey("other")
        await given.running(unique=other, max_attempts=1, lease=10)
        clock.advance(11)
        await requests.run_upkeep(store)

        assert await is_free(store, given)
        assert await is_free(store, given, other)

    async def test_a_key_freed_by_a_pass_can_be_taken_in_the_same_pass(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(unique=KEY)
        new = given.new_job(unique=KEY, on_conflict=RAISE)

        _, answer = await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome()), Insert((new,))])

        assert answer == Inserted((new.id,))
        assert not await is_free(store, given)

    async def test_of_two_inserts_in_one_pass_the_first_gets_the_key(
        self, store: Store, given: Given
    ) -> None:
        first, second, third = (given.new_job(unique=KEY) for _ in range(3))
        third = given.new_job(unique=KEY, on_conflict=RAISE)

        answers = await store.commit([Insert((first,)), Insert((second,)), Insert((third,))])

        assert answers[:2] == [Inserted((first.id,)), Inserted((first.id,), frozenset({first.id}))]
        assert isinstance(answers[2], DuplicateJob)
        assert [job.id for job in await requests.list_jobs(store)] == [first.id]

    async def test_a_job_claimed_in_the_pass_that_inserts_it_has_its_key(
        self, store: Store, given: Given
    ) -> None:
        new = given.new_job(unique=KEY)
        _, claims = await store.commit([Insert((new,)), Claim(worker="w", nonce="n")])

        assert isinstance(claims, Claims)
        assert [job.unique for job in claims.jobs] == [KEY]
        assert not await is_free(store, given)

    async def test_similar_keys_are_different_and_jobs_without_a_key_never_conflict(
        self, store: Store, given: Given
    ) -> None:
        answer = await requests.insert(
            store,
            *(
                given.new_job(unique=UniqueKey(key))
                for key in ("a", "A", "a ", "á", "\N{FULLWIDTH LATIN SMALL LETTER A}")
            ),
            *(given.new_job() for _ in range(3)),
        )

        assert answer.existed == frozenset()
        assert len(await requests.list_jobs(store)) == 8

    async def test_keys_per_queue_conflict_within_their_queue_only(self, store: Store, given: Given) -> None:
        mine = UniqueKey("k", per_queue=True)
        mail = await given.waiting(unique=mine, queue="mail")

        assert await is_free(store, given, mine, queue="print")
        assert await is_free(store, given, UniqueKey("k"), queue="mail")
        assert (await requests.insert(store, given.new_job(unique=mine, queue="mail"))).ids == (mail.id,)

    async def test_a_repeated_insert_does_not_conflict_with_itself(self, store: Store, given: Given) -> None:
        new = given.new_job(unique=KEY, on_conflict=RAISE)
        await requests.insert(store, new)

        assert await requests.insert(store, new) == Inserted((new.id,), frozenset({new.id}))

    async def test_an_existing_id_is_checked_before_the_key(self, store: Store, given: Given) -> None:
        holder, other = await given.waiting(unique=KEY), await given.waiting()

        answer = await requests.insert(store, given.new_job(id=other.id, unique=KEY, on_conflict=RAISE))

        assert answer == Inserted((other.id,), frozenset({other.id}))
        assert not await is_free(store, given)
        await requests.operate(store, RemoveJobs(ids=(holder.id,)))
        assert await is_free(store, given)


class UniqueKeysInBulk:
    async def test_a_bulk_insert_answers_the_holder_of_each_key(self, store: Store, given: Given) -> None:
        holder = await given.waiting(unique=KEY)
        a, b, c = given.new_job(), given.new_job(unique=KEY), given.new_job(unique=UniqueKey("other"))

        answer = await requests.insert(store, a, b, c)

        assert answer == Inserted((a.id, holder.id, c.id), frozenset({holder.id}))
        assert {job.id for job in await requests.list_jobs(store)} == {holder.id, a.id, c.id}

    async def test_of_equal_keys_in_one_insert_the_first_job_gets_the_key(
        self, store: Store, given: Given
    ) -> None:
        a, b = given.new_job(unique=KEY), given.new_job(unique=KEY)

        assert await requests.insert(store, a, b) == Inserted((a.id, a.id))
        assert [job.id for job in await requests.list_jobs(store)] == [a.id]

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_with_raise_one_conflict_refuses_the_whole_insert(
        self, store: Store, given: Given, place: int
    ) -> None:
        holder = await given.waiting(unique=KEY)
        before = await requests.snapshot(store)
        jobs = [given.new_job(unique=UniqueKey("a")), given.new_job(unique=UniqueKey("b"))]
        jobs.insert(place, given.new_job(unique=KEY, on_conflict=RAISE))

        answer = await requests.send(store, Insert(tuple(jobs)))

        assert isinstance(answer, DuplicateJob)
        assert answer.job_id == holder.id
        assert await requests.snapshot(store) == before
        assert await is_free(store, given, UniqueKey("a"))
        assert await is_free(store, given, UniqueKey("b"))

    async def test_with_raise_two_equal_keys_in_one_insert_are_refused(
        self, store: Store, given: Given
    ) -> None:
        a, b = (given.new_job(unique=KEY, on_conflict=RAISE) for _ in range(2))
        before = await requests.snapshot(store)

        answer = await requests.send(store, Insert((a, b)))

        assert isinstance(answer, DuplicateJob)
        assert (answer.key, answer.job_id) == ("invoice 7", a.id)
        assert await requests.snapshot(store) == before

    async def test_a_refused_insert_takes_no_key(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(payload=10))
        given = Given(store)

        answer = await requests.send(
            store, Insert((given.new_job(unique=KEY), given.new_job(payload='"123456789"')))
        )

        assert isinstance(answer, TooLarge)
        assert await is_free(store, given)

    async def test_one_insert_can_take_thousands_of_keys(self, store: Store, given: Given) -> None:
        jobs = [given.new_job(task="t", unique=UniqueKey(f"key {number}")) for number in range(3_000)]
        assert (await requests.insert(store, *jobs)).existed == frozenset()

        conflicting = [
            given.new_job(task="t", unique=UniqueKey(f"key {number}")) for number in range(2_000, 4_000)
        ]
        answer = await requests.insert(store, *conflicting)

        assert answer.ids[:1_000] == tuple(job.id for job in jobs[2_000:])
        assert len(answer.existed) == 1_000
        assert await store.counts() == {"default": {"waiting": 4_000}}


class ReplaceOnConflict:
    """Debounce: of several inserts before a worker claims the job, the payload of the last is used."""

    @pytest.mark.parametrize("state", NOT_CLAIMED)
    async def test_replace_gives_the_holder_the_new_payload_metadata_and_run_at(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        holder = await given.in_state(state, unique=KEY, payload="[1]", metadata="[1]", tags=("old",))
        clock.advance(1)

        new = given.new_job(unique=KEY, on_conflict=REPLACE, payload="[2]", metadata="[2]", delay=30.0)
        answer = await requests.insert(store, new)

        assert answer == Inserted((holder.id,), frozenset({holder.id}), frozenset({holder.id}))
        job = await requests.current_job(store, holder)
        assert (job.payload, job.run_at, job.tags) == ("[2]", clock.time() + 30.0, ("old",))
        assert job.metadata == "[2]", "it says of what version the arguments are, and which are not shown"
        assert job.state is (State.BLOCKED if state is State.BLOCKED else State.SCHEDULED)
        assert (job.seq, job.created_at, job.task) == (holder.seq, holder.created_at, holder.task)

    @pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
    async def test_replace_leaves_a_claimed_or_running_holder_alone(
        self, store: Store, given: Given, state: State
    ) -> None:
        holder = await given.in_state(state, unique=KEY)
        before = await requests.snapshot(store)

        answer = await requests.insert(store, given.new_job(unique=KEY, on_conflict=REPLACE, payload="[2]"))

        assert answer == Inserted((holder.id,), frozenset({holder.id}))
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("state", [*FINISHED, None])
    async def test_replace_leaves_a_finished_or_removed_holder_alone(
        self, store: Store, given: Given, state: State | None
    ) -> None:
        holder = await given.in_state(state, unique=HOUR_KEY)
        before = await requests.snapshot(store)

        answer = await requests.insert(
            store, given.new_job(unique=HOUR_KEY, on_conflict=REPLACE, payload="[2]")
        )

        assert answer == Inserted((holder.id,), frozenset({holder.id}))
        assert await requests.snapshot(store) == before

    async def test_replace_is_reported_as_edited(self, store: Store, given: Given) -> None:
        holder = await given.scheduled(unique=KEY)
        cursor = await store.latest_cursor()

        await requests.insert(store, given.new_job(unique=KEY, on_conflict=REPLACE))

        [event] = await requests.read_events(store, cursor)
        assert (event.kind, event.job) == (EventKind.EDITED, holder.id)
        assert (await requests.current_job(store, holder)).state is State.WAITING

    async def test_replace_keeps_the_place_of_a_waiting_holder(self, store: Store, given: Given) -> None:
        first = await given.waiting(unique=KEY, task="t")
        second = await given.waiting(task="t")

        await requests.insert(store, given.new_job(unique=KEY, on_conflict=REPLACE, payload="[2]"))

        assert await requests.claim_ids(store) == [first.id, second.id]

    async def test_with_replace_the_last_of_equal_keys_in_one_insert_wins(
        self, store: Store, given: Given
    ) -> None:
        a, b = (given.new_job(unique=KEY, on_conflict=REPLACE, payload=text) for text in ("[1]", "[2]"))

        answer = await requests.insert(store, a, b)

        assert answer == Inserted((a.id, a.id), frozenset(), frozenset({a.id}))
        assert [(job.id, job.payload) for job in await requests.list_jobs(store)] == [(a.id, "[2]")]

    async def test_replace_inserts_the_job_if_its_key_is_free(self, store: Store, given: Given) -> None:
        new = given.new_job(unique=KEY, on_conflict=REPLACE, delay=5.0)

        assert await requests.insert(store, new) == Inserted((new.id,))
        assert not await is_free(store, given)
