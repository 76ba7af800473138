"""P14: SIGTERM drains and gives leases back, with no attempt spent."""

import signal

import pytest

from errandry.core.state import State
from tests.faults.scene import BOTH_LOOPS, Scene

pytestmark = pytest.mark.slow("starts workers and stops them")


@BOTH_LOOPS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_handlers_may_finish_and_nothing_more_is_claimed(scene: Scene, number: signal.Signals) -> None:
    jobs = [await scene.enqueue(task, gate=scene.gate) for task in ("hold", "hold", "hold_in_thread")]
    worker = await scene.worker(grace=60.0)
    for job in jobs:
        await scene.started(job)

    worker.signal(number)
    await worker.logged("handlers may finish for 60 s")
    late = await scene.enqueue("quick")
    scene.open_gate(attempt=1)

    assert await worker.over() == 0
    for job in jobs:
        record = await scene.app.record(job)
        assert (record.state, record.attempts, record.releases) == (State.COMPLETED, 1, 0)
    record = await scene.app.record(late)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 0)
    assert await scene.app.workers() == []
    await scene.worker()
    await scene.check()


@pytest.mark.parametrize("task", ["hold", "hold_in_thread", "insist"])
async def test_a_job_that_takes_longer_than_the_grace_is_given_back(scene: Scene, task: str) -> None:
    job = await scene.enqueue(task, gate=scene.gate)
    worker = await scene.worker(grace=0.2)
    await scene.started(job)

    worker.signal(signal.SIGTERM)

    assert await worker.over() == 0, worker.log()
    record = await scene.app.record(job)
    if task == "insist":  # told to stop, it returned
        assert (record.state, record.attempts) == (State.COMPLETED, 1)
        return
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)
    assert (record.crashes, record.errors) == (0, ())
    assert "could not be written" not in worker.log()
    scene.open_gate(attempt=1)
    await scene.worker()
    record = await scene.finished(job)
    assert (record.state, record.attempts, record.releases) == (State.COMPLETED, 1, 1)
    await scene.check()


async def test_what_was_claimed_ahead_is_given_back_at_once(scene: Scene) -> None:
    running = await scene.enqueue("hold", gate=scene.gate)
    ahead = [await scene.enqueue("quick") for _ in range(3)]
    worker = await scene.worker(grace=60.0, concurrency=1, prefetch=3)
    await scene.started(running)
    await scene.all_in(ahead, State.CLAIMED)

    worker.signal(signal.SIGTERM)

    await scene.all_in(ahead, State.WAITING)
    for job in ahead:
        record = await scene.app.record(job)
        assert (record.attempts, record.releases) == (0, 1)
    assert not worker.is_over
    scene.open_gate(attempt=1)
    assert await worker.over() == 0
    assert (await scene.finished(running)).attempts == 1
    await scene.worker()
    await scene.check()


@pytest.mark.parametrize("task", ["hold", "hold_in_thread"])
async def test_a_second_signal_does_not_wait(scene: Scene, task: str) -> None:
    job = await scene.enqueue(task, gate=scene.gate)
    worker = await scene.worker(grace=3_600.0)
    await scene.started(job)
    worker.signal(signal.SIGTERM)
    await worker.logged("handlers may finish")

    worker.signal(signal.SIGTERM)

    assert await worker.over() == 0
    record = await scene.app.record(job)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)
    scene.open_gate(attempt=1)
    await scene.worker()
    await scene.check()


async def test_a_worker_with_nothing_to_do_stops_at_once(scene: Scene) -> None:
    worker = await scene.worker(grace=3_600.0)

    worker.signal(signal.SIGTERM)

    assert await worker.over() == 0
    assert await scene.app.workers() == []
