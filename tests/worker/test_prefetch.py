"""Jobs claimed ahead of a free slot: visible as `claimed`, and begun only after their Start is written."""

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
from tests.pace import PATIENCE


class Shop:
    """An app whose one task waits until it is let go."""

    def __init__(self, path: Path) -> None:
        self.jobs = Errandry(f"sqlite:////{path}")
        self.begun: list[int] = []
        self.open = asyncio.Event()
        self.hold = self.jobs.task(name="hold")(self._hold)

    async def _hold(self, number: int) -> int:
        self.begun.append(number)
        await self.open.wait()
        return number

    async def until(self, **states: int) -> None:
        """Wait until the queue has just these numbers of jobs."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self._changes():
                if (await self.jobs.counts()).get("default") == states:
                    return

    async def _changes(self) -> AsyncIterator[None]:
        while True:
            pulse = self.jobs.store.version()
            yield
            await self.jobs.engine.call(self.jobs.store.wait_for_change, pulse, 1.0)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "jobs.db")
    async with shop.jobs:
        yield shop


async def test_what_is_claimed_ahead_is_visible_and_has_not_begun(shop: Shop) -> None:
    worker = Worker(shop.jobs, WorkerOptions(concurrency=2, prefetch=3))
    working = asyncio.create_task(worker.run())
    held = [await shop.hold.enqueue(number=number) for number in range(8)]

    await shop.until(running=2, claimed=3, waiting=3)

    assert shop.begun == [0, 1]
    shop.open.set()
    assert [await job.result(PATIENCE) for job in held] == list(range(8))
    assert sorted(shop.begun) == list(range(8))
    worker.stop()
    await working


async def test_a_job_canceled_while_claimed_never_begins(shop: Shop) -> None:
    worker = Worker(shop.jobs, WorkerOptions(concurrency=1, prefetch=1))
    working = asyncio.create_task(worker.run())
    _, ahead = [await shop.hold.enqueue(number=number) for number in range(2)]
    await shop.until(running=1, claimed=1)

    await ahead.cancel()
    shop.open.set()
    await shop.until(completed=1, canceled=1)

    assert shop.begun == [0]
    worker.stop()
    await working


async def test_a_stop_gives_back_what_has_not_begun_without_spending_an_attempt(shop: Shop) -> None:
    worker = Worker(shop.jobs, WorkerOptions(concurrency=1, prefetch=2))
    working = asyncio.create_task(worker.run())
    jobs = [await shop.hold.enqueue(number=number) for number in range(3)]
    await shop.until(running=1, claimed=2)

    worker.stop()
    await shop.until(running=1, waiting=2)
    shop.open.set()
    await working

    first, *others = [(await job.refresh()).record for job in jobs]
    assert first.state is State.COMPLETED
    assert [(job.state, job.attempts) for job in others] == [(State.WAITING, 0)] * 2


@pytest.mark.parametrize("held", ["before it is known", "before it is begun"])
async def test_a_stop_gives_back_what_is_just_being_claimed(
    shop: Shop, held: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker begins to drain while its claim is on the way: written, but not in anybody's hands yet."""
    caplog.set_level("INFO", "errandry.worker")
    jobs = [await shop.hold.enqueue(number=number) for number in range(3)]
    worker = Worker(shop.jobs, WorkerOptions(concurrency=1, prefetch=2))
    loop, commit, begin = asyncio.get_running_loop(), shop.jobs.store.commit, worker._gatherer._begin
    drains = asyncio.Event()

    async def draining() -> None:
        worker.stop()
        while "claims no more" not in caplog.text:  # noqa: ASYNC110 - a log has no event to wait for
            await asyncio.sleep(0)
        drains.set()

    async def late(commands: Sequence[Command]) -> list[Answer]:
        answers = await commit(commands)
        if any(isinstance(command, Claim) and not command.start for command in commands):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(draining(), loop))
        return answers

    def later(batches: list[HandlerCall], ahead: bool) -> None:
        if ahead:
            asyncio.run_coroutine_threadsafe(draining(), loop).result(PATIENCE)
        begin(batches, ahead)

    if held == "before it is known":
        monkeypatch.setattr(shop.jobs.store, "commit", late)
    else:
        monkeypatch.setattr(worker._gatherer, "_begin", later)
    working = asyncio.create_task(worker.run())

    await drains.wait()  # before that, two are waiting because nobody has asked for them
    await shop.until(running=1, waiting=2)
    shop.open.set()
    await working

    first, *others = [(await job.refresh()).record for job in jobs]
    assert first.state is State.COMPLETED
    assert [(job.attempts, job.releases) for job in others] == [(0, 1)] * 2


@pytest.mark.parametrize("number", [100, 10_000])
async def test_who_is_next_is_found_without_looking_at_all_who_wait(number: int) -> None:
    slots = Slots(WorkerOptions(concurrency=1), lambda: 0)
    executor = Executor(Errandry("memory://"), WorkerOptions(), slots.give, _ignore)
    loop = asyncio.get_running_loop()
    new = NewJob(id="job", task="task", payload="{}")
    calls = [HandlerCall(JobRun(created(new, seq, 0.0), 30.0, executor, loop)) for seq in range(number)]
    slots.line_up(calls)
    turns = [asyncio.create_task(slots.turn(batch)) for batch in calls]
    await asyncio.sleep(0)
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    slots.give(calls[0])
    sys.setprofile(None)

    await asyncio.sleep(0)
    assert [turn.done() for turn in turns[:3]] == [True, True, False]
    assert steps < 100
    for turn in turns:
        turn.cancel()


def _ignore(_: JobRun) -> None: ...
