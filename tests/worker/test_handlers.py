"""How handlers run, what they see, and what they return."""

import gc
import threading
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from errandry import Errandry, JobContext, Retry, current
from errandry.worker.handler_call import HandlerCall, JobRun
from tests.run_worker import run_burst
from tests.worker.gate import NO_BACKOFF


async def test_async_handlers_run_on_the_loop_and_sync_handlers_in_threads(live: Errandry) -> None:
    @live.task
    async def on_loop(n: int) -> list[Any]:
        return [n, threading.get_ident()]

    @live.task
    def in_thread(n: int) -> list[Any]:
        return [n, threading.get_ident()]

    jobs = await on_loop.enqueue(1), await in_thread.enqueue(2)
    await run_burst(live)
    results = [await job.result(30) for job in jobs]

    assert results[0] == [1, threading.get_ident()]
    assert results[1][0] == 2
    assert results[1][1] != threading.get_ident()


async def test_each_handler_has_its_own_context_variables(live: Errandry) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")
    variable.set("of the test")

    @live.task
    async def on_loop() -> str:
        seen = variable.get()
        variable.set("dirty")
        return seen

    @live.task
    def in_thread() -> str:
        seen = variable.get()
        variable.set("dirty")
        return seen

    jobs = await live.enqueue_many([task.new() for task in (on_loop, in_thread) for _ in range(3)])
    await run_burst(live, concurrency=1, thread_slots=1)

    assert [await job.result(30) for job in jobs] == ["clean"] * 6


async def test_a_handler_can_read_its_job(live: Errandry) -> None:
    fences: list[int] = []

    @live.task(backoff=NO_BACKOFF, max_attempts=3)
    async def work(ctx: JobContext, n: int) -> list[Any]:
        fences.append(ctx.fence)
        assert current() is ctx
        if ctx.attempt < 3:
            raise Retry
        return [ctx.id, ctx.attempt, ctx.job.task, ctx.should_stop, n]

    job = await work.enqueue(7)
    await run_burst(live)

    assert await job.result(30) == [job.id, 3, "work", False, 7]
    assert fences == sorted(set(fences))
    assert current() is None


async def test_results_have_the_type_that_the_handler_returns(live: Errandry) -> None:
    @live.task
    def total(prices: list[Decimal]) -> Decimal:
        return sum(prices, Decimal(0))

    job = await total.enqueue([Decimal("0.1"), Decimal("0.2")])
    await run_burst(live)

    assert await job.result(30) == Decimal("0.3")


async def test_finished_jobs_leave_no_reference_cycles(live: Errandry) -> None:
    @live.task
    async def work(number: int) -> int:
        return number

    await work.enqueue(0)
    await run_burst(live)  # imports and caches what the first job needs
    await live.enqueue_many([work.new(number) for number in range(100)])
    gc.collect()
    gc.disable()
    try:
        before = len(_run_objects())  # other tests of this process may have left some
        await run_burst(live)
        after = len(_run_objects())
    finally:
        gc.enable()
    assert after - before < 10  # those of the last job


def _run_objects() -> list[object]:
    return [item for item in gc.get_objects() if isinstance(item, JobRun | HandlerCall | JobContext)]
