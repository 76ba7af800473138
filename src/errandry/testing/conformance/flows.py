"""Flows: a parent waits for its children and is unblocked once, in the pass that settles the last of them."""

from collections.abc import Sequence
from typing import Any

import pytest

from errandry.core.answer import ALREADY, WRITTEN
from errandry.core.command import (
    CancelJobs,
    Claim,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Outcome,
    RemoveJobs,
    ResolveJobs,
    RetryOutcome,
    Settle,
)
from errandry.core.event import EventKind
from errandry.core.flow import CHILDREN_MAX, ChildEnd, Edge, Policy
from errandry.core.job import JobRecord, Keep, NewJob
from errandry.core.state import Reason, State
from errandry.core.unique import UniqueKey
from errandry.errors import InvalidValue
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref


async def insert_family(
    given: Given, children: int = 2, policy: Policy = Policy.FAIL, **fields: Any
) -> tuple[JobRecord, ...]:
    """Insert a parent and its children, `parent` and `child-1` …; each job has a task of its own name."""
    names = [f"child-{number}" for number in range(1, children + 1)]
    jobs = [given.new_job(id=name, task=name, **fields) for name in ("parent", *names)]
    return await given.flow(jobs, [Edge("parent", name, policy) for name in names])


async def run_job(given: Given, job: JobRecord, outcome: Outcome | None = None) -> None:
    """Claim the job and settle it, by default as completed with its own id as the result."""
    claimed = await given.claim(job)
    assert await requests.settle(given.store, claimed, outcome or CompleteOutcome(f'"{job.id}"')) is WRITTEN


async def state_of(store: Store, job_id: str) -> State | None:
    [job] = await store.get([job_id])
    return None if job is None else job.state


async def child_outcomes(store: Store, parent: str = "parent") -> list[ChildEnd | None]:
    return [edge.outcome for edge in await store.children(parent)]


class Flows:
    async def test_a_parent_is_blocked_and_its_children_are_not(self, given: Given) -> None:
        parent, *children = await insert_family(given, 3)

        assert (parent.state, parent.open_children, parent.children, parent.parents) == (
            State.BLOCKED,
            3,
            3,
            0,
        )
        assert [(job.state, job.parents) for job in children] == [(State.WAITING, 1)] * 3

    async def test_children_keep_their_order(self, store: Store, given: Given) -> None:
        await given.flow(
            [given.new_job(id=name) for name in ("b", "parent", "c", "a")],
            [Edge("parent", "c"), Edge("parent", "a", Policy.IGNORE), Edge("parent", "b", Policy.REMOVE)],
        )

        edges = await store.children("parent")

        assert [(edge.child, edge.policy) for edge in edges] == [
            ("c", Policy.FAIL),
            ("a", Policy.IGNORE),
            ("b", Policy.REMOVE),
        ]
        assert [edge.outcome for edge in edges] == [None] * 3

    async def test_a_blocked_job_is_not_claimed_and_not_promoted(self, store: Store, given: Given) -> None:
        await insert_family(given)

        assert await requests.claim_ids(store) == ["child-1", "child-2"]

    async def test_settling_the_last_child_unblocks_the_parent(self, store: Store, given: Given) -> None:
        parent, first, second = await insert_family(given)
        await run_job(given, first)
        assert (await requests.current_job(store, parent)).open_children == 1
        claimed = await given.claim(second)
        cursor = await store.latest_cursor()

        await requests.settle(store, claimed, CompleteOutcome("2"))

        after = await requests.current_job(store, parent)
        assert (after.state, after.open_children, after.children) == (State.WAITING, 0, 2)
        events = [(event.kind, event.job) for event in await requests.read_events(store, cursor)]
        assert events == [(EventKind.COMPLETED, "child-2"), (EventKind.WAITING, "parent")]
        assert await requests.claim_ids(store) == ["parent"]

    async def test_children_settled_in_one_pass_unblock_their_parent_once(
        self, store: Store, given: Given
    ) -> None:
        parent, *children = await insert_family(given, 3)
        claimed = [await given.claim(child) for child in children]
        cursor = await store.latest_cursor()

        await store.commit([Settle(ref(job), CompleteOutcome()) for job in claimed])

        assert [
            event.kind for event in await requests.read_events(store, cursor) if event.job == "parent"
        ] == [EventKind.WAITING]
        assert (await requests.current_job(store, parent)).state is State.WAITING

    async def test_a_parent_can_be_claimed_in_the_pass_that_settles_its_last_child(
        self, store: Store, given: Given
    ) -> None:
        _, child = await insert_family(given, 1)
        claimed = await given.claim(child)

        claim = Claim(worker="worker", nonce="nonce")
        _, claims = await store.commit([Settle(ref(claimed), CompleteOutcome()), claim])

        assert [job.id for job in claims.jobs] == ["parent"]  # type: ignore[union-attr]

    async def test_a_repeated_settle_of_a_child_counts_once(self, store: Store, given: Given) -> None:
        parent, first, _ = await insert_family(given)
        claimed = await given.claim(first)
        await requests.settle(store, claimed, CompleteOutcome())

        assert await requests.settle(store, claimed, CompleteOutcome()) is ALREADY
        assert (await requests.current_job(store, parent)).open_children == 1

    async def test_an_unblocked_parent_waits_for_its_own_run_at(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        jobs = [given.new_job(id="parent", delay=60.0), given.new_job(id="child", task="child")]
        _, child = await given.flow(jobs, [Edge("parent", "child")])

        await run_job(given, child)

        assert await state_of(store, "parent") is State.SCHEDULED
        clock.advance(60)
        assert await requests.claim_ids(store) == ["parent"]

    async def test_results_of_children_with_keep_0_stay_for_their_parent(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        _, first, second = await insert_family(given, keep=Keep(0, 0, 0))
        await run_job(given, first)
        clock.advance(86_400 * 100)
        await requests.run_upkeep(store)
        await run_job(given, second)

        edges = await store.children("parent")

        assert [(edge.outcome, edge.result) for edge in edges] == [
            (ChildEnd.COMPLETED, '"child-1"'),
            (ChildEnd.COMPLETED, '"child-2"'),
        ]
        assert await store.get(["child-1", "child-2"]) == [None, None]

    async def test_a_failed_child_fails_its_parent_and_cancels_unclaimed_siblings(
        self, store: Store, given: Given
    ) -> None:
        parent, first, second, third = await insert_family(given, 3)
        running = await given.claim(third)
        cursor = await store.latest_cursor()

        await run_job(given, first, FailOutcome())

        after = await requests.current_job(store, parent)
        assert (after.state, after.reason) == (State.FAILED, Reason.CHILD_FAILED)
        assert "child-1" in after.errors[-1].message
        sibling = await requests.current_job(store, second)
        assert (sibling.state, sibling.reason) == (State.CANCELED, Reason.CHILD_FAILED)
        assert (await requests.current_job(store, running)).state is State.RUNNING
        assert not (await requests.current_job(store, running)).cancel_requested
        events = [(event.kind, event.job) for event in await requests.read_events(store, cursor)]
        assert events[-4:] == [
            (EventKind.FAILED, "child-1"),
            (EventKind.FAILED, "parent"),
            (EventKind.CANCELED, "child-2"),
            (EventKind.DRAINED, ""),
        ]
        assert await child_outcomes(store) == [ChildEnd.FAILED, ChildEnd.CANCELED, None]

    async def test_the_outcome_of_a_child_that_ends_after_its_parent_is_recorded(
        self, store: Store, given: Given
    ) -> None:
        parent, first, second = await insert_family(given)
        running = await given.claim(second)
        await run_job(given, first, FailOutcome())

        await requests.settle(store, running, CompleteOutcome("2"))

        assert await child_outcomes(store) == [ChildEnd.FAILED, ChildEnd.COMPLETED]
        assert (await requests.current_job(store, parent)).state is State.FAILED

    async def test_with_policy_ignore_the_parent_runs_although_children_failed(
        self, store: Store, given: Given
    ) -> None:
        _, first, second, third = await insert_family(given, 3, Policy.IGNORE)
        await run_job(given, first, FailOutcome())
        await requests.operate(store, CancelJobs(ids=(second.id,)))
        assert await state_of(store, "parent") is State.BLOCKED
        await requests.operate(store, RemoveJobs(ids=(third.id,)))

        assert await state_of(store, "parent") is State.WAITING
        assert await child_outcomes(store) == [ChildEnd.FAILED, ChildEnd.CANCELED, ChildEnd.REMOVED]

    async def test_with_policy_remove_a_failed_child_removes_its_parent(
        self, store: Store, given: Given
    ) -> None:
        _, first, _two = await insert_family(given, 2, Policy.REMOVE)
        cursor = await store.latest_cursor()

        await run_job(given, first, FailOutcome())

        assert await store.get(["parent"]) == [None]
        assert await state_of(store, "child-2") is State.CANCELED
        assert (EventKind.REMOVED, "parent") in [
            (event.kind, event.job) for event in await requests.read_events(store, cursor)
        ]

    @pytest.mark.parametrize("way", ["cancel", "remove", "resolve", "lapse", "lost"])
    async def test_a_parent_fails_when_its_child_ends_without_success(
        self, store: Store, clock: FakeClock, given: Given, way: str
    ) -> None:
        jobs = [
            given.new_job(id="parent"),
            given.new_job(id="child", deadline=clock.time() + 10, max_attempts=1),
        ]
        _, child = await given.flow(jobs, [Edge("parent", "child")])
        match way:
            case "cancel":
                await requests.operate(store, CancelJobs(ids=("child",)))
            case "remove":
                await requests.operate(store, RemoveJobs(ids=("child",)))
            case "resolve":
                await requests.operate(store, ResolveJobs(ids=("child",), state=State.FAILED))
            case "lapse":
                clock.advance(10)
                await requests.run_upkeep(store)
            case "lost":
                await given.claim(child)
                clock.advance(30)
                await requests.send_claim(store)

        assert await state_of(store, "parent") is State.FAILED

    async def test_a_retried_child_still_blocks_its_parent(self, store: Store, given: Given) -> None:
        _, child = await insert_family(given, 1)
        await run_job(given, child, RetryOutcome(delay=0.0))

        assert await state_of(store, "parent") is State.BLOCKED
        await run_job(given, child)
        assert await state_of(store, "parent") is State.WAITING

    async def test_a_failure_fails_all_ancestors_and_a_success_unblocks_the_parent(
        self, store: Store, given: Given
    ) -> None:
        for word, outcome in (("good", CompleteOutcome()), ("bad", FailOutcome())):
            jobs = [given.new_job(id=f"{word}-{name}", task=f"{word}-{name}") for name in "cba"]
            await given.flow(jobs, [Edge(f"{word}-a", f"{word}-b"), Edge(f"{word}-b", f"{word}-c")])
            await run_job(given, await given.current_job(f"{word}-c"), outcome)

        assert [await state_of(store, f"good-{name}") for name in "ab"] == [State.BLOCKED, State.WAITING]
        assert [await state_of(store, f"bad-{name}") for name in "ab"] == [State.FAILED, State.FAILED]

    async def test_a_child_may_have_several_parents(self, store: Store, given: Given) -> None:
        jobs = [given.new_job(id=name, task=name) for name in ("left", "right", "other", "shared")]
        *_, other, shared = await given.flow(
            jobs, [Edge("left", "shared"), Edge("right", "shared"), Edge("right", "other", Policy.IGNORE)]
        )
        await run_job(given, shared)
        assert (await state_of(store, "left"), await state_of(store, "right")) == (
            State.WAITING,
            State.BLOCKED,
        )
        await run_job(given, other, FailOutcome())

        assert await state_of(store, "right") is State.WAITING

    async def test_a_flow_can_span_queues(self, store: Store, given: Given) -> None:
        jobs = [given.new_job(id="parent", queue="a"), given.new_job(id="child", queue="b", task="child")]
        _, child = await given.flow(jobs, [Edge("parent", "child")])
        await run_job(given, child)

        assert await requests.claim_ids(store, queues=("a",)) == ["parent"]


class FlowEdges:
    async def test_edges_keep_the_argument_paths_they_feed(self, store: Store, given: Given) -> None:
        key = UniqueKey("shared")
        jobs = [given.new_job(id=name) for name in ("parent", "a")]
        jobs += [given.new_job(id=name, unique=key) for name in ("b", "c")]
        edges = (
            Edge("parent", "a"),
            Edge("parent", "b", feeds=("parts[0]", "total")),
            Edge("parent", "c", feeds=("parts[1]",)),
        )
        await requests.send(store, Insert(tuple(jobs), edges))

        stored = await store.children("parent")

        assert [(edge.child, edge.feeds) for edge in stored] == [
            ("a", ()),
            ("b", ("parts[0]", "total", "parts[1]")),
        ]

    @pytest.mark.parametrize("path", ["", "parts[", "parts[x]", "parts[1][2]", "a b", "1"])
    async def test_an_edge_that_feeds_an_invalid_argument_path_is_refused(self, path: str) -> None:
        with pytest.raises(InvalidValue, match="feeds"):
            Edge("parent", "child", feeds=(path,))

    async def test_a_repeated_insert_of_a_flow_changes_nothing(self, store: Store, given: Given) -> None:
        jobs = [given.new_job(id=name, task=name, keep=Keep(0, 0, 0)) for name in ("parent", "one", "two")]
        edges = (Edge("parent", "one"), Edge("parent", "two"))
        await given.flow(jobs, edges)
        await run_job(given, await given.current_job("one"))

        answer = await requests.send(store, Insert(tuple(jobs), edges))

        assert answer.existed == {"parent", "one", "two"}  # type: ignore[union-attr]
        assert await store.get(["one"]) == [None]
        assert (await given.current_job("parent")).open_children == 1

    @pytest.mark.parametrize("state", [State.WAITING, State.RUNNING, State.COMPLETED, State.FAILED])
    async def test_an_existing_job_can_become_a_child(self, store: Store, given: Given, state: State) -> None:
        child = await given.in_state(state, id="child", task="child")

        await given.flow([given.new_job(id="parent"), _same_job(child)], [Edge("parent", "child")])

        parent = await given.current_job("parent")

        expected = {State.COMPLETED: State.WAITING, State.FAILED: State.FAILED}.get(state, State.BLOCKED)
        assert parent.state is expected
        if state is State.RUNNING:
            await requests.settle(store, child, CompleteOutcome("7"))
            assert await state_of(store, "parent") is State.WAITING

    async def test_an_existing_job_cannot_become_a_parent(self, store: Store, given: Given) -> None:
        await given.waiting(id="parent")
        before = await requests.snapshot(store)

        answer = await requests.send(
            store, Insert((given.new_job(id="parent"), given.new_job(id="child")), (Edge("parent", "child"),))
        )

        assert isinstance(answer, InvalidValue)
        assert "child" in str(answer)
        assert await requests.snapshot(store) == before

    async def test_one_too_large_payload_refuses_the_whole_flow(self, store: Store, given: Given) -> None:
        large = given.new_job(id="child", payload='"' + "x" * 2**20 + '"')

        await requests.send(store, Insert((given.new_job(id="parent"), large), (Edge("parent", "child"),)))

        assert await requests.list_jobs(store) == []
        assert await store.children("parent") == []

    @pytest.mark.parametrize(
        ("edges", "why"),
        [
            ((("a", "x"),), "not among the jobs"),
            ((("x", "a"),), "not among the jobs"),
            ((("a", "a"),), "circle"),
            ((("a", "b"), ("b", "c"), ("c", "a")), "circle"),
            ((("a", "b"), ("a", "b")), "twice"),
        ],
    )
    async def test_an_invalid_graph_is_refused(
        self, given: Given, edges: Sequence[tuple[str, str]], why: str
    ) -> None:
        jobs = tuple(given.new_job(id=name) for name in "abc")

        with pytest.raises(InvalidValue, match=why):
            Insert(jobs, tuple(Edge(*edge) for edge in edges))

    async def test_a_parent_with_more_than_10_000_children_is_refused(self, given: Given) -> None:
        names = [str(number) for number in range(CHILDREN_MAX + 1)]

        with pytest.raises(InvalidValue, match="at most 10,000 children, not 10,001"):
            Insert(
                tuple(given.new_job(id=name) for name in ("parent", *names)),
                tuple(Edge("parent", name) for name in names),
            )


def _same_job(job: JobRecord) -> NewJob:
    return NewJob(id=job.id, task=job.task, payload=job.payload)
