"""Workers with handlers in child processes, killed and stopped: no child is left, and no job is lost."""

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.core.state import Reason, State
from errandry.worker.liveness import Liveness, bury, is_dead
from tests.faults.command import Stage, is_alive, staged
from tests.faults.process import until
from tests.faults.scene import BOTH_LOOPS
from tests.pace import Pace

pytestmark = pytest.mark.slow(reason="starts workers and kills them")


@pytest.fixture
async def stage(url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(url, tmp_path) as stage:
        yield stage


async def test_children_die_with_a_killed_worker_and_their_job_runs_again(stage: Stage) -> None:
    """Its lease has a minute to go: the lock file, which the child held open too, tells the others."""
    job = await stage.enqueue("hold")
    victim = stage.worker("--lease", "60s")
    child, parent = await stage.running(job)
    assert parent == victim.pid
    other = stage.worker("--lease", "60s")
    await other.logged("tasks hold")

    began = time.monotonic()
    victim.kill()
    with Pace() as pace:
        await until(lambda: not is_alive(child))
    assert time.monotonic() - began < pace.allowed(2.0)
    second, parent = await stage.running(job, attempt=2)
    assert (parent, second != child) == (other.pid, True)
    assert time.monotonic() - began < 40

    stage.open()
    record = await stage.app.finished(job, 60)
    assert record is not None
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 1)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]


async def test_a_worker_is_not_taken_for_dead_while_a_child_holds_its_lock(stage: Stage) -> None:
    job = await stage.enqueue("hold")
    stage.worker()
    child, _ = await stage.running(job)

    held = [os.readlink(one.path) for one in os.scandir(f"/proc/{child}/fd")]
    [info] = await stage.app.workers()

    assert info.beat.alive in held


def test_a_lock_is_held_as_long_as_one_process_has_it() -> None:
    liveness = Liveness()
    lock = liveness.descriptor
    assert lock is not None
    child = subprocess.Popen(["sleep", "600"], pass_fds=(lock,))
    try:
        os.close(lock)  # as the death of the worker does
        assert not is_dead(liveness.path)
    finally:
        child.kill()
        child.wait()
    assert is_dead(liveness.path)
    bury(liveness.path)


async def test_a_drain_lets_children_finish(stage: Stage) -> None:
    job = await stage.enqueue("hold")
    worker = stage.worker("--grace", "60s")
    child, _ = await stage.running(job)

    worker.signal(signal.SIGTERM)
    await worker.logged("handlers may finish for 60 s")
    assert is_alive(child)
    stage.open()

    assert await worker.over() == 0
    record = await stage.app.record(job)
    assert (record.state, record.attempts, record.releases) == (State.COMPLETED, 1, 0)
    assert not is_alive(child)


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_child_that_does_not_finish_in_time_is_killed_and_its_job_given_back(
    stage: Stage, signals: int
) -> None:
    job = await stage.enqueue("hold")
    worker = stage.worker("--grace", "0.2s" if signals == 1 else "3600s")
    child, _ = await stage.running(job)

    worker.signal(signal.SIGTERM)
    await worker.logged("handlers may finish")
    if signals == 2:
        worker.signal(signal.SIGTERM)

    assert await worker.over() == 0
    record = await stage.app.record(job)
    assert (record.state, record.attempts, record.releases, record.errors) == (State.WAITING, 0, 1, ())
    assert not is_alive(child)


@BOTH_LOOPS
async def test_a_child_killed_from_outside_costs_an_attempt_and_not_the_worker(stage: Stage) -> None:
    job = await stage.enqueue("hold", backoff=0.05)
    worker = stage.worker()
    child, _ = await stage.running(job)

    os.kill(child, signal.SIGKILL)
    _, parent = await stage.running(job, attempt=2)
    stage.open()

    record = await stage.app.finished(job, 60)
    assert record is not None
    assert parent == worker.pid
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 0)
    [error] = record.errors
    assert (error.kind, error.type) == (Reason.ERROR, "ProcessDied")
    assert "SIGKILL" in error.message
