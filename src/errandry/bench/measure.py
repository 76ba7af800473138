"""The parts of a benchmark run. Each measures one thing in a few rounds, with raw writes between them."""

import asyncio
import os
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Self

from errandry.bench.bench_store import BenchFailed, BenchStore
from errandry.bench.report import Measurement, latency_measurements, percentiles, rate_measurement
from errandry.bench.sizes import Sizes
from errandry.bench.worker_processes import WorkerProcess, WorkerProcesses
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.worker import Worker, WorkerOptions

CALL_SIZE = 1_000
"""Number of jobs in one call of `enqueue_many`."""
CALLERS = 100
"""Number of concurrent callers."""
JOBS_PER_SECOND = 200.0
"""Jobs per second when latency is measured at a fixed rate."""
REST_INTERVAL = 0.02
"""Mean seconds between jobs when latency is measured on an idle worker."""
JOB_TIMEOUT = 60.0
POLL_INTERVAL = 0.005
IMPORT_STATEMENT = "from errandry import Errandry"
HAS_PROC = os.path.exists("/proc/self/statm")
"""Whether this system reports CPU time and memory of processes in /proc."""


class BenchRun:
    """A benchmark run: its store, its sizes, and the measurements so far."""

    def __init__(self, store: BenchStore, sizes: Sizes) -> None:
        self.store, self.sizes = store, sizes
        self.figures: list[Measurement] = []
        self.curves: dict[str, list[float]] = {}
        self._numbers = count()

    def measure_raw(self) -> float | None:
        """The median seconds of a raw write now; None if the store has no raw writes."""
        return None if self.store.raw is None else self.store.raw.measure(self.sizes.raw)

    async def add_rate(self, part: str, name: str, run_round: Callable[[str], Awaitable[float]]) -> None:
        """Measure a rate in a few rounds, each in its own queue."""
        values, raws = [], [self.measure_raw()]
        for _ in range(self.sizes.rounds):
            values.append(await run_round(self.store.queue(f"{part}-{next(self._numbers)}")))
            raws.append(self.measure_raw())
        self.figures.append(rate_measurement(part, name, values, _median_known(raws)))

    async def add_latencies(self, part: str, name: str, waits: Awaitable[list[float]]) -> None:
        """Add the percentiles of latencies, with raw writes that are measured on an idle store, too."""
        before = self._measure_raw_at_rest()
        latencies = await waits
        self.figures += latency_measurements(
            part, name, latencies, _median_known([before, self._measure_raw_at_rest()])
        )
        self.curves[name] = percentiles(latencies)

    def _measure_raw_at_rest(self) -> float | None:
        raw = self.store.raw
        return None if raw is None else raw.measure_at_rest(self.sizes.raw // 5, REST_INTERVAL)

    def add_figure(self, part: str, name: str, unit: str, values: list[float]) -> None:
        low, high = min(values), max(values)
        measurement = Measurement(
            part=part, name=name, value=median(values), unit=unit, low=low, high=high, better="less"
        )
        self.figures.append(measurement)


async def enqueue(run: BenchRun) -> None:
    app, sizes = run.store.app, run.sizes

    async def one_by_one(queue: str) -> float:
        noop = app.tasks["noop"].using(queue=queue)
        with _Stopwatch() as watch:
            for i in range(sizes.single):
                await noop.enqueue(i=i)
        return sizes.single / watch.seconds

    async def concurrent(queue: str) -> float:
        noop, numbers = app.tasks["noop"].using(queue=queue), iter(range(sizes.concurrent))

        async def caller() -> None:
            for i in numbers:
                await noop.enqueue(i=i)

        with _Stopwatch() as watch:
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return sizes.concurrent / watch.seconds

    async def bulk(queue: str) -> float:
        with _Stopwatch() as watch:
            await _preload(run.store, queue, sizes.bulk)
        return sizes.bulk / watch.seconds

    await run.add_rate("enqueue", "one by one", one_by_one)
    await run.add_rate("enqueue", f"{CALLERS} at once", concurrent)
    await run.add_rate("enqueue", f"in bulk, {CALL_SIZE:,} a call", bulk)


async def drain(run: BenchRun) -> None:
    for number in (1, 2):

        async def run_round(queue: str, worker_count: int = number) -> float:
            await _preload(run.store, queue, run.sizes.drain)
            async with WorkerProcesses(run.store) as workers:
                processes = await workers.start(worker_count, _options(queue, burst=True))
                for process in processes:
                    process.go()
                usages = await asyncio.gather(*(process.usage() for process in processes))
            states = (await run.store.app.counts()).get(queue, {})
            if states != {State.COMPLETED: run.sizes.drain}:
                raise BenchFailed(
                    f"all {run.sizes.drain} jobs should be completed, but the states are {states}"
                )
            return run.sizes.drain / (
                max(usage.ended for usage in usages) - min(usage.began for usage in usages)
            )

        await run.add_rate("drain", f"{number} worker{'s' if number > 1 else ''}, preloaded", run_round)


async def latency(run: BenchRun) -> None:
    """Measure from the enqueue call to the handler's first line."""
    queue = run.store.queue("latency-own")
    async with _worker_here(run.store, queue):
        await run.add_latencies("latency", "idle, in one process", _idle_latencies(run, queue))
    queue = run.store.queue("latency")
    async with WorkerProcesses(run.store) as workers:
        await workers.start_working(1, _options(queue))
        await run.add_latencies("latency", "idle, in another process", _idle_latencies(run, queue))
        await run.add_latencies(
            "latency", f"at {JOBS_PER_SECOND:,.0f} jobs/s", _latencies_at_rate(run, queue)
        )


async def cancel(run: BenchRun) -> None:
    """Measure from the cancel call to the handler's CancelledError, in another process."""
    queue, waits = run.store.queue("cancel"), []
    task = run.store.app.tasks["wait_for_cancel"].using(queue=queue)
    async with WorkerProcesses(run.store) as workers:
        await workers.start_working(1, _options(queue))
        for number in range(run.sizes.pickups // 8):
            file = run.store.folder / f"canceled-{number}"
            job = await task.enqueue(canceled_at=str(file))
            await _wait_until_running(run.store, job.id)
            canceled = time.time()
            await job.cancel()
            await job.wait(timeout=JOB_TIMEOUT)
            waits.append(float(file.read_text("ascii")) - canceled)
    run.add_figure("cancel", "reaches a running handler", "ms", [1e3 * wait for wait in waits])


async def recovery(run: BenchRun) -> None:
    """Measure from the kill -9 of a worker to the start of its job's next attempt on another worker."""
    queue, waits = run.store.queue("recovery"), []
    options = _options(queue)
    task = run.store.app.tasks["wait_for_kill"].using(queue=queue)
    async with WorkerProcesses(run.store) as workers:
        await workers.start_working(2, options)
        for _ in range(run.sizes.kills):
            job = await task.enqueue()
            record = await _wait_until_running(run.store, job.id)
            killed = time.time()
            await workers.kill(await _process_running(run.store, workers, record))
            waits.append(await job.result(timeout=JOB_TIMEOUT) - killed)
            await workers.start_working(1, options)
    run.add_figure("recovery", "from kill -9 to the next attempt", "s", waits)


async def footprint(run: BenchRun) -> None:
    """Measure the import time, and the memory and CPU time of an idle worker."""
    run.add_figure(
        "footprint", IMPORT_STATEMENT, "ms", [1e3 * took for took in await _import_times(run.sizes.starts)]
    )
    if not HAS_PROC:
        return
    async with WorkerProcesses(run.store) as workers:
        [process] = await workers.start_working(1, _options(run.store.queue("idle")))
        before = _cpu_seconds(process.pid)
        await asyncio.sleep(run.sizes.idle)
        used = (_cpu_seconds(process.pid) - before) / run.sizes.idle
        run.add_figure("footprint", "idle worker, memory", "MB", [_resident_bytes(process.pid) / 1e6])
        run.add_figure("footprint", "idle worker, processor", "% of one", [100 * used])


Benchmark = Callable[[BenchRun], Awaitable[None]]
PARTS: dict[str, Benchmark] = {
    "enqueue": enqueue,
    "drain": drain,
    "latency": latency,
    "cancel": cancel,
    "recovery": recovery,
    "footprint": footprint,
}
SINGLE_PROCESS_PARTS = ("enqueue",)
"""Parts that need no worker process."""


def _options(queue: str, **more: Any) -> WorkerOptions:
    return WorkerOptions(id="bench", queues=(queue,), grace=1.0, **more)


async def _preload(store: BenchStore, queue: str, jobs: int) -> None:
    noop = store.app.tasks["noop"].using(queue=queue)
    for start in range(0, jobs, CALL_SIZE):
        await store.app.enqueue_many([noop.new(i=i) for i in range(start, min(jobs, start + CALL_SIZE))])


async def _idle_latencies(run: BenchRun, queue: str) -> list[float]:
    """Enqueue one job after the other, each after the one before has finished.

    The results are read after a pause: polling for them would take CPU time from the job.
    """
    task, waits = run.store.app.tasks["report_delay"].using(queue=queue), []
    for _ in range(run.sizes.pickups):
        job = await task.enqueue(sent=time.time())
        await asyncio.sleep(REST_INTERVAL * random.uniform(0.5, 1.5))
        waits.append(float(await job.result(timeout=JOB_TIMEOUT)))
    return waits


async def _latencies_at_rate(run: BenchRun, queue: str) -> list[float]:
    """Enqueue `JOBS_PER_SECOND` jobs per second, even while earlier calls have not returned."""
    task, began = run.store.app.tasks["report_delay"].using(queue=queue), time.perf_counter()
    calls = []
    for number in range(int(JOBS_PER_SECOND * run.sizes.paced)):
        await asyncio.sleep(began + number / JOBS_PER_SECOND - time.perf_counter())
        calls.append(asyncio.create_task(task.enqueue(sent=time.time())))
    jobs = await asyncio.gather(*calls)
    return [float(await job.result(timeout=JOB_TIMEOUT)) for job in jobs]


@asynccontextmanager
async def _worker_here(store: BenchStore, queue: str) -> AsyncIterator[None]:
    worker = Worker(store.app, _options(queue))
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def _wait_until_running(store: BenchStore, job_id: str) -> JobRecord:
    async with asyncio.timeout(JOB_TIMEOUT):
        while True:
            record = await store.app.client.record(job_id)
            if record.state is State.RUNNING:
                return record
            await asyncio.sleep(POLL_INTERVAL)


async def _process_running(store: BenchStore, workers: WorkerProcesses, record: JobRecord) -> WorkerProcess:
    pids = {worker.id: worker.pid for worker in await store.app.workers.list()}
    return next(process for process in workers.processes if process.pid == pids[record.worker or ""])


async def _import_times(times: int) -> list[float]:
    """Seconds for the import alone: a new interpreter with it, minus one without it.

    A first run, which is not measured, compiles the modules of a checkout.
    """
    await _run_python(IMPORT_STATEMENT)
    return [await _run_python(IMPORT_STATEMENT) - await _run_python("pass") for _ in range(times)]


async def _run_python(code: str) -> float:
    with _Stopwatch() as watch:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, env=_bytecode_environment()
        )
        await process.wait()
    return watch.seconds


def _bytecode_environment() -> dict[str, str]:
    """The environment for an interpreter that caches compiled modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def _median_known(raws: list[float | None]) -> float | None:
    known = [raw for raw in raws if raw is not None]
    return median(known) if known else None


class _Stopwatch:
    seconds = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began


def select_parts(store: BenchStore, names: Sequence[str]) -> tuple[dict[str, Benchmark], dict[str, str]]:
    """The parts with these names that the store supports, and for the others why not."""
    parts = {name: PARTS[name] for name in names}
    if store.is_shared:
        return parts, {}
    reason = "a store in memory cannot be shared with other processes"
    return (
        {name: part for name, part in parts.items() if name in SINGLE_PROCESS_PARTS},
        {name: reason for name in parts if name not in SINGLE_PROCESS_PARTS},
    )
