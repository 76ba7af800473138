"""Waiting for a job and for what it returned: woken by events, and however many wait, one read per wake."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from errandry import Errandry, Fail, State
from errandry.api.task import Task
from errandry.core.job import JobRecord
from errandry.core.state import Reason
from errandry.errors import JobCanceled, JobFailed, StoreClosed, StoreCorrupt, UnknownJob
from errandry.store.contract import EventPage
from errandry.store.memory.driver import MemoryStore
from errandry.testing import drain
from tests.pace import PATIENCE


@pytest.fixture
def send(jobs: Errandry) -> Task[[str], str]:
    @jobs.task(max_attempts=1)
    async def send(to: str) -> str:
        if to == "nobody":
            raise LookupError("no such address")
        if to == "eve":
            raise Fail("not for eve")
        return f"sent to {to}"

    return send


async def test_the_result_of_a_completed_job(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.result(30))
    await drain(jobs)

    assert await waiting == "sent to ada"
    assert await job.result() == "sent to ada"
    assert job.state is State.COMPLETED


async def test_a_job_that_returns_nothing_has_the_result_none(jobs: Errandry) -> None:
    @jobs.task
    async def quiet() -> None: ...

    job = await quiet.enqueue()
    await drain(jobs)

    assert await (await jobs.get(job.id)).result(30) is None


async def test_the_result_of_a_failed_job_is_an_error_that_says_why(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    unlucky, refused = await send.enqueue("nobody"), await send.enqueue("eve")
    await drain(jobs)

    with pytest.raises(JobFailed, match=r"failed \(error\): LookupError: no such address") as error:
        await unlucky.result(30)
    with pytest.raises(JobFailed, match=r"failed \(unrecoverable\): Fail: not for eve"):
        await refused.result(30)

    assert error.value.job_id == unlucky.id
    assert error.value.reason == Reason.ERROR
    assert 'raise LookupError("no such address")' in error.value.traceback


async def test_the_result_of_a_canceled_job_is_an_error(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.result(30))
    await jobs.cancel(job.id)

    with pytest.raises(JobCanceled, match=f"job {job.id} was canceled"):
        await waiting


async def test_who_waits_for_a_removed_job_is_told(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.wait(30))
    await jobs.remove(job.id)

    with pytest.raises(UnknownJob):
        await waiting
    with pytest.raises(UnknownJob):
        await job.result(30)


async def test_a_job_that_is_not_kept_is_gone_when_it_has_finished(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    job = await send.using(keep=0).enqueue("ada")
    waiting = asyncio.create_task(job.result(30))
    await drain(jobs)

    with pytest.raises(UnknownJob):
        await waiting


async def test_a_wait_ends_with_a_timeout_that_names_the_job(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    with pytest.raises(TimeoutError, match=rf"job {job.id} has not finished within 0\.01 s"):
        await job.result(0.01)

    assert job.state is State.WAITING


async def test_a_timeout_of_zero_looks_once(jobs: Errandry, send: Task[[str], str]) -> None:
    job, seen = await send.enqueue("ada"), await send.enqueue("ada")

    with pytest.raises(TimeoutError, match="it is waiting"):
        await job.result(0)
    await drain(jobs)

    assert await job.result(0) == "sent to ada"
    assert (await seen.wait(0)).state is State.COMPLETED


async def test_wait_returns_whatever_the_end(jobs: Errandry, send: Task[[str], str]) -> None:
    made = [await send.enqueue(to) for to in ("ada", "nobody")] + [await send.using(delay=9).enqueue("ada")]
    await drain(jobs)
    await made[2].cancel()

    assert [(await job.wait(30)).state for job in made] == ["completed", "failed", "canceled"]


async def test_after_a_rerun_the_result_is_that_of_the_new_run(jobs: Errandry) -> None:
    runs = iter(range(1, 10))

    @jobs.task
    async def count() -> int:
        return next(runs)

    job = await count.enqueue()
    await drain(jobs)
    assert await job.result(30) == 1

    await job.rerun()
    again = asyncio.create_task(job.result(30))
    await drain(jobs)

    assert await again == 2


class Counting(MemoryStore):
    """Counts its reads, and how often somebody who has seen everything went to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.rests = 0
        self.resting = threading.Condition()

    async def events(self, after: str | None = None, limit: int = 1_000) -> EventPage:
        self.reads["events"] += 1
        return await super().events(after, limit)

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        self.reads["get"] += 1
        return await super().get(ids)

    async def wait_for_change(self, pulse: int, timeout: float) -> bool:
        if pulse == self.version():
            with self.resting:
                self.rests += 1
                self.resting.notify_all()
        return await super().wait_for_change(pulse, timeout)

    async def rested(self, rests: int) -> None:
        """Until they have been to sleep more often than that."""

        def wait() -> bool:
            with self.resting:
                return self.resting.wait_for(lambda: self.rests > rests, PATIENCE)

        assert await asyncio.to_thread(wait)


async def test_a_thousand_waiters_cost_one_read_of_the_events_per_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("errandry.api.completion.PATIENCE", 60.0)  # only wakes lead to a look
    store = Counting()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def count(n: int) -> int:
            return n

        made = await jobs.enqueue_many([count.new(n) for n in range(1_000)])
        waits = [asyncio.create_task(job.wait(30)) for job in made]
        while len(jobs._waiting._waiters if jobs._waiting else ()) < 1_000:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        rests = store.rests
        store.bell.increment()
        await store.rested(rests)

        for ended in (made[:1], made[1:500], made[500:999]):
            store.reads.clear()
            rests = store.rests
            await jobs.cancel(*[job.id for job in ended])
            await store.rested(rests)
            assert store.reads == {"events": 1, "get": 1}

        await asyncio.gather(*waits[:999])
        assert not waits[999].done()
        await jobs.cancel(made[999].id)
        await waits[999]

        assert {job.state for job in made} == {State.CANCELED}


async def test_waiters_of_one_job_are_all_woken(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    handles = [await jobs.get(job.id) for _ in range(50)]
    waits = [asyncio.create_task(handle.result(30)) for handle in handles]
    await drain(jobs)

    assert set(await asyncio.gather(*waits)) == {"sent to ada"}


async def test_who_stops_waiting_leaves_nothing_behind(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    staying = asyncio.create_task(job.wait(30))
    leaving = [asyncio.create_task(job.wait(30)) for _ in range(10)]
    while len(jobs._waiting._waiters.get(job.id, ()) if jobs._waiting else ()) < 11:  # noqa: ASYNC110
        await asyncio.sleep(0)

    for wait in leaving:
        wait.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await drain(jobs)
    await staying

    assert jobs._waiting is not None
    assert jobs._waiting._waiters == {}


async def test_closing_the_app_ends_every_wait(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.wait())
    while jobs._waiting is None:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)
    await jobs.close()

    with pytest.raises(StoreClosed):
        await waiting


class Broken(MemoryStore):
    async def latest_cursor(self, back: int = 0) -> str:
        raise StoreCorrupt("memory", "the log is damaged")


async def test_an_error_of_the_store_reaches_everybody_who_waits() -> None:
    async with Errandry(store=Broken()) as jobs:

        @jobs.task
        async def send() -> None: ...

        job = await send.enqueue()
        ends = await asyncio.gather(*[job.wait(30) for _ in range(3)], return_exceptions=True)

        assert [type(end) for end in ends] == [StoreCorrupt] * 3
        assert len({id(end) for end in ends}) == 3
