"""Compare batches with single jobs: the drain rate of no-ops with results, on SQLite.

python -m bench.batches              about half a minute
python -m bench.batches --jobs 2000
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.store import report
from errandry import Errandry, Task, Worker, WorkerOptions

BATCH_SIZE = 50
ROUNDS = 3


def declare_tasks(jobs: Errandry) -> dict[str, Task[[int], int]]:
    @jobs.task
    async def single(number: int) -> int:
        return number

    @jobs.task(batch=BATCH_SIZE)
    async def batch(numbers: list[int]) -> list[int]:
        return numbers

    @jobs.task
    def single_in_thread(number: int) -> int:
        return number

    @jobs.task(batch=BATCH_SIZE)
    def batch_in_thread(numbers: list[int]) -> list[int]:
        return numbers

    return {
        "async": single,
        "async, batches": batch,
        "thread": single_in_thread,
        "thread, batches": batch_in_thread,
    }


async def drain(folder: Path, kind: str, count: int) -> float:
    """The drain rate of preloaded jobs, per second."""
    async with Errandry(f"sqlite:////{folder}/errandry.db") as jobs:
        task = declare_tasks(jobs)[kind]
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
        report(
            f"drain, {kind}{f' of {BATCH_SIZE}' if 'batches' in kind else ''}",
            statistics.median(rates[kind]),
            "jobs/s",
        )
    for kind in ("async", "thread"):
        pairs = zip(rates[f"{kind}, batches"], rates[kind], strict=True)
        report(
            f"  {kind}: batches to single jobs",
            statistics.median(batch / single for batch, single in pairs),
            "times",
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[2]) if sys.argv[1:2] == ["--jobs"] else 10_000))
