"""Conveyor's page about the life of a job: fetching, which covers order, pauses, limits, locks and retries.

Its terms: a job's name is its task, delayed is scheduled, active is running, fetchNextJob is a Claim, a
lock is a lease, attemptsMade is `attempts`, maxGlobalConcurrency is the limit of a queue. Its flows, events
and repeated jobs have files of their own. Lines that begin with > are quoted from the page.
"""

from itertools import count
from typing import Any

import pytest

from errandry.core.answer import HELD, WRITTEN, Claims, LossCause, Lost, Renewed
from errandry.core.command import (
    Claim,
    CompleteOutcome,
    Insert,
    Ref,
    Renew,
    RetryOutcome,
    Settle,
    Upkeep,
)
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, Pause, PutRule, Resume
from errandry.core.job import Failure, JobRecord, NewJob
from errandry.core.retry import Backoff, Curve
from errandry.core.rule import Rule
from errandry.core.state import State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock

_nonces = count()


async def add(store: Store, name: str, job_id: str, **options: Any) -> None:
    """> await queue.add(name, data, options)"""
    await store.commit([Insert((NewJob(id=job_id, task=name, payload="{}", **options),))])


async def fetch(store: Store, worker: str = "w", limit: int = 1, **options: Any) -> tuple[JobRecord, ...]:
    """> fetchNextJob()"""
    claim = Claim(worker=worker, nonce=f"n{next(_nonces)}", limit=limit, **options)
    [answer] = await store.commit([claim])
    assert isinstance(answer, Claims), answer
    return answer.jobs


async def settle(store: Store, job: JobRecord, outcome: Any = None) -> object:
    [answer] = await store.commit([Settle(Ref(job.id, job.fence), outcome or CompleteOutcome())])
    return answer


async def current_job(store: Store, job_id: str) -> JobRecord:
    [job] = await store.get([job_id])
    assert job is not None
    return job


class TestFetching:
    async def test_two_workers_never_claim_the_same_job(self, store: Store) -> None:
        """> it selects a waiting job and sets its state to active with a lock in one transaction.
        > This prevents two workers from claiming the same job."""
        await add(store, "send-email", "a")

        first, second = await fetch(store, "first", limit=5), await fetch(store, "second", limit=5)

        assert [(job.id, job.state, job.worker) for job in first] == [("a", State.RUNNING, "first")]
        assert first[0].lease_until is not None
        assert second == ()

    async def test_lower_priority_numbers_go_first(self, store: Store) -> None:
        """> Priority: lower number = higher priority (default: 0)"""
        await add(store, "mail", "usual")
        await add(store, "mail", "late", priority=5)
        await add(store, "report", "urgent", priority=-5)

        assert [job.id for job in await fetch(store, limit=3)] == ["urgent", "usual", "late"]

    async def test_jobs_are_fifo_by_default(self, store: Store) -> None:
        """> FIFO/LIFO ordering: FIFO by default"""
        for job_id in "abc":
            await add(store, "mail", job_id)

        assert [job.id for job in await fetch(store, limit=3)] == ["a", "b", "c"]

    async def test_lifo_jobs_go_newest_first(self, store: Store) -> None:
        """> LIFO if configured"""
        for job_id in "abc":
            await add(store, "mail", job_id, lifo=True)

        assert [job.id for job in await fetch(store, limit=3)] == ["c", "b", "a"]

    async def test_a_claim_skips_paused_tasks(self, store: Store) -> None:
        """> Paused job names: skips paused job names"""
        await add(store, "mail", "mail")
        await add(store, "report", "report")
        await store.commit([Pause(GateKind.TASK, "mail", by="ada")])

        assert [job.id for job in await fetch(store, limit=5)] == ["report"]
        assert (await current_job(store, "mail")).state is State.WAITING

        await store.commit([Resume(GateKind.TASK, "mail")])
        assert [job.id for job in await fetch(store, limit=5)] == ["mail"]

    async def test_a_claim_skips_paused_queues(self, store: Store) -> None:
        """> paused: Queue or job name paused · resumed: Queue or job name resumed"""
        await add(store, "mail", "a", queue="emails")
        await store.commit([Pause(GateKind.QUEUE, "emails", by="ada")])
        assert await fetch(store, limit=5) == ()

        await store.commit([Resume(GateKind.QUEUE, "emails")])
        assert [job.id for job in await fetch(store, limit=5)] == ["a"]
        kinds = [entry.event.kind for entry in (await store.events(None, 100)).entries]
        assert [kind for kind in kinds if kind in (EventKind.PAUSED, EventKind.RESUMED)] == [
            EventKind.PAUSED,
            EventKind.RESUMED,
        ]

    async def test_a_queue_limit_counts_the_jobs_of_all_workers(self, store: Store) -> None:
        """> Global concurrency: checks total active count before fetching
        > maxGlobalConcurrency: 20, // max 20 active across all workers"""
        await store.commit([PutRule(GateKind.QUEUE, "emails", Rule(limit=20))])
        jobs = tuple(NewJob(id=str(n), task="mail", payload="{}", queue="emails") for n in range(30))
        await store.commit([Insert(jobs)])

        fetched = [job for worker in "abcd" for job in await fetch(store, worker, limit=8)]

        assert len(fetched) == 20
        assert await settle(store, fetched[0]) == WRITTEN
        assert len(await fetch(store, "e", limit=8)) == 1

    async def test_the_permit_of_a_dead_worker_is_freed(self, store: Store, clock: FakeClock) -> None:
        """Not on the page: there the job of a dead worker counts as active until its stall is noticed."""
        await store.commit([PutRule(GateKind.QUEUE, "default", Rule(limit=1))])
        await add(store, "mail", "a")
        await add(store, "mail", "b")
        await fetch(store, "dead", lease=30.0)
        assert await fetch(store, "alive") == ()

        clock.advance(30.0)
        await store.commit([Upkeep()])
        assert len(await fetch(store, "alive", limit=5)) == 1


class TestLocks:
    async def test_renewals_keep_the_lock_until_the_job_completes(
        self, store: Store, clock: FakeClock
    ) -> None:
        """> t=0s lock acquired (lockUntil = now + 30s) · t=15s renewed · t=30s renewed · t=40s completes"""
        await add(store, "video", "a")
        [job] = await fetch(store, lease=30.0)
        for _ in range(2):
            clock.advance(15.0)
            [answer] = await store.commit([Renew((Ref(job.id, job.fence),), 30.0)])
            assert answer == Renewed((HELD,))
        clock.advance(10.0)

        assert await settle(store, job) == WRITTEN
        assert (await current_job(store, "a")).lease_until is None

    async def test_a_stalled_job_is_waiting_again(self, store: Store, clock: FakeClock) -> None:
        """> Jobs where lockUntil < now and state = active … are re-enqueued back to waiting
        > A stalled event is emitted. The re-enqueued job will be picked up by another … worker"""
        await add(store, "mail", "a")
        [dead] = await fetch(store, "dead", lease=30.0)

        clock.advance(30.0)
        await store.commit([Upkeep()])

        assert (await current_job(store, "a")).state is State.WAITING
        kinds = [entry.event.kind for entry in (await store.events(None, 100)).entries]
        assert kinds[-2:] == [EventKind.STALLED, EventKind.WAITING]
        [reclaimed] = await fetch(store, "other")
        assert (reclaimed.id, reclaimed.attempts, reclaimed.crashes) == ("a", 2, 1)
        assert await settle(store, dead) == Lost(LossCause.OTHER_FENCE)  # fences are not on the page


class TestRetries:
    @pytest.mark.parametrize(
        ("backoff", "delays"),
        [
            (Backoff(Curve.FIXED, 1.0, jitter=0.0), [1, 1, 1, 1]),
            (Backoff(Curve.EXPONENTIAL, 1.0, jitter=0.0), [1, 2, 4, 8]),
        ],
    )
    async def test_retries_wait_for_their_backoff_until_the_attempts_are_spent(
        self, store: Store, clock: FakeClock, backoff: Backoff, delays: list[float]
    ) -> None:
        """> fixed: 1s, 1s, 1s, 1s · exponential: 1s, 2s, 4s, 8s
        > attemptsMade < attempts? yes → [delayed] (with backoff) → [waiting]; no → stays [failed]"""
        await add(store, "unreliable-api", "a", max_attempts=5, backoff=backoff)
        measured_delays = []
        for _ in range(4):
            [job] = await fetch(store)
            await settle(store, job, RetryOutcome(Failure(message="no")))
            retried = await current_job(store, "a")
            assert retried.state is State.SCHEDULED
            assert retried.run_at is not None
            measured_delays.append(retried.run_at - clock.time())
            clock.advance(measured_delays[-1])

        [job] = await fetch(store)
        await settle(store, job, RetryOutcome(Failure(message="no")))

        assert measured_delays == pytest.approx(delays)
        assert (await current_job(store, "a")).state is State.FAILED

    async def test_a_completed_job_has_its_result_and_time(self, store: Store, clock: FakeClock) -> None:
        """> The return value is stored as returnvalue · The completedAt timestamp is set"""
        await add(store, "mail", "a")
        [job] = await fetch(store)
        clock.advance(2.0)
        await settle(store, job, CompleteOutcome('"sent"'))
        completed = await current_job(store, "a")

        assert (completed.state, completed.result, completed.finished_at) == (
            State.COMPLETED,
            '"sent"',
            clock.time(),
        )
