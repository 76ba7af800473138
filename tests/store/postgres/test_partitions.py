"""Partitions of finished jobs: there when a job needs one, gone when its day is over, in nobody's way."""

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
from tests.pace import Pace
from tests.store.server import server

YEAR = 365 * DAY


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[PostgresStore]:
    store = store_at(server().fresh(), clock)
    assert isinstance(store, PostgresStore)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def db(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else, who means the tables of the store."""
    options = f"-csearch_path={store.address.schema}"
    with psycopg.connect(server().url(), autocommit=True, options=options) as db:
        yield db


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "LOCK", "100ms")
    monkeypatch.setattr(partitions, "REST", 0.0)


async def done(store: PostgresStore, name: str, keep: float = DAY) -> JobRecord:
    """A job that has completed, and stays for so long."""
    await requests.insert(store, NewJob(id=name, task="task", payload="{}", keep=Keep(completed=keep)))
    [job] = await requests.claim(store)
    [answer] = await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1"))])
    assert isinstance(answer, Ack)
    return job


async def upkeep(store: PostgresStore) -> None:
    for _ in range(2):  # what the first empties, the second removes
        await requests.one(store, Upkeep())


def partition_names(db: psycopg.Connection[Any]) -> list[str]:
    found = db.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        " AND relkind = 'r' AND relname ~ '^history_' ORDER BY relname"
    )
    return [name.removeprefix("history_") for (name,) in found]


async def test_a_job_goes_to_the_day_it_expires_on(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    # The clock begins on 2025-06-15.
    for name, keep in (("a", DAY), ("b", 7 * DAY), ("c", 60 * DAY), ("d", 61 * DAY), ("e", 50 * YEAR)):
        await done(store, name, keep)

    assert partition_names(db) == ["20250616", "20250622", "20250814", "later"]
    assert db.execute("SELECT id FROM history_later ORDER BY id").fetchall() == [("d",), ("e",)]
    assert [job.id for job in await requests.jobs(store)] == ["e", "d", "c", "b", "a"]


async def test_tomorrows_is_made_ahead_and_only_that(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    await done(store, "a", 7 * DAY)
    for _ in range(3):
        await upkeep(store)

    assert partition_names(db) == ["20250622", "20250623", "later"]
    clock.advance(DAY)
    await done(store, "b", 7 * DAY)
    await upkeep(store)
    assert partition_names(db) == ["20250622", "20250623", "20250624", "later"]


async def test_it_goes_when_its_day_is_over_and_its_jobs_were_counted(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    for name in "abc":
        await done(store, name)
    await done(store, "kept", 3 * DAY)
    clock.advance(DAY)
    await upkeep(store)
    assert partition_names(db) == [
        "20250616",
        "20250617",
        "20250618",
        "20250619",
        "later",
    ]  # empty, but not over
    assert [job.id for job in await requests.jobs(store)] == ["kept"]

    clock.advance(1.5 * DAY)
    await upkeep(store)

    assert partition_names(db) == ["20250618", "20250619", "later"]
    assert await store.totals() == {"default": {"inserted": 4, "completed": 4, "removed": 3}}
    assert await store.counts() == {"default": {"completed": 1}}
    assert db.execute("SELECT id FROM ended").fetchall() == [("kept",)]


async def test_they_are_looked_after_now_and_then(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "REST", 3_600.0)
    ids = tuple(f"job-{number}" for number in range(150))
    new = [NewJob(id=one, task="task", payload="{}", keep=Keep(completed=DAY)) for one in ids]
    await store.commit([Insert(tuple(new))])
    await store.commit([ResolveJobs(ids=ids)])
    clock.advance(5 * DAY)

    [first] = await store.commit([Upkeep()])
    assert isinstance(first, UpkeepResult)
    assert (first.pruned, first.more) == (100, True)
    for _ in range(2):
        await requests.one(store, Upkeep())
    assert partition_names(db) == ["20250616", "later"]  # empty by now
    monkeypatch.setattr(partitions, "REST", 0.0)
    await requests.one(store, Upkeep())

    assert partition_names(db) == ["later"]


async def test_one_with_jobs_left_stays(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    for name in "abc":
        await done(store, name)
    clock.advance(5 * DAY)
    with psycopg.connect(server().url()) as other:
        other.execute(f"SELECT 1 FROM \"{store.address.schema}\".history WHERE id = 'b' FOR UPDATE".encode())
        await upkeep(store)
        assert [job.id for job in await requests.jobs(store)] == ["b"]
        assert partition_names(db) == ["20250616", "later"]

    await upkeep(store)
    assert partition_names(db) == ["later"]


@pytest.mark.slow("somebody reads for a while")
async def test_a_reader_that_stays_long_keeps_nobody_waiting(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "LOCK", "3s")
    await done(store, "old")
    clock.advance(5 * DAY)
    with psycopg.connect(server().url()) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f'SELECT count(*) FROM "{store.address.schema}".history'.encode())
        tidying = asyncio.create_task(upkeep(store))
        slowest, number = 0.0, 0
        with Pace() as pace:
            while not tidying.done():
                began = time.perf_counter()
                await done(store, f"new-{(number := number + 1)}")
                await requests.jobs(store)
                slowest = max(slowest, time.perf_counter() - began)
        await tidying
        await upkeep(store)

        # It was tried, and could not be finished while the reader is there.
        assert "20250616" in partition_names(db)
        assert db.execute("SELECT 1 FROM pg_inherits WHERE inhdetachpending").fetchall() != []
        assert number > 3
        assert slowest < pace.allowed(0.7)  # whoever had to wait for the attempt would wait for all of it
        assert (await store.counts()) == {"default": {"completed": number}}

    await upkeep(store)
    assert partition_names(db) == ["20250621", "20250622", "later"]


async def test_a_partition_that_went_missing_is_made_again(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    await done(store, "a")
    db.execute("DELETE FROM history; DELETE FROM ended; DROP TABLE history_20250616")

    await done(store, "b")

    assert partition_names(db) == ["20250616", "later"]
    assert [job.id for job in await requests.jobs(store)] == ["b"]


async def test_what_a_person_detached_is_left_alone(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    await done(store, "a")
    db.execute("ALTER TABLE history DETACH PARTITION history_20250616")
    clock.advance(5 * DAY)
    await upkeep(store)

    assert partition_names(db) == ["20250616", "later"]
    db.execute("TRUNCATE history_20250616")
    await upkeep(store)
    assert partition_names(db) == ["later"]


async def test_a_job_that_runs_again_moves_to_another_day(
    store: PostgresStore, db: psycopg.Connection[Any], clock: FakeClock
) -> None:
    await done(store, "a")
    clock.advance(DAY / 2)
    await requests.one(store, RerunJobs(ids=("a",)))
    assert db.execute("SELECT 1 FROM ended UNION ALL SELECT 1 FROM history").fetchall() == []
    clock.advance(DAY / 2)
    [job] = await requests.claim(store)
    await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("2"))])

    assert db.execute("SELECT id, tableoid::regclass::text FROM history").fetchall() == [
        ("a", "history_20250617")
    ]
    [found] = await store.get(["a"])
    assert found is not None
    assert (found.state, found.result) == (State.COMPLETED, "2")


async def test_several_who_need_a_new_day_at_once_get_one(clock: FakeClock) -> None:
    url = server().fresh()
    stores = [store_at(url, clock) for _ in range(4)]
    for one in stores:
        await one.open()
    await requests.insert(stores[0], *(NewJob(id=str(n), task="task", payload="{}") for n in range(8)))
    held = await requests.claim(stores[0], limit=8)

    settles = [
        one.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1"))])
        for one, job in zip(stores * 2, held, strict=True)
    ]
    answers = [answer for answers in await asyncio.gather(*settles) for answer in answers]

    assert all(isinstance(answer, Ack) for answer in answers), answers
    assert await stores[1].counts() == {"default": {"completed": 8}}
    for one in stores:
        await one.close()
