"""kill -9 of a worker at every step of a job: its jobs run again at once, and no job is lost."""

import time
from typing import Any

import pytest

from errandry.core.state import Reason, State
from tests.faults.process import Process, wait_until_async
from tests.faults.scene import BOTH_LOOPS, Scene
from tests.machine_load import MachineLoad

pytestmark = pytest.mark.slow("starts workers and kills them")


@BOTH_LOOPS
async def test_a_killed_workers_job_runs_again_within_two_seconds(scene: Scene, load: MachineLoad) -> None:
    """The lease lasts for a minute, but the lock file shows the others that the worker is dead.

    A slow machine gets three tries.
    """
    options = {"max_crashes": 9, "max_attempts": 9}
    job = await scene.enqueue("hold", options, gate=scene.gate)
    victim = await scene.worker(lease=60.0)
    await scene.started(job)
    delays: list[float] = []
    while len(delays) < 3 and min(delays, default=9.0) > 2.0:
        other = await scene.worker(lease=60.0)
        began = time.monotonic()
        victim.kill()
        runs = await scene.started(job, len(delays) + 2)
        delays.append(time.monotonic() - began)
        assert runs[-1].pid == other.pid
        victim = other

    scene.open_gate(len(delays) + 1)
    record = await scene.finished(job)

    assert min(delays) < load.scaled(2.0), delays
    await wait_until_async(lambda: is_only_worker(scene, victim))
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, len(delays) + 1, len(delays))
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST] * len(delays)
    await scene.check()


@pytest.mark.parametrize(
    ("failpoint", "task", "begun", "ended", "crashes"),
    [  # how often the handler begins and ends in all, and the crashes on the job's record
        ("before_claim_commit", "quick", 1, 1, 0),
        ("after_claim_commit", "quick", 1, 1, 1),
        ("before_handler", "quick", 1, 1, 1),
        ("before_handler", "rest_in_thread", 1, 1, 1),
        ("", "kill", 2, 1, 1),
        ("", "kill_in_thread", 2, 1, 1),
        ("after_handler", "quick", 2, 2, 1),
        ("before_settle_commit", "quick", 2, 2, 1),
        ("after_settle_commit", "quick", 1, 1, 0),
    ],
)
async def test_a_job_of_a_worker_killed_at_any_step_runs_no_more_often_than_necessary(
    scene: Scene, failpoint: str, task: str, begun: int, ended: int, crashes: int
) -> None:
    arguments: dict[str, Any] = {"seconds": 0.0} if task == "rest_in_thread" else {}
    job = await scene.enqueue(task, **arguments)
    await wait_until_killed(scene.start("work", {"lease": 60.0}, ERRANDRY_FAILPOINT=failpoint))

    await scene.worker(lease=60.0)
    record = await scene.finished(job)

    assert (len(scene.journal.started(job)), len(scene.journal.ended(job))) == (begun, ended)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, crashes + 1, crashes)
    await scene.check()


@pytest.mark.parametrize(
    "failpoint",
    [
        *("before_claim_commit", "after_claim_commit", "before_handler"),
        *("after_handler", "before_settle_commit", "after_settle_commit"),
    ],
)
async def test_a_second_worker_finishes_all_jobs_of_a_worker_killed_at_any_step(
    scene: Scene, failpoint: str
) -> None:
    jobs = [await scene.enqueue(task) for task in ("quick", "stumble") * 8]
    await wait_until_killed(
        scene.start("work", {"lease": 60.0, "concurrency": 3}, ERRANDRY_FAILPOINT=f"{failpoint}:3")
    )

    await scene.worker(lease=60.0, concurrency=3)
    contents = await scene.all_finished()

    assert {job.id for job in contents.jobs} == set(jobs)
    assert {job.state for job in contents.jobs} == {State.COMPLETED}
    assert max(job.crashes for job in contents.jobs) <= 1
    await scene.check()


async def test_a_hundred_jobs_of_a_killed_worker_are_back_in_rounds_of_a_quarter(scene: Scene) -> None:
    """One after the other they would take 300 s. `tests/worker/test_suspects.py` says how long this takes."""
    jobs = [await scene.enqueue("rest", seconds=3.0) for _ in range(100)]
    killed = await scene.worker(lease=60.0, concurrency=100)
    await scene.wait_for_states(jobs, State.RUNNING)
    killed.kill()
    killed_at = time.monotonic()
    await scene.worker(lease=60.0, concurrency=100)
    contents = await scene.all_finished()

    assert time.monotonic() - killed_at < 60
    assert {(job.state, job.attempts, job.crashes) for job in contents.jobs} == {(State.COMPLETED, 2, 1)}
    await scene.check()


async def test_a_prefetched_job_of_a_killed_worker_has_spent_no_attempt(scene: Scene) -> None:
    running = await scene.enqueue("hold", gate=scene.gate)
    prefetched = [await scene.enqueue("quick") for _ in range(3)]
    options: dict[str, Any] = {"lease": 60.0, "concurrency": 1, "prefetch": 3}
    victim = await scene.worker(**options)
    await scene.started(running)
    await scene.wait_for_states(prefetched, State.CLAIMED)

    victim.kill()
    scene.open_gate(attempt=2)
    await scene.worker(**options)

    record = await scene.finished(running)
    assert (record.attempts, record.crashes, record.releases) == (2, 1, 0)
    for job in prefetched:
        record = await scene.finished(job)
        assert (record.attempts, record.crashes, record.releases) == (1, 0, 1)
        assert len(scene.journal.started(job)) == 1
    await scene.check()


async def is_only_worker(scene: Scene, process: Process) -> bool:
    """Whether the store lists only this worker."""
    return [worker.pid for worker in await scene.app.workers.list()] == [process.pid]


async def wait_until_killed(process: Process) -> None:
    assert await process.wait_for_end() == -9, process.log()
