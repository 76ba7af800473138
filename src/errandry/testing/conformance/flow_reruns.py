"""Flows: canceling and rerunning them, awaiting children from a handler, and deleting old edges."""

from typing import Any

import pytest

from errandry.core.answer import ALREADY, WRITTEN
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    FailOutcome,
    Insert,
    RemoveJobs,
    RerunJobs,
    Settle,
    Upkeep,
)
from errandry.core.flow import AwaitOutcome, ChildEnd, Edge, Policy
from errandry.core.job import Keep
from errandry.core.query import parse
from errandry.core.state import State
from errandry.errors import InvalidValue
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.flows import child_outcomes, insert_family, run_job, state_of
from errandry.testing.given import Given, ref


class FlowCancels:
    async def test_canceling_a_parent_cancels_its_children(self, store: Store, given: Given) -> None:
        parent, first, second, third = await insert_family(given, 3)
        running, completed = await given.claim(first), third
        await run_job(given, completed)

        answer = await requests.operate(store, CancelJobs(ids=(parent.id,)))

        assert answer.moved == (parent.id,)
        assert (await requests.current_job(store, second)).state is State.CANCELED
        assert (await requests.current_job(store, running)).cancel_requested
        assert (await requests.current_job(store, completed)).state is State.COMPLETED

    async def test_canceling_a_parent_cancels_its_grandchildren(self, store: Store, given: Given) -> None:
        jobs = [given.new_job(id=name) for name in "abc"]
        await given.flow(jobs, [Edge("a", "b"), Edge("b", "c")])

        await requests.operate(store, CancelJobs(ids=("a",)))

        assert [await state_of(store, name) for name in "abc"] == [State.CANCELED] * 3

    async def test_canceling_a_parent_cancels_children_that_wait_for_each_other(
        self, store: Store, given: Given
    ) -> None:
        jobs = [given.new_job(id=name) for name in "abc"]
        await given.flow(jobs, [Edge("a", "b"), Edge("a", "c"), Edge("c", "b", Policy.AFTER)])

        await requests.operate(store, CancelJobs(ids=("a",)))

        assert [await state_of(store, name) for name in "abc"] == [State.CANCELED] * 3

    async def test_canceling_a_parent_spares_a_child_that_another_parent_waits_for(
        self, store: Store, given: Given
    ) -> None:
        jobs = [given.new_job(id=name) for name in ("one", "two", "shared")]
        await given.flow(jobs, [Edge("one", "shared"), Edge("two", "shared")])

        await requests.operate(store, CancelJobs(ids=("one",)))
        assert await state_of(store, "shared") is State.WAITING
        await requests.operate(store, CancelJobs(ids=("two",)))

        assert await state_of(store, "shared") is State.CANCELED

    async def test_a_forced_cancel_of_a_completed_child_counts_it_once(
        self, store: Store, given: Given
    ) -> None:
        parent, first, _ = await insert_family(given)
        await run_job(given, first)

        await requests.operate(store, CancelJobs(ids=(first.id,), force=True))

        assert (await requests.current_job(store, parent)).open_children == 1
        assert await child_outcomes(store) == [ChildEnd.CANCELED, None]

    async def test_a_cancel_with_children_false_leaves_the_children_alone(
        self, store: Store, given: Given
    ) -> None:
        parent, first, _ = await insert_family(given)

        await requests.operate(store, CancelJobs(ids=(parent.id,), children=False))

        assert await state_of(store, first.id) is State.WAITING

    async def test_upkeep_cancels_the_children_beyond_the_limit_of_one_pass(
        self, store: Store, given: Given
    ) -> None:
        names = [f"child-{number}" for number in range(1_200)]
        jobs = [given.new_job(id=name) for name in ("parent", *names)]
        await store.commit([Insert(tuple(jobs), tuple(Edge("parent", name) for name in names))])

        await requests.operate(store, CancelJobs(ids=("parent",)))

        states = (await store.counts())["default"]
        assert states == {"canceled": 1_001, "waiting": 200}
        assert (await requests.run_upkeep(store, limit=150)).more
        assert not (await requests.run_upkeep(store, limit=150)).more
        assert (await store.counts())["default"] == {"canceled": 1_201}


class FlowReruns:
    async def test_rerunning_a_failed_child_blocks_its_parent_again(self, store: Store, given: Given) -> None:
        parent, first, second = await insert_family(given)
        await run_job(given, first, FailOutcome())

        answer = await requests.operate(store, RerunJobs(ids=(first.id,)))

        assert answer.moved == (first.id,)
        after = await requests.current_job(store, parent)
        assert (after.state, after.reason, after.open_children) == (State.BLOCKED, None, 2)
        assert await state_of(store, second.id) is State.WAITING
        await run_job(given, second)
        await run_job(given, first)
        assert await state_of(store, "parent") is State.WAITING
        assert await child_outcomes(store) == [ChildEnd.COMPLETED] * 2

    async def test_rerunning_a_failed_child_reopens_its_ancestors_and_their_other_children(
        self, store: Store, given: Given
    ) -> None:
        jobs = [given.new_job(id=name, task=name) for name in ("a", "b", "c", "d", "e")]
        edges = [Edge("a", "b"), Edge("b", "c"), Edge("a", "d"), Edge("d", "e")]
        await given.flow(jobs, edges)
        await run_job(given, await given.current_job("c"), FailOutcome())
        assert [await state_of(store, job_id) for job_id in "abde"] == [
            *(State.FAILED, State.FAILED, State.CANCELED, State.CANCELED)
        ]

        await requests.operate(store, RerunJobs(ids=("c",)))

        states = [await state_of(store, job_id) for job_id in "abcde"]
        blocked, waiting = State.BLOCKED, State.WAITING
        assert states == [blocked, blocked, waiting, blocked, waiting]
        for name in "cebda":
            await run_job(given, await given.current_job(name))

    async def test_a_parent_blocked_again_still_fails_for_another_failed_child(
        self, store: Store, given: Given
    ) -> None:
        _, first, second = await insert_family(given)
        running = await given.claim(second)
        await run_job(given, first, FailOutcome())
        await requests.settle(store, running, FailOutcome())
        await requests.operate(store, RerunJobs(ids=(first.id,)))

        await run_job(given, first)

        assert await state_of(store, "parent") is State.FAILED

    async def test_a_blocked_parent_waits_again_for_a_child_that_is_rerun(
        self, store: Store, given: Given
    ) -> None:
        parent, first, second = await insert_family(given)
        await run_job(given, first)
        await requests.operate(store, RerunJobs(ids=(first.id,)))
        assert (await requests.current_job(store, parent)).open_children == 2
        await run_job(given, second)
        assert await state_of(store, "parent") is State.BLOCKED

        await run_job(given, first)

        assert await state_of(store, "parent") is State.WAITING

    @pytest.mark.parametrize("how", ["by_id", "by_query"])
    async def test_rerunning_a_whole_flow_blocks_its_parents_in_whatever_order_jobs_are_given(
        self, store: Store, given: Given, how: str
    ) -> None:
        jobs = [given.new_job(id=name, task=name) for name in "adbc"]  # c is newer than d and waits for it
        edges = [Edge("a", "b"), Edge("a", "c"), Edge("b", "d"), Edge("c", "d")]
        _, leaf, *_ = await given.flow(jobs, edges)
        await run_job(given, leaf, FailOutcome())
        selection: dict[str, Any] = (
            {"ids": tuple("abcd")} if how == "by_id" else {"query": parse("state:failed")}
        )

        answer = await requests.operate(store, RerunJobs(**selection))

        blocked, waiting = State.BLOCKED, State.WAITING
        assert sorted(answer.moved) == list("abcd")
        assert [await state_of(store, name) for name in "abcd"] == [blocked, blocked, blocked, waiting]
        for name in "dbca":
            await run_job(given, await given.current_job(name))

    async def test_a_rerun_child_shared_by_a_parent_and_a_sibling_is_counted_once(
        self, store: Store, given: Given
    ) -> None:
        jobs = [given.new_job(id=name, task=name) for name in "abcd"]
        edges = [Edge("a", "b", Policy.FAIL), Edge("a", "c"), Edge("a", "d"), Edge("c", "d")]
        _, failing, _, leaf = await given.flow(jobs, edges)
        await run_job(given, failing, FailOutcome())
        assert [await state_of(store, name) for name in "cd"] == [State.CANCELED] * 2

        await requests.operate(store, RerunJobs(ids=(leaf.id,)))

        counted = [(await given.current_job(name)).open_children for name in "acd"]
        assert counted == [2, 1, 0]
        await run_job(given, leaf)
        assert await state_of(store, "c") is State.WAITING

    async def test_a_running_parent_keeps_the_old_result_of_a_child_that_is_rerun(
        self, store: Store, given: Given
    ) -> None:
        parent, child = await insert_family(given, 1)
        await run_job(given, child)
        running = await given.claim(parent)
        await requests.operate(store, RerunJobs(ids=(child.id,)))

        answer = await requests.operate(store, RerunJobs(ids=("parent",)))

        assert answer.moved == ()
        [edge] = await store.children("parent")
        assert (edge.outcome, edge.result) == (ChildEnd.COMPLETED, '"child-1"')

        await run_job(given, child, CompleteOutcome('"again"'))
        [edge] = await store.children("parent")
        assert (edge.outcome, edge.result) == (ChildEnd.COMPLETED, '"again"')
        assert await requests.settle(store, running, CompleteOutcome()) is WRITTEN

    async def test_a_whole_flow_reruns_from_its_leaves(self, store: Store, given: Given) -> None:
        parent, first, second = await insert_family(given)
        for job in (first, second, parent):
            await run_job(given, job)

        await requests.operate(store, RerunJobs(ids=(second.id, first.id, parent.id)))

        assert (await requests.current_job(store, parent)).open_children == 2
        for job in (first, second, parent):
            await run_job(given, job, CompleteOutcome('"again"'))
        assert [edge.result for edge in await store.children("parent")] == ['"again"'] * 2

    async def test_a_failed_parent_can_be_rerun_without_its_children(
        self, store: Store, given: Given
    ) -> None:
        parent, first, _ = await insert_family(given)
        await run_job(given, first, FailOutcome())

        await requests.operate(store, RerunJobs(ids=(parent.id,)))

        assert await state_of(store, "parent") is State.WAITING

    @pytest.mark.parametrize("state", [State.WAITING, State.RUNNING, State.COMPLETED])
    async def test_a_rerun_parent_waits_for_its_children_that_are_being_rerun(
        self, store: Store, given: Given, state: State
    ) -> None:
        parent, first, second = await insert_family(given)
        for child in (first, second):
            await run_job(given, child)
        running = await given.claim(parent) if state is not State.WAITING else None
        if running is not None and state is State.COMPLETED:
            await requests.settle(store, running, CompleteOutcome())
        await requests.operate(store, RerunJobs(ids=(first.id,)))
        assert await state_of(store, "parent") is state  # rerunning a child does not stop its parent
        if state is State.WAITING:
            running = await given.claim(parent)
        if running is not None and state is not State.COMPLETED:
            await requests.settle(store, running, CompleteOutcome())

        await requests.operate(store, RerunJobs(ids=(parent.id,)))

        after = await requests.current_job(store, parent)
        assert (after.state, after.open_children) == (State.BLOCKED, 1)
        await run_job(given, first, CompleteOutcome('"again"'))
        assert await state_of(store, "parent") is State.WAITING
        assert [edge.result for edge in await store.children("parent")] == ['"again"', '"child-2"']


class AwaitedChildren:
    async def test_a_running_job_waits_for_new_children_and_runs_again(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(id="parent", task="parent")
        children = tuple(given.new_job(id=name, task=name) for name in ("one", "two"))
        outcome = AwaitOutcome(children, (Edge("parent", "one"), Edge("parent", "two")))

        assert await requests.settle(store, job, outcome) is WRITTEN
        assert await requests.settle(store, job, outcome) is ALREADY

        after = await requests.current_job(store, job)
        assert (after.state, after.attempts, after.open_children) == (State.BLOCKED, 0, 2)
        assert (after.worker, after.lease_until) == (None, None)
        for child in children:
            await run_job(given, await given.current_job(child.id))
        reclaimed = await given.claim(job)
        assert (reclaimed.attempts, reclaimed.children) == (1, 2)
        assert reclaimed.fence > job.fence

    async def test_a_job_can_await_children_more_than_once(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent", task="parent")
        for name in ("one", "two"):
            child = given.new_job(id=name, task=name)
            await requests.settle(store, job, AwaitOutcome((child,), (Edge("parent", name),)))
            await run_job(given, await given.current_job(name))
            job = await given.claim(job)

        edges = await store.children("parent")

        assert [(edge.n, edge.result) for edge in edges] == [(0, '"one"'), (1, '"two"')]

    async def test_a_job_can_await_a_flow(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent", task="parent")
        jobs = tuple(given.new_job(id=name, task=name) for name in ("one", "two"))
        await requests.settle(store, job, AwaitOutcome(jobs, (Edge("parent", "one"), Edge("one", "two"))))
        assert await state_of(store, "one") is State.BLOCKED
        for name in ("two", "one"):
            await run_job(given, await given.current_job(name))

        assert await state_of(store, "parent") is State.WAITING

    async def test_a_cancel_request_overrides_an_await(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent")
        await requests.operate(store, CancelJobs(ids=(job.id,)))

        await requests.settle(store, job, AwaitOutcome((given.new_job(id="one"),), (Edge("parent", "one"),)))

        assert await state_of(store, "parent") is State.CANCELED
        assert await store.get(["one"]) == [None]

    async def test_an_await_with_too_large_a_child_changes_nothing(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent")
        large = given.new_job(id="child", payload='"' + "x" * 2**20 + '"')
        before = await requests.snapshot(store)

        await requests.settle(store, job, AwaitOutcome((large,), (Edge("parent", "child"),)))

        assert await requests.snapshot(store) == before

    async def test_an_await_with_an_edge_to_another_parent_is_refused(self, given: Given) -> None:
        job = await given.running(id="parent")

        with pytest.raises(InvalidValue, match="not among the jobs"):
            Settle(ref(job), AwaitOutcome((given.new_job(id="one"),), (Edge("stranger", "one"),)))


class FlowEdgeCleanup:
    async def test_upkeep_deletes_the_edges_of_a_pruned_parent_in_bounded_steps(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        parent, *children = await insert_family(given, 5, keep=Keep(60.0, 60.0, 60.0))
        for job in (*children, parent):
            await run_job(given, job)
        assert len(await store.children("parent")) == 5
        clock.advance(60)

        edge_counts = []
        for _ in range(4):
            await requests.send(store, Upkeep(2))
            edge_counts.append(len(await store.children("parent")))

        assert edge_counts[-1] == 0
        assert all(before - after <= 2 for before, after in zip([5, *edge_counts], edge_counts, strict=False))

    @pytest.mark.parametrize("keep", [Keep(0, 0, 0), None])
    async def test_upkeep_deletes_the_edges_of_a_removed_parent(
        self, store: Store, given: Given, keep: Keep | None
    ) -> None:
        parent, child = await insert_family(given, 1, keep=keep)
        await run_job(given, child)
        if keep is None:
            await requests.operate(store, RemoveJobs(ids=("parent",)))
        else:
            await run_job(given, parent)

        await requests.run_upkeep(store)

        assert await store.children("parent") == []
