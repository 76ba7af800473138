"""What a worker does with jobs and their handlers, seen through the API. Real time, but little of it."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, NoReturn

import pytest

from errandry import (
    Backoff,
    Cancel,
    Errandry,
    Fail,
    JobContext,
    Retry,
    Snooze,
    State,
    WorkerOptions,
    current,
    flow,
)
from errandry.core.answer import Answer, Claims
from errandry.core.command import Claim, Command, Insert, Renew, Settle, Upkeep
from errandry.core.event import EventKind
from errandry.core.job import LOGS_MAX, NewJob, Progress
from errandry.core.retry import Curve
from errandry.core.state import Reason
from errandry.errors import InvalidValue, JobCanceled, JobFailed, ReplyLost, StoreFull, StoreUnavailable
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from errandry.worker.executor import Executor
from errandry.worker.handler_call import HandlerCall, JobRun, StopReason
from errandry.worker.throttled_log import AGAIN, ThrottledLog
from tests.pace import PATIENCE, Pace
from tests.working import burst, kinds, outlive, reached, until, working

NOW = Backoff(Curve.FIXED, 0.0)


class Gate:
    """Tells when a handler has begun, and holds it until it is opened."""

    def __init__(self) -> None:
        self.begun, self.opened = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.begun.set()
        await self.opened.wait()


@pytest.fixture
def gate() -> Gate:
    return Gate()


# Handlers.


async def test_async_handlers_run_on_the_loop_and_sync_ones_in_threads(live: Errandry) -> None:
    @live.task
    async def here(n: int) -> list[Any]:
        return [n, threading.get_ident()]

    @live.task
    def there(n: int) -> list[Any]:
        return [n, threading.get_ident()]

    made = await here.enqueue(1), await there.enqueue(2)
    await burst(live)
    results = [await job.result(30) for job in made]

    assert results[0] == [1, threading.get_ident()]
    assert results[1][0] == 2
    assert results[1][1] != threading.get_ident()


class Counted(MemoryStore):
    """Keeps what was written together."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Sequence[Command]] = []

    @property
    def passes(self) -> list[list[type]]:
        return [[type(command) for command in commands] for commands in self.commands]

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.commands.append(commands)
        return await super().commit(commands)


class Forgetful(Counted):
    """The replies to its first few claims that bring something are lost."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.lost: list[Command] = []

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        for n, answer in enumerate(answers):
            if isinstance(answer, Claims) and answer.jobs and len(self.lost) < self.times:
                self.lost.append(commands[n])
                answers[n] = ReplyLost("memory", "the line went dead")
        return answers


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_there", [True, False], ids=["claimed alone", "claimed along"])
async def test_what_was_claimed_is_run_though_the_reply_was_lost(is_there: bool, times: int) -> None:
    store = Forgetful(times)
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        job = await work.enqueue() if is_there else None
        async with working(jobs, lease=3_600.0):
            job = job or await work.enqueue()
            assert await job.result(30) == "done"
            await work.enqueue()

        assert (await job.refresh()).record.attempts == 1
        assert store.lost == [store.lost[0]] * times


async def test_an_idle_worker_claims_a_job_in_the_pass_that_inserts_it() -> None:
    store = Counted()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        async with working(jobs):
            for _ in range(20):  # now and then a worker asks just when a job comes
                job = await work.enqueue()
                assert await job.result(30) == "done"

        assert [Insert, Claim] in store.passes
        assert [Settle, Claim] in store.passes


async def test_a_claim_on_its_way_with_a_pass_has_its_slots_already(gate: Gate) -> None:
    """Asking by itself meanwhile, the worker must not ask for the same slots again."""
    store = Counted()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> None:
            await gate.pass_through()

        @jobs.task
        async def first() -> None: ...

        async with working(jobs, concurrency=1) as worker:
            await (await first.enqueue()).result(30)
            store.latency, before = 0.1, len(store.passes)
            made = asyncio.create_task(jobs.enqueue_many([work.new(), work.new()]))
            async with asyncio.timeout(30):
                while True:
                    if any(Insert in commands for commands in store.passes[before:]):
                        break
                    await asyncio.sleep(0.001)
            worker._claimer.look()
            await made
            await gate.begun.wait()
            await jobs.engine.submit(Upkeep())  # comes after whatever was asked for

            assert (await jobs.counts())["default"].get("running") == 1
            gate.opened.set()


async def test_each_handler_has_a_context_of_its_own(live: Errandry) -> None:
    mark: ContextVar[str] = ContextVar("mark", default="clean")
    mark.set("of the test")

    @live.task
    async def here() -> str:
        seen = mark.get()
        mark.set("dirty")
        return seen

    @live.task
    def there() -> str:
        seen = mark.get()
        mark.set("dirty")
        return seen

    made = await live.enqueue_many([task.new() for task in (here, there) for _ in range(3)])
    await burst(live, concurrency=1, threads=1)

    assert [await job.result(30) for job in made] == ["clean"] * 6


async def test_a_handler_knows_its_job(live: Errandry) -> None:
    fences: list[int] = []

    @live.task(backoff=NOW, max_attempts=3)
    async def work(ctx: JobContext, n: int) -> list[Any]:
        fences.append(ctx.fence)
        assert current() is ctx
        if ctx.attempt < 3:
            raise Retry
        return [ctx.id, ctx.attempt, ctx.job.task, ctx.canceled, n]

    job = await work.enqueue(7)
    await burst(live)

    assert await job.result(30) == [job.id, 3, "work", False, 7]
    assert fences == sorted(set(fences))
    assert current() is None


async def test_no_more_handlers_run_at_once_than_there_are_slots(live: Errandry) -> None:
    running = {"async": 0, "thread": 0}
    most = dict(running)
    lock, full, full_of_threads = threading.Lock(), asyncio.Event(), threading.Event()

    def enter(kind: str, by: int) -> int:
        with lock:
            running[kind] += by
            most[kind] = max(most[kind], running[kind])
            return running[kind]

    @live.task
    async def here() -> None:
        if enter("async", 1) == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.002)
        enter("async", -1)

    @live.task
    def there() -> None:
        if enter("thread", 1) == 2:
            full_of_threads.set()
        full_of_threads.wait(PATIENCE)
        time.sleep(0.002)
        enter("thread", -1)

    await live.enqueue_many([task.new() for task in (here, there) for _ in range(20)])
    await burst(live, concurrency=3, threads=2)

    assert most == {"async": 3, "thread": 2}
    assert await live.counts() == {"default": {"completed": 40}}


async def test_a_worker_takes_only_its_queues_and_tasks(live: Errandry) -> None:
    @live.task
    async def mail() -> None: ...

    @live.task
    def sums() -> None: ...

    made = [await task.using(queue=queue).enqueue() for task in (mail, sums) for queue in ("a", "b")]
    await burst(live, queues=("a",), tasks=("sums",))

    assert [(await job.refresh()).state for job in made] == ["waiting", "waiting", "completed", "waiting"]


# Outcomes.


async def test_an_error_is_tried_again_after_the_backoff_until_attempts_are_spent(live: Errandry) -> None:
    @live.task(max_attempts=3, backoff=Backoff(Curve.LINEAR, 0.01, jitter=0.0))
    async def work() -> None:
        raise ValueError("no luck")

    job = await work.enqueue()
    async with working(live):
        with pytest.raises(JobFailed, match="ValueError: no luck"):
            await job.result(30)

    errors = job.record.errors
    assert [(error.attempt, error.kind, error.type) for error in errors] == [
        (number, Reason.ERROR, "ValueError") for number in (1, 2, 3)
    ]
    starts = [error.started or 0.0 for error in errors]
    assert starts[1] - errors[0].ended > 0.01 - 1e-6
    assert starts[2] - errors[1].ended > 0.02 - 1e-6
    assert "raise ValueError" in errors[0].traceback
    assert "test_worker.py" in errors[0].traceback
    assert (await kinds(live, job.id)).count(EventKind.RETRYING) == 2


async def test_retry_says_when(live: Errandry) -> None:
    @live.task(backoff="1 hour", max_attempts=2)
    async def work(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            raise Retry("busy", after=0.01)
        return "done"

    job = await work.enqueue()
    async with working(live):
        assert await job.result(30) == "done"

    assert [(error.type, error.message) for error in job.record.errors] == [("Retry", "busy")]


async def test_retry_without_a_time_waits_for_the_backoff_and_spends_the_attempt(live: Errandry) -> None:
    @live.task(backoff="1 hour", max_attempts=2)
    async def work() -> None:
        raise Retry("busy")

    job = await work.enqueue()
    await burst(live)
    record = await live.record(job.id)

    assert (record.state, record.attempts) == (State.SCHEDULED, 1)
    assert (record.run_at or 0.0) - record.updated_at == pytest.approx(3_600)


async def test_snooze_gives_the_attempt_back(live: Errandry) -> None:
    runs = iter(range(10))

    @live.task(max_attempts=1)
    def work(ctx: JobContext) -> list[int]:
        if next(runs) < 3:
            raise Snooze(0.005)
        return [ctx.attempt]

    job = await work.enqueue()
    async with working(live):
        assert await job.result(30) == [1]

    assert job.record.errors == ()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_fail_and_cancel_are_for_good(live: Errandry, kind: str) -> None:
    async def later(end: str) -> None:
        raise Fail("wrong address") if end == "fail" else Cancel("not needed")

    def now(end: str) -> None:
        raise Fail("wrong address") if end == "fail" else Cancel("not needed")

    work = live.task(name="work")(later if kind == "async" else now)
    failed, canceled = await work.enqueue(end="fail"), await work.enqueue(end="cancel")
    await burst(live)

    with pytest.raises(JobFailed, match=r"\(unrecoverable\): Fail: wrong address"):
        await failed.result(30)
    with pytest.raises(JobCanceled):
        await canceled.result(30)
    assert (failed.record.attempts, canceled.record.attempts) == (1, 1)
    assert canceled.record.reason is Reason.CANCELED
    assert canceled.record.errors[-1].message == "not needed"


async def test_retry_on_and_fail_on_decide_by_the_kind_of_error(live: Errandry) -> None:
    kinds: dict[str, type[Exception]] = {
        "listed": ConnectionError,
        "narrower": ConnectionResetError,
        "refused": ConnectionRefusedError,
        "other": ValueError,
    }

    @live.task(max_attempts=2, backoff=NOW, retry_on=ConnectionError, fail_on=(ConnectionRefusedError,))
    async def work(kind: str) -> None:
        raise kinds[kind]

    made = {kind: await work.enqueue(kind) for kind in kinds}
    await burst(live)
    ends = {kind: (await job.wait(30)).record for kind, job in made.items()}

    assert {kind: (end.attempts, end.reason) for kind, end in ends.items()} == {
        "listed": (2, Reason.ERROR),
        "narrower": (2, Reason.ERROR),
        "refused": (1, Reason.UNRECOVERABLE),
        "other": (1, Reason.UNRECOVERABLE),
    }


async def test_a_registered_function_is_a_backoff(live: Errandry) -> None:
    asked: list[int] = []

    @live.backoff
    def patient(attempt: int) -> float:
        asked.append(attempt)
        return 0.001 * attempt

    @live.task(max_attempts=3, backoff="patient")
    async def work() -> None:
        raise ValueError

    job = await work.enqueue()
    async with working(live):
        assert (await job.wait(30)).state is State.FAILED

    assert asked[:2] == [1, 2]


# Timeouts.


async def test_an_async_handler_is_stopped_when_its_time_is_up(live: Errandry) -> None:
    stopped: list[int] = []

    @live.task(timeout=0.02, max_attempts=2, backoff=NOW)
    async def work(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.attempt)

    job = await work.enqueue()
    await burst(live)
    record = (await job.wait(30)).record

    assert (record.state, record.reason, stopped) == (State.FAILED, Reason.TIMEOUT, [1, 2])
    assert [error.kind for error in record.errors] == [Reason.TIMEOUT] * 2
    assert "longer than 0.02 s" in record.errors[0].message


async def test_a_handler_in_a_thread_is_asked_to_stop_when_its_time_is_up(live: Errandry) -> None:
    seen: list[bool] = []

    @live.task(timeout=0.02, max_attempts=1)
    def work(ctx: JobContext) -> str:
        seen.append(ctx.wait(PATIENCE))
        seen.append(ctx.canceled)
        return "too late"

    job = await work.enqueue()
    await burst(live)
    record = (await job.wait(30)).record

    assert seen == [True, True]
    assert (record.state, record.reason, record.result) == (State.FAILED, Reason.TIMEOUT, None)


async def test_a_stuck_thread_loses_its_slot_after_the_grace_and_its_return_counts_for_nothing(
    live: Errandry,
) -> None:
    stuck, returned = threading.Event(), threading.Event()

    @live.task(timeout=0.02, max_attempts=1)
    def deaf() -> str:
        stuck.wait(PATIENCE)
        returned.set()
        return "too late"

    @live.task
    def quick() -> str:
        return "in time"

    first, second = await deaf.enqueue(), await quick.enqueue()
    async with working(live, threads=1, grace=0.02):
        assert await second.result(30) == "in time"
        assert (await first.wait(30)).record.reason is Reason.TIMEOUT
        stuck.set()
        assert await asyncio.to_thread(returned.wait, PATIENCE)

    record = await live.record(first.id)
    assert (record.state, record.result) == (State.FAILED, None)


# Cancel.


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_job_canceled_before_it_is_claimed_never_runs(live: Errandry, delay: float) -> None:
    calls: list[str] = []

    @live.task
    async def work() -> None:
        calls.append("ran")

    job = await work.using(delay=delay).enqueue()
    await live.cancel(job.id)
    await burst(live)

    assert ((await job.refresh()).state, calls) == (State.CANCELED, [])


async def test_a_running_async_handler_is_stopped_by_a_cancel_at_once(live: Errandry, gate: Gate) -> None:
    stopped = asyncio.Event()

    @live.task
    async def work() -> None:
        try:
            await gate.pass_through()
        finally:
            stopped.set()

    job = await work.enqueue()
    async with working(live):
        await gate.begun.wait()
        await live.cancel(job.id)
        asked = time.monotonic()
        with Pace() as pace:
            await asyncio.wait_for(stopped.wait(), 30)
        took = time.monotonic() - asked
        assert (await job.wait(30)).state is State.CANCELED

    assert took < pace.allowed(0.5)
    assert (job.record.reason, job.record.attempts) == (Reason.CANCELED, 1)


async def test_a_cancel_that_comes_before_the_first_step_of_a_handler_is_obeyed(
    live: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    @live.task
    async def work() -> None:
        raise AssertionError("it must not run")

    start = Executor.start

    def stopped(
        executor: Executor, batch: HandlerCall, turn: Coroutine[Any, Any, None] | None = None
    ) -> None:
        batch.stop(StopReason.CANCEL)
        start(executor, batch, turn)

    monkeypatch.setattr(Executor, "start", stopped)
    job = await work.enqueue()
    async with working(live):
        assert (await reached(live, job.id, State.CANCELED)).errors == ()


async def test_a_call_that_cannot_be_prepared_is_an_error_of_the_attempt(
    live: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    @live.task
    async def part() -> None: ...

    @live.task(max_attempts=1)
    async def whole() -> None:
        raise AssertionError("it must not run")

    async def away(_: str) -> NoReturn:
        raise StoreUnavailable("store", "away")

    monkeypatch.setattr(live, "family", away)
    job = await live.enqueue_flow(flow(whole.new(), part.new()))
    async with working(live):
        record = await reached(live, job.id, State.FAILED)
    assert [error.type for error in record.errors] == ["StoreUnavailable"]


async def test_a_running_thread_is_asked_to_stop_by_a_cancel(live: Errandry) -> None:
    begun = threading.Event()

    @live.task
    def work(ctx: JobContext) -> bool:
        begun.set()
        return ctx.wait(PATIENCE)

    job = await work.enqueue()
    async with working(live):
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        await live.cancel(job.id)
        assert (await job.wait(30)).state is State.CANCELED


async def test_cancel_asked_wins_over_what_the_handler_makes_of_it(live: Errandry, gate: Gate) -> None:
    @live.task
    async def stubborn() -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            return "finished all the same"
        return "never asked"

    job = await stubborn.enqueue()
    async with working(live):
        await gate.begun.wait()
        await live.cancel(job.id)
        assert (await job.wait(30)).state is State.CANCELED

    assert job.record.result == '"finished all the same"'


# When.


async def test_a_scheduled_job_runs_when_it_is_due(live: Errandry) -> None:
    @live.task
    async def work() -> None: ...

    async with working(live):
        with Pace() as pace:
            made = [await work.using(delay=0.05 * number).enqueue() for number in range(1, 9)]
            ends = [(await job.wait(30)).record for job in made]

    late = sorted((end.started_at or 0.0) - (end.run_at or 0.0) for end in ends)
    assert late[0] >= 0
    assert late[2] < pace.allowed(0.05), f"even on a busy machine, some are in time: {late}"
    assert late[-1] < pace.allowed(0.9), f"nobody had to wait for a look at the clock: {late}"


async def test_a_paused_worker_claims_nothing_until_it_is_resumed(live: Errandry, gate: Gate) -> None:
    @live.task
    async def first() -> None:
        await gate.pass_through()

    @live.task
    async def second() -> None: ...

    async with working(live) as worker:
        running = await first.enqueue()
        await gate.begun.wait()
        worker.pause()
        gate.opened.set()
        await running.wait(30)
        held = await second.enqueue()
        with pytest.raises(TimeoutError):
            await held.wait(0.05)
        worker.resume()
        assert (await held.wait(30)).state is State.COMPLETED


async def test_a_worker_can_be_paused_from_afar(live: Errandry) -> None:
    @live.task
    async def work() -> None: ...

    async with working(live) as worker:
        await (await work.enqueue()).wait(30)
        assert await live.worker(worker.id).pause(by="ops")
        [info] = await live.workers()
        assert info.paused is not None
        assert info.paused.by == "ops"
        held = await work.enqueue()
        with pytest.raises(TimeoutError):
            await held.wait(0.05)
        assert await live.worker(worker.id).resume()
        assert (await held.wait(30)).state is State.COMPLETED


async def test_a_burst_ends_when_nothing_is_left_to_do_now(live: Errandry) -> None:
    @live.task
    async def work(n: int) -> None:
        if n:
            await work.enqueue(n - 1)

    await work.enqueue(5)
    later = await work.using(delay=60).enqueue(0)
    await burst(live)

    assert await live.counts() == {"default": {"completed": 6, "scheduled": 1}}
    assert (await later.refresh()).state is State.SCHEDULED


async def test_a_burst_is_not_over_because_a_handler_ended_during_a_claim(live: Errandry) -> None:
    assert isinstance(live.store, MemoryStore)
    live.store.latency = 0.01

    @live.task(backoff=NOW, max_attempts=2)
    async def here(ctx: JobContext) -> None:
        ctx.log("a note goes before the outcome")
        await asyncio.sleep(0.001)
        if ctx.attempt == 1:
            raise Retry

    @live.task
    def there() -> None: ...

    await live.enqueue_many([here.new() for _ in range(3)])
    await burst(live, concurrency=1, threads=1)

    assert await live.counts() == {"default": {"completed": 3}}


class Full(MemoryStore):
    """Has no room for the first claim."""

    full = True

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.full and any(isinstance(command, Claim) for command in commands):
            self.full = False
            raise StoreFull("memory", "no space left")
        return await super().commit(commands)


@pytest.mark.slow(reason="a worker waits a second before it asks again")
async def test_a_burst_waits_for_a_store_that_cannot_write() -> None:
    async with Errandry(store=Full()) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        job = await work.enqueue()
        await burst(jobs)

        assert await job.result(30) == "done"


async def test_urgent_jobs_go_first_and_equals_in_their_order(live: Errandry) -> None:
    order: list[int] = []

    @live.task
    async def work(n: int) -> None:
        order.append(n)

    await live.enqueue_many(
        [work.using(priority=priority).new(n) for n, priority in enumerate((0, 5, 0, -5))]
    )
    await burst(live, concurrency=1)

    assert order == [3, 0, 2, 1]


# What cannot be run.


async def test_a_job_of_an_unknown_task_is_given_back_for_another_worker(live: Errandry) -> None:
    await live.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await burst(live, release_delay=60.0)
    record = await live.record("new")

    assert (record.state, record.attempts, record.releases) == (State.SCHEDULED, 0, 1)


async def test_a_job_given_back_too_often_fails_for_want_of_a_handler(live: Errandry) -> None:
    await live.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await burst(live, release_delay=0.0)
    record = await live.record("new")

    assert (record.state, record.reason) == (State.FAILED, Reason.NO_HANDLER)


async def test_jobs_of_an_unknown_task_are_left_to_others_for_a_while(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may share the store: each of its jobs would come here first, every other time."""

    @live.task
    async def known() -> None: ...

    async with working(live):
        await live.insert([NewJob(id="first", task="of_tomorrow", payload="{}")])
        await until(live, "first", lambda record: record.releases == 1)
        await live.insert([NewJob(id="second", task="of_tomorrow", payload="{}")])
        job = await known.enqueue()
        await job.result(PATIENCE)
        second = await live.record("second")

    assert (second.state, second.fence) == (State.WAITING, 0)
    assert caplog.text.count("no task of_tomorrow is declared here") == 1


async def test_a_store_that_is_away_is_told_of_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    complaint = ThrottledLog(clock, "it rains", "the sun shines")
    caplog.set_level(logging.INFO, "errandry.worker")
    complaint.end()
    for _ in range(5):
        complaint.make(StoreUnavailable("store", "away"))
        clock.advance(AGAIN / 4)
    complaint.end()
    complaint.end()

    said = [record.getMessage() for record in caplog.records]
    assert said == ["it rains: store: away"] * 2 + ["the sun shines, after 38 s"]


async def test_a_job_of_an_unknown_task_fails_at_once_where_that_is_wanted(live: Errandry) -> None:
    await live.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await burst(live, on_unknown="fail")
    record = await live.record("new")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.NO_HANDLER, 1)
    assert "no task 'of_tomorrow' is declared" in record.errors[0].message


async def test_a_worker_with_a_list_of_tasks_never_takes_others(live: Errandry) -> None:
    @live.task
    async def known() -> None: ...

    await live.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await burst(live, tasks=("known",), on_unknown="fail")

    assert (await live.record("new")).fence == 0


@pytest.mark.parametrize("payload", ["{}", '{"to": 5}', '{"to": "ada", "nope": 1}', "[]", "null"])
async def test_a_payload_the_handler_does_not_take_fails_and_is_not_tried_again(
    live: Errandry, payload: str
) -> None:
    @live.task
    async def send(to: str) -> None: ...

    await live.insert([NewJob(id="old", task="send", payload=payload)])
    await burst(live)
    record = await live.record("old")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)
    assert record.errors[0].type == "InvalidArguments"


async def test_a_payload_the_handler_does_not_take_is_discarded_where_that_is_wanted(live: Errandry) -> None:
    @live.task(on_invalid="discard")
    async def send(to: str) -> None: ...

    await live.insert([NewJob(id="old", task="send", payload="{}")])
    await burst(live)

    assert (await live.list()).jobs == ()
    assert await kinds(live, "old") == ["waiting", "claimed", "started", "completed", "removed"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "objects of type object are not supported"),
        (float("nan"), "is not a number JSON has"),
        ("\ud800", "surrogates"),
        ("a\0b", "NUL"),
        (2**64, "beyond 64 bit"),
        ("x" * 2**20, "1,048,578 bytes"),
    ],
    ids=["object", "nan", "surrogate", "nul", "huge", "long"],
)
async def test_a_result_that_cannot_be_kept_fails_the_job_and_says_why(
    live: Errandry, value: Any, why: str
) -> None:
    @live.task
    async def work() -> Any:
        return value

    job = await work.enqueue()
    await burst(live)

    with pytest.raises(JobFailed, match=why):
        await job.result(30)
    assert (job.record.reason, job.record.attempts) == (Reason.UNRECOVERABLE, 1)


class Locked:
    """A codec whose key is lost."""

    def seal(self, text: str, about: object) -> str:
        return text

    def unseal(self, text: str, about: object) -> str:
        raise LookupError("no key 7")


async def test_a_payload_that_cannot_be_unsealed_is_an_error_of_the_attempt(live: Errandry) -> None:
    live.codec = Locked()

    @live.task(max_attempts=1)
    async def work() -> None: ...

    job = await work.enqueue()
    await burst(live)
    record = (await job.wait(30)).record

    assert record.state is State.FAILED
    assert "no key 7" in record.errors[0].message


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say it")


async def test_an_error_that_cannot_be_written_down_is_still_an_error(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work() -> None:
        raise Mute

    job = await work.enqueue()
    await burst(live)
    record = (await job.wait(30)).record

    assert (record.state, record.errors[0].type) == (State.FAILED, "Mute")


@pytest.mark.parametrize("answer", [None, -1, "soon", ZeroDivisionError], ids=repr)
async def test_a_backoff_function_that_makes_no_sense_leaves_it_to_the_curve(
    live: Errandry, answer: Any
) -> None:
    @live.backoff
    def odd(attempt: int) -> float:
        if isinstance(answer, type):
            raise answer
        return answer  # type: ignore[no-any-return]

    @live.task(max_attempts=2, backoff="odd")
    async def work() -> None:
        raise ValueError("the real trouble")

    job = await work.enqueue()
    await burst(live)
    record = await live.record(job.id)

    assert (record.state, record.errors[0].message) == (State.SCHEDULED, "the real trouble")
    assert 0 < (record.run_at or 0.0) - record.updated_at < 2


# What handlers note.


async def test_what_a_handler_notes_after_it_has_returned_is_not_kept(live: Errandry) -> None:
    contexts: list[JobContext] = []

    @live.task
    async def work(ctx: JobContext) -> None:
        contexts.append(ctx)
        ctx.log("in time")

    job = await work.enqueue()
    await burst(live)
    [ctx] = contexts
    ctx.log("too late")
    ctx.progress(0.5)

    with pytest.raises(TypeError, match="can only be kept where a worker, or drain, runs the handler"):
        await ctx.step("late", str)
    record = await live.record(job.id)
    assert ([line.text for line in record.logs], record.progress) == (["in time"], None)


async def test_jobs_leave_no_garbage_behind_that_has_to_be_searched_for(live: Errandry) -> None:
    @live.task
    async def work(number: int) -> int:
        return number

    await work.enqueue(0)
    await burst(live)  # which loads what the first one needs
    await live.enqueue_many([work.new(number) for number in range(100)])
    gc.collect()
    gc.disable()
    try:
        await burst(live)
        left = [one for one in gc.get_objects() if isinstance(one, JobRun | HandlerCall | JobContext)]
    finally:
        gc.enable()
    assert len(left) < 10  # of the last one


async def test_logging_and_progress_go_to_the_record_of_the_job(live: Errandry, gate: Gate) -> None:
    logger = logging.getLogger("shop")

    @live.task
    async def work(ctx: JobContext) -> None:
        logger.warning("weighing %d parcels", 3)
        ctx.log("weighed", level="debug")
        ctx.progress(0.5, "half")
        await gate.pass_through()
        ctx.progress(1, "done")

    job = await work.enqueue()
    async with working(live):
        await gate.begun.wait()
        logger.warning("not of any job")
        record = await until(live, job.id, lambda record: record.progress is not None)
        assert (record.state, record.progress) == (State.RUNNING, Progress(0.5, "half"))
        gate.opened.set()
        record = (await job.wait(30)).record

    assert [(line.level, line.text) for line in record.logs] == [
        ("warning", "weighing 3 parcels"),
        ("debug", "weighed"),
    ]
    assert record.progress == Progress(1, "done")
    assert {EventKind.PROGRESS, EventKind.LOG} <= set(await kinds(live, job.id))


async def test_logging_in_threads_goes_to_their_jobs(live: Errandry) -> None:
    @live.task
    def work(n: int) -> None:
        logging.getLogger("shop").error("number %d", n)

    made = [await work.enqueue(n) for n in range(5)]
    await burst(live)

    for n, job in enumerate(made):
        assert [line.text for line in (await job.refresh()).record.logs] == [f"number {n}"]


async def test_what_is_noted_is_capped(live: Errandry) -> None:
    @live.task
    async def chatty(ctx: JobContext) -> None:
        for number in range(3 * LOGS_MAX):
            ctx.log(f"line {number}")
        ctx.log("x" * 10_000)
        ctx.log("nul \0 and surrogate \ud800")

    job = await chatty.enqueue()
    await burst(live)
    logs = (await job.refresh()).record.logs

    assert len(logs) == LOGS_MAX
    assert logs[0].text == f"line {2 * LOGS_MAX + 2}"
    assert len(logs[-2].text) <= 2_000
    assert logs[-1].text == "nul \ufffd and surrogate \ufffd"


async def test_progress_is_a_share(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work(ctx: JobContext) -> None:
        ctx.progress(40)

    job = await work.enqueue()
    await burst(live)

    with pytest.raises(JobFailed, match="must be a share from 0 to 1"):
        await job.result(30)


async def test_the_history_keeps_the_newest_errors_with_their_attempts(live: Errandry) -> None:
    @live.task(max_attempts=25, backoff=NOW)
    async def work(ctx: JobContext) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    job = await work.enqueue()
    await burst(live, id="history")
    errors = (await job.wait(30)).record.errors

    assert [error.message for error in errors] == [f"attempt {n}" for n in range(6, 26)]
    assert all((error.worker or "").startswith("history-") for error in errors)
    assert all((error.started or 0) <= error.ended for error in errors)


# Leases, stops and trouble.


async def test_a_handler_longer_than_the_lease_keeps_it(jobs: Errandry, clock: FakeClock) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> str:
        await outlive(jobs, clock, ctx.id, lease=0.9)
        return "once"

    job = await work.enqueue()
    async with working(jobs, lease=0.9, renew_every=0.1):
        assert await job.result(PATIENCE) == "once"

    assert (job.record.attempts, job.record.crashes) == (1, 0)


async def test_a_lost_lease_stops_the_handler_and_nothing_is_written(live: Errandry, gate: Gate) -> None:
    stopped = asyncio.Event()

    @live.task
    async def work() -> str:
        try:
            await gate.pass_through()
        finally:
            stopped.set()
        return "never"

    job = await work.enqueue()
    async with working(live, renew_every=0.02):
        await gate.begun.wait()
        await live.remove(job.id, force=True)
        await asyncio.wait_for(stopped.wait(), 30)

    assert (await live.list()).jobs == ()


async def test_a_stop_lets_handlers_finish(live: Errandry, gate: Gate) -> None:
    @live.task
    async def work() -> str:
        await gate.pass_through()
        return "finished"

    job, late = await work.enqueue(), await work.using(delay=60).enqueue()
    async with working(live) as worker:
        await gate.begun.wait()
        worker.stop()
        await live.promote(late.id)
        gate.opened.set()
        assert await job.result(30) == "finished"

    assert (await late.refresh()).state is State.WAITING


async def test_what_does_not_finish_within_the_grace_is_given_back_unspent(
    live: Errandry, gate: Gate
) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    job = await work.enqueue()
    async with working(live, grace=0.02) as worker:
        await gate.begun.wait()
        worker.stop()
        record = await reached(live, job.id, State.WAITING)

    assert (record.attempts, record.releases, record.errors) == (0, 1, ())


async def test_a_store_that_is_away_for_a_moment_costs_no_job(live: Errandry) -> None:
    @live.task
    async def work(n: int) -> int:
        if n == 3:
            assert isinstance(live.store, MemoryStore)
            live.store.fail_before += [StoreUnavailable("memory", "away")] * 3
        return n

    made = [await work.enqueue(n) for n in range(6)]
    async with working(live, concurrency=2):
        assert [await job.result(30) for job in made] == list(range(6))

    assert {job.record.attempts for job in made} == {1}


async def test_jobs_that_were_running_when_their_worker_died_run_one_at_a_time(live: Errandry) -> None:
    running, most = 0, 0

    async def enter() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    @live.task
    async def here() -> None:
        await enter()

    @live.task
    async def there() -> None:
        await enter()

    made = await live.enqueue_many([task.new() for task in (here, there) for _ in range(4)])
    claims = await live.engine.submit(Claim(worker="dead", nonce="1", limit=10))
    assert isinstance(claims, Claims)
    assert len(claims.jobs) == 8
    await live.engine.submit(Upkeep(dead=("dead",)))
    await burst(live)

    assert [(await job.refresh()).record.crashes for job in made] == [1] * 8
    assert {job.state for job in made} == {State.COMPLETED}
    assert most == 1


async def test_such_a_job_is_settled_before_the_next_one_is_claimed() -> None:
    """That may end the process, and with it what was not written yet."""
    store = Counted()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> None: ...

        await jobs.enqueue_many([work.new() for _ in range(3)])
        await jobs.engine.submit(Claim(worker="dead", nonce="1", limit=10))
        await jobs.engine.submit(Upkeep(dead=("dead",)))
        began = len(store.commands)
        await burst(jobs)

        assert (await jobs.counts())["default"] == {"completed": 3}
    settling = [
        commands for commands in store.commands[began:] if any(isinstance(c, Settle) for c in commands)
    ]
    assert len(settling) == 3
    assert not [c for commands in settling for c in commands if isinstance(c, Claim) and c.suspects]


async def test_a_handler_that_blocks_the_loop_is_named_with_its_line(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "task rude (job " in text and "blocked the event loop" in text]

    def until_said() -> None:
        give_up = time.monotonic() + PATIENCE
        while not said() and time.monotonic() < give_up:
            time.sleep(0.005)

    @live.task
    async def rude() -> None:
        until_said()  # the line to be named

    await rude.enqueue()
    await burst(live, stall_after=0.1)

    [message] = said()
    with open(__file__, encoding="utf-8") as source:
        line = next(n for n, text in enumerate(source, 1) if "the line to be named" in text)
    assert f"test_worker.py:{line}" in message


async def test_health_tells_ages_and_how_much_runs(live: Errandry, gate: Gate) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    await work.enqueue()
    async with working(live, upkeep_every=0.01) as worker:
        await gate.begun.wait()
        async with asyncio.timeout(30):
            while (health := worker.health()).last_upkeep is None:  # noqa: ASYNC110 - a health check asks
                await asyncio.sleep(0.001)
        gate.opened.set()

    assert health.running == 1
    assert health.last_pass is not None
    assert 0 <= health.last_pass < PATIENCE
    assert 0 <= health.last_upkeep < PATIENCE


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency=0: must be a whole number from 1"),
        ({"threads": 0}, "threads=0: must be a whole number from 1"),
        ({"threads": 2.5}, "threads=2.5: must be a whole number"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"lease": 0}, "lease=0: must be more than 0 seconds"),
        ({"lease": "30s"}, "lease='30s': must be a number of seconds"),
        ({"lease": 30, "renew_every": 16}, "renew_every=16: .* leave a second try within the lease of 30 s"),
        ({"renew_every": 0}, "renew_every=0"),
        ({"upkeep_every": 0}, "upkeep_every=0: must be more than 0"),
        ({"grace": -1}, "grace=-1"),
        ({"stall_after": 0}, "stall_after=0"),
        ({"on_unknown": "ignore"}, "on_unknown='ignore': must be release or fail"),
        ({"release_delay": -1}, "release_delay=-1"),
        ({"queues": ("",)}, "queue='': must be a name"),
        ({"tasks": (7,)}, "task=7: must be a name"),
        ({"id": "a\nb"}, "id="),
    ],
    ids=lambda case: str(case) if isinstance(case, dict) else "",
)
def test_senseless_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        WorkerOptions(**options)


async def test_results_come_back_typed(live: Errandry) -> None:
    @live.task
    def total(prices: list[Decimal]) -> Decimal:
        return sum(prices, Decimal(0))

    job = await total.enqueue([Decimal("0.1"), Decimal("0.2")])
    await burst(live)

    assert await job.result(30) == Decimal("0.3")


class Deaf(Counted):
    """The reply to the first outcome is lost: it is written, and nobody hears of it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_told, self._is_deaf = asyncio.Event(), True
        self._loop = asyncio.get_running_loop()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        for number, command in enumerate(commands):
            if isinstance(command, Settle):
                if self._is_deaf:
                    answers[number] = ReplyLost("memory", "the line went dead")
                else:
                    self._loop.call_soon_threadsafe(self.is_told.set)
                self._is_deaf = False
        return answers


async def test_an_outcome_whose_reply_was_lost_is_not_called_lost(caplog: pytest.LogCaptureFixture) -> None:
    store = Deaf()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        async with working(jobs, lease=3.0, renew_every=0.3):
            assert await (await work.enqueue()).result(PATIENCE) == "done"
            async with asyncio.timeout(PATIENCE):
                await store.is_told.wait()

    assert "lost with its lease" not in caplog.text


class Slow(Counted):
    """The first claim that brings something comes late; the first renewal is refused for now."""

    is_slow = refuses = True

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.refuses and any(isinstance(command, Renew) for command in commands):
            self.refuses = False
            return [StoreUnavailable("memory", "somebody has it locked") for _ in commands]
        answers = await super().commit(commands)
        if self.is_slow and any(isinstance(answer, Claims) and answer.jobs for answer in answers):
            self.is_slow = False
            await asyncio.sleep(0.6)
        return answers


@pytest.mark.parametrize("is_there", [True, False], ids=["alone", "along"])
async def test_a_late_claim_whose_renewal_is_refused_for_now_is_run_all_the_same(is_there: bool) -> None:
    async with Errandry(store=Slow()) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        job = await work.enqueue() if is_there else None
        async with working(jobs, lease=5.0, renew_every=0.5):
            job = job or await work.enqueue()
            assert await job.result(PATIENCE) == "done"
        record = (await job.refresh()).record

    assert (record.attempts, record.crashes) == (1, 0)
