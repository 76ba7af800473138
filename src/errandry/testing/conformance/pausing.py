"""Pausing and resuming queues, tasks, groups and workers."""

import pytest

from errandry.core.answer import ALREADY, WRITTEN, Claims, Inserted
from errandry.core.command import Beat, Claim, CompleteOutcome, Insert, RetryOutcome
from errandry.core.event import EventKind, EventRecord
from errandry.core.gate import GateKind, Pause, PauseRecord, PutRule, Resume
from errandry.core.rule import OnReturn, Rule
from errandry.core.state import State
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref

KINDS = pytest.mark.parametrize("kind", list(GateKind))
JOB_KINDS = pytest.mark.parametrize("kind", [GateKind.QUEUE, GateKind.TASK, GateKind.GROUP])


def pause_command(kind: GateKind, by: str = "") -> Pause:
    return Pause(kind, "name", by, "name" if kind is GateKind.GROUP else "")


def resume_command(kind: GateKind) -> Resume:
    return Resume(kind, "name", "name" if kind is GateKind.GROUP else "")


class Pauses:
    @JOB_KINDS
    async def test_jobs_of_a_paused_queue_task_or_group_are_not_claimed_until_it_is_resumed(
        self, store: Store, given: Given, kind: GateKind
    ) -> None:
        job = await given.waiting(queue="name", task="name", group="name")
        assert await requests.send(store, pause_command(kind)) is WRITTEN
        assert await requests.claim_ids(store) == []
        assert await requests.claim_ids(store, queues=("name",), tasks=("name",)) == []
        assert await requests.send(store, resume_command(kind)) is WRITTEN

        assert await requests.claim_ids(store) == [job.id]

    @JOB_KINDS
    async def test_a_pause_holds_for_claims_of_the_same_pass(
        self, store: Store, given: Given, kind: GateKind
    ) -> None:
        job = given.new_job(queue="name", task="name", group="name")

        answers = await store.commit(
            [Insert((job,)), pause_command(kind), Claim(worker="worker", nonce="nonce")]
        )

        assert answers == [Inserted((job.id,)), WRITTEN, Claims(())]

    @JOB_KINDS
    async def test_a_pause_holds_for_jobs_inserted_later(
        self, store: Store, given: Given, kind: GateKind
    ) -> None:
        await requests.send(store, pause_command(kind))
        await given.waiting(queue="name", task="name", group="name")

        assert await requests.claim_ids(store) == []

    async def test_paused_jobs_do_not_block_other_jobs(self, store: Store, given: Given) -> None:
        for _ in range(3):
            await given.waiting(queue="paused", priority=-1)
            await given.waiting(task="paused", priority=-1)
        await requests.send(store, Pause(GateKind.QUEUE, "paused"))
        await requests.send(store, Pause(GateKind.TASK, "paused"))
        job = await given.waiting()

        assert await requests.claim_ids(store, limit=1) == [job.id]

    async def test_a_queue_and_a_task_of_the_same_name_are_paused_separately(
        self, store: Store, given: Given
    ) -> None:
        in_queue = await given.waiting(queue="name", task="other")
        of_task = await given.waiting(queue="other", task="name")
        await requests.send(store, Pause(GateKind.QUEUE, "name"))

        assert await requests.claim_ids(store) == [of_task.id]
        await requests.send(store, Resume(GateKind.TASK, "name"))
        assert await requests.claim_ids(store) == []
        await requests.send(store, Resume(GateKind.QUEUE, "name"))
        assert await requests.claim_ids(store) == [in_queue.id]

    async def test_a_job_paused_by_queue_and_task_waits_until_both_are_resumed(
        self, store: Store, given: Given
    ) -> None:
        job = await given.waiting(queue="q", task="t")
        await requests.send(store, Pause(GateKind.QUEUE, "q"))
        await requests.send(store, Pause(GateKind.TASK, "t"))
        await requests.send(store, Resume(GateKind.QUEUE, "q"))
        assert await requests.claim_ids(store) == []

        await requests.send(store, Resume(GateKind.TASK, "t"))

        assert await requests.claim_ids(store) == [job.id]

    async def test_a_group_is_paused_in_its_queue_only(self, store: Store, given: Given) -> None:
        await given.waiting(queue="mail", group="acme", priority=-1)
        other = await given.waiting(queue="bulk", group="acme")
        ungrouped = await given.waiting(queue="mail", priority=1)
        await requests.send(store, Pause(GateKind.GROUP, "mail", group="acme"))

        assert await requests.claim_ids(store) == [other.id, ungrouped.id]

    async def test_a_pause_records_its_author_and_its_time(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(queue="busy")
        at = clock.time()
        await requests.send(store, Pause(GateKind.QUEUE, "busy", "ada"))
        await requests.send(store, Pause(GateKind.QUEUE, "empty", "bob"))
        await requests.send(store, Pause(GateKind.TASK, "send", "eve"))
        clock.advance(10)

        queues = {info.name: info.paused for info in await store.queues()}

        assert queues == {"busy": PauseRecord(at, "ada"), "empty": PauseRecord(at, "bob")}
        assert (await store.paused())[GateKind.TASK] == {"send": PauseRecord(at, "eve")}

    @KINDS
    async def test_a_second_pause_answers_already_and_keeps_the_first(
        self, store: Store, clock: FakeClock, kind: GateKind
    ) -> None:
        await requests.send(store, pause_command(kind, "ada"))
        clock.advance(10)
        before = await requests.snapshot(store)

        assert await requests.send(store, pause_command(kind, "bob")) is ALREADY
        assert await requests.snapshot(store) == before

    @KINDS
    async def test_resuming_answers_already_if_nothing_is_paused(self, store: Store, kind: GateKind) -> None:
        before = await requests.snapshot(store)

        assert await requests.send(store, resume_command(kind)) is ALREADY
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("group", ["acme", ""], ids=["group", "task"])
    async def test_resuming_opens_a_group_or_task_that_a_handler_has_closed(
        self, store: Store, given: Given, group: str
    ) -> None:
        job = await given.running(queue="q", task="t", group=group)
        other = await given.waiting(queue="q", task="t", group=group)
        retry = RetryOutcome(delay=86_400.0, pause_group=True)
        kind, name = (GateKind.GROUP, "q") if group else (GateKind.TASK, "t")
        await requests.settle(store, job, retry)
        assert await requests.claim_ids(store) == []

        assert await requests.send(store, Resume(kind, name, group)) is WRITTEN
        assert await requests.send(store, Resume(kind, name, group)) is ALREADY

        assert await store.rules() == []
        assert await requests.claim_ids(store) == [other.id]

    async def test_resuming_does_not_open_a_group_that_keeps_its_order(
        self, store: Store, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(on_return=OnReturn.HOLD_GROUP)))
        job = await given.running(queue="q", group="acme")
        await given.waiting(queue="q", group="acme")
        await requests.settle(store, job, RetryOutcome(delay=60.0))
        await requests.send(store, Pause(GateKind.GROUP, "q", group="acme"))

        assert await requests.send(store, Resume(GateKind.GROUP, "q", "acme")) is WRITTEN
        assert await requests.send(store, Resume(GateKind.GROUP, "q", "acme")) is ALREADY

        assert await requests.claim_ids(store) == []

    async def test_a_running_job_of_a_paused_queue_can_renew_and_complete(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(queue="q")
        await requests.send(store, Pause(GateKind.QUEUE, "q"))

        assert await requests.renew(store, ref(job)) == ("held",)
        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_paused_jobs_still_come_due_and_lapse(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        due = await given.scheduled(delay=10.0, queue="q")
        lapsing = await given.waiting(deadline=clock.time() + 10, queue="q")
        await requests.send(store, Pause(GateKind.QUEUE, "q"))
        clock.advance(10)
        await requests.run_upkeep(store)

        assert (await requests.current_job(store, due)).state is State.WAITING
        assert (await requests.current_job(store, lapsing)).state is State.FAILED

    async def test_pausing_and_resuming_are_reported(self, store: Store) -> None:
        cursor = await store.latest_cursor()
        await requests.send(store, Pause(GateKind.QUEUE, "q", "ada"))
        await requests.send(store, Pause(GateKind.TASK, "t"))
        await requests.send(store, Resume(GateKind.TASK, "t"))
        await requests.send(store, Pause(GateKind.WORKER, "w", "ada"))
        await requests.send(store, Resume(GateKind.WORKER, "w"))
        await requests.send(store, Pause(GateKind.GROUP, "q", "ada", "acme"))
        await requests.send(store, Resume(GateKind.GROUP, "q", "acme"))

        assert await requests.read_events(store, cursor) == [
            EventRecord(EventKind.PAUSED, "", "q", "", 0, "by ada"),
            EventRecord(EventKind.PAUSED, "", "", "t"),
            EventRecord(EventKind.RESUMED, "", "", "t"),
            EventRecord(EventKind.PAUSED, "", "", "", 0, "worker w, by ada"),
            EventRecord(EventKind.RESUMED, "", "", "", 0, "worker w"),
            EventRecord(EventKind.PAUSED, "", "q", "", 0, "group acme, by ada"),
            EventRecord(EventKind.RESUMED, "", "q", "", 0, "group acme"),
        ]

    async def test_a_paused_worker_gets_no_jobs_until_it_is_resumed(self, store: Store, given: Given) -> None:
        job = await given.waiting()
        assert await requests.send(store, Pause(GateKind.WORKER, "ann")) is WRITTEN
        assert await requests.claim_ids(store, worker="ann") == []
        assert await requests.send(store, Resume(GateKind.WORKER, "ann")) is WRITTEN

        assert await requests.claim_ids(store, worker="ann") == [job.id]

    async def test_a_paused_worker_does_not_block_other_workers(self, store: Store, given: Given) -> None:
        job = await given.waiting()
        await requests.send(store, Pause(GateKind.WORKER, "ann"))

        assert await requests.claim_ids(store, worker="ann") == []
        assert await requests.claim_ids(store, worker="bob") == [job.id]

    async def test_a_pause_of_a_worker_holds_for_its_claims_of_the_same_pass(
        self, store: Store, given: Given
    ) -> None:
        await given.waiting()

        [_, answer] = await store.commit([Pause(GateKind.WORKER, "ann"), Claim(worker="ann", nonce="nonce")])

        assert answer == Claims(())

    async def test_a_paused_worker_can_renew_and_complete_its_jobs(self, store: Store, given: Given) -> None:
        job = await given.running(worker="ann")
        await requests.send(store, Pause(GateKind.WORKER, "ann"))

        assert await requests.renew(store, ref(job)) == ("held",)
        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_workers_are_listed_with_their_pause(self, store: Store, clock: FakeClock) -> None:
        at = clock.time()
        await store.commit([Pause(GateKind.WORKER, "ann", "ada"), Beat(worker="ann"), Beat(worker="bob")])

        assert [(info.beat.worker, info.paused) for info in await store.workers()] == [
            ("ann", PauseRecord(at, "ada")),
            ("bob", None),
        ]

    async def test_the_pause_of_a_worker_is_removed_when_it_says_goodbye(self, store: Store) -> None:
        await store.commit([Pause(GateKind.WORKER, "ann"), Beat(worker="ann")])

        await requests.send(store, Beat(worker="ann", gone=True))

        assert (await store.paused())[GateKind.WORKER] == {}

    async def test_upkeep_removes_the_pause_of_a_dead_worker(
        self, clock: FakeClock, open_store: MakeStore
    ) -> None:
        store = await open_store(clock, StoreLimits(workers_age=60.0))
        await store.commit([Pause(GateKind.WORKER, "ann"), Beat(worker="ann")])
        clock.advance(59)
        await requests.run_upkeep(store)
        assert list((await store.paused())[GateKind.WORKER]) == ["ann"]

        clock.advance(1)
        await requests.run_upkeep(store)

        assert (await store.paused())[GateKind.WORKER] == {}
