"""Apps that a program drops without closing them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.server import server

PROGRAM = """
import asyncio, gc, os, resource, sys, threading, time
from errandry import Errandry

url, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))

async def use_an_app(close):
    jobs = Errandry(url)

    @jobs.task
    async def send(to: str) -> None: ...

    await send.enqueue("ada")
    await jobs.list()
    await jobs.engine.call(jobs.store.wait_for_change, jobs.store.version(), 0.01)
    if close:
        await jobs.close()

def descriptors():
    return set(os.listdir("/proc/self/fd"))

async def main():
    await use_an_app(close=True)  # loads what stays loaded
    before = descriptors()
    for _ in range(count):
        await use_an_app(close=False)
    gc.collect()
    give_up_at = time.monotonic() + 60
    while threading.active_count() > 1 or descriptors() != before:
        if time.monotonic() > give_up_at:
            sys.exit(f"still open: {threading.enumerate()}, {descriptors() - before}")
        await asyncio.sleep(0.01)
    print("nothing is left")

asyncio.run(main())
"""


def run_program(url: str, count: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM, url, str(count)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow("opens 200 stores in another program")
@pytest.mark.parametrize("url", ["memory:", "sqlite:///{folder}/jobs.db?durability=process"])
def test_200_dropped_apps_keep_no_threads_and_descriptors(url: str, tmp_path: Path) -> None:
    done = run_program(url.format(folder=tmp_path), 200)

    assert done.stdout == "nothing is left\n", done.stderr
    assert "Store was dropped without being closed: use `async with jobs`" in done.stderr


@pytest.mark.slow("opens stores in another program")
def test_dropped_apps_keep_no_connections() -> None:
    with server().lend_url() as url:
        done = run_program(url, 5)

    assert done.stdout == "nothing is left\n", done.stderr
    assert done.stderr.count("an app with a PostgresStore was dropped") == 5


@pytest.mark.slow("starts another program")
def test_a_closed_app_is_not_reported() -> None:
    done = run_program("memory:", 0)

    assert (done.stdout, done.stderr) == ("nothing is left\n", "")
