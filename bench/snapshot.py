"""Measures the cost of an old snapshot: another connection holds one, so that vacuum removes no dead rows.

    python -m bench.snapshot               ten minutes with the snapshot, after one without
    python -m bench.snapshot --minutes 2

A producer keeps a backlog, which one worker process drains. Each line is a minute: the completed jobs, their
share of those in the minute before the snapshot, and the dead rows of unfinished jobs at its end. Promised is
half of the throughput.
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.peers.server import SYNCED_SETTINGS
from errandry import Errandry, Worker
from errandry.api.task import Task
from tests.store.server import Server

BACKLOG = 10_000
INSERT_SIZE = 1_000
PROMISED_SHARE = 0.5
DEAD_ROWS = (
    "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE relname IN ('live', 'lanes', 'claims')"
)


def app_at(url: str) -> tuple[Errandry, Task[[int], int]]:
    jobs = Errandry(url)

    @jobs.task
    async def noop(i: int) -> int:
        return i

    return jobs, noop


def work(url: str) -> None:
    asyncio.run(Worker(app_at(url)[0]).run(signals=True))


async def produce(url: str, minutes: int, seconds: float) -> int:
    """Keep a backlog for `minutes`, report each, and return an exit code."""
    jobs, noop = app_at(url)
    async with jobs:
        await top_up(jobs, noop)
        with worker_process(url):
            await measure_minute(jobs, noop, 10.0)  # to warm up
            base = await measure_minute(jobs, noop, seconds)
            report("before", base, base, dead_rows(url))
            with psycopg.connect(url) as holder:
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT pg_current_xact_id()")
                rates = []
                for number in range(minutes):
                    rates.append(await measure_minute(jobs, noop, seconds))
                    report(f"minute {number + 1}", rates[-1], base, dead_rows(url))
            report("after", await measure_minute(jobs, noop, seconds), base, dead_rows(url))
    share = min(rates) / base
    is_kept = share >= PROMISED_SHARE
    print(
        f"{'kept' if is_kept else 'MISSED'}: {share:.0%} in the worst minute, promised {PROMISED_SHARE:.0%}"
    )
    return 0 if is_kept else 1


def report(when: str, rate: float, base: float, dead: int) -> None:
    print(f"{when:12} {rate:>9,.0f} jobs/s {rate / base:>6.0%} {dead:>11,} dead rows", flush=True)


async def measure_minute(jobs: Errandry, noop: Task[[int], int], seconds: float) -> float:
    """Keep the backlog for `seconds`, and return the completed jobs per second."""
    began, before = time.monotonic(), await completed(jobs)
    while time.monotonic() - began < seconds:
        await top_up(jobs, noop)
        await asyncio.sleep(0.1)
    return (await completed(jobs) - before) / (time.monotonic() - began)


async def top_up(jobs: Errandry, noop: Task[[int], int]) -> None:
    waiting = (await jobs.counts()).get("default", {}).get("waiting", 0)
    for _ in range(waiting, BACKLOG, INSERT_SIZE):
        await jobs.enqueue_many([noop.new(i) for i in range(INSERT_SIZE)])


async def completed(jobs: Errandry) -> int:
    return (await jobs.totals()).get("default", {}).get("completed", 0)


@contextmanager
def worker_process(url: str) -> Iterator[None]:
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(url,))
    worker.start()
    try:
        yield
    finally:
        worker.terminate()
        worker.join()


def dead_rows(url: str) -> int:
    with psycopg.connect(url) as db:
        row = db.execute(DEAD_ROWS).fetchone()
    return int(row[0] or 0) if row else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.snapshot")
    parser.add_argument("--minutes", type=int, default=10, help="how long the snapshot is held (10)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a minute is (60)")
    options = parser.parse_args()
    server = Server(**SYNCED_SETTINGS)
    try:
        return asyncio.run(produce(server.url(), options.minutes, options.seconds))
    finally:
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
