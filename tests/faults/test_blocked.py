"""A handler that blocks the event loop keeps its lease, and its worker leaves other jobs to others."""

from typing import Any

import pytest

from errandry.core.state import State
from errandry.core.why import WhyCode
from tests.faults.handlers import block
from tests.faults.process import WAIT_TIMEOUT
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("takes two leases")

LEASE, RENEW_EVERY = 4.0, 0.5
QUICK: tuple[tuple[str, dict[str, Any]], ...] = (("quick", {}), ("rest_in_thread", {"seconds": 0.0}))


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


async def test_a_free_worker_finishes_the_jobs_of_a_blocked_one(scene: Scene) -> None:
    hog = await scene.worker(lease=60.0, stall_after=0.2)
    blocking = await scene.enqueue("block", seconds=WAIT_TIMEOUT)
    await scene.started(blocking)
    quick = [await scene.enqueue(task, **arguments) for task, arguments in QUICK * 10]
    await hog.wait_for_log("that could not begin")
    reasons = (await scene.app.why(quick[-1])).reasons
    await scene.worker(lease=60.0)
    quick += [await scene.enqueue(task, **arguments) for task, arguments in QUICK * 10]

    records = [await scene.finished(job) for job in quick]

    assert reasons[0].code is WhyCode.WORKERS_BLOCKED
    assert f"{hog.pid}" in reasons[0].text
    assert f"by task block (job {blocking})" in reasons[0].text
    assert (await scene.app.client.record(blocking)).state is State.RUNNING
    assert {record.state for record in records} == {State.COMPLETED}
    assert {(record.attempts, record.crashes) for record in records} == {(1, 0)}
    assert hog.log().count("blocked the event loop") == 1
