"""Jobs that are put into another queue, and bulk commands that name jobs, look at few at a time, or both."""

from msgspec.structs import replace

from errandry.core.answer import Inserted, Moved
from errandry.core.command import CancelJobs, EditJobs, Insert, RemoveJobs, RerunJobs, RetryOutcome
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import Failure, JobOrder
from errandry.core.query import parse
from errandry.core.rule import Comeback, Rule
from errandry.core.state import State
from errandry.core.unique import UniqueKey, UniqueScope
from errandry.errors import DuplicateJob
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class Relocating:
    async def test_a_job_is_put_into_another_queue_as_it_is(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        jobs = [await given.brought(state) for state in (State.WAITING, State.SCHEDULED, State.BLOCKED)]
        clock.advance(5)

        answer = await requests.operate(store, EditJobs(ids=tuple(job.id for job in jobs), queue="other"))

        assert set(answer.moved) == {job.id for job in jobs}
        for job in jobs:
            assert await requests.current(store, job) == replace(job, queue="other", updated_at=clock.time())

    async def test_it_is_claimed_there_and_no_longer_here(self, store: Store, given: Given) -> None:
        job = await given.waiting(queue="here")
        await requests.operate(store, EditJobs(ids=(job.id,), queue="there"))

        assert await requests.order(store, queues=("here",)) == []
        assert await requests.order(store, queues=("there",)) == [job.id]

    async def test_it_keeps_its_place_by_age(self, store: Store, given: Given) -> None:
        first = await given.waiting(queue="a")
        second = await given.waiting(queue="b")
        third = await given.waiting(queue="a")
        newest = await given.waiting(queue="b", order=JobOrder.LIFO)

        await requests.operate(store, EditJobs(query=parse("queue:a"), queue="b"))

        assert await requests.order(store) == [newest.id, first.id, second.id, third.id]

    async def test_it_is_counted_where_it_is_and_nobody_is_told_that_it_was_removed(
        self, store: Store, given: Given
    ) -> None:
        job = await given.waiting(queue="a")
        head = await store.latest_cursor()
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        assert await store.counts() == {"a": {}, "b": {"waiting": 1}}
        assert await store.totals() == {"a": {"inserted": 1, "moved_out": 1}, "b": {"moved_in": 1}}
        [event] = await requests.events(store, head)
        assert (event.kind, event.queue, event.job) == (EventKind.EDITED, "b", job.id)

    async def test_another_time_and_another_queue_at_once(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled(queue="a")
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b", run_at=clock.time()))

        assert await store.counts() == {"a": {}, "b": {"waiting": 1}}
        assert await requests.order(store, queues=("b",)) == [job.id]

    async def test_a_job_a_worker_has_stays(self, store: Store, given: Given) -> None:
        job = await given.running(queue="a")

        answer = await requests.operate(store, EditJobs(query=parse("queue:a"), queue="b"))

        assert answer == Moved()
        assert (await requests.current(store, job)).queue == "a"

    async def test_a_key_of_its_queue_goes_along(self, store: Store, given: Given) -> None:
        key = UniqueKey("k", per_queue=True)
        job = await given.waiting(queue="a", unique=key)
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        in_a, in_b = given.job(queue="a", unique=key), given.job(queue="b", unique=key)

        assert await requests.one(store, Insert((in_a,))) == Inserted((in_a.id,))
        assert await requests.one(store, Insert((in_b,))) == Inserted((job.id,), frozenset({job.id}))
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        assert await requests.one(store, Insert((in_b,))) == Inserted((in_b.id,))

    async def test_it_stays_if_another_holds_its_key_there(self, store: Store, given: Given) -> None:
        key = UniqueKey("k", per_queue=True)
        job, holder = await given.waiting(queue="a", unique=key), await given.waiting(queue="b", unique=key)

        [(refused, error)] = (
            await requests.operate(store, EditJobs(query=parse("queue:a"), queue="b"))
        ).refused

        assert (refused, isinstance(error, DuplicateJob)) == (job.id, True)
        assert await requests.current(store, job) == job
        assert await requests.current(store, holder) == holder

    async def test_a_key_of_a_window_stays_where_it_was_taken(self, store: Store, given: Given) -> None:
        key = UniqueKey("k", UniqueScope.WINDOW, 60.0, per_queue=True)
        job = await given.waiting(queue="a", unique=key)
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        answer = await requests.one(store, Insert((given.job(queue="a", unique=key),)))

        assert answer == Inserted((job.id,), frozenset({job.id}))

    async def test_a_group_is_held_no_longer_by_a_job_that_left(self, store: Store, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "a", Rule(order=Comeback.HOLD)))
        job = await given.settled(RetryOutcome(Failure(), 60.0), queue="a", group="g")
        behind = await given.waiting(queue="a", group="g")
        assert await requests.order(store, queues=("a",)) == []

        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        assert await requests.order(store, queues=("a",)) == [behind.id]


ALL = parse("queue:many")


class Rechecking:
    """Commands that name jobs and say what must still be true of them."""

    async def test_only_those_that_match_still_are_moved(self, store: Store, given: Given) -> None:
        failed = await given.failed(queue="many")
        gone_on = await given.completed(queue="many")
        other = await given.failed()
        ids = failed.id, gone_on.id, other.id, "nobody"

        answer = await requests.operate(store, RerunJobs(ids=ids, query=parse("queue:many state:failed")))

        assert answer == Moved((failed.id,))
        assert await requests.current(store, gone_on) == gone_on

    async def test_a_state_it_cannot_be_done_in_does_not_match(self, store: Store, given: Given) -> None:
        job, held = await given.waiting(queue="many"), await given.running(queue="many")

        assert await requests.operate(store, RemoveJobs(ids=(job.id, held.id), query=ALL)) == Moved((job.id,))


class Looking:
    """A slice looks at few jobs, whatever there are."""

    async def test_a_slice_ends_where_it_has_looked_at_enough(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(scan=3))
        given = Given(store)
        wanted = await given.waiting(queue="many")
        others = [await given.waiting() for _ in range(7)]

        answers = [await requests.operate(store, CancelJobs(query=ALL))]
        while (below := answers[-1].below) is not None:
            answers.append(await requests.operate(store, CancelJobs(query=ALL, below=below)))

        assert [answer.moved for answer in answers] == [(), (), (wanted.id,)]
        assert [answer.below for answer in answers] == [others[-3].seq, others[-6].seq, None]

    async def test_jobs_that_stand_elsewhere_are_not_looked_at(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(scan=3))
        given = Given(store)
        failed = await given.failed(queue="many")
        for _ in range(4):
            await given.completed(queue="many")
            await given.waiting(queue="many")

        answer = await requests.operate(store, RemoveJobs(query=parse("queue:many state:failed")))

        assert answer == Moved((failed.id,))

    async def test_jobs_with_ids_are_found_at_once(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(scan=2))
        given = Given(store)
        jobs = [await given.waiting() for _ in range(9)]

        answer = await requests.operate(store, CancelJobs(query=parse(f"id:{jobs[0].id},{jobs[8].id}")))

        assert answer == Moved((jobs[8].id, jobs[0].id))
