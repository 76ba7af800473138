"""Middleware: functions around every handler."""

import asyncio
from typing import Any

import pytest

from errandry import Errandry, JobContext, Snooze, State, current
from errandry.api.app import CallNext
from errandry.core.state import Reason
from errandry.testing import drain


@pytest.fixture
def calls() -> list[str]:
    return []


async def test_the_first_registered_middleware_is_the_outermost(jobs: Errandry, calls: list[str]) -> None:
    for name in ("outer", "inner"):

        @jobs.middleware
        async def around(ctx: JobContext, call_next: CallNext, name: str = name) -> Any:
            calls.append(f"{name} before")
            result = await call_next(ctx)
            calls.append(f"{name} after")
            return result

    @jobs.task
    async def work() -> None:
        calls.append("handler")

    await work.enqueue()
    await drain(jobs, strict=True)

    assert calls == ["outer before", "inner before", "handler", "inner after", "outer after"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_middleware_sees_the_job_and_may_change_the_result(jobs: Errandry, kind: str) -> None:
    @jobs.middleware
    async def twice(ctx: JobContext, call_next: CallNext) -> Any:
        assert ctx is current()
        return [ctx.job.task, ctx.attempt, await call_next(ctx)]

    async def later(n: int) -> Any:
        return n

    def now(n: int) -> Any:
        return n

    job = await jobs.task(name="work")(later if kind == "async" else now).enqueue(n=7)
    await drain(jobs, strict=True)

    assert await job.result(30) == ["work", 1, 7]


async def test_a_middleware_may_return_without_calling_the_handler(jobs: Errandry, calls: list[str]) -> None:
    @jobs.middleware
    async def cached(ctx: JobContext, call_next: CallNext) -> Any:
        return "from the cache"

    @jobs.middleware
    async def never(ctx: JobContext, call_next: CallNext) -> Any:
        calls.append("inner")
        return await call_next(ctx)

    @jobs.task
    async def work() -> str:
        calls.append("handler")
        return "fresh"

    job = await work.enqueue()
    await drain(jobs, strict=True)

    assert await job.result(30) == "from the cache"
    assert calls == []


async def test_a_middleware_may_handle_the_handlers_error(jobs: Errandry) -> None:
    seen: list[BaseException] = []

    @jobs.middleware
    async def recover(ctx: JobContext, call_next: CallNext) -> Any:
        try:
            return await call_next(ctx)
        except ZeroDivisionError as error:
            seen.append(error)
            return "recovered"

    @jobs.task
    def divide(a: int, b: int) -> float | str:
        return a / b

    job = await divide.enqueue(1, 0)
    await drain(jobs, strict=True)

    assert await job.result(30) == "recovered"
    assert len(seen) == 1


async def test_an_error_of_a_middleware_fails_the_attempt(jobs: Errandry, calls: list[str]) -> None:
    @jobs.middleware
    async def strict(ctx: JobContext, call_next: CallNext) -> Any:
        raise PermissionError("not today")

    @jobs.task(max_attempts=1, fail_on=PermissionError)
    async def work() -> None:
        calls.append("handler")

    job = await work.enqueue()
    [record] = await drain(jobs)

    assert (record.id, record.state, record.reason) == (job.id, State.FAILED, Reason.UNRECOVERABLE)
    assert (record.errors[0].type, record.errors[0].message) == ("PermissionError", "not today")
    assert calls == []


async def test_a_middleware_may_raise_an_outcome(jobs: Errandry) -> None:
    @jobs.middleware
    async def office_hours(ctx: JobContext, call_next: CallNext) -> Any:
        if ctx.job.releases == 0 and not ctx.job.logs:
            ctx.log("closed")
            raise Snooze("1 hour")
        return await call_next(ctx)

    @jobs.task
    async def work() -> str:
        return "done"

    job = await work.enqueue()
    assert await drain(jobs) == []
    assert (await job.refresh()).record.attempts == 0
    await drain(jobs, until_idle=True)

    assert await job.result(30) == "done"


async def test_a_middleware_may_stop_the_handler_with_a_timeout(jobs: Errandry, calls: list[str]) -> None:
    @jobs.middleware
    async def patience(ctx: JobContext, call_next: CallNext) -> Any:
        async with asyncio.timeout(0.01):
            return await call_next(ctx)

    @jobs.task(max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("stopped")

    await work.enqueue()
    [record] = await drain(jobs)

    assert (record.state, record.errors[0].type) == (State.FAILED, "TimeoutError")
    assert calls == ["stopped"]


async def test_middleware_applies_to_its_own_app_only(jobs: Errandry) -> None:
    @jobs.middleware
    async def shout(ctx: JobContext, call_next: CallNext) -> Any:
        return str(await call_next(ctx)).upper()

    async with Errandry("memory:") as other:

        @other.task
        async def work() -> str:
            return "quiet"

        job = await work.enqueue()
        await drain(other, strict=True)

        assert await job.result(30) == "quiet"
