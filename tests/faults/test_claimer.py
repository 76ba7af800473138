"""Programs that claim jobs by hand are killed, suspended and stopped: as safe as workers."""

import json
import signal
import time

import pytest

from errandry.core.state import Reason, State
from tests.faults.scene import Scene
from tests.faults.test_pause import LEASE, LONG_LEASE, suspend_between_passes
from tests.machine_load import MachineLoad

pytestmark = pytest.mark.slow("starts programs and kills them")


@pytest.mark.parametrize("survivor", ["claimer", "worker"])
async def test_the_job_of_a_killed_claimer_runs_again_long_before_its_lease_ends(
    scene: Scene, load: MachineLoad, survivor: str
) -> None:
    """Its lock file shows the others, workers and claimers, that it is dead."""
    job = await scene.enqueue("hold", gate=scene.gate)
    victim = await scene.claimer(lease=LONG_LEASE)
    [first] = await scene.started(job)
    other = await (scene.claimer if survivor == "claimer" else scene.worker)(lease=LONG_LEASE)

    began = time.monotonic()
    victim.kill()
    _, second = await scene.started(job, 2)

    assert time.monotonic() - began < load.scaled(LONG_LEASE / 4)
    assert (first.pid, second.pid) == (victim.pid, other.pid)
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 1)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
    await scene.check()


async def test_a_claimer_suspended_past_its_lease_changes_nothing(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.claimer(lease=LEASE)
    [first] = await scene.started(job)
    other = await scene.worker(lease=LONG_LEASE)
    await suspend_between_passes(scene, zombie)
    _, second = await scene.started(job, 2)
    assert (first.pid, second.pid) == (zombie.pid, other.pid)
    scene.open_gate(attempt=1)

    zombie.resume()

    await zombie.wait_for_log(f"the lease on job {job} (fence {first.fence}) is no longer held")
    assert (await scene.app.client.record(job)).fence == second.fence
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert (record.state, record.fence) == (State.COMPLETED, second.fence)
    assert record.result is not None
    assert json.loads(record.result)["pid"] == other.pid
    assert f"the lease of job {job} (hold) is lost" in zombie.log()
    await scene.check()


@pytest.mark.parametrize(
    ("role", "number"), [("claim", signal.SIGINT), ("cancelable", signal.SIGTERM)], ids=["Ctrl-C", "SIGTERM"]
)
async def test_a_claimer_that_is_stopped_releases_its_jobs(
    scene: Scene, role: str, number: signal.Signals
) -> None:
    """In the middle of its first job: by Ctrl-C, or by a SIGTERM that cancels its task."""
    jobs = [await scene.enqueue("hold", gate=scene.gate) for _ in range(2)]
    program = await scene.claimer(role, lease=LONG_LEASE)
    await scene.wait_for_states(jobs, State.RUNNING)

    program.signal(number)

    await program.wait_for_end()
    for job in jobs:
        record = await scene.app.client.record(job)
        assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)
    assert await scene.app.workers.list() == []
