"""Sidequest's page about the job lifecycle, replayed through the public API.

Its terms: a job that waits for its next attempt is `scheduled` here, there `waiting` with a time; its
dispatcher is the claim of a worker. A worker here claims and starts a job in one step, so that the state
`claimed` shows in the events, or after a claim without a start. Lines that begin with > are quoted from the
page.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from errandry import Backoff, Cancel, Errandry, Fail, JobContext, Keep, Retry, Snooze, State
from errandry.core.answer import CANCEL, Claims
from errandry.core.command import Claim, Ref, Start, Upkeep
from errandry.core.job import JobRecord
from errandry.core.retry import Curve
from errandry.core.state import Reason
from errandry.errors import InvalidMove, JobCanceled, JobFailed
from errandry.testing import FakeClock, drain
from tests.run_worker import event_kinds, running_worker, wait_for_state

SHORT_BACKOFF = Backoff(Curve.EXPONENTIAL, 0.01, jitter=0.0)


@pytest.fixture(params=["memory", "sqlite"])
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs:
        yield jobs


async def claim_without_start(jobs: Errandry) -> JobRecord:
    """Claim the only job and do not start it."""
    claims = await jobs.engine.submit(Claim(worker="dispatcher", nonce="1", start=False))
    assert isinstance(claims, Claims)
    [job] = claims.jobs
    return job


# Job States


async def test_a_new_job_is_waiting(jobs: Errandry) -> None:
    """> **`waiting`** - Job is queued and waiting to be processed"""

    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()

    assert (await jobs.get(job.id)).state is State.WAITING


async def test_a_claimed_job_has_a_worker_and_has_not_started(jobs: Errandry) -> None:
    """> **`claimed`** - Job has been claimed by a worker and is about to start"""

    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    await claim_without_start(jobs)

    record = (await job.refresh()).record
    assert (record.state, record.worker, record.started_at) == (State.CLAIMED, "dispatcher", None)


async def test_a_job_is_running_while_its_handler_runs(jobs: Errandry) -> None:
    """> **`running`** - Job is currently being processed"""

    @jobs.task
    async def work(ctx: JobContext) -> str:
        return (await jobs.get(ctx.id)).state

    job = await work.enqueue()
    async with running_worker(jobs):
        assert await job.result(30) == "running"


async def test_a_successful_job_is_completed(jobs: Errandry) -> None:
    """> **`completed`** - Job finished successfully"""

    @jobs.task
    async def work() -> str:
        return "result"

    job = await work.enqueue()
    async with running_worker(jobs):
        assert await job.result(30) == "result"

    assert job.state is State.COMPLETED
    assert job.record.finished_at is not None


async def test_a_job_is_failed_when_its_attempts_are_spent(jobs: Errandry) -> None:
    """> **`failed`** - Job failed and won't be retried (max attempts reached)"""

    @jobs.task(max_attempts=2, backoff=SHORT_BACKOFF)
    async def work() -> None:
        raise RuntimeError("boom")

    job = await work.enqueue()
    async with running_worker(jobs):
        with pytest.raises(JobFailed, match="RuntimeError: boom"):
            await job.result(30)

    assert (job.state, job.record.attempts, job.record.max_attempts) == (State.FAILED, 2, 2)


async def test_a_manually_canceled_job_is_canceled(jobs: Errandry) -> None:
    """> **`canceled`** - Job was manually canceled"""

    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    await job.cancel()

    with pytest.raises(JobCanceled):
        await job.result(30)
    assert job.record.reason is Reason.CANCELED


# Normal Execution Flow


async def test_a_successful_job_is_waiting_claimed_running_and_completed(jobs: Errandry) -> None:
    """> waiting → claimed → running → completed"""

    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    assert await event_kinds(jobs, job.id) == ["waiting", "claimed", "started", "completed"]
    record = job.record
    assert (
        record.created_at <= (record.claimed_at or 0) <= (record.started_at or 0) <= (record.finished_at or 0)
    )


# Failure and Retry Flow


async def test_a_retried_job_is_waiting_again_and_then_completed(jobs: Errandry) -> None:
    """> waiting → claimed → running → waiting (retry)"""

    @jobs.task(backoff=Backoff(Curve.FIXED, 0.0))
    async def work(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise RuntimeError("first time unlucky")
        return ctx.attempt

    job = await work.enqueue()
    async with running_worker(jobs):
        assert await job.result(30) == 2

    attempt = ["claimed", "started"]
    assert await event_kinds(jobs, job.id) == ["waiting", *attempt, "retrying", *attempt, "completed"]


async def test_a_job_with_one_attempt_is_failed_after_its_error(jobs: Errandry) -> None:
    """> waiting → claimed → running → failed (max attempts)"""

    @jobs.task(max_attempts=1)
    async def work() -> None:
        raise RuntimeError("boom")

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    assert await event_kinds(jobs, job.id) == ["waiting", "claimed", "started", "failed"]


async def test_each_retry_increments_the_attempts(jobs: Errandry) -> None:
    """> 1. Job returns to `waiting` state with incremented attempt counter"""
    attempts: list[int] = []

    @jobs.task(max_attempts=3, backoff=SHORT_BACKOFF)
    async def work(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise RuntimeError

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    assert attempts == [1, 2, 3]
    assert job.record.attempts == 3


async def test_errors_are_recorded_in_the_jobs_errors_field(jobs: Errandry) -> None:
    """> 2. Errors are recorded in the job's `errors` field"""

    @jobs.task(max_attempts=3, backoff=SHORT_BACKOFF)
    def work(ctx: JobContext) -> str:
        if ctx.attempt < 3:
            raise ConnectionError(f"attempt {ctx.attempt}")
        return "done"

    job = await work.enqueue()
    async with running_worker(jobs):
        assert await job.result(30) == "done"

    errors = job.record.errors
    assert [(e.attempt, e.type, e.message) for e in errors] == [
        (1, "ConnectionError", "attempt 1"),
        (2, "ConnectionError", "attempt 2"),
    ]
    assert all("raise ConnectionError" in error.traceback for error in errors)


async def test_a_retry_waits_for_the_configured_delay(jobs: Errandry) -> None:
    """> 3. Job waits for any configured retry delay"""

    @jobs.task(backoff="1 hour")
    async def work() -> None:
        raise RuntimeError

    job = await work.enqueue()
    async with running_worker(jobs):
        record = await wait_for_state(jobs, job.id, State.SCHEDULED)

    assert (record.run_at or 0) - record.updated_at == pytest.approx(3_600)


async def test_a_retried_job_is_claimed_and_run_again(jobs: Errandry) -> None:
    """> 4. Job is eligible to be claimed and run again"""
    fences: list[int] = []

    @jobs.task(backoff=SHORT_BACKOFF, max_attempts=2)
    async def work(ctx: JobContext) -> None:
        fences.append(ctx.fence)
        raise RuntimeError

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    assert len(fences) == 2
    assert fences[0] < fences[1]


async def test_a_failed_job_stays_failed(jobs: Errandry) -> None:
    """> 1. Job moves to `failed` state permanently"""

    @jobs.task(max_attempts=1)
    async def work() -> None:
        raise RuntimeError

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)
        await jobs.engine.submit(Upkeep())
        for move in (jobs.cancel(job.id), jobs.promote(job.id), jobs.postpone(job.id, delay=1)):
            with pytest.raises(InvalidMove):
                await move

    assert (await job.refresh()).state is State.FAILED


async def test_the_final_error_is_in_the_jobs_errors_field(jobs: Errandry) -> None:
    """> 2. Error information in the job's `errors` field"""

    @jobs.task(max_attempts=1)
    async def work() -> None:
        raise RuntimeError("the reason")

    job = await work.enqueue()
    async with running_worker(jobs) as worker:
        await job.wait(30)

    [error] = job.record.errors
    assert (error.kind, error.message, error.worker) == (Reason.ERROR, "the reason", worker.id)
    [found] = (await jobs.list("state:failed error~reason")).jobs
    assert found.record == job.record


# Manual Cancellation


@pytest.mark.parametrize("delay", [0, 60], ids=["waiting", "scheduled"])
async def test_waiting_jobs_are_immediately_marked_as_canceled(jobs: Errandry, delay: float) -> None:
    """> Waiting jobs are immediately marked as `canceled`"""
    ran = asyncio.Event()

    @jobs.task
    async def work() -> None:
        ran.set()

    @jobs.task
    async def after() -> None: ...

    job = await work.using(delay=delay).enqueue()
    await jobs.cancel(job.id)
    assert (await job.refresh()).state is State.CANCELED
    async with running_worker(jobs):
        await (await after.enqueue()).wait(30)

    assert not ran.is_set()


async def test_a_claimed_job_that_is_canceled_never_runs(
    jobs: Errandry,
) -> None:
    """> Claimed jobs are marked as `canceled` before execution an are prevented from running"""

    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    claimed = await claim_without_start(jobs)
    await jobs.cancel(job.id)

    assert (await job.refresh()).state is State.CANCELED
    assert await jobs.engine.submit(Start(Ref(claimed.id, claimed.fence))) is CANCEL


async def test_running_jobs_receive_a_cancellation_signal_and_transition_to_canceled(jobs: Errandry) -> None:
    """> Running jobs receive a cancellation signal and transition to `canceled`"""
    started, stopped = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    job = await work.enqueue()
    async with running_worker(jobs):
        await started.wait()
        await jobs.cancel(job.id)
        await asyncio.wait_for(stopped.wait(), 30)
        assert (await job.wait(30)).state is State.CANCELED


async def test_running_jobs_in_threads_receive_the_signal_too(jobs: Errandry) -> None:
    """> Running jobs receive a cancellation signal and transition to `canceled`"""
    started = threading.Event()

    @jobs.task
    def work(ctx: JobContext) -> bool:
        started.set()
        return ctx.sleep_or_stop(60)

    job = await work.enqueue()
    async with running_worker(jobs):
        assert await asyncio.to_thread(started.wait, 30)
        await jobs.cancel(job.id)
        assert (await job.wait(30)).state is State.CANCELED


# Outcomes other than returning or raising an error


async def test_a_handler_may_complete_fail_retry_snooze_or_cancel(jobs: Errandry) -> None:
    """Sidequest's handlers return complete, fail, retry or snooze; here they return a result or raise."""

    @jobs.task
    async def work(ctx: JobContext, end: str) -> str:
        match end:
            case "fail":
                raise Fail("for good")
            case "retry" if ctx.attempt == 1:
                raise Retry("busy", after=0.01)
            case "snooze" if not ctx.job.run_at:
                raise Snooze(0.01)
            case "cancel":
                raise Cancel
        return f"completed in attempt {ctx.attempt}"

    ends = ("complete", "fail", "retry", "snooze", "cancel")
    jobs_by_end = {end: await work.enqueue(end) for end in ends}
    async with running_worker(jobs):
        for job in jobs_by_end.values():
            await job.wait(30)

    assert {end: job.state.value for end, job in jobs_by_end.items()} == {
        "complete": "completed",
        "fail": "failed",
        "retry": "completed",
        "snooze": "completed",
        "cancel": "canceled",
    }
    assert await jobs_by_end["retry"].result() == "completed in attempt 2"
    assert await jobs_by_end["snooze"].result() == "completed in attempt 1"
    assert jobs_by_end["fail"].record.reason is Reason.UNRECOVERABLE


# Best Practices


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_timeouts_prevent_indefinite_hanging(jobs: Errandry, kind: str) -> None:
    """> 1. **Set appropriate timeouts**: Configure job timeouts to prevent indefinite hanging"""

    async def hang(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    def hang_in_thread(ctx: JobContext) -> None:
        ctx.sleep_or_stop()

    task = jobs.task(name="hang", timeout=0.02, max_attempts=2, backoff=SHORT_BACKOFF)(
        hang if kind == "async" else hang_in_thread
    )
    job = await task.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    assert (job.state, job.record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert [error.kind for error in job.record.errors] == [Reason.TIMEOUT] * 2


async def test_failed_jobs_can_be_monitored_by_polling_or_by_events(jobs: Errandry) -> None:
    """> 2. **Monitor failed jobs** … You can poll the backend for failed jobs and notify your team"""

    @jobs.task(max_attempts=1)
    async def work(ok: bool) -> None:
        if not ok:
            raise RuntimeError("tell the team")

    start = await jobs.engine.call(jobs.store.latest_cursor)
    good, bad = await work.enqueue(True), await work.enqueue(False)
    async with running_worker(jobs):
        await good.wait(30)
        await bad.wait(30)

    assert [record.id for record in (await jobs.list("state:failed since:1h")).jobs] == [bad.id]
    async for event in jobs.events(after=start):
        if event.kind == "failed":
            assert event.job == bad.id
            break


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/jobs.db"], ids=["memory", "sqlite"])
async def test_old_jobs_are_cleaned_up(tmp_path: Path, url: str) -> None:
    """> 3. **Clean up old jobs**: Regularly clean up completed and failed jobs to manage storage"""
    clock = FakeClock()
    async with Errandry(url.format(tmp_path), clock=clock) as jobs:

        @jobs.task(max_attempts=1, keep=Keep(completed=3_600.0, failed=7_200.0))
        async def work(ok: bool) -> None:
            if not ok:
                raise RuntimeError

        good, bad = await work.enqueue(True), await work.enqueue(False)
        await drain(jobs)
        remaining = []
        for _ in range(3):
            await jobs.engine.submit(Upkeep())
            remaining.append({record.id for record in (await jobs.list()).jobs})
            clock.advance(3_600)

        assert remaining == [{good.id, bad.id}, {bad.id}, set()]
        assert (await jobs.totals())["default"]["removed"] == 2


async def test_retries_back_off_exponentially(jobs: Errandry) -> None:
    """> 4. … Don't retry immediately - use exponential backoff for transient failures"""

    @jobs.task(max_attempts=4, backoff=Backoff(Curve.EXPONENTIAL, 0.01, jitter=0.0))
    async def work() -> None:
        raise ConnectionError

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    errors = job.record.errors
    waits = [(after.started or 0) - before.ended for before, after in pairwise(errors)]
    for wait, least in zip(waits, (0.01, 0.02, 0.04), strict=True):
        assert wait > least - 1e-6
