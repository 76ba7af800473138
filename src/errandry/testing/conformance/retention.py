"""Retention by count: of each task and state the newest finished jobs are kept."""

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


class KeepByCount:
    @pytest.mark.parametrize("state", ENDS)
    async def test_only_the_newest_jobs_of_a_task_and_state_are_kept(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        jobs = [await _finished_job(given, clock, ENDS[state]) for _ in range(5)]

        assert (await requests.run_upkeep(store)).pruned == 3

        assert await requests.list_jobs(store) == [jobs[4], jobs[3]]
        assert (await requests.run_upkeep(store)).pruned == 0

    async def test_the_newest_jobs_are_those_that_ended_last(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        slow = await given.running(task="send", keep=LAST_2)
        others = [await _finished_job(given, clock, CompleteOutcome()) for _ in range(2)]
        clock.advance(1)
        await requests.settle(store, slow, CompleteOutcome())

        await requests.run_upkeep(store)

        assert {job.id for job in await requests.list_jobs(store)} == {slow.id, others[1].id}

    async def test_a_parent_that_fails_with_its_child_in_the_same_upkeep_is_counted(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(2):
            await _finished_job(given, clock, FailOutcome())
        parent = given.new_job(id="parent", task="send", keep=LAST_2)
        child = given.new_job(id="child", task="other", deadline=clock.time() + 5)
        await given.flow((parent, child), (Edge("parent", "child"),))
        clock.advance(5)

        assert (await requests.run_upkeep(store)).pruned == 1

        remaining = [job.id for job in await requests.list_jobs(store) if job.task == "send"]
        assert (len(remaining), remaining[0]) == (2, "parent")

    async def test_each_task_and_each_state_is_counted_separately(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for task in ("send", "resize"):
            for state in (*[State.COMPLETED] * 3, *[State.FAILED] * 2):
                await _finished_job(given, clock, ENDS[state], task=task)

        assert (await requests.run_upkeep(store)).pruned == 2

        assert await store.counts() == {"default": {"completed": 4, "failed": 4}}

    async def test_jobs_are_counted_across_queues(self, store: Store, clock: FakeClock, given: Given) -> None:
        for queue in ("a", "b", "c"):
            await _finished_job(given, clock, CompleteOutcome(), queue=queue)

        await requests.run_upkeep(store)

        assert await store.counts() == {"a": {}, "b": {"completed": 1}, "c": {"completed": 1}}

    async def test_the_newest_job_decides_how_many_are_kept(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for last in (3, 3, 3, 1):
            await _finished_job(given, clock, CompleteOutcome(), keep=Keep(last_completed=last))

        assert (await requests.run_upkeep(store)).pruned == 3

    async def test_jobs_without_a_keep_count_are_neither_counted_nor_removed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for keep in (None, Keep(completed=60.0), LAST_2, Keep(last_failed=1), LAST_2, None):
            await _finished_job(given, clock, CompleteOutcome(), keep=keep)

        assert (await requests.run_upkeep(store)).pruned == 1

        remaining = [job.keep for job in await requests.list_jobs(store)]
        assert remaining == [None, LAST_2, Keep(last_failed=1), Keep(completed=60.0), None]

    async def test_a_job_kept_by_count_is_still_pruned_by_age(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _finished_job(given, clock, CompleteOutcome(), keep=Keep(completed=10.0, last_completed=2))
        clock.advance(10)

        assert (await requests.run_upkeep(store)).pruned == 1

    async def test_upkeep_prunes_at_most_its_limit_per_call(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(6):
            await _finished_job(given, clock, CompleteOutcome(), task="send")
        for _ in range(3):
            await _finished_job(given, clock, CompleteOutcome(), task="a")

        results = [await requests.run_upkeep(store, limit=3) for _ in range(3)]

        assert [(result.pruned, result.more) for result in results] == [(3, True), (2, False), (0, False)]

    async def test_a_rerun_or_removed_job_is_no_longer_counted(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        jobs = [await _finished_job(given, clock, CompleteOutcome()) for _ in range(3)]
        await requests.operate(store, RerunJobs(ids=(jobs[2].id,)))

        assert (await requests.run_upkeep(store)).pruned == 0
        await requests.operate(store, RemoveJobs(ids=(jobs[2].id,)))
        assert (await requests.run_upkeep(store)).pruned == 0


class PrunableJobs:
    async def test_prunable_lists_the_jobs_that_upkeep_will_prune(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        old = await _finished_job(given, clock, CompleteOutcome(), task="other", keep=Keep(completed=10.0))
        jobs = [await _finished_job(given, clock, CompleteOutcome()) for _ in range(4)]
        clock.advance(10)

        assert await store.prunable() == [old, jobs[0], jobs[1]]
        assert await store.prunable(2) == [old, jobs[0]]
        assert (await requests.run_upkeep(store)).pruned == 3
        assert await store.prunable() == []

    async def test_upkeep_with_prune_false_prunes_no_jobs(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.completed(keep=Keep(completed=10.0))
        due = await given.scheduled(10.0)
        clock.advance(10)

        result = await requests.send(store, Upkeep(prune=False))

        assert (result.promoted, result.pruned) == (1, 0)  # type: ignore[union-attr]
        assert (await requests.current_job(store, due)).state is State.WAITING
        assert await requests.current_job(store, job) == job


async def _finished_job(given: Given, clock: FakeClock, outcome: Outcome, **fields: Any) -> JobRecord:
    """A job that finished a second after the previous one; task `send` and `LAST_2` unless given."""
    clock.advance(1)
    return await given.settled(outcome, **({"task": "send", "keep": LAST_2} | fields))
