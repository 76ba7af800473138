"""Figures of the API and the worker on SQLite with everything on (durability: power cut).

    python -m bench.worker            all of it, about three minutes
    python -m bench.worker drain      one part: drain, enqueue, pickup, idle, cancel, start

`drain` runs Huey on SQLite beside it, installed in an environment of its own; the two take turns.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from collections.abc import Callable, Coroutine
from pathlib import Path

import apsw

from bench.store import say
from errandry import Errandry, Worker, WorkerOptions

HERE = Path(__file__).parent


def app(folder: Path) -> Errandry:
    return Errandry(f"sqlite:///{folder / 'errandry.db'}")


async def our_drain(folder: Path, jobs: int) -> float:
    """Jobs per second of one worker on preloaded no-op jobs with results, history and events."""
    async with app(folder) as errandry:

        @errandry.task
        async def noop(i: int) -> int:
            return i

        for start in range(0, jobs, 1_000):
            await errandry.enqueue_many([noop.new(i=i) for i in range(start, start + 1_000)])
        worker = Worker(errandry, WorkerOptions(burst=True))
        began = time.perf_counter()
        await worker.run()
        took = time.perf_counter() - began
        if (await errandry.counts())["default"] != {"completed": jobs}:
            raise RuntimeError(f"not all completed: {await errandry.counts()}")
    return jobs / took


HUEY = """
    import sys, time
    from huey import SqliteHuey
    huey = SqliteHuey(filename=sys.argv[1], fsync=True, results=True)
    jobs = int(sys.argv[2])

    @huey.task()
    def noop(i):
        return i

    for i in range(jobs):
        noop(i)
    began = time.perf_counter()
    while (task := huey.dequeue()) is not None:
        huey.execute(task)
    print(jobs / (time.perf_counter() - began))
"""


def huey_python(folder: Path) -> Path:
    """An environment of its own for the peer."""
    venv.create(folder / "huey", with_pip=True)
    python = folder / "huey" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "huey"], check=True)
    return python


async def drain(folder: Path, jobs: int = 20_000, rounds: int = 3) -> None:
    python, ours, theirs = huey_python(folder), [], []
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir()
        ours.append(await our_drain(place, jobs))
        printed = subprocess.run(
            [python, "-c", textwrap.dedent(HUEY), place / "huey.db", str(jobs // 5)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        theirs.append(float(printed))
    say("drain, one worker (at least 12,000)", statistics.median(ours), "jobs/s")
    say("drain, Huey's loop on SQLite, with results and fsync", statistics.median(theirs), "jobs/s")
    say("  ratio (at least 4)", statistics.median(ours) / statistics.median(theirs), "times Huey")


async def enqueue(folder: Path, jobs: int = 20_000, callers: int = 100) -> None:
    async with app(folder) as errandry:

        @errandry.task
        async def noop(i: int) -> int:
            return i

        numbers = iter(range(jobs))

        async def caller() -> None:
            for number in numbers:
                await noop.enqueue(i=number)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        rate = jobs / (time.perf_counter() - began)
        say(f"{callers} concurrent task.enqueue() (at least 10,000)", rate, "jobs/s")


WORKER = """
    import asyncio, sys, time
    from errandry import Errandry, Worker
    jobs = Errandry("sqlite:///" + sys.argv[1])

    @jobs.task
    async def seen(sent: float) -> float:
        return time.time() - sent

    @jobs.task
    async def sleepy(canceled_at: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with open(canceled_at, "a") as file:
                file.write(f"{time.time()}\\n")
            raise

    asyncio.run(Worker(jobs).run(signals=True))
"""


class Other:
    """A worker in another process, ready when it has beaten."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), folder / "errandry.db"]
        )

    async def ready(self, errandry: Errandry) -> None:
        async with asyncio.timeout(30):
            while not await errandry.workers():
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


async def pickup(folder: Path, jobs: int = 300) -> None:
    """From the call of enqueue to the handler's first line, on an idle system."""
    async with app(folder) as errandry:

        @errandry.task
        async def seen(sent: float) -> float:
            return time.time() - sent

        commit = raw_commit(folder)
        worker = Worker(errandry)
        running = asyncio.create_task(worker.run())
        await quantiles("pickup, same process", [await one(seen, pause=0.01) for _ in range(jobs)])
        worker.stop()
        await running
        say("  a raw durable commit, p50", commit * 1e3, "ms")
        other = Other(folder)
        try:
            await other.ready(errandry)
            await quantiles("pickup, across processes", [await one(seen, pause=0.02) for _ in range(jobs)])
        finally:
            other.stop()


async def one(task: object, pause: float) -> float:
    await asyncio.sleep(pause)
    job = await task.enqueue(sent=time.time())  # type: ignore[attr-defined]
    return float(await job.result(timeout=10))


async def quantiles(what: str, waits: list[float]) -> None:
    waits.sort()
    say(f"{what}, p50", waits[len(waits) // 2] * 1e3, "ms")
    say(f"{what}, p99", waits[int(len(waits) * 0.99)] * 1e3, "ms")


def raw_commit(folder: Path, commits: int = 200) -> float:
    """Seconds, median, of one row in one durable transaction."""
    db = apsw.Connection(str(folder / "raw.db"))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.execute("CREATE TABLE t (x)")
    waits = []
    for number in range(commits):
        time.sleep(0.005)
        began = time.perf_counter()
        db.execute("INSERT INTO t VALUES (?)", (number,))
        waits.append(time.perf_counter() - began)
    db.close()
    return statistics.median(waits)


async def idle(folder: Path, seconds: float = 10.0) -> None:
    async with app(folder) as errandry:
        other = Other(folder)
        try:
            await other.ready(errandry)
            before = cpu(other.process.pid)
            await asyncio.sleep(seconds)
            share = (cpu(other.process.pid) - before) / seconds
            say("idle worker (at most 1.5)", share * 100, "% of a core")
            say("  memory (at most 50)", rss(other.process.pid) / 2**20, "MB")
        finally:
            other.stop()


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def cancel(folder: Path, jobs: int = 50) -> None:
    """From the call of cancel to the handler's CancelledError, in another process."""
    async with app(folder) as errandry:

        @errandry.task
        async def sleepy(canceled_at: str) -> None: ...

        other, waits = Other(folder), []
        try:
            await other.ready(errandry)
            for number in range(jobs):
                file = folder / f"canceled-{number}"
                job = await sleepy.enqueue(canceled_at=str(file))
                async with asyncio.timeout(30):
                    while (await job.refresh()).state != "running":
                        await asyncio.sleep(0.005)
                asked = time.time()
                await job.cancel()
                await job.wait(timeout=10)
                waits.append(float(file.read_text()) - asked)
        finally:
            other.stop()
        await quantiles("cancel of a running job reaches it (p99 at most 100)", waits)


async def start(_folder: Path, times: int = 10) -> None:
    waits = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import errandry"], check=True)
        first = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        waits.append((first - began) - (time.perf_counter() - first))
    say("import errandry (at most 150)", statistics.median(waits) * 1e3, "ms")


PARTS: dict[str, Callable[[Path], Coroutine[None, None, None]]] = {
    "drain": drain,
    "enqueue": enqueue,
    "pickup": pickup,
    "idle": idle,
    "cancel": cancel,
    "start": start,
}


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        if name not in PARTS:
            sys.exit(f"there is no part {name!r}: choose from {', '.join(PARTS)}")
        with tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".") as folder:
            asyncio.run(PARTS[name](Path(folder).absolute()))


if __name__ == "__main__":
    main()
