"""Prefetched jobs: visible as `claimed`, and begun only after their Start is written."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from errandry import Errandry, State, Worker, WorkerOptions
from errandry.core.answer import Answer
from errandry.core.command import Claim, Command
from errandry.core.job import NewJob
from errandry.core.move import created
from errandry.worker.executor import Executor
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.slots import Slots
from tests.machine_load import WAIT_TIMEOUT


class Shop:
    """An app with one task, whose handler waits until `open` is set."""

    def __init__(self, path: Path) -> None:
        self.jobs = Errandry(f"sqlite:////{path}")
        self.begun: list[int] = []
        self.open = asyncio.Event()
        self.hold = self.jobs.task(name="hold")(self._hold)

    async def _hold(self, number: int) -> int:
        self.begun.append(number)
        await self.open.wait()
        return number

    async def wait_for_counts(self, **states: int) -> None:
        """Wait until the queue has exactly these numbers of jobs in each state."""
        async with asyncio.timeout(WAIT_TIMEOUT):
            async for _ in self._changes():
                if (await self.jobs.counts()).get("default") == states:
                    return

    async def _changes(self) -> AsyncIterator[None]:
        while True:
            version = self.jobs.store.version()
            yield
            await self.jobs.engine.call(self.jobs.store.wait_for_change, version, 1.0)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "jobs.db")
    async with shop.jobs:
        yield shop


async def test_prefetched_jobs_are_visible_and_have_not_begun(shop: Shop) -> None:
    worker = Worker(shop.jobs, WorkerOptions(concurrency=2, prefetch=3))
    working = asyncio.create_task(worker.run())
    held = [await shop.hold.enqueue(number=number) for number in range(8)]

    await shop.wait_for_counts(running=2, claimed=3, waiting=3)

    assert shop.begun == [0, 1]
    shop.open.set()
    assert [await job.result(WAIT_TIMEOUT) for job in held] == list(range(8))
    assert sorted(shop.begun) == list(range(8))
    worker.stop()
    await working


async def test_a_job_canceled_while_claimed_never_begins(shop: Shop) -> None:
    worker = Worker(shop.jobs, WorkerOptions(concurrency=1, prefetch=1))
    working = asyncio.create_task(worker.run())
    _, prefetched = [await shop.hold.enqueue(number=number) for number in range(2)]
    await shop.wait_for_counts(running=1, claimed=1)

    await prefetched.cancel()
    shop.open.set()
    await shop.wait_for_counts(completed=1, canceled=1)

    assert shop.begun == [0]
    worker.stop()
    await working


async def test_a_stop_releases_prefetched_jobs_without_spending_an_attempt(shop: Shop) -> None:
    worker = Worker(shop.jobs, WorkerOptions(concurrency=1, prefetch=2))
    working = asyncio.create_task(worker.run())
    jobs = [await shop.hold.enqueue(number=number) for number in range(3)]
    await shop.wait_for_counts(running=1, claimed=2)

    worker.stop()
    await shop.wait_for_counts(running=1, waiting=2)
    shop.open.set()
    await working

    first, *others = [(await job.refresh()).record for job in jobs]
    assert first.state is State.COMPLETED
    assert [(job.state, job.attempts) for job in others] == [(State.WAITING, 0)] * 2


@pytest.mark.parametrize("delayed", ["claim", "start"])
async def test_a_stop_releases_the_jobs_of_a_claim_in_flight(
    shop: Shop, delayed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker begins to drain after its claim is written, and before it has the jobs."""
    caplog.set_level("INFO", "errandry.worker")
    jobs = [await shop.hold.enqueue(number=number) for number in range(3)]
    worker = Worker(shop.jobs, WorkerOptions(concurrency=1, prefetch=2))
    loop, commit, begin = asyncio.get_running_loop(), shop.jobs.store.commit, worker._dispatcher._begin_calls
    is_draining = asyncio.Event()

    async def drain() -> None:
        worker.stop()
        while "claims no more" not in caplog.text:  # noqa: ASYNC110 - a log has no event to wait for
            await asyncio.sleep(0)
        is_draining.set()

    async def slow_commit(commands: Sequence[Command]) -> list[Answer]:
        answers = await commit(commands)
        if any(isinstance(command, Claim) and not command.start for command in commands):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(drain(), loop))
        return answers

    def slow_begin(calls: list[HandlerCall], prefetched: bool) -> None:
        if prefetched:
            asyncio.run_coroutine_threadsafe(drain(), loop).result(WAIT_TIMEOUT)
        begin(calls, prefetched)

    if delayed == "claim":
        monkeypatch.setattr(shop.jobs.store, "commit", slow_commit)
    else:
        monkeypatch.setattr(worker._dispatcher, "_begin_calls", slow_begin)
    working = asyncio.create_task(worker.run())

    await is_draining.wait()  # before that, two are waiting because they are not claimed yet
    await shop.wait_for_counts(running=1, waiting=2)
    shop.open.set()
    await working

    first, *others = [(await job.refresh()).record for job in jobs]
    assert first.state is State.COMPLETED
    assert [(job.attempts, job.releases) for job in others] == [(0, 1)] * 2


@pytest.mark.parametrize("number", [100, 10_000])
async def test_the_next_call_for_a_slot_is_found_without_a_scan_of_all_waiting_calls(number: int) -> None:
    slots = Slots(WorkerOptions(concurrency=1), lambda: 0)
    executor = Executor(Errandry("memory://"), WorkerOptions(), slots.release, _ignore)
    loop = asyncio.get_running_loop()
    new = NewJob(id="job", task="task", payload="{}")
    calls = [HandlerCall(JobRun(created(new, seq, 0.0), 30.0, executor, loop)) for seq in range(number)]
    slots.add_prefetched(calls)
    waits = [asyncio.create_task(slots.wait_for_slot(call)) for call in calls]
    await asyncio.sleep(0)
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    slots.release(calls[0])
    sys.setprofile(None)

    await asyncio.sleep(0)
    assert [wait.done() for wait in waits[:3]] == [True, True, False]
    assert steps < 100
    for wait in waits:
        wait.cancel()


def _ignore(_: JobRun) -> None: ...
