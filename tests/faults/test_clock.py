"""Wall clocks that jump by an hour while workers run: no job is lost, and leases still expire.

A store on this host uses the wall clock of the host. The time of the store never goes back; after a step back
it runs at half speed (docs/adr/0003). After a step ahead, all earlier leases have expired, so the jobs that
were running run again, and no others.
"""

from pathlib import Path

import pytest

from errandry.core.state import State
from tests.faults.history import violations
from tests.faults.process import Process
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts workers and waits for a lease to expire")

HOUR = 3_600
LEASE, RENEW_EVERY = 4.0, 0.5
"""Seconds; short enough to wait for the end of a lease, long enough for a busy machine to renew it."""


@pytest.mark.parametrize("everywhere", [True, False], ids=["on the host", "in one process"])
async def test_after_a_step_back_jobs_run_once_and_leases_expire(scene: Scene, everywhere: bool) -> None:
    step_clock(scene, 0)
    first, running = await start_worker_with_job(scene)
    other = await start_worker(scene, everywhere)
    scheduled = await scene.enqueue("quick", {"delay": 0.5})

    step_clock(scene, -HOUR)

    assert (await scene.finished(scheduled)).attempts == 1
    for _ in range(5):
        record = await scene.finished(await scene.enqueue("quick"))
        assert (record.state, record.attempts) == (State.COMPLETED, 1)
    assert len(scene.journal.started(running)) == 1
    await kill_unseen(scene, first)
    runs = await scene.started(running, 2)
    assert runs[1].pid == other.pid
    scene.open_gate(attempt=2)
    await scene.check()


@pytest.mark.parametrize("everywhere", [True, False], ids=["on the host", "in one process"])
async def test_after_a_step_ahead_only_the_running_jobs_run_again(scene: Scene, everywhere: bool) -> None:
    step_clock(scene, 0)
    _, running = await start_worker_with_job(scene, lease=60.0)
    await start_worker(scene, everywhere, lease=60.0)
    done = [await scene.finished(await scene.enqueue("quick")) for _ in range(3)]

    step_clock(scene, HOUR)

    before, after = await scene.started(running, 2)
    assert after.fence > before.fence
    [ended] = await scene.ended(running)
    assert (ended.fence, ended.ending) == (before.fence, "canceled")
    await scene.crashes_taken_back(running)
    scene.open_gate(attempt=2)
    record = await scene.finished(running)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 0)
    for _ in range(5):
        record = await scene.finished(await scene.enqueue("quick"))
        assert (record.state, record.attempts) == (State.COMPLETED, 1)
    assert [await scene.app.client.record(job.id) for job in done] == done
    broken = violations(scene.journal.read(), await scene.all_finished())
    assert [violation for violation in broken if not violation.startswith(f"P3: job {running}")] == []


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_lease_given_after_a_step_expires(scene: Scene, hours: int) -> None:
    step_clock(scene, 0)
    first, running = await start_worker_with_job(scene, hours * HOUR)
    other = await start_worker(scene, everywhere=True)

    await kill_unseen(scene, first)

    runs = await scene.started(running, 2)
    assert runs[1].pid == other.pid
    scene.open_gate(attempt=2)
    await scene.check()


async def start_worker(scene: Scene, everywhere: bool = True, lease: float = LEASE) -> Process:
    """A worker. Its clock can be stepped if `everywhere` is true."""
    environment = {"CLOCK_STEP": str(scene.clock_step)} if everywhere else {}
    return await scene.worker(environment, lease=lease, renew_every=RENEW_EVERY)


async def start_worker_with_job(scene: Scene, seconds: int = 0, lease: float = LEASE) -> tuple[Process, str]:
    """A worker that runs a job which began after a step of `seconds`."""
    first = await start_worker(scene, lease=lease)
    step_clock(scene, seconds)
    job = await scene.enqueue("hold", gate=scene.gate)
    await scene.started(job)
    return first, job


def step_clock(scene: Scene, seconds: int) -> None:
    """Step the clock. The file is replaced atomically, because the workers read it all the time."""
    new = scene.clock_step.with_suffix(".new")
    new.write_text(str(seconds), "ascii")
    new.replace(scene.clock_step)


async def kill_unseen(scene: Scene, worker: Process) -> None:
    """Kill a worker without its lock file, so that the others cannot know that it is dead."""
    for record in await scene.app.engine.call(scene.app.store.workers):
        if record.beat.pid == worker.pid:
            Path(record.beat.alive).unlink()
    worker.kill()
