"""A supervisor and its workers: after any kill, jobs go on and no process is left."""

import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.core.state import Reason, State
from errandry.worker.supervisor import STOP_TIMEOUT
from tests.faults.command import Command, CommandScene, descendants, is_alive, open_command_scene
from tests.faults.process import WAIT_TIMEOUT, wait_until, wait_until_async

pytestmark = pytest.mark.slow(reason="starts supervisors with workers and kills them")


@pytest.fixture
async def scene(url: str, tmp_path: Path) -> AsyncIterator[CommandScene]:
    async with open_command_scene(url, tmp_path) as scene:
        yield scene


async def wait_for_workers(scene: CommandScene, count: int) -> list[int]:
    """The process ids of the listed live workers, as soon as there are `count`."""

    async def living() -> list[int] | None:
        pids = sorted(worker.pid for worker in await scene.app.workers.list() if is_alive(worker.pid))
        return pids if len(pids) == count else None

    return await wait_until_async(living)


def started_processes(command: Command) -> list[int]:
    return [int(pid) for pid in re.findall(r"started worker \d+, process (\d+)", command.log())]


@pytest.mark.parametrize("task", ["hold", "hold_here"])
async def test_a_killed_worker_is_replaced_and_its_job_runs_again(scene: CommandScene, task: str) -> None:
    job = await scene.enqueue(task)
    supervisor = scene.worker("--processes", "2", "--lease", "60s")
    await wait_for_workers(scene, 2)
    pid, parent = await scene.wait_for_handler(job)
    victim = parent if task == "hold" else pid

    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    await scene.wait_for_handler(job, attempt=2)
    assert time.monotonic() - began < 40  # before its lease expires
    assert victim not in await wait_for_workers(scene, 2)
    assert len(started_processes(supervisor)) == 3

    scene.release_handlers()
    record = await scene.app.client.wait_finished(job, 60)
    assert record is not None
    assert (record.state, record.attempts) == (State.COMPLETED, 2)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
    assert "ended with SIGKILL" in supervisor.log()


@pytest.mark.parametrize("task", ["hold", "hold_here"])
async def test_no_process_of_a_killed_supervisor_survives(scene: CommandScene, task: str) -> None:
    job = await scene.enqueue(task)
    supervisor = scene.worker("--processes", "2", "--grace", "1s")
    await wait_for_workers(scene, 2)
    await scene.wait_for_handler(job)
    processes = descendants(supervisor.pid)

    supervisor.kill()

    await wait_until(lambda: not [pid for pid in processes if is_alive(pid)])
    record = await scene.app.client.record(job)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_one_signal_drains_all_workers(scene: CommandScene, number: signal.Signals) -> None:
    supervisor = scene.worker("--processes", "2", "--concurrency", "1", "--grace", "60s")
    jobs = [await scene.enqueue("hold_here") for _ in range(2)]
    pids = {(await scene.wait_for_handler(job))[0] for job in jobs}
    assert pids == set(await wait_for_workers(scene, 2))

    for pid in (supervisor.pid, *pids):  # as service managers do
        os.kill(pid, number)
    await wait_until(lambda: supervisor.log().count("claims no more") >= 2)
    late = await scene.enqueue("hold_here")
    scene.release_handlers()

    assert await supervisor.wait_for_end() == 0
    records = [await scene.app.client.record(job) for job in jobs]
    assert {(record.state, record.releases) for record in records} == {(State.COMPLETED, 0)}
    assert (await scene.app.client.record(late)).state is State.WAITING
    assert await scene.app.workers.list() == []


async def test_a_late_second_signal_stops_at_once(scene: CommandScene) -> None:
    """Workers have the same time to release their jobs as after an early second signal."""
    supervisor = scene.worker("--processes", "2", "--grace", "3600s")
    job = await scene.enqueue("hold")
    await scene.wait_for_handler(job)
    await wait_for_workers(scene, 2)
    processes = descendants(supervisor.pid)
    supervisor.signal(signal.SIGTERM)
    await wait_until(lambda: supervisor.log().count("handlers may finish") >= 3)
    late = time.monotonic() + STOP_TIMEOUT
    await wait_until(lambda: time.monotonic() > late)

    supervisor.signal(signal.SIGTERM)

    assert await supervisor.wait_for_end() == 0
    assert not [pid for pid in processes if is_alive(pid)]
    record = await scene.app.client.record(job)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def test_a_burst_of_several_workers_ends_when_no_job_is_ready(scene: CommandScene) -> None:
    jobs = [await scene.app.enqueue("version", {}) for _ in range(10)]

    assert await scene.worker("--processes", "2", "--burst").wait_for_end() == 0

    assert {(await scene.app.client.record(job.id)).state for job in jobs} == {State.COMPLETED}


async def test_workers_that_never_start_end_the_supervisor(scene: CommandScene) -> None:
    supervisor = scene.worker("--processes", "2", APP_CRASHES="1")

    assert await supervisor.wait_for_end() == 1
    assert "exited with code 3 before it was ready" in supervisor.log()
    assert "giving up" in supervisor.log()
    assert len(started_processes(supervisor)) <= 5


@pytest.mark.parametrize(
    ("options", "broken", "wrong", "why"),
    [
        ((), "1", "", "RuntimeError: this app is broken"),
        (("--tasks", "nope"), "", "", "--tasks nope: there is no task 'nope'"),
        ((), "", "1", "job='version': refused by a hook"),
    ],
)
async def test_a_usage_error_of_a_worker_ends_the_supervisor_at_once(
    scene: CommandScene, options: tuple[str, ...], broken: str, wrong: str, why: str
) -> None:
    supervisor = scene.worker("--processes", "2", *options, APP_BROKEN=broken, APP_DECLARES_WRONG=wrong)

    assert await supervisor.wait_for_end() == 2
    assert why in supervisor.log()
    assert "a usage error: a restart would not help" in supervisor.log()
    assert "restarting it" not in supervisor.log()
    assert len(started_processes(supervisor)) == 2


async def test_a_changed_file_restarts_the_workers(scene: CommandScene, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    source = folder / "shop.py"

    def write(version: str) -> None:
        text = "import os\nfrom errandry import Errandry\njobs = Errandry(os.environ['ERRANDRY_URL'])\n"
        source.write_text(f"{text}@jobs.task\nasync def version() -> str:\n    return {version}\n")

    write("'one'")
    supervisor = scene.worker("--reload", app="shop:jobs", cwd=folder)
    assert await (await scene.app.enqueue("version", {})).result(WAIT_TIMEOUT) == "one"

    write("'two' + ")  # invalid Python
    await supervisor.wait_for_log("a changed file restarts it")
    write("'three'")
    assert await (await scene.app.enqueue("version", {})).result(WAIT_TIMEOUT) == "three"

    supervisor.signal(signal.SIGINT)
    assert await supervisor.wait_for_end() == 0
    assert await scene.app.workers.list() == []
