"""Leases of claimed jobs: renewal, loss, cancels and timeouts."""

import asyncio
from collections.abc import Sequence

import pytest

from errandry import Errandry, Snooze, State
from errandry.core.answer import Answer
from errandry.core.command import Claim, Command, Upkeep
from errandry.core.event import EventKind
from errandry.core.state import Reason
from errandry.errors import LeaseLost, ReplyLost
from errandry.store.engine.backlog import WriteLimits
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from tests.api.claimer.claims import BOOM, LEASE, claim_one, snapshot
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import outlast_lease

# Leases


async def test_leases_are_renewed_until_the_job_is_settled(jobs: Errandry, clock: FakeClock) -> None:
    lease = 0.9
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer(lease=lease) as claimer:
        job = await claim_one(claimer)
        await outlast_lease(jobs, clock, job.id, lease)
        await job.complete("once")

    record = await jobs.client.record(enqueued.id)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)


async def test_without_automatic_renewal_the_program_renews(jobs: Errandry, clock: FakeClock) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer(lease=LEASE, renew=False, upkeep=False) as claimer:
        job = await claim_one(claimer)
        for _ in range(3):
            clock.advance(0.9 * LEASE)
            await job.renew()
            assert (await jobs.client.record(enqueued.id)).lease_until == clock.time() + LEASE
        assert not job.should_stop
        await job.complete()


async def test_a_lease_that_is_not_renewed_is_lost(
    jobs: Errandry, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer(lease=LEASE, renew=False, upkeep=False) as claimer:
        job = await claim_one(claimer)
        clock.advance(LEASE)
        assert job.should_stop
        async with jobs.claimer(worker="other", lease=LEASE, upkeep=False) as other:
            [again] = await other.claim()
            before = await snapshot(jobs)
            for verb in (job.renew(), job.progress(0.5), job.log("late"), job.complete("late")):
                with pytest.raises(LeaseLost, match="no longer held: another claim holds it"):
                    await verb

            assert await snapshot(jobs) == before
            assert again.fence > job.fence
            await again.complete("in time")

    assert await enqueued.result(WAIT_TIMEOUT) == "in time"
    assert not job.settled
    assert f"the lease of job {job.id} (send) is lost" in caplog.text


async def test_a_block_whose_lease_is_lost_writes_nothing(jobs: Errandry) -> None:
    await jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(claimer) as job:
            await jobs.remove(job.id, force=True)
            await job.complete("late")

    async with jobs.claimer() as claimer:
        with pytest.raises(LeaseLost, match="no worker holds it"):
            await run()

    assert (await jobs.list()).jobs == ()


async def test_an_outcome_is_not_swallowed_if_the_lease_is_lost(memory_jobs: Errandry) -> None:
    await memory_jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(claimer) as job:
            await memory_jobs.remove(job.id, force=True)
            raise Snooze("1 hour")

    async with memory_jobs.claimer() as claimer:
        with pytest.raises(LeaseLost):
            await run()


async def test_a_lost_reply_to_a_claim_costs_no_job(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with Errandry(store=store, write_limits=WriteLimits(give_up_after=0.0)) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            store.fail_after += [ReplyLost("memory", "the connection was cut")]
            job = await claim_one(claimer)

            assert (job.id, job.attempt) == (enqueued.id, 1)
    assert "cannot recover a claim after a lost reply" in caplog.text


# Stops


async def test_a_canceled_job_should_stop_and_ends_as_canceled(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer() as claimer:
        async with await claim_one(claimer) as job:
            await jobs.cancel(job.id)
            async with asyncio.timeout(WAIT_TIMEOUT):
                while not job.should_stop:  # noqa: ASYNC110 - as a program checks it
                    await asyncio.sleep(0.005)

        assert (await jobs.client.record(enqueued.id)).state is State.CANCELED


@pytest.mark.parametrize("leave", ["the block", "the block with an error", "the claimer"])
async def test_a_job_whose_timeout_is_over_should_stop_and_is_retried(
    memory_jobs: Errandry, clock: FakeClock, leave: str
) -> None:
    enqueued = await memory_jobs.enqueue("send", timeout="5 seconds", backoff="1 minute")
    async with memory_jobs.claimer() as claimer:
        job = await claim_one(claimer)
        assert not job.should_stop
        clock.advance(5.0)
        assert job.should_stop
        if leave == "the block":
            async with job:
                pass
        elif leave == "the block with an error":
            with pytest.raises(RuntimeError):
                async with job:
                    raise BOOM

    record = await memory_jobs.client.record(enqueued.id)
    assert (record.state, record.attempts) == (State.SCHEDULED, 1)
    [error] = record.errors
    assert (error.kind, error.message) == (Reason.TIMEOUT, "the attempt took longer than 5 s")


async def test_a_timeout_is_a_timeout_error_for_the_rules_of_a_declared_task(
    memory_jobs: Errandry, clock: FakeClock
) -> None:
    @memory_jobs.task(timeout=5, fail_on=TimeoutError)
    async def send() -> None: ...

    enqueued = await send.enqueue()
    async with memory_jobs.claimer() as claimer, await claim_one(claimer):
        clock.advance(5.0)

    record = await memory_jobs.client.record(enqueued.id)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.TIMEOUT, 1)


async def test_a_timeout_counts_from_the_moment_the_claim_was_sent(clock: FakeClock) -> None:
    class SlowStore(MemoryStore):
        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            answers = await super().commit(commands)
            if any(isinstance(command, Claim) for command in commands):
                clock.advance(6.0)
            return answers

    async with Errandry(store=SlowStore(clock), clock=clock) as jobs:
        await jobs.enqueue("send", timeout=5)
        async with jobs.claimer(upkeep=False) as claimer:
            assert (await claim_one(claimer)).should_stop


async def test_the_lease_of_a_job_whose_timeout_is_over_is_not_renewed(
    memory_jobs: Errandry, clock: FakeClock
) -> None:
    """So that another worker gets the job of a program that hangs."""
    lease = 0.9
    hanging = await memory_jobs.enqueue("send", timeout=0.5)
    other = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer(lease=lease, upkeep=False) as claimer:
        await claimer.claim(limit=2)
        for _ in range(4):
            clock.advance(0.4)
            async with asyncio.timeout(WAIT_TIMEOUT):
                while (await memory_jobs.client.record(other.id)).lease_until != clock.time() + lease:  # noqa: ASYNC110 - a renewal has no event
                    await asyncio.sleep(0.005)
        await memory_jobs.engine.submit(Upkeep())
        records = [await memory_jobs.client.record(job.id) for job in (hanging, other)]

    assert [record.state for record in records] == [State.WAITING, State.RUNNING]


async def test_the_jobs_of_a_slow_claim_are_renewed_before_it_returns(clock: FakeClock) -> None:
    class SlowStore(MemoryStore):
        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            answers = await super().commit(commands)
            if any(isinstance(command, Claim) for command in commands):
                clock.advance(0.9 * LEASE)
            return answers

    async with Errandry(store=SlowStore(clock), clock=clock) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(lease=LEASE, upkeep=False) as claimer:
            await claim_one(claimer)
            assert (await jobs.client.record(enqueued.id)).lease_until == clock.time() + LEASE


async def test_a_lease_that_the_program_does_not_renew_is_no_error_of_the_claimer(
    jobs: Errandry, clock: FakeClock
) -> None:
    cursor = await jobs.latest_cursor()
    await jobs.enqueue("send")
    async with jobs.claimer(lease=LEASE, renew=False, upkeep=False) as claimer:
        job = await claim_one(claimer)
        clock.advance(LEASE)
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not job._claim.is_lost:  # noqa: ASYNC110 - the loop that checks leases has no event
                await asyncio.sleep(0.01)

    entries = (await jobs.engine.call(jobs.store.events, cursor, 100)).entries
    assert EventKind.ERROR not in [entry.event.kind for entry in entries]


async def test_the_cause_of_a_lost_lease_is_one_of_those_documented(memory_jobs: Errandry) -> None:
    await memory_jobs.enqueue("send")

    async def run() -> None:
        async with job:
            raise Snooze("1 hour")

    async with memory_jobs.claimer(lease=LEASE, upkeep=False) as claimer:
        job = await claim_one(claimer)
        job._claim.mark_lost("it could not be renewed in time")
        with pytest.raises(LeaseLost) as lost:
            await run()

    assert lost.value.cause == "expired"
