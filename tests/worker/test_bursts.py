"""A burst ends when nothing is left to do."""

import asyncio
from collections.abc import Sequence

import pytest

from errandry import Errandry, JobContext, Retry, State
from errandry.core.answer import Answer
from errandry.core.command import Claim, Command
from errandry.errors import StoreFull
from errandry.store.memory.driver import MemoryStore
from tests.run_worker import run_burst
from tests.worker.gate import NO_BACKOFF


async def test_a_burst_ends_when_no_job_is_ready(live: Errandry) -> None:
    @live.task
    async def work(n: int) -> None:
        if n:
            await work.enqueue(n - 1)

    await work.enqueue(5)
    later = await work.using(delay=60).enqueue(0)
    await run_burst(live)

    assert await live.counts() == {"default": {"completed": 6, "scheduled": 1}}
    assert (await later.refresh()).state is State.SCHEDULED


async def test_a_handler_that_ends_during_an_empty_claim_does_not_end_the_burst(live: Errandry) -> None:
    assert isinstance(live.store, MemoryStore)
    live.store.latency = 0.01

    @live.task(backoff=NO_BACKOFF, max_attempts=2)
    async def on_loop(ctx: JobContext) -> None:
        ctx.log("a note goes before the outcome")
        await asyncio.sleep(0.001)
        if ctx.attempt == 1:
            raise Retry

    @live.task
    def in_thread() -> None: ...

    await live.enqueue_many([on_loop.new() for _ in range(3)])
    await run_burst(live, concurrency=1, thread_slots=1)

    assert await live.counts() == {"default": {"completed": 3}}


class FullStore(MemoryStore):
    """Refuses the first claim as full."""

    full = True

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.full and any(isinstance(command, Claim) for command in commands):
            self.full = False
            raise StoreFull("memory", "no space left")
        return await super().commit(commands)


@pytest.mark.slow(reason="a worker waits a second before it claims again")
async def test_a_burst_waits_for_a_store_that_cannot_write() -> None:
    async with Errandry(store=FullStore()) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        job = await work.enqueue()
        await run_burst(jobs)

        assert await job.result(30) == "done"
