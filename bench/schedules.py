"""Measure schedules, on SQLite and PostgreSQL.

python -m bench.schedules          both parts
python -m bench.schedules late     the time from a tick to the start of its handler, on an idle system
python -m bench.schedules rest     the CPU time of an idle worker with 10,000 schedules that do not tick
"""

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable

from bench.stores import empty_stores
from errandry import Errandry, JobContext, Worker, WorkerOptions
from errandry.core.job import NewJob
from errandry.core.schedule import PutSchedule, SchedulePlan

SCHEDULES = 10
TICKS_MEASURED = 300
IDLE_SCHEDULES = 10_000
IDLE_SECONDS = 20.0


async def tick_latency(name: str, url: str) -> None:
    """Run ten schedules that tick each second, one after the other, so that each finds the system idle."""
    jobs, delays, enough = Errandry(url), list[float](), asyncio.Event()

    @jobs.task
    async def report(ctx: JobContext) -> None:
        if ctx.tick is not None:
            delays.append(time.time() - ctx.tick.timestamp())
        if len(delays) >= TICKS_MEASURED:
            enough.set()

    async with jobs:
        for number in range(SCHEDULES):
            start = int(time.time()) + number / SCHEDULES
            await jobs.schedules.put(f"s{number}", report, "every 1s", start=start)
        await _work_until(jobs, enough.wait())
        for number in range(SCHEDULES):
            await jobs.schedules.remove(f"s{number}")
    delays.sort()
    p50, p99 = (delays[int(len(delays) * share)] * 1e3 for share in (0.5, 0.99))
    print(f"{name}: from tick to handler, {len(delays)} ticks: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


async def idle_cost(name: str, url: str) -> None:
    """Compare an idle worker with many schedules and one without any."""
    jobs = Errandry(url)
    async with jobs:
        share_without = await _cpu_share(jobs)
        plan = SchedulePlan(job=NewJob(id="-", task="report", payload="{}"), cron="0 0 1 1 *")
        for start in range(0, IDLE_SCHEDULES, 500):
            puts = [PutSchedule(f"s{number}", plan) for number in range(start, start + 500)]
            await asyncio.gather(*map(jobs.engine.submit, puts))
        share_with = await _cpu_share(jobs)
    print(
        f"{name}: an idle worker uses {share_without:.2%} of a core, "
        f"with {IDLE_SCHEDULES:,} schedules {share_with:.2%}"
    )


async def _cpu_share(jobs: Errandry) -> float:
    """The share of a CPU core that an idle worker uses after its start."""
    worker = Worker(jobs, WorkerOptions())
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(2)
    before, began = _cpu_seconds(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    used = (_cpu_seconds() - before) / (time.perf_counter() - began)
    worker.stop()
    await working
    return used


async def _work_until(jobs: Errandry, until: Awaitable[object]) -> None:
    worker = Worker(jobs, WorkerOptions())
    working = asyncio.create_task(worker.run())
    await until
    worker.stop()
    await working


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(wanted: list[str]) -> None:
    for what in wanted or ["late", "rest"]:
        with empty_stores() as urls:
            for name, url in urls.items():
                asyncio.run({"late": tick_latency, "rest": idle_cost}[what](name, url))


if __name__ == "__main__":
    main(sys.argv[1:])
