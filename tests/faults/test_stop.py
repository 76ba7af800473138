"""P14: after SIGTERM a worker drains and releases its jobs; no attempt is spent."""

import signal

import pytest

from errandry.core.state import State
from tests.faults.scene import BOTH_LOOPS, Scene

pytestmark = pytest.mark.slow("starts workers and stops them")


@BOTH_LOOPS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_handlers_may_finish_and_no_more_jobs_are_claimed(scene: Scene, number: signal.Signals) -> None:
    jobs = [await scene.enqueue(task, gate=scene.gate) for task in ("hold", "hold", "hold_in_thread")]
    worker = await scene.worker(grace=60.0)
    for job in jobs:
        await scene.started(job)

    worker.signal(number)
    await worker.wait_for_log("handlers may finish for 60 s")
    late = await scene.enqueue("quick")
    scene.open_gate(attempt=1)

    assert await worker.wait_for_end() == 0
    for job in jobs:
        record = await scene.app.client.record(job)
        assert (record.state, record.attempts, record.releases) == (State.COMPLETED, 1, 0)
    record = await scene.app.client.record(late)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 0)
    assert await scene.app.workers.list() == []
    await scene.worker()
    await scene.check()


async def test_a_hangup_is_no_second_signal(scene: Scene) -> None:
    """Shells and service managers send SIGHUP beside SIGTERM, and a closed terminal sends it twice."""
    job = await scene.enqueue("hold", gate=scene.gate)
    worker = await scene.worker(grace=60.0)
    await scene.started(job)

    for number in (signal.SIGHUP, signal.SIGHUP):
        worker.signal(number)
        await worker.wait_for_log("handlers may finish for 60 s")
    scene.open_gate(attempt=1)

    assert await worker.wait_for_end() == 0
    assert (await scene.finished(job)).attempts == 1
    assert "was stopped again" not in worker.log()


@pytest.mark.parametrize("task", ["hold", "hold_in_thread", "insist"])
async def test_a_job_that_takes_longer_than_the_grace_is_released(scene: Scene, task: str) -> None:
    job = await scene.enqueue(task, gate=scene.gate)
    worker = await scene.worker(grace=0.2)
    await scene.started(job)

    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 0, worker.log()
    record = await scene.app.client.record(job)
    if task == "insist":  # it returns when it is canceled
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


async def test_prefetched_jobs_are_released_at_once(scene: Scene) -> None:
    running = await scene.enqueue("hold", gate=scene.gate)
    prefetched = [await scene.enqueue("quick") for _ in range(3)]
    worker = await scene.worker(grace=60.0, concurrency=1, prefetch=3)
    await scene.started(running)
    await scene.wait_for_states(prefetched, State.CLAIMED)

    worker.signal(signal.SIGTERM)

    await scene.wait_for_states(prefetched, State.WAITING)
    for job in prefetched:
        record = await scene.app.client.record(job)
        assert (record.attempts, record.releases) == (0, 1)
    assert not worker.has_ended
    scene.open_gate(attempt=1)
    assert await worker.wait_for_end() == 0
    assert (await scene.finished(running)).attempts == 1
    await scene.worker()
    await scene.check()


@pytest.mark.parametrize("task", ["hold", "hold_in_thread"])
async def test_a_second_signal_stops_at_once(scene: Scene, task: str) -> None:
    job = await scene.enqueue(task, gate=scene.gate)
    worker = await scene.worker(grace=3_600.0)
    await scene.started(job)
    worker.signal(signal.SIGTERM)
    await worker.wait_for_log("handlers may finish")

    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 0
    record = await scene.app.client.record(job)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)
    scene.open_gate(attempt=1)
    await scene.worker()
    await scene.check()


async def test_a_worker_with_nothing_to_do_stops_at_once(scene: Scene) -> None:
    worker = await scene.worker(grace=3_600.0)

    worker.signal(signal.SIGTERM)

    assert await worker.wait_for_end() == 0
    assert await scene.app.workers.list() == []
