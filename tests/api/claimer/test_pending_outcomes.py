"""Outcomes of claimed jobs that the store cannot take yet."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from errandry import Errandry, Fail, State
from errandry.core.answer import Answer
from errandry.core.command import Command, Settle
from errandry.errors import CommandFailed, ReplyLost, StoreFull, StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from tests.api.claimer.claims import BOOM, claim_one
from tests.machine_load import WAIT_TIMEOUT


class SettleRefusingStore(MemoryStore):
    """Raises `error` for each pass with an outcome, until `error` is None."""

    error: Exception | None = None
    refused = 0

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.error is not None and any(isinstance(command, Settle) for command in commands):
            self.refused += 1
            raise self.error
        return await super().commit(commands)


@pytest.fixture
def refusing(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> SettleRefusingStore:
    monkeypatch.setattr("errandry.api.claimed_job.RETRY_AFTER", 0.01)
    return SettleRefusingStore(clock)


async def refuse_once(store: SettleRefusingStore) -> None:
    """Wait until the store has refused an outcome, then let it take them."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not store.refused:  # noqa: ASYNC110 - a refusal has no event
            await asyncio.sleep(0.001)
    store.error = None


@pytest.mark.parametrize("leave", ["by a verb", "normally", "with an error", "with an outcome"])
@pytest.mark.parametrize(
    "error", [StoreFull("memory", "no space left"), StoreUnavailable("memory", "locked")], ids=str
)
async def test_an_outcome_that_the_store_cannot_take_yet_is_retried(
    refusing: SettleRefusingStore, clock: FakeClock, leave: str, error: StoreUnavailable
) -> None:
    async with Errandry(store=refusing, clock=clock, write_limits=WriteLimits(give_up_after=0.0)) as jobs:
        enqueued = await jobs.enqueue("send", backoff="1 minute")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(claimer)
            refusing.error = error
            recovering = asyncio.create_task(refuse_once(refusing))
            if leave == "by a verb":
                await job.complete("sent")
            elif leave == "with an error":
                with pytest.raises(RuntimeError):
                    async with job:
                        raise BOOM
            else:
                async with job:
                    if leave == "with an outcome":
                        raise Fail("no address")
            await recovering
            assert job.settled
        record = await jobs.client.record(enqueued.id)

    states = {"by a verb": State.COMPLETED, "normally": State.WAITING, "with an error": State.SCHEDULED}
    assert record.state is states.get(leave, State.FAILED)


async def test_an_outcome_whose_reply_was_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("errandry.api.claimed_job.RETRY_AFTER", 0.01)
    store = MemoryStore()
    async with Errandry(store=store, write_limits=WriteLimits(give_up_after=0.0)) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(claimer)
            store.fail_after += [ReplyLost("memory", "the connection was cut")]
            await job.complete("sent")

        assert await enqueued.result(WAIT_TIMEOUT) == "sent"


@pytest.mark.parametrize("leave", ["by a verb", "by its block"])
async def test_a_job_whose_outcome_cannot_be_written_is_free_when_its_lease_ends(
    refusing: SettleRefusingStore, clock: FakeClock, leave: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease is not renewed while the store refuses the outcome."""
    lease = 0.9

    async def settle() -> None:
        async with job:
            if leave == "by a verb":
                await job.complete("sent")

    async with Errandry(store=refusing, clock=clock) as jobs:
        cursor = await jobs.latest_cursor()
        await jobs.enqueue("send")
        async with jobs.claimer(lease=lease, upkeep=False) as claimer:
            job = await claim_one(claimer)
            refusing.error = StoreFull("memory", "no space left")
            settling = asyncio.create_task(settle())
            async with asyncio.timeout(WAIT_TIMEOUT):
                while not refusing.refused:  # noqa: ASYNC110 - a refusal has no event
                    await asyncio.sleep(0.001)
                for _ in range(4):
                    clock.advance(lease / 3)
                    await asyncio.sleep(0.05)
                if leave == "by a verb":
                    with pytest.raises(StoreFull):
                        await settling
                else:
                    await settling
            assert job.should_stop
            assert not job.settled
            refusing.error = None
            async with jobs.claimer(worker="other", upkeep=False) as other:
                [again] = await other.claim()
                assert (again.id, again.attempt) == (job.id, 2)
                await again.complete()
            async with asyncio.timeout(WAIT_TIMEOUT):
                errors = [await anext(jobs.events(cursor, kind="error"))]

    assert "cannot write outcomes, retrying: StoreFull" in errors[0].text
    assert "it is unwritten, and the lease has expired" in caplog.text


async def test_the_lease_of_a_job_that_was_let_go_unsettled_is_not_renewed(
    refusing: SettleRefusingStore, clock: FakeClock
) -> None:
    """The store refuses the outcome for good: the program has left the block, and nothing can settle it."""
    lease = 0.9
    async with Errandry(store=refusing, clock=clock) as jobs:
        for _ in range(2):
            await jobs.enqueue("send")
        async with jobs.claimer(lease=lease, upkeep=False) as claimer:
            left, held = await claimer.claim(limit=2)
            refusing.error = CommandFailed("Settle", "no such table")
            async with left:
                pass
            for _ in range(3):
                clock.advance(0.4 * lease)
                async with asyncio.timeout(WAIT_TIMEOUT):
                    while (await jobs.client.record(held.id)).lease_until != clock.time() + lease:  # noqa: ASYNC110 - a renewal has no event
                        await asyncio.sleep(0.005)
            refusing.error = None
            async with jobs.claimer(worker="other", upkeep=False) as other:
                assert [job.id for job in await other.claim(limit=2)] == [left.id]


async def test_a_release_that_was_not_written_does_not_count_as_settled(
    refusing: SettleRefusingStore, clock: FakeClock
) -> None:
    async with Errandry(store=refusing, clock=clock) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(claimer)
            refusing.error = StoreFull("memory", "no space left")

        assert not job.settled
        assert (await jobs.client.record(enqueued.id)).state is State.RUNNING


class SettleHoldingStore(MemoryStore):
    """Writes no outcome until `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.settling, self.released = threading.Event(), threading.Event()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if any(isinstance(command, Settle) for command in commands):
            self.settling.set()
            await asyncio.to_thread(self.released.wait, WAIT_TIMEOUT)
        return await super().commit(commands)


async def test_a_verb_that_the_end_of_the_block_cuts_off_raises_reply_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CancelledError would look like a cancellation of its task, and a task group would swallow it."""
    monkeypatch.setattr("errandry.api.claimer.CLOSE_TIMEOUT", 0.05)
    store = SettleHoldingStore()
    async with Errandry(store=store) as jobs:
        await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(claimer)
            completing = asyncio.create_task(job.complete())
            await asyncio.to_thread(store.settling.wait, WAIT_TIMEOUT)

        with pytest.raises(ReplyLost, match="its block ended before the store answered"):
            await completing
        store.released.set()


async def test_a_claimer_that_is_canceled_again_while_it_closes_still_releases_its_jobs(
    memory_jobs: Errandry,
) -> None:
    enqueued = [await memory_jobs.enqueue("send") for _ in range(3)]
    claimed = asyncio.Event()

    async def program() -> None:
        async with memory_jobs.claimer() as claimer:
            await claimer.claim(3)
            claimed.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(program())
    await claimed.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [(await job.refresh()).state for job in enqueued] == [State.WAITING] * 3
    assert await memory_jobs.workers.list() == []


async def test_a_verb_ends_with_the_lease_if_the_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine itself would retry for 30 s."""
    monkeypatch.setattr("errandry.api.claimed_job.ANSWER_TIMEOUT_MIN", 0.01)
    store = SettleHoldingStore()
    async with Errandry(store=store) as jobs:
        await jobs.enqueue("send")
        async with jobs.claimer(lease=0.5, renew=False, upkeep=False) as claimer:
            job = await claim_one(claimer)
            async with asyncio.timeout(WAIT_TIMEOUT):
                with pytest.raises(ReplyLost, match="it did not answer before the lease ended"):
                    await job.complete()
            assert job.should_stop
            store.released.set()
