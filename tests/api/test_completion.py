"""Wait for jobs and their results: waiters are woken by events, with one read for all of them."""

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
from tests.machine_load import WAIT_TIMEOUT


@pytest.fixture
def send(jobs: Errandry) -> Task[[str], str]:
    @jobs.task(max_attempts=1)
    async def send(to: str) -> str:
        if to == "unknown":
            raise LookupError("no such address")
        if to == "eve":
            raise Fail("not for eve")
        return f"sent to {to}"

    return send


async def test_a_completed_job_returns_its_result(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.result(30))
    await drain(jobs)

    assert await waiting == "sent to ada"
    assert await job.result() == "sent to ada"
    assert job.state is State.COMPLETED


async def test_a_handler_that_returns_nothing_has_the_result_none(jobs: Errandry) -> None:
    @jobs.task
    async def quiet() -> None: ...

    job = await quiet.enqueue()
    await drain(jobs)

    assert await (await jobs.get(job.id)).result(30) is None


async def test_the_result_of_a_failed_job_raises_its_error(jobs: Errandry, send: Task[[str], str]) -> None:
    unlucky, refused = await send.enqueue("unknown"), await send.enqueue("eve")
    await drain(jobs)

    with pytest.raises(JobFailed, match=r"failed \(error\): LookupError: no such address") as error:
        await unlucky.result(30)
    with pytest.raises(JobFailed, match=r"failed \(unrecoverable\): Fail: not for eve"):
        await refused.result(30)

    assert error.value.job_id == unlucky.id
    assert error.value.reason == Reason.ERROR
    assert 'raise LookupError("no such address")' in error.value.traceback


async def test_the_result_of_a_canceled_job_raises(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.result(30))
    await jobs.cancel(job.id)

    with pytest.raises(JobCanceled, match=f"job {job.id} was canceled"):
        await waiting


async def test_waiting_for_a_removed_job_raises(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.wait(30))
    await jobs.remove(job.id)

    with pytest.raises(UnknownJob):
        await waiting
    with pytest.raises(UnknownJob):
        await job.result(30)


async def test_waiting_for_a_job_that_is_not_kept_raises_when_it_has_finished(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    job = await send.using(keep=0).enqueue("ada")
    waiting = asyncio.create_task(job.result(30))
    await drain(jobs)

    with pytest.raises(UnknownJob):
        await waiting


async def test_a_timed_out_wait_names_the_job(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    with pytest.raises(TimeoutError, match=rf"job {job.id} has not finished within 0\.01 s"):
        await job.result(0.01)

    assert job.state is State.WAITING


async def test_a_timeout_of_zero_reads_the_job_once(jobs: Errandry, send: Task[[str], str]) -> None:
    job, seen = await send.enqueue("ada"), await send.enqueue("ada")

    with pytest.raises(TimeoutError, match="it is waiting"):
        await job.result(0)
    await drain(jobs)

    assert await job.result(0) == "sent to ada"
    assert (await seen.wait(0)).state is State.COMPLETED


async def test_wait_returns_for_every_final_state(jobs: Errandry, send: Task[[str], str]) -> None:
    handles = [await send.enqueue(to) for to in ("ada", "unknown")] + [
        await send.using(delay=9).enqueue("ada")
    ]
    await drain(jobs)
    await handles[2].cancel()

    assert [(await job.wait(30)).state for job in handles] == ["completed", "failed", "canceled"]


async def test_after_a_rerun_result_waits_for_the_new_run(jobs: Errandry) -> None:
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
    """Counts its reads, and how often a reader that has read everything waits for a change."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.waits = 0
        self.waiting = threading.Condition()

    async def events(self, after: str | None = None, limit: int = 1_000) -> EventPage:
        self.reads["events"] += 1
        return await super().events(after, limit)

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        self.reads["get"] += 1
        return await super().get(ids)

    async def wait_for_change(self, version: int, timeout: float) -> bool:
        if version == self.version():
            with self.waiting:
                self.waits += 1
                self.waiting.notify_all()
        return await super().wait_for_change(version, timeout)

    async def wait_idle(self, count: int) -> None:
        """Wait until the readers have waited more often than that."""

        def wait() -> bool:
            with self.waiting:
                return self.waiting.wait_for(lambda: self.waits > count, WAIT_TIMEOUT)

        assert await asyncio.to_thread(wait)


async def wait_for_waiters(jobs: Errandry, number: int) -> None:
    def count() -> int:
        watcher = jobs.client._completion_watcher
        return 0 if watcher is None else sum(map(len, watcher._waiters.values()))

    while count() < number:  # noqa: ASYNC110 - no event is set
        await asyncio.sleep(0)


async def test_a_thousand_waiters_cost_one_event_read_per_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only change notifications lead to a read.
    monkeypatch.setattr("errandry.api.completion.RECHECK_INTERVAL", 60.0)
    store = Counting()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def count(n: int) -> int:
            return n

        handles = await jobs.enqueue_many([count.new(n) for n in range(1_000)])
        waits = [asyncio.create_task(job.wait(30)) for job in handles]
        await wait_for_waiters(jobs, 1_000)
        waits_before = store.waits
        store.changes.increment()
        await store.wait_idle(waits_before)

        for canceled in (handles[:1], handles[1:500], handles[500:999]):
            store.reads.clear()
            waits_before = store.waits
            await jobs.cancel(*[job.id for job in canceled])
            await store.wait_idle(waits_before)
            assert store.reads == {"events": 1, "get": 1}

        await asyncio.gather(*waits[:999])
        assert not waits[999].done()
        await jobs.cancel(handles[999].id)
        await waits[999]

        assert {job.state for job in handles} == {State.CANCELED}


async def test_all_waiters_of_a_job_are_woken(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    handles = [await jobs.get(job.id) for _ in range(50)]
    waits = [asyncio.create_task(handle.result(30)) for handle in handles]
    await drain(jobs)

    assert set(await asyncio.gather(*waits)) == {"sent to ada"}


async def test_canceled_waiters_are_removed(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    staying = asyncio.create_task(job.wait(30))
    leaving = [asyncio.create_task(job.wait(30)) for _ in range(10)]
    await wait_for_waiters(jobs, 11)

    for wait in leaving:
        wait.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await drain(jobs)
    await staying

    assert jobs.client._completion_watcher is not None
    assert jobs.client._completion_watcher._waiters == {}


async def test_closing_the_app_ends_every_wait(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    waiting = asyncio.create_task(job.wait())
    while jobs.client._completion_watcher is None:  # noqa: ASYNC110 - no event is set
        await asyncio.sleep(0)
    await jobs.close()

    with pytest.raises(StoreClosed):
        await waiting


class Broken(MemoryStore):
    async def latest_cursor(self, back: int = 0) -> str:
        raise StoreCorrupt("memory", "the log is damaged")


async def test_a_store_error_reaches_all_waiters() -> None:
    async with Errandry(store=Broken()) as jobs:

        @jobs.task
        async def send() -> None: ...

        job = await send.enqueue()
        ends = await asyncio.gather(*[job.wait(30) for _ in range(3)], return_exceptions=True)

        assert [type(end) for end in ends] == [StoreCorrupt] * 3
        assert len({id(end) for end in ends}) == 3
