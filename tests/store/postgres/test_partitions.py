"""Partitions of finished jobs: created when needed, dropped after their day, without delaying passes."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from errandry.core.answer import Ack, UpkeepResult
from errandry.core.command import CompleteOutcome, Insert, Ref, RerunJobs, ResolveJobs, Settle, Upkeep
from errandry.core.job import DAY, JobRecord, Keep, NewJob
from errandry.core.state import State
from errandry.store.postgres import partitions
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from tests.machine_load import MachineLoad
from tests.store.server import server

YEAR = 365 * DAY


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[PostgresStore]:
    store = store_at(server().new_url(), clock)
    assert isinstance(store, PostgresStore)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def db(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A connection of another program that sees the tables of the store."""
    options = f"-csearch_path={store.address.schema}"
    with psycopg.connect(server().url(), autocommit=True, options=options) as db:
        yield db


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(partitions, "MAINTENANCE_INTERVAL", 0.0)


async def complete_job(store: PostgresStore, name: str, keep: float = DAY) -> JobRecord:
    """Insert, claim and complete a job that is kept for `keep` seconds."""
    await requests.insert(store, NewJob(id=name, task="task", payload="{}", keep=Keep(completed=keep)))
    [job] = await requests.claim(store)
    [answer] = await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1"))])
    assert isinstance(answer, Ack)
    return job


async def run_upkeep(store: PostgresStore) -> None:
    for _ in range(2):  # the second drops the partitions that the first has emptied
        await requests.send(store, Upkeep())


def partition_names(db: psycopg.Connection[Any]) -> list[str]:
    tables = db.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        " AND relkind = 'r' AND relname ~ '^history_' ORDER BY relname"
    )
    return [name.removeprefix("history_") for (name,) in tables]


async def test_a_job_goes_to_the_day_it_expires_on(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    # The clock starts on 2025-06-15.
    for name, keep in (("a", DAY), ("b", 7 * DAY), ("c", 60 * DAY), ("d", 61 * DAY), ("e", 50 * YEAR)):
        await complete_job(store, name, keep)

    assert partition_names(db) == ["20250616", "20250622", "20250814", "long_term"]
    assert db.execute("SELECT id FROM history_long_term ORDER BY id").fetchall() == [("d",), ("e",)]
    assert [job.id for job in await requests.list_jobs(store)] == ["e", "d", "c", "b", "a"]


async def test_only_the_partition_of_the_next_day_is_created_ahead(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    await complete_job(store, "a", 7 * DAY)
    for _ in range(3):
        await run_upkeep(store)

    assert partition_names(db) == ["20250622", "20250623", "long_term"]
    clock.advance(DAY)
    await complete_job(store, "b", 7 * DAY)
    await run_upkeep(store)
    assert partition_names(db) == ["20250622", "20250623", "20250624", "long_term"]


async def test_an_empty_partition_of_a_past_day_is_dropped(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    for name in "abc":
        await complete_job(store, name)
    await complete_job(store, "kept", 3 * DAY)
    clock.advance(DAY)
    await run_upkeep(store)
    assert partition_names(db) == [
        "20250616",
        "20250617",
        "20250618",
        "20250619",
        "long_term",
    ]  # empty, but not over
    assert [job.id for job in await requests.list_jobs(store)] == ["kept"]

    clock.advance(1.5 * DAY)
    await run_upkeep(store)

    assert partition_names(db) == ["20250618", "20250619", "long_term"]
    assert await store.totals() == {"default": {"inserted": 4, "completed": 4, "removed": 3}}
    assert await store.counts() == {"default": {"completed": 1}}
    assert db.execute("SELECT id FROM finished_ids").fetchall() == [("kept",)]


async def test_the_maintenance_runs_once_per_interval(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MAINTENANCE_INTERVAL", 3_600.0)
    ids = tuple(f"job-{number}" for number in range(150))
    new = [NewJob(id=job_id, task="task", payload="{}", keep=Keep(completed=DAY)) for job_id in ids]
    await store.commit([Insert(tuple(new))])
    await store.commit([ResolveJobs(ids=ids)])
    clock.advance(5 * DAY)

    [first] = await store.commit([Upkeep()])
    assert isinstance(first, UpkeepResult)
    assert (first.pruned, first.more) == (100, True)
    for _ in range(2):
        await requests.send(store, Upkeep())
    assert partition_names(db) == ["20250616", "long_term"]  # empty by now
    monkeypatch.setattr(partitions, "MAINTENANCE_INTERVAL", 0.0)
    await requests.send(store, Upkeep())

    assert partition_names(db) == ["long_term"]


async def test_a_partition_with_jobs_is_not_dropped(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    for name in "abc":
        await complete_job(store, name)
    clock.advance(5 * DAY)
    with psycopg.connect(server().url()) as other:
        other.execute(f"SELECT 1 FROM \"{store.address.schema}\".history WHERE id = 'b' FOR UPDATE".encode())
        await run_upkeep(store)
        assert [job.id for job in await requests.list_jobs(store)] == ["b"]
        assert partition_names(db) == ["20250616", "long_term"]

    await run_upkeep(store)
    assert partition_names(db) == ["long_term"]


@pytest.mark.slow("reads a partition for seconds")
async def test_a_long_read_of_a_partition_delays_no_pass(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "LOCK_TIMEOUT", "3s")
    await complete_job(store, "old")
    clock.advance(5 * DAY)
    with psycopg.connect(server().url()) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f'SELECT count(*) FROM "{store.address.schema}".history'.encode())
        maintenance = asyncio.create_task(run_upkeep(store))
        slowest, number = 0.0, 0
        with MachineLoad() as load:
            while not maintenance.done():
                began = time.perf_counter()
                await complete_job(store, f"new-{(number := number + 1)}")
                await requests.list_jobs(store)
                slowest = max(slowest, time.perf_counter() - began)
        await maintenance
        await run_upkeep(store)

        # The detach was tried, and could not finish during the read.
        assert "20250616" in partition_names(db)
        assert db.execute("SELECT 1 FROM pg_inherits WHERE inhdetachpending").fetchall() != []
        assert number > 3
        assert slowest < load.scaled(0.7)  # a pass that waits for the detach would wait for all of it
        assert (await store.counts()) == {"default": {"completed": number}}

    await run_upkeep(store)
    assert partition_names(db) == ["20250621", "20250622", "long_term"]


async def test_a_missing_partition_is_created_again(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    await complete_job(store, "a")
    db.execute("DELETE FROM history; DELETE FROM finished_ids; DROP TABLE history_20250616")

    await complete_job(store, "b")

    assert partition_names(db) == ["20250616", "long_term"]
    assert [job.id for job in await requests.list_jobs(store)] == ["b"]


async def test_a_partition_that_an_operator_detached_is_kept(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    await complete_job(store, "a")
    db.execute("ALTER TABLE history DETACH PARTITION history_20250616")
    clock.advance(5 * DAY)
    await run_upkeep(store)

    assert partition_names(db) == ["20250616", "long_term"]
    db.execute("TRUNCATE history_20250616")
    await run_upkeep(store)
    assert partition_names(db) == ["long_term"]


async def test_a_job_that_runs_again_moves_to_another_day(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    await complete_job(store, "a")
    clock.advance(DAY / 2)
    await requests.send(store, RerunJobs(ids=("a",)))
    assert db.execute("SELECT 1 FROM finished_ids UNION ALL SELECT 1 FROM history").fetchall() == []
    clock.advance(DAY / 2)
    [job] = await requests.claim(store)
    await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("2"))])

    assert db.execute("SELECT id, tableoid::regclass::text FROM history").fetchall() == [
        ("a", "history_20250617")
    ]
    [job_after] = await store.get(["a"])
    assert job_after is not None
    assert (job_after.state, job_after.result) == (State.COMPLETED, "2")


async def test_several_stores_can_create_the_same_partition_at_once(clock: FakeClock) -> None:
    url = server().new_url()
    stores = [store_at(url, clock) for _ in range(4)]
    for store in stores:
        await store.open()
    await requests.insert(stores[0], *(NewJob(id=str(n), task="task", payload="{}") for n in range(8)))
    held = await requests.claim(stores[0], limit=8)

    settles = [
        store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1"))])
        for store, job in zip(stores * 2, held, strict=True)
    ]
    answers = [answer for answers in await asyncio.gather(*settles) for answer in answers]

    assert all(isinstance(answer, Ack) for answer in answers), answers
    assert await stores[1].counts() == {"default": {"completed": 8}}
    for store in stores:
        await store.close()
