"""Suspended workers, by SIGSTOP or on a sleeping machine: only their leases show it to the others."""

import asyncio
import json
import re
import signal
import time

import psycopg
import pytest

from errandry.core.state import Reason, State
from tests.faults.history import LeaseRenewed, Settled
from tests.faults.process import Process, wait_until
from tests.faults.scene import BOTH_LOOPS, Scene

pytestmark = pytest.mark.slow("starts workers and waits for a lease to expire")

LEASE, RENEW_EVERY, LONG_LEASE = 4.0, 0.5, 60.0
"""Seconds: lease and renewal interval of a suspended worker; a lease that does not expire in a test."""
OPEN_TRANSACTIONS = """
    SELECT 1 FROM pg_stat_activity
    WHERE application_name = 'errandry' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
"""


@BOTH_LOOPS
async def test_a_worker_suspended_past_its_lease_stops_its_handler(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEW_EVERY)
    await scene.started(job)
    other = await scene.worker(lease=LONG_LEASE)
    await suspend_between_passes(scene, zombie)
    first, second = await scene.started(job, 2)
    assert (first.pid, second.pid) == (zombie.pid, other.pid)

    zombie.resume()

    log = await zombie.wait_for_log("is lost, it should stop")
    assert f"job {job} (hold)" in log
    [ended] = await scene.ended(job)
    assert (ended.pid, ended.fence, ended.ending) == (zombie.pid, first.fence, "canceled")
    await scene.crashes_taken_back(job)
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert (record.state, record.fence) == (State.COMPLETED, second.fence)
    assert (record.attempts, record.crashes) == (2, 0)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
    assert "blocked the event loop" not in zombie.log()
    await scene.check()


async def test_a_worker_suspended_past_its_lease_changes_nothing(scene: Scene) -> None:
    job = await scene.enqueue("insist", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEW_EVERY)
    await scene.started(job)
    other = await scene.worker(lease=LONG_LEASE)
    await suspend_between_passes(scene, zombie)
    first, second = await scene.started(job, 2)

    zombie.resume()

    await zombie.wait_for_log("its lease is lost, another worker may run it")
    record = await scene.app.client.record(job)
    assert (record.state, record.fence, record.worker is None) == (State.RUNNING, second.fence, False)
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert (record.progress, record.logs) == (None, ())
    assert record.result is not None
    assert json.loads(record.result)["pid"] == other.pid
    await wait_until(lambda: len(scene.journal.ended(job)) == 2)
    facts = [fact for fact in scene.journal.read() if isinstance(fact, LeaseRenewed | Settled)]
    late_facts = [fact for fact in facts if fact.fence == first.fence and fact.sent > second.at]
    assert {fact.answer for fact in late_facts} <= {"lost"}
    await scene.check()


async def test_a_result_after_the_lease_is_not_written(scene: Scene) -> None:
    """The handler returns as soon as its process goes on, before it can be stopped."""
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEW_EVERY)
    await scene.started(job)
    other = await scene.worker(lease=LONG_LEASE)
    await suspend_between_passes(scene, zombie)
    _, second = await scene.started(job, 2)
    scene.open_gate(attempt=1)

    zombie.resume()

    await scene.ended(job)
    zombie.signal(signal.SIGTERM)
    assert await zombie.wait_for_end() == 0
    assert (await scene.app.client.record(job)).fence == second.fence
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert record.result is not None
    assert json.loads(record.result)["pid"] == other.pid
    await scene.check()


async def test_a_worker_that_claims_its_lost_job_again_stops_the_first_handler(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEW_EVERY)
    await scene.started(job)
    await suspend_between_passes(scene, zombie)
    lease_until = (await scene.app.client.record(job)).lease_until
    assert lease_until is not None
    await wait_until(lambda: time.time() > lease_until)

    zombie.resume()

    first, second = await scene.started(job, 2)
    assert (first.pid, second.pid) == (zombie.pid, zombie.pid)
    [ended] = await scene.ended(job)
    assert (ended.fence, ended.ending) == (first.fence, "canceled")
    scene.open_gate(attempt=2)
    assert (await scene.finished(job)).fence == second.fence
    await scene.check()


async def test_a_worker_suspended_for_less_than_its_lease_keeps_its_jobs(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    sleeper = await scene.worker(lease=LONG_LEASE)
    await scene.started(job)
    await scene.worker(lease=LONG_LEASE)
    await suspend_between_passes(scene, sleeper)
    for _ in range(10):  # claims of the other worker would find an expired lease, its upkeep a dead worker
        await scene.finished(await scene.enqueue("rest", seconds=0.15))

    sleeper.resume()
    scene.open_gate(attempt=1)
    record = await scene.finished(job)

    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)
    assert [run.pid for run in scene.journal.started(job)] == [sleeper.pid]
    await scene.check()


async def suspend_between_passes(scene: Scene, process: Process) -> None:
    """Suspend a process between two passes: inside one, it would keep the store or a job locked."""
    while True:
        process.suspend()
        passes = asyncio.ensure_future(finish_open_passes(scene))
        done, _ = await asyncio.wait({passes}, timeout=0.5)
        if done:
            return
        process.signal(signal.SIGCONT)
        await passes


async def finish_open_passes(scene: Scene) -> None:
    """Return when all open passes have ended."""
    await scene.app.queue("unused").pause()
    if scene.url.startswith("postgresql:"):
        server = re.sub(r"&schema=\w+", "", scene.url)
        async with await psycopg.AsyncConnection.connect(server, autocommit=True) as db:
            while await (await db.execute(OPEN_TRANSACTIONS)).fetchone():
                pass
