"""A worker whose database file is deleted or replaced ends with an error, and no new file takes its place."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.worker.supervisor import STORE_REFUSED
from tests.faults.command import CommandScene, is_alive, open_command_scene
from tests.faults.process import wait_until_async

pytestmark = pytest.mark.slow(reason="starts workers")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def scene(path: Path, tmp_path: Path) -> AsyncIterator[CommandScene]:
    async with open_command_scene(f"sqlite:///{path}", tmp_path) as scene:
        yield scene


async def wait_for_workers(scene: CommandScene, count: int) -> list[int]:
    """The process ids of the workers, as soon as there are `count`."""

    async def living() -> list[int] | None:
        pids = [worker.pid for worker in await scene.app.workers.list() if is_alive(worker.pid)]
        return pids if len(pids) == count else None

    return await wait_until_async(living)


def delete(path: Path) -> None:
    for side in ("", "-wal", "-shm", "-next", "-turn"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{side}")


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_workers_end_when_their_file_is_deleted(
    scene: CommandScene, path: Path, processes: str
) -> None:
    busy = await scene.enqueue("hold_here")
    command = scene.worker("--processes", processes, "--grace", "60s")
    await wait_for_workers(scene, int(processes))
    await scene.wait_for_handler(busy)

    delete(path)

    assert await command.wait_for_end() == STORE_REFUSED
    assert f"{path}: the file jobs.db was deleted while it was in use" in command.log()
    assert "Traceback" not in command.log()
    assert list(path.parent.glob("jobs.db*")) == []


async def test_a_worker_ends_when_its_file_is_replaced(
    scene: CommandScene, path: Path, tmp_path: Path
) -> None:
    async with Errandry(f"sqlite:///{tmp_path}/other.db") as other:
        job = await other.enqueue("version", {})
    command = scene.worker()
    await wait_for_workers(scene, 1)

    delete(path)
    os.replace(tmp_path / "other.db", path)

    assert await command.wait_for_end() == STORE_REFUSED
    assert "while it was in use" in command.log()
    async with Errandry(f"sqlite:///{path}") as other:
        assert (await other.get(job.id)).state == "waiting"


async def test_a_restarted_worker_makes_no_new_file(scene: CommandScene, path: Path) -> None:
    supervisor = scene.worker("--reload")
    [worker] = await wait_for_workers(scene, 1)
    os.kill(worker, signal.SIGSTOP)  # so that it does not notice
    delete(path)

    os.kill(worker, signal.SIGKILL)

    await supervisor.wait_for_log(f"{path}: was deleted while its workers ran")
    await supervisor.wait_for_log(f"exited with code {STORE_REFUSED}; a changed file restarts it")
    assert list(path.parent.glob("jobs.db*")) == []
