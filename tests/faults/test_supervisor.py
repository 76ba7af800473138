"""A supervisor and its workers: whatever is killed, jobs go on and nothing is left behind."""

import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.core.state import Reason, State
from errandry.worker.supervisor import HURRY
from tests.faults.command import Command, Stage, children, is_alive, staged
from tests.faults.process import LIMIT, until, until_said

pytestmark = pytest.mark.slow(reason="starts supervisors with workers and kills them")


@pytest.fixture
async def stage(url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(url, tmp_path) as stage:
        yield stage


async def at_work(stage: Stage, count: int) -> list[int]:
    """The workers the store knows, once there are so many that live."""

    async def living() -> list[int] | None:
        pids = sorted(info.beat.pid for info in await stage.app.workers() if is_alive(info.beat.pid))
        return pids if len(pids) == count else None

    return await until_said(living)


def started(command: Command) -> list[int]:
    return [int(pid) for pid in re.findall(r"worker \d+ is process (\d+)", command.log())]


@pytest.mark.parametrize("task", ["hold", "hold_here"])
async def test_a_killed_worker_is_replaced_and_its_job_runs_again(stage: Stage, task: str) -> None:
    job = await stage.enqueue(task)
    supervisor = stage.worker("--processes", "2", "--lease", "60s")
    await at_work(stage, 2)
    pid, parent = await stage.running(job)
    victim = parent if task == "hold" else pid

    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    await stage.running(job, attempt=2)
    assert time.monotonic() - began < 40  # not when its lease runs out
    assert victim not in await at_work(stage, 2)
    assert len(started(supervisor)) == 3

    stage.open()
    record = await stage.app.finished(job, 60)
    assert record is not None
    assert (record.state, record.attempts) == (State.COMPLETED, 2)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
    assert "ended with SIGKILL" in supervisor.log()


@pytest.mark.parametrize("task", ["hold", "hold_here"])
async def test_nothing_is_left_of_a_killed_supervisor(stage: Stage, task: str) -> None:
    job = await stage.enqueue(task)
    supervisor = stage.worker("--processes", "2", "--grace", "1s")
    await at_work(stage, 2)
    await stage.running(job)
    below = children(supervisor.pid)

    supervisor.kill()

    await until(lambda: not [pid for pid in below if is_alive(pid)])
    record = await stage.app.record(job)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_one_signal_drains_all(stage: Stage, number: signal.Signals) -> None:
    supervisor = stage.worker("--processes", "2", "--concurrency", "1", "--grace", "60s")
    jobs = [await stage.enqueue("hold_here") for _ in range(2)]
    pids = {(await stage.running(job))[0] for job in jobs}
    assert pids == set(await at_work(stage, 2))

    for pid in (supervisor.pid, *pids):  # as a service manager does it
        os.kill(pid, number)
    await until(lambda: supervisor.log().count("claims no more") >= 2)
    late = await stage.enqueue("hold_here")
    stage.open()

    assert await supervisor.over() == 0
    records = [await stage.app.record(job) for job in jobs]
    assert {(record.state, record.releases) for record in records} == {(State.COMPLETED, 0)}
    assert (await stage.app.record(late)).state is State.WAITING
    assert await stage.app.workers() == []


async def test_a_second_signal_does_not_wait_however_late_it_comes(stage: Stage) -> None:
    """Workers have as long to give their jobs back as if it had come at once."""
    supervisor = stage.worker("--processes", "2", "--grace", "3600s")
    job = await stage.enqueue("hold")
    await stage.running(job)
    await at_work(stage, 2)
    below = children(supervisor.pid)
    supervisor.signal(signal.SIGTERM)
    await until(lambda: supervisor.log().count("handlers may finish") >= 3)
    late = time.monotonic() + HURRY
    await until(lambda: time.monotonic() > late)

    supervisor.signal(signal.SIGTERM)

    assert await supervisor.over() == 0
    assert not [pid for pid in below if is_alive(pid)]
    record = await stage.app.record(job)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def test_a_burst_of_several_ends_when_all_is_done(stage: Stage) -> None:
    jobs = [await stage.app.enqueue("version", {}) for _ in range(10)]

    assert await stage.worker("--processes", "2", "--burst").over() == 0

    assert {(await stage.app.record(job.id)).state for job in jobs} == {State.COMPLETED}


async def test_workers_that_never_start_end_the_supervisor(stage: Stage) -> None:
    supervisor = stage.worker("--processes", "2", APART_BROKEN="1")

    assert await supervisor.over() == 1
    assert "RuntimeError: this app is broken" in supervisor.log()
    assert "giving up" in supervisor.log()
    assert len(started(supervisor)) <= 5


async def test_a_change_of_a_file_starts_workers_again(stage: Stage, tmp_path: Path) -> None:
    place = tmp_path / "program"
    place.mkdir()
    source = place / "shop.py"

    def write(version: str) -> None:
        text = "import os\nfrom errandry import Errandry\njobs = Errandry(os.environ['ERRANDRY_URL'])\n"
        source.write_text(f"{text}@jobs.task\nasync def version() -> str:\n    return {version}\n")

    write("'one'")
    supervisor = stage.worker("--reload", app="shop:jobs", cwd=place)
    assert await (await stage.app.enqueue("version", {})).result(LIMIT) == "one"

    write("'two' + ")  # not a program
    await supervisor.logged("it starts again when a file changes")
    write("'three'")
    assert await (await stage.app.enqueue("version", {})).result(LIMIT) == "three"

    supervisor.signal(signal.SIGINT)
    assert await supervisor.over() == 0
    assert await stage.app.workers() == []
