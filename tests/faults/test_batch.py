"""kill -9 in the middle of a batch: all its jobs run again, alone, and end once."""

import asyncio
from itertools import pairwise

import pytest

from errandry.core.state import Reason, State
from tests.faults.process import Process
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts workers and kills them")


async def test_the_jobs_of_a_killed_batch_run_alone_and_end_once(scene: Scene) -> None:
    jobs = [await scene.enqueue("hold_many", gates=scene.gate) for _ in range(5)]
    victim = await scene.worker(lease=60.0, concurrency=1)
    for job in jobs:
        await scene.started(job)
    assert {run.pid for job in jobs for run in scene.journal.started(job)} == {victim.pid}

    victim.kill()
    scene.open_gate(attempt=2)
    await scene.worker(lease=60.0, concurrency=4)

    runs = []
    for job in jobs:
        record = await scene.finished(job)
        assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 1)
        assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
        [_, second] = scene.journal.started(job)
        [end] = scene.journal.ended(job)
        runs.append((second.at, end.at))
    runs.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(runs)), runs
    await scene.check()


async def test_a_poison_job_kills_the_others_of_its_batch_once(scene: Scene) -> None:
    harmless = [await scene.enqueue("poison_many", poisoned=False) for _ in range(4)]
    poison = await scene.enqueue("poison_many", {"max_crashes": 3}, poisoned=True)
    harmless += [await scene.enqueue("poison_many", poisoned=False) for _ in range(4)]

    supervisor = asyncio.create_task(supervise(scene))
    contents = await scene.all_finished(limit=90)
    supervisor.cancel()

    jobs = {job.id: job for job in contents.jobs}
    assert (jobs[poison].state, jobs[poison].reason) == (State.FAILED, Reason.WORKER_LOST)
    assert jobs[poison].crashes == 3
    assert {jobs[job].state for job in harmless} == {State.COMPLETED}
    assert max(jobs[job].crashes for job in harmless) == 1
    await scene.check()


async def supervise(scene: Scene) -> None:
    """Start the worker again each time it ends."""
    while True:
        process: Process = scene.start("work", {"lease": 60.0, "concurrency": 1})
        await process.wait_for_end(limit=90)
