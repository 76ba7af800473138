"""Enqueue over the caller's connection: jobs exist after its commit, never after a rollback."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy
from msgspec.structs import replace
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from errandry import Errandry, State
from errandry.api.task import Task
from errandry.core.command import Claim, Insert
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import JobRecord, Keep, NewJob
from errandry.core.retry import Backoff, Curve
from errandry.core.rule import Rule
from errandry.core.unique import UniqueKey, UniqueScope
from errandry.errors import InvalidArguments, InvalidValue, QueueFull, StoreRefused, TooLarge, UnknownJob
from errandry.store.contract import StoreLimits
from errandry.store.postgres.driver import PostgresStore
from errandry.testing import FakeClock
from tests.api.callers import (
    CALLERS,
    Caller,
    alchemy,
    enqueue,
    psycopg_async,
    psycopg_sync,
    wait_for_blocked_lock,
)
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import event_kinds, run_burst, running_worker
from tests.store.server import server

Send = Task[[str], str]


@pytest.fixture
def send(shop: Errandry) -> Send:
    @shop.task
    async def send(to: str) -> str:
        return f"sent to {to}"

    return send


@pytest.fixture
async def caller(shop: Errandry) -> AsyncIterator[Caller]:
    async with psycopg_async(server()) as caller:
        yield caller


def schema(jobs: Errandry) -> str:
    assert isinstance(jobs.store, PostgresStore)
    return jobs.store.address.schema


@pytest.mark.parametrize("library", CALLERS)
async def test_a_full_queue_refuses_jobs_of_every_library(shop: Errandry, send: Send, library: str) -> None:
    await shop.engine.submit(PutRule(GateKind.QUEUE, "default", Rule(max_size=2, group_max_size=1)))
    await send.enqueue("bob")
    async with CALLERS[library](server()) as caller:
        await enqueue(caller, send.using(group="g"), "ada")
        with pytest.raises(QueueFull) as full:
            await enqueue(caller, send, "grace")
        await caller.rollback()

    assert (full.value.queue, full.value.size, full.value.bound) == ("default", 2, 2)
    assert await shop.counts() == {"default": {"waiting": 1}}


@pytest.mark.parametrize("library", CALLERS)
async def test_a_job_exists_after_the_commit_and_never_after_a_rollback(
    shop: Errandry, send: Send, library: str
) -> None:
    async with CALLERS[library](server()) as caller:
        job = await enqueue(caller, send, "ada")
        with pytest.raises(UnknownJob):
            await shop.client.record(job.id)
        await caller.commit()
        assert (await shop.client.record(job.id)).state is State.WAITING

    async with CALLERS[library](server()) as caller:
        lost = await enqueue(caller, send, "grace")
        await caller.rollback()

    await run_burst(shop)
    assert await job.result(timeout=30) == "sent to ada"
    with pytest.raises(UnknownJob):
        await shop.client.record(lost.id)
    assert await shop.totals() == {"default": {"completed": 1, "inserted": 1}}
    assert await event_kinds(shop, job.id) == [
        EventKind.WAITING,
        EventKind.CLAIMED,
        EventKind.STARTED,
        EventKind.COMPLETED,
    ]
    assert await event_kinds(shop, lost.id) == []


async def test_enqueueing_by_name_and_in_bulk(shop: Errandry, send: Send, caller: Caller) -> None:
    bound = shop.bind(caller.connection)

    first = await bound.enqueue("send", {"to": "ada"}, priority=3)
    other = await bound.enqueue("elsewhere", {"x": 1}, delay="1 hour")
    two, three = await bound.enqueue_many(
        [send.new("b"), send.bind(caller.connection).using(id="c").new("c")]
    )
    await caller.commit()

    records = [await shop.client.record(job.id) for job in (first, other, two, three)]
    assert [record.task for record in records] == ["send", "elsewhere", "send", "send"]
    assert [record.state for record in records] == ["waiting", "scheduled", "waiting", "waiting"]
    assert (records[0].priority, records[3].id) == (3, "c")
    assert await bound.enqueue_many([]) == []


async def test_enqueueing_over_a_blocking_connection(shop: Errandry, send: Send) -> None:
    async with psycopg_sync(server()) as caller:
        bound = shop.bind(caller.connection)
        first = await caller.call(lambda: bound.sync.enqueue("send", {"to": "ada"}))
        other = await caller.call(lambda: send.sync.bind(caller.connection).enqueue("grace"))
        assert bound.sync.enqueue_many([]) == []
        await caller.commit()

    assert await shop.counts() == {"default": {"waiting": 2}}
    assert {record.id for record in (await shop.list()).jobs} == {first.id, other.id}


async def test_with_autocommit_the_job_exists_at_once(shop: Errandry, send: Send) -> None:
    async with await psycopg.AsyncConnection.connect(server().url(), autocommit=True) as connection:
        job = await send.bind(connection).enqueue("ada")
        assert (await shop.client.record(job.id)).state is State.WAITING


async def test_row_and_cursor_factories_of_the_caller_do_not_matter(shop: Errandry, send: Send) -> None:
    async with await psycopg.AsyncConnection.connect(
        server().url(), row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        await send.bind(connection).enqueue("ada")
    with psycopg.connect(server().url(), cursor_factory=psycopg.ClientCursor) as blocking:
        send.sync.bind(blocking).enqueue("grace")

    assert await shop.counts() == {"default": {"waiting": 2}}


async def test_scoped_sessions(shop: Errandry, send: Send) -> None:
    engine = sqlalchemy.create_engine(alchemy(server(), "psycopg"))
    session = scoped_session(sessionmaker(engine))
    send.sync.bind(session).enqueue("ada")
    session.commit()
    session.remove()
    engine.dispose()
    async_engine = create_async_engine(alchemy(server(), "psycopg"))
    async_session = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
    await send.bind(async_session).enqueue("grace")
    await async_session.commit()
    await async_session.remove()
    await async_engine.dispose()

    assert await shop.counts() == {"default": {"waiting": 2}}


async def test_the_commit_wakes_an_idle_worker(shop: Errandry, send: Send, caller: Caller) -> None:
    async with await psycopg.AsyncConnection.connect(server().url(), autocommit=True) as listener:
        await listener.execute(f"LISTEN errandry_{schema(shop)}".encode())
        async with running_worker(shop):
            job = await enqueue(caller, send, "ada")
            await caller.commit()

            assert await job.result(timeout=30) == "sent to ada"
        async for notification in listener.notifies(timeout=WAIT_TIMEOUT):
            if notification.payload == "":  # that of a pass names its process
                return
    pytest.fail("the commit sent no notification")


async def test_an_open_transaction_blocks_no_other_work(shop: Errandry, send: Send, caller: Caller) -> None:
    """While it stays open, its lane is new or idle, and others enqueue to it, run jobs and do upkeep."""
    open_job = await enqueue(caller, send, "ada")

    async with asyncio.timeout(30), running_worker(shop):
        assert await (await send.enqueue("grace")).result(timeout=30) == "sent to grace"
        async with psycopg_async(server()) as other:
            job = await enqueue(other, send, "ida")
            await other.commit()
            assert await job.result(timeout=30) == "sent to ida"

    await caller.commit()
    await run_burst(shop)
    assert await open_job.result(timeout=30) == "sent to ada"


async def test_bound_jobs_keep_their_place_in_the_queue(shop: Errandry, send: Send, caller: Caller) -> None:
    first = await enqueue(caller, send, "a")
    second = await send.enqueue("b")
    await caller.commit()
    urgent = await enqueue(caller, send, "c", priority=-1)
    await caller.commit()

    claims = await shop.engine.submit(Claim(worker="w", nonce="1", limit=10))

    assert [job.id for job in claims.jobs] == [urgent.id, first.id, second.id]  # type: ignore[union-attr]


async def test_events_and_counters_are_right_before_and_after_the_pass_that_numbers(
    shop: Errandry, send: Send, caller: Caller
) -> None:
    head = await shop.latest_cursor()
    bound = [await enqueue(caller, send, "a"), await enqueue(caller, send, "b", delay=60)]
    await caller.commit()
    counts = {"default": {"scheduled": 1, "waiting": 1}}
    assert (await shop.counts(), await shop.totals()) == (counts, {"default": {"inserted": 2}})

    await shop.engine.submit(
        Claim(worker="w", nonce="1", queues=("another",))
    )  # a pass without events of its own

    page = await shop.engine.call(shop.store.events, head)
    assert [(entry.event.kind, entry.event.job) for entry in page.entries] == [
        (EventKind.WAITING, bound[0].id),
        (EventKind.SCHEDULED, bound[1].id),
    ]
    assert (await shop.counts(), await shop.totals()) == (counts, {"default": {"inserted": 2}})


async def test_a_reader_gets_all_events_of_late_commits(shop: Errandry, send: Send) -> None:
    job_ids: set[str] = set()
    seen: list[str] = []

    async def call(number: int) -> None:
        async with psycopg_async(server()) as caller:
            for turn in range(5):
                job = await enqueue(caller, send, f"{number}-{turn}", delay=60)
                await asyncio.sleep(0.002 * (number % 3))
                await caller.commit()
                job_ids.add(job.id)

    async def write() -> None:
        for turn in range(20):
            job_ids.add((await send.using(delay=60).enqueue(str(turn))).id)

    async def read() -> None:
        async for event in shop.events(after=head):
            seen.append(event.job)
            if len(seen) == 51:
                return

    head = await shop.latest_cursor()
    reader = asyncio.create_task(read())
    await asyncio.gather(*[call(number) for number in range(6)], write())
    job_ids.add((await send.using(delay=60).enqueue("last")).id)

    await asyncio.wait_for(reader, 30)
    assert sorted(seen) == sorted(job_ids)


NEW = (
    NewJob(id="plain", task="send", payload='{"to":"ada"}'),
    NewJob(id="later", task="send", payload="{}", delay=60.5),
    NewJob(id="at", task="send", payload="{}", run_at=1_000_000_000.25, deadline=4_000_000_000.5),
    NewJob(id="future", task="send", payload="{}", run_at=4_000_000_000.125),
    NewJob(id="lifo", task="send", payload="{}", lifo=True, priority=-7),
    NewJob(id="ünïcode \"'\\", task="sénd", payload='{"to":"\\u2028 \\\\ ü"}', queue="q é", group="g"),
    NewJob(
        id="unique", task="send", payload="{}", unique=UniqueKey("k", UniqueScope.WINDOW, 2.5, per_queue=True)
    ),
    NewJob(
        id="full",
        task="send",
        payload='{"x":[1,2.5,null,true]}',
        max_attempts=1,
        max_crashes=9,
        timeout=1.5,
        tags=("a", 'b"c'),
        metadata='{"tenant":7}',
        keep=Keep(completed=0.0, failed=1e6),
        backoff=Backoff(curve=Curve.LINEAR, start=0.1, cap=9.0, jitter=0.0, function="mine"),
    ),
)


async def test_a_bound_insert_stores_the_same_records_as_an_insert(clock: FakeClock) -> None:
    async def stored(bind: bool) -> list[JobRecord]:
        with server().lend_url() as url:
            async with Errandry(url, clock=clock) as jobs, psycopg_async(server()) as caller:
                if bind:
                    await jobs.store.bind(caller.connection).insert(Insert(NEW))
                    await caller.commit()
                else:
                    await jobs.client.insert(list(NEW))
                records = await jobs.engine.call(jobs.store.get, [new.id for new in NEW])
                return [record for record in records if record is not None]

    assert await stored(bind=True) == await stored(bind=False)


class TestRepeatedIds:
    async def test_in_one_transaction(self, shop: Errandry, send: Send, caller: Caller) -> None:
        await enqueue(caller, send, "ada", id="x")
        await enqueue(caller, send, "grace", id="x")
        await caller.commit()

        assert await shop.totals() == {"default": {"inserted": 1}}
        assert (await shop.client.record("x")).payload == '{"to":"ada"}'

    @pytest.mark.parametrize("state", ["waiting", "completed"])
    async def test_of_an_existing_job(self, shop: Errandry, send: Send, caller: Caller, state: str) -> None:
        await send.using(id="x").enqueue("ada")
        if state == "completed":
            await run_burst(shop)

        job = await enqueue(caller, send, "grace", id="x", queue="other")
        await caller.commit()

        assert (job.state, job.queue) == (state, "default")
        assert await shop.totals() == {
            "default": {"inserted": 1} | ({state: 1} if state == "completed" else {})
        }

    @pytest.mark.parametrize("first_commits", [True, False])
    async def test_of_a_caller_with_an_open_transaction(
        self, shop: Errandry, send: Send, caller: Caller, first_commits: bool
    ) -> None:
        await enqueue(caller, send, "ada", id="x")
        async with psycopg_async(server()) as other:
            second = asyncio.create_task(enqueue(other, send, "grace", id="x"))
            await wait_for_blocked_lock()
            await (caller.commit() if first_commits else caller.rollback())
            await second
            await other.commit()

        assert (await shop.client.record("x")).payload == f'{{"to":"{"ada" if first_commits else "grace"}"}}'
        assert await shop.totals() == {"default": {"inserted": 1}}


class TestChecks:
    """A bound job is checked like any other, before anything is written."""

    async def test_arguments_are_checked(self, send: Send, caller: Caller) -> None:
        with pytest.raises(InvalidArguments):
            await send.bind(caller.connection).enqueue(1)  # type: ignore[arg-type]

    async def test_the_payload_size_is_checked(self) -> None:
        with server().lend_url() as url:
            async with (
                Errandry(url, store_limits=StoreLimits(payload=100)) as jobs,
                psycopg_async(server()) as caller,
            ):
                with pytest.raises(TooLarge, match="payload has 1,0"):
                    await jobs.bind(caller.connection).enqueue("send", {"to": "x" * 1_000})
                await caller.commit()
                assert await jobs.counts() == {}

    async def test_hooks_are_called(self, shop: Errandry, send: Send, caller: Caller) -> None:
        shop.on_enqueue(lambda job: replace(job, tags=("seen",)))

        job = await enqueue(caller, send, "ada")
        await caller.commit()

        assert (await shop.client.record(job.id)).tags == ("seen",)

    async def test_a_call_bound_to_another_connection_is_refused(
        self, shop: Errandry, send: Send, caller: Caller
    ) -> None:
        async with psycopg_async(server()) as other:
            request = send.bind(other.connection).new("ada")
            for enqueue_many in (shop.bind(caller.connection).enqueue_many, shop.enqueue_many):
                with pytest.raises(InvalidValue, match="bound to another connection"):
                    await enqueue_many([request])


class TestConnections:
    """Connections that cannot be used are refused with the reason."""

    async def test_of_an_unknown_library(self, shop: Errandry) -> None:
        right = "takes connections of psycopg 3, asyncpg, SQLAlchemy 2, Django"
        for connection in (None, object(), "postgresql://", sqlite3.connect(":memory:")):
            with pytest.raises(InvalidValue, match=right):
                shop.bind(connection)
            if isinstance(connection, sqlite3.Connection):
                connection.close()

    async def test_of_another_database(self, shop: Errandry) -> None:
        engine = sqlalchemy.create_engine("sqlite://")
        sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        handler = ConnectionHandler({"default": sqlite})
        with engine.connect() as connection:
            for foreign in (connection, handler["default"], ConnectionProxy(handler, "default")):
                with pytest.raises(InvalidValue, match="not PostgreSQL: give one to postgresql:"):
                    shop.bind(foreign)
        engine.dispose()

    async def test_blocking_ones_for_async_methods_and_async_ones_for_blocking_methods(
        self, send: Send, caller: Caller
    ) -> None:
        with pytest.raises(InvalidValue, match=r"is async: bind it with jobs\.bind"):
            send.sync.bind(caller.connection).enqueue("ada")
        async with psycopg_sync(server()) as blocking:
            with pytest.raises(InvalidValue, match=r"blocks: bind it with jobs\.sync\.bind"):
                await send.bind(blocking.connection).enqueue("ada")

    @pytest.mark.parametrize("library", CALLERS)
    async def test_to_a_database_without_the_schema(self, shop: Errandry, send: Send, library: str) -> None:
        async with CALLERS[library](server()) as caller:
            bare = f'ALTER SCHEMA "{schema(shop)}" RENAME TO away'
            back = f'ALTER SCHEMA away RENAME TO "{schema(shop)}"'
            with psycopg.connect(server().url(), autocommit=True) as db:
                db.execute(bare.encode())
                try:
                    with pytest.raises(InvalidValue, match=r"a database without .*insert_jobs: give one to"):
                        await enqueue(caller, send, "ada")
                finally:
                    await caller.rollback()
                    db.execute(back.encode())

    async def test_to_another_store(self, shop: Errandry, send: Send, caller: Caller) -> None:
        assert isinstance(shop.store, PostgresStore)
        shop.store.identity = "another"

        with pytest.raises(InvalidValue, match="connection='psycopg 3': leads to another store"):
            await enqueue(caller, send, "ada")
        await caller.commit()
        assert await shop.counts() == {}

    async def test_of_a_user_without_the_grants(self, shop: Errandry, send: Send) -> None:
        with psycopg.connect(server().url(), autocommit=True) as db:
            db.execute("CREATE ROLE reader LOGIN")
            try:
                async with await psycopg.AsyncConnection.connect(server().url(), user="reader") as connection:
                    with pytest.raises(StoreRefused, match="must not enqueue: GRANT USAGE ON SCHEMA"):
                        await send.bind(connection).enqueue("ada")
            finally:
                db.execute("DROP ROLE reader")

    async def test_errors_of_the_caller_s_own_statements_are_not_wrapped(
        self, send: Send, caller: Caller
    ) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await caller.connection.execute("SELECT 1 / 0")

        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await enqueue(caller, send, "ada")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({}, "array of objects"),
        ([1], "array of objects"),
        ([{"id": "x", "task": "t"}], "must have id, task and payload"),
        ([{"id": "", "task": "t", "payload": "{}"}], "names of at most 200"),
        ([{"id": "x", "task": "t", "payload": "{}", "queue": "a\nb"}], "names of at most 200"),
        ([{"id": "x", "task": "t", "payload": "{}", "max_attempt": 1}], "has an unknown field: max_attempt"),
        ([{"id": "x", "task": "t", "payload": {}}], "JSON, as text"),
        ([{"id": "x", "task": "t", "payload": "{"}], "job 'x': payload and metadata must be JSON"),
        (
            [{"id": "x", "task": "t", "payload": "{}"}, {"id": "y", "task": "t", "payload": "{"}],
            "job 'y': payload and metadata must be JSON",
        ),
        ([{"id": "x", "task": "t", "payload": "{}", "priority": "high"}], "numbers must be numbers"),
        ([{"id": "x", "task": "t", "payload": "{}", "lifo": "yes"}], "lifo must be true or false"),
        ([{"id": "x", "task": "t", "payload": "{}", "priority": 1e10}], "32 bits"),
        ([{"id": "x", "task": "t", "payload": "{}", "max_attempts": 0}], "from 1 to 10000"),
        ([{"id": "x", "task": "t", "payload": "{}", "max_crashes": -1}], "from 1 to 10000"),
        ([{"id": "x", "task": "t", "payload": "{}", "delay": 1, "run_at": 1}], "either run_at or delay"),
        ([{"id": "x", "task": "t", "payload": "{}", "deadline": "soon"}], "seconds since 1970"),
        ([{"id": "x", "task": "t", "payload": "{}", "timeout": -1}], "seconds since 1970"),
        ([{"id": "x", "task": "t", "payload": "{}", "tags": [1]}], "at most 20 strings"),
        ([{"id": "x", "task": "t", "payload": "{}", "keep": {"failed": "long"}}], "keep must have seconds"),
        ([{"id": "x", "task": "t", "payload": "{}", "backoff": {"curve": "s"}}], "backoff must have"),
        ([{"id": "x", "task": "t", "payload": "{}", "unique": "k"}], "unique must have a key"),
        ([{"id": "x", "task": "t", "payload": "{}", "unique": {}}], "unique must have a key"),
        ([{"id": "x", "task": "t", "payload": "{}", "unique": {"key": ""}}], "unique must have a key"),
        ([{"id": "x", "task": "t", "payload": "{}", "unique": {"key": "k", "scope": "s"}}], "unique must"),
        ([{"id": "x", "task": "t", "payload": "{}", "unique": {"key": "k", "window": 5}}], "unique must"),
        (
            [{"id": "x", "task": "t", "payload": "{}", "unique": {"key": "k", "scope": "window"}}],
            "unique must",
        ),
        ([{"id": "x", "task": "t", "payload": "{}", "unique": {"key": "k", "more": 1}}], "unique must"),
        ([{"id": "x", "task": "t", "payload": "{}", "on_conflict": "rise"}], "on_conflict must be"),
    ],
)
async def test_insert_jobs_called_by_hand_refuses_invalid_jobs(shop: Errandry, job: Any, why: str) -> None:
    statement = f'SELECT "{schema(shop)}".insert_jobs(%s)'
    with (
        psycopg.connect(server().url()) as db,
        pytest.raises(psycopg.DataError, match=why),
    ):
        db.execute(statement.encode(), (Jsonb(job),))


async def test_insert_jobs_called_by_hand_needs_only_id_task_and_payload(shop: Errandry, send: Send) -> None:
    job = '[{"id": "x", "task": "send", "payload": "{\\"to\\":1}"}]'
    statement = f"SELECT \"{schema(shop)}\".insert_jobs('{job}')"
    with psycopg.connect(server().url()) as db:
        assert db.execute(statement.encode()).fetchone() == ({"ids": ["x"], "existed": [], "replaced": []},)

    assert (await shop.client.record("x")).payload == '{"to":1}'


async def test_a_store_in_memory_cannot_be_bound(jobs: Errandry) -> None:
    with pytest.raises(InvalidValue, match="in memory has no transactions"):
        jobs.bind(object())


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_stricter_transaction_enqueues_while_workers_run(
    shop: Errandry, send: Send, level: str
) -> None:
    async with await psycopg.AsyncConnection.connect(server().url()) as db:
        for number in range(3):
            await db.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
            await db.execute("SELECT 1 FROM pg_class")  # takes the snapshot: later commits are invisible
            await send.enqueue("others")
            await run_burst(shop)  # changes every table
            await send.bind(db).using(id=f"mine-{number}").enqueue("ada")
            await db.commit()
            assert (await shop.client.record(f"mine-{number}")).state is State.WAITING
            await run_burst(shop)
            assert (await shop.client.record(f"mine-{number}")).state is State.COMPLETED

        await db.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        await send.bind(db).using(id="mine-1").enqueue("ada")
        await db.commit()
    assert (await shop.totals())["default"] == {"inserted": 6, "completed": 6}
    assert await shop.counts() == {"default": {"completed": 6}}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("is_done", [False, True], ids=["waiting", "finished"])
async def test_a_stricter_transaction_that_cannot_see_a_taken_id_gets_a_serialization_failure(
    shop: Errandry, send: Send, level: str, is_done: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(server().url()) as db:
        await db.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        await db.execute("SELECT 1 FROM pg_class")
        await send.using(id="taken").enqueue("grace")
        if is_done:
            await run_burst(shop)

        with pytest.raises(psycopg.errors.SerializationFailure):
            await send.bind(db).using(id="taken").enqueue("ada")
        await db.rollback()
    await run_burst(shop)
    assert await shop.counts() == {"default": {"completed": 1}}
