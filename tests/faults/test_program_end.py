"""P14: a program that ends gives its jobs back. P6: a job can end `errandry worker` only a few times."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.core.state import Reason, State
from tests.faults.command import CommandScene, open_command_scene
from tests.faults.program import ENDINGS
from tests.faults.scene import BOTH_LOOPS, Scene

pytestmark = pytest.mark.slow("starts programs that end")


@pytest.fixture
async def commands(url: str, tmp_path: Path) -> AsyncIterator[CommandScene]:
    async with open_command_scene(url, tmp_path) as commands:
        yield commands


@BOTH_LOOPS
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_program_that_ends_releases_the_jobs_of_its_worker_without_cost(
    scene: Scene, ending: str
) -> None:
    options = {"max_attempts": 1}
    jobs = [await scene.enqueue(task, options, gate=scene.gate) for task in ("hold", "hold_in_thread")]
    program = scene.start("embed", {"ending": ending})
    for job in jobs:
        await scene.started(job)

    program.signal(signal.SIGTERM)

    await program.wait_for_end()
    for job in jobs:
        record = await scene.app.client.record(job)
        assert (record.state, record.attempts) == (State.WAITING, 0), program.log()
        assert record.releases > 0  # more than one if a claim was on its way
        assert (record.crashes, record.errors) == (0, ())
    scene.open_gate(attempt=1)
    await scene.worker()
    await scene.check()


@pytest.mark.parametrize("way", ["cancel all", "exit in a callback", "stop the loop", "exit in a task"])
async def test_a_job_that_ends_the_worker_in_good_order_fails_after_a_few_runs(
    commands: CommandScene, way: str
) -> None:
    innocent = await commands.app.enqueue("rest", {"seconds": 0.5}, max_attempts=9, max_crashes=9)
    poison = await commands.app.enqueue("end_worker", {"way": way}, max_attempts=2, max_crashes=9)

    supervisor = asyncio.create_task(_restart_worker(commands))
    record = (await poison.wait(timeout=60)).record
    survivor = (await innocent.wait(timeout=60)).record
    supervisor.cancel()

    assert (record.state, record.reason) == (State.FAILED, Reason.WORKER_LOST), commands.logs()
    assert (record.attempts, record.crashes, record.releases) == (2, 2, 0)
    assert {error.message for error in record.errors} == {"the worker ended although nothing had stopped it"}
    assert survivor.state is State.COMPLETED
    assert "ends although nothing has stopped it" in commands.logs()


async def _restart_worker(commands: CommandScene) -> None:
    """Start the worker again each time it ends."""
    while True:
        worker = commands.worker("--lease", "60s", app="tests.faults.ending_app:jobs")
        await worker.wait_for_end(limit=90)
