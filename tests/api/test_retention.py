"""Retention of finished jobs by time and number, and the archive function that gets them first."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from errandry import Errandry, Job, Worker, WorkerOptions
from errandry.api.task import Task
from errandry.core.answer import Moved
from errandry.core.command import Upkeep
from errandry.core.job import Keep
from errandry.errors import InvalidValue
from errandry.testing import FakeClock, drain


@pytest.fixture
def send(jobs: Errandry) -> Task[[int], int]:
    @jobs.task(keep={"completed": "1 hour", "last": 3})
    async def send(n: int) -> int:
        return n

    return send


@pytest.mark.parametrize(
    ("option", "keep"),
    [
        ({"last": 5}, Keep(last_completed=5, last_failed=5, last_canceled=5)),
        ({"failed": "1h", "last": {"completed": 5}}, Keep(failed=3_600.0, last_completed=5)),
        (Keep(last_failed=9), Keep(last_failed=9)),
    ],
)
async def test_keep_takes_times_and_numbers(jobs: Errandry, option: Any, keep: Keep) -> None:
    @jobs.task(keep=option)
    async def task() -> None: ...

    assert (await task.enqueue()).record.keep == keep


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"last": 0}, "keep.last_completed=0: must be a whole number from 1 to 10,000"),
        ({"last": {"completed": 10_001}}, "keep.last_completed=10001: must be"),
        ({"last": {"done": 5}}, "keep.last='done': must be one of completed, failed, canceled"),
        ({"completed": {"last": 5}}, "keep.completed={'last': 5}: must be a length of time"),
        ({"newest": 5}, "keep='newest': must be one of completed, failed, canceled, last"),
        ({"last": True}, "keep.last_completed=True: must be"),
    ],
)
def test_a_wrong_keep_is_refused(jobs: Errandry, option: Any, why: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        jobs.task(name="send", keep=option)(lambda: None)

    assert why in str(caught.value)


async def test_upkeep_keeps_the_last_jobs_of_a_task(jobs: Errandry, send: Task[[int], int]) -> None:
    handles = [await send.enqueue(n) for n in range(5)]
    await drain(jobs)
    await jobs.engine.submit(Upkeep())

    assert [record.id for record in (await jobs.list()).jobs] == [job.id for job in handles[:1:-1]]


async def test_prune_deletes_jobs_by_query_or_whose_keep_is_over(
    jobs: Errandry, send: Task[[int], int], clock: FakeClock
) -> None:
    done = [await send.enqueue(n) for n in range(2)]
    await drain(jobs)
    waiting = await send.enqueue(9)

    assert (await jobs.prune()).moved == ()
    assert (await jobs.prune(query="payload~1", dry_run=True)).moved == (done[1].id,)
    assert (await jobs.prune(query="payload~1")).moved == (done[1].id,)
    clock.advance(3_600)
    assert (await jobs.prune(dry_run=True)).moved == (done[0].id,)
    assert (await jobs.prune()).moved == (done[0].id,)
    assert (await jobs.prune(query="")).moved == ()
    assert [record.id for record in (await jobs.list()).jobs] == [waiting.id]


async def test_prune_deletes_the_finished_jobs_among_the_given_ids(
    jobs: Errandry, send: Task[[int], int]
) -> None:
    done, other = [await send.enqueue(n) for n in range(2)]
    await drain(jobs)
    waiting = await send.enqueue(9)

    assert (await jobs.prune(done.id, waiting.id, dry_run=True)).moved == (done.id,)
    assert (await jobs.prune(done.id, waiting.id)).moved == (done.id,)
    assert {job.id for job in (await jobs.list()).jobs} == {other.id, waiting.id}


async def test_the_archive_gets_jobs_before_they_are_deleted(jobs: Errandry, send: Task[[int], int]) -> None:
    seen: list[str] = []

    @jobs.archive
    def archive(finished: Sequence[Job[Any]]) -> None:
        seen.extend(job.record.payload for job in finished)

    await jobs.enqueue_many([send.new(n) for n in range(3)])
    await drain(jobs)

    assert len((await jobs.prune(query="task:send")).moved) == 3
    assert sorted(seen) == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert (await jobs.list()).jobs == ()


@pytest.mark.parametrize("at", [1794825202.8000531, 1794825202.8000891, 1794825202.8629751])
async def test_archived_jobs_are_deleted_despite_float_rounding(
    jobs: Errandry, send: Task[[int], int], clock: FakeClock, at: float
) -> None:
    """These times become smaller when they are rounded to microseconds and back."""
    jobs.archive(lambda finished: None)
    clock.jump(at - clock.time())
    job = await send.enqueue(1)
    await drain(jobs)

    assert (await jobs.prune(query="")).moved == (job.id,)


async def test_jobs_stay_if_the_archive_raises(jobs: Errandry, send: Task[[int], int]) -> None:
    @jobs.archive
    async def archive(finished: Sequence[Job[Any]]) -> None:
        raise OSError("no room")

    job = await send.enqueue(1)
    await drain(jobs)

    with pytest.raises(OSError, match="no room"):
        await jobs.prune(query="")
    assert (await job.refresh()).record.finished_at is not None


async def test_a_job_that_was_rerun_while_it_was_archived_stays(
    jobs: Errandry, send: Task[[int], int], clock: FakeClock
) -> None:
    job = await send.enqueue(1)
    await drain(jobs)

    @jobs.archive
    async def archive(finished: Sequence[Job[Any]]) -> None:
        clock.advance(1)
        await jobs.rerun(job.id)
        await drain(jobs)

    assert await jobs.prune(query="") == Moved()
    assert (await job.refresh()).record.attempts == 2


def test_a_second_archive_is_refused(jobs: Errandry) -> None:
    @jobs.archive
    def archive(finished: Sequence[Job[Any]]) -> None: ...

    jobs.archive(archive)
    with pytest.raises(InvalidValue, match="there is one already"):
        jobs.archive(lambda finished: None)


async def test_a_worker_archives_prunable_jobs(live: Errandry) -> None:
    slices: list[list[str]] = []
    archived = asyncio.Event()

    @live.task(keep={"last": 1})
    async def send(n: int) -> int:
        return n

    @live.archive
    async def archive(finished: Sequence[Job[Any]]) -> None:
        slices.append([job.record.payload for job in finished])
        if sum(map(len, slices)) == 3:
            archived.set()

    worker = Worker(live, WorkerOptions(upkeep_every=0.01))
    working = asyncio.create_task(worker.run())
    for n in range(4):
        await (await send.enqueue(n)).wait(timeout=30)
    await asyncio.wait_for(archived.wait(), 30)
    worker.stop()
    await working

    assert [payload for part in slices for payload in part] == ['{"n":0}', '{"n":1}', '{"n":2}']


async def test_an_archive_that_raises_does_not_stop_the_worker(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    raised = asyncio.Event()

    @live.task(keep={"last": 1})
    async def send(n: int) -> int:
        return n

    @live.archive
    async def archive(finished: Sequence[Job[Any]]) -> None:
        raised.set()
        raise OSError("no room")

    jobs = [await send.enqueue(n) for n in range(3)]
    worker = Worker(live, WorkerOptions(upkeep_every=0.01))
    with caplog.at_level(logging.ERROR):
        working = asyncio.create_task(worker.run())
        await asyncio.wait_for(raised.wait(), 30)
        assert [await job.result(timeout=30) for job in jobs] == [0, 1, 2]
        worker.stop()
        await working

    assert len((await live.list()).jobs) == 3
    assert "cannot archive jobs, keeping them" in caplog.text
