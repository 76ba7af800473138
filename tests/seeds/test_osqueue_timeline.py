"""osqueue's page "Job Lifecycle", replayed as written.

Its terms: unclaimed is `waiting`, in_progress is `running`, a heartbeat renews a lease of 30 seconds. osqueue
keeps no finished jobs, so these jobs have keep 0. There a lost worker costs an attempt and nothing else, so
`max_crashes` equals `max_attempts`. Lines that begin with > are quoted from the page.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from errandry import ClaimedJob, Claimer, Errandry
from errandry.core.answer import LossCause, UpkeepResult
from errandry.core.command import Upkeep
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.errors import LeaseLost
from errandry.testing.clock import START, FakeClock
from tests.machine_load import WAIT_TIMEOUT

HEARTBEAT_TIMEOUT = 30.0
MAX_ATTEMPTS = 3


class Broker:
    """The calls of osqueue's client, through the public API.

    Workers send their heartbeats by hand, and upkeep runs only when a test says so.
    """

    def __init__(self, app: Errandry, clock: FakeClock, stack: AsyncExitStack) -> None:
        self.app, self.clock, self._stack = app, clock, stack
        self._claimers: dict[tuple[str, ...], Claimer] = {}

    async def submit_job(
        self, type_: str, payload: dict[str, Any] | None = None, max_attempts: int = MAX_ATTEMPTS
    ) -> str:
        job = await self.app.enqueue(
            type_,
            payload,
            keep={"completed": 0, "failed": 0},
            max_attempts=max_attempts,
            max_crashes=max_attempts,
        )
        return job.id

    async def claimer(self, worker: str, *types: str) -> Claimer:
        if (worker, *types) not in self._claimers:
            claimer = self.app.claimer(
                worker=worker, tasks=types or None, lease=HEARTBEAT_TIMEOUT, renew=False, upkeep=False
            )
            self._claimers[worker, *types] = await self._stack.enter_async_context(claimer)
        return self._claimers[worker, *types]

    async def claim_job(self, worker: str, *types: str) -> ClaimedJob | None:
        jobs = await (await self.claimer(worker, *types)).claim()
        return jobs[0] if jobs else None

    async def claimed(self, worker: str, *types: str) -> ClaimedJob:
        """A job that is there; it may have to wait until the worker that lost it last has noticed that."""
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (job := await self.claim_job(worker, *types)) is None:
                await asyncio.sleep(0.01)
                self.clock.advance(0.01)
        return job

    async def run_upkeep(self) -> UpkeepResult:
        answer = await self.app.engine.submit(Upkeep())
        assert isinstance(answer, UpkeepResult)
        return answer

    async def job(self, job_id: str) -> JobRecord:
        return (await self.app.get(job_id)).record

    async def total(self, name: str) -> int:
        return (await self.app.totals())["default"].get(name, 0)

    async def jobs(self) -> list[str]:
        """osqueue's `jobs` array: in the order of submission."""
        return [job.id for job in reversed((await self.app.list()).jobs)]

    async def snapshot(self, job_id: str) -> tuple[object, ...]:
        """Everything that a call about a job could have changed.

        But not the crashes: a worker that hears that its lease is lost shows by a heartbeat that it lives.
        """
        app, record = self.app, await self.job(job_id)
        assert record is not None
        job = replace(record, crashes=0, lost_by=None, updated_at=0.0)
        return job, await app.counts(), await app.totals(), await app.latest_cursor()


@pytest.fixture
async def broker(app: Errandry, clock: FakeClock) -> AsyncIterator[Broker]:
    async with AsyncExitStack() as stack:
        yield Broker(app, clock, stack)


class Timeline:
    """`at(5)` sets the clock to five seconds after the start of the test."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def __call__(self, seconds: float) -> None:
        self.clock.advance(START + seconds - self.clock.time())


@pytest.fixture
def at(clock: FakeClock) -> Timeline:
    return Timeline(clock)


# Submit


async def test_a_submitted_job_is_appended_unclaimed_with_no_attempts(broker: Broker) -> None:
    """> The job is appended to the end of the `jobs` array with status "unclaimed", a generated UUID, and
    > `attempts: 0`.
    """
    first = await broker.submit_job(
        "email:send", {"to": "user@example.com", "subject": "Hello"}, max_attempts=3
    )
    second = await broker.submit_job("email:send")

    assert await broker.jobs() == [first, second]
    job = await broker.job(first)
    assert (job.state, job.attempts, job.max_attempts) == (State.WAITING, 0, 3)
    assert job.payload == '{"to":"user@example.com","subject":"Hello"}'
    assert UUID(job.id).version == 7


# Claim


async def test_a_claim_finds_the_first_unclaimed_job_matching_the_type_filter(broker: Broker) -> None:
    """> The broker finds the first unclaimed job matching the type filter (FIFO order)"""
    await broker.submit_job("image:resize")
    mails = [await broker.submit_job("email:send") for _ in range(3)]
    await broker.submit_job("image:resize")

    claims = [await broker.claim_job("worker-1", "email:send") for _ in range(4)]

    assert [job and job.id for job in claims] == [*mails, None]


async def test_a_filter_of_several_types_keeps_fifo_order_across_them(broker: Broker) -> None:
    types = ["email:send", "image:resize", "report:build", "email:send"]
    jobs = [await broker.submit_job(type_) for type_ in types]

    claims = [await broker.claimed("worker-1", "image:resize", "email:send") for _ in range(3)]

    assert [job.id for job in claims] == [jobs[0], jobs[1], jobs[3]]


async def test_a_claim_without_a_type_filter_takes_any_type(broker: Broker) -> None:
    """> A worker calls `claimJob(workerId, types?)`"""
    jobs = [await broker.submit_job(type_) for type_ in ("email:send", "image:resize", "email:send")]

    claims = [await broker.claimed("worker-1") for _ in jobs]

    assert [job.id for job in claims] == jobs


async def test_a_claim_sets_status_worker_heartbeat_and_attempts(
    broker: Broker, clock: FakeClock, at: Timeline
) -> None:
    """> `status`: "unclaimed" → "in_progress"; `workerId`: set to the claiming worker; `heartbeat`: set to
    > current timestamp; `attempts`: incremented by 1
    """
    await broker.submit_job("email:send")
    at(7)

    job = await broker.claimed("worker-1", "email:send")

    record = await broker.job(job.id)
    worker = await broker.claimer("worker-1", "email:send")
    assert (record.state, record.worker, record.attempts) == (State.RUNNING, worker.id, 1)
    assert record.lease_until == clock.time() + HEARTBEAT_TIMEOUT


async def test_a_claim_returns_null_if_no_matching_unclaimed_job_exists(broker: Broker) -> None:
    """> If no matching unclaimed job exists, the claim returns `null`."""
    assert await broker.claim_job("worker-1") is None

    await broker.submit_job("email:send")
    assert await broker.claim_job("worker-1", "image:resize") is None

    await broker.claimed("worker-1", "email:send")
    assert await broker.claim_job("worker-2") is None


# Heartbeat


async def test_heartbeats_keep_the_job_of_a_live_worker(broker: Broker, at: Timeline) -> None:
    """> This updates the job's `heartbeat` timestamp, telling the broker the worker is still alive."""
    await broker.submit_job("email:send")
    job = await broker.claimed("worker-1")

    for seconds in range(5, 125, 5):
        at(seconds)
        await job.renew()
        assert await broker.claim_job("worker-2") is None

    assert await broker.run_upkeep() == UpkeepResult()
    assert (await broker.job(job.id)).lease_until == START + 120 + HEARTBEAT_TIMEOUT


# Complete


async def test_a_completed_job_is_removed_and_counted(broker: Broker) -> None:
    """> The job is removed from the `jobs` array and `completedTotal` is incremented."""
    other = await broker.submit_job("email:send")
    await broker.submit_job("image:resize")
    job = await broker.claimed("worker-1", "image:resize")

    await job.complete()

    assert await broker.jobs() == [other]
    assert await broker.total("completed") == 1


# Expiry and retries


async def test_a_job_whose_heartbeat_is_stale_is_reset_to_unclaimed(broker: Broker, at: Timeline) -> None:
    """> If `attempts < maxAttempts` (default: 3): reset to "unclaimed" for retry"""
    job_id = await broker.submit_job("email:send")
    await broker.claimed("worker-1")

    at(29.9)
    assert await broker.run_upkeep() == UpkeepResult()
    at(30.1)
    assert (await broker.run_upkeep()).expired == 1

    job = await broker.job(job_id)
    assert (job.state, job.worker, job.attempts) == (State.WAITING, None, 1)


async def test_every_claim_expires_stale_heartbeats_first(broker: Broker, at: Timeline) -> None:
    """> On every write pass, the broker runs heartbeat expiry."""
    await broker.submit_job("email:send")
    await broker.claimed("worker-1")

    at(31)
    job = await broker.claimed("worker-2")

    assert ((await broker.job(job.id)).worker, job.attempt) == ((await broker.claimer("worker-2")).id, 2)


async def test_an_exhausted_job_is_removed_and_counted(broker: Broker, at: Timeline) -> None:
    """> If `attempts >= maxAttempts`: remove the job entirely (dropped from the array)"""
    await broker.submit_job("email:send", max_attempts=3)
    for attempt in (1, 2, 3):
        assert (await broker.claimed(f"worker-{attempt}")).attempt == attempt
        assert await broker.jobs()
        at(31 * attempt)

    assert await broker.claim_job("worker-4") is None

    assert await broker.jobs() == []
    assert [await broker.total(name) for name in ("failed", "removed", "expired")] == [1, 1, 3]


async def test_a_job_is_retried_up_to_max_attempts_times(broker: Broker, at: Timeline) -> None:
    """> Jobs are automatically retried up to `maxAttempts` times before being permanently discarded."""
    await broker.submit_job("email:send", max_attempts=7)
    attempts = 0
    while await broker.claim_job("worker-1"):
        attempts += 1
        at(31 * attempts)

    assert attempts == 7


async def test_a_job_whose_handler_throws_is_retried_after_the_timeout(broker: Broker, at: Timeline) -> None:
    """> When a handler throws, the worker simply stops sending heartbeats for that job. The broker's expiry
    > logic eventually detects the stale heartbeat and resets the job to "unclaimed" for retry.
    """
    await broker.submit_job("email:send")
    first = await broker.claimed("worker-1")

    at(31)
    second = await broker.claimed("worker-1")

    assert (second.id, second.attempt) == (first.id, 2)
    assert second.fence > first.fence


@pytest.mark.parametrize("claimed_by", ["no worker", "the same worker", "another worker"])
async def test_a_stale_worker_changes_nothing(broker: Broker, at: Timeline, claimed_by: str) -> None:
    """The first worker no longer holds the reset job: its heartbeat and its completion are refused, even if a
    worker of the same name has claimed the job again.
    """
    await broker.submit_job("email:send")
    stale = await broker.claimed("worker-1")
    at(31)
    await broker.run_upkeep()
    if claimed_by != "no worker":
        await broker.claimed("worker-1" if claimed_by == "the same worker" else "worker-2")
    cause = LossCause.NOT_HELD if claimed_by == "no worker" else LossCause.OTHER_FENCE
    before = await broker.snapshot(stale.id)

    for call in (stale.renew(), stale.complete()):
        with pytest.raises(LeaseLost) as error:
            await call
        assert error.value.cause == cause

    assert await broker.snapshot(stale.id) == before


# Payload validation


async def test_a_job_with_an_invalid_payload_is_completed_rather_than_retried(
    broker: Broker, at: Timeline
) -> None:
    """> If validation fails, the job is **completed (removed)** rather than retried — this prevents invalid
    > payloads from being retried indefinitely.
    """
    await broker.submit_job("email:send", {"subject": "no recipient"})
    job = await broker.claimed("worker-1")
    assert "to" not in job.arguments

    await job.complete()

    at(3_600)
    assert await broker.claim_job("worker-1") is None
    assert await broker.jobs() == []
    assert [await broker.total(name) for name in ("completed", "removed", "failed")] == [1, 1, 0]


# Example timeline


async def test_the_example_timeline(broker: Broker, at: Timeline) -> None:
    """
    T=0s    Producer submits "email:send" job (attempts=0)
    T=0.1s  Worker claims job (attempts=1, status=in_progress)
    T=5s    Worker sends heartbeat
    T=10s   Worker sends heartbeat
    T=12s   Worker completes job → removed from queue
    """
    at(0)
    job_id = await broker.submit_job("email:send")
    assert (await broker.job(job_id)).attempts == 0

    at(0.1)
    job = await broker.claimed("worker-1", "email:send")
    assert (job.id, job.attempt, (await broker.job(job_id)).state) == (job_id, 1, State.RUNNING)

    at(5)
    await job.renew()

    at(10)
    await job.renew()
    assert (await broker.job(job_id)).lease_until == START + 40

    at(12)
    await job.complete()
    assert await broker.jobs() == []
    assert await broker.total("completed") == 1


async def test_the_example_timeline_if_the_worker_crashes(broker: Broker, at: Timeline) -> None:
    """
    T=0s    Producer submits job (attempts=0)
    T=0.1s  Worker claims job (attempts=1)
    T=5s    Worker sends heartbeat
    T=8s    Worker crashes (no more heartbeats)
    T=38s   Broker detects stale heartbeat → reset to unclaimed
    T=39s   Another worker claims job (attempts=2)
    T=44s   Worker completes job → removed from queue
    """
    at(0)
    job_id = await broker.submit_job("email:send")

    at(0.1)
    crashed = await broker.claimed("worker-1")
    assert crashed.attempt == 1

    at(5)
    await crashed.renew()

    at(8)
    assert await broker.claim_job("worker-2") is None

    at(34)  # the last heartbeat is less than 30 seconds old
    assert await broker.run_upkeep() == UpkeepResult()

    at(38)
    assert (await broker.run_upkeep()).expired == 1
    assert (await broker.job(job_id)).state is State.WAITING

    at(39)
    job = await broker.claimed("worker-2")
    assert (job.id, job.attempt) == (job_id, 2)
    assert (await broker.job(job_id)).worker == (await broker.claimer("worker-2")).id

    at(44)
    with pytest.raises(LeaseLost, match="another claim holds it"):
        await crashed.complete()
    await job.complete()
    assert await broker.jobs() == []
    assert [await broker.total(name) for name in ("completed", "removed", "expired")] == [1, 1, 1]
