"""Flows that are canceled, run again, grow while they run, and are forgotten."""

from typing import Any

import pytest

from errandry.core.answer import ALREADY, WRITTEN
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Outcome,
    RemoveJobs,
    RerunJobs,
    Settle,
    Upkeep,
)
from errandry.core.flow import AwaitOutcome, ChildEnd, Edge, Policy
from errandry.core.job import JobRecord, Keep
from errandry.core.query import parse
from errandry.core.state import State
from errandry.errors import InvalidValue
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref


async def _family(
    given: Given, children: int = 2, policy: Policy = Policy.FAIL, **fields: Any
) -> tuple[JobRecord, ...]:
    """A parent and its children, `parent` and `child-1` …, each of a task of its own name."""
    names = [f"child-{number}" for number in range(1, children + 1)]
    jobs = [given.job(id=name, task=name, **fields) for name in ("parent", *names)]
    return await given.flow(jobs, [Edge("parent", name, policy) for name in names])


async def _end(given: Given, job: JobRecord, outcome: Outcome | None = None) -> None:
    taken = await given.taken(job)
    assert await requests.settle(given.store, taken, outcome or CompleteOutcome(f'"{job.id}"')) is WRITTEN


async def _state(store: Store, job_id: str) -> State | None:
    [job] = await store.get([job_id])
    return None if job is None else job.state


async def _outcomes(store: Store, parent: str = "parent") -> list[ChildEnd | None]:
    return [link.outcome for link in await store.children(parent)]


class Canceling:
    async def test_canceling_a_parent_cancels_its_children(self, store: Store, given: Given) -> None:
        parent, one, two, three = await _family(given, 3)
        running, done = await given.taken(one), three
        await _end(given, done)

        answer = await requests.operate(store, CancelJobs(ids=(parent.id,)))

        assert answer.moved == (parent.id,)
        assert (await requests.current(store, two)).state is State.CANCELED
        assert (await requests.current(store, running)).cancel_requested
        assert (await requests.current(store, done)).state is State.COMPLETED

    async def test_and_theirs(self, store: Store, given: Given) -> None:
        jobs = [given.job(id=name) for name in "abc"]
        await given.flow(jobs, [Edge("a", "b"), Edge("b", "c")])

        await requests.operate(store, CancelJobs(ids=("a",)))

        assert [await _state(store, name) for name in "abc"] == [State.CANCELED] * 3

    async def test_in_the_same_pass_those_that_wait_for_each_other(self, store: Store, given: Given) -> None:
        jobs = [given.job(id=name) for name in "abc"]
        await given.flow(jobs, [Edge("a", "b"), Edge("a", "c"), Edge("c", "b", Policy.AFTER)])

        await requests.operate(store, CancelJobs(ids=("a",)))

        assert [await _state(store, name) for name in "abc"] == [State.CANCELED] * 3

    async def test_but_not_what_another_parent_waits_for(self, store: Store, given: Given) -> None:
        jobs = [given.job(id=name) for name in ("one", "two", "shared")]
        await given.flow(jobs, [Edge("one", "shared"), Edge("two", "shared")])

        await requests.operate(store, CancelJobs(ids=("one",)))
        assert await _state(store, "shared") is State.WAITING
        await requests.operate(store, CancelJobs(ids=("two",)))

        assert await _state(store, "shared") is State.CANCELED

    async def test_a_child_that_has_ended_and_is_canceled_by_force_counts_once(
        self, store: Store, given: Given
    ) -> None:
        parent, one, _ = await _family(given)
        await _end(given, one)

        await requests.operate(store, CancelJobs(ids=(one.id,), force=True))

        assert (await requests.current(store, parent)).open_children == 1
        assert await _outcomes(store) == [ChildEnd.CANCELED, None]

    async def test_unless_told_not_to(self, store: Store, given: Given) -> None:
        parent, one, _ = await _family(given)

        await requests.operate(store, CancelJobs(ids=(parent.id,), children=False))

        assert await _state(store, one.id) is State.WAITING

    async def test_what_a_pass_cannot_cancel_upkeep_does(self, store: Store, given: Given) -> None:
        names = [f"child-{number}" for number in range(1_200)]
        jobs = [given.job(id=name) for name in ("parent", *names)]
        await store.commit([Insert(tuple(jobs), tuple(Edge("parent", name) for name in names))])

        await requests.operate(store, CancelJobs(ids=("parent",)))

        states = (await store.counts())["default"]
        assert states == {"canceled": 1_001, "waiting": 200}
        assert (await requests.upkeep(store, limit=150)).more
        assert not (await requests.upkeep(store, limit=150)).more
        assert (await store.counts())["default"] == {"canceled": 1_201}


class Rerunning:
    async def test_rerunning_a_failed_child_reopens_its_parent(self, store: Store, given: Given) -> None:
        parent, one, two = await _family(given)
        await _end(given, one, FailOutcome())

        answer = await requests.operate(store, RerunJobs(ids=(one.id,)))

        assert answer.moved == (one.id,)
        after = await requests.current(store, parent)
        assert (after.state, after.reason, after.open_children) == (State.BLOCKED, None, 2)
        assert await _state(store, two.id) is State.WAITING
        await _end(given, two)
        await _end(given, one)
        assert await _state(store, "parent") is State.WAITING
        assert await _outcomes(store) == [ChildEnd.COMPLETED] * 2

    async def test_and_its_parents_parent(self, store: Store, given: Given) -> None:
        jobs = [given.job(id=name, task=name) for name in ("a", "b", "c", "d", "e")]
        edges = [Edge("a", "b"), Edge("b", "c"), Edge("a", "d"), Edge("d", "e")]
        await given.flow(jobs, edges)
        await _end(given, await given.current("c"), FailOutcome())
        assert [await _state(store, one) for one in "abde"] == [
            *(State.FAILED, State.FAILED, State.CANCELED, State.CANCELED)
        ]

        await requests.operate(store, RerunJobs(ids=("c",)))

        states = [await _state(store, one) for one in "abcde"]
        blocked, waiting = State.BLOCKED, State.WAITING
        assert states == [blocked, blocked, waiting, blocked, waiting]
        for name in "cebda":
            await _end(given, await given.current(name))

    async def test_a_parent_that_waits_again_still_cannot_do_without_the_other(
        self, store: Store, given: Given
    ) -> None:
        _, one, two = await _family(given)
        running = await given.taken(two)
        await _end(given, one, FailOutcome())
        await requests.settle(store, running, FailOutcome())
        await requests.operate(store, RerunJobs(ids=(one.id,)))

        await _end(given, one)

        assert await _state(store, "parent") is State.FAILED

    async def test_a_child_rerun_while_its_parent_waits_is_waited_for_again(
        self, store: Store, given: Given
    ) -> None:
        parent, one, two = await _family(given)
        await _end(given, one)
        await requests.operate(store, RerunJobs(ids=(one.id,)))
        assert (await requests.current(store, parent)).open_children == 2
        await _end(given, two)
        assert await _state(store, "parent") is State.BLOCKED

        await _end(given, one)

        assert await _state(store, "parent") is State.WAITING

    @pytest.mark.parametrize("how", ["by_id", "by_query"])
    async def test_what_runs_again_together_is_waited_for_whatever_the_order(
        self, store: Store, given: Given, how: str
    ) -> None:
        jobs = [given.job(id=name, task=name) for name in "adbc"]  # c is newer than d, and waits for it
        edges = [Edge("a", "b"), Edge("a", "c"), Edge("b", "d"), Edge("c", "d")]
        _, leaf, *_ = await given.flow(jobs, edges)
        await _end(given, leaf, FailOutcome())
        meant: dict[str, Any] = {"ids": tuple("abcd")} if how == "by_id" else {"query": parse("state:failed")}

        again = await requests.operate(store, RerunJobs(**meant))

        blocked, waiting = State.BLOCKED, State.WAITING
        assert sorted(again.moved) == list("abcd")
        assert [await _state(store, name) for name in "abcd"] == [blocked, blocked, blocked, waiting]
        for name in "dbca":
            await _end(given, await given.current(name))

    async def test_a_child_of_a_parent_and_of_its_sibling_is_counted_once(
        self, store: Store, given: Given
    ) -> None:
        jobs = [given.job(id=name, task=name) for name in "abcd"]
        edges = [Edge("a", "b", Policy.FAIL), Edge("a", "c"), Edge("a", "d"), Edge("c", "d")]
        _, failing, _, leaf = await given.flow(jobs, edges)
        await _end(given, failing, FailOutcome())
        assert [await _state(store, name) for name in "cd"] == [State.CANCELED] * 2

        await requests.operate(store, RerunJobs(ids=(leaf.id,)))

        counted = [(await given.current(name)).open_children for name in "acd"]
        assert counted == [2, 1, 0]
        await _end(given, leaf)
        assert await _state(store, "c") is State.WAITING

    async def test_a_parent_that_goes_on_keeps_what_its_child_left(self, store: Store, given: Given) -> None:
        parent, child = await _family(given, 1)
        await _end(given, child)
        running = await given.taken(parent)
        await requests.operate(store, RerunJobs(ids=(child.id,)))

        refused = await requests.operate(store, RerunJobs(ids=("parent",)))

        assert refused.moved == ()
        [told] = await store.children("parent")
        assert (told.outcome, told.result) == (ChildEnd.COMPLETED, '"child-1"')

        await _end(given, child, CompleteOutcome('"again"'))
        [told] = await store.children("parent")
        assert (told.outcome, told.result) == (ChildEnd.COMPLETED, '"again"')
        assert await requests.settle(store, running, CompleteOutcome()) is WRITTEN

    async def test_a_whole_flow_reruns_from_its_leaves(self, store: Store, given: Given) -> None:
        parent, one, two = await _family(given)
        for job in (one, two, parent):
            await _end(given, job)

        await requests.operate(store, RerunJobs(ids=(two.id, one.id, parent.id)))

        assert (await requests.current(store, parent)).open_children == 2
        for job in (one, two, parent):
            await _end(given, job, CompleteOutcome('"again"'))
        assert [link.result for link in await store.children("parent")] == ['"again"'] * 2

    async def test_a_parent_may_run_with_what_its_children_left(self, store: Store, given: Given) -> None:
        parent, one, _ = await _family(given)
        await _end(given, one, FailOutcome())

        await requests.operate(store, RerunJobs(ids=(parent.id,)))

        assert await _state(store, "parent") is State.WAITING

    @pytest.mark.parametrize("state", [State.WAITING, State.RUNNING, State.COMPLETED])
    async def test_a_parent_that_runs_again_waits_for_children_that_do(
        self, store: Store, given: Given, state: State
    ) -> None:
        parent, one, two = await _family(given)
        for child in (one, two):
            await _end(given, child)
        running = await given.taken(parent) if state is not State.WAITING else None
        if running is not None and state is State.COMPLETED:
            await requests.settle(store, running, CompleteOutcome())
        await requests.operate(store, RerunJobs(ids=(one.id,)))
        assert await _state(store, "parent") is state  # it goes on with what there is
        if state is State.WAITING:
            running = await given.taken(parent)
        if running is not None and state is not State.COMPLETED:
            await requests.settle(store, running, CompleteOutcome())

        await requests.operate(store, RerunJobs(ids=(parent.id,)))

        again = await requests.current(store, parent)
        assert (again.state, again.open_children) == (State.BLOCKED, 1)
        await _end(given, one, CompleteOutcome('"again"'))
        assert await _state(store, "parent") is State.WAITING
        assert [link.result for link in await store.children("parent")] == ['"again"', '"child-2"']


class Awaiting:
    async def test_a_running_job_waits_for_new_children_and_runs_again(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(id="parent", task="parent")
        children = tuple(given.job(id=name, task=name) for name in ("one", "two"))
        outcome = AwaitOutcome(children, (Edge("parent", "one"), Edge("parent", "two")))

        assert await requests.settle(store, job, outcome) is WRITTEN
        assert await requests.settle(store, job, outcome) is ALREADY

        after = await requests.current(store, job)
        assert (after.state, after.attempts, after.open_children) == (State.BLOCKED, 0, 2)
        assert (after.worker, after.lease_until) == (None, None)
        for child in children:
            await _end(given, await given.current(child.id))
        again = await given.taken(job)
        assert (again.attempts, again.children) == (1, 2)
        assert again.fence > job.fence

    async def test_more_than_once(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent", task="parent")
        for name in ("one", "two"):
            child = given.job(id=name, task=name)
            await requests.settle(store, job, AwaitOutcome((child,), (Edge("parent", name),)))
            await _end(given, await given.current(name))
            job = await given.taken(job)

        links = await store.children("parent")

        assert [(link.n, link.result) for link in links] == [(0, '"one"'), (1, '"two"')]

    async def test_with_a_flow_of_its_own(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent", task="parent")
        jobs = tuple(given.job(id=name, task=name) for name in ("one", "two"))
        await requests.settle(store, job, AwaitOutcome(jobs, (Edge("parent", "one"), Edge("one", "two"))))
        assert await _state(store, "one") is State.BLOCKED
        for name in ("two", "one"):
            await _end(given, await given.current(name))

        assert await _state(store, "parent") is State.WAITING

    async def test_a_cancel_asked_for_wins(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent")
        await requests.operate(store, CancelJobs(ids=(job.id,)))

        await requests.settle(store, job, AwaitOutcome((given.job(id="one"),), (Edge("parent", "one"),)))

        assert await _state(store, "parent") is State.CANCELED
        assert await store.get(["one"]) == [None]

    async def test_what_is_too_large_changes_nothing(self, store: Store, given: Given) -> None:
        job = await given.running(id="parent")
        large = given.job(id="child", payload='"' + "x" * 2**20 + '"')
        before = await requests.everything(store)

        await requests.settle(store, job, AwaitOutcome((large,), (Edge("parent", "child"),)))

        assert await requests.everything(store) == before

    async def test_children_beyond_the_bound_are_refused(self, given: Given) -> None:
        job = await given.running(id="parent")

        with pytest.raises(InvalidValue, match="not among the jobs"):
            Settle(ref(job), AwaitOutcome((given.job(id="one"),), (Edge("stranger", "one"),)))


class Forgetting:
    async def test_edges_go_with_their_parent_in_bounded_steps(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        parent, *children = await _family(given, 5, keep=Keep(60.0, 60.0, 60.0))
        for job in (*children, parent):
            await _end(given, job)
        assert len(await store.children("parent")) == 5
        clock.advance(60)

        left = []
        for _ in range(4):
            await requests.one(store, Upkeep(2))
            left.append(len(await store.children("parent")))

        assert left[-1] == 0
        assert all(before - after <= 2 for before, after in zip([5, *left], left, strict=False))

    @pytest.mark.parametrize("keep", [Keep(0, 0, 0), None])
    async def test_edges_of_a_parent_that_was_removed_go(
        self, store: Store, given: Given, keep: Keep | None
    ) -> None:
        parent, child = await _family(given, 1, keep=keep)
        await _end(given, child)
        if keep is None:
            await requests.operate(store, RemoveJobs(ids=("parent",)))
        else:
            await _end(given, parent)

        await requests.upkeep(store)

        assert await store.children("parent") == []
