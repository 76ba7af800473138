"""Connections are lost in transactions with bound inserts: an order exists with its jobs, or neither does."""

import asyncio
import random
import signal
from collections.abc import Callable

import psycopg
import pytest

from errandry import Errandry
from tests.faults.orders import (
    INSERT,
    LOST,
    OrderDatabase,
    create_orders,
    jobs_of_orders,
    open_orders,
)
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.proxy import Proxy
from tests.faults.process import wait_until, wait_until_async
from tests.faults.scene import Scene
from tests.faults.test_orders import acked_jobs

pytestmark = pytest.mark.slow("disturbs connections to a server")

LIBRARIES = pytest.mark.parametrize("library", ["psycopg", "asyncpg"])


@pytest.fixture
def schema(mortal: Mortal) -> str:
    return mortal.schema()


@pytest.fixture
def url(mortal: Mortal, schema: str) -> str:
    """Of the test and its workers. Only the connections of orders lead through the proxy."""
    return mortal.url(schema=schema)


@pytest.fixture
async def orders(scene: Scene, proxy: Proxy, schema: str, library: str) -> OrderDatabase:
    """A connection through the proxy, with an open transaction that has written an order of one job."""
    await create_orders(scene.url)
    orders = await open_orders(proxy.url(schema), library)
    await orders.execute("BEGIN")
    await orders.execute(INSERT.format(table=orders.table, id="one", jobs=1))
    return orders


async def enqueue(app: Errandry, orders: OrderDatabase) -> None:
    await orders.enqueue(app, "one/0", "quick", {})


async def job_ids(scene: Scene) -> set[str]:
    return {job.id for job in (await scene.contents()).jobs}


@LIBRARIES
async def test_before_the_insert(scene: Scene, proxy: Proxy, orders: OrderDatabase) -> None:
    proxy.cut()

    with pytest.raises(LOST):
        await enqueue(scene.app, orders)

    await orders.close()
    assert await job_ids(scene) == await jobs_of_orders(scene.url) == set()


@LIBRARIES
async def test_during_the_insert(scene: Scene, mortal: Mortal, proxy: Proxy, orders: OrderDatabase) -> None:
    """The server notices only when the insert is done."""
    async with await psycopg.AsyncConnection.connect(mortal.url()) as other:
        await scene.app.bind(other).enqueue("quick", id="one/0")  # the insert waits for its end
        inserting = asyncio.create_task(enqueue(scene.app, orders))
        await wait_until_async(lambda: is_waiting_for_lock(mortal))
        proxy.cut()
        with pytest.raises(LOST):
            await inserting
        await other.rollback()
    await orders.close()

    await wait_until_async(lambda: has_no_open_transaction(mortal))
    assert await job_ids(scene) == await jobs_of_orders(scene.url) == set()


@LIBRARIES
async def test_before_the_commit_reaches_the_server(
    scene: Scene, proxy: Proxy, orders: OrderDatabase
) -> None:
    await enqueue(scene.app, orders)
    proxy.commits_to_lose = 1

    with pytest.raises(LOST):
        await orders.execute("COMMIT")

    await orders.close()
    assert proxy.lost_commits == 1
    assert await job_ids(scene) == await jobs_of_orders(scene.url) == set()


@LIBRARIES
async def test_before_the_reply_to_the_commit(scene: Scene, proxy: Proxy, orders: OrderDatabase) -> None:
    await enqueue(scene.app, orders)
    proxy.replies_to_lose = 1

    with pytest.raises(LOST):
        await orders.execute("COMMIT")

    await orders.close()
    assert proxy.lost_replies == 1
    assert await job_ids(scene) == await jobs_of_orders(scene.url) == {"one/0"}


@LIBRARIES
@pytest.mark.timeout(300)
async def test_again_and_again_under_load(
    scene: Scene, mortal: Mortal, proxy: Proxy, schema: str, library: str
) -> None:
    await survive(scene, mortal, proxy, schema, library, times=15)


@LIBRARIES
@pytest.mark.prove
@pytest.mark.timeout(600)
async def test_again_and_again_under_load_for_longer(
    scene: Scene, mortal: Mortal, proxy: Proxy, schema: str, library: str
) -> None:
    await survive(scene, mortal, proxy, schema, library, times=150)


async def survive(scene: Scene, mortal: Mortal, proxy: Proxy, schema: str, library: str, times: int) -> None:
    """Run a worker and two programs that write orders; cut their connections and kill the server."""

    def kill_server() -> None:
        mortal.kill()
        mortal.start()

    def lose_commit() -> None:
        proxy.commits_to_lose += 1

    def lose_reply() -> None:
        proxy.replies_to_lose += 1

    dice = random.Random(times)
    acts: list[Callable[[], None]] = [proxy.cut, proxy.cut, lose_commit, lose_reply]
    await create_orders(scene.url)
    worker = await scene.worker(lease=5.0, concurrency=20)
    programs = [
        scene.start("order", {"seed": seed, "library": library}, ERRANDRY_URL=proxy.url(schema))
        for seed in range(2)
    ]
    for time in range(1, times + 1):
        await wait_until(lambda: len(acked_jobs(scene)) > 10 * time)  # noqa: B023 - called here
        (kill_server if time % 10 == 0 else dice.choice(acts))()
    for process in programs:
        process.signal(signal.SIGTERM)
        assert await process.wait_for_end() == 0, process.log()

    await scene.check()

    assert proxy.lost_commits > 0
    assert proxy.lost_replies > 0
    assert not worker.has_ended
    assert await job_ids(scene) == await jobs_of_orders(scene.url)


async def is_waiting_for_lock(mortal: Mortal) -> bool:
    return await count(mortal, "pg_locks WHERE NOT granted") > 0


async def has_no_open_transaction(mortal: Mortal) -> bool:
    return (
        await count(mortal, "pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()") == 0
    )


async def count(mortal: Mortal, rows: str) -> int:
    async with await psycopg.AsyncConnection.connect(mortal.url(), autocommit=True) as db:
        [number] = await (await db.execute(f"SELECT count(*) FROM {rows}".encode())).fetchone() or (0,)
        return int(number)
