"""Four workers under a limit of three are killed again and again: never four at once, no lost permit."""

import asyncio
import random
import time

import pytest

from errandry.core.gate import GateKind, PutRule
from errandry.core.rule import Rule
from errandry.core.state import State
from tests.faults.scene import Scene

LIMIT = 3
LEASE = 20.0
"""Seconds. No lease may expire on a slow machine, because that would give its permit away."""
KILLS_MIN = 5
"""Minimum number of kills, also on a slow machine."""


@pytest.mark.slow("six seconds of kills, and the time to recover")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "rule", [Rule(limit=LIMIT), Rule(group_limit=LIMIT)], ids=["of the queue", "of the group"]
)
async def test_a_limit_holds_while_workers_are_killed(scene: Scene, rule: Rule) -> None:
    await survive(scene, rule, seed=1, seconds=6)


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 8))
async def test_a_limit_holds_while_workers_are_killed_for_longer(scene: Scene, seed: int) -> None:
    await survive(scene, Rule(limit=LIMIT, group_limit=LIMIT), seed, seconds=20)


async def survive(scene: Scene, rule: Rule, seed: int, seconds: float) -> None:
    dice = random.Random(seed)
    await scene.app.engine.submit(PutRule(GateKind.QUEUE, "default", rule))
    task = scene.app.tasks["permitted"].using(group="g", max_attempts=1_000)
    calls = [task.new(permits=LIMIT, seconds=0.03) for _ in range(60 * int(seconds))]
    await scene.app.enqueue_many(calls)
    crew = [await scene.worker(concurrency=4, lease=LEASE) for _ in range(4)]
    deadline = time.monotonic() + seconds
    kills = 0
    while time.monotonic() < deadline or kills < KILLS_MIN:
        await asyncio.sleep(dice.uniform(0.2, 0.8))
        victim = dice.randrange(len(crew))
        crew[victim].kill()
        kills += 1
        crew[victim] = scene.start("work", {"concurrency": 4, "lease": LEASE})

    contents = await scene.all_finished(limit=120)

    failed = [
        job for job in contents.jobs if job.state is not State.COMPLETED and job.reason != "worker_lost"
    ]
    assert failed == [], failed[0].errors
    assert len(contents.jobs) == len(calls)
