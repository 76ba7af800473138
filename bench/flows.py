"""Flows on SQLite: how long an insert of a parent with many children takes, and how fast they are worked off.

`python -m bench.flows` prints both beside the same number of plain jobs, interleaved, each in a new file.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, Settle
from errandry.core.flow import Edge
from errandry.core.job import NewJob
from errandry.store.sqlite.driver import SqliteStore

JOBS = 10_000
SLICE = 200
ROUNDS = 5


async def measured(folder: Path, is_flow: bool, jobs: int) -> tuple[float, float]:
    """Seconds to insert them all, and jobs a second to claim and settle them, `SLICE` a pass."""
    store = SqliteStore(folder / f"{time.monotonic_ns()}.db")
    await store.open()
    try:
        children = tuple(NewJob(id=f"job-{n}", task="noop", payload="{}") for n in range(jobs))
        parent = NewJob(id="parent", task="end", payload="{}")
        edges = tuple(Edge("parent", job.id) for job in children) if is_flow else ()
        began = time.perf_counter()
        await store.commit([Insert((parent, *children), edges)])
        inserted = time.perf_counter() - began
        return inserted, await _drained(store, jobs)
    finally:
        await store.close()


async def _drained(store: SqliteStore, jobs: int) -> float:
    settles: list[Settle] = []
    began, ended = time.perf_counter(), 0
    while ended < jobs:
        claim = Claim(worker="bench", nonce=f"claim-{ended}", limit=SLICE, tasks=("noop",))
        *_, claims = await store.commit([*settles, claim])
        if not isinstance(claims, Claims):
            raise TypeError(claims)
        ended += len(settles)
        settles = [Settle(Ref(job.id, job.fence), CompleteOutcome('{"n":1}')) for job in claims.jobs]
    return jobs / (time.perf_counter() - began)


def main(arguments: Sequence[str]) -> None:
    jobs = int(arguments[0]) if arguments else JOBS
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for is_flow in (False, True):
                found[is_flow].append(asyncio.run(measured(Path(folder), is_flow, jobs)))
    for is_flow, name in ((False, "plain"), (True, "flow")):
        insert = median(one for one, _ in found[is_flow])
        drain = median(one for _, one in found[is_flow])
        print(f"{name:5}  {jobs:,} jobs inserted in {insert:.3f} s, drained at {drain:,.0f}/s")
    share = median(one for _, one in found[True]) / median(one for _, one in found[False])
    print(f"children are drained at {share:.0%} of the plain rate")


if __name__ == "__main__":
    main(sys.argv[1:])
