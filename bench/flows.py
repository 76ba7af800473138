"""Flows on SQLite: the insert time of a parent with many children, and the rate at which they are drained.

`python -m bench.flows` compares both with the same number of plain jobs, interleaved, each in a new file.
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
CLAIM_SIZE = 200
ROUNDS = 5


async def measure(folder: Path, is_flow: bool, jobs: int) -> tuple[float, float]:
    """The seconds to insert the jobs, and the rate of claiming and settling them, `CLAIM_SIZE` per pass."""
    store = SqliteStore(folder / f"{time.monotonic_ns()}.db")
    await store.open()
    try:
        children = tuple(NewJob(id=f"job-{n}", task="noop", payload="{}") for n in range(jobs))
        parent = NewJob(id="parent", task="end", payload="{}")
        edges = tuple(Edge("parent", job.id) for job in children) if is_flow else ()
        began = time.perf_counter()
        await store.commit([Insert((parent, *children), edges)])
        inserted = time.perf_counter() - began
        return inserted, await _drain_rate(store, jobs)
    finally:
        await store.close()


async def _drain_rate(store: SqliteStore, jobs: int) -> float:
    settles: list[Settle] = []
    began, ended = time.perf_counter(), 0
    while ended < jobs:
        claim = Claim(worker="bench", nonce=f"claim-{ended}", limit=CLAIM_SIZE, tasks=("noop",))
        *_, claims = await store.commit([*settles, claim])
        if not isinstance(claims, Claims):
            raise TypeError(claims)
        ended += len(settles)
        settles = [Settle(Ref(job.id, job.fence), CompleteOutcome('{"n":1}')) for job in claims.jobs]
    return jobs / (time.perf_counter() - began)


def main(arguments: Sequence[str]) -> None:
    jobs = int(arguments[0]) if arguments else JOBS
    figures: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for is_flow in (False, True):
                figures[is_flow].append(asyncio.run(measure(Path(folder), is_flow, jobs)))
    for is_flow, name in ((False, "plain"), (True, "flow")):
        insert = median(value for value, _ in figures[is_flow])
        drain = median(value for _, value in figures[is_flow])
        print(f"{name:5}  {jobs:,} jobs inserted in {insert:.3f} s, drained at {drain:,.0f}/s")
    share = median(value for _, value in figures[True]) / median(value for _, value in figures[False])
    print(f"children are drained at {share:.0%} of the plain rate")


if __name__ == "__main__":
    main(sys.argv[1:])
