"""A finished step does not run again, even if the worker is killed after it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from errandry import Errandry
from tests.faults.process import WAIT_TIMEOUT
from tests.store.server import server

APP = """
import os
import signal
from errandry import Errandry, JobContext

jobs = Errandry(os.environ["STORE"])


def effect(n: int) -> int:
    with open("effects", "a") as file:
        file.write(f"{n}\\n")
    return n * 10


def die_once(where: str) -> None:
    try:
        os.close(os.open(f"died {where}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getppid() if os.environ.get("IN_CHILD") else os.getpid(), signal.SIGKILL)
    signal.pause()


@jobs.task
async def five(ctx: JobContext) -> list[int]:
    done = []
    for n in range(5):
        done.append(await ctx.step(f"step {n}", effect, n))
        die_once(f"after {n}")
    return done


@jobs.task
def five_in_thread(ctx: JobContext) -> list[int]:
    done = []
    for n in range(5):
        done.append(ctx.sync.step(f"step {n}", effect, n))
        die_once(f"after {n}")
    return done


@jobs.task(runner="process")
def five_in_process(ctx: JobContext) -> list[int]:
    done = []
    for n in range(5):
        done.append(ctx.sync.step(f"step {n}", effect, n))
        die_once(f"after {n}")
    return done
"""


@pytest.mark.slow("a worker killed five times")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("sqlite", "five"),
        ("sqlite", "five_in_thread"),
        ("sqlite", "five_in_process"),
        ("postgres", "five"),
    ],
)
async def test_steps_run_once_although_the_worker_is_killed_after_each(
    tmp_path: Path, kind: str, task: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else server().new_url()
    environment = {**os.environ, "STORE": url, "TMPDIR": str(tmp_path)}
    if task == "five_in_process":
        environment["IN_CHILD"] = "1"
    command = [sys.executable, "-m", "errandry", "worker", "app:jobs", "--concurrency", "4"]
    deaths = 0
    async with Errandry(url) as app:
        job = await app.enqueue(task, max_attempts=100, max_crashes=100)
        while not (await app.client.record(job.id)).finished:
            assert deaths < 9, await app.client.record(job.id)
            worker = await asyncio.create_subprocess_exec(
                *command,
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            ended = asyncio.ensure_future(worker.wait())
            done = asyncio.ensure_future(app.client.wait_finished(job.id))
            try:
                await asyncio.wait({ended, done}, timeout=WAIT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
                deaths += ended.done()
            finally:
                done.cancel()
                if not ended.done():
                    worker.kill()
                await ended
        result = await (await app.get(job.id)).result()

    assert result == [0, 10, 20, 30, 40]
    assert deaths == 5
    assert (tmp_path / "effects").read_text().split() == ["0", "1", "2", "3", "4"]
