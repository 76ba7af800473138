"""What a unique key costs: enqueues with one beside plain ones, taking turns in small rounds.

    python -m bench.unique            SQLite and PostgreSQL, about a minute
    python -m bench.unique sqlite     one of them

A hundred callers at once, each waiting for its own job, and a thousand jobs in one call. Every job has a key
of its own. The bar: at least 0.6 of the plain rate.
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

ROUNDS, CALLERS, EACH, BULK = 15, 100, 5, 1_000
BAR = 0.6
_numbers = count()


async def measured(url: str) -> None:
    async with Errandry(url) as jobs:

        @jobs.task
        async def noop(i: int) -> None: ...

        kinds = {"plain": noop, "unique": noop.using(unique=UniqueOptions())}
        for name, way in (("one by one, 100 callers", callers), ("1,000 in one call", bulk)):
            rates: dict[str, list[float]] = {kind: [] for kind in kinds}
            for turn in range(ROUNDS + 1):
                for kind, task in kinds.items():
                    rate = await way(jobs, task)
                    if turn:  # the first one warms up
                        rates[kind].append(rate)
            plain, unique = (statistics.median(rates[kind]) for kind in kinds)
            is_met = "met" if unique / plain >= BAR else "MISSED"
            print(
                f"  {name:<26}{plain:>9,.0f}/s plain{unique:>9,.0f}/s unique{unique / plain:>7.2f}  {is_met}"
            )


async def callers(_jobs: Errandry, task: Task[[int], None]) -> float:
    async def call() -> None:
        for _ in range(EACH):
            await task.enqueue(next(_numbers))

    began = time.perf_counter()
    await asyncio.gather(*[call() for _ in range(CALLERS)])
    return CALLERS * EACH / (time.perf_counter() - began)


async def bulk(jobs: Errandry, task: Task[[int], None]) -> float:
    requests = [task.new(next(_numbers)) for _ in range(BULK)]
    began = time.perf_counter()
    await jobs.enqueue_many(requests)
    return BULK / (time.perf_counter() - began)


def main(chosen: list[str]) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        for name in chosen or ["sqlite", "postgres"]:
            own = folder.absolute() / "jobs.db"
            url = f"sqlite:///{own}" if name == "sqlite" else Servers(folder.absolute(), stack).empty(name)
            print(f"{name}, median of {ROUNDS} rounds (at least {BAR} of plain)", flush=True)
            asyncio.run(measured(url))


if __name__ == "__main__":
    main(sys.argv[1:])
