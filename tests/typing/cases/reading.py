"""Results have the type that the handler declares."""

from datetime import datetime
from typing import Any, assert_type

from errandry import Errandry, Event, Fail, Job, JobContext, Retry, Snooze, State, SyncJob
from errandry.core.job import Progress
from tests.typing.cases.declaring import plain, threaded_with_context, without_anything

jobs = Errandry("memory:")


async def results() -> None:
    job = await plain.enqueue("ada")
    assert_type(await job.result(), str)
    assert_type(await job.result(timeout=30), str)
    assert_type(await job.wait(5), Job[str])
    assert_type(await (await threaded_with_context.enqueue("ada")).result(), list[str])
    assert_type(job.state, State)
    assert_type(job.sync.result(), str)
    assert_type(job.sync.wait(), SyncJob[str])
    assert_type(await jobs.get("id"), Job[Any])
    assert_type(job.sync.refresh(), SyncJob[str])
    assert_type(await (await without_anything.enqueue()).result(), None)
    int_(await job.result())  # E: Argument 1 to "int_" has incompatible type "str"; expected "int"
    await job.result("30s")
    await job.result(b"30s")  # E: Argument 1 to "result" of "Job" has incompatible type "bytes"
    async for event in jobs.events(after=None):
        assert_type(event, Event)
        assert_type(event.at, datetime)


def int_(value: int) -> None: ...
def job_of_object(job: Job[object]) -> None: ...
def job_of_int(job: Job[int]) -> None: ...


async def covariance() -> None:
    job_of_object(await plain.enqueue("ada"))
    job_of_int(await plain.enqueue("ada"))  # E: Argument 1 to "job_of_int" has incompatible type "Job[str]"


async def operating() -> None:
    await jobs.cancel("a", "b", force=True)
    await jobs.cancel(query="state:failed")
    await jobs.rerun("a", delay="5 minutes", reset_attempts=True)
    await jobs.edit("a", arguments={"to": "ada"}, priority=5, run_at="2026-01-31")
    await jobs.resolve("a", state="failed", message="no")
    await jobs.cancel(5)  # E: Argument 1 to "cancel" of "Operations" has
    await jobs.rerun("a", dely=5)  # E: Unexpected keyword argument "dely" for "rerun" of "Operations"
    await jobs.edit("a", arguments=["ada"])  # E: Argument "arguments" to "edit" of "Operations" has
    await jobs.edit("a", payload="{}")  # E: Unexpected keyword argument "payload" for "edit" of "Operations"
    await jobs.resolve("a", state="canceled")  # E: Argument "state" to "resolve" of "Operations" has


def handler(ctx: JobContext) -> None:
    assert_type(ctx.fence, int)
    assert_type(ctx.should_stop, bool)
    assert_type(ctx.job.progress, Progress | None)
    ctx.progress("half")  # E: Argument 1 to "progress" of "JobContext" has incompatible type "str"
    ctx.job.state = State.FAILED  # E: Property "state" defined in "JobView" is read-only
    Retry("busy", after=[])  # E: Argument "after" to "Retry" has incompatible type


def outcomes() -> None:
    Snooze("5 minutes")
    Snooze()  # E: Missing positional argument "after" in call to "Snooze"
    Fail(ValueError("no address"))
