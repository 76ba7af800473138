"""Inserts: what is stored of a new job, its first state, and what a repeated insert answers."""

import pytest

from errandry.core.answer import Claims, Inserted
from errandry.core.command import Claim, Insert, RemoveJobs
from errandry.core.job import JobRecord, Keep, NewJob
from errandry.core.retry import Backoff, Curve
from errandry.core.state import State
from errandry.errors import TooLarge
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given

FULL = NewJob(
    id="0198-ü-😀",
    task="send mail",
    payload=' {"to": ["bob"],\n "é": "\\u00e9\\ud83d\\ude00", "n": 1.50, "big": -9223372036854775808} ',
    queue="mails",
    group="customer 7",
    priority=-5,
    lifo=True,
    delay=90.5,
    max_attempts=7,
    max_crashes=2,
    timeout=12.5,
    deadline=1_800_000_000.25,
    backoff=Backoff(Curve.LINEAR, 2.5, 60.0, 0.0, "mine"),
    keep=Keep(completed=0.0, failed=1.5, canceled=3_600.0),
    tags=("a", "b c", "ü"),
    metadata='{"traceparent": "00-1-2-03"}',
)
SAME = (
    *("id", "task", "payload", "queue", "group", "priority", "lifo", "max_attempts", "max_crashes"),
    *("timeout", "deadline", "backoff", "keep", "tags", "metadata"),
)


class Inserts:
    async def test_a_job_is_stored_as_it_was_given(self, store: Store, clock: FakeClock) -> None:
        await requests.insert(store, FULL)

        [job] = await requests.list_jobs(store)

        assert {name: getattr(job, name) for name in SAME} == {name: getattr(FULL, name) for name in SAME}
        assert job.run_at == clock.time() + 90.5

    async def test_a_new_job_has_only_default_values_in_its_record(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        now = clock.time()
        await requests.insert(store, given.new_job(id="new", task="t", payload="[1]"))

        [job] = await store.get(["new"])

        assert job == JobRecord(
            seq=job.seq if job else 0,
            id="new",
            task="t",
            queue="default",
            group="",
            state=State.WAITING,
            lifo=False,
            reason=None,
            settled=None,
            payload="[1]",
            priority=0,
            place=job.place if job else 0,
            run_at=None,
            attempts=0,
            max_attempts=5,
            releases=0,
            crashes=0,
            max_crashes=3,
            open_children=0,
            children=0,
            parents=0,
            timeout=None,
            deadline=None,
            fence=0,
            worker=None,
            lease_until=None,
            cancel_requested=False,
            result=None,
            metadata=None,
            created_at=now,
            updated_at=now,
            claimed_at=None,
            started_at=None,
            finished_at=None,
            expires_at=None,
            lost_by=None,
            unhandled_since=None,
            backoff=None,
            keep=None,
            progress=None,
            tags=(),
            errors=(),
            logs=(),
            unique=None,
            steps=None,
        )

    @pytest.mark.parametrize(
        ("ahead", "state"), [(-1.0, State.WAITING), (0.0, State.WAITING), (0.25, State.SCHEDULED)]
    )
    async def test_a_job_is_scheduled_if_its_run_at_is_ahead_and_otherwise_waiting(
        self, clock: FakeClock, given: Given, ahead: float, state: State
    ) -> None:
        job = await given.waiting(run_at=clock.time() + ahead)

        assert job.state is state

    @pytest.mark.parametrize(("delay", "state"), [(0.0, State.WAITING), (0.25, State.SCHEDULED)])
    async def test_a_delay_counts_from_the_store_clock(
        self, clock: FakeClock, given: Given, delay: float, state: State
    ) -> None:
        job = await given.waiting(delay=delay)

        assert (job.state, job.run_at) == (state, clock.time() + delay)

    async def test_an_insert_answers_the_ids_in_the_order_given(self, store: Store, given: Given) -> None:
        answer = await requests.insert(store, *(given.new_job(id=name) for name in ("c", "a", "b")))

        assert answer == Inserted(("c", "a", "b"))

    async def test_jobs_are_numbered_in_the_order_given(self, given: Given) -> None:
        jobs = await given.inserted(*(given.new_job(id=name) for name in ("c", "a", "b")))
        last = await given.waiting()

        numbers = [job.seq for job in (*jobs, last)]

        assert numbers == sorted(set(numbers))

    @pytest.mark.parametrize("state", list(State))
    async def test_a_repeated_insert_answers_existed_and_changes_nothing(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.in_state(state, queue="first")
        before = await requests.snapshot(store)

        answer = await requests.insert(store, given.new_job(id=job.id, queue="second", payload="[2]"))

        assert answer == Inserted((job.id,), frozenset({job.id}))
        assert await requests.snapshot(store) == before

    async def test_a_bulk_insert_answers_which_jobs_existed_and_adds_the_rest(
        self, store: Store, given: Given
    ) -> None:
        live, completed = await given.waiting(), await given.completed()

        answer = await requests.insert(
            store, *(given.new_job(id=name) for name in ("x", live.id, "y", completed.id))
        )

        assert answer == Inserted(("x", live.id, "y", completed.id), frozenset({live.id, completed.id}))
        assert {job.id for job in await requests.list_jobs(store)} == {"x", "y", live.id, completed.id}

    async def test_the_id_of_a_removed_job_can_be_used_again(self, store: Store, given: Given) -> None:
        job = await given.completed()
        await requests.operate(store, RemoveJobs(ids=(job.id,)))

        answer = await requests.insert(store, given.new_job(id=job.id))

        assert answer == Inserted((job.id,))

    async def test_an_insert_is_all_or_nothing(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(payload=10))
        given = Given(store)
        before = await requests.snapshot(store)

        answer = await requests.send(
            store,
            Insert((given.new_job(), given.new_job(), given.new_job(payload='"123456789"'), given.new_job())),
        )

        assert isinstance(answer, TooLarge)
        assert await requests.snapshot(store) == before

    async def test_thousands_of_jobs_of_one_insert_are_claimed_in_order(
        self, store: Store, given: Given
    ) -> None:
        jobs = [given.new_job(task=f"task-{number % 3}") for number in range(5_000)]

        answer = await requests.insert(store, *jobs)

        assert answer.ids == tuple(job.id for job in jobs)
        assert await store.counts() == {"default": {"waiting": 5_000}}
        assert await requests.claim_ids(store, limit=5_000) == list(answer.ids)

    async def test_a_job_can_be_claimed_in_the_pass_that_inserts_it(self, store: Store, given: Given) -> None:
        new = given.new_job()

        _, answer = await store.commit([Insert((new,)), Claim(worker="w", nonce="n")])

        assert isinstance(answer, Claims)
        assert [job.id for job in answer.jobs] == [new.id]
