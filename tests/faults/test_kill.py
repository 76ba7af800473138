"""kill -9 of a worker, at every step of a job's way: what it held runs again at once, and nothing is lost."""

import time
from typing import Any

import pytest

from errandry.core.state import Reason, State
from tests.faults.process import Process, until_said
from tests.faults.scene import BOTH_LOOPS, Scene
from tests.pace import Pace

pytestmark = pytest.mark.slow("starts workers and kills them")


@BOTH_LOOPS
async def test_a_killed_workers_job_runs_again_within_two_seconds(scene: Scene, pace: Pace) -> None:
    """Its lease has a minute to go: the lock file tells the others. A slow machine may try three times."""
    options = {"max_crashes": 9, "max_attempts": 9}
    job = await scene.enqueue("hold", options, gate=scene.gate)
    victim = await scene.worker(lease=60.0)
    await scene.started(job)
    took: list[float] = []
    while len(took) < 3 and min(took, default=9.0) > 2.0:
        other = await scene.worker(lease=60.0)
        begin = time.monotonic()
        victim.kill()
        runs = await scene.started(job, len(took) + 2)
        took.append(time.monotonic() - begin)
        assert runs[-1].pid == other.pid
        victim = other

    scene.open_gate(len(took) + 1)
    record = await scene.finished(job)

    assert min(took) < pace.allowed(2.0), took
    await until_said(lambda: only(scene, victim))
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, len(took) + 1, len(took))
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST] * len(took)
    await scene.check()


@pytest.mark.parametrize(
    ("failpoint", "task", "begun", "ended", "crashes"),
    [  # how often its handler begins and ends in all, and how many crashes are on its record
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
async def test_killed_at_any_step_a_job_runs_no_more_often_than_it_must(
    scene: Scene, failpoint: str, task: str, begun: int, ended: int, crashes: int
) -> None:
    arguments: dict[str, Any] = {"seconds": 0.0} if task == "rest_in_thread" else {}
    job = await scene.enqueue(task, **arguments)
    await is_killed(scene.start("work", {"lease": 60.0}, ERRANDRY_FAILPOINT=failpoint))

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
async def test_killed_at_any_step_among_many_jobs_a_second_worker_finishes_all(
    scene: Scene, failpoint: str
) -> None:
    jobs = [await scene.enqueue(task) for task in ("quick", "stumble") * 8]
    await is_killed(
        scene.start("work", {"lease": 60.0, "concurrency": 3}, ERRANDRY_FAILPOINT=f"{failpoint}:3")
    )

    await scene.worker(lease=60.0, concurrency=3)
    found = await scene.all_finished()

    assert {job.id for job in found.jobs} == set(jobs)
    assert {job.state for job in found.jobs} == {State.COMPLETED}
    assert max(job.crashes for job in found.jobs) <= 1
    await scene.check()


async def test_a_job_claimed_ahead_by_a_killed_worker_has_spent_no_attempt(scene: Scene) -> None:
    running = await scene.enqueue("hold", gate=scene.gate)
    ahead = [await scene.enqueue("quick") for _ in range(3)]
    options: dict[str, Any] = {"lease": 60.0, "concurrency": 1, "prefetch": 3}
    victim = await scene.worker(**options)
    await scene.started(running)
    await scene.all_in(ahead, State.CLAIMED)

    victim.kill()
    scene.open_gate(attempt=2)
    await scene.worker(**options)

    record = await scene.finished(running)
    assert (record.attempts, record.crashes, record.releases) == (2, 1, 0)
    for job in ahead:
        record = await scene.finished(job)
        assert (record.attempts, record.crashes, record.releases) == (1, 0, 1)
        assert len(scene.journal.started(job)) == 1
    await scene.check()


async def only(scene: Scene, process: Process) -> bool:
    """Whether it is the only worker that is listed."""
    return [info.beat.pid for info in await scene.app.workers()] == [process.pid]


async def is_killed(process: Process) -> None:
    assert await process.over() == -9, process.log()
