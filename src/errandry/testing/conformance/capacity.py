"""Queues that take only so many, jobs that have waited too long, groups that keep their order."""

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
from errandry.core.job import JobOrder
from errandry.core.rule import Comeback, Overflow, Rule
from errandry.core.state import Reason, State
from errandry.errors import QueueFull
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given


async def rule(store: Store, **fields: object) -> None:
    await requests.one(store, PutRule(GateKind.QUEUE, "q", Rule(**fields)))  # type: ignore[arg-type]


class Bounding:
    async def test_an_insert_into_a_full_queue_is_refused_whole(self, store: Store, given: Given) -> None:
        await rule(store, max_size=3)
        await given.inserted(*(given.job(queue="q") for _ in range(2)))
        before = await requests.everything(store)
        jobs = given.job(queue="other"), given.job(queue="q"), given.job(queue="q")

        answer = await requests.one(store, Insert(jobs))

        assert isinstance(answer, QueueFull)
        assert (answer.queue, answer.size, answer.bound, answer.group) == ("q", 2, 3, "")
        assert await requests.everything(store) == before
        assert isinstance(await requests.one(store, Insert(jobs[:2])), Inserted)

    async def test_only_jobs_that_wait_count(self, store: Store, given: Given) -> None:
        await rule(store, max_size=2)
        await given.running(queue="q")
        await given.scheduled(queue="q")
        await given.blocked(queue="q")
        await given.completed(queue="q")
        await given.waiting(queue="q")
        await given.waiting(queue="q")
        await given.scheduled(queue="q")

        assert isinstance(await requests.one(store, Insert((given.job(queue="q"),))), QueueFull)

    async def test_a_bound_holds_across_inserts_of_one_pass(self, store: Store, given: Given) -> None:
        await rule(store, max_size=3, group_max_size=2)
        answers = await store.commit([Insert((given.job(queue="q", group="g"),)) for _ in range(3)])
        assert [isinstance(answer, Inserted) for answer in answers] == [True, True, False]
        assert isinstance(answers[2], QueueFull)
        assert (answers[2].group, answers[2].bound) == ("g", 2)

        answers = await store.commit([Insert((given.job(queue="q"),)) for _ in range(3)])

        assert [isinstance(answer, Inserted) for answer in answers] == [True, False, False]

    async def test_there_is_room_when_a_job_was_claimed(self, store: Store, given: Given) -> None:
        await rule(store, max_size=1, group_max_size=1)
        await given.waiting(queue="q", group="g")
        assert isinstance(await requests.one(store, Insert((given.job(queue="q", group="g"),))), QueueFull)
        await requests.claim(store)

        assert isinstance(await requests.one(store, Insert((given.job(queue="q", group="g"),))), Inserted)

    async def test_a_job_that_comes_back_is_never_turned_away(self, store: Store, given: Given) -> None:
        await rule(store, max_size=1)
        job = await given.running(queue="q")
        await given.waiting(queue="q")
        await requests.settle(store, job, ReleaseOutcome())

        assert (await store.counts())["q"] == {"waiting": 2}

    async def test_a_repeated_insert_needs_no_room(self, store: Store, given: Given) -> None:
        await rule(store, max_size=1)
        new = given.job(queue="q")
        await requests.insert(store, new)

        assert await requests.insert(store, new) == Inserted((new.id,), frozenset((new.id,)))

    @pytest.mark.parametrize("bound", ["max_size", "group_max_size"])
    async def test_the_oldest_make_room_where_the_rule_says_so(
        self, store: Store, given: Given, bound: str
    ) -> None:
        await rule(store, **{bound: 3}, overflow=Overflow.DROP_OLDEST)
        for name, priority, order in (("a", 5, "fifo"), ("b", 0, "lifo"), ("c", -5, "fifo")):
            await given.waiting(id=name, queue="q", group="g", priority=priority, order=JobOrder(order))

        answer = await requests.one(store, Insert(tuple(given.job(queue="q", group="g") for _ in range(2))))

        assert isinstance(answer, Inserted)
        old = [job for job in await store.get(["a", "b", "c"]) if job is not None]
        assert [job.state for job in old] == [State.FAILED, State.FAILED, State.WAITING]
        assert old[0].reason is Reason.DROPPED
        assert (await store.counts())["q"] == {"waiting": 3, "failed": 2}
        refused = await requests.one(store, Insert(tuple(given.job(queue="q", group="g") for _ in range(4))))
        assert isinstance(refused, QueueFull)


class Ageing:
    async def test_who_has_waited_too_long_goes_first_oldest_first(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await rule(store, ageing=60.0)
        for name, priority, order in (("a", 9, "fifo"), ("b", 5, "lifo"), ("c", 9, "fifo")):
            await given.waiting(id=name, queue="q", task=name, priority=priority, order=JobOrder(order))
            clock.advance(1)
        clock.advance(58)
        for number in range(3):
            await given.waiting(id=f"new-{number}", queue="q", task="t", priority=-5)

        assert await requests.order(store, limit=3) == ["a", "b", "new-0"]
        clock.advance(1)
        assert await requests.order(store, limit=9) == ["c", "new-1", "new-2"]

    async def test_without_ageing_nobody_is_too_old(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(id="old", queue="q", priority=9)
        clock.advance(1e6)
        await given.waiting(id="new", queue="q")

        assert await requests.order(store) == ["new", "old"]

    async def test_nobody_starves(self, store: Store, clock: FakeClock, given: Given) -> None:
        await rule(store, ageing=100.0)
        poor = await given.waiting(queue="q", priority=100)
        waited = 0
        while (await requests.current(store, poor)).state is State.WAITING:
            for _ in range(2):
                await given.waiting(queue="q", task="t", priority=0)
            await requests.claim(store, limit=1)
            clock.advance(10)
            waited += 10

        assert waited <= 110


class KeepingOrder:
    @pytest.mark.parametrize(
        "outcome", [RetryOutcome(delay=0.0), ReleaseOutcome(), RetryOutcome(delay=5.0), SnoozeOutcome(5.0)]
    )
    async def test_a_job_that_comes_back_has_its_place_again(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        outcome: RetryOutcome | ReleaseOutcome | SnoozeOutcome,
    ) -> None:
        await rule(store, order=Comeback.PLACE, group_limit=1)
        for name in "abc":
            await given.waiting(id=name, queue="q", group="key")
        [first] = await requests.claim(store)
        await requests.settle(store, first, outcome)
        clock.advance(5)

        taken = []
        for _ in range(3):
            [job] = await requests.claim(store, limit=5)
            taken.append(job.id)
            await requests.settle(store, job, CompleteOutcome())
        assert taken == ["a", "b", "c"]

    async def test_a_job_whose_worker_died_has_its_place_again(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await rule(store, order=Comeback.PLACE, group_limit=1)
        for name in "ab":
            await given.waiting(id=name, queue="q", group="key")
        await requests.claim(store, lease=5.0)
        clock.advance(5)

        assert await requests.order(store) == ["a"]

    async def test_a_group_is_held_while_its_job_waits_for_a_retry(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await rule(store, order=Comeback.HOLD, group_limit=1)
        for name in "ab":
            await given.waiting(id=name, queue="q", group="key")
        other = await given.waiting(queue="q", group="other")
        [first] = await requests.claim(store, limit=1)
        await requests.settle(store, first, RetryOutcome(delay=5.0))

        assert await requests.order(store) == [other.id]
        clock.advance(4)
        assert await requests.order(store) == []
        clock.advance(1)
        assert await requests.order(store) == ["a"]

    @pytest.mark.parametrize("way", ["promote", "cancel"])
    async def test_a_group_is_held_no_longer_than_its_job_waits(
        self, store: Store, given: Given, way: str
    ) -> None:
        await rule(store, order=Comeback.HOLD)
        for name in "ab":
            await given.waiting(id=name, queue="q", group="key")
        [first] = await requests.claim(store, limit=1)
        await requests.settle(store, first, RetryOutcome(delay=500.0))
        assert await requests.order(store) == []

        await requests.operate(store, PromoteJobs(ids=("a",)) if way == "promote" else CancelJobs(ids=("a",)))

        assert await requests.order(store) == (["a", "b"] if way == "promote" else ["b"])

    async def test_jobs_without_a_group_go_to_the_back_as_ever(self, store: Store, given: Given) -> None:
        await rule(store, order=Comeback.HOLD)
        for name in "ab":
            await given.waiting(id=name, queue="q", task="t")
        [first] = await requests.claim(store)
        await requests.settle(store, first, ReleaseOutcome())

        assert await requests.order(store) == ["b", "a"]
