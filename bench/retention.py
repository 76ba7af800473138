"""What pruning costs those who work meanwhile: how long settles wait while a great many finished jobs go.

    python -m bench.retention                    a million jobs, on SQLite and PostgreSQL
    python -m bench.retention --jobs 100000 sqlite

Jobs are finished by hand and kept for a second. Then upkeep runs as a worker runs it, slice by slice,
while one job after the other is settled through the same engine. What was promised: no settle waits longer
than 50 ms for it. A shared machine makes some wait as long for nothing: how many did before is printed too.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from statistics import median, quantiles

from bench.stores import STORES, empty
from errandry import Errandry
from errandry.core.answer import Claims
from errandry.core.command import Claim, Complete, Insert, Ref, Resolve, Settle
from errandry.core.job import Keep, NewJob
from errandry.worker.upkeeper import Upkeeper

JOBS = 1_000_000
SLICE = 5_000
CALM = 2_000
CREW = 100
MOST = 50.0


async def measured(url: str, jobs: int) -> None:
    async with Errandry(url) as app:
        await _fill(app, jobs)
        await asyncio.sleep(1.1)
        calm = [wait async for wait in _settles(app, CALM)]
        began = time.perf_counter()
        pruning = asyncio.create_task(_prune(app))
        busy = [wait async for wait in _settles(app, None, pruning)]
        pruned, seconds = await pruning, time.perf_counter() - began
        if pruned != jobs:
            raise RuntimeError(f"{pruned:,} of {jobs:,} jobs were pruned")
    print(f"{url.partition(':')[0]}: {pruned:,} jobs pruned in {seconds:.0f} s, {pruned / seconds:,.0f}/s")
    print(f"  settles before       {_said(calm)}")
    print(f"  settles meanwhile    {_said(busy)}")


async def _fill(app: Errandry, jobs: int) -> None:
    """So many jobs that completed without having run."""
    for start in range(0, jobs, SLICE):
        ids = tuple([f"done-{n}" for n in range(start, min(start + SLICE, jobs))])
        new = [NewJob(id=one, task="done", payload="{}", keep=Keep(completed=1.0)) for one in ids]
        await app.engine.submit(Insert(tuple(new)))
        await app.engine.submit(Resolve(ids=ids, result="1"))


async def _prune(app: Errandry) -> int:
    upkeeper = Upkeeper(app, "bench", 1.0)
    while await upkeeper.turn():
        pass
    return (await app.totals())["default"]["removed"]


async def _settles(
    app: Errandry, count: int | None, until: "asyncio.Task[int] | None" = None
) -> AsyncIterator[float]:
    """How long each of some settles waited, in ms; so many, or until something is over."""
    number = 0
    while (count is None or number < count) and not (until is not None and until.done()):
        new = [NewJob(id=f"job-{time.monotonic_ns()}-{n}", task="work", payload="{}") for n in range(CREW)]
        await app.engine.submit(Insert(tuple(new)))
        nonce = new[0].id
        claims = await app.engine.submit(Claim(worker="bench", nonce=nonce, limit=CREW, tasks=("work",)))
        if not isinstance(claims, Claims):
            raise TypeError(claims)
        for job in claims.jobs:
            began = time.perf_counter()
            await app.engine.submit(Settle(Ref(job.id, job.fence), Complete("1")))
            yield (time.perf_counter() - began) * 1_000
            number += 1


def _said(waits: list[float]) -> str:
    high = quantiles(waits, n=1_000)
    return (
        f"{len(waits):7,}: p50 {median(waits):.1f} ms, p99 {high[989]:.1f} ms, p99.9 {high[998]:.1f} ms, "
        f"longest {max(waits):.1f} ms; {sum(wait > MOST for wait in waits)} over {MOST:g} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", nargs="?", choices=STORES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    with empty([options.store] if options.store else STORES) as urls:
        for url in urls.values():
            asyncio.run(measured(url, options.jobs))


if __name__ == "__main__":
    main()
