"""The parts of a run. Each measures one thing in a few rounds, with raw writes before and after each."""

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
from errandry.bench.report import Measurement, curve, latencies, rates
from errandry.bench.sizes import Sizes
from errandry.bench.worker_processes import WorkerProcess, WorkerProcesses
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.worker import Worker, WorkerOptions

CHUNK = 1_000
CALLERS = 100
PACE = 200.0
"""Jobs a second where latency is measured at a fixed rate."""
PAUSE = 0.02
"""Between jobs that are to find the system at rest."""
PATIENCE = 60.0
LOOK = 0.005
IMPORT = "from errandry import Errandry"
HAS_PROC = os.path.exists("/proc/self/statm")
"""Whether the system tells of processes there."""


class BenchRun:
    """A run under way: where, how much, and what has been found so far."""

    def __init__(self, place: BenchStore, sizes: Sizes) -> None:
        self.place, self.sizes = place, sizes
        self.figures: list[Measurement] = []
        self.curves: dict[str, list[float]] = {}
        self._numbers = count()

    def raw(self) -> float | None:
        """What a raw write takes just now."""
        return None if self.place.raw is None else self.place.raw.measure(self.sizes.raw)

    async def rounds(self, part: str, name: str, once: Callable[[str], Awaitable[float]]) -> None:
        """A rate, measured in a few rounds, each with a queue of its own."""
        found, raws = [], [self.raw()]
        for _ in range(self.sizes.rounds):
            found.append(await once(self.place.queue(f"{part}-{next(self._numbers)}")))
            raws.append(self.raw())
        self.figures.append(rates(part, name, found, _middle(raws)))

    async def latency(self, part: str, name: str, waits: Awaitable[list[float]]) -> None:
        """How long each took. Raw writes are measured at rest, too."""
        before = self._raw_at_rest()
        found = await waits
        self.figures += latencies(part, name, found, _middle([before, self._raw_at_rest()]))
        self.curves[name] = curve(found)

    def _raw_at_rest(self) -> float | None:
        raw = self.place.raw
        return None if raw is None else raw.measure_at_rest(self.sizes.raw // 5, PAUSE)

    def figure(self, part: str, name: str, unit: str, values: list[float]) -> None:
        low, high = min(values), max(values)
        found = Measurement(
            part=part, name=name, value=median(values), unit=unit, low=low, high=high, better="less"
        )
        self.figures.append(found)


async def enqueue(run: BenchRun) -> None:
    app, sizes = run.place.app, run.sizes

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
            await _preload(run.place, queue, sizes.bulk)
        return sizes.bulk / watch.seconds

    await run.rounds("enqueue", "one by one", one_by_one)
    await run.rounds("enqueue", f"{CALLERS} at once", concurrent)
    await run.rounds("enqueue", f"in bulk, {CHUNK:,} a call", bulk)


async def drain(run: BenchRun) -> None:
    for workers in (1, 2):

        async def once(queue: str, workers: int = workers) -> float:
            await _preload(run.place, queue, run.sizes.drain)
            async with WorkerProcesses(run.place) as crew:
                hands = await crew.hire(workers, _options(queue, burst=True))
                for hand in hands:
                    hand.go()
                shifts = await asyncio.gather(*(hand.shift() for hand in hands))
            left = (await run.place.app.counts()).get(queue, {})
            if left != {State.COMPLETED: run.sizes.drain}:
                raise BenchFailed(f"{run.sizes.drain} jobs should have been completed, but they are {left}")
            return run.sizes.drain / (max(s.ended for s in shifts) - min(s.began for s in shifts))

        await run.rounds("drain", f"{workers} worker{'s' if workers > 1 else ''}, preloaded", once)


async def latency(run: BenchRun) -> None:
    """From the call of enqueue to the handler's first line."""
    queue = run.place.queue("latency-own")
    async with _working_here(run.place, queue):
        await run.latency("latency", "at rest, in one process", _pickups(run, queue))
    queue = run.place.queue("latency")
    async with WorkerProcesses(run.place) as crew:
        await crew.at_work(1, _options(queue))
        await run.latency("latency", "at rest, in another process", _pickups(run, queue))
        await run.latency("latency", f"at {PACE:,.0f} jobs/s", _paced(run, queue))


async def cancel(run: BenchRun) -> None:
    """From the call of cancel to the handler's CancelledError, in another process."""
    queue, waits = run.place.queue("cancel"), []
    idle = run.place.app.tasks["idle"].using(queue=queue)
    async with WorkerProcesses(run.place) as crew:
        await crew.at_work(1, _options(queue))
        for number in range(run.sizes.pickups // 8):
            file = run.place.folder / f"canceled-{number}"
            job = await idle.enqueue(canceled_at=str(file))
            await _running(run.place, job.id)
            asked = time.time()
            await job.cancel()
            await job.wait(timeout=PATIENCE)
            waits.append(float(file.read_text("ascii")) - asked)
    run.figure("cancel", "reaches a running handler", "ms", [1e3 * wait for wait in waits])


async def recovery(run: BenchRun) -> None:
    """From the kill -9 of a worker to the first line of the handler it had been running, elsewhere."""
    queue, waits = run.place.queue("recovery"), []
    options = _options(queue)
    linger = run.place.app.tasks["linger"].using(queue=queue)
    async with WorkerProcesses(run.place) as crew:
        await crew.at_work(2, options)
        for _ in range(run.sizes.kills):
            job = await linger.enqueue()
            record = await _running(run.place, job.id)
            killed = time.time()
            await crew.kill(await _holder(run.place, crew, record))
            waits.append(await job.result(timeout=PATIENCE) - killed)
            await crew.at_work(1, options)
    run.figure("recovery", "from kill -9 to the next attempt", "s", waits)


async def footprint(run: BenchRun) -> None:
    """What it costs to have it: importing it, and a worker with nothing to do."""
    run.figure("footprint", IMPORT, "ms", [1e3 * took for took in await _imports(run.sizes.starts)])
    if not HAS_PROC:
        return
    async with WorkerProcesses(run.place) as crew:
        [hand] = await crew.at_work(1, _options(run.place.queue("idle")))
        before = _cpu(hand.pid)
        await asyncio.sleep(run.sizes.idle)
        used = (_cpu(hand.pid) - before) / run.sizes.idle
        run.figure("footprint", "idle worker, memory", "MB", [_memory(hand.pid) / 1e6])
        run.figure("footprint", "idle worker, processor", "% of one", [100 * used])


Benchmark = Callable[[BenchRun], Awaitable[None]]
PARTS: dict[str, Benchmark] = {
    "enqueue": enqueue,
    "drain": drain,
    "latency": latency,
    "cancel": cancel,
    "recovery": recovery,
    "footprint": footprint,
}
ALONE = ("enqueue",)
"""Parts that need no other process."""


def _options(queue: str, **more: Any) -> WorkerOptions:
    return WorkerOptions(id="bench", queues=(queue,), grace=1.0, **more)


async def _preload(place: BenchStore, queue: str, jobs: int) -> None:
    noop = place.app.tasks["noop"].using(queue=queue)
    for start in range(0, jobs, CHUNK):
        await place.app.enqueue_many([noop.new(i=i) for i in range(start, min(jobs, start + CHUNK))])


async def _pickups(run: BenchRun, queue: str) -> list[float]:
    """One job after the other, each when the one before is long over.

    How it went is asked for later: who waits for a result needs the processors that its job needs.
    """
    seen, waits = run.place.app.tasks["seen"].using(queue=queue), []
    for _ in range(run.sizes.pickups):
        job = await seen.enqueue(sent=time.time())
        await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
        waits.append(float(await job.result(timeout=PATIENCE)))
    return waits


async def _paced(run: BenchRun, queue: str) -> list[float]:
    """So many a second, whether or not those before have been enqueued yet."""
    seen, began = run.place.app.tasks["seen"].using(queue=queue), time.perf_counter()
    calls = []
    for number in range(int(PACE * run.sizes.paced)):
        await asyncio.sleep(began + number / PACE - time.perf_counter())
        calls.append(asyncio.create_task(seen.enqueue(sent=time.time())))
    jobs = await asyncio.gather(*calls)
    return [float(await job.result(timeout=PATIENCE)) for job in jobs]


@asynccontextmanager
async def _working_here(place: BenchStore, queue: str) -> AsyncIterator[None]:
    worker = Worker(place.app, _options(queue))
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def _running(place: BenchStore, job_id: str) -> JobRecord:
    async with asyncio.timeout(PATIENCE):
        while True:
            record = await place.app.record(job_id)
            if record.state is State.RUNNING:
                return record
            await asyncio.sleep(LOOK)


async def _holder(place: BenchStore, crew: WorkerProcesses, record: JobRecord) -> WorkerProcess:
    pids = {info.beat.worker: info.beat.pid for info in await place.app.workers()}
    return next(hand for hand in crew.hands if hand.pid == pids[record.worker or ""])


async def _imports(times: int) -> list[float]:
    """Seconds for the import alone: a whole interpreter with it, less one without.

    Of what is installed, which is compiled: the first one makes up for a checkout that is not yet.
    """
    await _python(IMPORT)
    return [await _python(IMPORT) - await _python("pass") for _ in range(times)]


async def _python(code: str) -> float:
    with _Stopwatch() as watch:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=_compiling())
        await process.wait()
    return watch.seconds


def _compiling() -> dict[str, str]:
    """This environment, for an interpreter that keeps what it compiles."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def _middle(raws: list[float | None]) -> float | None:
    known = [raw for raw in raws if raw is not None]
    return median(known) if known else None


class _Stopwatch:
    seconds = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began


def chosen(place: BenchStore, names: Sequence[str]) -> tuple[dict[str, Benchmark], dict[str, str]]:
    """The parts of these names that can be measured there, and why the others cannot."""
    wanted = {name: PARTS[name] for name in names}
    if place.is_shared:
        return wanted, {}
    why = "a store in memory cannot be shared with other processes"
    return (
        {name: part for name, part in wanted.items() if name in ALONE},
        {name: why for name in wanted if name not in ALONE},
    )
