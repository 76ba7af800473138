"""A worker that stands still, as under SIGSTOP or on a machine that sleeps: only its leases tell."""

import asyncio
import json
import re
import signal
import time

import psycopg
import pytest

from errandry.core.state import Reason, State
from tests.faults.history import LeaseRenewed, Settled
from tests.faults.process import Process, until
from tests.faults.scene import BOTH_LOOPS, Scene

pytestmark = pytest.mark.slow("starts workers and outlasts a lease")

LEASE, RENEWAL, LONG = 4.0, 0.5, 60.0
"""Who is to stand still has a lease it can keep until then; the others have one that never runs out."""
OPEN = """
    SELECT 1 FROM pg_stat_activity
    WHERE application_name = 'errandry' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
"""


@BOTH_LOOPS
async def test_after_its_lease_a_worker_that_stood_still_stops_its_handler(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEWAL)
    await scene.started(job)
    other = await scene.worker(lease=LONG)
    await stop(scene, zombie)
    first, second = await scene.started(job, 2)
    assert (first.pid, second.pid) == (zombie.pid, other.pid)

    zombie.go_on()

    log = await zombie.logged("its lease is lost")
    assert f"job {job} (hold)" in log
    [ended] = await scene.ended(job)
    assert (ended.pid, ended.fence, ended.how) == (zombie.pid, first.fence, "canceled")
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert (record.state, record.fence) == (State.COMPLETED, second.fence)
    assert (record.attempts, record.crashes) == (2, 1)
    assert [error.kind for error in record.errors] == [Reason.WORKER_LOST]
    assert "blocked the event loop" not in zombie.log()
    await scene.check()


async def test_a_worker_that_stood_still_changes_nothing_whatever_its_handler_does(scene: Scene) -> None:
    job = await scene.enqueue("insist", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEWAL)
    await scene.started(job)
    other = await scene.worker(lease=LONG)
    await stop(scene, zombie)
    first, second = await scene.started(job, 2)

    zombie.go_on()

    await zombie.logged("its outcome is lost with its lease")
    record = await scene.app.record(job)
    assert (record.state, record.fence, record.worker is None) == (State.RUNNING, second.fence, False)
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert (record.progress, record.logs) == (None, ())
    assert record.result is not None
    assert json.loads(record.result)["pid"] == other.pid
    await until(lambda: len(scene.journal.ended(job)) == 2)
    facts = [fact for fact in scene.journal.read() if isinstance(fact, LeaseRenewed | Settled)]
    late = [fact for fact in facts if fact.fence == first.fence and fact.sent > second.at]
    assert {fact.mark for fact in late} <= {"lost"}
    await scene.check()


async def test_a_result_that_comes_after_the_lease_is_not_taken(scene: Scene) -> None:
    """The handler returns the moment its process goes on, before anybody can tell it to stop."""
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEWAL)
    await scene.started(job)
    other = await scene.worker(lease=LONG)
    await stop(scene, zombie)
    _, second = await scene.started(job, 2)
    scene.open_gate(attempt=1)

    zombie.go_on()

    await scene.ended(job)
    zombie.signal(signal.SIGTERM)
    assert await zombie.over() == 0
    assert (await scene.app.record(job)).fence == second.fence
    scene.open_gate(attempt=2)
    record = await scene.finished(job)
    assert record.result is not None
    assert json.loads(record.result)["pid"] == other.pid
    await scene.check()


async def test_a_worker_that_gets_its_own_job_back_stops_the_handler_it_had_lost(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    zombie = await scene.worker(lease=LEASE, renew_every=RENEWAL)
    await scene.started(job)
    await stop(scene, zombie)
    lease_until = (await scene.app.record(job)).lease_until
    assert lease_until is not None
    await until(lambda: time.time() > lease_until)

    zombie.go_on()

    first, second = await scene.started(job, 2)
    assert (first.pid, second.pid) == (zombie.pid, zombie.pid)
    [ended] = await scene.ended(job)
    assert (ended.fence, ended.how) == (first.fence, "canceled")
    scene.open_gate(attempt=2)
    assert (await scene.finished(job)).fence == second.fence
    await scene.check()


async def test_a_worker_that_stands_still_for_less_than_its_lease_keeps_its_jobs(scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    sleeper = await scene.worker(lease=LONG)
    await scene.started(job)
    await scene.worker(lease=LONG)
    await stop(scene, sleeper)
    for _ in range(10):  # each claim of the other would find an expired lease, and each upkeep a dead worker
        await scene.finished(await scene.enqueue("rest", seconds=0.15))

    sleeper.go_on()
    scene.open_gate(attempt=1)
    record = await scene.finished(job)

    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)
    assert [run.pid for run in scene.journal.started(job)] == [sleeper.pid]
    await scene.check()


async def stop(scene: Scene, process: Process) -> None:
    """Stop it between two passes: inside one it would have the store, or a job, locked for all others."""
    while True:
        process.stop()
        write = asyncio.ensure_future(written(scene))
        done, _ = await asyncio.wait({write}, timeout=0.5)
        if done:
            return
        process.signal(signal.SIGCONT)
        await write


async def written(scene: Scene) -> None:
    """Return when all passes that were on their way are over."""
    await scene.app.queue("nobody").pause()
    if scene.url.startswith("postgresql:"):
        server = re.sub(r"&schema=\w+", "", scene.url)
        async with await psycopg.AsyncConnection.connect(server, autocommit=True) as db:
            while await (await db.execute(OPEN)).fetchone():
                pass
