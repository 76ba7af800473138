"""A server that is away and comes back: clients wait without a busy loop, and then continue at once."""

import asyncio
import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from errandry import Errandry
from errandry.core.state import State
from errandry.errors import StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.proxy import Proxy
from tests.faults.process import Process, wait_until
from tests.faults.scene import Scene
from tests.machine_load import MachineLoad

pytestmark = pytest.mark.slow("a server goes away for seconds")

RECOVERY_MAX = 5.0
"""Seconds within which every client has recovered after the server is back."""
MEGABYTE = 2**20


class TestBehindAProxy:
    """What only a proxy can count: attempts to connect."""

    @pytest.fixture
    def url(self, mortal: Mortal, proxy: Proxy) -> str:
        return proxy.url(mortal.schema())

    async def test_clients_that_wait_for_the_server_use_little_cpu_and_memory(
        self, scene: Scene, proxy: Proxy, load: MachineLoad
    ) -> None:
        held = await scene.enqueue("hold", gate=scene.gate)
        worker = await scene.worker(lease=60.0)
        await scene.started(held)
        await scene.finished(await scene.enqueue("quick"))

        proxy.refuses = True
        proxy.cut()
        wanted = [asyncio.create_task(scene.enqueue("quick")) for _ in range(50)]
        await wait_until(lambda: proxy.accepted > 20)  # the first attempts follow each other quickly
        tried, used, size, began = (
            proxy.accepted,
            worker.processor_time(),
            resident_bytes(worker),
            time.monotonic(),
        )
        await wait_until(lambda: time.monotonic() > began + 4.0)
        tried, used, lasted = proxy.accepted - tried, worker.processor_time() - used, time.monotonic() - began
        grown = resident_bytes(worker) - size
        scene.open_gate(attempt=1)
        await scene.ended(held)
        proxy.refuses = False
        back = time.monotonic()
        jobs = await asyncio.gather(*wanted)

        assert (await scene.finished(held)).attempts == 1  # its outcome was still valid
        assert {(await scene.finished(job)).state for job in jobs} == {State.COMPLETED}
        assert time.monotonic() - back < load.scaled(RECOVERY_MAX)
        assert tried < 15 * lasted, "of the worker and the test, each with five connections"
        assert used < 0.25 * lasted
        assert grown < 4 * MEGABYTE
        await scene.check()


async def test_a_handler_is_canceled_when_its_lease_can_no_longer_be_renewed(
    scene: Scene, mortal: Mortal, load: MachineLoad
) -> None:
    lease = 4.0
    job = await scene.enqueue("hold", gate=scene.gate)
    worker = await scene.worker(lease=lease, renew_every=0.5)
    [run] = await scene.started(job)

    gone = time.time()
    mortal.stop()
    try:
        [end] = await scene.ended(job)
        assert (end.ending, end.fence) == ("canceled", run.fence)
        assert end.at - gone < load.scaled(1.5 * lease)
        await worker.wait_for_log("is lost, it should stop: it could not be renewed in time")
    finally:
        mortal.start()
    back = time.monotonic()

    await scene.started(job, times=2)
    assert time.monotonic() - back < load.scaled(RECOVERY_MAX)
    scene.open_gate(attempt=2)
    assert (await scene.finished(job)).attempts == 2
    await scene.check()


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]], ids=len)
async def test_an_idle_worker_stops_while_the_server_is_away(
    scene: Scene, mortal: Mortal, load: MachineLoad, signals: list[signal.Signals]
) -> None:
    worker = await scene.worker(grace=300.0)
    mortal.stop()
    try:
        signaled = time.monotonic()
        for number in signals:
            worker.signal(number)

        assert await worker.wait_for_end() == 0, worker.log()
        assert time.monotonic() - signaled < load.scaled(10.0)
    finally:
        mortal.start()


async def test_enqueue_waits_or_fails_as_its_limits_say(mortal: Mortal, url: str, load: MachineLoad) -> None:
    hasty_limits = WriteLimits(give_up_after=0.3)
    async with Errandry(url) as patient, Errandry(url, write_limits=hasty_limits) as hasty:
        for app in (patient, hasty):
            await app.enqueue("task")
        mortal.stop()
        try:
            waiting = asyncio.create_task(patient.enqueue("task"))
            with pytest.raises(StoreUnavailable, match=r"connection|shutting down|terminating"):
                await hasty.enqueue("task")
            assert not waiting.done()
        finally:
            mortal.start()
        back = time.monotonic()

        await waiting
        await hasty.enqueue("task")
        assert time.monotonic() - back < load.scaled(RECOVERY_MAX)
        assert await patient.counts() == {"default": {"waiting": 4}}


async def test_notifications_arrive_again_after_the_listening_backend_was_terminated(
    scene: Scene, mortal: Mortal, load: MachineLoad
) -> None:
    """A worker polls rarely while notifications arrive, so only a notification can be that quick."""
    await scene.worker()
    await scene.finished(await scene.enqueue("quick"))
    with psycopg.connect(mortal.url(), autocommit=True) as db:
        before = listening_backends(db)
        assert before
        for pid in before:
            db.execute("SELECT pg_terminate_backend(%s)", (pid,))
        await wait_until(lambda: len(listening_backends(db) - before) >= len(before))

    waits = []
    for _ in range(5):
        began = time.monotonic()
        await scene.finished(await scene.enqueue("quick"))
        waits.append(time.monotonic() - began)
    assert min(waits) < load.scaled(0.5)
    await scene.check()


async def test_backends_terminated_during_passes_lose_no_job_and_no_attempt(
    scene: Scene, mortal: Mortal
) -> None:
    for _ in range(2):
        await scene.worker(lease=60.0, concurrency=20)  # a worker ends if it loses its first connection
    jobs: list[str] = []
    with psycopg.connect(mortal.url(), autocommit=True) as db:
        for _ in range(20):
            enqueued = [asyncio.create_task(scene.enqueue("stumble")) for _ in range(10)]
            await asyncio.to_thread(
                db.execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'errandry' AND random() < 0.5",
            )
            jobs += await asyncio.gather(*enqueued)

    for job in jobs:
        assert (await scene.finished(job)).attempts == 2  # only the failure of the handler counts
    await scene.check()


def listening_backends(db: psycopg.Connection[tuple[int]]) -> set[int]:
    """The backends whose last statement was LISTEN, or the poll of a listener."""
    backends = db.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'errandry'"
        " AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT coalesce((SELECT n FROM%')"
    )
    return {pid for (pid,) in backends}


def resident_bytes(process: Process) -> int:
    """The resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
