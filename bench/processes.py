"""Measure handlers in child processes, on SQLite that survives a power cut.

python -m bench.processes            all parts, about half a minute
python -m bench.processes drain      one part: drain, cancel, start
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from bench.store import report
from errandry import Errandry, Worker, WorkerOptions

jobs = Errandry(os.environ.get("ERRANDRY_URL", "memory:"))
CHILDREN = 2


@jobs.task(runner="process")
def noop(i: int) -> int:
    return i


@jobs.task(runner="process")
def busy(file: str) -> None:
    """Run forever without checking whether to stop."""
    Path(file).write_text(str(os.getpid()))
    while True:
        pass


async def drain(count: int = 10_000) -> None:
    """Drain preloaded no-op jobs with results, history and events; this includes the start of children."""
    for start in range(0, count, 1_000):
        await jobs.enqueue_many([noop.new(i=i) for i in range(start, start + 1_000)])
    began = time.perf_counter()
    await Worker(jobs, WorkerOptions(burst=True, process_slots=CHILDREN)).run()
    took = time.perf_counter() - began
    if (await jobs.counts())["default"] != {"completed": count}:
        raise RuntimeError(f"not all completed: {await jobs.counts()}")
    report(f"drain, {CHILDREN} children (at least 1,500)", count / took, "jobs/s")


async def cancel(times: int = 10) -> None:
    """Measure from the cancel call until the process of a busy handler has ended."""
    worker, waits = Worker(jobs, WorkerOptions(process_slots=1)), []
    running = asyncio.create_task(worker.run())
    for number in range(times):
        file = Path(f"busy-{number}")
        job = await busy.enqueue(str(file.absolute()))
        while not file.exists() or not file.read_text():
            await asyncio.sleep(0.005)
        canceled = time.perf_counter()
        await job.cancel()
        await job.wait(timeout=10)
        waits.append(time.perf_counter() - canceled)
    worker.stop()
    await running
    report("cancel ends a busy handler, p50", statistics.median(waits) * 1e3, "ms")
    report("  at most (at most 1,000)", max(waits) * 1e3, "ms")


async def start(times: int = 5) -> None:
    """Measure from the enqueue to the result, including the start of the child."""
    waits = []
    for number in range(times):
        job = await noop.enqueue(i=number)
        began = time.perf_counter()
        await Worker(jobs, WorkerOptions(burst=True, process_slots=1)).run()
        waits.append(time.perf_counter() - began)
        await job.result(timeout=1)
    report("the first job of a child", statistics.median(waits) * 1e3, "ms")


PARTS: dict[str, Callable[[], Coroutine[None, None, None]]] = {
    "drain": drain,
    "cancel": cancel,
    "start": start,
}


async def run_part(part: str) -> None:
    async with jobs:
        await PARTS[part]()


def main() -> None:
    """Run each part in its own folder and process, because the app of this module has one store."""
    if len(sys.argv) == 3 and sys.argv[1] == "--here":
        asyncio.run(run_part(sys.argv[2]))
        return
    for name in sys.argv[1:] or PARTS:
        if name not in PARTS:
            sys.exit(f"there is no part {name!r}: choose from {', '.join(PARTS)}")
        with tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".") as folder:
            path = Path(folder).absolute()
            environment = {"ERRANDRY_URL": f"sqlite:////{path}/errandry.db", "PYTHONPATH": os.getcwd()}
            command = [sys.executable, "-m", "bench.processes", "--here", name]
            subprocess.run(command, cwd=path, env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
