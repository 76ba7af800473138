"""Flows: parents wait for their children, and are released once, in the step of the last one's end."""

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


class Flowing:
    async def test_a_parent_is_blocked_and_its_children_are_not(self, given: Given) -> None:
        parent, *children = await _family(given, 3)

        assert (parent.state, parent.open_children, parent.children, parent.parents) == (
            State.BLOCKED,
            3,
            3,
            0,
        )
        assert [(job.state, job.parents) for job in children] == [(State.WAITING, 1)] * 3

    async def test_children_keep_their_order(self, store: Store, given: Given) -> None:
        await given.flow(
            [given.job(id=name) for name in ("b", "parent", "c", "a")],
            [Edge("parent", "c"), Edge("parent", "a", Policy.IGNORE), Edge("parent", "b", Policy.REMOVE)],
        )

        links = await store.children("parent")

        assert [(link.child, link.policy) for link in links] == [
            ("c", Policy.FAIL),
            ("a", Policy.IGNORE),
            ("b", Policy.REMOVE),
        ]
        assert [link.outcome for link in links] == [None] * 3

    async def test_a_blocked_job_is_not_claimed_and_not_promoted(self, store: Store, given: Given) -> None:
        await _family(given)

        assert await requests.order(store) == ["child-1", "child-2"]

    async def test_the_last_childs_settle_releases_the_parent(self, store: Store, given: Given) -> None:
        parent, one, two = await _family(given)
        await _end(given, one)
        assert (await requests.current(store, parent)).open_children == 1
        taken = await given.taken(two)
        head = await store.latest_cursor()

        await requests.settle(store, taken, CompleteOutcome("2"))

        after = await requests.current(store, parent)
        assert (after.state, after.open_children, after.children) == (State.WAITING, 0, 2)
        events = [(event.kind, event.job) for event in await requests.events(store, head)]
        assert events == [(EventKind.COMPLETED, "child-2"), (EventKind.WAITING, "parent")]
        assert await requests.order(store) == ["parent"]

    async def test_children_settled_in_one_pass_release_their_parent_once(
        self, store: Store, given: Given
    ) -> None:
        parent, *children = await _family(given, 3)
        taken = [await given.taken(child) for child in children]
        head = await store.latest_cursor()

        await store.commit([Settle(ref(job), CompleteOutcome()) for job in taken])

        assert [event.kind for event in await requests.events(store, head) if event.job == "parent"] == [
            EventKind.WAITING
        ]
        assert (await requests.current(store, parent)).state is State.WAITING

    async def test_a_claim_in_the_pass_of_the_last_settle_takes_the_parent(
        self, store: Store, given: Given
    ) -> None:
        _, child = await _family(given, 1)
        taken = await given.taken(child)

        wanted = Claim(worker="worker", nonce="nonce")
        _, claims = await store.commit([Settle(ref(taken), CompleteOutcome()), wanted])

        assert [job.id for job in claims.jobs] == ["parent"]  # type: ignore[union-attr]

    async def test_a_repeated_settle_counts_once(self, store: Store, given: Given) -> None:
        parent, one, _ = await _family(given)
        taken = await given.taken(one)
        await requests.settle(store, taken, CompleteOutcome())

        assert await requests.settle(store, taken, CompleteOutcome()) is ALREADY
        assert (await requests.current(store, parent)).open_children == 1

    async def test_a_released_parent_waits_for_its_own_time(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        jobs = [given.job(id="parent", delay=60.0), given.job(id="child", task="child")]
        _, child = await given.flow(jobs, [Edge("parent", "child")])

        await _end(given, child)

        assert await _state(store, "parent") is State.SCHEDULED
        clock.advance(60)
        assert await requests.order(store) == ["parent"]

    async def test_results_stay_whatever_their_keep(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        _, one, two = await _family(given, keep=Keep(0, 0, 0))
        await _end(given, one)
        clock.advance(86_400 * 100)
        await requests.upkeep(store)
        await _end(given, two)

        links = await store.children("parent")

        assert [(link.outcome, link.result) for link in links] == [
            (ChildEnd.COMPLETED, '"child-1"'),
            (ChildEnd.COMPLETED, '"child-2"'),
        ]
        assert await store.get(["child-1", "child-2"]) == [None, None]

    async def test_the_failure_of_a_child_fails_its_parent(self, store: Store, given: Given) -> None:
        parent, one, two, three = await _family(given, 3)
        running = await given.taken(three)
        head = await store.latest_cursor()

        await _end(given, one, FailOutcome())

        after = await requests.current(store, parent)
        assert (after.state, after.reason) == (State.FAILED, Reason.CHILD_FAILED)
        assert "child-1" in after.errors[-1].message
        sibling = await requests.current(store, two)
        assert (sibling.state, sibling.reason) == (State.CANCELED, Reason.CHILD_FAILED)
        assert (await requests.current(store, running)).state is State.RUNNING
        assert not (await requests.current(store, running)).cancel_requested
        events = [(event.kind, event.job) for event in await requests.events(store, head)]
        assert events[-3:] == [
            (EventKind.FAILED, "child-1"),
            (EventKind.FAILED, "parent"),
            (EventKind.CANCELED, "child-2"),
        ]
        assert await _outcomes(store) == [ChildEnd.FAILED, ChildEnd.CANCELED, None]

    async def test_a_child_that_ends_after_its_parent_is_written_down(
        self, store: Store, given: Given
    ) -> None:
        parent, one, two = await _family(given)
        running = await given.taken(two)
        await _end(given, one, FailOutcome())

        await requests.settle(store, running, CompleteOutcome("2"))

        assert await _outcomes(store) == [ChildEnd.FAILED, ChildEnd.COMPLETED]
        assert (await requests.current(store, parent)).state is State.FAILED

    async def test_with_ignore_the_parent_runs_whatever_became_of_its_children(
        self, store: Store, given: Given
    ) -> None:
        _, one, two, three = await _family(given, 3, Policy.IGNORE)
        await _end(given, one, FailOutcome())
        await requests.operate(store, CancelJobs(ids=(two.id,)))
        assert await _state(store, "parent") is State.BLOCKED
        await requests.operate(store, RemoveJobs(ids=(three.id,)))

        assert await _state(store, "parent") is State.WAITING
        assert await _outcomes(store) == [ChildEnd.FAILED, ChildEnd.CANCELED, ChildEnd.REMOVED]

    async def test_with_remove_the_parent_goes(self, store: Store, given: Given) -> None:
        _, one, _two = await _family(given, 2, Policy.REMOVE)
        head = await store.latest_cursor()

        await _end(given, one, FailOutcome())

        assert await store.get(["parent"]) == [None]
        assert await _state(store, "child-2") is State.CANCELED
        assert (EventKind.REMOVED, "parent") in [
            (event.kind, event.job) for event in await requests.events(store, head)
        ]

    @pytest.mark.parametrize("way", ["cancel", "remove", "resolve", "lapse", "lost"])
    async def test_however_a_child_comes_to_nothing_its_parent_fails(
        self, store: Store, clock: FakeClock, given: Given, way: str
    ) -> None:
        jobs = [given.job(id="parent"), given.job(id="child", deadline=clock.time() + 10, max_attempts=1)]
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
                await requests.upkeep(store)
            case "lost":
                await given.taken(child)
                clock.advance(30)
                await requests.claims(store)

        assert await _state(store, "parent") is State.FAILED

    async def test_a_child_that_retries_has_not_ended(self, store: Store, given: Given) -> None:
        _, child = await _family(given, 1)
        await _end(given, child, RetryOutcome(delay=0.0))

        assert await _state(store, "parent") is State.BLOCKED
        await _end(given, child)
        assert await _state(store, "parent") is State.WAITING

    async def test_failure_goes_up_and_success_too(self, store: Store, given: Given) -> None:
        for word, outcome in (("good", CompleteOutcome()), ("bad", FailOutcome())):
            jobs = [given.job(id=f"{word}-{name}", task=f"{word}-{name}") for name in "cba"]
            await given.flow(jobs, [Edge(f"{word}-a", f"{word}-b"), Edge(f"{word}-b", f"{word}-c")])
            await _end(given, await given.current(f"{word}-c"), outcome)

        assert [await _state(store, f"good-{name}") for name in "ab"] == [State.BLOCKED, State.WAITING]
        assert [await _state(store, f"bad-{name}") for name in "ab"] == [State.FAILED, State.FAILED]

    async def test_a_child_may_have_several_parents(self, store: Store, given: Given) -> None:
        jobs = [given.job(id=name, task=name) for name in ("left", "right", "other", "shared")]
        *_, other, shared = await given.flow(
            jobs, [Edge("left", "shared"), Edge("right", "shared"), Edge("right", "other", Policy.IGNORE)]
        )
        await _end(given, shared)
        assert (await _state(store, "left"), await _state(store, "right")) == (State.WAITING, State.BLOCKED)
        await _end(given, other, FailOutcome())

        assert await _state(store, "right") is State.WAITING

    async def test_flows_cross_queues(self, store: Store, given: Given) -> None:
        jobs = [given.job(id="parent", queue="a"), given.job(id="child", queue="b", task="child")]
        _, child = await given.flow(jobs, [Edge("parent", "child")])
        await _end(given, child)

        assert await requests.order(store, queues=("a",)) == ["parent"]


class Tying:
    async def test_edges_know_what_they_feed(self, store: Store, given: Given) -> None:
        key = UniqueKey("shared")
        jobs = [given.job(id=name) for name in ("parent", "a")]
        jobs += [given.job(id=name, unique=key) for name in ("b", "c")]
        edges = (
            Edge("parent", "a"),
            Edge("parent", "b", feeds=("parts[0]", "total")),
            Edge("parent", "c", feeds=("parts[1]",)),
        )
        await requests.one(store, Insert(tuple(jobs), edges))

        links = await store.children("parent")

        assert [(link.child, link.feeds) for link in links] == [
            ("a", ()),
            ("b", ("parts[0]", "total", "parts[1]")),
        ]

    @pytest.mark.parametrize("path", ["", "parts[", "parts[x]", "parts[1][2]", "a b", "1"])
    async def test_edges_feed_arguments(self, path: str) -> None:
        with pytest.raises(InvalidValue, match="feeds"):
            Edge("parent", "child", feeds=(path,))

    async def test_a_repeated_insert_changes_nothing(self, store: Store, given: Given) -> None:
        jobs = [given.job(id=name, task=name, keep=Keep(0, 0, 0)) for name in ("parent", "one", "two")]
        edges = (Edge("parent", "one"), Edge("parent", "two"))
        await given.flow(jobs, edges)
        await _end(given, await given.current("one"))

        answer = await requests.one(store, Insert(tuple(jobs), edges))

        assert answer.existed == {"parent", "one", "two"}  # type: ignore[union-attr]
        assert await store.get(["one"]) == [None]
        assert (await given.current("parent")).open_children == 1

    @pytest.mark.parametrize("state", [State.WAITING, State.RUNNING, State.COMPLETED, State.FAILED])
    async def test_a_child_may_have_been_there_before(self, store: Store, given: Given, state: State) -> None:
        child = await given.brought(state, id="child", task="child")

        await given.flow([given.job(id="parent"), _again(child)], [Edge("parent", "child")])

        parent = await given.current("parent")

        expected = {State.COMPLETED: State.WAITING, State.FAILED: State.FAILED}.get(state, State.BLOCKED)
        assert parent.state is expected
        if state is State.RUNNING:
            await requests.settle(store, child, CompleteOutcome("7"))
            assert await _state(store, "parent") is State.WAITING

    async def test_a_parent_that_was_there_before_gets_no_more_children(
        self, store: Store, given: Given
    ) -> None:
        await given.waiting(id="parent")
        before = await requests.everything(store)

        answer = await requests.one(
            store, Insert((given.job(id="parent"), given.job(id="child")), (Edge("parent", "child"),))
        )

        assert isinstance(answer, InvalidValue)
        assert "child" in str(answer)
        assert await requests.everything(store) == before

    async def test_a_payload_too_large_refuses_the_whole_flow(self, store: Store, given: Given) -> None:
        large = given.job(id="child", payload='"' + "x" * 2**20 + '"')

        await requests.one(store, Insert((given.job(id="parent"), large), (Edge("parent", "child"),)))

        assert await requests.jobs(store) == []
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
    async def test_a_graph_that_cannot_end_is_refused(
        self, given: Given, edges: Sequence[tuple[str, str]], why: str
    ) -> None:
        jobs = tuple(given.job(id=name) for name in "abc")

        with pytest.raises(InvalidValue, match=why):
            Insert(jobs, tuple(Edge(*edge) for edge in edges))

    async def test_a_parent_has_so_many_children_at_most(self, given: Given) -> None:
        names = [str(number) for number in range(CHILDREN_MAX + 1)]

        with pytest.raises(InvalidValue, match="at most 10,000 children, not 10,001"):
            Insert(
                tuple(given.job(id=name) for name in ("parent", *names)),
                tuple(Edge("parent", name) for name in names),
            )


def _again(job: JobRecord) -> NewJob:
    return NewJob(id=job.id, task=job.task, payload=job.payload)
