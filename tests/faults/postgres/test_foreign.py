"""A stranger's transaction stays open and holds a job's row, or its id: nobody else's work waits for it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from errandry import Errandry
from errandry.core.answer import Ack, Claims, Inserted, Renewed
from errandry.core.command import CancelJobs, Claim, CompleteOutcome, Insert, Ref, Renew, Settle
from errandry.core.job import NewJob
from errandry.errors import StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.engine import Engine
from errandry.store.url import store_at
from tests.faults.postgres.conftest import Mortal
from tests.faults.process import until, until_said
from tests.faults.scene import Scene
from tests.pace import Pace
from tests.working import working

pytestmark = pytest.mark.slow("waits for locks that are not given back")

LIMIT = 2.0
"""So long may anything take that is not the stranger's business."""


@pytest.fixture
def schema(url: str) -> str:
    return url.rpartition("=")[2]


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with Engine(store_at(url)) as engine:
        yield engine


@pytest.fixture
def stranger(mortal: Mortal) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction stays open."""
    with psycopg.connect(mortal.url()) as stranger:
        yield stranger


async def test_a_locked_row_keeps_no_other_outcome_and_no_other_lease_waiting(
    engine: Engine, stranger: psycopg.Connection[Any], schema: str
) -> None:
    locked, *others = await claimed(engine, 20)
    lock(stranger, schema, locked)
    refused = asyncio.create_task(engine.submit(Settle(locked, CompleteOutcome())))

    for ref in others[:10]:
        began = time.monotonic()
        with Pace() as pace:
            assert await engine.submit(Renew((ref,), 60.0)) == Renewed((Ack.HELD,))
            assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.WRITTEN
        assert time.monotonic() - began < pace.allowed(LIMIT)

    with pytest.raises(StoreUnavailable, match="lock"):
        await refused
    stranger.rollback()
    assert await engine.submit(Settle(locked, CompleteOutcome())) is Ack.WRITTEN


async def test_who_asks_for_a_locked_row_again_and_again_is_in_nobodys_way(
    engine: Engine, stranger: psycopg.Connection[Any], schema: str
) -> None:
    """As a worker does with an outcome it wants to get rid of."""
    locked, *others = await claimed(engine, 20)
    lock(stranger, schema, locked)

    async def insist() -> None:
        while True:
            try:
                await engine.submit(Settle(locked, CompleteOutcome()))
                return
            except StoreUnavailable:
                await asyncio.sleep(0.01)

    insisting = asyncio.create_task(insist())
    await engine.submit(Settle(others[0], CompleteOutcome()))
    began = time.monotonic()
    with Pace() as pace:
        for ref in others[1:]:
            await engine.submit(Renew((ref,), 60.0))

    assert time.monotonic() - began < pace.allowed(LIMIT)
    assert not insisting.done()
    stranger.rollback()
    async with asyncio.timeout(30):
        await insisting


async def test_many_locked_rows_in_one_pass_keep_no_other_lease_waiting_for_long(
    engine: Engine, stranger: psycopg.Connection[Any], schema: str
) -> None:
    """Less than a third of the usual lease, which is how often leases are renewed."""
    *locked, other = await claimed(engine, 600)
    stranger.execute(f'SELECT 1 FROM "{schema}".live WHERE id <> %s FOR UPDATE'.encode(), (other.job,))
    settles = engine.submit_all([Settle(ref, CompleteOutcome()) for ref in locked])
    refused = asyncio.create_task(settles)
    await asyncio.sleep(0)
    began = time.monotonic()
    with Pace() as pace:
        assert await engine.submit(Renew((other,), 60.0)) == Renewed((Ack.HELD,))

    assert time.monotonic() - began < pace.allowed(5.0)
    assert {type(answer) for answer in await refused} == {StoreUnavailable}


async def test_a_lock_that_was_met_once_does_not_keep_an_idle_worker_busy(
    url: str, stranger: psycopg.Connection[Any], schema: str
) -> None:
    async with Errandry(url, limits=WriteLimits(give_up_after=0.5)) as app:
        app.task(name="task")(_nothing)
        await app.engine.submit(Insert((NewJob(id="j", task="elsewhere", queue="other", payload="{}"),)))
        lock(stranger, schema, Ref("j", 0))
        with pytest.raises(StoreUnavailable, match="lock"):
            await app.engine.submit(CancelJobs(ids=("j",)))
        stranger.rollback()
        async with working(app, queues=("default",)):
            await until(lambda: app.engine.stats().passes > 5)
            before, began = app.engine.stats().passes, time.monotonic()
            await until(lambda: time.monotonic() > began + 2.0)

            assert app.engine.stats().passes - before < 30


async def _nothing() -> None: ...


async def test_a_worker_keeps_its_other_leases_and_gives_the_locked_job_up_in_time(
    scene: Scene, stranger: psycopg.Connection[Any], schema: str, pace: Pace
) -> None:
    lease = 4.0
    locked, other = [await scene.enqueue("hold", gate=f"{scene.gate}{name}-") for name in "ab"]
    await scene.worker(lease=lease, renew_every=0.5)
    [run], _ = await scene.started(locked), await scene.started(other)
    held = time.time()
    lock(stranger, schema, Ref(locked, run.fence))
    began = (await scene.app.record(other)).lease_until or 0.0

    async def is_kept() -> bool:
        return ((await scene.app.record(other)).lease_until or 0.0) > began + 1.5 * lease

    await until_said(is_kept)
    [end] = await scene.ended(locked)
    assert (end.how, scene.journal.ended(other)) == ("canceled", [])
    assert end.at - held < pace.allowed(1.5 * lease)

    stranger.rollback()
    for name in ("a-1", "a-2", "b-1"):
        scene.folder.joinpath(f"gate-{name}").touch()
    assert (await scene.finished(other)).attempts == 1
    assert (await scene.finished(locked)).attempts == 2
    await scene.check()


async def test_an_id_that_is_being_inserted_elsewhere_keeps_nothing_else_waiting(
    engine: Engine, stranger: psycopg.Connection[Any], schema: str
) -> None:
    [ref] = await claimed(engine, 1)
    job = json.dumps([{"id": "mine", "task": "task", "payload": "{}"}])
    stranger.execute(f'SELECT "{schema}".insert_jobs(%s)'.encode(), (job,))
    waiting = asyncio.create_task(engine.submit(insert("mine")))
    began = time.monotonic()

    with Pace() as pace:
        assert await engine.submit(Renew((ref,), 60.0)) == Renewed((Ack.HELD,))
        assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.WRITTEN
    assert time.monotonic() - began < pace.allowed(LIMIT)
    assert isinstance(await engine.submit(insert("other")), Inserted)
    assert time.monotonic() - began < pace.allowed(5.0)

    stranger.commit()
    try:
        answer = await waiting
    except StoreUnavailable:
        answer = await engine.submit(insert("mine"))
    assert answer == Inserted(("mine",), frozenset({"mine"}))


async def claimed(engine: Engine, number: int) -> list[Ref]:
    await engine.submit(insert(*[f"job-{one}" for one in range(number)]))
    claims = await engine.submit(Claim(worker="worker", nonce="nonce", limit=number, lease=60.0))
    assert isinstance(claims, Claims)
    return [Ref(job.id, job.fence) for job in claims.jobs]


def insert(*ids: str) -> Insert:
    return Insert(tuple(NewJob(id=one, task="task", payload="{}") for one in ids))


def lock(stranger: psycopg.Connection[Any], schema: str, ref: Ref) -> None:
    stranger.execute(f'SELECT 1 FROM "{schema}".live WHERE id = %s FOR UPDATE'.encode(), (ref.job,))
