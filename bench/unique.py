"""Measure the cost of a unique key: enqueues with one and without, taking turns in small rounds.

    python -m bench.unique            SQLite and PostgreSQL, about a minute
    python -m bench.unique sqlite     one of them

There are two cases: 100 concurrent callers that enqueue single jobs, and 1,000 jobs in one call. Every job
has its own key. The target is at least 0.6 of the rate without keys.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.peers.server import Servers
from errandry import Errandry, UniqueOptions
from errandry.api.task import Task

ROUNDS, CALLERS, JOBS_PER_CALLER, CALL_SIZE = 15, 100, 5, 1_000
RATIO_MIN = 0.6
_numbers = count()


async def measure(url: str) -> None:
    async with Errandry(url) as jobs:

        @jobs.task
        async def noop(i: int) -> None: ...

        kinds = {"plain": noop, "unique": noop.using(unique=UniqueOptions())}
        for name, function in (("one by one, 100 callers", callers), ("1,000 in one call", bulk)):
            rates: dict[str, list[float]] = {kind: [] for kind in kinds}
            for turn in range(ROUNDS + 1):
                for kind, task in kinds.items():
                    rate = await function(jobs, task)
                    if turn:  # the first one warms up
                        rates[kind].append(rate)
            plain, unique = (statistics.median(rates[kind]) for kind in kinds)
            is_met = "met" if unique / plain >= RATIO_MIN else "MISSED"
            print(
                f"  {name:<26}{plain:>9,.0f}/s plain{unique:>9,.0f}/s unique{unique / plain:>7.2f}  {is_met}"
            )


async def callers(_jobs: Errandry, task: Task[[int], None]) -> float:
    async def call() -> None:
        for _ in range(JOBS_PER_CALLER):
            await task.enqueue(next(_numbers))

    began = time.perf_counter()
    await asyncio.gather(*[call() for _ in range(CALLERS)])
    return CALLERS * JOBS_PER_CALLER / (time.perf_counter() - began)


async def bulk(jobs: Errandry, task: Task[[int], None]) -> float:
    requests = [task.new(next(_numbers)) for _ in range(CALL_SIZE)]
    began = time.perf_counter()
    await jobs.enqueue_many(requests)
    return CALL_SIZE / (time.perf_counter() - began)


def main(chosen: list[str]) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        for name in chosen or ["sqlite", "postgres"]:
            own = folder.absolute() / "jobs.db"
            url = f"sqlite:///{own}" if name == "sqlite" else Servers(folder.absolute(), stack).empty(name)
            print(f"{name}, median of {ROUNDS} rounds (at least {RATIO_MIN} of plain)", flush=True)
            asyncio.run(measure(url))


if __name__ == "__main__":
    main(sys.argv[1:])
