"""Measure the cost of pruning for running jobs: how long settles wait while many finished jobs are deleted.

    python -m bench.retention                    a million jobs, on SQLite and PostgreSQL
    python -m bench.retention --jobs 100000 sqlite

The jobs are resolved by an operator command and kept for a second. Then upkeep runs as in a worker, slice by
slice, while one job after the other is settled through the same engine. The target: no settle waits longer
than 50 ms because of upkeep.

On a shared machine some settles wait that long for other reasons. To tell these apart, upkeep pauses now and
then and the settles of the pauses are reported separately, and another process writes and syncs a file of its
own. Of the settles over 50 ms, the report counts those that overlap with a slow write of that process, and
those that waited because the host of the virtual machine took the CPU away (`steal` in /proc/stat).
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median, quantiles

from bench.stores import STORES, empty_stores
from errandry import Errandry, event_loop
from errandry.claims.trouble import TroubleReporter
from errandry.claims.upkeep import UpkeepLoop
from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, ResolveJobs, Settle
from errandry.core.job import Keep, NewJob

JOBS = 1_000_000
PASS_SIZE = 5_000
SETTLES = 100
WAIT_MAX = 50.0
WORK_SECONDS, REST_SECONDS = 3.0, 1.5
"""Seconds of upkeep, and of the pause after it, in turns."""
WRITE_SIZE = 8_192
WRITE_INTERVAL = 0.02

Wait = tuple[float, float, float]
"""When something started, its duration, and the stolen CPU time meanwhile, in seconds."""


async def measure(url: str, jobs: int) -> None:
    async with Errandry(url) as app:
        await _insert_finished(app, jobs)
        await asyncio.sleep(1.1)
        await _settle_some(app)  # creates the partition of the day
        pruner = Pruner(app)
        with writes_in_background() as writes:
            settles = await _settle_until(app, asyncio.create_task(pruner.run()))
        pruned = (await app.totals())["default"]["removed"]
        if pruned != jobs:
            raise RuntimeError(f"{pruned:,} of {jobs:,} jobs were pruned")
    rate = pruned / pruner.seconds
    print(f"{url.partition(':')[0]}: {pruned:,} jobs pruned in {pruner.seconds:.0f} s, {rate:,.0f}/s")
    for name, waits in (("settles", settles), ("writes", writes)):
        busy = [wait for wait in waits if pruner.overlaps_work(*wait)]
        rest = [wait for wait in waits if pruner.was_at_rest(*wait)]
        print(f"  {name} meanwhile   {_summary(busy, writes)}")
        print(f"  {name} without it  {_summary(rest, writes)}")


class Pruner:
    """Runs upkeep as a worker does, with pauses."""

    def __init__(self, app: Errandry) -> None:
        trouble = TroubleReporter(app.engine, app.clock, "bench")
        self._upkeeper = UpkeepLoop(app.engine, app.clock, trouble, lambda: True)
        self._periods: list[tuple[float, float]] = []

    @property
    def seconds(self) -> float:
        return sum(end - begin for begin, end in self._periods)

    async def run(self) -> None:
        more = True
        while more:
            began = time.monotonic()
            while more and time.monotonic() < began + WORK_SECONDS:
                more = await self._upkeeper.run_once()
            self._periods.append((began, time.monotonic()))
            await asyncio.sleep(REST_SECONDS)

    def overlaps_work(self, began: float, took: float, *_: float) -> bool:
        return any(begin < began + took and began < end for begin, end in self._periods)

    def was_at_rest(self, began: float, took: float, *_: float) -> bool:
        first = self._periods[0][0]
        return began > first and not self.overlaps_work(began, took)


async def _insert_finished(app: Errandry, jobs: int) -> None:
    """Insert jobs and resolve them as completed."""
    for start in range(0, jobs, PASS_SIZE):
        ids = tuple([f"done-{n}" for n in range(start, min(start + PASS_SIZE, jobs))])
        new = [NewJob(id=job_id, task="done", payload="{}", keep=Keep(completed=1.0)) for job_id in ids]
        await app.engine.submit(Insert(tuple(new)))
        await app.engine.submit(ResolveJobs(ids=ids, result="1"))


async def _settle_until(app: Errandry, until: asyncio.Task[None]) -> list[Wait]:
    """Settle one job after the other until the task is done."""
    waits: list[Wait] = []
    while not until.done():
        waits += await _settle_some(app)
    await until
    return waits


async def _settle_some(app: Errandry) -> list[Wait]:
    new = [NewJob(id=f"job-{time.monotonic_ns()}-{n}", task="work", payload="{}") for n in range(SETTLES)]
    await app.engine.submit(Insert(tuple(new)))
    nonce = new[0].id
    claims = await app.engine.submit(Claim(worker="bench", nonce=nonce, limit=SETTLES, tasks=("work",)))
    if not isinstance(claims, Claims):
        raise TypeError(claims)
    waits: list[Wait] = []
    for job in claims.jobs:
        lacked, began = _stolen_seconds(), time.monotonic()
        await app.engine.submit(Settle(Ref(job.id, job.fence), CompleteOutcome("1")))
        waits.append((began, time.monotonic() - began, _stolen_seconds() - lacked))
    return waits


@contextmanager
def writes_in_background() -> Iterator[list[Wait]]:
    """Write and sync pages in another process; at the end, the list gets their waits."""
    waits: list[Wait] = []
    own_end, child_end = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_write_pages, args=(child_end,))
    process.start()
    child_end.close()
    own_end.recv()
    try:
        yield waits
    finally:
        own_end.send(None)
        waits += own_end.recv()
        process.join()


def _write_pages(pipe: Connection) -> None:
    """Write pages until told to stop. A wait starts when the write is due, to include a lack of CPU time."""
    waits: list[Wait] = []
    with tempfile.TemporaryFile(dir=".") as file:
        os.posix_fallocate(file.fileno(), 0, WRITE_SIZE)
        os.fsync(file.fileno())
        pipe.send(None)
        due = time.monotonic() + WRITE_INTERVAL
        while not pipe.poll(max(0.0, due - time.monotonic())):
            os.pwrite(file.fileno(), b"." * WRITE_SIZE, 0)
            os.fdatasync(file.fileno())
            waits.append((due, time.monotonic() - due, 0.0))
            due = time.monotonic() + WRITE_INTERVAL
    pipe.send(waits)


def _summary(waits: list[Wait], writes: list[Wait]) -> str:
    times = [1_000 * took for _, took, _ in waits]
    high = quantiles(times, n=1_000)
    late = [wait for wait in waits if 1_000 * wait[1] > WAIT_MAX]
    held = [wait for wait in writes if 1_000 * wait[1] > WAIT_MAX / 2]
    stolen = {wait for wait in late if 1_000 * (wait[1] - wait[2]) <= WAIT_MAX}
    overlapping = {wait for wait in late if any(_overlap(wait, write) for write in held)}
    return (
        f"{len(times):7,}: p50 {median(times):.1f} ms, p99 {high[989]:.1f} ms, p99.9 {high[998]:.1f} ms, "
        f"longest {max(times):.1f} ms; {len(late)} over {WAIT_MAX:g} ms: {len(stolen)} without CPU, "
        f"{len(overlapping - stolen)} while a write waited, "
        f"{len({*late} - stolen - overlapping)} for other reasons"
    )


def _overlap(first: Wait, second: Wait) -> bool:
    return first[0] < second[0] + second[1] and second[0] < first[0] + first[1]


def _stolen_seconds() -> float:
    """Seconds of CPU time that the host has taken from this machine so far."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", nargs="?", choices=STORES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    with empty_stores([options.store] if options.store else STORES) as urls:
        for url in urls.values():
            event_loop.run(measure(url, options.jobs))


if __name__ == "__main__":
    main()
