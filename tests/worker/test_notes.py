"""Progress and log lines that handlers write to their jobs."""

import logging
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from errandry import Errandry, JobContext, State
from errandry.core.event import EventKind
from errandry.core.job import LOGS_MAX, Progress
from tests.run_worker import event_kinds, run_burst, running_worker, wait_for_job
from tests.worker.gate import Gate


async def test_notes_after_the_handler_has_returned_are_dropped(live: Errandry) -> None:
    contexts: list[JobContext] = []

    @live.task
    async def work(ctx: JobContext) -> None:
        contexts.append(ctx)
        ctx.log("in time")

    job = await work.enqueue()
    await run_burst(live)
    [ctx] = contexts
    ctx.log("too late")
    ctx.progress(0.5)

    with pytest.raises(TypeError, match="can only be stored while a worker, or drain, runs the handler"):
        await ctx.step("late", str)
    record = await live.client.record(job.id)
    assert ([line.text for line in record.logs], record.progress) == (["in time"], None)


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
    async with running_worker(live):
        await gate.begun.wait()
        logger.warning("not of any job")
        record = await wait_for_job(live, job.id, lambda record: record.progress is not None)
        assert (record.state, record.progress) == (State.RUNNING, Progress(0.5, "half"))
        gate.opened.set()
        record = (await job.wait(30)).record

    assert [(line.level, line.text) for line in record.logs] == [
        ("warning", "weighing 3 parcels"),
        ("debug", "weighed"),
    ]
    assert record.progress == Progress(1, "done")
    assert {EventKind.PROGRESS, EventKind.LOG} <= set(await event_kinds(live, job.id))


async def test_logging_in_a_thread_goes_to_its_job(live: Errandry) -> None:
    @live.task
    def work(n: int) -> None:
        logging.getLogger("shop").error("number %d", n)

    jobs = [await work.enqueue(n) for n in range(5)]
    await run_burst(live)

    for n, job in enumerate(jobs):
        assert [line.text for line in (await job.refresh()).record.logs] == [f"number {n}"]


async def test_log_lines_are_capped(live: Errandry) -> None:
    @live.task
    async def chatty(ctx: JobContext) -> None:
        for number in range(3 * LOGS_MAX):
            ctx.log(f"line {number}")
        ctx.log("x" * 10_000)
        ctx.log("nul \0 and surrogate \ud800")

    job = await chatty.enqueue()
    await run_burst(live)
    logs = (await job.refresh()).record.logs

    assert len(logs) == LOGS_MAX
    assert logs[0].text == f"line {2 * LOGS_MAX + 2}"
    assert len(logs[-2].text) <= 2_000
    assert logs[-1].text == "nul \ufffd and surrogate \ufffd"


@pytest.mark.parametrize(
    ("level", "name"),
    [(logging.WARNING, "warning"), (35, "level 35"), ("notice", "notice"), ("WARNING", "WARNING")],
)
async def test_a_level_is_a_name_or_a_number_of_logging(live: Errandry, level: str | int, name: str) -> None:
    @live.task
    async def work(ctx: JobContext) -> None:
        ctx.log("on it", level)

    job = await work.enqueue()
    await run_burst(live)

    assert [(line.level, line.text) for line in (await job.refresh()).logs] == [(name, "on it")]


@pytest.mark.parametrize("level", [None, "", 30.5, True, -1, 10**5000, b"info", "x" * 300], ids=range(8))
async def test_a_line_with_a_bad_level_is_written_as_info_with_a_warning(live: Errandry, level: Any) -> None:
    @live.task
    async def work(ctx: JobContext) -> str:
        ctx.log("on it", level)
        return "done"

    job = await work.enqueue()
    await run_burst(live)

    assert await job.result(timeout=30) == "done"
    warning, line = (await job.refresh()).logs
    assert (line.level, line.text) == ("info", "on it")
    assert warning.level == "warning"
    assert 'must be a name, such as "warning", or a number of logging' in warning.text


class Unreadable:
    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text")


async def test_a_text_that_cannot_be_read_does_not_fail_the_attempt(live: Errandry) -> None:
    @live.task
    async def work(ctx: JobContext) -> None:
        ctx.log(Unreadable())
        ctx.progress(0.5, Unreadable())  # type: ignore[arg-type]

    job = await work.enqueue()
    await run_burst(live)
    record = (await job.refresh()).record

    assert [line.text for line in record.logs] == ["an object of Unreadable, whose str raises ValueError"]
    assert record.progress == Progress(0.5, "an object of Unreadable, whose str raises ValueError")


class Share(float): ...


class Count(int): ...


@pytest.mark.parametrize(
    ("done", "total"),
    [
        (Share(0.25), None),
        (Count(1), Count(4)),
        (Decimal("0.25"), None),
        (Decimal(1), 4),
        (Fraction(1, 4), None),
        (10**5000, 4 * 10**5000),
    ],
    ids=range(6),
)
async def test_progress_is_any_kind_of_number(live: Errandry, done: Any, total: Any) -> None:
    @live.task
    async def work(ctx: JobContext) -> None:
        ctx.progress(done, total=total)

    job = await work.enqueue()
    await run_burst(live)

    assert (await job.refresh()).progress == Progress(0.25)


@pytest.mark.parametrize(
    ("done", "total"),
    [(10**5000, None), (Decimal(0), Decimal(0)), (Unreadable(), None), (1, Unreadable()), ("0.5", None)],
    ids=range(5),
)
async def test_a_value_that_is_no_progress_is_a_warning_only(live: Errandry, done: Any, total: Any) -> None:
    @live.task
    async def work(ctx: JobContext) -> str:
        ctx.progress(done, total=total)
        return "done"

    job = await work.enqueue()
    await run_burst(live)

    assert await job.result(timeout=30) == "done"
    [line] = (await job.refresh()).logs
    assert "is not written: give a share from 0 to 1, or a count with its total" in line.text
