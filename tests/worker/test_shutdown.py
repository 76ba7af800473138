"""What a stopping worker does with its jobs."""

from errandry import Errandry, State
from tests.run_worker import running_worker, wait_for_state
from tests.worker.gate import Gate


async def test_a_stop_lets_handlers_finish(live: Errandry, gate: Gate) -> None:
    @live.task
    async def work() -> str:
        await gate.pass_through()
        return "finished"

    job, later = await work.enqueue(), await work.using(delay=60).enqueue()
    async with running_worker(live) as worker:
        await gate.begun.wait()
        worker.stop()
        await live.promote(later.id)
        gate.opened.set()
        assert await job.result(30) == "finished"

    assert (await later.refresh()).state is State.WAITING


async def test_a_job_that_does_not_finish_within_the_grace_is_released_without_cost(
    live: Errandry, gate: Gate
) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    job = await work.enqueue()
    async with running_worker(live, grace=0.02) as worker:
        await gate.begun.wait()
        worker.stop()
        record = await wait_for_state(live, job.id, State.WAITING)

    assert (record.attempts, record.releases, record.errors) == (0, 1, ())
