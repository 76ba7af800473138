"""P6: a job that kills its worker fails after a few runs, and the other jobs complete."""

import asyncio

import pytest

from errandry.core.state import Reason, State
from tests.faults.process import Process
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts a worker again and again")


@pytest.mark.parametrize(("max_attempts", "max_crashes", "runs"), [(5, 3, 3), (2, 3, 2)])
async def test_a_poison_job_fails_and_the_other_jobs_complete(
    scene: Scene, max_attempts: int, max_crashes: int, runs: int
) -> None:
    harmless = [await scene.enqueue("rest", seconds=0.02) for _ in range(25)]
    options = {"max_attempts": max_attempts, "max_crashes": max_crashes}
    poison = await scene.enqueue("poison", options)
    harmless += [await scene.enqueue("rest", seconds=0.02) for _ in range(25)]

    supervisor = asyncio.create_task(supervise(scene))
    contents = await scene.all_finished(limit=90)
    supervisor.cancel()

    jobs = {job.id: job for job in contents.jobs}
    assert len(scene.journal.started(poison)) == runs
    assert (jobs[poison].state, jobs[poison].reason) == (State.FAILED, Reason.WORKER_LOST)
    assert (jobs[poison].attempts, jobs[poison].crashes) == (runs, runs)
    assert [error.kind for error in jobs[poison].errors] == [Reason.WORKER_LOST] * runs
    assert {jobs[job].state for job in harmless} == {State.COMPLETED}
    assert max(jobs[job].crashes for job in harmless) == 1
    await scene.check()


async def supervise(scene: Scene) -> None:
    """Start the worker again each time it ends."""
    while True:
        process: Process = scene.start("work", {"lease": 60.0})
        await process.wait_for_end(limit=90)
