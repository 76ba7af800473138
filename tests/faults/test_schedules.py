"""Three workers are killed and suspended at the ticks of a schedule: each tick runs once."""

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from errandry.core.answer import Claims, UpkeepResult
from errandry.core.command import Claim, Upkeep
from errandry.core.job import JobRecord, NewJob
from errandry.core.schedule import CatchUp, Overlap, PutSchedule, SchedulePlan, job_id
from errandry.core.state import State
from errandry.core.tick import origin
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from tests.faults.process import wait_until_async
from tests.faults.scene import Scene
from tests.faults.test_pause import suspend_between_passes
from tests.store.server import server

LEASE = 1.5
SUSPENDED_TICKS, MINUTE = 4, 60
"""Number of ticks for which one of the workers is suspended, and in the long test."""


@pytest.mark.slow("twelve ticks of a second, and the time to recover")
async def test_each_tick_runs_once_while_workers_are_killed_and_suspended(scene: Scene) -> None:
    await survive(scene, seed=1, ticks=12)


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 5))
async def test_each_tick_runs_once_for_longer(scene: Scene, seed: int) -> None:
    await survive(scene, seed, ticks=MINUTE + 15, suspended_ticks=MINUTE)


async def survive(scene: Scene, seed: int, ticks: int, suspended_ticks: int = SUSPENDED_TICKS) -> None:
    dice = random.Random(seed)
    options: dict[str, Any] = {"lease": LEASE, "upkeep_every": 0.3}
    crew = [await scene.worker(**options) for _ in range(3)]
    sleeper, *others = crew
    call = scene.app.tasks["quick"].using(max_attempts=100, max_crashes=100).new()
    put = await scene.app.schedules.put("beat", call, "* * * * * *", catch_up="all")
    assert put.next_tick is not None
    first = put.next_tick.timestamp()
    for number in range(ticks):
        await _sleep_until(first + number + dice.uniform(-0.02, 0.02))
        if number == 1:
            await suspend_between_passes(scene, sleeper)
        elif number == 1 + suspended_ticks:
            sleeper.resume()
        elif number % 2:
            victim = dice.randrange(len(others))
            others[victim].kill()
            others[victim] = scene.start("work", options)
    await wait_until_async(partial(_has_run_times, scene, ticks - 3))
    schedule = await scene.app.schedules.get("beat")
    await scene.app.schedules.remove("beat")

    jobs = (await scene.all_finished(limit=60)).jobs

    ran = _ticks(jobs)
    assert ran == [first + number for number in range(len(ran))], ran
    assert len(ran) >= ticks - 3
    assert schedule.missed == 0
    assert [job.state for job in jobs] == [State.COMPLETED] * len(jobs)
    twice = [job.id for job in jobs if len(scene.journal.started(job.id)) > 1 + job.crashes]
    assert twice == []


@pytest.mark.slow("workers that die in the pass of a tick")
@pytest.mark.parametrize("point", ["before_claim_commit:2", "after_claim_commit:2"])
async def test_a_worker_that_dies_in_the_pass_of_a_tick_loses_no_tick(scene: Scene, point: str) -> None:
    call = scene.app.tasks["quick"].new()
    put = await scene.app.schedules.put("beat", call, "* * * * * *", catch_up="all")
    assert put.next_tick is not None
    first = put.next_tick.timestamp()
    dying = scene.start("work", {"lease": LEASE}, ERRANDRY_FAILPOINT=point)
    assert await dying.wait_for_end() < 0
    await scene.worker(lease=LEASE)

    await wait_until_async(partial(_has_run_times, scene, 5))
    await scene.app.schedules.remove("beat")

    ran = _ticks((await scene.all_finished()).jobs)

    assert ran == [first + number for number in range(len(ran))]
    assert len(ran) >= 5


@pytest.mark.timeout(120)
@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_simultaneous_passes_decide_about_a_tick_once(
    tmp_path: Path, kind: str, overlap: Overlap
) -> None:
    clock = FakeClock()
    url = server().new_url() if kind == "postgres" else f"sqlite:///{tmp_path}/jobs.db?durability=process"
    stores = [store_at(url, clock) for _ in range(3)]
    for store in stores:
        await store.open()
    try:
        job = NewJob(id="-", task="t", payload="{}")
        plan = SchedulePlan(job=job, every=10.0, overlap=overlap, catch_up=CatchUp.ALL)
        await stores[0].commit([PutSchedule("s", plan)])
        claimed: list[JobRecord] = []
        for number in range(20):
            clock.advance(10)
            passes = [
                store.commit([Upkeep(), Claim(worker=f"w{n}", nonce=f"{n}-{number}", limit=9, lease=1e6)])
                for n, store in enumerate(stores)
            ]
            for result, claims in await asyncio.gather(*passes):
                assert isinstance(result, UpkeepResult)
                assert isinstance(claims, Claims)
                claimed += claims.jobs
        schedule = await stores[0].schedule("s")
        assert schedule is not None
        assert (schedule.tick, schedule.runs + schedule.missed) == (clock.time() + 10, 20)
        once = [job_id("s", FakeClock().time() + 10)]
        every = [job_id("s", FakeClock().time() + 10 * number) for number in range(1, 21)]
        assert sorted(job.id for job in claimed) == (every if overlap is Overlap.ALLOW else once)
    finally:
        for store in stores:
            await store.close()


async def _has_run_times(scene: Scene, times: int) -> bool:
    return (await scene.app.schedules.get("beat")).runs >= times


def _ticks(jobs: Sequence[JobRecord]) -> list[float]:
    return sorted(start.tick or 0.0 for job in jobs if (start := origin(job)) is not None)


async def _sleep_until(moment: float) -> None:
    """Wait for a time of this host's clock, because ticks are such times."""
    await asyncio.sleep(max(0.0, moment - time.time()))
