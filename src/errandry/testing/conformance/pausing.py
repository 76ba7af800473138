"""Pause and resume, by queue, by task, by group and by worker."""

import pytest

from errandry.core.answer import ALREADY, WRITTEN, Claims, Inserted
from errandry.core.command import Beat, Claim, CompleteOutcome, Insert
from errandry.core.event import Event, EventKind
from errandry.core.gate import GateKind, Pause, PauseInfo, Resume
from errandry.core.state import State
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref

KINDS = pytest.mark.parametrize("kind", list(GateKind))
OF_JOBS = pytest.mark.parametrize("kind", [GateKind.QUEUE, GateKind.TASK, GateKind.GROUP])


def paused(kind: GateKind, by: str = "") -> Pause:
    return Pause(kind, "name", by, "name" if kind is GateKind.GROUP else "")


def resumed(kind: GateKind) -> Resume:
    return Resume(kind, "name", "name" if kind is GateKind.GROUP else "")


class PausingRules:
    @OF_JOBS
    async def test_a_paused_queue_or_task_gives_nothing_until_it_is_resumed(
        self, store: Store, given: Given, kind: GateKind
    ) -> None:
        job = await given.waiting(queue="name", task="name", group="name")
        assert await requests.one(store, paused(kind)) is WRITTEN
        assert await requests.order(store) == []
        assert await requests.order(store, queues=("name",), tasks=("name",)) == []
        assert await requests.one(store, resumed(kind)) is WRITTEN

        assert await requests.order(store) == [job.id]

    @OF_JOBS
    async def test_a_pause_holds_for_claims_of_its_own_pass(
        self, store: Store, given: Given, kind: GateKind
    ) -> None:
        job = given.job(queue="name", task="name", group="name")

        answers = await store.commit([Insert((job,)), paused(kind), Claim(worker="worker", nonce="nonce")])

        assert answers == [Inserted((job.id,)), WRITTEN, Claims(())]

    @OF_JOBS
    async def test_a_pause_holds_for_jobs_to_come(self, store: Store, given: Given, kind: GateKind) -> None:
        await requests.one(store, paused(kind))
        await given.waiting(queue="name", task="name", group="name")

        assert await requests.order(store) == []

    async def test_paused_jobs_never_block_others(self, store: Store, given: Given) -> None:
        for _ in range(3):
            await given.waiting(queue="paused", priority=-1)
            await given.waiting(task="paused", priority=-1)
        await requests.one(store, Pause(GateKind.QUEUE, "paused"))
        await requests.one(store, Pause(GateKind.TASK, "paused"))
        job = await given.waiting()

        assert await requests.order(store, limit=1) == [job.id]

    async def test_a_queue_and_a_task_of_one_name_are_paused_apart(self, store: Store, given: Given) -> None:
        in_queue = await given.waiting(queue="name", task="other")
        of_task = await given.waiting(queue="other", task="name")
        await requests.one(store, Pause(GateKind.QUEUE, "name"))

        assert await requests.order(store) == [of_task.id]
        await requests.one(store, Resume(GateKind.TASK, "name"))
        assert await requests.order(store) == []
        await requests.one(store, Resume(GateKind.QUEUE, "name"))
        assert await requests.order(store) == [in_queue.id]

    async def test_a_job_paused_by_queue_and_task_waits_for_both(self, store: Store, given: Given) -> None:
        job = await given.waiting(queue="q", task="t")
        await requests.one(store, Pause(GateKind.QUEUE, "q"))
        await requests.one(store, Pause(GateKind.TASK, "t"))
        await requests.one(store, Resume(GateKind.QUEUE, "q"))
        assert await requests.order(store) == []

        await requests.one(store, Resume(GateKind.TASK, "t"))

        assert await requests.order(store) == [job.id]

    async def test_a_group_is_paused_in_its_queue_only(self, store: Store, given: Given) -> None:
        await given.waiting(queue="mail", group="acme", priority=-1)
        other = await given.waiting(queue="bulk", group="acme")
        ungrouped = await given.waiting(queue="mail", priority=1)
        await requests.one(store, Pause(GateKind.GROUP, "mail", group="acme"))

        assert await requests.order(store) == [other.id, ungrouped.id]

    async def test_it_is_known_who_paused_what_and_when(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(queue="busy")
        at = clock.time()
        await requests.one(store, Pause(GateKind.QUEUE, "busy", "ada"))
        await requests.one(store, Pause(GateKind.QUEUE, "empty", "bob"))
        await requests.one(store, Pause(GateKind.TASK, "send", "eve"))
        clock.advance(10)

        queues = {info.name: info.paused for info in await store.queues()}

        assert queues == {"busy": PauseInfo(at, "ada"), "empty": PauseInfo(at, "bob")}
        assert (await store.paused())[GateKind.TASK] == {"send": PauseInfo(at, "eve")}

    @KINDS
    async def test_the_first_pause_stands_and_the_second_answers_already(
        self, store: Store, clock: FakeClock, kind: GateKind
    ) -> None:
        await requests.one(store, paused(kind, "ada"))
        clock.advance(10)
        before = await requests.everything(store)

        assert await requests.one(store, paused(kind, "bob")) is ALREADY
        assert await requests.everything(store) == before

    @KINDS
    async def test_what_is_not_paused_answers_already_to_resume(self, store: Store, kind: GateKind) -> None:
        before = await requests.everything(store)

        assert await requests.one(store, resumed(kind)) is ALREADY
        assert await requests.everything(store) == before

    async def test_a_running_job_of_a_paused_queue_goes_on(self, store: Store, given: Given) -> None:
        job = await given.running(queue="q")
        await requests.one(store, Pause(GateKind.QUEUE, "q"))

        assert await requests.renew(store, ref(job)) == ("held",)
        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_paused_jobs_still_come_due_and_lapse(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        due = await given.scheduled(delay=10.0, queue="q")
        lapsing = await given.waiting(deadline=clock.time() + 10, queue="q")
        await requests.one(store, Pause(GateKind.QUEUE, "q"))
        clock.advance(10)
        await requests.upkeep(store)

        assert (await requests.current(store, due)).state is State.WAITING
        assert (await requests.current(store, lapsing)).state is State.FAILED

    async def test_pausing_and_resuming_are_reported(self, store: Store) -> None:
        head = await store.latest_cursor()
        await requests.one(store, Pause(GateKind.QUEUE, "q", "ada"))
        await requests.one(store, Pause(GateKind.TASK, "t"))
        await requests.one(store, Resume(GateKind.TASK, "t"))
        await requests.one(store, Pause(GateKind.WORKER, "w", "ada"))
        await requests.one(store, Resume(GateKind.WORKER, "w"))

        assert await requests.events(store, head) == [
            Event(EventKind.PAUSED, "", "q", "", 0, "ada"),
            Event(EventKind.PAUSED, "", "", "t"),
            Event(EventKind.RESUMED, "", "", "t"),
            Event(EventKind.PAUSED, "", "", "", 0, "w"),
            Event(EventKind.RESUMED, "", "", "", 0, "w"),
        ]

    async def test_a_paused_worker_gets_nothing_until_it_is_resumed(self, store: Store, given: Given) -> None:
        job = await given.waiting()
        assert await requests.one(store, Pause(GateKind.WORKER, "ann")) is WRITTEN
        assert await requests.order(store, worker="ann") == []
        assert await requests.one(store, Resume(GateKind.WORKER, "ann")) is WRITTEN

        assert await requests.order(store, worker="ann") == [job.id]

    async def test_a_paused_worker_is_in_nobodys_way(self, store: Store, given: Given) -> None:
        job = await given.waiting()
        await requests.one(store, Pause(GateKind.WORKER, "ann"))

        assert await requests.order(store, worker="ann") == []
        assert await requests.order(store, worker="bob") == [job.id]

    async def test_a_pause_holds_for_a_workers_claim_in_its_own_pass(
        self, store: Store, given: Given
    ) -> None:
        await given.waiting()

        [_, answer] = await store.commit([Pause(GateKind.WORKER, "ann"), Claim(worker="ann", nonce="nonce")])

        assert answer == Claims(())

    async def test_a_paused_worker_keeps_what_it_has(self, store: Store, given: Given) -> None:
        job = await given.running(worker="ann")
        await requests.one(store, Pause(GateKind.WORKER, "ann"))

        assert await requests.renew(store, ref(job)) == ("held",)
        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_workers_are_shown_with_their_pause(self, store: Store, clock: FakeClock) -> None:
        at = clock.time()
        await store.commit([Pause(GateKind.WORKER, "ann", "ada"), Beat(worker="ann"), Beat(worker="bob")])

        assert [(info.beat.worker, info.paused) for info in await store.workers()] == [
            ("ann", PauseInfo(at, "ada")),
            ("bob", None),
        ]

    async def test_the_pause_of_a_worker_goes_with_it(self, store: Store) -> None:
        await store.commit([Pause(GateKind.WORKER, "ann"), Beat(worker="ann")])

        await requests.one(store, Beat(worker="ann", gone=True))

        assert (await store.paused())[GateKind.WORKER] == {}

    async def test_the_pause_of_a_worker_that_died_is_forgotten_in_time(
        self, clock: FakeClock, open_store: MakeStore
    ) -> None:
        store = await open_store(clock, StoreLimits(workers_age=60.0))
        await store.commit([Pause(GateKind.WORKER, "ann"), Beat(worker="ann")])
        clock.advance(59)
        await requests.upkeep(store)
        assert list((await store.paused())[GateKind.WORKER]) == ["ann"]

        clock.advance(1)
        await requests.upkeep(store)

        assert (await store.paused())[GateKind.WORKER] == {}
