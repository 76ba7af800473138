"""Blind inserts on PostgreSQL: they write the same as normal inserts, and a wrong guess rolls them back."""

import asyncio
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from errandry.clock import StoreClock
from errandry.core.answer import Answer, Claims, Inserted
from errandry.core.command import Claim, Command, CompleteOutcome, Insert, Ref, Renew, Settle, Upkeep
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import JobRecord, Keep
from errandry.core.retry import Backoff
from errandry.core.rule import Rule
from errandry.core.unique import UniqueKey
from errandry.errors import QueueFull, ReplyLost, StoreUnavailable
from errandry.store.contract import Store
from errandry.store.execute.insert import FLUSH_BATCH
from errandry.store.postgres.address import Address
from errandry.store.postgres.blind_insert import LANES_MAX, LaneCache
from errandry.store.postgres.connection import PostgresConnection
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.tables import PostgresTables
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from tests.faults.process import wait_until
from tests.machine_load import WAIT_TIMEOUT
from tests.new_jobs import insert, new_job
from tests.store.postgres.given import opened

START_STATEMENT = "start_pass"
"""The first statement of a pass that is no blind insert."""

_nonces = count()


async def existing_jobs(store: Store, *names: str) -> list[JobRecord]:
    return [job for job in await store.get(list(names)) if job is not None]


async def claim(store: PostgresStore, limit: int = 10) -> tuple[JobRecord, ...]:
    [answer] = await store.commit([Claim(worker="w", nonce=str(next(_nonces)), limit=limit)])
    assert isinstance(answer, Claims)
    return answer.jobs


async def complete_jobs(store: PostgresStore, held: Sequence[JobRecord]) -> None:
    await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lifo": True, "priority": -3, "tags": ("red", "blue")},
        {
            "group": "ada",
            "queue": "mail",
            "payload": '{"to":"ad\\\\a \\u00e9 \\"x\\""}',
            "metadata": '{"a":1}',
        },
        {"timeout": 5.0, "deadline": 2e9, "max_attempts": 2, "max_crashes": 1},
        {"keep": Keep(completed=60.0), "backoff": Backoff(start=2.0)},
    ],
    ids=["plain", "first", "grouped", "timed", "kept"],
)
async def test_a_blind_insert_writes_the_same_job_as_a_normal_insert(
    store: PostgresStore, clock: FakeClock, sent: list[str], fields: dict[str, Any]
) -> None:
    await store.commit([insert("normal", **fields)])
    assert sent.count(START_STATEMENT) == 1
    clock.advance(10)
    await store.commit([insert("blind", **fields)])
    assert sent.count(START_STATEMENT) == 1

    normal, blind = await existing_jobs(store, "normal", "blind")
    sign = -1 if blind.lifo else 1
    assert (blind.seq, blind.place) == (normal.seq + 1, sign * (normal.seq + 1))
    assert blind.created_at == normal.created_at + 10
    own = {"id": "blind", "seq": blind.seq, "place": blind.place}
    assert blind == replace(normal, **own, created_at=blind.created_at, updated_at=blind.created_at)
    assert {job.id for job in await claim(store)} == {"normal", "blind"}


async def test_blind_inserts_leave_no_gap_in_the_numbers(store: PostgresStore) -> None:
    for names in (["a"], ["b", "c"], ["d"], ["e", "f"]):
        await store.commit([insert(*names)])

    assert [job.seq for job in await existing_jobs(store, *"abcdef")] == [1, 2, 3, 4, 5, 6]


async def test_blind_inserts_keep_the_order_of_the_jobs(store: PostgresStore, sent: list[str]) -> None:
    """With several commands and tasks, and more jobs than one statement inserts."""
    await store.commit([insert("a"), insert("b", task="other")])
    names = [f"job-{number}" for number in range(2 * FLUSH_BATCH + 10)]
    many = Insert(
        tuple(new_job(name, task=("task", "other")[number % 2]) for number, name in enumerate(names))
    )
    answers = await store.commit([insert("c", task="other"), many, insert("d")])

    assert sent.count(START_STATEMENT) == 1
    assert [len(answer.ids) for answer in answers if isinstance(answer, Inserted)] == [1, len(names), 1]
    assert [job.id for job in await claim(store, 1_000)] == ["a", "b", "c", *names, "d"]


async def test_blind_inserts_write_events_and_counters(store: PostgresStore) -> None:
    await store.commit([insert("a")])
    after = await store.latest_cursor()
    await store.commit([insert("b", "c")])
    events = await store.events(after)

    assert [(entry.event.kind, entry.event.job) for entry in events.entries] == [
        ("waiting", "b"),
        ("waiting", "c"),
    ]
    assert await store.counts() == {"default": {"waiting": 3}}


async def test_a_blind_insert_on_the_servers_clock_has_its_time(
    url: str, db: psycopg.Connection[Any]
) -> None:
    store = store_at(url)
    await store.open()
    try:
        await store.commit([insert("a")])
        before = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()
        after = await store.latest_cursor()
        await store.commit([insert("b")])
        [job] = await existing_jobs(store, "b")
        [entry] = (await store.events(after)).entries
    finally:
        await store.close()

    assert before[0][0] <= job.created_at <= before[0][0] + 60
    assert entry.at == job.created_at == job.updated_at


async def test_the_servers_clock_overrides_the_clock_of_the_host(
    url: str, db: psycopg.Connection[Any]
) -> None:
    """Neither in a blind insert nor in a later normal one."""
    store = store_at(url)
    assert isinstance(store, PostgresStore)
    store.clock = StoreClock(FakeClock(4e9))
    await store.open()
    try:
        for command in (insert("a"), insert("b"), insert("c", unique=UniqueKey("key"))):
            await store.commit([command])
        jobs = await existing_jobs(store, *"abc")
    finally:
        await store.close()
    [(now,)] = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()

    assert all(now - 60 <= job.created_at <= now for job in jobs)


async def test_a_blind_insert_marks_its_lane_again(
    store: PostgresStore, other: PostgresStore, clock: FakeClock, db: psycopg.Connection[Any], sent: list[str]
) -> None:
    await store.commit([insert("a")])
    await complete_jobs(other, await claim(other))
    clock.advance(10)
    await other.commit([Upkeep()])
    assert db.execute("SELECT ready FROM lanes").fetchall() == [(False,)]
    sent.clear()
    await store.commit([insert("b")])

    assert START_STATEMENT not in sent
    assert [job.id for job in await claim(other)] == ["b"]


async def make_change(
    other: PostgresStore, clock: FakeClock, db: psycopg.Connection[Any], change: str
) -> None:
    match change:
        case "live":
            await other.commit([insert("b", payload="[]")])
        case "finished":
            await other.commit([insert("b", payload="[]")])
            await complete_jobs(other, await claim(other))
        case "gate":
            await other.commit([PutRule(GateKind.QUEUE, "other", Rule(max_size=1))])
        case "lane":
            db.execute("UPDATE live SET lane = NULL; DELETE FROM lanes")
        case "another lane":
            db.execute("UPDATE lanes SET task = 'another'")
        case "clock":
            clock.jump(100)
            await other.commit([insert("later")])
            clock.jump(-100)


@pytest.mark.parametrize("change", ["live", "finished", "gate", "lane", "another lane", "clock"])
async def test_a_wrong_guess_is_followed_by_a_normal_insert(
    store: PostgresStore,
    other: PostgresStore,
    clock: FakeClock,
    db: psycopg.Connection[Any],
    sent: list[str],
    change: str,
) -> None:
    await store.commit([insert("a")])
    await make_change(other, clock, db, change)
    floor = max(job.created_at for job in await existing_jobs(store, "a", "later"))
    sent.clear()
    answers = await store.commit([insert("b"), insert("c")])

    exists = change in ("live", "finished")
    assert START_STATEMENT in sent
    assert answers == [Inserted(("b",), frozenset({"b"} if exists else ())), Inserted(("c",))]
    b, c = await existing_jobs(store, "b", "c")
    assert b.payload == ("[]" if exists else "{}")
    assert c.created_at >= floor
    assert "c" in {job.id for job in await claim(store)}


@pytest.mark.parametrize("is_blind", [True, False], ids=["blind", "normal"])
async def test_an_id_that_was_inserted_and_finished_during_the_pass_is_not_inserted_again(
    store: PostgresStore, other: PostgresStore, db: psycopg.Connection[Any], is_blind: bool
) -> None:
    await store.commit([insert("x", task="a"), insert("y", task="b")])
    await complete_jobs(other, await claim(other))
    assert store._open is not None
    if not is_blind:
        store._open.lane_cache.clear()
    with db.transaction():
        db.execute("SELECT 1 FROM lanes WHERE task = 'a' FOR UPDATE")  # like an upkeep that unmarks the lane
        waiting = asyncio.create_task(store.commit([insert("first", task="a"), insert("twin", task="b")]))
        await wait_until_blocking(db)
        await other.commit([insert("twin", task="b", payload="[]")])
        await complete_jobs(other, await claim(other))

    assert (await waiting)[1] == Inserted(("twin",), frozenset({"twin"}))
    assert db.execute("SELECT id FROM live WHERE id = 'twin'").fetchall() == []
    assert [job.id for job in await claim(store)] == ["first"]


async def wait_until_blocking(db: psycopg.Connection[Any]) -> None:
    """Wait until another session waits for a lock of this transaction."""
    is_blocking = "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    await wait_until(lambda: db.execute(is_blocking, (db.info.backend_pid,)).fetchall() == [(True,)])


async def test_passes_are_read_committed_even_if_the_default_of_the_database_is_stricter(
    url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stricter level, an upkeep would unmark a lane whose job was inserted since its pass began."""
    base, _, schema = url.rpartition("&schema=")
    strict = f"{base}&options=-cdefault_transaction_isolation%3Drepeatable%5C%20read&schema={schema}"
    trim, has_begun, may_go_on = PostgresTables.trim, threading.Event(), threading.Event()

    def delayed_trim(self: PostgresTables, *args: Any) -> int:
        has_begun.set()
        assert may_go_on.wait(WAIT_TIMEOUT)
        return trim(self, *args)

    async with opened(strict, clock) as store, opened(strict, clock) as other:
        await store.commit([insert("a")])
        await complete_jobs(store, await claim(store))
        monkeypatch.setattr(PostgresTables, "trim", delayed_trim)
        upkeep = asyncio.create_task(other.commit([Upkeep()]))
        assert await asyncio.to_thread(has_begun.wait, WAIT_TIMEOUT)
        await store.commit([insert("b")])
        may_go_on.set()
        await upkeep

        assert [job.id for job in await claim(store)] == ["b"]


async def test_a_pass_that_was_never_sent_is_not_in_doubt(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even after a pass whose reply was lost."""
    await store.commit([insert("a")])
    commit = PostgresConnection.commit

    def commit_and_abort(self: PostgresConnection, *args: Any) -> list[Any]:
        self.abort()
        return commit(self, *args)

    def refuse(_: Address) -> None:
        raise psycopg.OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "commit", commit_and_abort)
        with pytest.raises(ReplyLost):
            await store.commit([insert("b")])
    monkeypatch.setattr("errandry.store.postgres.connection.connect", refuse)
    with pytest.raises(StoreUnavailable) as caught:
        await store.commit([insert("c")])

    assert type(caught.value) is StoreUnavailable


async def test_bind_inserts_at_no_earlier_time_than_a_pass_without_events(
    store: PostgresStore, clock: FakeClock, db: psycopg.Connection[Any]
) -> None:
    await store.commit([insert("a")])
    [held] = await claim(store)
    clock.jump(-1_000)
    clock.advance(20)
    await store.commit([Renew((Ref("a", held.fence),), 30.0)])
    bound = '[{"id":"b","task":"task","payload":"{}"}]'
    db.execute("SELECT insert_jobs(%s::jsonb, NULL, %s)", (bound, clock.time()))

    a, b = await existing_jobs(store, "a", "b")
    assert b.created_at >= a.updated_at


async def test_a_size_limit_set_by_another_process_holds(store: PostgresStore, other: PostgresStore) -> None:
    await store.commit([insert("a")])
    await other.commit([PutRule(GateKind.QUEUE, "default", Rule(max_size=2))])
    answers: list[Answer] = []
    for name in ("b", "c"):
        answers += await store.commit([insert(name)])

    assert answers[0] == Inserted(("b",))
    assert isinstance(answers[1], QueueFull)


async def test_a_connection_that_the_server_has_closed_is_opened_again(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """Before it is used: otherwise the pass would be in doubt."""
    await store.commit([insert("a")])
    assert store._open is not None
    [pid] = [t.connection.raw.info.backend_pid for t in store._open.tracks if t.connection.is_up]
    db.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    assert await store.commit([insert("b")]) == [Inserted(("b",))]


PLAIN = new_job("a")


@pytest.mark.parametrize(
    "command",
    [
        Insert((new_job("a", unique=UniqueKey("key")),)),
        Insert((new_job("a", delay=1.0),)),
        Insert((new_job("a", run_at=1.0),)),
        Insert((new_job("a", payload=f'"{"x" * 100}"'),)),
        Insert((new_job("a", task="unknown"),)),
        Insert((new_job("a", group="unknown"),)),
        Insert((PLAIN, new_job("b")), (Edge("a", "b"),)),
        Insert((PLAIN, new_job("b", delay=1.0))),
        Claim(worker="w", nonce="n"),
        Upkeep(),
    ],
    ids=lambda command: type(command).__name__.lower(),
)
def test_commands_that_need_more_than_lanes_are_no_blind_insert(command: Command) -> None:
    lane_cache, lane = LaneCache(), ("default", "task", "")
    lane_cache.save({lane: 1})

    assert lane_cache.lanes_for([Insert((PLAIN,))], 50) == {lane: 1}
    assert lane_cache.lanes_for([command], 50) is None
    assert lane_cache.lanes_for([Insert((PLAIN,)), command], 50) is None


def test_the_lane_cache_is_bounded() -> None:
    lane_cache = LaneCache()
    for number in range(LANES_MAX + 1):
        lane_cache.save({("default", "task", str(number)): number})

    assert lane_cache.lanes_for([Insert((new_job("a", group="0"),))], 50) is None
    assert lane_cache.lanes_for([Insert((new_job("a", group=str(LANES_MAX)),))], 50) is not None
