"""Workers with handlers in child processes are killed and stopped: no child survives, and no job is lost."""

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.claims.liveness import Liveness, is_dead, remove_lock_file
from errandry.core.state import Reason, State
from tests.faults.command import CommandScene, is_alive, open_command_scene
from tests.faults.process import wait_until
from tests.faults.scene import BOTH_LOOPS
from tests.machine_load import MachineLoad

pytestmark = pytest.mark.slow(reason="starts workers and kills them")


@pytest.fixture
async def scene(url: str, tmp_path: Path) -> AsyncIterator[CommandScene]:
    async with open_command_scene(url, tmp_path) as scene:
        yield scene


async def test_children_die_with_a_killed_worker_and_their_job_runs_again(scene: CommandScene) -> None:
    """The lease lasts for a minute, but the lock file shows the death although the child had it open too."""
    job = await scene.enqueue("hold")
    victim = scene.worker("--lease", "60s")
    child, parent = await scene.wait_for_handler(job)
    assert parent == victim.pid
    other = scene.worker("--lease", "60s")
    await other.wait_for_log("tasks hold")

    began = time.monotonic()
    victim.kill()
    with MachineLoad() as load:
        await wait_until(lambda: not is_alive(child))
    assert time.monotonic() - began < load.scaled(2.0)
    second, parent = await scene.wait_for_handler(job, attempt=2)
    assert (parent, second != child) == (other.pid, True)
    assert time.monotonic() - began < 40

    scene.release_handlers()
    record = await scene.app.client.wait_finished(job, 60)
    assert record is not None
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 1)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]


async def test_a_worker_counts_as_alive_while_a_child_holds_its_lock(scene: CommandScene) -> None:
    job = await scene.enqueue("hold")
    scene.worker()
    child, _ = await scene.wait_for_handler(job)

    open_files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{child}/fd")]
    [worker] = await scene.app.engine.call(scene.app.store.workers)

    assert worker.beat.alive in open_files


def test_a_lock_is_held_as_long_as_one_process_has_it() -> None:
    liveness = Liveness()
    lock = liveness.descriptor
    assert lock is not None
    child = subprocess.Popen(["sleep", "600"], pass_fds=(lock,))
    try:
        os.close(lock)  # as the system does when the worker dies
        assert not is_dead(liveness.path)
    finally:
        child.kill()
        child.wait()
    assert is_dead(liveness.path)
    remove_lock_file(liveness.path)


async def test_a_drain_lets_children_finish(scene: CommandScene) -> None:
    job = await scene.enqueue("hold")
    worker = scene.worker("--grace", "60s")
    child, _ = await scene.wait_for_handler(job)

    worker.signal(signal.SIGTERM)
    await worker.wait_for_log("handlers may finish for 60 s")
    assert is_alive(child)
    scene.release_handlers()

    assert await worker.wait_for_end() == 0
    record = await scene.app.client.record(job)
    assert (record.state, record.attempts, record.releases) == (State.COMPLETED, 1, 0)
    assert not is_alive(child)


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_child_that_does_not_finish_in_time_is_killed_and_its_job_released(
    scene: CommandScene, signals: int
) -> None:
    job = await scene.enqueue("hold")
    worker = scene.worker("--grace", "0.2s" if signals == 1 else "3600s")
    child, _ = await scene.wait_for_handler(job)

    worker.signal(signal.SIGTERM)
    await worker.wait_for_log("handlers may finish")
    if signals == 2:
        worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 0
    record = await scene.app.client.record(job)
    assert (record.state, record.attempts, record.releases, record.errors) == (State.WAITING, 0, 1, ())
    assert not is_alive(child)


@BOTH_LOOPS
async def test_a_child_killed_from_outside_spends_an_attempt_and_the_worker_goes_on(
    scene: CommandScene,
) -> None:
    job = await scene.enqueue("hold", backoff=0.05)
    worker = scene.worker()
    child, _ = await scene.wait_for_handler(job)

    os.kill(child, signal.SIGKILL)
    _, parent = await scene.wait_for_handler(job, attempt=2)
    scene.release_handlers()

    record = await scene.app.client.wait_finished(job, 60)
    assert record is not None
    assert parent == worker.pid
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 0)
    [error] = record.errors
    assert (error.kind, error.type) == (Reason.ERROR, "ProcessDied")
    assert "SIGKILL" in error.message
