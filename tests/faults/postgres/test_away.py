"""A server that is away and comes back: who works for it waits without spinning, and goes on at once."""

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
from tests.faults.process import Process, until
from tests.faults.scene import Scene
from tests.pace import Pace

pytestmark = pytest.mark.slow("a server goes away for seconds")

BACK = 5.0
"""So long after the server is back may anything take."""
MEGABYTE = 2**20


class TestBehindAProxy:
    """What can be counted there."""

    @pytest.fixture
    def url(self, mortal: Mortal, proxy: Proxy) -> str:
        return proxy.url(mortal.schema())

    async def test_who_waits_asks_now_and_then_and_grows_no_fatter(
        self, scene: Scene, proxy: Proxy, pace: Pace
    ) -> None:
        held = await scene.enqueue("hold", gate=scene.gate)
        worker = await scene.worker(lease=60.0)
        await scene.started(held)
        await scene.finished(await scene.enqueue("quick"))

        proxy.refuses = True
        proxy.cut()
        wanted = [asyncio.create_task(scene.enqueue("quick")) for _ in range(50)]
        await until(lambda: proxy.accepted > 20)  # the first are made in quick succession
        tried, used, size, began = proxy.accepted, worker.used(), resident(worker), time.monotonic()
        await until(lambda: time.monotonic() > began + 4.0)
        tried, used, lasted = proxy.accepted - tried, worker.used() - used, time.monotonic() - began
        grown = resident(worker) - size
        scene.open_gate(attempt=1)
        await scene.ended(held)
        proxy.refuses = False
        back = time.monotonic()
        jobs = await asyncio.gather(*wanted)

        assert (await scene.finished(held)).attempts == 1  # its outcome was valid still
        assert {(await scene.finished(job)).state for job in jobs} == {State.COMPLETED}
        assert time.monotonic() - back < pace.allowed(BACK)
        assert tried < 15 * lasted, "of the worker and the test, each with five connections"
        assert used < 0.25 * lasted
        assert grown < 4 * MEGABYTE
        await scene.check()


async def test_a_handler_is_told_when_its_lease_can_no_longer_be_kept(
    scene: Scene, mortal: Mortal, pace: Pace
) -> None:
    lease = 4.0
    job = await scene.enqueue("hold", gate=scene.gate)
    worker = await scene.worker(lease=lease, renew_every=0.5)
    [run] = await scene.started(job)

    gone = time.time()
    mortal.stop()
    try:
        [end] = await scene.ended(job)
        assert (end.how, end.fence) == ("canceled", run.fence)
        assert end.at - gone < pace.allowed(1.5 * lease)
        await worker.logged("its lease is lost: it could not be renewed in time")
    finally:
        mortal.start()
    back = time.monotonic()

    await scene.started(job, times=2)
    assert time.monotonic() - back < pace.allowed(BACK)
    scene.open_gate(attempt=2)
    assert (await scene.finished(job)).attempts == 2
    await scene.check()


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]], ids=len)
async def test_a_worker_with_nothing_to_do_ends_though_the_server_is_away(
    scene: Scene, mortal: Mortal, pace: Pace, signals: list[signal.Signals]
) -> None:
    worker = await scene.worker(grace=300.0)
    mortal.stop()
    try:
        told = time.monotonic()
        for number in signals:
            worker.signal(number)

        assert await worker.over() == 0, worker.log()
        assert time.monotonic() - told < pace.allowed(10.0)
    finally:
        mortal.start()


async def test_enqueue_waits_or_fails_as_it_was_told(mortal: Mortal, url: str, pace: Pace) -> None:
    hasty_limits = WriteLimits(give_up_after=0.3)
    async with Errandry(url) as patient, Errandry(url, limits=hasty_limits) as hasty:
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
        assert time.monotonic() - back < pace.allowed(BACK)
        assert await patient.counts() == {"default": {"waiting": 4}}


async def test_wakes_come_back_after_the_listening_backend_was_terminated(
    scene: Scene, mortal: Mortal, pace: Pace
) -> None:
    """Nobody looks often while wakes come through: so soon, only a wake can have told of it."""
    await scene.worker()
    await scene.finished(await scene.enqueue("quick"))
    with psycopg.connect(mortal.url(), autocommit=True) as db:
        before = listeners(db)
        assert before
        for pid in before:
            db.execute("SELECT pg_terminate_backend(%s)", (pid,))
        await until(lambda: len(listeners(db) - before) >= len(before))

    waits = []
    for _ in range(5):
        began = time.monotonic()
        await scene.finished(await scene.enqueue("quick"))
        waits.append(time.monotonic() - began)
    assert min(waits) < pace.allowed(0.5)
    await scene.check()


async def test_backends_terminated_in_the_middle_of_passes_cost_nothing_but_time(
    scene: Scene, mortal: Mortal
) -> None:
    for _ in range(2):
        scene.start("work", {"lease": 60.0, "concurrency": 20})
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
        assert (await scene.finished(job)).attempts == 2  # one of its own, nothing was lost
    await scene.check()


def listeners(db: psycopg.Connection[tuple[int]]) -> set[int]:
    """The backends whose last statement was to listen, or is what a listener looks at."""
    found = db.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'errandry'"
        " AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT coalesce((SELECT n FROM%')"
    )
    return {pid for (pid,) in found}


def resident(process: Process) -> int:
    """How much memory it has, in bytes."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
