"""`errandry worker` as process 1 of a container: no signal is lost, and orphans are reaped."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.core.state import State
from tests.cli.shell import Terminal
from tests.faults.command import (
    AS_PROCESS_1,
    Command,
    CommandScene,
    descendants,
    open_command_scene,
)
from tests.faults.process import WAIT_TIMEOUT, wait_until

pytestmark = pytest.mark.slow(reason="starts workers")

AS_PROCESS_1_ON_TERMINAL = f"""
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("unshare", [*{AS_PROCESS_1!r}, *sys.argv[1:]])
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def scene(url: str, tmp_path: Path) -> AsyncIterator[CommandScene]:
    if subprocess.run([*AS_PROCESS_1, "--version"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets an ordinary user make no process namespace")
    async with open_command_scene(url, tmp_path) as scene:
        yield scene


def signal_process_1(container: Command, number: signal.Signals) -> None:
    os.kill(descendants(container.pid)[0], number)


async def test_a_signal_during_the_import_ends_it(scene: CommandScene, tmp_path: Path) -> None:
    container = scene.worker(program=AS_PROCESS_1, APP_IMPORTS_IN=str(tmp_path))
    await wait_until((tmp_path / "importing").exists)

    signal_process_1(container, signal.SIGTERM)

    assert await container.wait_for_end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_signal_drains_it(scene: CommandScene, number: signal.Signals, processes: str) -> None:
    job = await scene.enqueue("hold_here")
    container = scene.worker("--processes", processes, "--grace", "60s", program=AS_PROCESS_1)
    await scene.wait_for_handler(job)

    signal_process_1(container, number)
    await container.wait_for_log("handlers may finish")
    scene.release_handlers()

    assert await container.wait_for_end() == 0
    record = await scene.app.client.record(job)
    assert (record.state, record.attempts, record.releases) == (State.COMPLETED, 1, 0)


async def test_orphans_are_reaped(scene: CommandScene) -> None:
    scene.worker(program=AS_PROCESS_1)

    job = await scene.app.enqueue("leave_orphan", {"folder": ""})

    assert (await job.wait(WAIT_TIMEOUT)).state is State.COMPLETED


async def test_a_killed_worker_ends_the_container(scene: CommandScene) -> None:
    job = await scene.enqueue("hold_here")
    container = scene.worker(program=AS_PROCESS_1)
    await scene.wait_for_handler(job)
    [process_1] = descendants(container.pid)[:1]
    [worker] = descendants(process_1)

    os.kill(worker, signal.SIGKILL)

    assert await container.wait_for_end() == 128 + signal.SIGKILL


async def test_control_c_reaches_the_worker_once(scene: CommandScene, tmp_path: Path) -> None:
    """The terminal sends the signal to process 1 and to the worker."""
    job = await scene.enqueue("hold_here")
    environment = {"ERRANDRY_URL": scene.url, "TMPDIR": str(tmp_path)}
    terminal = Terminal(
        "worker",
        "tests.faults.cli_app:jobs",
        "--grace",
        "60s",
        env=environment,
        before=AS_PROCESS_1_ON_TERMINAL,
    )
    try:
        await scene.wait_for_handler(job)
        terminal.type("\x03")
        terminal.wait_until(lambda text: "handlers may finish" in text)
        scene.release_handlers()

        assert terminal.wait() == 0
        assert "was stopped again" not in terminal.text
    finally:
        terminal.close()
    assert (await scene.app.client.record(job)).state is State.COMPLETED
