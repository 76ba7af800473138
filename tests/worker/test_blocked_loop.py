"""What a worker does while a handler blocks its event loop: no claims, and jobs that cannot begin go back."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from errandry import Errandry, JobContext, State
from errandry.api.task import Task
from errandry.claims.leases import StopReason
from errandry.core.command import Beat, Insert
from errandry.core.job import JobRecord, NewJob
from errandry.core.move import created
from errandry.worker.executor import Executor
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.options import WorkerOptions
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import running_worker, wait_for_state
from tests.worker import child_tasks

ROUNDS = 300
"""Number of races between a call that begins and the thread that gives its jobs back."""


class Observer:
    """Watches jobs on another thread, because the loop of the test is blocked together with the worker."""

    def __init__(self, jobs: Errandry) -> None:
        self._jobs = jobs

    def record(self, job_id: str) -> JobRecord:
        [record] = self._jobs.engine.call_sync(self._jobs.store.get, [job_id])
        assert record is not None
        return record

    def wait_for(self, job_id: str, holds: Callable[[JobRecord], bool]) -> JobRecord:
        """The record of a job as soon as `holds` is true of it. Blocks the calling thread."""
        give_up = time.monotonic() + WAIT_TIMEOUT
        while not holds(record := self.record(job_id)):
            assert time.monotonic() < give_up, record
            time.sleep(0.005)
        return record

    def insert(self, task: Task[..., Any], *args: Any) -> str:
        """The id of a new job. A worker of this process claims it in the pass that inserts it, or not yet."""
        job = task.new(*args).single_job
        self._jobs.engine.submit_sync(Insert((job,)))
        return job.id

    def wait_until_blocked(self) -> Beat:
        """The beat in which the worker reports that its loop is blocked. Blocks the calling thread."""
        give_up = time.monotonic() + WAIT_TIMEOUT
        while not (beat := self._jobs.engine.call_sync(self._jobs.store.workers)[0].beat).blocked_by:
            assert time.monotonic() < give_up, beat
            time.sleep(0.005)
        return beat


def other_task(jobs: Errandry, runner: str) -> Task[..., Any]:
    """A quick task with this runner."""
    if runner == "process":
        return jobs.task(runner="process")(child_tasks.process_info.function)
    if runner == "thread":
        return jobs.task(name="other")(lambda: None)

    @jobs.task
    async def other() -> None:
        pass

    return other


@pytest.mark.slow("jobs are given back after a second")
@pytest.mark.parametrize("runner", ["async", "thread", "process"])
async def test_jobs_that_cannot_begin_are_given_back_without_cost(
    live: Errandry, runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    other, given_back = other_task(live, runner), list[JobRecord]()

    @live.task
    async def blocking() -> None:
        watcher = Observer(live)
        claimed = watcher.insert(other)
        assert watcher.record(claimed).state is State.RUNNING
        given_back.append(watcher.wait_for(claimed, lambda record: record.releases > 0))

    job = await blocking.enqueue()
    async with running_worker(live):
        await job.wait(30)
        record = await wait_for_state(live, given_back[0].id, State.COMPLETED)

    [back] = given_back
    assert (back.state, back.attempts, back.releases, back.errors) == (State.WAITING, 0, 1, ())
    assert (record.attempts, record.releases, record.crashes) == (1, 1, 0)
    assert "its lease is lost" not in caplog.text


@pytest.mark.slow("jobs are given back after a second")
async def test_prefetched_and_lingering_jobs_are_given_back_too(live: Errandry) -> None:
    given_back = list[JobRecord]()

    @live.task(batch=5, linger="1 minute")
    async def batched(items: list[int]) -> None:
        pass

    @live.task
    async def other() -> None:
        pass

    @live.task
    async def blocking() -> None:
        watcher = Observer(live)
        claimed = [watcher.insert(batched, 1), watcher.insert(other)]
        assert [watcher.record(job_id).state for job_id in claimed] == [State.CLAIMED] * 2
        given_back.extend(watcher.wait_for(job_id, lambda record: record.releases > 0) for job_id in claimed)

    job = await blocking.enqueue()
    async with running_worker(live, concurrency=2, prefetch=1):
        await job.wait(30)
        await wait_for_state(live, given_back[1].id, State.COMPLETED)

    assert [(back.state, back.attempts) for back in given_back] == [(State.WAITING, 0)] * 2


async def test_a_blocked_worker_claims_nothing_and_says_what_blocks_it(live: Errandry) -> None:
    beats, states = list[Beat](), list[State]()
    other = other_task(live, "async")

    @live.task
    async def blocking() -> str:
        watcher = Observer(live)
        beats.append(watcher.wait_until_blocked())
        waiting = watcher.insert(other)
        states.append(watcher.record(waiting).state)
        return waiting

    job = await blocking.enqueue()
    async with running_worker(live, stall_after=0.1):
        waiting = await job.result(30)
        assert (await wait_for_state(live, waiting, State.COMPLETED)).releases == 0
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (await live.workers.list())[0].blocked_by:  # noqa: ASYNC110 - a beat is no event
                await asyncio.sleep(0.01)

    assert [beat.blocked_by for beat in beats] == [f"task blocking (job {job.id})"]
    assert states == [State.WAITING]


@pytest.mark.slow("takes a lease")
async def test_a_job_that_blocks_beyond_its_timeout_is_not_claimed_again_by_its_blocked_worker(
    live: Errandry,
) -> None:
    other, expired = other_task(live, "async"), list[JobRecord]()

    @live.task(timeout=0.1)
    async def blocking(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            watcher = Observer(live)
            watcher.wait_for(ctx.id, lambda record: record.state is State.WAITING or record.attempts > 1)
            watcher.insert(other)  # in a pass with which a worker could claim
            expired.append(watcher.record(ctx.id))

    job = await blocking.enqueue()
    async with running_worker(live, lease=1.0, grace=0.1, upkeep_every=0.1):
        record = await wait_for_state(live, job.id, State.COMPLETED)

    assert [(back.state, back.attempts) for back in expired] == [(State.WAITING, 1)]
    assert record.attempts == 2


@pytest.mark.parametrize("size", [1, 5])
async def test_beginning_and_giving_back_exclude_each_other(size: int) -> None:
    loop = asyncio.get_running_loop()
    executor = Executor(Errandry("memory:"), WorkerOptions(), lambda _: None, lambda _: None)
    barrier, taken = threading.Barrier(2), list[list[JobRun]]()
    calls = [_new_call(size, executor, loop) for _ in range(ROUNDS)]

    def give_back_all() -> None:
        for number, call in enumerate(calls):
            barrier.wait()
            if number % 3 == 2:  # the call begins first; in a third of the rounds there is no order
                barrier.wait()
            taken.append(call.give_back())
            if number % 3 == 1:
                barrier.wait()

    thread = threading.Thread(target=give_back_all)
    thread.start()
    begun = []
    for number, call in enumerate(calls):
        early = call.runs[0] if number % 2 == 0 else None
        barrier.wait()
        if number % 3 == 1:
            barrier.wait()
        was_removed = early is not None and call.remove(early)
        begun.append((call.begin(), early if was_removed else None))
        if number % 3 == 2:
            barrier.wait()
    thread.join()

    for call, (has_begun, removed), runs in zip(calls, begun, taken, strict=True):
        kept = ([] if removed is None else [removed]) + (call.runs if has_begun else [])
        assert len(kept) + len(runs) == size
        assert not set(kept) & set(runs)
        assert call.begin() is has_begun
        assert call.give_back() == []
        assert all(run.is_lost and run.stop_reason is StopReason.LOST for run in runs)


def _new_call(size: int, executor: Executor, loop: asyncio.AbstractEventLoop) -> HandlerCall:
    new = NewJob(id="job", task="task", payload="{}")
    first, *others = [JobRun(created(new, seq, 0.0), 30.0, executor, loop) for seq in range(size)]
    call = HandlerCall(first, size)
    for run in others:
        call.add(run)
    return call
