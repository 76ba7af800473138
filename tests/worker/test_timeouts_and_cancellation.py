"""How running handlers are stopped by a timeout or a cancel."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from errandry import Errandry, JobContext, State
from errandry.claims.leases import StopReason
from errandry.core.answer import Answer, Claims
from errandry.core.command import Claim, Command, Start
from errandry.core.state import Reason
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from errandry.worker.executor import Executor
from errandry.worker.handler_call import HandlerCall
from tests.machine_load import WAIT_TIMEOUT, MachineLoad
from tests.run_worker import run_burst, running_worker, wait_for_state
from tests.worker.gate import NO_BACKOFF, Gate


async def test_an_async_handler_is_stopped_after_its_timeout(live: Errandry) -> None:
    stopped: list[int] = []

    @live.task(timeout=0.2, max_attempts=2, backoff=NO_BACKOFF)
    async def work(ctx: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.attempt)

    job = await work.enqueue()
    await run_burst(live)
    record = (await job.wait(30)).record

    assert (record.state, record.reason, stopped) == (State.FAILED, Reason.TIMEOUT, [1, 2])
    assert [error.kind for error in record.errors] == [Reason.TIMEOUT] * 2
    assert "longer than 0.2 s" in record.errors[0].message


async def test_a_handler_in_a_thread_is_asked_to_stop_after_its_timeout(live: Errandry) -> None:
    seen: list[bool] = []

    @live.task(timeout=0.2, max_attempts=1)
    def work(ctx: JobContext) -> str:
        seen.append(ctx.sleep_or_stop(WAIT_TIMEOUT))
        seen.append(ctx.should_stop)
        return "too late"

    job = await work.enqueue()
    await run_burst(live)
    record = (await job.wait(30)).record

    assert seen == [True, True]
    assert (record.state, record.reason, record.result) == (State.FAILED, Reason.TIMEOUT, None)


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    ("rules", "attempts"),
    [
        ({"fail_on": TimeoutError}, 1),
        ({"fail_on": OSError}, 1),  # the parent of TimeoutError
        ({"retry_on": ConnectionError}, 1),
        ({"retry_on": (ConnectionError, TimeoutError)}, 2),
        ({"fail_on": ConnectionError}, 2),
    ],
)
async def test_a_timeout_is_a_timeout_error_for_the_rules_of_its_task(
    live: Errandry, kind: str, rules: dict[str, Any], attempts: int
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    def hang_in_a_thread(ctx: JobContext) -> None:
        ctx.sleep_or_stop(WAIT_TIMEOUT)

    handler = hang if kind == "async" else hang_in_a_thread
    task = live.task(name="hang", timeout=0.02, max_attempts=2, backoff=NO_BACKOFF, **rules)(handler)
    job = await task.enqueue()
    await run_burst(live)
    record = (await job.wait(WAIT_TIMEOUT)).record

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.TIMEOUT, attempts)
    assert {(error.kind, error.type) for error in record.errors} == {(Reason.TIMEOUT, "TimeoutError")}


@pytest.mark.parametrize("slow", [Claim, Start])
async def test_a_timeout_counts_from_the_moment_the_claim_or_the_start_was_sent(
    clock: FakeClock, slow: type[Command]
) -> None:
    """An attempt whose time is over before its handler could begin is not begun."""

    class SlowStore(MemoryStore):
        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            answers = await super().commit(commands)
            for command, answer in zip(commands, answers, strict=True):
                if type(command) is slow and (not isinstance(answer, Claims) or answer.jobs):
                    clock.advance(6.0)
            return answers

    calls: list[int] = []
    async with Errandry(store=SlowStore(clock), clock=clock) as jobs:

        @jobs.task(batch=2, linger="1ms" if slow is Start else 0, timeout=5, max_attempts=1)
        async def work(numbers: list[int]) -> None:
            calls.extend(numbers)

        job = await work.enqueue(1)
        async with running_worker(jobs):
            record = (await job.wait(WAIT_TIMEOUT)).record

    assert (record.state, record.reason, calls) == (State.FAILED, Reason.TIMEOUT, [])
    assert record.errors[0].message == "the attempt took longer than 5 s"


async def test_a_stuck_thread_loses_its_slot_after_the_grace_and_its_result_is_discarded(
    live: Errandry,
) -> None:
    released, returned = threading.Event(), threading.Event()

    @live.task(timeout=0.2, max_attempts=1)
    def stuck() -> str:
        released.wait(WAIT_TIMEOUT)
        returned.set()
        return "too late"

    @live.task
    def quick() -> str:
        return "in time"

    first, second = await stuck.enqueue(), await quick.enqueue()
    async with running_worker(live, thread_slots=1, grace=0.02):
        assert await second.result(30) == "in time"
        assert (await first.wait(30)).record.reason is Reason.TIMEOUT
        released.set()
        assert await asyncio.to_thread(returned.wait, WAIT_TIMEOUT)

    record = await live.client.record(first.id)
    assert (record.state, record.result) == (State.FAILED, None)


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_job_canceled_before_it_is_claimed_never_runs(live: Errandry, delay: float) -> None:
    calls: list[str] = []

    @live.task
    async def work() -> None:
        calls.append("ran")

    job = await work.using(delay=delay).enqueue()
    await live.cancel(job.id)
    await run_burst(live)

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
    async with running_worker(live):
        await gate.begun.wait()
        await live.cancel(job.id)
        began = time.monotonic()
        with MachineLoad() as load:
            await asyncio.wait_for(stopped.wait(), 30)
        took = time.monotonic() - began
        assert (await job.wait(30)).state is State.CANCELED

    assert took < load.scaled(0.5)
    assert (job.record.reason, job.record.attempts) == (Reason.CANCELED, 1)


async def test_a_cancel_before_the_first_step_of_a_handler_stops_it(
    live: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    @live.task
    async def work() -> None:
        raise AssertionError("it must not run")

    start = Executor.start

    def cancel_and_start(
        executor: Executor, call: HandlerCall, slot_wait: Coroutine[Any, Any, None] | None = None
    ) -> None:
        call.stop(StopReason.CANCEL)
        start(executor, call, slot_wait)

    monkeypatch.setattr(Executor, "start", cancel_and_start)
    job = await work.enqueue()
    async with running_worker(live):
        assert (await wait_for_state(live, job.id, State.CANCELED)).errors == ()


async def test_a_running_thread_is_asked_to_stop_by_a_cancel(live: Errandry) -> None:
    begun = threading.Event()

    @live.task
    def work(ctx: JobContext) -> bool:
        begun.set()
        return ctx.sleep_or_stop(WAIT_TIMEOUT)

    job = await work.enqueue()
    async with running_worker(live):
        assert await asyncio.to_thread(begun.wait, WAIT_TIMEOUT)
        await live.cancel(job.id)
        assert (await job.wait(30)).state is State.CANCELED


async def test_a_cancel_request_wins_over_what_the_handler_returns(live: Errandry, gate: Gate) -> None:
    @live.task
    async def stubborn() -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            return "finished all the same"
        return "never canceled"

    job = await stubborn.enqueue()
    async with running_worker(live):
        await gate.begun.wait()
        await live.cancel(job.id)
        assert (await job.wait(30)).state is State.CANCELED

    assert job.record.result == '"finished all the same"'


async def test_what_a_thread_returns_after_a_cancel_is_kept(live: Errandry) -> None:
    begun = threading.Event()

    @live.task
    def work(ctx: JobContext) -> str:
        begun.set()
        return "stopped early" if ctx.sleep_or_stop(WAIT_TIMEOUT) else "done"

    job = await work.enqueue()
    async with running_worker(live):
        assert await asyncio.to_thread(begun.wait, WAIT_TIMEOUT)
        await live.cancel(job.id)
        assert (await job.wait(30)).state is State.CANCELED

    assert job.record.result == '"stopped early"'


async def test_an_async_handler_that_ignores_its_timeout_loses_its_slot_after_the_grace(
    live: Errandry,
) -> None:
    released, returned = asyncio.Event(), asyncio.Event()

    @live.task(timeout=0.02, max_attempts=1)
    async def stubborn(ctx: JobContext) -> str:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        ctx.progress(1.0, "too late")
        returned.set()
        return "too late"

    @live.task
    async def quick() -> str:
        return "in time"

    first, second = await stubborn.enqueue(), await quick.enqueue()
    async with running_worker(live, concurrency=1, grace=0.02):
        assert await second.result(30) == "in time"
        record = (await first.wait(30)).record
        released.set()
        await asyncio.wait_for(returned.wait(), WAIT_TIMEOUT)

    assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.TIMEOUT, 0)
    assert (await first.refresh()).record == record


@pytest.mark.parametrize("block", [0.0, 0.2], ids=["without a grace", "after a long block"])
async def test_a_handler_is_canceled_before_its_slot_is_given_up(live: Errandry, block: float) -> None:
    """Also if its timeout and the grace after it are over at the same time."""
    ended = asyncio.Event()
    reached: list[str] = []

    @live.task(timeout=0.1, max_attempts=1)
    async def late() -> None:
        try:
            time.sleep(block)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reached.append("canceled")
            raise
        finally:
            ended.set()

    job = await late.enqueue()
    async with running_worker(live, grace=0.0):
        record = (await job.wait(30)).record
        await asyncio.wait_for(ended.wait(), WAIT_TIMEOUT)

    assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    assert reached == ["canceled"]


@pytest.mark.parametrize("way", ["raises", "cancels itself"])
async def test_a_handler_that_ends_with_cancelled_error_unasked_has_failed(live: Errandry, way: str) -> None:
    @live.task(max_attempts=1)
    async def work() -> None:
        if way == "raises":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    job = await work.enqueue()
    await run_burst(live)
    record = (await job.wait(30)).record

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.ERROR, 1)
    assert record.errors[0].type == "CancelledError"


class ErrorThatExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(7)


class ExitThatExits(SystemExit):
    def __str__(self) -> str:
        raise SystemExit(7)


@pytest.mark.parametrize("runner", ["async", "thread", "batch"])
@pytest.mark.parametrize("error", [ErrorThatExits, ExitThatExits])
async def test_an_error_whose_text_exits_fails_its_job_alone(
    live: Errandry, runner: str, error: type[BaseException]
) -> None:
    if runner == "async":

        @live.task(max_attempts=1)
        async def work(number: int) -> None:
            raise error

    elif runner == "thread":

        @live.task(max_attempts=1)
        def work(number: int) -> None:
            raise error

    else:

        @live.task(max_attempts=1, batch=3)
        async def work(numbers: list[int]) -> None:
            raise error

    job = await work.enqueue(1)
    await run_burst(live)
    record = (await job.wait(30)).record

    assert (record.state, record.attempts) == (State.FAILED, 1)
    assert "whose str raises SystemExit" in record.errors[0].message
