"""A full disk and a deleted store: the worker logs the error, waits, and goes on when it can."""

import json
import signal
from pathlib import Path

import pytest

from errandry.core.state import State
from tests.faults.process import wait_until_async
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts workers")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Only SQLite: a server has its own disk."""
    return f"sqlite:///{tmp_path}/jobs.db"


async def test_an_outcome_is_written_when_the_disk_has_space_again(scene: Scene) -> None:
    big = await scene.enqueue("hold", gate=scene.gate, size=500_000)
    worker = await scene.worker(lease=60.0, renew_every=0.5)
    await scene.started(big)
    worker.signal(signal.SIGUSR1)
    await worker.wait_for_log("the store may have")
    scene.open_gate(attempt=1)

    log = await worker.wait_for_log("cannot write the outcome of")
    assert "no space left" in log
    assert (await scene.app.client.record(big)).state is State.RUNNING
    small = await scene.finished(await scene.enqueue("quick"))
    assert small.state is State.COMPLETED
    before = await scene.app.client.record(big)

    async def is_renewed() -> bool:
        record = await scene.app.client.record(big)
        return (record.lease_until or 0.0) > (before.lease_until or 0.0)

    await wait_until_async(is_renewed)  # it still holds the job
    worker.signal(signal.SIGUSR2)

    record = await scene.finished(big)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)
    assert record.result is not None
    assert len(json.loads(record.result)["ballast"]) == 500_000
    assert len(scene.journal.started(big)) == 1
    await scene.check()
