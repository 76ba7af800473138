"""The line that the worker logs at the end of each attempt."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from errandry import Backoff, Cancel, Errandry, Fail, JobContext, Retry, Snooze, State, Worker, WorkerOptions
from errandry.core.command import Beat, Claim, Insert
from errandry.core.job import NewJob
from errandry.core.retry import Curve
from errandry.testing import FakeClock
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import run_burst, running_worker, wait_for_state
from tests.worker.gate import NO_BACKOFF, Gate

HOURLY = Backoff(Curve.FIXED, 3600.0, jitter=0.0)
INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR


@pytest.fixture(autouse=True)
def _log_from_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "errandry.worker")


def ends(caplog: pytest.LogCaptureFixture, job_id: str) -> list[logging.LogRecord]:
    """The records about the ends of attempts of this job."""
    return [record for record in caplog.records if getattr(record, "job", None) == job_id]


def fields(record: logging.LogRecord, *names: str) -> tuple[Any, ...]:
    return tuple(vars(record).get(name) for name in names)


async def complete() -> str:
    return "done"


async def raise_error() -> None:
    raise ValueError("no luck")


async def return_an_object() -> Any:
    return object()


async def fail() -> None:
    raise Fail("no such customer")


async def fail_with_a_cause() -> None:
    try:
        await raise_error()
    except ValueError as error:
        raise Fail("no such customer") from error


async def retry() -> None:
    raise Retry("come back", after=3600)


async def snooze() -> None:
    raise Snooze("1 hour")


async def cancel() -> None:
    raise Cancel("not needed")


async def wait_for_signal(ctx: JobContext) -> None:
    await ctx.wait_for("paid")


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("handler", "options", "expected", "text"),
    [
        (complete, {}, (INFO, "completed", False), "completed after "),
        (raise_error, {"max_attempts": 1}, (ERROR, "failed", True), "failed for good after "),
        (raise_error, {"fail_on": ValueError}, (ERROR, "failed", True), "s: ValueError: no luck"),
        (raise_error, {"backoff": HOURLY}, (WARNING, "retrying", True), "(in 60 min): ValueError: no luck"),
        (fail, {}, (ERROR, "failed", False), "s: Fail: no such customer"),
        (fail_with_a_cause, {}, (ERROR, "failed", True), "s: Fail: no such customer"),
        (retry, {}, (WARNING, "retrying", False), "(in 60 min): Retry: come back"),
        (snooze, {}, (INFO, "snoozed", False), "(in 60 min)"),
        (cancel, {}, (INFO, "canceled", False), "s: not needed"),
        (wait_for_signal, {}, (INFO, "suspended", False), "s, waiting for the signal paid"),
        (
            return_an_object,
            {},
            (ERROR, "failed", False),
            "s: InvalidValue: result=an object of type ",
        ),
        (hang, {"timeout": 0.01, "max_attempts": 1}, (ERROR, "failed", False), "longer than 0.01 s"),
        (hang, {"timeout": 0.01, "backoff": HOURLY}, (WARNING, "retrying", False), "longer than 0.01 s"),
    ],
)
async def test_each_end_of_an_attempt_is_one_line(
    live: Errandry,
    caplog: pytest.LogCaptureFixture,
    handler: Callable[..., Any],
    options: dict[str, Any],
    expected: tuple[int, str, bool],
    text: str,
) -> None:
    """`expected`: the level, the outcome, and whether there is a traceback."""
    task: Any = live.task(name="work", **options)(handler)
    job = await task.enqueue()
    await run_burst(live)

    [record] = ends(caplog, job.id)
    message = record.getMessage()
    attempts = options.get("max_attempts", 5)
    assert message.startswith(f"job {job.id} (work): attempt 1 of {attempts} ")
    assert text in message
    assert (record.levelno, *fields(record, "outcome"), bool(record.exc_text)) == expected
    assert fields(record, "task", "queue", "attempt") == ("work", "default", 1)
    assert 0 <= vars(record)["duration"] < 60


async def test_a_retry_names_its_time_and_the_last_attempt_its_cause(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    @live.task(max_attempts=2, backoff=NO_BACKOFF)
    async def work() -> None:
        await raise_error()

    job = await work.enqueue()
    await run_burst(live)

    first, last = ends(caplog, job.id)
    assert "attempt 1 of 2 failed after " in first.getMessage()
    assert ", retrying at once: ValueError: no luck" in first.getMessage()
    assert fields(first, "outcome", "reason", "error_type", "error") == (
        "retrying",
        "error",
        "ValueError",
        "no luck",
    )
    assert "T" in vars(first)["retry_at"]
    assert "attempt 2 of 2 failed for good after " in last.getMessage()
    assert fields(last, "outcome", "retry_at") == ("failed", None)
    for record in (first, last):
        assert record.exc_text is not None
        assert record.exc_text.startswith("Traceback (most recent call last):\n")
        assert record.exc_text.endswith("\nValueError: no luck")


@pytest.mark.parametrize("on_invalid", ["fail", "discard"])
async def test_invalid_arguments_are_the_cause_of_a_failure_or_a_removal(
    live: Errandry, caplog: pytest.LogCaptureFixture, on_invalid: Any
) -> None:
    @live.task(on_invalid=on_invalid)
    async def work(number: int) -> None: ...

    await live.engine.submit(Insert((NewJob(id="odd", task="work", payload='{"number":"x"}'),)))
    await run_burst(live)

    [record] = ends(caplog, "odd")
    assert "argument number='x': must be int, not str" in record.getMessage()
    expected = {"fail": (ERROR, "failed", "invalid_payload"), "discard": (WARNING, "discarded", None)}
    assert (record.levelno, *fields(record, "outcome", "reason")) == expected[on_invalid]


@pytest.mark.parametrize("on_unknown", ["release", "fail"])
async def test_a_job_of_an_unknown_task_leaves_a_line(
    live: Errandry, caplog: pytest.LogCaptureFixture, on_unknown: Any
) -> None:
    job = await live.enqueue("nowhere")
    await run_burst(live, on_unknown=on_unknown)

    [record] = ends(caplog, job.id)
    assert fields(record, "outcome", "reason") == (
        ("failed", "no_handler") if on_unknown == "fail" else ("released", "no_handler")
    )
    assert record.levelno == (ERROR if on_unknown == "fail" else INFO)


async def test_a_job_that_is_canceled_while_it_runs_leaves_a_line(
    live: Errandry, caplog: pytest.LogCaptureFixture, gate: Gate
) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    job = await work.enqueue()
    async with running_worker(live):
        await gate.begun.wait()
        await job.cancel()
        await wait_for_state(live, job.id, State.CANCELED)

    [record] = ends(caplog, job.id)
    assert (record.levelno, *fields(record, "outcome")) == (INFO, "canceled")


async def test_user_text_can_neither_forge_lines_nor_flood_the_log(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    @live.task(max_attempts=1)
    async def work() -> None:
        raise ValueError("\x1b[2J\r\nERROR forged\u202e" + "x" * 1_000_000 + "\x07")

    job = await work.enqueue()
    await run_burst(live)

    [record] = ends(caplog, job.id)
    message, error, trace = record.getMessage(), vars(record)["error"], record.exc_text or ""
    assert ": ValueError: \\x1b[2J\\r\\nERROR forged\\u202exxx" in message
    assert message.isprintable()
    assert error.isprintable()
    assert "characters left out" in message
    assert len(message) < 2_000
    assert trace.replace("\n", "").isprintable()
    assert len(trace) < 20_000


async def test_a_handler_that_returns_after_a_second_stop_causes_no_error(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    begun, opened = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @live.task
    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        opened.wait(30)

    job = await work.enqueue()
    worker = Worker(live, WorkerOptions(grace=30.0))
    running = asyncio.create_task(worker.run())
    await begun.wait()
    worker.stop()
    worker.stop()
    await running
    await live.engine.stop()
    pending = worker._executor.pending
    opened.set()
    await asyncio.wait(pending)

    assert [record.getMessage() for record in caplog.records if record.levelno >= ERROR] == []
    [record] = ends(caplog, job.id)
    assert (record.levelno, *fields(record, "outcome")) == (INFO, "released")
    assert record.getMessage().endswith(" s, the worker stops")


async def test_an_attempt_that_lost_its_lease_leaves_a_warning(
    live: Errandry, caplog: pytest.LogCaptureFixture, gate: Gate
) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    job = await work.enqueue()
    async with running_worker(live):
        await gate.begun.wait()
        await live.remove(job.id, force=True)
        gate.opened.set()
        async with asyncio.timeout(30):
            while not ends(caplog, job.id):  # noqa: ASYNC110 - a log has no event to wait for
                await asyncio.sleep(0.01)

    [record] = ends(caplog, job.id)
    assert (record.levelno, *fields(record, "outcome")) == (WARNING, "lost")
    assert "its outcome is discarded: " in record.getMessage()


@pytest.mark.parametrize("by", ["upkeep", "claim"])
async def test_a_job_that_is_rescued_from_a_dead_worker_leaves_a_warning(
    jobs: Errandry, clock: FakeClock, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    @jobs.task
    async def work() -> str:
        return "done"

    again, spent = await work.enqueue(), await work.using(max_attempts=1).enqueue()
    await jobs.engine.submit(Claim(worker="gone", nonce="n", limit=2, start=True, lease=30.0))
    clock.advance(31)
    await run_burst(jobs, upkeep=by == "upkeep")

    rescued, completed = ends(caplog, again.id)
    [failed] = ends(caplog, spent.id)
    why = "was lost, worker gone has died or stopped renewing its lease: the job"
    assert rescued.getMessage() == f"job {again.id} (work): attempt 1 of 5 {why} is waiting again"
    assert failed.getMessage() == f"job {spent.id} (work): attempt 1 of 1 {why} has failed for good"
    assert [(record.levelno, *fields(record, "outcome")) for record in (rescued, failed, completed)] == [
        (WARNING, "rescued"),
        (ERROR, "failed"),
        (INFO, "completed"),
    ]


async def test_a_job_whose_last_crash_becomes_final_leaves_an_error(
    jobs: Errandry, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(max_crashes=1)
    async def work() -> None: ...

    job = await work.enqueue()
    await jobs.engine.submit(Beat(worker="gone"))
    await jobs.engine.submit(Claim(worker="gone", nonce="n", start=True))
    clock.advance(31)
    await run_burst(jobs)
    clock.advance(31)
    await run_burst(jobs)

    lost, failed = ends(caplog, job.id)
    why = "attempt 1 of 5 was lost, worker gone has died or stopped renewing its lease"
    assert f"{why}: the job fails unless the worker shows soon that it lives" in lost.getMessage()
    assert f"{why}: the job has failed for good" in failed.getMessage()
    assert (lost.levelno, failed.levelno) == (WARNING, ERROR)


async def test_completed_attempts_are_quiet_above_info(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "errandry.worker")
    done = await live.task(complete).enqueue()
    failed = await live.task(max_attempts=1)(raise_error).enqueue()
    await run_burst(live)

    assert ends(caplog, done.id) == []
    assert [record.levelno for record in ends(caplog, failed.id)] == [ERROR]


async def test_the_lines_do_not_go_to_the_log_of_the_job(live: Errandry) -> None:
    job = await live.task(max_attempts=1)(raise_error).enqueue()
    await run_burst(live)

    assert (await live.client.record(job.id)).logs == ()


async def test_a_filter_that_raises_keeps_no_job_open(live: Errandry) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        if hasattr(record, "outcome"):
            raise RuntimeError("no such lines")
        return True

    job = await live.task(complete).enqueue()
    logger = logging.getLogger("errandry.worker")
    logger.addFilter(refuse)
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            await run_burst(live)  # ends when no job is open
    finally:
        logger.removeFilter(refuse)

    assert (await job.refresh()).state is State.COMPLETED
