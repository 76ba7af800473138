"""Arguments, results and secrets of claimed jobs."""

from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, State, flow, result_of
from errandry.codec.json_codec import DocumentInfo
from errandry.core.state import Reason
from errandry.errors import InvalidValue, SealBroken, TooLarge
from errandry.store.contract import StoreLimits
from tests.api.claimer.claims import claim_one
from tests.machine_load import WAIT_TIMEOUT


async def test_the_results_of_children_fill_arguments(jobs: Errandry) -> None:
    @jobs.task
    async def half(n: int) -> int:
        return n // 2

    @jobs.task
    async def double(n: int, text: str) -> int:
        return 2 * n

    await jobs.enqueue_flow(flow(double.new(result_of(half.new(8)), "x")))
    async with jobs.claimer() as claimer:
        await (await claim_one(claimer)).complete(4)
        job = await claim_one(claimer)

        assert (job.task, job.arguments) == ("double", {"n": 4, "text": "x"})


async def test_older_arguments_of_a_declared_task_are_upgraded(memory_jobs: Errandry) -> None:
    await memory_jobs.enqueue("send", {"to": "ada"})

    @memory_jobs.task(version=2)
    async def send(to: str, subject: str) -> None: ...

    @send.upgrade(1)
    def add_subject(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "subject": "(none)"}

    async with memory_jobs.claimer() as claimer:
        job = await claim_one(claimer)

        assert job.arguments == {"to": "ada", "subject": "(none)"}


class Envelope:
    """A codec that puts each document into an array; it refuses those of the job `broken`."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        return f"[{text}]"

    def unseal(self, text: str, document: DocumentInfo) -> str:
        if document.job == "broken":
            raise SealBroken(document.job, document.field, "it was changed")
        return text[1:-1]


async def test_the_codec_seals_arguments_and_results() -> None:
    async with Errandry("memory:", codec=Envelope()) as jobs:
        enqueued = await jobs.enqueue("send", {"to": "ada"})
        async with jobs.claimer() as claimer:
            job = await claim_one(claimer)
            assert job.arguments == {"to": "ada"}
            await job.complete("sent")

        assert (await jobs.client.record(enqueued.id)).result == '["sent"]'


async def test_a_job_whose_arguments_cannot_be_trusted_fails() -> None:
    async with Errandry("memory:", codec=Envelope()) as jobs:
        await jobs.enqueue("send", {"to": "ada"}, id="broken")
        async with jobs.claimer() as claimer:
            with pytest.raises(SealBroken):
                async with await claim_one(claimer) as job:
                    await job.complete(job.arguments)
        record = await jobs.client.record("broken")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)


async def test_sealed_arguments_are_no_arguments_for_an_app_without_the_codec(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url, codec=Envelope()) as sealing, Errandry(url) as jobs:
        await sealing.enqueue("send", {"to": "ada"})
        async with jobs.claimer() as claimer:
            job = await claim_one(claimer)
            with pytest.raises(SealBroken, match="this app has no codec that unseals it"):
                _ = job.arguments


@pytest.mark.parametrize(
    ("result", "error"), [(object(), InvalidValue), (float("nan"), InvalidValue), ("x" * 200, TooLarge)]
)
async def test_a_result_that_cannot_be_stored_is_refused_and_fails_the_job_if_it_leaves_the_block(
    tmp_path: Path, result: object, error: type[Exception]
) -> None:
    """As in a worker: another attempt would have the same result."""
    async with Errandry("memory:", store_limits=StoreLimits(result=100)) as jobs:
        first, second = await jobs.enqueue("send"), await jobs.enqueue("send")
        async with jobs.claimer() as claimer:
            corrected, given_up = await claimer.claim(limit=2)
            async with corrected:
                with pytest.raises(error):
                    await corrected.complete(result)
                await corrected.complete("corrected")
            with pytest.raises(error):
                async with given_up:
                    await given_up.complete(result)

        assert await first.result(WAIT_TIMEOUT) == "corrected"
        record = await jobs.client.record(second.id)
        assert (record.state, record.reason) == (State.FAILED, Reason.UNRECOVERABLE)


@pytest.mark.parametrize("declared", [True, False])
async def test_redacted_arguments_are_replaced_in_all_texts(tmp_path: Path, declared: bool) -> None:
    """The job names them, so a program that does not declare the task redacts them too."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs, Errandry(url) as other:

        @jobs.task(redact="token")
        async def send(to: str, token: str) -> None: ...

        enqueued = await send.enqueue("ada", "hunter2")
        async with (jobs if declared else other).claimer() as claimer:
            job = await claim_one(claimer)
            await job.progress(0.1, "logging in with hunter2")
            await job.log("hunter2 was refused")
            await job.retry(RuntimeError("the token hunter2 is wrong"))
        record = await jobs.client.record(enqueued.id)

    assert record.progress is not None
    texts = [record.progress.text, record.logs[0].text, record.errors[0].message, record.errors[0].traceback]
    assert texts[:3] == ["logging in with •••", "••• was refused", "the token ••• is wrong"]
    assert "hunter2" not in texts[3]


async def test_arguments_that_the_program_has_changed_are_still_redacted(memory_jobs: Errandry) -> None:
    @memory_jobs.task(redact="token")
    async def send(to: str, token: str) -> None: ...

    async def run() -> None:
        async with await claim_one(claimer) as job:
            token = job.arguments.pop("token")
            raise RuntimeError(f"the token {token} is wrong")

    enqueued = await send.enqueue("ada", "hunter2")
    async with memory_jobs.claimer() as claimer:
        with pytest.raises(RuntimeError):
            await run()
    [error] = (await memory_jobs.client.record(enqueued.id)).errors

    assert error.message == "the token ••• is wrong"
    assert "hunter2" not in error.traceback
