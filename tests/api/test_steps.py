"""Durable steps, sleeps and signals, through handlers and the app."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, JobContext, Retry, State, Step
from errandry.codec.encryption import Encrypted
from errandry.core.duration import as_datetime
from errandry.core.step import StepKind
from errandry.errors import InvalidMove, InvalidValue, StoreUnavailable
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock, drain
from tests.run_worker import running_worker, wait_for_job
from tests.store.server import server

HOUR = 3_600.0


@dataclass
class Receipt:
    number: int
    total: float


async def test_a_finished_step_is_not_run_again(jobs: Errandry) -> None:
    done: list[str] = []

    async def reserve(what: str) -> str:
        done.append(f"reserve {what}")
        return f"r-{what}"

    def charge(reservation: str, *, cents: int) -> Receipt:
        done.append(f"charge {reservation}")
        return Receipt(cents, cents / 100)

    @jobs.task(backoff=0)
    async def order(ctx: JobContext, what: str) -> float:
        reservation = await ctx.step("reserve", reserve, what)
        receipt = await ctx.step("charge", charge, reservation, cents=250)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return receipt.total

    job = await order.enqueue(what="book")
    await drain(jobs, until_idle=True)

    assert await job.result() == 2.5
    assert done == ["reserve book", "charge r-book"]
    steps = await jobs.steps(job.id)
    assert [(step.kind, step.name, step.result) for step in steps] == [
        (StepKind.STEP, "reserve", "r-book"),
        (StepKind.STEP, "charge", {"number": 250, "total": 2.5}),
    ]


async def test_a_step_returns_the_same_value_in_the_first_run_and_later(jobs: Errandry) -> None:
    seen: list[Any] = []

    def pair() -> tuple[int, set[int]]:
        return 1, {2}

    @jobs.task(backoff=0)
    async def work(ctx: JobContext) -> None:
        typed, plain = await ctx.step("typed", pair), await ctx.step("plain", lambda: (1, 2))
        seen.append((typed, plain))
        if ctx.attempt == 1:
            raise Retry(after=0)

    await work.enqueue()
    await drain(jobs, until_idle=True)

    assert seen == [((1, {2}), [1, 2])] * 2


async def test_a_step_that_raised_can_be_run_again(jobs: Errandry) -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("down")
        return "up"

    @jobs.task(backoff=0)
    async def work(ctx: JobContext) -> str:
        try:
            return await ctx.step("flaky", flaky)
        except ConnectionError:
            return await ctx.step("flaky", flaky)

    job = await work.enqueue()
    await drain(jobs, until_idle=True)

    assert await job.result() == "up"
    assert (tries, (await job.refresh()).record.attempts) == ([0, 1, 2], 2)


async def test_a_step_name_can_be_used_once_in_a_run(jobs: Errandry) -> None:
    @jobs.task(max_attempts=1)
    async def work(ctx: JobContext) -> None:
        for _ in range(2):
            await ctx.step("same", int)

    job = await work.enqueue()
    await drain(jobs)

    assert "is used twice in this run" in (await job.refresh()).record.errors[0].message


@pytest.mark.parametrize("result", [object(), "x" * 300_000], ids=["no JSON", "too large"])
async def test_a_result_that_cannot_be_stored_fails_the_job_for_good(jobs: Errandry, result: object) -> None:
    calls: list[int] = []

    def bad() -> Any:
        calls.append(1)
        return result

    @jobs.task
    async def work(ctx: JobContext) -> None:
        await ctx.step("bad", bad)

    job = await work.enqueue()
    await drain(jobs, until_idle=True)

    await job.refresh()
    assert (job.state, calls) == (State.FAILED, [1])
    assert "the result of step 'bad' cannot be stored" in job.record.errors[0].message


async def test_a_sleep_frees_the_slot_and_spends_no_attempt(jobs: Errandry, clock: FakeClock) -> None:
    woke: list[float] = []

    @jobs.task(max_attempts=1)
    async def work(ctx: JobContext) -> int:
        woke.append(clock.time())
        ctx.sleep("3 days")
        ctx.sleep(HOUR)
        ctx.sleep("1 minute", name="last")
        return ctx.attempt

    job, begun = await work.enqueue(), clock.time()
    await drain(jobs)
    assert (await job.refresh()).state is State.SCHEDULED
    await drain(jobs, until_idle=True)

    assert await job.result() == 1
    days = 3 * 24 * HOUR
    assert woke == [begun, begun + days, begun + days + HOUR, begun + days + HOUR + 60]
    assert [step.name for step in await jobs.steps(job.id)] == ["sleep 1", "sleep 2", "last"]


async def test_steps_are_read_with_utc_datetimes(jobs: Errandry, clock: FakeClock) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> None:
        await ctx.step("one", lambda: 1)
        ctx.sleep("1 day")

    job = await work.enqueue()
    await drain(jobs)

    now = as_datetime(clock.time())
    assert await jobs.steps(job.id) == [
        Step(name="one", kind=StepKind.STEP, result=1, at=now, until=None),
        Step(name="sleep 1", kind=StepKind.SLEEP, result=None, at=now, until=now + timedelta(days=1)),
    ]


async def test_a_promote_ends_a_sleep(jobs: Errandry) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> str:
        ctx.sleep("1 week")
        return "awake"

    job = await work.enqueue()
    await drain(jobs)
    await jobs.promote(job.id)
    await drain(jobs)

    assert await job.result() == "awake"


async def test_a_job_waits_for_a_signal(jobs: Errandry) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait_for("approval")

    job = await work.enqueue()
    await drain(jobs, until_idle=True)
    assert (await job.refresh()).record.awaited_signal == "approval"
    assert [(step.name, step.until) for step in await jobs.steps(job.id)] == [("approval", None)]

    assert await job.signal("approval", {"by": "ann"}) is True
    assert await jobs.signal(job.id, "approval", {"by": "bob"}) is False
    await drain(jobs)

    assert await job.result() == {"by": "ann"}


async def test_a_signal_sent_before_the_wait_is_kept(jobs: Errandry) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> Any:
        return [await ctx.wait_for("a"), await ctx.wait_for("b", timeout="1h")]

    job = await work.enqueue()
    await jobs.signal(job.id, "a", 1)
    await jobs.signal(job.id, "b")
    await drain(jobs)

    assert await job.result() == [1, None]
    with pytest.raises(InvalidMove, match=r"cannot signal job .* it is completed"):
        await jobs.signal(job.id, "c")


async def test_a_timed_out_wait_stays_timed_out_in_later_runs(jobs: Errandry, clock: FakeClock) -> None:
    messages: list[str] = []

    @jobs.task(backoff=0)
    async def work(ctx: JobContext) -> str:
        try:
            await ctx.wait_for("approval", timeout="2h")
        except TimeoutError as error:
            messages.append(str(error))
        if ctx.attempt == 1:
            raise ConnectionError
        return "without"

    job = await work.enqueue()
    await drain(jobs)
    clock.advance(2 * HOUR)
    with pytest.raises(InvalidValue, match="this signal has timed out"):
        await jobs.signal(job.id, "approval")
    await drain(jobs, until_idle=True)

    assert await job.result() == "without"
    assert messages == ["no signal 'approval' came within 2h"] * 2


async def test_a_job_promoted_before_its_signal_keeps_waiting(jobs: Errandry, clock: FakeClock) -> None:
    @jobs.task
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait_for("approval", timeout=HOUR)

    job, begun = await work.enqueue(), clock.time()
    await drain(jobs)
    clock.advance(60)
    await jobs.promote(job.id)
    await drain(jobs)

    record = (await job.refresh()).record
    assert (record.state, record.run_at, record.awaited_signal) == (State.SCHEDULED, begun + HOUR, "approval")


async def test_plain_functions_use_blocking_steps(jobs: Errandry) -> None:
    done: list[str] = []

    def note(text: str) -> str:
        done.append(text)
        return text

    @jobs.task(backoff=0)
    def work(ctx: JobContext) -> list[Any]:
        first = ctx.sync.step("first", note, "1")
        ctx.sleep(60)
        second = ctx.sync.step("second", note, text="2")
        return [first, second, ctx.sync.wait_for("third")]

    job = await work.enqueue()
    await drain(jobs, until_idle=True)
    await jobs.signal(job.id, "third", "3")
    await drain(jobs)

    assert await job.result() == ["1", "2", "3"]
    assert done == ["1", "2"]


async def test_blocking_steps_are_refused_on_a_loop(jobs: Errandry) -> None:
    @jobs.task(max_attempts=1)
    async def work(ctx: JobContext) -> None:
        ctx.sync.step("one", int)

    job = await work.enqueue()
    await drain(jobs)

    assert "await ctx.step" in (await job.refresh()).record.errors[0].message


async def test_a_handler_whose_lease_is_lost_stops_at_its_next_step() -> None:
    store = MemoryStore()
    reached: list[str] = []
    stopped = asyncio.Event()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work(ctx: JobContext) -> None:
            await jobs.remove(ctx.id, force=True)
            try:
                await ctx.step("one", reached.append, "effect")
                reached.append("went on")
            finally:
                stopped.set()

        async with running_worker(jobs):
            await work.enqueue()
            async with asyncio.timeout(30):
                await stopped.wait()

    assert reached == ["effect"]


async def test_a_step_result_is_retried_until_the_store_accepts_it() -> None:
    store = MemoryStore()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work(ctx: JobContext) -> list[int]:
            return [await ctx.step("one", away), await ctx.step("two", lambda: 2)]

        def away() -> int:
            store.fail_before.append(StoreUnavailable("memory", "for a moment"))
            return 1

        async with running_worker(jobs):
            job = await work.enqueue()
            assert await job.result(timeout=30) == [1, 2]


async def test_steps_and_signals_are_sealed(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    async with Errandry(store=store, clock=clock, codec=Encrypted({"k": bytes(32)})) as jobs:

        @jobs.task(backoff=0)
        async def work(ctx: JobContext) -> str:
            first = await ctx.step("one", lambda: "secret")
            second: str = await ctx.wait_for("two")
            return first + second

        job = await work.enqueue()
        await drain(jobs)
        await jobs.signal(job.id, "two", " too")
        stored = [step.result or "" for step in await store.steps(job.id)]
        await drain(jobs)

        assert await job.result() == "secret too"
        assert not any("secret" in text or "too" in text for text in stored)
        assert [step.result for step in await jobs.steps(job.id)] == ["secret", " too"]


async def test_a_rerun_continues_after_its_steps_unless_from_start(jobs: Errandry) -> None:
    done: list[int] = []

    @jobs.task(max_attempts=1)
    async def work(ctx: JobContext) -> None:
        await ctx.step("one", done.append, 1)
        raise ConnectionError

    job = await work.enqueue()
    await drain(jobs)
    await job.rerun()
    await drain(jobs)
    assert done == [1]

    await job.rerun(from_start=True)
    await drain(jobs)
    assert done == [1, 1]


async def test_each_job_of_a_batch_has_its_own_steps(jobs: Errandry) -> None:
    @jobs.task(batch=5)
    async def work(ctx: JobContext, items: list[int]) -> list[int]:
        with pytest.raises(TypeError, match=r"ctx\.jobs\[n\]\.step"):
            await ctx.step("all", int)
        pairs = zip(ctx.jobs, items, strict=True)
        return [await item_ctx.step("one", lambda item: item * 2, item) for item_ctx, item in pairs]

    handles = await jobs.enqueue_many([work.new(1), work.new(2)])
    await drain(jobs)

    assert [await job.result() for job in handles] == [2, 4]


def test_signals_are_sent_without_a_loop() -> None:
    jobs = Errandry(store=MemoryStore())

    @jobs.task
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait_for("go")

    job = work.sync.enqueue()

    assert jobs.sync.signal(job.id, "go", 1) is True
    assert jobs.sync.signal(job.id, "go", 2) is False
    jobs.sync.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that several programs share."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
    else:
        with server().lend_url() as url:
            yield url


async def test_concurrent_signals_of_several_programs_all_arrive(shared: str) -> None:
    async with Errandry(shared) as here, Errandry(shared) as there, Errandry(shared) as worker:

        @worker.task
        async def signed(ctx: JobContext) -> list[str]:
            *payloads, _ = [await ctx.wait_for(name) for name in ("mine", "yours", "either", "end")]
            return payloads

        async with running_worker(worker):
            ids = [(await here.enqueue("signed")).id for _ in range(10)]
            for job_id in ids:
                await wait_for_job(worker, job_id, lambda record: record.steps is not None)
            accepted = await asyncio.gather(
                *[
                    program.signal(job_id, name, f"{name} {sender}")
                    for job_id in ids
                    for sender, program, names in (
                        ("here", here, ("either", "mine")),
                        ("there", there, ("either", "yours")),
                    )
                    for name in names
                ]
            )
            for job_id in ids:  # a finished job would refuse the signal
                assert await here.signal(job_id, "end")
            results = [await (await worker.get(job_id)).result(timeout=30) for job_id in ids]

    for n, result in enumerate(results):
        by_here, mine, by_there, yours = accepted[4 * n : 4 * n + 4]
        assert (mine, yours, by_here) == (True, True, not by_there)
        assert result == ["mine here", "yours there", f"either {'here' if by_here else 'there'}"]
