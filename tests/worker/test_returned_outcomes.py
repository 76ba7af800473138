"""A handler may return an outcome as well as raise it, and cannot swallow a suspension by accident."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

import pytest

from errandry import Cancel, Errandry, Fail, JobContext, Retry, Snooze, State
from errandry.api.app import CallNext
from errandry.api.outcome import HandlerOutcome, SuspendForSignal, SuspendForSleep, unwrap_group
from errandry.core.state import Reason
from tests.run_worker import run_burst, running_worker, wait_for_state
from tests.worker import child_tasks

OUTCOMES: dict[str, tuple[Callable[[], object], State, str]] = {
    "Retry()": (lambda: Retry("busy", after="1 hour"), State.SCHEDULED, "busy"),
    "Retry": (lambda: Retry, State.SCHEDULED, "the handler asked for another try"),
    "Snooze()": (lambda: Snooze("1 hour"), State.SCHEDULED, ""),
    "Fail()": (lambda: Fail("no such customer"), State.FAILED, "no such customer"),
    "Fail": (lambda: Fail, State.FAILED, "the handler gave up"),
    "Cancel()": (lambda: Cancel("not needed"), State.CANCELED, "not needed"),
    "Retry(error)": (lambda: Retry(ValueError("busy"), after="1 hour"), State.SCHEDULED, "busy"),
    "Fail(number)": (lambda: Fail(404), State.FAILED, "404"),
    "Fail(error)": (lambda: Fail(KeyError("name")), State.FAILED, "'name'"),
    "Fail(error without text)": (lambda: Fail(ValueError()), State.FAILED, "ValueError"),
    "Cancel(error)": (lambda: Cancel(ValueError("obsolete")), State.CANCELED, "obsolete"),
    "Cancel": (lambda: Cancel, State.CANCELED, "canceled by its handler"),
}


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("way", ["returned", "raised", "in a thread", "through middleware"])
async def test_an_outcome_has_the_same_effect_raised_or_returned(live: Errandry, name: str, way: str) -> None:
    make, state, message = OUTCOMES[name]

    if way == "through middleware":

        @live.middleware
        async def pass_on(ctx: JobContext, call_next: CallNext) -> Any:
            return await call_next(ctx)

    async def async_handler() -> object:
        outcome: Any = make()
        if way == "raised":
            raise outcome
        return outcome

    def plain_handler() -> object:
        return make()

    work = live.task(name="work", backoff="1 hour")(plain_handler if way == "in a thread" else async_handler)
    job = await work.enqueue()

    await run_burst(live)

    record = await live.client.record(job.id)
    assert record.state == state
    assert (record.errors[-1].message if record.errors else "") == message


async def test_an_outcome_class_that_needs_arguments_fails_like_the_raise(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work() -> object:
        return Snooze

    job = await work.enqueue()

    await run_burst(live)

    record = await live.client.record(job.id)
    assert (record.state, record.errors[-1].type) == (State.FAILED, "TypeError")
    assert "after" in record.errors[-1].message


async def test_a_batch_may_return_one_outcome_for_all_or_a_class_for_one(live: Errandry) -> None:
    @live.task(batch=5)
    async def each(items: list[int]) -> list[int | type[Cancel]]:
        return [Cancel if item < 0 else item for item in items]

    @live.task(batch=5)
    async def whole(items: list[int]) -> Any:
        return Fail("the whole batch")

    jobs = await live.enqueue_many([each.new(1), each.new(-1), whole.new(1), whole.new(2)])

    await run_burst(live)

    assert [(await live.client.record(job.id)).state for job in jobs] == [
        "completed",
        "canceled",
        "failed",
        "failed",
    ]


async def test_a_batch_that_suspends_one_of_its_jobs_logs_no_warning(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    @live.task(batch=5)
    async def each(ctx: JobContext, items: list[int]) -> list[Any]:
        try:
            ctx.jobs[0].sleep("1 hour")
        except SuspendForSleep as suspension:
            return [suspension for _ in items]
        return items

    job = await each.enqueue(1)
    await run_burst(live)

    assert (await job.refresh()).state is State.SCHEDULED
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("kind", ["union", "class", "none"])
async def test_outcome_types_in_a_return_annotation_do_not_change_results(live: Errandry, kind: str) -> None:
    async def union() -> timedelta | Snooze | None:
        return timedelta(hours=1)

    async def a_class() -> timedelta | type[Cancel] | Retry:
        return timedelta(hours=1)

    async def only_outcomes() -> Snooze | Retry | None:
        return None

    handlers: dict[str, Any] = {"union": union, "class": a_class, "none": only_outcomes}
    job = await live.task(name="work")(handlers[kind]).enqueue()

    await run_burst(live)

    assert await job.result(30) == (None if kind == "none" else timedelta(hours=1))


RESULT_TYPES: dict[str, Any] = {
    "a class of several": timedelta | type[Cancel | Snooze],
    "annotated union": Annotated[timedelta | Snooze, "with a note"],
    "annotated outcome": timedelta | Annotated[Snooze, "later"],
    "annotated class": timedelta | Annotated[type[Cancel], "never mind"],
}


@pytest.mark.parametrize("kind", RESULT_TYPES)
async def test_outcomes_in_any_part_of_an_annotation_do_not_change_results(live: Errandry, kind: str) -> None:
    async def work() -> Any:
        return timedelta(hours=1)

    work.__annotations__["return"] = RESULT_TYPES[kind]
    job = await live.task(work).enqueue()

    await run_burst(live)

    assert await job.result(30) == timedelta(hours=1)


async def test_a_batch_may_be_declared_to_return_a_tuple_of_results_and_outcomes(live: Errandry) -> None:
    @live.task(batch=5)
    async def each(items: list[int]) -> tuple[timedelta | Snooze, ...]:
        return tuple(timedelta(hours=item) for item in items)

    job = await each.enqueue(1)

    await run_burst(live)

    assert await job.result(30) == timedelta(hours=1)


@pytest.mark.parametrize("way", ["sleep", "wait_for", "spawn"])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_broad_except_does_not_swallow_a_suspension(live: Errandry, way: str, kind: str) -> None:
    @live.task
    async def child() -> str:
        return "child"

    def suspend(ctx: JobContext) -> str:
        if way == "sleep":
            ctx.sleep(0.01)
            return "slept"
        if way == "wait_for":
            return str(ctx.sync.wait_for("go"))
        if not ctx.children():
            ctx.spawn(child.new())
        return str(ctx.children()[0].result)

    def handler(ctx: JobContext) -> str:
        try:
            return suspend(ctx)
        except Exception:
            return "swallowed"

    async def async_handler(ctx: JobContext) -> str:
        with suppress(Exception):
            return suspend(ctx)
        return "swallowed"

    work: Any = live.task(name="work")(async_handler if kind == "async" else handler)
    job = await work.enqueue()
    await live.signal(job.id, "go", "signaled")

    async with running_worker(live):
        result = await job.result(30)

    assert result == {"sleep": "slept", "wait_for": "signaled", "spawn": "child"}[way]
    assert job.record.errors == ()


async def test_a_suspension_inside_a_task_group_suspends_the_job(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work(ctx: JobContext) -> str:
        async with asyncio.TaskGroup() as group:
            approval = group.create_task(ctx.wait_for("approval"))
            group.create_task(asyncio.sleep(0))
        return str(approval.result())

    job = await work.enqueue()
    async with running_worker(live):
        await wait_for_state(live, job.id, State.SCHEDULED)
        await job.signal("approval", "yes")

        assert await job.result(30) == "yes"


async def test_an_error_beside_a_suspension_in_a_task_group_fails_the_attempt(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work(ctx: JobContext) -> None:
        async def fail() -> None:
            raise ValueError("no luck")

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.wait_for("approval"))
            group.create_task(fail())

    job = await work.enqueue()

    await run_burst(live)

    record = await live.client.record(job.id)
    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert "no luck" in record.errors[-1].traceback


@pytest.mark.slow(reason="starts a child process")
@pytest.mark.parametrize("way", ["sleep", "return"])
async def test_a_handler_in_a_process_suspends_and_returns_outcomes(way: str) -> None:
    async with child_tasks.jobs as jobs:
        job = await child_tasks.suspends_or_returns.enqueue(way=way)
        async with running_worker(jobs):
            await wait_for_state(jobs, job.id, State.COMPLETED, State.CANCELED)

        record = await jobs.client.record(job.id)
        assert record.state == (State.COMPLETED if way == "sleep" else State.CANCELED)
        assert record.attempts == 1


def test_a_group_of_outcomes_is_the_first_of_them() -> None:
    sleep, signal = SuspendForSleep(1.0, "a"), SuspendForSignal("b", 1.0)
    mixed = BaseExceptionGroup("", [BaseExceptionGroup("", [sleep]), ValueError()])

    assert unwrap_group(BaseExceptionGroup("", [BaseExceptionGroup("", [sleep]), signal])) is sleep
    assert unwrap_group(mixed) is mixed
    assert unwrap_group(sleep) is sleep
    assert not isinstance(sleep, Exception)
    assert issubclass(HandlerOutcome, Exception)


async def test_progress_counts_or_is_a_share_and_never_fails_the_attempt(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work(ctx: JobContext) -> str:
        ctx.progress(0.25)
        ctx.progress(50, "half", total=100)
        ctx.progress(50)
        ctx.progress(1, total=0)
        ctx.progress(float("nan"))
        ctx.progress("much")  # type: ignore[arg-type]
        return "done"

    job = await work.enqueue()
    async with running_worker(live):
        assert await job.result(30) == "done"

    progress = job.record.progress
    assert progress is not None
    assert (progress.share, progress.text) == (0.5, "half")
    lines = [line.text for line in job.record.logs]
    assert len(lines) == 4
    assert lines[0] == (
        "progress(50) is not written: "
        "give a share from 0 to 1, or a count with its total: progress(50, total=100)"
    )


async def test_a_spawn_with_an_unknown_policy_fails_the_job_and_names_the_policies(live: Errandry) -> None:
    @live.task
    async def child() -> None: ...

    @live.task
    async def work(ctx: JobContext) -> None:
        ctx.spawn(child.new(), policy="zzz")  # type: ignore[arg-type]

    job = await work.enqueue()
    await run_burst(live)
    [error] = (await job.refresh()).errors

    assert (job.state, error.type) == (State.FAILED, "InvalidValue")
    assert error.message == "policy='zzz': must be one of fail, ignore, remove"
