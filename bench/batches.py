"""How much faster jobs are done in batches than one by one: no-ops with results, on SQLite, everything on.

python -m bench.batches              drains in turns, about half a minute
python -m bench.batches --jobs 2000
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.store import say
from errandry import Errandry, Task, Worker, WorkerOptions

SIZE = 50
ROUNDS = 3


def declared(jobs: Errandry) -> dict[str, Task[[int], int]]:
    @jobs.task
    async def one(number: int) -> int:
        return number

    @jobs.task(batch=SIZE)
    async def many(numbers: list[int]) -> list[int]:
        return numbers

    @jobs.task
    def one_in_thread(number: int) -> int:
        return number

    @jobs.task(batch=SIZE)
    def many_in_thread(numbers: list[int]) -> list[int]:
        return numbers

    return {"async": one, "async, batches": many, "thread": one_in_thread, "thread, batches": many_in_thread}


async def drain(folder: Path, kind: str, count: int) -> float:
    """Jobs a second, preloaded."""
    async with Errandry(f"sqlite:////{folder}/errandry.db") as jobs:
        task = declared(jobs)[kind]
        for start in range(0, count, 1_000):
            await jobs.enqueue_many([task.new(number) for number in range(start, min(count, start + 1_000))])
        began = time.perf_counter()
        await Worker(jobs, WorkerOptions(burst=True)).run()
        took = time.perf_counter() - began
        if (await jobs.counts())["default"] != {"completed": count}:
            raise RuntimeError(f"not all completed: {await jobs.counts()}")
    return count / took


async def main(count: int) -> None:
    kinds = ("async", "async, batches", "thread", "thread, batches")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".") as folder:
                rates[kind].append(await drain(Path(folder).absolute(), kind, count))
    for kind in kinds:
        say(
            f"drain, {kind}{f' of {SIZE}' if 'batches' in kind else ''}",
            statistics.median(rates[kind]),
            "jobs/s",
        )
    for kind in ("async", "thread"):
        pairs = zip(rates[f"{kind}, batches"], rates[kind], strict=True)
        say(
            f"  {kind}: batches to single jobs", statistics.median(many / one for many, one in pairs), "times"
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[2]) if sys.argv[1:2] == ["--jobs"] else 10_000))
