"""A flow survives kills of its workers: its parent runs once, with all results."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from errandry import Errandry, State, flow
from errandry.core.answer import WRITTEN, Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, Settle
from errandry.core.flow import Edge
from errandry.core.job import NewJob
from errandry.store.url import store_at
from tests.faults.process import WAIT_TIMEOUT
from tests.store.server import server

APP = """
import os
from errandry import Errandry, JobContext

jobs = Errandry(os.environ["STORE"])


@jobs.task(max_attempts=100, max_crashes=100)
async def part(n: int) -> int:
    return n


@jobs.task(max_attempts=100, max_crashes=100)
async def total(ctx: JobContext) -> int:
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{len(ctx.children())}\\n")
    return sum(child.result for child in ctx.children())
"""
CHILDREN, WORKERS, KILLS = 2_000, 4, 12


def start(folder: Path, url: str, **environment: str) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "STORE": url, "RAN": str(folder / "ran"), "TMPDIR": str(folder), **environment}
    command = [sys.executable, "-m", "errandry", "worker", "app:jobs", "--concurrency", "4"]
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def url_of(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db" if kind == "sqlite" else server().new_url()


@pytest.mark.slow("four workers, killed again and again")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_flow_of_two_thousand_jobs_survives_kills_of_workers(tmp_path: Path, kind: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    url = url_of(kind, tmp_path)
    app = Errandry(url)

    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def total() -> int:
        return 0

    dice = random.Random(7)
    async with app:
        job = await app.enqueue_flow(flow(total.new(), *[part.new(n) for n in range(CHILDREN)]))
        workers = [start(tmp_path, url) for _ in range(WORKERS)]
        try:
            for _ in range(KILLS):
                await asyncio.sleep(dice.uniform(0.2, 0.8))
                if (await app.client.record(job.id)).state is not State.BLOCKED:
                    break
                victim = dice.randrange(WORKERS)
                workers[victim].send_signal(signal.SIGKILL)
                workers[victim].wait()
                workers[victim] = start(tmp_path, url)
            result = await job.result(timeout=120)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()

    assert result == sum(range(CHILDREN))
    assert (tmp_path / "ran").read_text().split() == [str(CHILDREN)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("point", ["before_settle_commit", "after_settle_commit"])
async def test_the_parent_runs_once_after_a_crash_around_the_last_settle(
    tmp_path: Path, point: str, kind: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    url = url_of(kind, tmp_path)
    app = Errandry(url)

    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def total() -> int:
        return 0

    async with app:
        job = await app.enqueue_flow(flow(total.new(), part.using(max_attempts=9).new(5)))
        crashing = start(tmp_path, url, ERRANDRY_FAILPOINT=point)
        try:
            await asyncio.to_thread(crashing.wait, WAIT_TIMEOUT)
        finally:
            crashing.kill()
        is_blocked = (await app.client.record(job.id)).state is State.BLOCKED
        assert is_blocked == point.startswith("before")
        worker = start(tmp_path, url)
        try:
            assert await job.result(timeout=WAIT_TIMEOUT) == 5
        finally:
            worker.kill()
            worker.wait()

    assert (tmp_path / "ran").read_text().split() == ["1"]


@pytest.mark.timeout(180)
async def test_two_passes_that_settle_the_last_two_children_unblock_the_parent() -> None:
    url = server().new_url()
    first, second = store_at(url), store_at(url)
    await first.open()
    await second.open()
    try:
        for number in range(20):
            names = [f"{number}-parent", f"{number}-a", f"{number}-b"]
            jobs = tuple(NewJob(id=name, task=name[-1], payload="{}") for name in names)
            await first.commit([Insert(jobs, tuple(Edge(names[0], child) for child in names[1:]))])
            claim = Claim(worker="w", nonce=f"n{number}", limit=2, tasks=("a", "b"))
            [claims] = await first.commit([claim])
            assert isinstance(claims, Claims)
            settles = [Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in claims.jobs]
            answers = await asyncio.gather(first.commit([settles[0]]), second.commit([settles[1]]))
            assert list(answers) == [[WRITTEN], [WRITTEN]]
            [parent] = await first.get([names[0]])
            assert parent is not None
            assert (parent.state, parent.open_children) == (State.WAITING, 0)
    finally:
        await first.close()
        await second.close()
