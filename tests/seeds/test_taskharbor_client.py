"""TaskHarbor's page about data flows, as its user sees it: client, codec, worker, middleware, dead letters.

Its terms: its client and worker are an app and a `Worker`, a job type is a task's name, NewClient(driver,
options) is `Errandry(url)`, worker.Register is `@jobs.task`, its DLQ is the failed jobs.
`test_taskharbor_dataflow.py` replays the duties of its driver. Lines that begin with > are quoted from the
page.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from errandry import Backoff, Errandry, Fail, JobContext, State
from errandry.api.app import CallNext
from errandry.codec.json_codec import DocumentInfo
from errandry.core.command import Upkeep
from errandry.core.job import NewJob
from errandry.core.retry import Curve
from errandry.core.state import Reason
from errandry.errors import InvalidArguments, InvalidValue, LeaseLost
from tests.run_worker import event_kinds, run_burst, running_worker, wait_for_job, wait_for_state

NO_DELAY = Backoff(Curve.FIXED, 0.0)
URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/jobs.db"}


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param].format(tmp_path)


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Errandry]:
    async with Errandry(url) as jobs:
        yield jobs


# Enqueue flow: JobRequest -> JobRecord -> Driver storage


async def test_a_user_opens_a_store_registers_a_task_and_enqueues_a_job(url: str) -> None:
    """> 1) choose a Driver implementation … 5) client.Enqueue(ctx, JobRequest)"""
    async with Errandry(url) as jobs:

        @jobs.task(name="email.send")
        async def send(to: str) -> str:
            return f"sent to {to}"

        job = await jobs.enqueue("email.send", {"to": "ada@example.com"})
        async with running_worker(jobs):
            assert await job.result(30) == "sent to ada@example.com"


async def test_a_job_is_stored_with_the_options_of_its_call(jobs: Errandry) -> None:
    """> JobRequest (user-facing) Type Payload(any) Queue RunAt Timeout MaxAttempts"""

    @dataclass
    class Mail:
        to: str
        copies: int = 1

    @jobs.task(name="email.send")
    async def send(mail: Mail) -> None: ...

    run_at = datetime.now(UTC) + timedelta(hours=1)
    job = await send.using(queue="mail", run_at=run_at, timeout="30s", max_attempts=7).enqueue(Mail("ada"))
    record = await jobs.client.record(job.id)

    assert (record.task, record.queue, record.timeout, record.max_attempts) == ("email.send", "mail", 30.0, 7)
    assert (record.state, record.run_at) == (State.SCHEDULED, run_at.timestamp())
    assert json.loads(record.payload) == {"mail": {"to": "ada", "copies": 1}}


async def test_invalid_arguments_and_options_are_refused(jobs: Errandry) -> None:
    """> - validate request"""

    @jobs.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidArguments, match=r"argument to=.*: must be str, not int"):
        await send.enqueue(to=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="max_attempts=0"):
        send.using(max_attempts=0)

    assert await jobs.counts() == {}


async def test_a_new_job_has_defaults_a_new_id_and_no_attempts(jobs: Errandry) -> None:
    """> - normalize defaults (queue, etc.) … - generate ID - set CreatedAt - set Attempts=0"""

    @jobs.task
    async def send() -> None: ...

    first, second = await send.enqueue(), await send.enqueue()
    record = await jobs.client.record(first.id)

    assert first.id != second.id
    assert (record.queue, record.attempts, record.max_attempts, record.timeout) == ("default", 0, 5, None)
    assert abs(record.created_at - datetime.now(UTC).timestamp()) < 60


async def test_an_idempotency_key_makes_a_repeat_the_same_job(jobs: Errandry) -> None:
    """> (+ future fields like idempotency key)"""

    @jobs.task
    async def send(to: str) -> None: ...

    for to in ("ada", "grace"):
        await send.using(id="order-7").enqueue(to)

    assert [job.arguments for job in (await jobs.list()).jobs] == [{"to": "ada"}]


async def test_a_payload_is_json_by_default(jobs: Errandry) -> None:
    """> Payload bytes ([]byte) (encoded by codec, JSON by default)"""

    @jobs.task
    async def send(to: str) -> None: ...

    job = await send.enqueue("ada")

    assert json.loads((await jobs.client.record(job.id)).payload) == {"to": "ada"}


class Rot13:
    """A codec of the application."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        return json.dumps({"by": "rot13", "text": _rot13(text)})

    def unseal(self, text: str, document: DocumentInfo) -> str:
        return _rot13(json.loads(text)["text"])


def _rot13(text: str) -> str:
    import codecs

    return codecs.encode(text, "rot13")


async def test_a_codec_encodes_payloads_and_results(url: str) -> None:
    """> encode payload via codec"""
    async with Errandry(url, codec=Rot13()) as jobs:

        @jobs.task
        async def send(to: str) -> str:
            return f"sent to {to}"

        job = await send.enqueue("ada")
        async with running_worker(jobs):
            assert await job.result(30) == "sent to ada"

        record = await jobs.client.record(job.id)
        assert json.loads(record.payload) == {"by": "rot13", "text": '{"gb":"nqn"}'}
        assert json.loads(record.result or "") == {"by": "rot13", "text": '"frag gb nqn"'}


async def test_a_job_with_run_at_in_the_future_is_scheduled_and_otherwise_runs(jobs: Errandry) -> None:
    """> if RunAt is zero (or <= now at reserve time) store in runnable FIFO · if RunAt is in the future …"""
    order: list[int] = []

    @jobs.task
    async def work(n: int) -> None:
        order.append(n)

    now = datetime.now(UTC)
    await work.using(run_at=now + timedelta(hours=1)).enqueue(0)
    await work.enqueue(1)
    await work.using(run_at=now - timedelta(hours=1)).enqueue(2)
    await run_burst(jobs, concurrency=1)

    assert order == [1, 2]
    assert await jobs.counts() == {"default": {"completed": 2, "scheduled": 1}}


# Worker run loop: poll -> reserve -> execute


async def test_a_worker_runs_at_most_its_concurrency(jobs: Errandry) -> None:
    """> - concurrency-limited with sem + waitgroup"""
    running = most_running = 0

    @jobs.task
    async def work() -> None:
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        await asyncio.sleep(0.002)
        running -= 1

    await jobs.enqueue_many([work.new() for _ in range(12)])
    await run_burst(jobs, concurrency=4)

    assert most_running == 4
    assert await jobs.counts() == {"default": {"completed": 12}}


async def test_a_stopped_worker_waits_for_its_running_jobs(jobs: Errandry) -> None:
    """> Worker.Run(ctx) loop - obeys ctx cancellation"""
    started, finish = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def work() -> str:
        started.set()
        await finish.wait()
        return "finished"

    job = await work.enqueue()
    async with running_worker(jobs) as worker:
        await started.wait()
        worker.stop()
        finish.set()
        assert await job.result(30) == "finished"


async def test_a_worker_runs_scheduled_jobs_when_they_are_due(jobs: Errandry) -> None:
    """> promote due scheduled jobs (RunAt <= now)"""

    @jobs.task
    async def work() -> None: ...

    async with running_worker(jobs):
        job = await work.using(delay=0.03).enqueue()
        assert (await job.wait(30)).state is State.COMPLETED

    assert (job.record.started_at or 0) >= (job.record.run_at or 0)


async def test_a_worker_runs_jobs_whose_lease_expired(jobs: Errandry) -> None:
    """> reclaim expired inflight leases (crash recovery) … job becomes runnable immediately"""

    @jobs.task
    async def work(ctx: JobContext) -> int:
        return ctx.attempt

    job = await work.enqueue()
    async with jobs.claimer(worker="crashed", lease=0.02, renew=False) as crashed:
        await crashed.claim()
        async with running_worker(jobs, upkeep_every=0.01):
            assert await job.result(30) == 2

    assert [error.kind for error in job.record.errors] == [Reason.WORKER_LOST]
    assert "stalled" in await event_kinds(jobs, job.id)


# Execution flow: handler + heartbeat + completion


async def test_middleware_wraps_the_handler_in_the_order_of_registration(jobs: Errandry) -> None:
    """> Handler is wrapped with middleware: - Recover … - Timeout … - user middleware chain"""
    calls: list[str] = []

    @jobs.middleware
    async def recover(ctx: JobContext, call_next: CallNext) -> Any:
        calls.append("recover")
        try:
            return await call_next(ctx)
        except SystemExit as panic:
            raise RuntimeError(f"the handler panicked: {panic}") from panic

    @jobs.middleware
    async def timeout(ctx: JobContext, call_next: CallNext) -> Any:
        calls.append("timeout")
        async with asyncio.timeout(ctx.job.timeout):
            return await call_next(ctx)

    @jobs.middleware
    async def user(ctx: JobContext, call_next: CallNext) -> Any:
        calls.append("user")
        return await call_next(ctx)

    @jobs.task(max_attempts=1)
    async def work(panic: bool) -> str:
        calls.append("handler")
        if panic:
            raise SystemExit("boom")
        return "done"

    good, bad = await work.enqueue(False), await work.enqueue(True)
    await run_burst(jobs, concurrency=1)

    assert calls == ["recover", "timeout", "user", "handler"] * 2
    assert await good.result(30) == "done"
    assert (await bad.wait(30)).record.errors[0].message == "the handler panicked: boom"


async def test_system_exit_in_a_handler_fails_the_job_without_middleware(jobs: Errandry) -> None:
    """> - Recover (panic -> error)"""

    @jobs.task(max_attempts=1)
    async def async_handler() -> None:
        raise SystemExit("boom")

    @jobs.task(max_attempts=1)
    def thread_handler() -> None:
        raise SystemExit("boom")

    enqueued = await async_handler.enqueue(), await thread_handler.enqueue()
    async with running_worker(jobs):
        for job in enqueued:
            assert (await job.wait(30)).state is State.FAILED
            assert "SystemExit" in job.record.errors[0].type + job.record.errors[0].message


async def test_a_timeout_cancels_the_handler(jobs: Errandry) -> None:
    """> - Timeout (ctx cancel on job.Timeout)"""
    stopped: list[str] = []

    @jobs.task(timeout=0.2, max_attempts=1)
    async def async_handler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("async")

    @jobs.task(timeout=0.2, max_attempts=1)
    def thread_handler(ctx: JobContext) -> None:
        if ctx.sleep_or_stop(60):
            stopped.append("thread")

    enqueued = await async_handler.enqueue(), await thread_handler.enqueue()
    async with running_worker(jobs):
        ends = [(await job.wait(30)).record.reason for job in enqueued]

    assert ends == [Reason.TIMEOUT] * 2
    assert sorted(stopped) == ["async", "thread"]


async def test_with_on_unknown_fail_a_job_without_a_handler_fails(jobs: Errandry) -> None:
    """> Fail path: no handler registered · driver.Fail(id, token, now, reason)"""
    await jobs.client.insert([NewJob(id="orphan", task="unknown.task", payload="{}")])
    await run_burst(jobs, on_unknown="fail")
    record = await jobs.client.record("orphan")

    assert (record.state, record.reason) == (State.FAILED, Reason.NO_HANDLER)
    assert [record.id for record in (await jobs.list("state:failed reason:no_handler")).jobs] == ["orphan"]


async def test_a_job_of_an_unknown_task_is_released_for_another_worker(url: str) -> None:
    """Not on the page, but the default here: during a rolling deploy another worker may know the task."""
    async with Errandry(url) as old:
        await old.client.insert([NewJob(id="early", task="new.task", payload="{}")])
        await run_burst(old, release_delay=60.0)
        given_back = await old.client.record("early")
        await old.promote("early")

        @old.task(name="new.task")
        async def new() -> str:
            return "known now"

        async with running_worker(old):
            job = await old.get("early")
            assert await job.result(30) == "known now"

    assert (given_back.state, given_back.attempts) == (State.SCHEDULED, 0)
    assert given_back.unhandled_since is not None


@pytest.mark.slow(reason="runs for longer than a lease that a busy machine can keep")
async def test_heartbeat_keeps_the_lease_alive_for_long_jobs(jobs: Errandry) -> None:
    """> - keep inflight lease alive for long jobs"""

    lease = 4.0

    @jobs.task
    async def long() -> str:
        await asyncio.sleep(1.1 * lease)
        return "once"

    job = await long.enqueue()
    async with running_worker(jobs, lease=lease, renew_every=0.1, upkeep_every=0.02):
        assert await job.result(30) == "once"

    assert (job.record.attempts, job.record.crashes) == (1, 0)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_is_canceled_when_its_lease_is_lost(jobs: Errandry, kind: str) -> None:
    """> - if ExtendLease fails -> cancel jobCtx"""
    started, stopped = threading.Event(), threading.Event()

    async def async_handler(ctx: JobContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    def thread_handler(ctx: JobContext) -> str:
        started.set()
        ctx.sleep_or_stop(60)
        stopped.set()
        return "discarded"

    task = jobs.task(name="work")(async_handler if kind == "async" else thread_handler)
    job = await task.enqueue()
    async with running_worker(jobs, renew_every=0.02) as worker:
        assert await asyncio.to_thread(started.wait, 30)
        await jobs.queue("default").pause()
        await jobs.engine.submit(Upkeep(dead=(worker.id,)))  # another worker reports this one as dead
        assert await asyncio.to_thread(stopped.wait, 30)

    record = await jobs.client.record(job.id)
    assert (record.state, record.result, record.crashes) == (State.WAITING, None, 1)


async def test_a_job_completes_under_the_fence_of_its_claim(jobs: Errandry) -> None:
    """> Ack(id, token, now) · VALIDATE token + expiry then remove inflight (terminal success)"""
    fences: list[int] = []

    @jobs.task
    async def work(ctx: JobContext) -> None:
        fences.append(ctx.fence)

    job = await work.enqueue()
    async with running_worker(jobs):
        await job.wait(30)

    assert (job.state, job.record.fence, job.record.lease_until) == (State.COMPLETED, fences[0], None)


@pytest.mark.parametrize(("error", "attempts"), [(Fail("unrecoverable"), 1), (RuntimeError("boom"), 3)])
async def test_a_job_fails_if_it_is_unrecoverable_or_its_attempts_are_spent(
    jobs: Errandry, error: Exception, attempts: int
) -> None:
    """> decide: unrecoverable/maxAttempts -> Fail · remove inflight + store DLQ entry"""

    @jobs.task(max_attempts=3, backoff=NO_DELAY)
    async def work(to: str) -> None:
        raise error

    job = await work.enqueue("ada")
    await run_burst(jobs)
    [letter] = (await jobs.list("state:failed")).jobs

    assert (letter.id, letter.attempts, letter.arguments) == (job.id, attempts, {"to": "ada"})
    assert letter.errors[-1].message == str(error)


async def test_a_retry_is_scheduled_by_the_backoff_function(jobs: Errandry) -> None:
    """> delay = retryPolicy.NextDelay(nextAttempts) · nextRunAt = now + delay"""

    @jobs.backoff
    def policy(attempt: int) -> float:
        return 100.0 * attempt

    @jobs.task(backoff="policy")
    async def work() -> None:
        raise RuntimeError("boom")

    job = await work.enqueue()
    await run_burst(jobs)
    first = await jobs.client.record(job.id)
    await jobs.promote(job.id)
    await run_burst(jobs)
    second = await jobs.client.record(job.id)

    delays = [(record.run_at or 0) - record.updated_at for record in (first, second)]
    assert delays == [pytest.approx(100), pytest.approx(200)]
    assert [error.message for error in second.errors] == ["boom", "boom"]


async def test_dead_letters_can_be_requeued(jobs: Errandry) -> None:
    """> DLQ storage

    A dead letter is a job like any other: it can be rerun and keeps its payload and its errors.
    """
    broken = True

    @jobs.task(max_attempts=1)
    async def work(to: str) -> str:
        if broken:
            raise ConnectionError("the server is down")
        return f"sent to {to}"

    @jobs.task(max_attempts=1)
    async def other() -> None:
        raise ValueError("a bug")

    letters = [await work.enqueue(to) for to in ("ada", "grace")]
    bug = await other.enqueue()
    await run_burst(jobs)
    broken = False

    moved = await jobs.rerun(query="state:failed error~ConnectionError", reset_attempts=True)
    await run_burst(jobs)

    assert set(moved.moved) == {job.id for job in letters}
    assert [await job.result(30) for job in letters] == ["sent to ada", "sent to grace"]
    assert [len(job.record.errors) for job in letters] == [1, 1]
    assert (await bug.refresh()).state is State.FAILED


# Guarantees delivered by leases + heartbeat


async def test_no_double_processing_during_a_valid_lease(url: str) -> None:
    """> No double processing during a valid lease"""
    runs: list[str] = []
    async with Errandry(url) as jobs:

        @jobs.task
        async def work(ctx: JobContext, n: int) -> None:
            runs.append(ctx.id)
            await asyncio.sleep(0.001)

        enqueued = await jobs.enqueue_many([work.new(n) for n in range(40)])
        async with (
            running_worker(jobs, concurrency=5),
            running_worker(jobs, concurrency=5),
            running_worker(jobs, concurrency=5),
        ):
            for job in enqueued:
                await job.wait(30)

    assert sorted(runs) == sorted(job.id for job in enqueued)


async def test_crash_recovery_and_stale_worker_protection(jobs: Errandry) -> None:
    """> if worker dies, heartbeat stops -> lease expires -> job becomes reservable again

    > Stale worker protection: old worker cannot Ack/Retry/Fail/ExtendLease without correct token
    """

    @jobs.task
    async def work(ctx: JobContext) -> str:
        return "by the live worker"

    job = await work.enqueue()
    async with jobs.claimer(worker="zombie", lease=0.02, renew=False) as zombie:
        [stale] = await zombie.claim()
        async with running_worker(jobs, upkeep_every=0.01):
            await wait_for_job(jobs, job.id, lambda record: record.fence > stale.fence)
            with pytest.raises(LeaseLost):
                await stale.complete("by the stale worker")
            assert await job.result(30) == "by the live worker"


async def test_an_external_system_can_refuse_a_stale_worker_by_its_fence(jobs: Errandry) -> None:
    """> Stale worker protection: old worker cannot Ack/Retry/Fail/ExtendLease without correct token"""
    account = {"fence": 0, "balance": 0}

    def pay(fence: int, amount: int) -> None:
        """Like a conditional update in a database: a fence not above the last changes nothing."""
        if fence > account["fence"]:
            account.update(fence=fence, balance=account["balance"] + amount)

    @jobs.task(max_attempts=2, backoff=NO_DELAY)
    async def work(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("before it paid")
        pay(ctx.fence, 10)
        pay(ctx.job.fence - 1, 10)  # a worker that lost its lease would send this

    job = await work.enqueue()
    async with running_worker(jobs):
        await wait_for_state(jobs, job.id, State.COMPLETED)

    assert account["balance"] == 10
