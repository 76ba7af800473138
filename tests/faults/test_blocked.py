"""A handler that blocks the event loop keeps its lease, and the worker logs which handler it is."""

import pytest

from errandry.core.state import State
from tests.faults.handlers import block
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("takes two leases")

LEASE, RENEW_EVERY = 4.0, 0.5


@pytest.mark.parametrize("task", ["block", "burn"])
async def test_a_handler_that_hogs_the_loop_for_two_leases_keeps_its_lease(scene: Scene, task: str) -> None:
    hog = await scene.worker(lease=LEASE, renew_every=RENEW_EVERY, stall_after=0.5)
    job = await scene.enqueue(task, seconds=2.1 * LEASE)
    await scene.started(job)
    await scene.worker(lease=LEASE)
    record = await scene.finished(job)

    assert [run.pid for run in scene.journal.started(job)] == [hog.pid]
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)
    assert "is lost, it should stop" not in hog.log()
    if task == "block":
        line = block.__code__.co_firstlineno + 2
        assert f"task block (job {job}) has blocked the event loop" in hog.log()
        assert f"handlers.py:{line}." in hog.log()
    await scene.check()
