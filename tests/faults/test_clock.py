"""Wall clocks that step by an hour while workers run: no job is lost, and leases still run out.

For a store on this host, the wall clock is the store's. It never goes back; after a step back it runs at half
speed (docs/adr/0003). After a step ahead every lease given before it has run out, so what was running then
runs again, and only that.
"""

from pathlib import Path

import pytest

from errandry.core.state import State
from tests.faults.history import violations
from tests.faults.process import Process
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts workers and outlasts a lease")

HOUR = 3_600
LEASE, RENEWAL = 4.0, 0.5
"""Neither so long that waiting for its end takes long, nor so short that a busy machine cannot keep it."""


@pytest.mark.parametrize("everywhere", [True, False], ids=["on the host", "in one process"])
async def test_after_a_step_back_jobs_run_once_and_leases_run_out(scene: Scene, everywhere: bool) -> None:
    step(scene, 0)
    first, running = await worker_with_job(scene)
    other = await worker(scene, everywhere)
    scheduled = await scene.enqueue("quick", {"delay": 0.5})

    step(scene, -HOUR)

    assert (await scene.finished(scheduled)).attempts == 1
    for _ in range(5):
        record = await scene.finished(await scene.enqueue("quick"))
        assert (record.state, record.attempts) == (State.COMPLETED, 1)
    assert len(scene.journal.started(running)) == 1
    await die_unseen(scene, first)
    runs = await scene.started(running, 2)
    assert runs[1].pid == other.pid
    scene.open_gate(attempt=2)
    await scene.check()


@pytest.mark.parametrize("everywhere", [True, False], ids=["on the host", "in one process"])
async def test_after_a_step_ahead_only_what_was_running_runs_again(scene: Scene, everywhere: bool) -> None:
    step(scene, 0)
    _, running = await worker_with_job(scene, lease=60.0)
    await worker(scene, everywhere, lease=60.0)
    done = [await scene.finished(await scene.enqueue("quick")) for _ in range(3)]

    step(scene, HOUR)

    before, after = await scene.started(running, 2)
    assert after.fence > before.fence
    [ended] = await scene.ended(running)
    assert (ended.fence, ended.how) == (before.fence, "canceled")
    scene.open_gate(attempt=2)
    record = await scene.finished(running)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 2, 1)
    for _ in range(5):
        record = await scene.finished(await scene.enqueue("quick"))
        assert (record.state, record.attempts) == (State.COMPLETED, 1)
    assert [await scene.app.record(job.id) for job in done] == done
    broken = violations(scene.journal.read(), await scene.all_finished())
    assert [one for one in broken if not one.startswith(f"P3: job {running}")] == []


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_lease_given_after_a_step_runs_out(scene: Scene, hours: int) -> None:
    step(scene, 0)
    first, running = await worker_with_job(scene, hours * HOUR)
    other = await worker(scene, everywhere=True)

    await die_unseen(scene, first)

    runs = await scene.started(running, 2)
    assert runs[1].pid == other.pid
    scene.open_gate(attempt=2)
    await scene.check()


async def worker(scene: Scene, everywhere: bool = True, lease: float = LEASE) -> Process:
    """A worker whose clock can be stepped, if all clocks can."""
    environment = {"CLOCK_STEP": str(scene.clock_step)} if everywhere else {}
    return await scene.worker(environment, lease=lease, renew_every=RENEWAL)


async def worker_with_job(scene: Scene, seconds: int = 0, lease: float = LEASE) -> tuple[Process, str]:
    """A worker that runs a job begun after a step of so many seconds."""
    first = await worker(scene, lease=lease)
    step(scene, seconds)
    job = await scene.enqueue("hold", gate=scene.gate)
    await scene.started(job)
    return first, job


def step(scene: Scene, seconds: int) -> None:
    """Whole or not at all: the workers read it all the time."""
    new = scene.clock_step.with_suffix(".new")
    new.write_text(str(seconds), "ascii")
    new.replace(scene.clock_step)


async def die_unseen(scene: Scene, worker: Process) -> None:
    """Die so that nobody can tell: on another host, for all the others know."""
    for info in await scene.app.workers():
        if info.beat.pid == worker.pid:
            Path(info.beat.alive).unlink()
    worker.kill()
