"""TaskHarbor's page about data flows, replayed step by step.

Its terms: runnable is `waiting`, inflight is `running`, Reserve is a claim of one job, a lease's token is its
fence, ExtendLease renews, Ack completes, the DLQ is the `failed` jobs. Its errors ErrJobNotInflight,
ErrLeaseMismatch and ErrLeaseExpired are the causes `not_held`, `other_fence`, `expired`.
Lines that begin with > are quoted from the page.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from errandry import Backoff, ClaimedJob, Claimer, Errandry
from errandry.api.job import Job
from errandry.claims.open_claim import OpenClaim
from errandry.core.answer import LossCause, Moved
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State
from errandry.errors import InvalidMove, InvalidValue, LeaseLost
from errandry.testing.clock import FakeClock

LEASE = 30.0
BOOM = RuntimeError("boom")


class Driver:
    """The calls of TaskHarbor's driver, through the public API. Leases are extended by hand."""

    def __init__(self, app: Errandry) -> None:
        self.app = app
        self._claimers: dict[str, Claimer] = {}

    async def enqueue(
        self,
        job_id: str = "job-1",
        task: str = "email.send",
        payload: dict[str, Any] | None = None,
        **options: Any,
    ) -> Job[Any]:
        return await self.app.enqueue(task, payload, id=job_id, **options)

    async def reserve(self, queue: str = "default") -> ClaimedJob | None:
        if queue not in self._claimers:
            claimer = self.app.claimer(queues=[queue], lease=LEASE, renew=False, upkeep=False)
            self._claimers[queue] = await claimer.__aenter__()
        jobs = await self._claimers[queue].claim()
        return jobs[0] if jobs else None

    async def reserved(self) -> ClaimedJob:
        job = await self.reserve()
        assert job is not None
        return job

    def token(self, record: JobRecord) -> ClaimedJob:
        """A program that has the token of this record, whether it holds the job or not."""
        clock = self.app.clock
        claim = OpenClaim(record, clock, LEASE, clock.monotonic(), False, lambda _: None)
        return ClaimedJob(self.app, claim)

    async def inspect(self, job_id: str = "job-1") -> JobRecord:
        return (await self.app.get(job_id)).record

    async def snapshot(self) -> tuple[object, ...]:
        """Everything that a call could have changed."""
        app, store = self.app, self.app.store
        return (
            await app.engine.call(store.list),
            await app.counts(),
            await app.totals(),
            await app.latest_cursor(),
            await app.engine.call(store.due_in),
        )

    async def close(self) -> None:
        for claimer in self._claimers.values():
            await claimer.__aexit__(None, None, None)


@pytest.fixture
async def driver(app: Errandry) -> AsyncIterator[Driver]:
    driver = Driver(app)
    yield driver
    await driver.close()


# Enqueue flow: JobRequest -> JobRecord -> Driver storage


async def test_enqueue_normalizes_defaults_and_starts_with_no_attempts(
    driver: Driver, clock: FakeClock
) -> None:
    """> normalize defaults (queue, etc.) · set CreatedAt · set Attempts=0 · copy Timeout/MaxAttempts"""
    await driver.enqueue(payload={"to": "bob"}, timeout=12.5, max_attempts=7)

    job = await driver.inspect()
    assert (job.task, job.queue, job.payload) == ("email.send", "default", '{"to":"bob"}')
    assert (job.created_at, job.attempts, job.max_attempts, job.timeout) == (clock.time(), 0, 7, 12.5)


async def test_enqueue_validates_the_request(driver: Driver) -> None:
    """> validate request"""
    with pytest.raises(InvalidValue, match="task"):
        await driver.enqueue(task="")
    with pytest.raises(InvalidValue, match="timeout"):
        await driver.enqueue(timeout=-1)
    with pytest.raises(InvalidValue, match="max_attempts"):
        await driver.enqueue(max_attempts=-1)


async def test_jobs_without_a_future_run_at_are_reserved_in_fifo_order(
    driver: Driver, clock: FakeClock
) -> None:
    """> if RunAt is zero (or <= now at reserve time) store in runnable FIFO"""
    await driver.enqueue("job-1")
    await driver.enqueue("job-2", run_at=clock.time())
    await driver.enqueue("job-3", run_at=clock.time() - 60)

    assert [(await driver.reserved()).id for _ in range(3)] == ["job-1", "job-2", "job-3"]


async def test_a_job_with_a_future_run_at_is_stored_scheduled(driver: Driver, clock: FakeClock) -> None:
    """> if RunAt is in the future store in scheduled heap"""
    await driver.enqueue(run_at=clock.time() + 60)

    assert (await driver.inspect()).state is State.SCHEDULED
    assert await driver.reserve() is None


# Worker run loop: poll -> reserve -> execute


async def test_reserve_promotes_due_scheduled_jobs(driver: Driver, clock: FakeClock) -> None:
    """> promote due scheduled jobs (RunAt <= now) · move due jobs into runnable"""
    await driver.enqueue("later", delay=20)
    await driver.enqueue("sooner", delay=10)
    clock.advance(9.9)
    assert await driver.reserve() is None

    clock.advance(0.1)
    assert (await driver.reserved()).id == "sooner"
    assert await driver.reserve() is None

    clock.advance(10)
    assert (await driver.reserved()).id == "later"


async def test_reserve_takes_ready_jobs_before_reclaimed_and_due_ones(
    driver: Driver, clock: FakeClock
) -> None:
    """TaskHarbor's order: ready now, then reclaimed, then due."""
    await driver.enqueue("due", delay=30)
    await driver.enqueue("let_lease_expire")
    await driver.reserved()
    await driver.enqueue("ready")

    clock.advance(30)

    assert [(await driver.reserved()).id for _ in range(3)] == ["ready", "let_lease_expire", "due"]


async def test_reserve_reclaims_expired_inflight_leases(driver: Driver, clock: FakeClock) -> None:
    """> reclaim expired inflight leases (crash recovery) if lease.ExpiresAt <= now: remove inflight entry,
    > job becomes runnable immediately
    """
    await driver.enqueue()
    first = await driver.reserved()

    clock.advance(LEASE - 0.5)
    assert await driver.reserve() is None

    clock.advance(0.5)
    second = await driver.reserved()
    assert (second.id, second.attempt) == (first.id, 2)


async def test_reserve_takes_one_runnable_job_of_its_queue_if_any(driver: Driver) -> None:
    """> pop 1 runnable job (if any)"""
    await driver.enqueue("job-1", queue="bulk")
    await driver.enqueue("job-2")
    await driver.enqueue("job-3")

    assert [job and job.id for job in [await driver.reserve() for _ in range(3)]] == ["job-2", "job-3", None]
    assert (await driver.inspect("job-1")).state is State.WAITING


async def test_reserve_creates_a_lease_with_a_token_and_an_expiry(driver: Driver, clock: FakeClock) -> None:
    """> create lease: Token (random), ExpiresAt = now + leaseDuration, store inflight[id] = {rec, lease}"""
    await driver.enqueue("job-1")
    await driver.enqueue("job-2")

    job = await driver.reserved()

    assert job.fence > 0
    record = await driver.inspect("job-1")
    assert (record.lease_until, record.fence) == (clock.time() + LEASE, job.fence)


# Execution flow: handler + heartbeat + completion


async def test_an_extended_lease_counts_from_now(driver: Driver, clock: FakeClock) -> None:
    """> If valid: update stored ExpiresAt = now + leaseDuration, return updated Lease"""
    await driver.enqueue()
    job = await driver.reserved()
    clock.advance(10)

    await job.renew()

    assert (await driver.inspect()).lease_until == clock.time() + LEASE


async def test_ack_completes_the_job(driver: Driver) -> None:
    """> VALIDATE token + expiry then remove inflight (terminal success)"""
    await driver.enqueue()
    job = await driver.reserved()

    await job.complete()

    completed = await driver.inspect()
    assert (completed.state, completed.lease_until) == (State.COMPLETED, None)
    assert await driver.reserve() is None


async def test_a_retry_without_a_delay_makes_the_job_runnable(driver: Driver, clock: FakeClock) -> None:
    """> remove inflight + update record, requeue by RunAt · RunAt==0 -> runnable"""
    await driver.enqueue()
    job = await driver.reserved()
    clock.advance(3)

    await job.retry(BOOM, delay=0)

    after = await driver.inspect()
    assert (after.state, after.attempts, after.lease_until) == (State.WAITING, 1, None)
    [error] = after.errors
    assert (error.message, error.ended) == ("boom", clock.time())
    assert (await driver.reserved()).attempt == 2


async def test_a_retry_with_a_delay_schedules_the_job(driver: Driver, clock: FakeClock) -> None:
    """> RunAt future -> scheduled"""
    await driver.enqueue()
    job = await driver.reserved()

    await job.retry(BOOM, delay=15)

    after = await driver.inspect()
    assert (after.state, after.run_at) == (State.SCHEDULED, clock.time() + 15)
    assert await driver.reserve() is None
    clock.advance(15)
    assert (await driver.reserved()).id == job.id


async def test_the_backoff_of_the_job_computes_the_next_run(driver: Driver, clock: FakeClock) -> None:
    """> delay = retryPolicy.NextDelay(nextAttempts) · nextRunAt = now + delay"""
    await driver.enqueue(backoff=Backoff(start=0.25, cap=1.0, jitter=0))
    delays = []
    for _ in range(4):
        await (await driver.reserved()).retry(BOOM)
        delays.append(((await driver.inspect()).run_at or 0) - clock.time())
        clock.advance(delays[-1])

    assert delays == [0.25, 0.5, 1.0, 1.0]


async def test_a_retry_fails_the_job_when_its_attempts_are_spent(driver: Driver) -> None:
    """> decide: unrecoverable/maxAttempts -> Fail else -> Retry (schedule next run)"""
    await driver.enqueue(max_attempts=2)
    await (await driver.reserved()).retry(BOOM, delay=0)
    assert (await driver.inspect()).state is State.WAITING

    await (await driver.reserved()).retry(BOOM, delay=0)

    dead = await driver.inspect()
    assert (dead.state, dead.reason, dead.attempts) == (State.FAILED, Reason.ERROR, 2)
    assert [error.attempt for error in dead.errors] == [1, 2]


async def test_a_failed_job_keeps_its_payload_and_its_error(driver: Driver, clock: FakeClock) -> None:
    """> VALIDATE token + expiry, remove inflight + store DLQ entry"""
    await driver.enqueue(payload={"to": "unknown"})
    job = await driver.reserved()

    await job.fail(ValueError("no such address"))

    assert [found.id for found in (await driver.app.list("state:failed")).jobs] == ["job-1"]
    dead = await driver.inspect()
    assert (dead.id, dead.payload, dead.reason) == ("job-1", '{"to":"unknown"}', Reason.UNRECOVERABLE)
    assert (dead.errors[0].message, dead.finished_at) == ("no such address", clock.time())
    assert await driver.reserve() is None


async def test_a_job_without_a_handler_fails(driver: Driver) -> None:
    """> Fail path: no handler registered"""
    await driver.enqueue()

    await (await driver.reserved()).fail("no handler is registered for email.send")

    dead = await driver.inspect()
    assert (dead.state, dead.errors[0].message) == (
        State.FAILED,
        "no handler is registered for email.send",
    )


@pytest.mark.parametrize(("delay", "state"), [(None, State.WAITING), (60.0, State.SCHEDULED)])
async def test_a_requeued_job_is_waiting_or_scheduled_with_new_attempts(
    driver: Driver, delay: float | None, state: State
) -> None:
    """TaskHarbor's RequeueDLQ with RunAt and ResetAttempts."""
    await driver.enqueue(max_attempts=1)
    await (await driver.reserved()).fail(BOOM)

    moved = await driver.app.rerun("job-1", delay=delay, reset_attempts=True)
    assert moved == Moved(("job-1",))

    job = await driver.inspect()
    assert (job.state, job.attempts, job.reason, len(job.errors)) == (state, 0, None, 1)


async def test_a_requeued_job_runs_under_a_new_token(driver: Driver) -> None:
    await driver.enqueue(max_attempts=1)
    dead = await driver.reserved()
    await dead.fail(BOOM)
    await driver.app.rerun("job-1")

    job = await driver.reserved()

    assert job.fence > dead.fence
    await job.complete()


async def test_only_a_finished_job_can_be_requeued(driver: Driver) -> None:
    """TaskHarbor's ErrJobNotDLQ."""
    await driver.enqueue()
    before = await driver.snapshot()

    with pytest.raises(InvalidMove):
        await driver.app.rerun("job-1")

    assert await driver.snapshot() == before


# All state-mutating calls MUST validate

Call = Callable[[ClaimedJob], Awaitable[None]]
CALLS: dict[str, Call] = {
    "ack": lambda job: job.complete(),
    "retry": lambda job: job.retry(BOOM, delay=0),
    "fail": lambda job: job.fail(BOOM),
    "extend_lease": lambda job: job.renew(),
}


async def assert_refused(call: Call, job: ClaimedJob, cause: LossCause) -> None:
    with pytest.raises(LeaseLost) as error:
        await call(job)
    assert error.value.cause == cause


async def insert_job(driver: Driver, clock: FakeClock) -> JobRecord:
    await driver.enqueue()
    return await driver.inspect()


async def insert_scheduled_job(driver: Driver, clock: FakeClock) -> JobRecord:
    await driver.enqueue(delay=60)
    return await driver.inspect()


async def release_job(driver: Driver, clock: FakeClock) -> JobRecord:
    await driver.enqueue()
    job = await driver.reserved()
    held = await driver.inspect()
    await job.release()
    return held


async def release_and_edit_job(driver: Driver, clock: FakeClock) -> JobRecord:
    job = await release_job(driver, clock)
    await driver.app.edit(job.id, arguments={"to": "ada"}, priority=-1)
    return job


async def let_lease_expire(driver: Driver, clock: FakeClock) -> JobRecord:
    await driver.enqueue()
    await driver.enqueue("other")
    await driver.reserved()
    held = await driver.inspect()
    clock.advance(LEASE)
    await driver.reserved()
    return held


async def remove_job(driver: Driver, clock: FakeClock) -> JobRecord:
    await driver.enqueue()
    await driver.reserved()
    held = await driver.inspect()
    await driver.app.remove(held.id, force=True)
    return held


NOT_INFLIGHT = [
    insert_job,
    insert_scheduled_job,
    release_job,
    release_and_edit_job,
    let_lease_expire,
    remove_job,
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("prepare", NOT_INFLIGHT, ids=lambda prepare: prepare.__name__)
async def test_a_call_for_a_job_that_is_not_inflight_is_refused_and_nothing_changes(
    driver: Driver, clock: FakeClock, prepare: Callable[[Driver, FakeClock], Any], call: str
) -> None:
    """> job is inflight · If validation fails: ErrJobNotInflight, driver MUST NOT mutate state"""
    job = driver.token(await prepare(driver, clock))
    before = await driver.snapshot()

    await assert_refused(CALLS[call], job, LossCause.NOT_HELD)

    assert await driver.snapshot() == before


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("lost_by", ["expiry", "retry", "requeue"])
async def test_a_call_with_a_stale_token_is_refused_and_nothing_changes(
    driver: Driver, clock: FakeClock, lost_by: str, call: str
) -> None:
    """> lease token matches current token · If validation fails: ErrLeaseMismatch, driver MUST NOT mutate
    > state
    """
    await driver.enqueue()
    first = await driver.reserved()
    stale = driver.token(await driver.inspect())
    if lost_by == "expiry":
        clock.advance(LEASE)
    elif lost_by == "retry":
        await first.retry(BOOM, delay=0)
    else:
        await first.fail(BOOM)
        await driver.app.rerun(first.id)
    current = await driver.reserved()
    assert current.id == stale.id
    before = await driver.snapshot()

    await assert_refused(CALLS[call], stale, LossCause.OTHER_FENCE)

    assert await driver.snapshot() == before
    await current.complete()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("delay", [0.0, 0.5, 3_600.0])
async def test_a_call_after_the_lease_expired_is_refused_and_nothing_changes(
    driver: Driver, clock: FakeClock, delay: float, call: str
) -> None:
    """> lease is not expired at 'now' · If validation fails: ErrLeaseExpired, driver MUST NOT mutate state"""
    await driver.enqueue()
    job = await driver.reserved()
    clock.advance(LEASE + delay)
    before = await driver.snapshot()

    await assert_refused(CALLS[call], job, LossCause.EXPIRED)

    assert await driver.snapshot() == before


@pytest.mark.parametrize("call", CALLS)
async def test_a_lease_is_valid_until_its_last_moment(driver: Driver, clock: FakeClock, call: str) -> None:
    await driver.enqueue()
    job = await driver.reserved()
    clock.advance(LEASE - 0.001)

    await CALLS[call](job)

    assert job.settled is (call != "extend_lease")


# Guarantees delivered by leases + heartbeat


async def test_no_double_processing_during_a_valid_lease(driver: Driver, clock: FakeClock) -> None:
    """> Reserve must not return inflight job with active lease"""
    await driver.enqueue()
    await driver.reserved()

    for _ in range(29):
        clock.advance(1)
        assert await driver.reserve() is None


async def test_crash_recovery_makes_the_job_reservable_again(driver: Driver, clock: FakeClock) -> None:
    """> if worker dies, heartbeat stops -> lease expires -> job becomes reservable again"""
    await driver.enqueue()
    job = await driver.reserved()
    clock.advance(10)
    await job.renew()
    clock.advance(LEASE)

    reclaimed_job = await driver.reserved()

    assert reclaimed_job.id == job.id
    await reclaimed_job.complete()


async def test_heartbeats_keep_a_long_job_from_running_twice(driver: Driver, clock: FakeClock) -> None:
    """> Heartbeat reduces duplicate execution for long-running jobs by extending lease expiry"""
    await driver.enqueue()
    job = await driver.reserved()
    for _ in range(60):
        clock.advance(10)
        await job.renew()
        assert await driver.reserve() is None

    await job.complete()
    assert (await driver.inspect()).attempts == 1
