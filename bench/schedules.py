"""Figures of schedules, on SQLite and PostgreSQL.

python -m bench.schedules          both
python -m bench.schedules late     from a tick to the start of its handler, on an idle system
python -m bench.schedules rest     what 10,000 schedules cost while none of them ticks
"""

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable

from bench.stores import empty
from errandry import Errandry, JobContext, Worker, WorkerOptions
from errandry.core.job import NewJob
from errandry.core.schedule import PutSchedule, SchedulePlan

SCHEDULES = 10
TICKS = 300
AT_REST = 10_000
SECONDS = 20.0


async def late(name: str, url: str) -> None:
    """Ten schedules that tick each second, one after the other, so that each finds the system idle."""
    jobs, found, enough = Errandry(url), list[float](), asyncio.Event()

    @jobs.task
    async def report(ctx: JobContext) -> None:
        if ctx.tick is not None:
            found.append(time.time() - ctx.tick.timestamp())
        if len(found) >= TICKS:
            enough.set()

    async with jobs:
        for number in range(SCHEDULES):
            start = int(time.time()) + number / SCHEDULES
            await jobs.schedules.put(f"s{number}", report, "every 1s", start=start)
        await _worked(jobs, enough.wait())
        for number in range(SCHEDULES):
            await jobs.schedules.remove(f"s{number}")
    found.sort()
    p50, p99 = (found[int(len(found) * share)] * 1e3 for share in (0.5, 0.99))
    print(f"{name}: from tick to handler, {len(found)} ticks: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


async def rest(name: str, url: str) -> None:
    """An idle worker with many schedules beside one without, in turn."""
    jobs = Errandry(url)
    async with jobs:
        without = await _used(jobs)
        plan = SchedulePlan(job=NewJob(id="-", task="report", payload="{}"), cron="0 0 1 1 *")
        for start in range(0, AT_REST, 500):
            puts = [PutSchedule(f"s{number}", plan) for number in range(start, start + 500)]
            await asyncio.gather(*map(jobs.engine.submit, puts))
        beside = await _used(jobs)
    print(f"{name}: an idle worker takes {without:.2%} of a core, with {AT_REST:,} schedules {beside:.2%}")


async def _used(jobs: Errandry) -> float:
    """The share of a core that a worker takes, once it has begun."""
    worker = Worker(jobs, WorkerOptions())
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(2)
    before, began = _spent(), time.perf_counter()
    await asyncio.sleep(SECONDS)
    used = (_spent() - before) / (time.perf_counter() - began)
    worker.stop()
    await working
    return used


async def _worked(jobs: Errandry, until: Awaitable[object]) -> None:
    worker = Worker(jobs, WorkerOptions())
    working = asyncio.create_task(worker.run())
    await until
    worker.stop()
    await working


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(wanted: list[str]) -> None:
    for what in wanted or ["late", "rest"]:
        with empty() as urls:
            for name, url in urls.items():
                asyncio.run({"late": late, "rest": rest}[what](name, url))


if __name__ == "__main__":
    main(sys.argv[1:])
