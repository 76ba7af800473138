"""How the end of a handler becomes the outcome of its job: results, errors, retries, refused arguments."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from errandry import Backoff, Cancel, Errandry, Fail, JobContext, Retry, Snooze, State, flow
from errandry.core.answer import Answer
from errandry.core.command import Command, Settle
from errandry.core.event import EventKind
from errandry.core.job import NewJob
from errandry.core.retry import Curve
from errandry.core.state import Reason
from errandry.errors import JobCanceled, JobFailed, ReplyLost, StoreUnavailable
from errandry.worker import executor
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import event_kinds, run_burst, running_worker, wait_for_state
from tests.worker.gate import NO_BACKOFF
from tests.worker.recording_store import RecordingStore


async def test_an_error_is_retried_after_the_backoff_until_attempts_are_spent(live: Errandry) -> None:
    @live.task(max_attempts=3, backoff=Backoff(Curve.LINEAR, 0.01, jitter=0.0))
    async def work() -> None:
        raise ValueError("no luck")

    job = await work.enqueue()
    async with running_worker(live):
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
    assert Path(__file__).name in errors[0].traceback
    assert (await event_kinds(live, job.id)).count(EventKind.RETRYING) == 2


async def test_retry_with_a_time_waits_for_that_time(live: Errandry) -> None:
    @live.task(backoff="1 hour", max_attempts=2)
    async def work(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            raise Retry("busy", after=0.01)
        return "done"

    job = await work.enqueue()
    async with running_worker(live):
        assert await job.result(30) == "done"

    assert [(error.type, error.message) for error in job.record.errors] == [("Retry", "busy")]


async def test_retry_without_a_time_waits_for_the_backoff_and_spends_the_attempt(live: Errandry) -> None:
    @live.task(backoff="1 hour", max_attempts=2)
    async def work() -> None:
        raise Retry("busy")

    job = await work.enqueue()
    await run_burst(live)
    record = await live.client.record(job.id)

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
    async with running_worker(live):
        assert await job.result(30) == [1]

    assert job.record.errors == ()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_fail_and_cancel_are_final(live: Errandry, kind: str) -> None:
    async def later(end: str) -> None:
        raise Fail("wrong address") if end == "fail" else Cancel("not needed")

    def now(end: str) -> None:
        raise Fail("wrong address") if end == "fail" else Cancel("not needed")

    work = live.task(name="work")(later if kind == "async" else now)
    failed, canceled = await work.enqueue(end="fail"), await work.enqueue(end="cancel")
    await run_burst(live)

    with pytest.raises(JobFailed, match=r"\(unrecoverable\): Fail: wrong address"):
        await failed.result(30)
    with pytest.raises(JobCanceled):
        await canceled.result(30)
    assert (failed.record.attempts, canceled.record.attempts) == (1, 1)
    assert canceled.record.reason is Reason.CANCELED
    assert canceled.record.errors[-1].message == "not needed"


async def test_retry_on_and_fail_on_decide_by_the_class_of_the_error(live: Errandry) -> None:
    kinds: dict[str, type[Exception]] = {
        "listed": ConnectionError,
        "narrower": ConnectionResetError,
        "refused": ConnectionRefusedError,
        "other": ValueError,
    }

    @live.task(
        max_attempts=2, backoff=NO_BACKOFF, retry_on=ConnectionError, fail_on=(ConnectionRefusedError,)
    )
    async def work(kind: str) -> None:
        raise kinds[kind]

    jobs = {kind: await work.enqueue(kind) for kind in kinds}
    await run_burst(live)
    ends = {kind: (await job.wait(30)).record for kind, job in jobs.items()}

    assert {kind: (end.attempts, end.reason) for kind, end in ends.items()} == {
        "listed": (2, Reason.ERROR),
        "narrower": (2, Reason.ERROR),
        "refused": (1, Reason.UNRECOVERABLE),
        "other": (1, Reason.UNRECOVERABLE),
    }


async def test_a_registered_function_can_be_the_backoff(live: Errandry) -> None:
    attempts: list[int] = []

    @live.backoff
    def patient(attempt: int) -> float:
        attempts.append(attempt)
        return 0.001 * attempt

    @live.task(max_attempts=3, backoff="patient")
    async def work() -> None:
        raise ValueError

    job = await work.enqueue()
    async with running_worker(live):
        assert (await job.wait(30)).state is State.FAILED

    assert attempts[:2] == [1, 2]


@pytest.mark.parametrize("answer", [None, -1, "soon", ZeroDivisionError], ids=repr)
async def test_after_an_invalid_backoff_function_the_stored_curve_decides(
    live: Errandry, answer: Any
) -> None:
    @live.backoff
    def invalid(attempt: int) -> float:
        if isinstance(answer, type):
            raise answer
        return answer  # type: ignore[no-any-return]

    @live.task(max_attempts=2, backoff="invalid")
    async def work() -> None:
        raise ValueError("the original error")

    job = await work.enqueue()
    await run_burst(live)
    record = await live.client.record(job.id)

    assert (record.state, record.errors[0].message) == (State.SCHEDULED, "the original error")
    assert 0 < (record.run_at or 0.0) - record.updated_at < 2


async def test_an_error_while_a_call_is_prepared_is_an_error_of_the_attempt(
    live: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    @live.task
    async def part() -> None: ...

    @live.task(max_attempts=1)
    async def whole() -> None:
        raise AssertionError("it must not run")

    async def away(*_: object) -> NoReturn:
        raise StoreUnavailable("store", "away")

    monkeypatch.setattr(executor, "read_child_results", away)
    job = await live.enqueue_flow(flow(whole.new(), part.new()))
    async with running_worker(live):
        record = await wait_for_state(live, job.id, State.FAILED)
    assert [error.type for error in record.errors] == ["StoreUnavailable"]


@pytest.mark.parametrize("payload", ["{}", '{"to": 5}', "[]", "null"])
async def test_a_job_with_invalid_arguments_fails_and_is_not_retried(live: Errandry, payload: str) -> None:
    @live.task
    async def send(to: str) -> None: ...

    await live.client.insert([NewJob(id="old", task="send", payload=payload)])
    await run_burst(live)
    record = await live.client.record("old")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)
    assert record.errors[0].type == "InvalidArguments"


async def test_a_job_with_invalid_arguments_is_discarded_with_on_invalid_discard(live: Errandry) -> None:
    @live.task(on_invalid="discard")
    async def send(to: str) -> None: ...

    await live.client.insert([NewJob(id="old", task="send", payload="{}")])
    await run_burst(live)

    assert (await live.list()).jobs == ()
    assert await event_kinds(live, "old") == ["waiting", "claimed", "started", "completed", "removed"]


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
async def test_a_result_that_cannot_be_stored_fails_the_job_and_says_why(
    live: Errandry, value: Any, why: str
) -> None:
    @live.task
    async def work() -> Any:
        return value

    job = await work.enqueue()
    await run_burst(live)

    with pytest.raises(JobFailed, match=why):
        await job.result(30)
    assert (job.record.reason, job.record.attempts) == (Reason.UNRECOVERABLE, 1)


class CodecWithoutKey:
    """A codec that has lost its key."""

    def seal(self, text: str, document: object) -> str:
        return text

    def unseal(self, text: str, document: object) -> str:
        raise LookupError("no key 7")


async def test_a_payload_that_cannot_be_unsealed_is_an_error_of_the_attempt(live: Errandry) -> None:
    live.client.codec = CodecWithoutKey()

    @live.task(max_attempts=1)
    async def work() -> None: ...

    job = await work.enqueue()
    await run_burst(live)
    record = (await job.wait(30)).record

    assert record.state is State.FAILED
    assert "no key 7" in record.errors[0].message


class ErrorWithoutMessage(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


async def test_an_error_whose_message_cannot_be_read_is_still_recorded(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def work() -> None:
        raise ErrorWithoutMessage

    job = await work.enqueue()
    await run_burst(live)
    record = (await job.wait(30)).record

    assert (record.state, record.errors[0].type) == (State.FAILED, "ErrorWithoutMessage")


async def test_the_history_keeps_the_newest_errors_with_their_attempts(live: Errandry) -> None:
    @live.task(max_attempts=25, backoff=NO_BACKOFF)
    async def work(ctx: JobContext) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    job = await work.enqueue()
    await run_burst(live, id="history")
    errors = (await job.wait(30)).record.errors

    assert [error.message for error in errors] == [f"attempt {n}" for n in range(6, 26)]
    assert all((error.worker or "").startswith("history-") for error in errors)
    assert all((error.started or 0) <= error.ended for error in errors)


class ReplyLosingStore(RecordingStore):
    """Loses the reply to the first outcome, which is written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_replied, self._loses_reply = asyncio.Event(), True
        self._loop = asyncio.get_running_loop()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        for number, command in enumerate(commands):
            if isinstance(command, Settle):
                if self._loses_reply:
                    answers[number] = ReplyLost("memory", "the line went dead")
                else:
                    self._loop.call_soon_threadsafe(self.has_replied.set)
                self._loses_reply = False
        return answers


async def test_an_outcome_whose_reply_was_lost_is_not_reported_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ReplyLosingStore()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        async with running_worker(jobs, lease=3.0, renew_every=0.3):
            assert await (await work.enqueue()).result(WAIT_TIMEOUT) == "done"
            async with asyncio.timeout(WAIT_TIMEOUT):
                await store.has_replied.wait()

    assert "lost with its lease" not in caplog.text


class OddlyNamed(type):
    """The class of exception classes with an odd name; None is one that cannot be read."""

    def __getattribute__(cls, attribute: str) -> Any:
        if attribute not in ("__name__", "__qualname__"):
            return super().__getattribute__(attribute)
        if cls.shown_name is None:
            raise RuntimeError("it has no name")
        return cls.shown_name


@pytest.mark.parametrize("name", ["half \ud800 character", "\x1b[2J\0", 5, None], ids=ascii)
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_class_with_an_odd_name_fails_its_job_like_any_other(
    live: Errandry, name: Any, is_async: bool
) -> None:
    class Odd(ValueError, metaclass=OddlyNamed):
        shown_name = name

    async def fail_async() -> None:
        raise Odd("no luck")

    def fail() -> None:
        raise Odd("no luck")

    handler: Any = fail_async if is_async else fail
    job = await live.task(max_attempts=1, name="work")(handler).enqueue()
    await run_burst(live)
    [error] = (await live.client.record(job.id)).errors

    assert (error.kind, error.type, error.message) == (Reason.ERROR, "Odd", "no luck")
    assert "raise Odd" in error.traceback
