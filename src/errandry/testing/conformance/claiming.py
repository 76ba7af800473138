"""Claims: which jobs a claim takes, in which order, which it skips, and what it answers."""

import pytest
from msgspec.structs import replace

from errandry.core.batch import BatchSpec
from errandry.core.command import (
    Claim,
    EditJobs,
    Note,
    PostponeJobs,
    PromoteJobs,
    ReleaseOutcome,
    RetryOutcome,
    SnoozeOutcome,
    Start,
)
from errandry.core.event import EventKind
from errandry.core.job import Progress
from errandry.core.state import Reason, State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref


class ClaimableJobs:
    async def test_a_claim_takes_the_job_under_a_lease(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        waiting = await given.waiting()
        clock.advance(5)

        [job] = await requests.claim(store, worker="me", start=False, lease=20.0)

        now = clock.time()
        assert job == replace(
            waiting,
            state=State.CLAIMED,
            place=None,
            attempts=1,
            fence=int(now * 1_000_000),
            worker="me",
            lease_until=now + 20,
            claimed_at=now,
            updated_at=now,
        )

    async def test_a_claim_answers_the_job_as_it_is_stored(self, store: Store, given: Given) -> None:
        await given.waiting()

        [job] = await requests.claim(store)

        assert await store.get([job.id]) == [job]

    async def test_a_claim_with_start_equals_a_claim_followed_by_a_start(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        at_once = await given.running(id="a", task="t")
        await requests.send(store, Start(ref(await given.claimed(id="b", task="t"))))

        [one_by_one] = await store.get(["b"])

        assert at_once == replace(one_by_one, id="a", seq=at_once.seq) if one_by_one else False
        assert at_once.started_at == clock.time()

    async def test_a_claim_clears_progress_and_start_time_of_the_last_attempt(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running()
        await requests.send(store, Note(ref(job), Progress(0.5, "half")))
        await requests.settle(store, job, ReleaseOutcome())

        reclaimed = await given.claim(job, start=False)

        assert (reclaimed.progress, reclaimed.started_at, reclaimed.settled) == (None, None, None)
        assert await requests.current_job(store, job) == reclaimed

    async def test_a_claimed_job_is_not_claimed_again_before_its_lease_expires(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(29.75)
        assert await requests.claim_ids(store) == []
        clock.advance(0.25)

        assert await requests.claim_ids(store) == [job.id]

    async def test_a_claim_on_an_empty_store_answers_no_jobs(self, store: Store) -> None:
        assert (await requests.send_claim(store)).jobs == ()
        assert (await requests.send_claim(store)).due_in is None

    async def test_a_claim_takes_no_more_than_its_limit(self, store: Store, given: Given) -> None:
        for name in ("a", "b", "c"):
            await given.waiting(id=name)

        assert await requests.claim_ids(store, limit=2) == ["a", "b"]
        assert await requests.claim_ids(store, limit=2) == ["c"]

    async def test_a_due_job_is_claimed_without_upkeep(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled(delay=60.0)
        clock.advance(59.75)
        assert await requests.claim_ids(store) == []
        clock.advance(0.25)

        assert await requests.claim_ids(store) == [job.id]

    async def test_many_due_and_expired_jobs_are_claimed_without_upkeep(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.inserted(*(given.new_job() for _ in range(60)))
        assert len(await requests.claim_ids(store, lease=60.0)) == 60
        await given.inserted(*(given.new_job(delay=60.0) for _ in range(60)))
        clock.advance(60)

        assert len(await requests.claim_ids(store, limit=1_000)) == 120

    async def test_an_empty_claim_answers_when_the_next_job_is_due(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.scheduled(delay=90.0)
        await given.scheduled(delay=60.0)
        clock.advance(20)

        assert (await requests.send_claim(store)).due_in == 40.0

    @pytest.mark.parametrize("state", [State.BLOCKED, State.SCHEDULED, State.WAITING])
    async def test_a_lapsed_job_is_never_claimed(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        job = await given.in_state(
            state, deadline=clock.time() + 60, **_run_at_if_scheduled(state, clock.time() + 60)
        )
        clock.advance(60)

        assert await requests.claim_ids(store) == []
        after = await requests.current_job(store, job)
        assert (after.state, after.reason) == (State.FAILED, Reason.DEADLINE)

    @pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
    async def test_a_job_that_lapses_while_it_is_claimed_fails_when_its_lease_expires(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        job = await given.in_state(state, deadline=clock.time() + 30, lease=60.0)
        clock.advance(60)

        assert await requests.claim_ids(store) == []
        after = await requests.current_job(store, job)
        assert (after.state, after.reason) == (State.FAILED, Reason.DEADLINE)

    async def test_lapsed_jobs_do_not_block_other_jobs(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(3):
            await given.waiting(deadline=clock.time() - 1)
        job = await given.waiting()

        assert await requests.claim_ids(store, limit=1) == [job.id]

    async def test_a_job_can_be_claimed_until_its_deadline(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(deadline=clock.time() + 60)
        clock.advance(59.75)

        assert await requests.claim_ids(store) == [job.id]

    async def test_a_repeated_claim_beside_a_new_one_answers_the_same_jobs(
        self, store: Store, given: Given
    ) -> None:
        await given.inserted(*(given.new_job() for _ in range(4)))
        old, new = (Claim(worker="worker", nonce=nonce, limit=limit) for nonce, limit in (("a", 1), ("b", 2)))
        [old_answer] = await store.commit([old])

        new_answer, repeated = await store.commit([new, old])

        assert repeated == old_answer
        assert await store.commit([new, old, new]) == [new_answer, old_answer, new_answer]


class ClaimOrder:
    async def test_lower_priority_numbers_go_first(self, store: Store, given: Given) -> None:
        for priority in (0, 10, -10, 5, -(2**31), 2**31 - 1):
            await given.waiting(id=str(priority), priority=priority)

        assert await requests.claim_ids(store) == ["-2147483648", "-10", "0", "5", "10", "2147483647"]

    async def test_equal_priorities_go_first_in_first_out(self, store: Store, given: Given) -> None:
        for name in ("b", "c", "a"):
            await given.waiting(id=name, task="t")

        assert await requests.claim_ids(store) == ["b", "c", "a"]

    async def test_lifo_jobs_go_before_fifo_jobs_newest_first(self, store: Store, given: Given) -> None:
        for name, lifo in (("f1", False), ("l1", True), ("f2", False), ("l2", True)):
            await given.waiting(id=name, lifo=lifo)
        await given.waiting(id="urgent", priority=-1)

        assert await requests.claim_ids(store) == ["urgent", "l2", "l1", "f1", "f2"]

    async def test_the_order_holds_across_tasks_and_queues(self, store: Store, given: Given) -> None:
        for number in range(12):
            await given.waiting(
                id=f"{number % 2}-{number:02}",
                priority=number % 2,
                task=f"t{number % 3}",
                queue=f"q{number % 4}",
            )

        claimed_ids = [*await requests.claim_ids(store, limit=5), *await requests.claim_ids(store, limit=50)]

        assert claimed_ids == sorted(claimed_ids)
        assert len(claimed_ids) == 12

    @pytest.mark.parametrize("outcome", [ReleaseOutcome(), RetryOutcome(delay=0.0)], ids=["release", "retry"])
    async def test_a_released_or_retried_job_goes_to_the_back(
        self, store: Store, given: Given, outcome: ReleaseOutcome | RetryOutcome
    ) -> None:
        first = await given.waiting(task="t")
        second = await given.waiting(task="t")
        await requests.settle(store, await given.claim(first), outcome)
        third = await given.waiting(task="t")

        assert await requests.claim_ids(store) == [second.id, first.id, third.id]

    async def test_an_expired_job_goes_to_the_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        lost = await given.running(lease=30.0)
        waiting = await given.waiting()
        clock.advance(30)

        assert await requests.claim_ids(store) == [waiting.id, lost.id]

    async def test_a_due_job_goes_to_the_back(self, store: Store, clock: FakeClock, given: Given) -> None:
        later = await given.scheduled(delay=60.0)
        first = await given.waiting()
        clock.advance(60)

        assert await requests.claim_ids(store) == [first.id, later.id]

    async def test_due_jobs_are_claimed_in_the_order_of_their_due_times(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for name, delay in (("c", 30.0), ("a", 10.0), ("b", 20.0), ("d", 30.0)):
            await given.scheduled(id=name, delay=delay)
        clock.advance(60)

        assert await requests.claim_ids(store) == ["a", "b", "c", "d"]

    async def test_a_promoted_or_postponed_job_goes_to_the_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        promoted, postponed = await given.scheduled(), await given.waiting()
        middle = await given.waiting()
        await requests.operate(store, PromoteJobs(ids=(promoted.id,)))
        await requests.operate(store, PostponeJobs(ids=(postponed.id,), delay=10.0))
        clock.advance(10)

        assert await requests.claim_ids(store) == [middle.id, promoted.id, postponed.id]

    async def test_an_edited_job_keeps_its_place(self, store: Store, given: Given) -> None:
        jobs = [await given.waiting(task="t") for _ in range(3)]

        await requests.operate(store, EditJobs(ids=(jobs[0].id,), payload="[1]", tags=("new",)))

        assert await requests.claim_ids(store) == [job.id for job in jobs]

    async def test_an_edited_priority_takes_effect_at_once(self, store: Store, given: Given) -> None:
        first, second, third = [await given.waiting(task="t") for _ in range(3)]

        await requests.operate(store, EditJobs(ids=(third.id,), priority=-1))
        await requests.operate(store, EditJobs(ids=(first.id,), priority=1))

        assert await requests.claim_ids(store) == [third.id, second.id, first.id]

    async def test_no_two_waiting_jobs_have_the_same_place(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.inserted(*(given.new_job(task="t", lifo=lifo) for lifo in (False, True) * 3))
        await given.inserted(*(given.new_job(delay=10.0) for _ in range(3)))
        for job in await requests.claim(store, limit=4):
            await requests.settle(store, job, ReleaseOutcome())
        clock.advance(10)
        await requests.run_upkeep(store)
        await given.waiting()

        places = [job.place for job in await requests.list_jobs(store)]

        assert None not in places
        assert len(set(places)) == len(places) == 10

    async def test_a_claim_takes_jobs_of_its_queues_and_tasks_only(self, store: Store, given: Given) -> None:
        for queue in ("q1", "q2", "q3"):
            for task in ("t1", "t2", "t3"):
                await given.waiting(id=f"{queue} {task}", queue=queue, task=task)

        assert await requests.claim_ids(store, queues=("q2",), tasks=("t3", "t1")) == ["q2 t1", "q2 t3"]
        assert await requests.claim_ids(store, queues=("q1", "q3"), tasks=("t2",)) == ["q1 t2", "q3 t2"]
        assert await requests.claim_ids(store, tasks=("t3",)) == ["q1 t3", "q3 t3"]
        assert await requests.claim_ids(store, queues=("nowhere",)) == []

    async def test_an_empty_queue_or_task_filter_matches_no_job(self, store: Store, given: Given) -> None:
        await given.waiting()

        assert await requests.claim_ids(store, queues=()) == []
        assert await requests.claim_ids(store, tasks=()) == []

    async def test_a_claim_can_exclude_tasks(self, store: Store, given: Given) -> None:
        for task in ("t1", "t2", "t3"):
            await given.waiting(id=task, task=task)

        assert await requests.claim_ids(store, tasks=("t1", "t2"), without=("t2", "t4")) == ["t1"]
        assert await requests.claim_ids(store, without=("t2",)) == ["t3"]
        assert await requests.claim_ids(store) == ["t2"]

    async def test_many_jobs_of_other_tasks_do_not_hide_a_matching_job(
        self, store: Store, given: Given
    ) -> None:
        await given.inserted(*(given.new_job(task="other", priority=-1) for _ in range(1_500)))
        job = await given.waiting(task="mine")

        assert await requests.claim_ids(store, limit=1, tasks=("mine",)) == [job.id]

    async def test_a_snoozed_job_goes_to_the_back_when_it_is_due(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, SnoozeOutcome(60.0))
        other = await given.waiting()
        clock.advance(60)

        assert await requests.claim_ids(store) == [other.id, job.id]


class SuspectClaims:
    @pytest.mark.parametrize(
        ("suspects", "taken"), [(None, "abcde"), (0, "be"), (1, "abe"), (2, "abce"), (9, "abcde")]
    )
    async def test_a_claim_takes_at_most_its_number_of_suspects(
        self, store: Store, clock: FakeClock, given: Given, suspects: int | None, taken: str
    ) -> None:
        await _insert_suspects(store, clock, given)

        assert await requests.claim_ids(store, suspects=suspects) == list(taken)

    async def test_skipped_suspects_are_left_for_a_claim_that_accepts_them(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _insert_suspects(store, clock, given)
        assert await requests.claim_ids(store, suspects=0) == ["b", "e"]
        assert await requests.claim_ids(store, suspects=0) == []
        assert await requests.claim_ids(store, suspects=1) == ["a"]

        assert await requests.claim_ids(store) == ["c", "d"]

    async def test_skipped_suspects_do_not_count_towards_the_limit(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _insert_suspects(store, clock, given)

        assert await requests.claim_ids(store, limit=2, suspects=0) == ["b", "e"]

    async def test_a_queue_with_only_suspects_waiting_is_not_drained(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _insert_suspects(store, clock, given)
        cursor = await store.latest_cursor()
        await requests.claim(store, limit=10, suspects=0)

        assert EventKind.DRAINED not in await requests.event_kinds(store, cursor)


class BatchClaims:
    @pytest.mark.parametrize(
        ("limit", "size", "taken"),
        [(1, 1, "a"), (1, 3, "acd"), (2, 3, "abcd"), (3, 2, "abcdf"), (3, 3, "abcde"), (1, 9, "acdf")],
    )
    async def test_a_claim_fills_its_batches_with_jobs_of_the_same_task(
        self, store: Store, given: Given, limit: int, size: int, taken: str
    ) -> None:
        await _insert_jobs_of_two_tasks(given)

        jobs = await requests.claim(store, limit=limit, batches=(BatchSpec("many", size),))

        assert sorted(job.id for job in jobs) == sorted(taken)
        assert [job.id for job in jobs[:limit]] == sorted(taken)[:limit]
        assert {job.state for job in jobs} == {State.RUNNING}

    async def test_a_batch_claim_stops_after_about_a_thousand_jobs(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.new_job(task="many") for _ in range(1_200)))

        jobs = await requests.claim(store, limit=900, batches=(BatchSpec("many", 7),))

        assert 1_000 <= len(jobs) < 1_007
        assert len(jobs) % 7 == 0

    async def test_a_batch_needs_a_first_job_that_the_claim_may_take(
        self, store: Store, given: Given
    ) -> None:
        await _insert_jobs_of_two_tasks(given)

        assert await requests.claim_ids(store, limit=2, tasks=("one",), batches=(BatchSpec("many", 9),)) == [
            "b",
            "e",
        ]
        assert (
            await requests.claim_ids(store, limit=2, without=("many",), batches=(BatchSpec("many", 9),)) == []
        )

    async def test_batches_are_filled_from_the_queues_of_the_claim_only(
        self, store: Store, given: Given
    ) -> None:
        for name, queue in (("a", "mine"), ("b", "other"), ("c", "mine")):
            await given.waiting(id=name, task="many", queue=queue)

        claimed_ids = await requests.claim_ids(
            store, limit=1, queues=("mine",), batches=(BatchSpec("many", 9),)
        )

        assert claimed_ids == ["a", "c"]

    async def test_a_suspect_never_shares_a_batch(self, store: Store, clock: FakeClock, given: Given) -> None:
        await _insert_suspects(store, clock, given)
        batches = (BatchSpec("t", 9),)

        assert await requests.claim_ids(store, limit=1, batches=batches) == ["a"]
        assert await requests.claim_ids(store, limit=1, batches=batches) == ["b", "e"]
        assert await requests.claim_ids(store, limit=2, suspects=1, batches=batches) == ["c"]

    async def test_a_batch_with_start_false_is_claimed_but_not_started(
        self, store: Store, given: Given
    ) -> None:
        await _insert_jobs_of_two_tasks(given)

        jobs = await requests.claim(store, limit=2, batches=(BatchSpec("many", 3, start=False),))

        assert {job.id: job.state for job in jobs} == {
            "a": State.CLAIMED,
            "b": State.RUNNING,
            "c": State.CLAIMED,
            "d": State.CLAIMED,
        }

    async def test_a_repeated_claim_answers_the_same_batch(self, store: Store, given: Given) -> None:
        await _insert_jobs_of_two_tasks(given)
        claim = {"nonce": "again", "limit": 1, "batches": (BatchSpec("many", 3),)}

        assert await requests.claim(store, **claim) == await requests.claim(store, **claim)

    async def test_filling_a_batch_can_drain_a_queue(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.new_job(task="many") for _ in range(3)))
        cursor = await store.latest_cursor()

        await requests.claim(store, limit=1, batches=(BatchSpec("many", 3),))

        assert EventKind.DRAINED in await requests.event_kinds(store, cursor)


async def _insert_jobs_of_two_tasks(given: Given) -> None:
    """Insert the jobs a to f in this order; b and e belong to task `one`, the others to task `many`."""
    for name in "abcdef":
        await given.waiting(id=name, task="one" if name in "be" else "many")


async def _insert_suspects(store: Store, clock: FakeClock, given: Given) -> None:
    """Insert the waiting jobs a to e in this order; a, c and d are suspects, which expired while they ran."""
    for name, priority in (("a", 1), ("c", 3), ("d", 4)):
        await given.running(id=name, task="t", priority=priority, lease=30.0)
    clock.advance(30)
    await requests.run_upkeep(store)
    for name, priority in (("b", 2), ("e", 5)):
        await given.waiting(id=name, task="t", priority=priority)


def _run_at_if_scheduled(state: State, run_at: float) -> dict[str, object]:
    return {"delay": None, "run_at": run_at} if state is State.SCHEDULED else {}
