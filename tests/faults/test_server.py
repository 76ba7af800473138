"""A server that is restarted, killed, cut off, slow or silent: nothing is lost, nothing is done twice."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from errandry.core.command import Claim, Claims, Complete, Insert, Inserted, Ref, Settle
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import StoreUnavailable
from errandry.store.backlog import Limits
from errandry.store.engine import Engine
from errandry.store.url import store_at
from tests.faults.history import Acked, violations
from tests.faults.process import until
from tests.faults.scene import Scene
from tests.store.proxy import Proxy
from tests.store.server import Server, server

pytestmark = pytest.mark.slow("starts servers and workers, and takes them away")


@pytest.fixture
def own() -> Iterator[Server]:
    """A server this test may do anything to."""
    own = Server(fsync="on", synchronous_commit="on", full_page_writes="on")
    yield own
    own.remove()


@pytest.fixture
def url(own: Server) -> str:
    return own.fresh()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(server().folder) as proxy:
        yield proxy


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_restarted_again_and_again_under_load_nothing_is_lost(
    own: Server, scene: Scene, how: signal.Signals
) -> None:
    workers = [scene.start("work", {"lease": 3.0, "concurrency": 20}) for _ in range(2)]
    producers = [scene.start("produce", {"seed": seed}) for seed in range(2)]
    for times in range(1, 5):
        await until(partial(has_acked, scene, 60 * times), limit=90)
        own.stop(how)
        own.start()
    await until(partial(has_acked, scene, 300), limit=90)
    for process in producers:
        process.signal(signal.SIGTERM)
        assert await process.over() == 0, process.log()

    found = await scene.all_finished(limit=60)

    assert violations(scene.journal.read(), found) == []
    assert not any(process.is_over for process in workers)


async def test_outcomes_and_enqueues_wait_for_the_server_and_nobody_spins(own: Server, scene: Scene) -> None:
    job = await scene.enqueue("hold", gate=scene.gate)
    worker = await scene.worker(lease=60.0)
    await scene.started(job)

    own.stop()
    scene.open_gate(attempt=1)
    enqueued = asyncio.create_task(scene.enqueue("quick"))
    began, used = time.monotonic(), worker.used()
    await scene.ended(job)
    await until(lambda: time.monotonic() > began + 3.0)
    busy = (worker.used() - used) / (time.monotonic() - began)
    assert not enqueued.done()
    own.start()
    back = time.monotonic()

    assert (await scene.finished(job)).attempts == 1
    assert (await scene.finished(await enqueued)).state is State.COMPLETED
    assert time.monotonic() - back < 5.0
    assert busy < 0.2, f"{busy:.0%} of a processor while there was nothing to do"
    await scene.check()


async def test_terminated_backends_are_replaced_and_workers_woken(own: Server, scene: Scene) -> None:
    await scene.worker(lease=30.0)
    await scene.finished(await scene.enqueue("quick"))

    with psycopg.connect(own.url(), autocommit=True) as db:
        for _ in range(3):
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'errandry'"
            )
            began = time.monotonic()
            record = await scene.finished(await scene.enqueue("quick"))
            assert record.attempts == 1
            assert time.monotonic() - began < 5.0
    await scene.check()


async def test_a_reply_lost_after_the_commit_changes_nothing(proxy: Proxy) -> None:
    store = store_at(f"{proxy.url}?schema={schema()}")
    async with Engine(store) as engine:
        await engine.submit(insert("warm"))
        for number in range(5):
            proxy.deaf_after = b"COMMIT"
            answer = await engine.submit(insert(f"job-{number}"))
            assert isinstance(answer, Inserted)
        proxy.deaf_after = b"COMMIT"
        claims = await engine.submit(Claim(worker="w", nonce="n", limit=10))
        assert isinstance(claims, Claims)
        proxy.deaf_after = b"COMMIT"
        await engine.submit(Settle(Ref(claims.jobs[0].id, claims.jobs[0].fence), Complete("1")))

        assert proxy.dropped == 7
        assert len(claims.jobs) == 6
        assert [job.attempts for job in claims.jobs] == [1] * 6
        assert await engine.call(store.counts) == {"default": {"completed": 1, "running": 5}}
        assert (await engine.call(store.totals))["default"]["inserted"] == 6


async def test_cut_and_slow_connections_lose_nothing(proxy: Proxy) -> None:
    store = store_at(f"{proxy.url}?schema={schema()}")
    proxy.delay = 0.002
    async with Engine(store) as engine:
        tasks = [asyncio.create_task(engine.submit(insert(f"job-{number}"))) for number in range(200)]
        for pause in (0.01, 0.03, 0.06, 0.1, 0.2):
            await asyncio.sleep(pause)
            proxy.cut()

        await asyncio.gather(*tasks)
        assert await engine.call(store.counts) == {"default": {"waiting": 200}}


async def test_a_server_that_has_gone_silent_is_given_up_and_found_again(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.store.postgres.driver.LIMITS", (0.5, 0.5, 0.5))
    store = store_at(f"{proxy.url}?schema={schema()}&connect_timeout=2")
    async with Engine(store) as engine:
        await engine.submit(insert("a"))
        proxy.swallows = True
        waiting = asyncio.create_task(engine.submit(insert("b")))
        await asyncio.sleep(1.5)
        proxy.swallows = False

        async with asyncio.timeout(20):
            assert isinstance(await waiting, Inserted)
        assert await engine.call(store.counts) == {"default": {"waiting": 2}}


async def test_who_does_not_want_to_wait_gets_an_error_that_says_why(own: Server, tmp_path: Path) -> None:
    store = store_at(own.fresh())
    async with Engine(store, Limits(give_up_after=0.2)) as engine:
        await engine.submit(insert("a"))
        own.stop()

        with pytest.raises(StoreUnavailable, match="connection"):
            await engine.submit(insert("b"))

        own.start()
        assert isinstance(await engine.submit(insert("c")), Inserted)


def insert(*ids: str) -> Insert:
    return Insert(tuple(NewJob(id=one, task="task", payload="{}") for one in ids))


def schema() -> str:
    return server().fresh().rpartition("=")[2]


def has_acked(scene: Scene, count: int) -> bool:
    return sum(isinstance(fact, Acked) for fact in scene.journal.read()) > count
