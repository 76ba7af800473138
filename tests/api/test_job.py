"""`Job`: the attributes of a job as programs see them, and `as_dict`."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from errandry import Errandry, Fail, Job, JobContext, State
from errandry.codec.encryption import Encrypted, new_key
from errandry.codec.json_codec import PlainCodec
from errandry.core.state import Reason
from errandry.errors import InvalidValue
from errandry.testing import FakeClock, drain, in_memory


async def test_a_waiting_job_has_its_arguments_options_and_times(jobs: Errandry) -> None:
    @jobs.task(queue="mail", timeout="30s")
    async def send(to: str, at: datetime) -> None: ...

    run_at = datetime(2031, 1, 31, 8, tzinfo=UTC)
    options = {"run_at": run_at, "tags": ["x"], "group": "acme", "priority": -1, "metadata": {"tenant": 7}}
    job = await jobs.get((await send.using(**options).enqueue("ada", run_at)).id)  # type: ignore[arg-type]

    assert (job.task, job.queue, job.group, job.tags, job.priority) == ("send", "mail", "acme", ("x",), -1)
    assert job.arguments == {"to": "ada", "at": "2031-01-31T08:00:00Z"}
    assert job.metadata == {"tenant": 7}
    assert (job.state, job.finished, job.timeout) == (State.SCHEDULED, False, 30.0)
    assert (job.run_at, job.started_at, job.finished_at) == (run_at, None, None)
    assert job.created_at == datetime.fromtimestamp(jobs.clock.time(), UTC)
    assert (job.stored_result, job.errors, job.unique_key) == (None, (), None)


async def test_a_finished_job_has_its_result_errors_and_logs(jobs: Errandry) -> None:
    clock = FakeClock()
    with in_memory(jobs, clock):

        @jobs.task(max_attempts=2, backoff="1s")
        async def work(ctx: JobContext) -> timedelta:
            ctx.log("begun", "debug")
            if ctx.attempt == 1:
                raise ValueError("not yet")
            return timedelta(seconds=5)

        begun = datetime.fromtimestamp(clock.time(), UTC)
        await work.enqueue()
        [job] = await drain(jobs, until_idle=True)

        [error] = job.errors
        assert (error.attempt, error.kind, error.type, error.message) == (
            1,
            Reason.ERROR,
            "ValueError",
            "not yet",
        )
        assert (error.started_at, error.ended_at) == (begun, begun)
        assert [(line.at >= begun, line.text, line.level) for line in job.logs] == [
            (True, "begun", "debug")
        ] * 2
        assert job.stored_result == timedelta(seconds=5)
        assert (job.attempts, job.finished) == (2, True)
        assert job.finished_at is not None
        assert job.finished_at >= begun + timedelta(seconds=1)


async def test_a_job_as_a_dict_is_ready_for_json(jobs: Errandry) -> None:
    @jobs.task(max_attempts=1)
    async def work(n: int) -> timedelta:
        if n:
            raise Fail("no")
        return timedelta(seconds=5)

    await work.enqueue(0)
    await work.enqueue(1)
    done, failed = [job.as_dict() for job in await drain(jobs)]

    assert json.loads(json.dumps(done)) == done
    assert (done["state"], done["arguments"], done["result"]) == ("completed", {"n": 0}, "PT5S")
    assert datetime.fromisoformat(done["finished_at"]) >= datetime.fromisoformat(done["created_at"])
    assert (failed["result"], failed["errors"][0]["message"]) == (None, "no")
    assert "record" not in done


async def test_lists_held_jobs_and_handlers_see_the_same_kind_of_job(jobs: Errandry) -> None:
    seen: list[tuple[dict[str, object], State, list[str]]] = []

    @jobs.task
    async def work(ctx: JobContext, n: int) -> None:
        held = [job.id for job in await jobs.held()]
        seen.append((ctx.job.arguments, ctx.job.state, held))
        assert ctx.job is ctx.job

    job = await work.enqueue(3)
    assert [found.arguments for found in (await jobs.list("state:waiting")).jobs] == [{"n": 3}]
    await drain(jobs, strict=True)

    assert seen == [({"n": 3}, State.RUNNING, [job.id])]


async def test_arguments_and_results_are_unsealed() -> None:
    async with Errandry("memory:", codec=Encrypted({"k": new_key()})) as jobs:

        @jobs.task
        async def work(card: str) -> str:
            return card[::-1]

        job = await work.enqueue("4000")
        await drain(jobs)
        await job.refresh()

        assert "4000" not in job.record.payload
        assert (job.arguments, job.stored_result, job.as_dict()["result"]) == (
            {"card": "4000"},
            "0004",
            "0004",
        )


async def test_a_job_that_is_read_again_has_its_arguments_unsealed_by_the_codec_of_the_app() -> None:
    """A handler in a process gets its job unsealed; what it reads from the store is sealed."""
    async with Errandry("memory:", codec=Encrypted({"k": new_key()})) as jobs:
        enqueued = await jobs.enqueue("send", {"to": "ada"})
        record = replace(await jobs.client.record(enqueued.id), payload='{"to":"ada"}')
        await jobs.resolve(enqueued.id)
        for read in (Job.refresh, partial(Job.wait, timeout=30)):
            job = Job[Any](jobs, record, codec=PlainCodec())
            before = job.arguments
            await read(job)

            assert job.arguments == before == {"to": "ada"}


@pytest.mark.parametrize("timeout", ["20ms", timedelta(milliseconds=20), 0.02])
async def test_a_wait_takes_a_timeout_in_words_too(jobs: Errandry, timeout: Any) -> None:
    job = await jobs.enqueue("send")

    for wait in (job.wait, job.result, lambda limit: asyncio.to_thread(job.sync.wait, limit)):
        with pytest.raises(TimeoutError, match=r"has not finished within 0\.02 s"):
            await wait(timeout)


@pytest.mark.parametrize("timeout", ["soon", b"5", -1, float("nan"), 1e300, timedelta.max, True])
async def test_a_bad_timeout_of_a_wait_is_refused(jobs: Errandry, timeout: Any) -> None:
    job = await jobs.enqueue("send")
    ctx = JobContext(job.record, lambda record: job, lambda progress, logs: None)

    for wait in (job.wait, job.result, lambda limit: asyncio.to_thread(job.sync.result, limit)):
        with pytest.raises(InvalidValue, match="timeout="):
            await wait(timeout)
    with pytest.raises(InvalidValue, match="timeout="):
        ctx.sleep_or_stop(timeout)


@pytest.mark.parametrize("timeout", ["1ms", timedelta(milliseconds=1), 0.001])
async def test_a_handler_sleeps_for_a_time_in_words(jobs: Errandry, timeout: Any) -> None:
    job = await jobs.enqueue("send")

    assert not JobContext(job.record, lambda record: job, lambda progress, logs: None).sleep_or_stop(timeout)
