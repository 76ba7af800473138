"""A server restarted, or killed, again and again under load: no job is lost, and the history is whole."""

import asyncio
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.history import Acked, Asked, violations
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.test_away import BACK
from tests.faults.process import until
from tests.faults.scene import Scene
from tests.pace import Pace

TASKS = ("quick", "quick", "quick", "stumble")
BULK = 50


@pytest.mark.slow("a server goes and comes several times")
@pytest.mark.parametrize("end", [Mortal.stop, Mortal.kill], ids=["restarted", "killed"])
async def test_a_server_that_goes_under_load_loses_nothing(
    scene: Scene, mortal: Mortal, end: Callable[[Mortal], None]
) -> None:
    await survive(scene, mortal, end, times=3, jobs=1_000)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", [Mortal.stop, Mortal.kill], ids=["restarted", "killed"])
async def test_a_server_that_goes_again_and_again_under_load_loses_nothing(
    scene: Scene, mortal: Mortal, end: Callable[[Mortal], None]
) -> None:
    await survive(scene, mortal, end, times=15, jobs=5_000)


async def survive(scene: Scene, mortal: Mortal, end: Callable[[Mortal], None], times: int, jobs: int) -> None:
    """Two workers, two producers one by one, and bulk; the server goes `times` times in between."""
    workers = [await scene.worker(lease=5.0, concurrency=50) for _ in range(2)]
    producers = [scene.start("produce", {"seed": seed}) for seed in range(2)]
    for process in producers:
        await until(lambda: acked(scene, process.pid))  # noqa: B023 - called here
    feeding = asyncio.create_task(feed(scene, jobs))
    for time_ in range(times):
        await until(lambda: acked(scene) > (time_ + 1) * jobs / (times + 1))  # noqa: B023 - called here
        end(mortal)
        mortal.start()
        back = time.monotonic()
        so_far = acked(scene)
        with Pace() as pace:
            await until(lambda: acked(scene) > so_far)  # noqa: B023 - called here
        assert time.monotonic() - back < pace.allowed(BACK)
    await feeding
    for process in producers:
        process.signal(signal.SIGTERM)
        assert await process.over() == 0, process.log()

    found = await scene.all_finished(limit=90)

    assert violations(scene.journal.read(), found) == []
    assert len(found.jobs) > jobs
    assert not any(process.is_over for process in workers)


async def feed(scene: Scene, jobs: int) -> None:
    """So many jobs, several at a time."""
    dice = random.Random(jobs)
    for _ in range(0, jobs, BULK):
        requests = [scene.app.tasks[dice.choice(TASKS)].new() for _ in range(BULK)]
        scene.journal.write(*[Asked(request.job.id, 0, time.time()) for request in requests])
        await scene.app.enqueue_many(requests)
        scene.journal.write(*[Acked(request.job.id, 0, time.time()) for request in requests])
        await asyncio.sleep(0.05)


def acked(scene: Scene, pid: int | None = None) -> int:
    """How many jobs the producers know to be safe, or one of them."""
    facts = [fact for fact in scene.journal.read() if isinstance(fact, Acked)]
    return sum(pid in (None, fact.pid) for fact in facts)
