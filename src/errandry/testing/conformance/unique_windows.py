"""Unique keys that outlive their jobs, and reruns of jobs with a unique key."""

from datetime import UTC, datetime

import pytest

from errandry.core.answer import Inserted, Moved
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    FailOutcome,
    GiveUpOutcome,
    Insert,
    Outcome,
    RerunJobs,
    RetryOutcome,
    Upkeep,
)
from errandry.core.job import JobRecord, Keep, NewJob
from errandry.core.state import State
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.errors import DuplicateJob
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.uniqueness import (
    FINISHED,
    FOREVER_KEY,
    HOUR_KEY,
    KEY,
    LIVE,
    RAISE,
    REPLACE,
    is_free,
)
from errandry.testing.given import Given

YEAR = 365 * 86_400.0


class UniqueWindows:
    """Keys with a window, or kept for ever, which outlive their jobs."""

    @pytest.mark.parametrize("state", [*LIVE, *FINISHED, None])
    async def test_a_window_key_is_held_for_its_time_whatever_happens_to_the_job(
        self, store: Store, clock: FakeClock, given: Given, state: State | None
    ) -> None:
        start = clock.time()
        holder = await given.in_state(state, unique=HOUR_KEY)
        clock.advance(start + 3_599 - clock.time())

        assert (await requests.insert(store, given.new_job(unique=HOUR_KEY))).ids == (holder.id,)
        clock.advance(1)
        new = given.new_job(unique=HOUR_KEY)
        assert await requests.insert(store, new) == Inserted((new.id,))
        assert (await requests.insert(store, given.new_job(unique=HOUR_KEY))).ids == (new.id,)

    async def test_a_window_counts_from_the_insert_that_took_the_key(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting(unique=HOUR_KEY)
        clock.advance(1_800)
        assert not await is_free(store, given, HOUR_KEY)
        clock.advance(1_800)

        assert await is_free(store, given, HOUR_KEY)

    @pytest.mark.parametrize(
        ("scope", "now", "last", "following"),
        [
            (UniqueScope.SECOND, "2026-02-27T23:59:58.75", "2026-02-27T23:59:58.875", "2026-02-27T23:59:59"),
            (UniqueScope.MINUTE, "2026-02-27T23:59:01", "2026-02-27T23:59:59.5", "2026-02-28T00:00:00"),
            (UniqueScope.HOUR, "2026-02-27T10:15:00", "2026-02-27T10:59:59", "2026-02-27T11:00:00"),
            (UniqueScope.DAY, "2026-02-28T00:00:00", "2026-02-28T23:59:59", "2026-03-01T00:00:00"),
            (UniqueScope.WEEK, "2026-02-25T12:00:00", "2026-03-01T23:59:59", "2026-03-02T00:00:00"),
            (UniqueScope.MONTH, "2026-12-31T23:00:00", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
            (UniqueScope.MONTH, "2028-02-01T00:00:00", "2028-02-29T23:59:59", "2028-03-01T00:00:00"),
        ],
    )
    async def test_an_aligned_window_ends_by_the_calendar(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        scope: UniqueScope,
        now: str,
        last: str,
        following: str,
    ) -> None:
        unique = UniqueKey("report", scope)
        clock.advance(_at(now) - clock.time())
        holder = await given.completed(unique=unique)
        clock.advance(_at(last) - clock.time())
        assert (await requests.insert(store, given.new_job(unique=unique))).ids == (holder.id,)
        clock.advance(_at(following) - clock.time())

        assert await is_free(store, given, unique)

    async def test_the_due_time_of_a_job_chooses_its_aligned_window(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        unique = UniqueKey("report", UniqueScope.DAY)
        clock.advance(_at("2026-02-27T10:00:00") - clock.time())
        today = await given.waiting(unique=unique)
        tomorrow = await given.scheduled(delay=86_400.0, unique=unique)

        for when, holder in (
            ({"run_at": _at("2026-02-28T23:00:00")}, tomorrow),
            ({"delay": 3_600.0}, today),
            ({"run_at": _at("2026-02-26T23:00:00")}, today),
        ):
            assert (await requests.insert(store, given.new_job(unique=unique, **when))).ids == (holder.id,)

    async def test_a_key_kept_for_ever_is_held_for_one_year(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        holder = await given.completed(unique=FOREVER_KEY, keep=Keep(1.0, 1.0, 1.0))
        clock.advance(YEAR - 100)
        await requests.run_upkeep(store)

        assert await requests.is_gone(store, holder)
        assert (await requests.insert(store, given.new_job(unique=FOREVER_KEY))).ids == (holder.id,)
        clock.advance(100)
        assert await is_free(store, given, FOREVER_KEY)

    async def test_a_repeated_insert_of_a_removed_job_is_recognized_by_its_key(
        self, store: Store, given: Given
    ) -> None:
        new = given.new_job(unique=FOREVER_KEY, on_conflict=RAISE, keep=Keep(0, 0, 0))
        await requests.insert(store, new)
        [job] = await requests.claim(store)
        await requests.settle(store, job, CompleteOutcome())

        assert await requests.insert(store, new) == Inserted((new.id,), frozenset({new.id}))
        assert await requests.list_jobs(store) == []

    async def test_a_key_is_shared_by_all_scopes(self, store: Store, given: Given) -> None:
        await given.completed(unique=HOUR_KEY)

        assert not await is_free(store, given, KEY)
        assert not await is_free(store, given, FOREVER_KEY)

    async def test_upkeep_deletes_expired_keys_in_bounded_steps(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.inserted(
            *(
                given.new_job(unique=UniqueKey(f"key {number}", UniqueScope.WINDOW, 10.0))
                for number in range(5)
            )
        )
        await given.waiting(unique=FOREVER_KEY)
        await given.waiting(unique=UniqueKey("alive"))
        assert (await requests.run_upkeep(store)).trimmed == 0
        clock.advance(10)

        assert [(await requests.run_upkeep(store, limit=3)).trimmed for _ in range(3)] == [3, 2, 0]
        assert not await is_free(store, given, FOREVER_KEY)
        assert not await is_free(store, given, UniqueKey("alive"))


class UniqueKeysOfReruns:
    @pytest.mark.parametrize("state", FINISHED)
    async def test_a_rerun_is_refused_while_another_live_job_holds_its_key(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.in_state(state, unique=KEY)
        holder = await given.waiting(unique=KEY)
        before = await requests.snapshot(store)

        answer = await requests.operate(store, RerunJobs(ids=(job.id,)))

        [(job_id, error)] = answer.refused
        assert isinstance(error, DuplicateJob)
        assert (job_id, error.key, error.job_id) == (job.id, "invoice 7", holder.id)
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("state", FINISHED)
    async def test_a_rerun_takes_its_free_key_again(self, store: Store, given: Given, state: State) -> None:
        job = await given.in_state(state, unique=KEY)

        assert await requests.operate(store, RerunJobs(ids=(job.id,))) == Moved((job.id,))
        assert (await requests.insert(store, given.new_job(unique=KEY))).ids == (job.id,)
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        assert await is_free(store, given)

    async def test_of_several_jobs_with_one_key_only_the_first_is_rerun(
        self, store: Store, given: Given
    ) -> None:
        jobs = [await given.failed(unique=KEY) for _ in range(3)]

        answer = await requests.operate(store, RerunJobs(ids=tuple(job.id for job in jobs)))

        assert answer.moved == (jobs[0].id,)
        assert [type(error) for _, error in answer.refused] == [DuplicateJob, DuplicateJob]

    async def test_a_rerun_within_its_own_window_is_allowed(self, store: Store, given: Given) -> None:
        job = await given.failed(unique=HOUR_KEY)

        assert await requests.operate(store, RerunJobs(ids=(job.id,))) == Moved((job.id,))

    async def test_a_finished_holder_does_not_block_a_rerun(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        old = await given.failed(unique=HOUR_KEY)
        clock.advance(3_600)
        live = await given.running(unique=HOUR_KEY)
        [(_, error)] = (await requests.operate(store, RerunJobs(ids=(old.id,)))).refused
        assert isinstance(error, DuplicateJob)
        await requests.settle(store, live, CompleteOutcome())

        assert await requests.operate(store, RerunJobs(ids=(old.id,))) == Moved((old.id,))
        assert (await requests.insert(store, given.new_job(unique=HOUR_KEY))).ids == (live.id,)

    async def test_a_rerun_is_not_blocked_by_the_key_of_another_day(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        unique = UniqueKey("report", UniqueScope.DAY)
        yesterday = await given.failed(unique=unique)
        clock.advance(86_400)
        await given.waiting(unique=unique)

        assert await requests.operate(store, RerunJobs(ids=(yesterday.id,))) == Moved((yesterday.id,))


class SingleKeyHolder:
    async def test_a_key_never_has_two_live_holders(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        """Sixty rounds of inserts, claims, outcomes, reruns and expiries with one key."""
        outcomes: list[Outcome] = [CompleteOutcome(), RetryOutcome(delay=0), FailOutcome(), GiveUpOutcome()]
        for number in range(60):
            new: list[NewJob] = [
                given.new_job(task="t", unique=KEY, on_conflict=[Conflict.RETURN, RAISE, REPLACE][number % 3])
            ]
            await store.commit([Insert(tuple(new))])
            for job in await requests.claim(store, lease=10.0):
                if number % 5:
                    await requests.settle(store, job, outcomes[number % len(outcomes)])
            finished_ids = [job.id for job in await requests.list_jobs(store) if job.finished]
            if finished_ids and number % 4 == 0:
                await requests.operate(store, RerunJobs(ids=tuple(finished_ids)))
            clock.advance(7)
            await requests.send(store, Upkeep())

            alive = [job for job in await requests.list_jobs(store) if not job.finished]
            assert len(alive) <= 1, [_id_and_state(job) for job in alive]


def _id_and_state(job: JobRecord) -> tuple[str, State]:
    return job.id, job.state


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
