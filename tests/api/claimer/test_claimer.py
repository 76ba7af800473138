"""`jobs.claimer`: a program that is not a worker claims jobs."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from errandry import ClaimedJob, Claimer, Errandry, State
from errandry.core.command import Claim
from errandry.errors import InvalidValue
from errandry.testing import FakeClock
from tests.api.claimer.claims import LEASE
from tests.faults.process import wait_until
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import wait_for_job
from tests.store.server import server


async def begin_to_wait(jobs: Errandry, claimer: Claimer) -> "asyncio.Task[list[ClaimedJob]]":
    """A claim that has found no job and waits for one. No other commands may be sent meanwhile."""
    passes = jobs.engine.stats().passes
    waiting = asyncio.create_task(claimer.claim(wait="1 hour"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        while jobs.engine.stats().passes == passes:  # noqa: ASYNC110 - a pass has no event
            await asyncio.sleep(0.001)
    return waiting


async def test_a_claimed_job_is_running_and_says_what_it_is(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send", {"to": "ada"}, queue="mail")

    async with jobs.claimer(worker="scraper") as claimer:
        [job] = await claimer.claim(limit=10)
        record = await jobs.client.record(enqueued.id)

        assert (job.id, job.task, job.queue, job.attempt) == (enqueued.id, "send", "mail", 1)
        assert job.arguments == {"to": "ada"}
        assert (job.settled, job.should_stop) == (False, False)
        assert (record.state, record.worker, record.fence) == (State.RUNNING, claimer.id, job.fence)
        assert claimer.id.startswith("scraper-")
        assert (await job.job.refresh()).id == job.id


async def test_a_claim_takes_up_to_its_limit_of_its_queues_and_tasks(jobs: Errandry) -> None:
    ids = [(await jobs.enqueue("send", queue="mail")).id for _ in range(3)]
    await jobs.enqueue("other", queue="mail")
    await jobs.enqueue("send", queue="bulk")

    async with jobs.claimer(queues=["mail"], tasks="send") as claimer:
        claims = [[job.id for job in await claimer.claim(limit=2)] for _ in range(3)]

    assert claims == [ids[:2], ids[2:], []]


async def test_a_claim_without_wait_returns_at_once(jobs: Errandry) -> None:
    async with jobs.claimer() as claimer:
        assert await claimer.claim() == []


async def test_a_claim_with_wait_returns_an_empty_list_if_no_job_came(memory_jobs: Errandry) -> None:
    async with memory_jobs.claimer() as claimer:
        began = time.monotonic()
        assert await claimer.claim(wait=0.05) == []

    assert time.monotonic() - began >= 0.05


async def test_a_waiting_claim_is_woken_by_a_new_job(jobs: Errandry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not poll: the next poll would be in an hour."""
    monkeypatch.setattr("errandry.api.claimer.POLL_INTERVAL", 3_600.0)
    async with jobs.claimer(upkeep=False) as claimer:
        waiting = await begin_to_wait(jobs, claimer)
        enqueued = await jobs.enqueue("send")
        async with asyncio.timeout(WAIT_TIMEOUT):
            [job] = await waiting

        assert job.id == enqueued.id


async def test_a_waiting_claim_gets_a_job_when_it_is_due(live: Errandry) -> None:
    enqueued = await live.enqueue("send", delay=0.05)
    async with live.claimer(upkeep=False) as claimer:
        [job] = await claimer.claim(wait=WAIT_TIMEOUT)

        assert job.id == enqueued.id


async def test_a_waiting_claim_ends_when_its_claimer_is_left(
    memory_jobs: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.api.claimer.POLL_INTERVAL", 3_600.0)
    async with memory_jobs.claimer(upkeep=False) as claimer:
        waiting = await begin_to_wait(memory_jobs, claimer)

    async with asyncio.timeout(WAIT_TIMEOUT):
        assert await waiting == []


async def test_pauses_and_limits_hold_for_a_claimer(jobs: Errandry) -> None:
    for _ in range(3):
        await jobs.enqueue("send", queue="mail")
    await jobs.queue("mail").set_rules(limit=2)

    async with jobs.claimer() as claimer:
        await jobs.workers.pause(claimer.id)
        assert await claimer.claim(limit=10) == []
        await jobs.workers.resume(claimer.id)
        await jobs.queue("mail").pause()
        assert await claimer.claim(limit=10) == []
        await jobs.queue("mail").resume()
        assert len(await claimer.claim(limit=10)) == 2


async def test_a_claimer_takes_a_quarter_of_its_limit_of_suspects(jobs: Errandry, clock: FakeClock) -> None:
    """A job that was running when its worker died may do it again; few others should die with it.

    Without upkeep of its own, which would lock the jobs while the first claim looks for them.
    """
    for _ in range(3):
        await jobs.enqueue("send")
    await jobs.engine.submit(Claim(worker="dead", nonce="1", limit=3, lease=LEASE))
    clock.advance(LEASE)

    async with jobs.claimer(upkeep=False) as claimer:
        first, second = await claimer.claim(limit=8)
        assert await claimer.claim(limit=8) == []
        await first.complete()
        assert await claimer.claim(limit=8) == []  # the round has not ended
        await second.complete()
        [third] = await claimer.claim(limit=8)

        assert {job.attempt for job in (first, second, third)} == {2}


async def test_claims_of_one_claimer_at_the_same_time_take_one_suspect(
    jobs: Errandry, clock: FakeClock
) -> None:
    for _ in range(3):
        await jobs.enqueue("send")
    await jobs.engine.submit(Claim(worker="dead", nonce="1", limit=3, lease=LEASE))
    clock.advance(LEASE)

    async with jobs.claimer(upkeep=False) as claimer:
        claims = await asyncio.gather(*[claimer.claim() for _ in range(3)])

    assert sorted(map(len, claims)) == [0, 0, 1]


async def test_a_claimer_is_listed_as_a_worker_while_it_is_open(jobs: Errandry) -> None:
    await jobs.enqueue("send", queue="mail")
    async with jobs.claimer(queues=["mail"], worker="scraper") as claimer:
        [worker] = await jobs.workers.list()
        [stored] = await jobs.engine.call(jobs.store.workers)
        assert (worker.id, worker.queues, worker.tasks, worker.slots) == (claimer.id, ("mail",), None, 0)
        assert Path(stored.beat.alive).exists()

    assert await jobs.workers.list() == []
    assert not Path(stored.beat.alive).exists()


async def test_a_claimer_sends_heartbeats(live: Errandry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("errandry.api.claimer.BEAT_INTERVAL", 0.01)
    await live.enqueue("send")
    async with live.claimer() as claimer:
        await claimer.claim()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (await live.workers.list())[0].running == 0:  # noqa: ASYNC110 - a beat has no event
                await asyncio.sleep(0.005)


async def test_a_claimer_runs_upkeep(live: Errandry) -> None:
    enqueued = await live.enqueue("send", delay=0.02)
    async with live.claimer(queues=["other"]):
        await wait_for_job(live, enqueued.id, lambda record: record.state is State.WAITING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": []}, r"queues=\[\]: must be a list of names; leave it out for all"),
        ({"tasks": 7}, "tasks=7: must be a list of names"),
        ({"queues": ["mail", ""]}, "queues='': must be a name"),
        ({"lease": 0}, "lease=0.0: must be more than 0 seconds"),
        ({"lease": "soon"}, "lease='soon': not a duration"),
        ({"worker": ""}, "worker='': must be a name"),
        ({"renew": "no"}, "renew='no': must be True or False"),
        ({"upkeep": None}, "upkeep=None: must be True or False"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Errandry("memory:").claimer(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0: must be a whole number from 1 to 10,000"),
        ({"wait": -1}, "wait=-1: must be from 0 to a century"),
    ],
)
async def test_wrong_options_of_a_claim_are_refused(
    memory_jobs: Errandry, options: dict[str, Any], message: str
) -> None:
    async with memory_jobs.claimer() as claimer:
        with pytest.raises(InvalidValue, match=message):
            await claimer.claim(**options)


async def test_a_claimer_claims_only_while_it_is_open_and_is_opened_once(memory_jobs: Errandry) -> None:
    claimer = memory_jobs.claimer()
    with pytest.raises(InvalidValue, match="is not open"):
        await claimer.claim()
    async with claimer:
        pass
    with pytest.raises(InvalidValue, match="is not open"):
        await claimer.claim()
    with pytest.raises(InvalidValue, match="was opened before"):
        async with claimer:
            pass


@contextmanager
def locked_jobs(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has locked all jobs of a store on PostgreSQL, like upkeep of another program."""
    schema = url.rpartition("schema=")[2]
    with psycopg.connect(server().url()) as db:
        db.execute(f"SELECT 1 FROM {schema}.live FOR NO KEY UPDATE".encode())
        yield db
        db.rollback()


async def expired_claim(jobs: Errandry, clock: FakeClock) -> None:
    """A job whose worker has died, and whose lease has just expired."""
    await jobs.enqueue("send")
    await jobs.engine.submit(Claim(worker="dead", nonce="nonce", lease=10.0))
    clock.advance(10)


async def test_a_claim_waits_for_a_job_that_another_program_is_making_ready(clock: FakeClock) -> None:
    with server().lend_url() as url:
        async with Errandry(url, clock=clock) as jobs, jobs.claimer(upkeep=False) as claimer:
            await expired_claim(jobs, clock)
            passes = jobs.engine.stats().passes
            with locked_jobs(url):
                claiming = asyncio.create_task(claimer.claim())
                await wait_until(lambda: jobs.engine.stats().passes > passes + 1)

            [job] = await claiming

            assert job.attempt == 2


@pytest.mark.slow("waits for the time limit of a locked job")
async def test_a_claim_does_not_wait_for_long_for_a_locked_job(clock: FakeClock) -> None:
    with server().lend_url() as url:
        async with Errandry(url, clock=clock) as jobs, jobs.claimer(upkeep=False) as claimer:
            await expired_claim(jobs, clock)
            with locked_jobs(url):
                assert await claimer.claim() == []
