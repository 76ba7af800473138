"""A server that is restarted or killed several times under load: no job is lost or done twice."""

import asyncio
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.history import EnqueueAcked, EnqueueSent, violations
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.test_away import RECOVERY_MAX
from tests.faults.process import wait_until
from tests.faults.scene import Scene
from tests.machine_load import MachineLoad

TASKS = ("quick", "quick", "quick", "stumble")
BULK = 50


@pytest.mark.slow("restarts a server several times")
@pytest.mark.parametrize("end", [Mortal.stop, Mortal.kill], ids=["restarted", "killed"])
async def test_a_restart_of_the_server_under_load_loses_nothing(
    scene: Scene, mortal: Mortal, end: Callable[[Mortal], None]
) -> None:
    await survive(scene, mortal, end, times=3, jobs=1_000)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", [Mortal.stop, Mortal.kill], ids=["restarted", "killed"])
async def test_many_restarts_of_the_server_under_load_lose_nothing(
    scene: Scene, mortal: Mortal, end: Callable[[Mortal], None]
) -> None:
    await survive(scene, mortal, end, times=15, jobs=5_000)


async def survive(scene: Scene, mortal: Mortal, end: Callable[[Mortal], None], times: int, jobs: int) -> None:
    """Run two workers, two producers of single jobs, and a bulk producer; end the server `times` times."""
    workers = [await scene.worker(lease=5.0, concurrency=50) for _ in range(2)]
    producers = [scene.start("produce", {"seed": seed}) for seed in range(2)]
    for process in producers:
        await wait_until(lambda: acked_count(scene, process.pid))  # noqa: B023 - called here
    feeding = asyncio.create_task(feed(scene, jobs))
    for time_ in range(times):
        await wait_until(lambda: acked_count(scene) > (time_ + 1) * jobs / (times + 1))  # noqa: B023 - called here
        end(mortal)
        mortal.start()
        back = time.monotonic()
        so_far = acked_count(scene)
        with MachineLoad() as load:
            await wait_until(lambda: acked_count(scene) > so_far)  # noqa: B023 - called here
        assert time.monotonic() - back < load.scaled(RECOVERY_MAX)
    await feeding
    for process in producers:
        process.signal(signal.SIGTERM)
        assert await process.wait_for_end() == 0, process.log()

    found = await scene.all_finished(limit=90)

    assert violations(scene.journal.read(), found) == []
    assert len(found.jobs) > jobs
    assert not any(process.has_ended for process in workers)


async def feed(scene: Scene, jobs: int) -> None:
    """Enqueue `jobs` jobs in bulk."""
    dice = random.Random(jobs)
    for _ in range(0, jobs, BULK):
        requests = [scene.app.tasks[dice.choice(TASKS)].new() for _ in range(BULK)]
        scene.journal.write(*[EnqueueSent(request.job.id, 0, time.time()) for request in requests])
        await scene.app.enqueue_many(requests)
        scene.journal.write(*[EnqueueAcked(request.job.id, 0, time.time()) for request in requests])
        await asyncio.sleep(0.05)


def acked_count(scene: Scene, pid: int | None = None) -> int:
    """The number of jobs acknowledged to all producers, or to the one with this process id."""
    facts = [fact for fact in scene.journal.read() if isinstance(fact, EnqueueAcked)]
    return sum(pid in (None, fact.pid) for fact in facts)
