"""P6: a job that kills its worker fails after a few runs, and the other jobs complete."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from errandry.core.state import Reason, State
from tests.faults.history import StoreContents
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts workers again and again")

LIMITS = [(5, 3, 3), (2, 3, 2), (5, 2, 2)]
"""`max_attempts` and `max_crashes` of all jobs, and how often the poison job runs."""


@pytest.mark.parametrize(("max_attempts", "max_crashes", "runs"), LIMITS)
async def test_a_poison_job_fails_and_the_other_jobs_complete(
    scene: Scene, max_attempts: int, max_crashes: int, runs: int
) -> None:
    options = {"max_attempts": max_attempts, "max_crashes": max_crashes}
    harmless = [await scene.enqueue("rest", options, seconds=0.02) for _ in range(25)]
    poison = await scene.enqueue("poison", options)
    harmless += [await scene.enqueue("rest", options, seconds=0.02) for _ in range(25)]

    supervisor = asyncio.create_task(supervise(scene))
    contents = await scene.all_finished(limit=90)
    supervisor.cancel()

    check_jobs(contents, poison, harmless, max_crashes)
    assert len(scene.journal.started(poison)) == runs
    [record] = [job for job in contents.jobs if job.id == poison]
    assert (record.attempts, record.crashes) == (runs, runs)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST] * runs
    await scene.check()


@pytest.mark.parametrize(("max_attempts", "max_crashes", "runs"), LIMITS[1:])
async def test_a_job_that_kills_all_workers_of_its_host_fails_alone(
    scene: Scene, tmp_path: Path, max_attempts: int, max_crashes: int, runs: int
) -> None:
    """As one that takes all the memory of the host. Four workers run it and fifty others."""
    options = {"max_attempts": max_attempts, "max_crashes": max_crashes}
    pids = tmp_path / "pids"
    pids.mkdir()
    poison = await scene.enqueue("poison_all", options, pids=str(pids))
    harmless = [await scene.enqueue("rest", options, seconds=0.1) for _ in range(50)]

    supervisors = [asyncio.create_task(supervise(scene, pids)) for _ in range(4)]
    contents = await scene.all_finished(limit=90)
    for supervisor in supervisors:
        supervisor.cancel()

    check_jobs(contents, poison, harmless, max_crashes)
    assert len(scene.journal.started(poison)) == runs
    await scene.check()


def check_jobs(contents: StoreContents, poison: str, harmless: Sequence[str], max_crashes: int) -> None:
    jobs = {job.id: job for job in contents.jobs}
    assert (jobs[poison].state, jobs[poison].reason) == (State.FAILED, Reason.WORKER_LOST)
    assert {jobs[job].state for job in harmless} == {State.COMPLETED}
    assert max(jobs[job].crashes for job in harmless) < max_crashes


async def supervise(scene: Scene, pids: Path | None = None) -> None:
    """Start the worker again each time it ends. `pids` has a file for each running process."""
    while True:
        process = scene.start("work", {"lease": 60.0})
        file = None if pids is None else pids / str(process.pid)
        if file is not None:
            file.touch()
        await process.wait_for_end(limit=90)
        if file is not None:
            file.unlink()
