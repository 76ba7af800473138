"""What pruning costs those who work meanwhile: how long settles wait while a great many finished jobs go.

    python -m bench.retention                    a million jobs, on SQLite and PostgreSQL
    python -m bench.retention --jobs 100000 sqlite

Jobs are finished by hand and kept for a second. Then upkeep runs as a worker runs it, slice by slice,
while one job after the other is settled through the same engine. What was promised: no settle waits longer
than 50 ms for it. A shared machine makes some wait as long for nothing. So now and then upkeep rests, and the
settles of that time stand beside the others; as do synced writes to a file that has to do with neither. Of
those that waited longer it says how many did so while such a write waited, too, or while the host of a
virtual machine had taken a processor away (`steal` in /proc/stat) for what is beyond the 50 ms.
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

from bench.stores import STORES, empty
from errandry import Errandry, event_loop
from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, ResolveJobs, Settle
from errandry.core.job import Keep, NewJob
from errandry.worker.upkeep import UpkeepLoop

JOBS = 1_000_000
SLICE = 5_000
CREW = 100
MOST = 50.0
AT_WORK, AT_REST = 3.0, 1.5
"""So many seconds upkeep works, and rests."""
PAGE = 8_192
WRITE_EVERY = 0.02

Wait = tuple[float, float, float]
"""When something began, how long it took, and for how long the machine lacked a processor, in seconds."""


async def measured(url: str, jobs: int) -> None:
    async with Errandry(url) as app:
        await _fill(app, jobs)
        await asyncio.sleep(1.1)
        await _crew(app)  # its day has a partition from now on
        pruner = Pruner(app)
        with writing() as writes:
            settles = await _settles(app, asyncio.create_task(pruner.run()))
        pruned = (await app.totals())["default"]["removed"]
        if pruned != jobs:
            raise RuntimeError(f"{pruned:,} of {jobs:,} jobs were pruned")
    rate = pruned / pruner.seconds
    print(f"{url.partition(':')[0]}: {pruned:,} jobs pruned in {pruner.seconds:.0f} s, {rate:,.0f}/s")
    for name, waits in (("settles", settles), ("writes", writes)):
        busy = [wait for wait in waits if pruner.was_at_work(*wait)]
        rest = [wait for wait in waits if pruner.rested(*wait)]
        print(f"  {name} meanwhile   {_said(busy, writes)}")
        print(f"  {name} without it  {_said(rest, writes)}")


class Pruner:
    """Upkeep as a worker does it, but for its rests."""

    def __init__(self, app: Errandry) -> None:
        self._upkeeper = UpkeepLoop(app, "bench", 1.0)
        self._spells: list[tuple[float, float]] = []

    @property
    def seconds(self) -> float:
        return sum(end - begin for begin, end in self._spells)

    async def run(self) -> None:
        more = True
        while more:
            began = time.monotonic()
            while more and time.monotonic() < began + AT_WORK:
                more = await self._upkeeper.turn()
            self._spells.append((began, time.monotonic()))
            await asyncio.sleep(AT_REST)

    def was_at_work(self, began: float, took: float, *_: float) -> bool:
        return any(begin < began + took and began < end for begin, end in self._spells)

    def rested(self, began: float, took: float, *_: float) -> bool:
        first = self._spells[0][0]
        return began > first and not self.was_at_work(began, took)


async def _fill(app: Errandry, jobs: int) -> None:
    """So many jobs that completed without having run."""
    for start in range(0, jobs, SLICE):
        ids = tuple([f"done-{n}" for n in range(start, min(start + SLICE, jobs))])
        new = [NewJob(id=one, task="done", payload="{}", keep=Keep(completed=1.0)) for one in ids]
        await app.engine.submit(Insert(tuple(new)))
        await app.engine.submit(ResolveJobs(ids=ids, result="1"))


async def _settles(app: Errandry, until: asyncio.Task[None]) -> list[Wait]:
    """Settle one job after the other until something is over."""
    waits: list[Wait] = []
    while not until.done():
        waits += await _crew(app)
    await until
    return waits


async def _crew(app: Errandry) -> list[Wait]:
    new = [NewJob(id=f"job-{time.monotonic_ns()}-{n}", task="work", payload="{}") for n in range(CREW)]
    await app.engine.submit(Insert(tuple(new)))
    nonce = new[0].id
    claims = await app.engine.submit(Claim(worker="bench", nonce=nonce, limit=CREW, tasks=("work",)))
    if not isinstance(claims, Claims):
        raise TypeError(claims)
    waits: list[Wait] = []
    for job in claims.jobs:
        lacked, began = _stolen(), time.monotonic()
        await app.engine.submit(Settle(Ref(job.id, job.fence), CompleteOutcome("1")))
        waits.append((began, time.monotonic() - began, _stolen() - lacked))
    return waits


@contextmanager
def writing() -> Iterator[list[Wait]]:
    """Another process writes a page now and then, and syncs it; how long that took is known in the end."""
    waits: list[Wait] = []
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_write, args=(there,))
    process.start()
    there.close()
    here.recv()
    try:
        yield waits
    finally:
        here.send(None)
        waits += here.recv()
        process.join()


def _write(there: Connection) -> None:
    """Counted from when it was due: who gets no processor waits, too."""
    waits: list[Wait] = []
    with tempfile.TemporaryFile(dir=".") as file:
        os.posix_fallocate(file.fileno(), 0, PAGE)
        os.fsync(file.fileno())
        there.send(None)
        due = time.monotonic() + WRITE_EVERY
        while not there.poll(max(0.0, due - time.monotonic())):
            os.pwrite(file.fileno(), b"." * PAGE, 0)
            os.fdatasync(file.fileno())
            waits.append((due, time.monotonic() - due, 0.0))
            due = time.monotonic() + WRITE_EVERY
    there.send(waits)


def _said(waits: list[Wait], writes: list[Wait]) -> str:
    times = [1_000 * took for _, took, _ in waits]
    high = quantiles(times, n=1_000)
    late = [wait for wait in waits if 1_000 * wait[1] > MOST]
    held = [wait for wait in writes if 1_000 * wait[1] > MOST / 2]
    stolen = {wait for wait in late if 1_000 * (wait[1] - wait[2]) <= MOST}
    beside = {wait for wait in late if any(_meet(wait, other) for other in held)}
    return (
        f"{len(times):7,}: p50 {median(times):.1f} ms, p99 {high[989]:.1f} ms, p99.9 {high[998]:.1f} ms, "
        f"longest {max(times):.1f} ms; {len(late)} over {MOST:g} ms: {len(stolen)} without processor, "
        f"{len(beside - stolen)} while a write waited, {len({*late} - stolen - beside)} else"
    )


def _meet(one: Wait, other: Wait) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def _stolen() -> float:
    """Seconds that the host has kept processors from this machine so far."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", nargs="?", choices=STORES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    with empty([options.store] if options.store else STORES) as urls:
        for url in urls.values():
            event_loop.run(measured(url, options.jobs))


if __name__ == "__main__":
    main()
