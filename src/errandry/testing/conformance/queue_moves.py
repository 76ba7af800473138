"""Moving jobs to another queue; bulk commands with ids and a query; the scan limit of one slice."""

from msgspec.structs import replace

from errandry.core.answer import Inserted, Moved
from errandry.core.command import CancelJobs, EditJobs, Insert, RemoveJobs, RerunJobs, RetryOutcome
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import Failure
from errandry.core.query import parse
from errandry.core.rule import OnReturn, Rule
from errandry.core.state import State
from errandry.core.unique import UniqueKey, UniqueScope
from errandry.errors import DuplicateJob
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class QueueChanges:
    async def test_moving_a_job_to_another_queue_changes_nothing_else(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        jobs = [await given.in_state(state) for state in (State.WAITING, State.SCHEDULED, State.BLOCKED)]
        clock.advance(5)

        answer = await requests.operate(store, EditJobs(ids=tuple(job.id for job in jobs), queue="other"))

        assert set(answer.moved) == {job.id for job in jobs}
        for job in jobs:
            assert await requests.current_job(store, job) == replace(
                job, queue="other", updated_at=clock.time()
            )

    async def test_a_moved_job_is_claimed_from_its_new_queue_only(self, store: Store, given: Given) -> None:
        job = await given.waiting(queue="here")
        await requests.operate(store, EditJobs(ids=(job.id,), queue="there"))

        assert await requests.claim_ids(store, queues=("here",)) == []
        assert await requests.claim_ids(store, queues=("there",)) == [job.id]

    async def test_a_moved_job_keeps_its_place_by_age(self, store: Store, given: Given) -> None:
        first = await given.waiting(queue="a")
        second = await given.waiting(queue="b")
        third = await given.waiting(queue="a")
        newest = await given.waiting(queue="b", lifo=True)

        await requests.operate(store, EditJobs(query=parse("queue:a"), queue="b"))

        assert await requests.claim_ids(store) == [newest.id, first.id, second.id, third.id]

    async def test_a_moved_job_is_counted_in_its_new_queue_and_reported_as_edited(
        self, store: Store, given: Given
    ) -> None:
        job = await given.waiting(queue="a")
        cursor = await store.latest_cursor()
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        assert await store.counts() == {"a": {}, "b": {"waiting": 1}}
        assert await store.totals() == {"a": {"inserted": 1, "moved_out": 1}, "b": {"moved_in": 1}}
        events = [(event.kind, event.queue, event.job) for event in await requests.read_events(store, cursor)]
        assert events == [(EventKind.EDITED, "b", job.id), (EventKind.DRAINED, "a", "")]

    async def test_one_edit_can_change_the_queue_and_run_at(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled(queue="a")
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b", run_at=clock.time()))

        assert await store.counts() == {"a": {}, "b": {"waiting": 1}}
        assert await requests.claim_ids(store, queues=("b",)) == [job.id]

    async def test_a_running_job_is_not_moved(self, store: Store, given: Given) -> None:
        job = await given.running(queue="a")

        answer = await requests.operate(store, EditJobs(query=parse("queue:a"), queue="b"))

        assert answer == Moved()
        assert (await requests.current_job(store, job)).queue == "a"

    async def test_a_unique_key_per_queue_moves_with_its_job(self, store: Store, given: Given) -> None:
        key = UniqueKey("k", per_queue=True)
        job = await given.waiting(queue="a", unique=key)
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        in_a, in_b = given.new_job(queue="a", unique=key), given.new_job(queue="b", unique=key)

        assert await requests.send(store, Insert((in_a,))) == Inserted((in_a.id,))
        assert await requests.send(store, Insert((in_b,))) == Inserted((job.id,), frozenset({job.id}))
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        assert await requests.send(store, Insert((in_b,))) == Inserted((in_b.id,))

    async def test_a_job_is_not_moved_to_a_queue_where_its_key_is_held(
        self, store: Store, given: Given
    ) -> None:
        key = UniqueKey("k", per_queue=True)
        job, holder = await given.waiting(queue="a", unique=key), await given.waiting(queue="b", unique=key)

        [(job_id, error)] = (
            await requests.operate(store, EditJobs(query=parse("queue:a"), queue="b"))
        ).refused

        assert (job_id, isinstance(error, DuplicateJob)) == (job.id, True)
        assert await requests.current_job(store, job) == job
        assert await requests.current_job(store, holder) == holder

    async def test_a_unique_key_with_a_window_stays_in_its_first_queue(
        self, store: Store, given: Given
    ) -> None:
        key = UniqueKey("k", UniqueScope.WINDOW, 60.0, per_queue=True)
        job = await given.waiting(queue="a", unique=key)
        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        answer = await requests.send(store, Insert((given.new_job(queue="a", unique=key),)))

        assert answer == Inserted((job.id,), frozenset({job.id}))

    async def test_moving_a_job_frees_the_group_it_held(self, store: Store, given: Given) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "a", Rule(on_return=OnReturn.HOLD_GROUP)))
        job = await given.settled(RetryOutcome(Failure(), 60.0), queue="a", group="g")
        next_job = await given.waiting(queue="a", group="g")
        assert await requests.claim_ids(store, queues=("a",)) == []

        await requests.operate(store, EditJobs(ids=(job.id,), queue="b"))

        assert await requests.claim_ids(store, queues=("a",)) == [next_job.id]


ALL = parse("queue:many")


class RecheckedCommands:
    """Commands with ids and a query: a named job is moved only if it still matches the query."""

    async def test_only_named_jobs_that_still_match_the_query_are_moved(
        self, store: Store, given: Given
    ) -> None:
        failed = await given.failed(queue="many")
        completed = await given.completed(queue="many")
        other = await given.failed()
        ids = failed.id, completed.id, other.id, "unknown"

        answer = await requests.operate(store, RerunJobs(ids=ids, query=parse("queue:many state:failed")))

        assert answer == Moved((failed.id,))
        assert await requests.current_job(store, completed) == completed

    async def test_named_jobs_in_a_state_that_forbids_the_move_are_skipped(
        self, store: Store, given: Given
    ) -> None:
        job, running = await given.waiting(queue="many"), await given.running(queue="many")

        assert await requests.operate(store, RemoveJobs(ids=(job.id, running.id), query=ALL)) == Moved(
            (job.id,)
        )


class BulkScanLimit:
    """A slice scans at most `StoreLimits.scan` jobs, however many jobs the store has."""

    async def test_a_slice_ends_when_it_has_scanned_its_maximum(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(scan=3))
        given = Given(store)
        matching = await given.waiting(queue="many")
        others = [await given.waiting() for _ in range(7)]

        answers = [await requests.operate(store, CancelJobs(query=ALL))]
        while (below := answers[-1].below) is not None:
            answers.append(await requests.operate(store, CancelJobs(query=ALL, below=below)))

        assert [answer.moved for answer in answers] == [(), (), (matching.id,)]
        assert [answer.below for answer in answers] == [others[-3].seq, others[-6].seq, None]

    async def test_jobs_in_other_states_are_not_scanned(
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

    async def test_a_query_by_ids_finds_its_jobs_in_one_slice(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(scan=2))
        given = Given(store)
        jobs = [await given.waiting() for _ in range(9)]

        answer = await requests.operate(store, CancelJobs(query=parse(f"id:{jobs[0].id},{jobs[8].id}")))

        assert answer == Moved((jobs[8].id, jobs[0].id))
