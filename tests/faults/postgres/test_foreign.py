"""A foreign transaction stays open and locks a job or its id: other commands do not wait for it."""

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
from tests.faults.process import wait_until, wait_until_async
from tests.faults.scene import Scene
from tests.machine_load import MachineLoad
from tests.new_jobs import insert
from tests.run_worker import running_worker

pytestmark = pytest.mark.slow("waits for locks that are not released")

UNAFFECTED_MAX = 2.0
"""Maximum number of seconds for a command that needs no lock of the foreign transaction."""


@pytest.fixture
def schema(url: str) -> str:
    return url.rpartition("=")[2]


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with Engine(store_at(url)) as engine:
        yield engine


@pytest.fixture
def foreign(mortal: Mortal) -> Iterator[psycopg.Connection[Any]]:
    """A connection of another program, whose transaction stays open."""
    with psycopg.connect(mortal.url()) as foreign:
        yield foreign


async def test_a_locked_row_delays_no_other_outcome_and_no_other_renewal(
    engine: Engine, foreign: psycopg.Connection[Any], schema: str
) -> None:
    locked, *others = await insert_and_claim(engine, 20)
    lock_row(foreign, schema, locked)
    refused = asyncio.create_task(engine.submit(Settle(locked, CompleteOutcome())))

    for ref in others[:10]:
        began = time.monotonic()
        with MachineLoad() as load:
            assert await engine.submit(Renew((ref,), 60.0)) == Renewed((Ack.HELD,))
            assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.WRITTEN
        assert time.monotonic() - began < load.scaled(UNAFFECTED_MAX)

    with pytest.raises(StoreUnavailable, match="lock"):
        await refused
    foreign.rollback()
    assert await engine.submit(Settle(locked, CompleteOutcome())) is Ack.WRITTEN


async def test_repeated_settles_of_a_locked_row_do_not_delay_renewals(
    engine: Engine, foreign: psycopg.Connection[Any], schema: str
) -> None:
    """A worker repeats an outcome in this way until it is written."""
    locked, *others = await insert_and_claim(engine, 20)
    lock_row(foreign, schema, locked)

    async def settle_until_written() -> None:
        while True:
            try:
                await engine.submit(Settle(locked, CompleteOutcome()))
                return
            except StoreUnavailable:
                await asyncio.sleep(0.01)

    settling = asyncio.create_task(settle_until_written())
    await engine.submit(Settle(others[0], CompleteOutcome()))
    began = time.monotonic()
    with MachineLoad() as load:
        for ref in others[1:]:
            await engine.submit(Renew((ref,), 60.0))

    assert time.monotonic() - began < load.scaled(UNAFFECTED_MAX)
    assert not settling.done()
    foreign.rollback()
    async with asyncio.timeout(30):
        await settling


async def test_a_job_claimed_by_hand_is_settled_when_its_row_is_unlocked(
    url: str, foreign: psycopg.Connection[Any], schema: str
) -> None:
    """Its block ends while the row is locked, and the store refuses the outcome after its lock timeout."""
    async with Errandry(url) as app, app.claimer(upkeep=False) as claimer:
        await app.enqueue("send", backoff="1 minute")
        [job] = await claimer.claim()
        lock_row(foreign, schema, Ref(job.id, job.fence))
        asyncio.get_running_loop().call_later(0.6, foreign.rollback)
        with pytest.raises(RuntimeError):
            async with job:
                raise RuntimeError("the page did not load")

        assert job.settled
        assert (await app.client.record(job.id)).errors[0].message == "the page did not load"


async def test_many_locked_rows_in_one_pass_delay_no_other_renewal_for_long(
    engine: Engine, foreign: psycopg.Connection[Any], schema: str
) -> None:
    """Less than a third of the default lease, which is the interval of renewals."""
    *locked, other = await insert_and_claim(engine, 600)
    foreign.execute(f'SELECT 1 FROM "{schema}".live WHERE id <> %s FOR UPDATE'.encode(), (other.job,))
    settles = engine.submit_all([Settle(ref, CompleteOutcome()) for ref in locked])
    refused = asyncio.create_task(settles)
    await asyncio.sleep(0)
    began = time.monotonic()
    with MachineLoad() as load:
        assert await engine.submit(Renew((other,), 60.0)) == Renewed((Ack.HELD,))

    assert time.monotonic() - began < load.scaled(5.0)
    assert {type(answer) for answer in await refused} == {StoreUnavailable}


async def test_a_released_lock_does_not_keep_an_idle_worker_busy(
    url: str, foreign: psycopg.Connection[Any], schema: str
) -> None:
    async with Errandry(url, write_limits=WriteLimits(give_up_after=0.5)) as app:
        app.task(name="task")(_nothing)
        await app.engine.submit(Insert((NewJob(id="j", task="elsewhere", queue="other", payload="{}"),)))
        lock_row(foreign, schema, Ref("j", 0))
        with pytest.raises(StoreUnavailable, match="lock"):
            await app.engine.submit(CancelJobs(ids=("j",)))
        foreign.rollback()
        async with running_worker(app, queues=("default",)):
            await wait_until(lambda: app.engine.stats().passes > 5)
            before, began = app.engine.stats().passes, time.monotonic()
            await wait_until(lambda: time.monotonic() > began + 2.0)

            assert app.engine.stats().passes - before < 30


async def _nothing() -> None: ...


async def test_a_worker_renews_its_other_leases_and_cancels_the_handler_of_a_locked_job(
    scene: Scene, foreign: psycopg.Connection[Any], schema: str, load: MachineLoad
) -> None:
    lease = 4.0
    locked, other = [await scene.enqueue("hold", gate=f"{scene.gate}{name}-") for name in "ab"]
    await scene.worker(lease=lease, renew_every=0.5)
    [run], _ = await scene.started(locked), await scene.started(other)
    held = time.time()
    lock_row(foreign, schema, Ref(locked, run.fence))
    began = (await scene.app.client.record(other)).lease_until or 0.0

    async def is_kept() -> bool:
        return ((await scene.app.client.record(other)).lease_until or 0.0) > began + 1.5 * lease

    await wait_until_async(is_kept)
    [end] = await scene.ended(locked)
    assert (end.ending, scene.journal.ended(other)) == ("canceled", [])
    assert end.at - held < load.scaled(1.5 * lease)

    foreign.rollback()
    for name in ("a-1", "a-2", "b-1"):
        scene.folder.joinpath(f"gate-{name}").touch()
    assert (await scene.finished(other)).attempts == 1
    assert (await scene.finished(locked)).attempts == 2
    await scene.check()


async def test_an_id_in_an_open_transaction_delays_no_other_command(
    engine: Engine, foreign: psycopg.Connection[Any], schema: str
) -> None:
    [ref] = await insert_and_claim(engine, 1)
    job = json.dumps([{"id": "mine", "task": "task", "payload": "{}"}])
    foreign.execute(f'SELECT "{schema}".insert_jobs(%s)'.encode(), (job,))
    waiting = asyncio.create_task(engine.submit(insert("mine")))
    began = time.monotonic()

    with MachineLoad() as load:
        assert await engine.submit(Renew((ref,), 60.0)) == Renewed((Ack.HELD,))
        assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.WRITTEN
    assert time.monotonic() - began < load.scaled(UNAFFECTED_MAX)
    assert isinstance(await engine.submit(insert("other")), Inserted)
    assert time.monotonic() - began < load.scaled(5.0)

    foreign.commit()
    try:
        answer = await waiting
    except StoreUnavailable:
        answer = await engine.submit(insert("mine"))
    assert answer == Inserted(("mine",), frozenset({"mine"}))


async def insert_and_claim(engine: Engine, number: int) -> list[Ref]:
    await engine.submit(insert(*[f"job-{n}" for n in range(number)]))
    claims = await engine.submit(Claim(worker="worker", nonce="nonce", limit=number, lease=60.0))
    assert isinstance(claims, Claims)
    return [Ref(job.id, job.fence) for job in claims.jobs]


def lock_row(foreign: psycopg.Connection[Any], schema: str, ref: Ref) -> None:
    foreign.execute(f'SELECT 1 FROM "{schema}".live WHERE id = %s FOR UPDATE'.encode(), (ref.job,))
