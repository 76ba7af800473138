"""`errandry worker` waits for a server that cannot be reached yet, and ends at once if waiting is no use."""

import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.command import Command, CommandScene, open_command_scene
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.proxy import Proxy
from tests.faults.process import WAIT_TIMEOUT
from tests.machine_load import MachineLoad

pytestmark = pytest.mark.slow(reason="starts workers that wait for their server")

STARTING = ("57P03", "the database system is starting up")
WAITS = "cannot open the store, trying again in"
UNREACHABLE = "postgresql://errandry@127.0.0.1:1/postgres"
UNKNOWN_NAME = "postgresql://errandry@no-such-host.invalid/postgres"


@pytest.fixture
async def scene(url: str, tmp_path: Path) -> AsyncIterator[CommandScene]:
    async with open_command_scene(url, tmp_path) as scene:
        yield scene


@pytest.fixture
def schema(url: str) -> str:
    return url.rpartition("=")[2]


async def wait_for_second_pause(worker: Command) -> list[str]:
    """The lines of the log about pauses, as soon as there are two."""
    await worker.wait_for_log(f"{WAITS} 1 s")
    return [line for line in worker.log().splitlines() if WAITS in line]


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_waits_for_a_server_that_is_starting(
    scene: CommandScene, proxy: Proxy, schema: str, processes: str
) -> None:
    proxy.error = STARTING
    worker = scene.worker("--processes", processes, ERRANDRY_URL=proxy.url(schema))

    first, *_ = await wait_for_second_pause(worker)
    proxy.error = None
    job = await scene.app.enqueue("version", {})

    assert await job.result(WAIT_TIMEOUT) == ""
    assert f"WARNING {WAITS} 0.5 s: postgresql://127.0.0.1/postgres: " in first
    assert STARTING[1] in first
    assert "Traceback" not in worker.log()


async def test_a_worker_waits_while_connections_are_cut(
    scene: CommandScene, proxy: Proxy, schema: str
) -> None:
    proxy.refuses = True
    worker = scene.worker(ERRANDRY_URL=proxy.url(schema))

    await wait_for_second_pause(worker)
    proxy.refuses = False

    assert await (await scene.app.enqueue("version", {})).result(WAIT_TIMEOUT) == ""


async def test_a_worker_waits_for_a_server_that_is_down(scene: CommandScene, mortal: Mortal) -> None:
    mortal.stop()
    try:
        worker = scene.worker()
        await wait_for_second_pause(worker)
    finally:
        mortal.start()

    assert await (await scene.app.enqueue("version", {})).result(WAIT_TIMEOUT) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    ("url", "options"),
    [
        (UNREACHABLE, ()),
        (UNKNOWN_NAME, ()),
        (UNREACHABLE, ("--processes", "2")),
    ],
)
async def test_a_signal_ends_the_wait_at_once(
    tmp_path: Path, number: signal.Signals, url: str, options: tuple[str, ...], load: MachineLoad
) -> None:
    scene = CommandScene(url, tmp_path)
    worker = scene.worker(*options)
    try:
        await wait_for_second_pause(worker)
        began = time.monotonic()
        worker.signal(number)

        assert await worker.wait_for_end() == 0
        assert time.monotonic() - began < load.scaled(2.0)
        assert "was stopped before it had opened the store" in worker.log()
        assert "Traceback" not in worker.log()
    finally:
        scene.close()


async def test_a_signal_ends_the_wait_for_a_server_that_does_not_answer(
    scene: CommandScene, proxy: Proxy, schema: str
) -> None:
    proxy.silence()
    worker = scene.worker(ERRANDRY_URL=proxy.url(schema))
    await worker.wait_for_log("slots: ")

    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end(limit=8.0) == 0, "before the connect times out"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (("28P01", 'password authentication failed for user "errandry"'), "the password was refused"),
        (("3D000", 'database "shop" does not exist'), "there is no such database"),
    ],
)
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_an_error_that_time_does_not_mend_ends_the_worker(
    scene: CommandScene, proxy: Proxy, schema: str, error: tuple[str, str], why: str, processes: str
) -> None:
    proxy.error = error
    worker = scene.worker("--processes", processes, ERRANDRY_URL=proxy.url(schema))

    assert await worker.wait_for_end() == 78
    assert why in worker.log()
    assert WAITS not in worker.log()
    assert "restarting it" not in worker.log()


async def test_a_worker_need_not_wait(tmp_path: Path) -> None:
    scene = CommandScene(UNREACHABLE, tmp_path)
    worker = scene.worker("--no-wait")
    try:
        assert await worker.wait_for_end() == 75
    finally:
        scene.close()
    assert WAITS not in worker.log()
    assert "Error: postgresql://127.0.0.1/postgres: " in worker.log()
