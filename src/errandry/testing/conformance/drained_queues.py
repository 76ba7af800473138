"""The event `drained`: the last waiting job of a queue was claimed, or has left that state in another way."""

import pytest
from msgspec.structs import replace

from errandry.core.command import (
    CancelJobs,
    EditJobs,
    Insert,
    OperatorCommand,
    PostponeJobs,
    RemoveJobs,
    ResolveJobs,
)
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, PutRule
from errandry.core.query import parse
from errandry.core.rule import Overflow, Rule
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

LEAVING_COMMANDS: tuple[OperatorCommand, ...] = (
    CancelJobs(ids=("a",)),
    RemoveJobs(ids=("a",)),
    ResolveJobs(ids=("a",)),
    PostponeJobs(ids=("a",), delay=60.0),
    EditJobs(ids=("a",), queue="elsewhere"),
    EditJobs(ids=("a",), run_at=4e9),
)
"""Commands after which a job no longer waits in its queue."""


class DrainedQueues:
    async def test_claiming_the_last_waiting_job_reports_its_queue_drained(
        self, store: Store, given: Given
    ) -> None:
        for queue in ("a", "a", "b", "b"):
            await given.waiting(queue=queue)
        cursor = await store.latest_cursor()

        await requests.claim(store, limit=3)

        drained = [
            event for event in await requests.read_events(store, cursor) if event.kind is EventKind.DRAINED
        ]
        assert [(event.queue, event.job) for event in drained] == [("a", "")]

    async def test_an_empty_claim_reports_no_drained_queue(self, store: Store, given: Given) -> None:
        await given.running()
        cursor = await store.latest_cursor()

        await requests.claim(store)

        assert await requests.event_kinds(store, cursor) == []

    async def test_a_job_inserted_after_an_empty_claim_is_claimed(self, store: Store, given: Given) -> None:
        for name in "abc":
            await given.waiting(id=name, task="t")

            assert await requests.claim_ids(store) == [name]
            assert await requests.claim_ids(store) == []

    async def test_a_queue_is_drained_although_it_has_scheduled_jobs(
        self, store: Store, given: Given
    ) -> None:
        await given.scheduled()
        cursor = await store.latest_cursor()

        await given.running()

        assert EventKind.DRAINED in await requests.event_kinds(store, cursor)

    @pytest.mark.parametrize("command", LEAVING_COMMANDS, ids=lambda command: type(command).__name__)
    async def test_a_queue_is_drained_when_its_last_waiting_job_leaves_it(
        self, store: Store, given: Given, command: OperatorCommand
    ) -> None:
        for name in "ab":
            await given.waiting(id=name, queue="q", task=name)
        await given.waiting(queue="other")
        cursor = await store.latest_cursor()

        await requests.operate(store, command)
        assert await _drained_queues(store, cursor) == []

        await requests.operate(store, replace(command, ids=("b",)))
        assert await _drained_queues(store, cursor) == ["q"]

    async def test_many_jobs_that_leave_at_once_drain_their_queues_once(
        self, store: Store, given: Given
    ) -> None:
        for queue in "aabbc":
            await given.waiting(queue=queue)
        cursor = await store.latest_cursor()

        await requests.operate(store, CancelJobs(query=parse("queue:a,b")))

        assert sorted(await _drained_queues(store, cursor)) == ["a", "b"]

    async def test_a_queue_into_which_the_same_pass_puts_a_job_is_not_drained(
        self, store: Store, given: Given
    ) -> None:
        await given.waiting(id="a")
        cursor = await store.latest_cursor()

        await store.commit([CancelJobs(ids=("a",)), Insert((given.new_job(id="b"),))])

        assert await _drained_queues(store, cursor) == []

    async def test_a_lapsed_job_can_drain_its_queue(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(queue="q", deadline=clock.time() + 10)
        cursor = await store.latest_cursor()
        clock.advance(10)

        await requests.run_upkeep(store)

        assert await _drained_queues(store, cursor) == ["q"]

    async def test_a_dropped_job_makes_room_and_drains_nothing(self, store: Store, given: Given) -> None:
        await requests.send(
            store, PutRule(GateKind.QUEUE, "default", Rule(max_size=1, overflow=Overflow.DROP_OLDEST))
        )
        await given.waiting(id="a")
        cursor = await store.latest_cursor()

        await given.waiting(id="b")

        assert await requests.event_kinds(store, cursor) == [EventKind.FAILED, EventKind.WAITING]


async def _drained_queues(store: Store, cursor: str) -> list[str]:
    events = await requests.read_events(store, cursor)
    return [event.queue for event in events if event.kind is EventKind.DRAINED]
