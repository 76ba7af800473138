"""Finished jobs that are kept by number: the newest of their task and state."""

from typing import Any

import pytest

from errandry.core.command import (
    CompleteOutcome,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    RemoveJobs,
    RerunJobs,
    Upkeep,
)
from errandry.core.flow import Edge
from errandry.core.job import JobRecord, Keep
from errandry.core.state import State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

LAST_2 = Keep(last_completed=2, last_failed=2, last_canceled=2)
ENDS: dict[State, Outcome] = {
    State.COMPLETED: CompleteOutcome(),
    State.FAILED: FailOutcome(),
    State.CANCELED: GiveUpOutcome(),
}


class Retaining:
    @pytest.mark.parametrize("state", ENDS)
    async def test_only_the_newest_of_a_task_and_state_stay(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        jobs = [await _ended(given, clock, ENDS[state]) for _ in range(5)]

        assert (await requests.upkeep(store)).pruned == 3

        assert await requests.jobs(store) == [jobs[4], jobs[3]]
        assert (await requests.upkeep(store)).pruned == 0

    async def test_the_last_are_those_that_ended_last(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        slow = await given.running(task="send", keep=LAST_2)
        others = [await _ended(given, clock, CompleteOutcome()) for _ in range(2)]
        clock.advance(1)
        await requests.settle(store, slow, CompleteOutcome())

        await requests.upkeep(store)

        assert {job.id for job in await requests.jobs(store)} == {slow.id, others[1].id}

    async def test_one_that_ends_in_the_same_upkeep_with_its_child_counts(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(2):
            await _ended(given, clock, FailOutcome())
        parent = given.job(id="parent", task="send", keep=LAST_2)
        child = given.job(id="child", task="other", deadline=clock.time() + 5)
        await given.flow((parent, child), (Edge("parent", "child"),))
        clock.advance(5)

        assert (await requests.upkeep(store)).pruned == 1

        left = [job.id for job in await requests.jobs(store) if job.task == "send"]
        assert (len(left), left[0]) == (2, "parent")

    async def test_each_task_and_each_state_has_its_own(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for task in ("send", "resize"):
            for state in (*[State.COMPLETED] * 3, *[State.FAILED] * 2):
                await _ended(given, clock, ENDS[state], task=task)

        assert (await requests.upkeep(store)).pruned == 2

        assert await store.counts() == {"default": {"completed": 4, "failed": 4}}

    async def test_the_queue_does_not_matter(self, store: Store, clock: FakeClock, given: Given) -> None:
        for queue in ("a", "b", "c"):
            await _ended(given, clock, CompleteOutcome(), queue=queue)

        await requests.upkeep(store)

        assert await store.counts() == {"a": {}, "b": {"completed": 1}, "c": {"completed": 1}}

    async def test_the_newest_says_how_many(self, store: Store, clock: FakeClock, given: Given) -> None:
        for last in (3, 3, 3, 1):
            await _ended(given, clock, CompleteOutcome(), keep=Keep(last_completed=last))

        assert (await requests.upkeep(store)).pruned == 3

    async def test_who_says_nothing_of_numbers_is_neither_counted_nor_removed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for keep in (None, Keep(completed=60.0), LAST_2, Keep(last_failed=1), LAST_2, None):
            await _ended(given, clock, CompleteOutcome(), keep=keep)

        assert (await requests.upkeep(store)).pruned == 1

        left = [job.keep for job in await requests.jobs(store)]
        assert left == [None, LAST_2, Keep(last_failed=1), Keep(completed=60.0), None]

    async def test_age_holds_as_well(self, store: Store, clock: FakeClock, given: Given) -> None:
        await _ended(given, clock, CompleteOutcome(), keep=Keep(completed=10.0, last_completed=2))
        clock.advance(10)

        assert (await requests.upkeep(store)).pruned == 1

    async def test_upkeep_prunes_so_many_at_a_time(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(6):
            await _ended(given, clock, CompleteOutcome(), task="send")
        for _ in range(3):
            await _ended(given, clock, CompleteOutcome(), task="a")

        kept = [await requests.upkeep(store, limit=3) for _ in range(3)]

        assert [(one.pruned, one.more) for one in kept] == [(3, True), (2, False), (0, False)]

    async def test_a_job_that_runs_again_makes_room(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        jobs = [await _ended(given, clock, CompleteOutcome()) for _ in range(3)]
        await requests.operate(store, RerunJobs(ids=(jobs[2].id,)))

        assert (await requests.upkeep(store)).pruned == 0
        await requests.operate(store, RemoveJobs(ids=(jobs[2].id,)))
        assert (await requests.upkeep(store)).pruned == 0


class Outliving:
    async def test_who_is_to_go_can_be_seen_before(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        old = await _ended(given, clock, CompleteOutcome(), task="other", keep=Keep(completed=10.0))
        jobs = [await _ended(given, clock, CompleteOutcome()) for _ in range(4)]
        clock.advance(10)

        assert await store.prunable() == [old, jobs[0], jobs[1]]
        assert await store.prunable(2) == [old, jobs[0]]
        assert (await requests.upkeep(store)).pruned == 3
        assert await store.prunable() == []

    async def test_upkeep_leaves_them_to_who_asked_for_that(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.completed(keep=Keep(completed=10.0))
        due = await given.scheduled(10.0)
        clock.advance(10)

        kept = await requests.one(store, Upkeep(prune=False))

        assert (kept.promoted, kept.pruned) == (1, 0)  # type: ignore[union-attr]
        assert (await requests.current(store, due)).state is State.WAITING
        assert await requests.current(store, job) == job


async def _ended(given: Given, clock: FakeClock, outcome: Outcome, **fields: Any) -> JobRecord:
    """A job of one task, kept by number, a second after the one before."""
    clock.advance(1)
    return await given.settled(outcome, **({"task": "send", "keep": LAST_2} | fields))
