"""Measure limits and rates, on SQLite and PostgreSQL.

    python -m bench.lanes            both parts
    python -m bench.lanes rate       a rate of 1,000/s with four workers: the mean and the busiest second
    python -m bench.lanes limit      draining with a limit that is never reached, and without

With `sqlite` or `postgres`, on that store only.
"""

import asyncio
import multiprocessing
import statistics
import sys
import time
from bisect import bisect_left
from multiprocessing.synchronize import Barrier

from bench.stores import STORES, empty_stores
from errandry import Errandry, Worker
from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, Settle
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import NewJob
from errandry.core.rule import NO_RULE, Rate, Rule
from errandry.store.contract import Store
from errandry.store.url import store_at

PASS_SIZE = 100
RATE = Rate(1_000, 1.0, 100)
PROCESSES = 4


async def fill(store: Store, jobs: int, prefix: str) -> None:
    for start in range(0, jobs, 1_000):
        new = [NewJob(id=f"{prefix}-{start + n}", task="noop", payload="{}") for n in range(1_000)]
        await store.commit([Insert(tuple(new))])


async def drain(store: Store, jobs: int, prefix: str) -> float:
    """Seconds to claim and settle this number of jobs, in passes that do both."""
    settles: list[Settle] = []
    start, done = time.perf_counter(), 0
    while done < jobs:
        nonce = f"{prefix}-{done}"
        *_, claims = await store.commit([*settles, Claim(worker="w", nonce=nonce, limit=PASS_SIZE)])
        if not isinstance(claims, Claims) or not claims.jobs:
            raise RuntimeError(f"claimed {claims} after {done} jobs")
        settles = [Settle(Ref(job.id, job.fence), CompleteOutcome()) for job in claims.jobs]
        done += len(settles)
    await store.commit(settles)
    return time.perf_counter() - start


async def limit(url: str, rounds: int = 6, jobs: int = 3_000) -> None:
    """Drain with a limit that is never reached and without, taking turns."""
    store = store_at(url)
    await store.open()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    try:
        for number in range(2 * rounds):
            is_limited = number % 2 == 0
            rule = Rule(limit=10 * PASS_SIZE) if is_limited else NO_RULE
            await store.commit([PutRule(GateKind.QUEUE, "default", rule)])
            await fill(store, jobs, f"{time.time_ns()}")
            seconds[is_limited].append(await drain(store, jobs, f"{time.time_ns()}"))
    finally:
        await store.close()
    free, held = statistics.median(seconds[False]), statistics.median(seconds[True])
    print(f"  unlimited {jobs / free:8,.0f} jobs/s, limit never reached {jobs / held:8,.0f} jobs/s")
    print(f"  ratio {free / held:.2f} (at least 0.70)")


def work(url: str, seconds: float, barrier: Barrier) -> None:
    """Run a worker with no-op handlers for this time."""
    jobs = Errandry(url)

    @jobs.task
    async def noop() -> None: ...

    async def main() -> None:
        await jobs.open()
        barrier.wait()
        worker = Worker(jobs)
        asyncio.get_running_loop().call_later(seconds, worker.stop)
        await worker.run()
        await jobs.close()

    asyncio.run(main())


async def rate(url: str, seconds: float = 10.0) -> None:
    store = store_at(url)
    await store.open()
    await store.commit([PutRule(GateKind.QUEUE, "default", Rule(rate=RATE))])
    jobs = int(seconds * 1.3 * RATE.count) // 1_000 * 1_000
    await fill(store, jobs, f"{time.time_ns()}")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    processes = [context.Process(target=work, args=(url, seconds + 1, barrier)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
    times = []
    cursor = None
    while True:
        page = await store.list(cursor=cursor, limit=10_000)
        times += [job.claimed_at for job in page.jobs if job.claimed_at is not None]
        if (cursor := page.cursor) is None:
            break
    await store.close()
    times.sort()
    first = times[0]
    count = bisect_left(times, first + seconds)
    busiest = max(bisect_left(times, at + RATE.period) - n for n, at in enumerate(times))
    mean = count / seconds
    print(f"  {PROCESSES} processes, {RATE}, burst {RATE.burst}: {mean:,.0f}/s over {seconds:g} s")
    print(f"  {mean / RATE.count:.1%} of the rate (at least 98 %)")
    print(f"  busiest second: {busiest:,} (at most {RATE.count + RATE.burst:,})")


def main(parts: list[str]) -> None:
    for name, figure in (("rate", rate), ("limit", limit)):
        if set(parts) & {"rate", "limit"} and name not in parts:
            continue
        with empty_stores([store for store in STORES if store in parts] or STORES) as urls:
            for kind, url in urls.items():
                print(f"{name}, {kind}:")
                asyncio.run(figure(url))


if __name__ == "__main__":
    main(sys.argv[1:])
