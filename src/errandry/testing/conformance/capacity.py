"""Size limits of queues and groups, priority ageing, and the order of jobs within a group."""

import pytest

from errandry.core.answer import Inserted
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    Insert,
    PromoteJobs,
    ReleaseOutcome,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.gate import GateKind, PutRule
from errandry.core.rule import OnReturn, Overflow, Rule
from errandry.core.state import Reason, State
from errandry.errors import QueueFull
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given


async def put_rule(store: Store, **fields: object) -> None:
    """Give the queue `q` a rule."""
    await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(**fields)))  # type: ignore[arg-type]


class QueueSizeLimits:
    async def test_an_insert_that_overfills_a_queue_is_refused_as_a_whole(
        self, store: Store, given: Given
    ) -> None:
        await put_rule(store, max_size=3)
        await given.inserted(*(given.new_job(queue="q") for _ in range(2)))
        before = await requests.snapshot(store)
        jobs = given.new_job(queue="other"), given.new_job(queue="q"), given.new_job(queue="q")

        answer = await requests.send(store, Insert(jobs))

        assert isinstance(answer, QueueFull)
        assert (answer.queue, answer.size, answer.bound, answer.group) == ("q", 2, 3, "")
        assert await requests.snapshot(store) == before
        assert isinstance(await requests.send(store, Insert(jobs[:2])), Inserted)

    async def test_only_waiting_jobs_count_towards_the_queue_size(self, store: Store, given: Given) -> None:
        await put_rule(store, max_size=2)
        await given.running(queue="q")
        await given.scheduled(queue="q")
        await given.blocked(queue="q")
        await given.completed(queue="q")
        await given.waiting(queue="q")
        await given.waiting(queue="q")
        await given.scheduled(queue="q")

        assert isinstance(await requests.send(store, Insert((given.new_job(queue="q"),))), QueueFull)

    async def test_the_size_limit_holds_across_the_inserts_of_one_pass(
        self, store: Store, given: Given
    ) -> None:
        await put_rule(store, max_size=3, group_max_size=2)
        answers = await store.commit([Insert((given.new_job(queue="q", group="g"),)) for _ in range(3)])
        assert [isinstance(answer, Inserted) for answer in answers] == [True, True, False]
        assert isinstance(answers[2], QueueFull)
        assert (answers[2].group, answers[2].bound) == ("g", 2)

        answers = await store.commit([Insert((given.new_job(queue="q"),)) for _ in range(3)])

        assert [isinstance(answer, Inserted) for answer in answers] == [True, False, False]

    async def test_claiming_a_job_makes_room_for_another(self, store: Store, given: Given) -> None:
        await put_rule(store, max_size=1, group_max_size=1)
        await given.waiting(queue="q", group="g")
        assert isinstance(
            await requests.send(store, Insert((given.new_job(queue="q", group="g"),))), QueueFull
        )
        await requests.claim(store)

        assert isinstance(
            await requests.send(store, Insert((given.new_job(queue="q", group="g"),))), Inserted
        )

    async def test_a_released_job_returns_even_to_a_full_queue(self, store: Store, given: Given) -> None:
        await put_rule(store, max_size=1)
        job = await given.running(queue="q")
        await given.waiting(queue="q")
        await requests.settle(store, job, ReleaseOutcome())

        assert (await store.counts())["q"] == {"waiting": 2}

    async def test_a_repeated_insert_succeeds_on_a_full_queue(self, store: Store, given: Given) -> None:
        await put_rule(store, max_size=1)
        new = given.new_job(queue="q")
        await requests.insert(store, new)

        assert await requests.insert(store, new) == Inserted((new.id,), frozenset((new.id,)))

    @pytest.mark.parametrize("bound", ["max_size", "group_max_size"])
    async def test_with_drop_oldest_the_oldest_jobs_are_dropped_to_make_room(
        self, store: Store, given: Given, bound: str
    ) -> None:
        await put_rule(store, **{bound: 3}, overflow=Overflow.DROP_OLDEST)
        for name, priority, lifo in (("a", 5, False), ("b", 0, True), ("c", -5, False)):
            await given.waiting(id=name, queue="q", group="g", priority=priority, lifo=lifo)

        answer = await requests.send(
            store, Insert(tuple(given.new_job(queue="q", group="g") for _ in range(2)))
        )

        assert isinstance(answer, Inserted)
        old = [job for job in await store.get(["a", "b", "c"]) if job is not None]
        assert [job.state for job in old] == [State.FAILED, State.FAILED, State.WAITING]
        assert old[0].reason is Reason.DROPPED
        assert (await store.counts())["q"] == {"waiting": 3, "failed": 2}
        refused = await requests.send(
            store, Insert(tuple(given.new_job(queue="q", group="g") for _ in range(4)))
        )
        assert isinstance(refused, QueueFull)


class PriorityAgeing:
    async def test_jobs_past_the_ageing_limit_go_first_oldest_first(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await put_rule(store, ageing=60.0)
        for name, priority, lifo in (("a", 9, False), ("b", 5, True), ("c", 9, False)):
            await given.waiting(id=name, queue="q", task=name, priority=priority, lifo=lifo)
            clock.advance(1)
        clock.advance(58)
        for number in range(3):
            await given.waiting(id=f"new-{number}", queue="q", task="t", priority=-5)

        assert await requests.claim_ids(store, limit=3) == ["a", "b", "new-0"]
        clock.advance(1)
        assert await requests.claim_ids(store, limit=9) == ["c", "new-1", "new-2"]

    async def test_without_ageing_priority_decides_however_long_a_job_waits(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(id="old", queue="q", priority=9)
        clock.advance(1e6)
        await given.waiting(id="new", queue="q")

        assert await requests.claim_ids(store) == ["new", "old"]

    async def test_ageing_prevents_starvation(self, store: Store, clock: FakeClock, given: Given) -> None:
        await put_rule(store, ageing=100.0)
        low_priority = await given.waiting(queue="q", priority=100)
        waited = 0
        while (await requests.current_job(store, low_priority)).state is State.WAITING:
            for _ in range(2):
                await given.waiting(queue="q", task="t", priority=0)
            await requests.claim(store, limit=1)
            clock.advance(10)
            waited += 10

        assert waited <= 110


class GroupOrder:
    @pytest.mark.parametrize(
        "outcome", [RetryOutcome(delay=0.0), ReleaseOutcome(), RetryOutcome(delay=5.0), SnoozeOutcome(5.0)]
    )
    async def test_a_returning_job_regains_its_place_in_its_group(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        outcome: RetryOutcome | ReleaseOutcome | SnoozeOutcome,
    ) -> None:
        await put_rule(store, on_return=OnReturn.KEEP_PLACE, group_limit=1)
        for name in "abc":
            await given.waiting(id=name, queue="q", group="key")
        [first] = await requests.claim(store)
        await requests.settle(store, first, outcome)
        clock.advance(5)

        claimed_ids = []
        for _ in range(3):
            [job] = await requests.claim(store, limit=5)
            claimed_ids.append(job.id)
            await requests.settle(store, job, CompleteOutcome())
        assert claimed_ids == ["a", "b", "c"]

    async def test_an_expired_job_regains_its_place_in_its_group(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await put_rule(store, on_return=OnReturn.KEEP_PLACE, group_limit=1)
        for name in "ab":
            await given.waiting(id=name, queue="q", group="key")
        await requests.claim(store, lease=5.0)
        clock.advance(5)

        assert await requests.claim_ids(store) == ["a"]

    async def test_with_hold_group_a_group_waits_for_the_retry_of_its_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await put_rule(store, on_return=OnReturn.HOLD_GROUP, group_limit=1)
        for name in "ab":
            await given.waiting(id=name, queue="q", group="key")
        other_group_job = await given.waiting(queue="q", group="other")
        [first] = await requests.claim(store, limit=1)
        await requests.settle(store, first, RetryOutcome(delay=5.0))

        assert await requests.claim_ids(store) == [other_group_job.id]
        clock.advance(4)
        assert await requests.claim_ids(store) == []
        clock.advance(1)
        assert await requests.claim_ids(store) == ["a"]

    @pytest.mark.parametrize("way", ["promote", "cancel"])
    async def test_promoting_or_canceling_the_retried_job_frees_its_held_group(
        self, store: Store, given: Given, way: str
    ) -> None:
        await put_rule(store, on_return=OnReturn.HOLD_GROUP)
        for name in "ab":
            await given.waiting(id=name, queue="q", group="key")
        [first] = await requests.claim(store, limit=1)
        await requests.settle(store, first, RetryOutcome(delay=500.0))
        assert await requests.claim_ids(store) == []

        await requests.operate(store, PromoteJobs(ids=("a",)) if way == "promote" else CancelJobs(ids=("a",)))

        assert await requests.claim_ids(store) == (["a", "b"] if way == "promote" else ["b"])

    async def test_a_returning_job_without_a_group_goes_to_the_back(self, store: Store, given: Given) -> None:
        await put_rule(store, on_return=OnReturn.HOLD_GROUP)
        for name in "ab":
            await given.waiting(id=name, queue="q", task="t")
        [first] = await requests.claim(store)
        await requests.settle(store, first, ReleaseOutcome())

        assert await requests.claim_ids(store) == ["b", "a"]
