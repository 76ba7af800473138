"""New jobs on PostgreSQL in one round trip: the same as after a look, and none where that would be wrong."""

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
from errandry.core.job import JobOrder, JobRecord, Keep, NewJob
from errandry.core.retry import Backoff
from errandry.core.rule import Rule
from errandry.core.unique import UniqueKey
from errandry.errors import QueueFull, ReplyLost, StoreUnavailable
from errandry.store.execute.insert import SENT
from errandry.store.postgres.address import Address
from errandry.store.postgres.blind_insert import LANES_MAX, LaneCache
from errandry.store.postgres.connection import PostgresConnection
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.tables import PostgresTables
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from tests.faults.process import until
from tests.pace import PATIENCE
from tests.store.postgres.test_driver import opened

LOOK = "head"
"""The statement of who looks before it writes."""

_nonces = count()


def new(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


def insert(*names: str, **fields: Any) -> Insert:
    return Insert(tuple(new(name, **fields) for name in names))


async def jobs(store: PostgresStore, *names: str) -> list[JobRecord]:
    return [job for job in await store.get(list(names)) if job is not None]


async def claim(store: PostgresStore, limit: int = 10) -> tuple[JobRecord, ...]:
    [answer] = await store.commit([Claim(worker="w", nonce=str(next(_nonces)), limit=limit)])
    assert isinstance(answer, Claims)
    return answer.jobs


async def end(store: PostgresStore, held: Sequence[JobRecord]) -> None:
    await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"order": JobOrder.LIFO, "priority": -3, "tags": ("red", "blue")},
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
async def test_a_job_made_unseen_is_the_same_as_one_made_after_a_look(
    store: PostgresStore, clock: FakeClock, sent: list[str], fields: dict[str, Any]
) -> None:
    await store.commit([insert("seen", **fields)])
    assert sent.count(LOOK) == 1
    clock.advance(10)
    await store.commit([insert("unseen", **fields)])
    assert sent.count(LOOK) == 1

    seen, unseen = await jobs(store, "seen", "unseen")
    sign = 1 if unseen.order is JobOrder.FIFO else -1
    assert (unseen.seq, unseen.place) == (seen.seq + 1, sign * (seen.seq + 1))
    assert unseen.created_at == seen.created_at + 10
    own = {"id": "unseen", "seq": unseen.seq, "place": unseen.place}
    assert unseen == replace(seen, **own, created_at=unseen.created_at, updated_at=unseen.created_at)
    assert {job.id for job in await claim(store)} == {"seen", "unseen"}


async def test_no_number_is_left_over(store: PostgresStore) -> None:
    for names in (["a"], ["b", "c"], ["d"], ["e", "f"]):
        await store.commit([insert(*names)])

    assert [job.seq for job in await jobs(store, *"abcdef")] == [1, 2, 3, 4, 5, 6]


async def test_they_stand_in_line_as_they_came(store: PostgresStore, sent: list[str]) -> None:
    """Of several commands and tasks, more than are sent at a time."""
    await store.commit([insert("a"), insert("b", task="other")])
    names = [f"job-{number}" for number in range(2 * SENT + 10)]
    many = Insert(tuple(new(name, task=("task", "other")[number % 2]) for number, name in enumerate(names)))
    answers = await store.commit([insert("c", task="other"), many, insert("d")])

    assert sent.count(LOOK) == 1
    assert [len(answer.ids) for answer in answers if isinstance(answer, Inserted)] == [1, len(names), 1]
    assert [job.id for job in await claim(store, 1_000)] == ["a", "b", "c", *names, "d"]


async def test_what_happened_is_told_and_counted(store: PostgresStore) -> None:
    await store.commit([insert("a")])
    after = await store.latest_cursor()
    await store.commit([insert("b", "c")])
    events = await store.events(after)

    assert [(one.event.kind, one.event.job) for one in events.entries] == [("waiting", "b"), ("waiting", "c")]
    assert await store.counts() == {"default": {"waiting": 3}}


async def test_on_the_servers_clock_they_have_its_time(url: str, db: psycopg.Connection[Any]) -> None:
    store = store_at(url)
    await store.open()
    try:
        await store.commit([insert("a")])
        before = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()
        after = await store.latest_cursor()
        await store.commit([insert("b")])
        [job] = [one for one in await store.get(["b"]) if one is not None]
        [happened] = (await store.events(after)).entries
    finally:
        await store.close()

    assert before[0][0] <= job.created_at <= before[0][0] + 60
    assert happened.at == job.created_at == job.updated_at


async def test_on_the_servers_clock_that_of_the_host_says_nothing(
    url: str, db: psycopg.Connection[Any]
) -> None:
    """Not even to who sends new jobs without a look, nor later to who looks."""
    store = store_at(url)
    assert isinstance(store, PostgresStore)
    store.clock = StoreClock(FakeClock(4e9))
    await store.open()
    try:
        for command in (insert("a"), insert("b"), insert("c", unique=UniqueKey("key"))):
            await store.commit([command])
        made = await jobs(store, *"abc")
    finally:
        await store.close()
    [(now,)] = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()

    assert all(now - 60 <= job.created_at <= now for job in made)


async def test_a_lane_that_has_lost_its_mark_gets_it_back(
    store: PostgresStore, other: PostgresStore, clock: FakeClock, db: psycopg.Connection[Any], sent: list[str]
) -> None:
    await store.commit([insert("a")])
    await end(other, await claim(other))
    clock.advance(10)
    await other.commit([Upkeep()])
    assert db.execute("SELECT ready FROM lanes").fetchall() == [(False,)]
    sent.clear()
    await store.commit([insert("b")])

    assert LOOK not in sent
    assert [job.id for job in await claim(other)] == ["b"]


async def changed_by(other: PostgresStore, clock: FakeClock, db: psycopg.Connection[Any], what: str) -> None:
    match what:
        case "live":
            await other.commit([insert("b", payload="[]")])
        case "finished":
            await other.commit([insert("b", payload="[]")])
            await end(other, await claim(other))
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


@pytest.mark.parametrize("what", ["live", "finished", "gate", "lane", "another lane", "clock"])
async def test_where_something_has_changed_it_looks(
    store: PostgresStore,
    other: PostgresStore,
    clock: FakeClock,
    db: psycopg.Connection[Any],
    sent: list[str],
    what: str,
) -> None:
    await store.commit([insert("a")])
    await changed_by(other, clock, db, what)
    floor = max(job.created_at for job in await jobs(store, "a", "later"))
    sent.clear()
    answers = await store.commit([insert("b"), insert("c")])

    is_there = what in ("live", "finished")
    assert LOOK in sent
    assert answers == [Inserted(("b",), frozenset({"b"} if is_there else ())), Inserted(("c",))]
    b, c = await jobs(store, "b", "c")
    assert b.payload == ("[]" if is_there else "{}")
    assert c.created_at >= floor
    assert "c" in {job.id for job in await claim(store)}


@pytest.mark.parametrize("is_unseen", [True, False], ids=["unseen", "after a look"])
async def test_an_id_that_came_and_ended_meanwhile_is_not_made_again(
    store: PostgresStore, other: PostgresStore, db: psycopg.Connection[Any], is_unseen: bool
) -> None:
    await store.commit([insert("x", task="a"), insert("y", task="b")])
    await end(other, await claim(other))
    assert store._open is not None
    if not is_unseen:
        store._open.news.forget()
    with db.transaction():
        db.execute("SELECT 1 FROM lanes WHERE task = 'a' FOR UPDATE")  # as who takes its mark from it
        waiting = asyncio.create_task(store.commit([insert("first", task="a"), insert("twin", task="b")]))
        await until_locked(db)
        await other.commit([insert("twin", task="b", payload="[]")])
        await end(other, await claim(other))

    assert (await waiting)[1] == Inserted(("twin",), frozenset({"twin"}))
    assert db.execute("SELECT id FROM live WHERE id = 'twin'").fetchall() == []
    assert [job.id for job in await claim(store)] == ["first"]


async def until_locked(db: psycopg.Connection[Any]) -> None:
    """Until somebody waits for this transaction."""
    asked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    await until(lambda: db.execute(asked, (db.info.backend_pid,)).fetchall() == [(True,)])


async def test_passes_are_read_committed_whatever_the_database_has_as_its_default(
    url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who takes the mark from a lane would not see the job that has come since its pass began."""
    base, _, schema = url.rpartition("&schema=")
    strict = f"{base}&options=-cdefault_transaction_isolation%3Drepeatable%5C%20read&schema={schema}"
    trim, began, goes_on = PostgresTables.trim, threading.Event(), threading.Event()

    def late(self: PostgresTables, *args: Any) -> int:
        began.set()
        assert goes_on.wait(PATIENCE)
        return trim(self, *args)

    async with opened(strict, clock) as one, opened(strict, clock) as two:
        await one.commit([insert("a")])
        await end(one, await claim(one))
        monkeypatch.setattr(PostgresTables, "trim", late)
        upkeep = asyncio.create_task(two.commit([Upkeep()]))
        assert await asyncio.to_thread(began.wait, PATIENCE)
        await one.commit([insert("b")])
        goes_on.set()
        await upkeep

        assert [job.id for job in await claim(one)] == ["b"]


async def test_what_was_never_sent_is_not_in_doubt(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if nobody knows what has become of what was sent before."""
    await store.commit([insert("a")])
    commit = PostgresConnection.commit

    def cut(self: PostgresConnection, *args: Any) -> list[Any]:
        self.break_off()
        return commit(self, *args)

    def away(_: Address) -> None:
        raise psycopg.OperationalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "commit", cut)
        with pytest.raises(ReplyLost):
            await store.commit([insert("b")])
    monkeypatch.setattr("errandry.store.postgres.connection.connect", away)
    with pytest.raises(StoreUnavailable) as caught:
        await store.commit([insert("c")])

    assert type(caught.value) is StoreUnavailable


async def test_bind_does_not_go_back_behind_a_pass_without_events(
    store: PostgresStore, clock: FakeClock, db: psycopg.Connection[Any]
) -> None:
    await store.commit([insert("a")])
    [held] = await claim(store)
    clock.jump(-1_000)
    clock.advance(20)
    await store.commit([Renew((Ref("a", held.fence),), 30.0)])
    bound = '[{"id":"b","task":"task","payload":"{}"}]'
    db.execute("SELECT insert_jobs(%s::jsonb, NULL, %s)", (bound, clock.time()))

    a, b = await jobs(store, "a", "b")
    assert b.created_at >= a.updated_at


async def test_a_bound_of_another_process_holds(store: PostgresStore, other: PostgresStore) -> None:
    await store.commit([insert("a")])
    await other.commit([PutRule(GateKind.QUEUE, "default", Rule(max_size=2))])
    answers: list[Answer] = []
    for name in ("b", "c"):
        answers += await store.commit([insert(name)])

    assert answers[0] == Inserted(("b",))
    assert isinstance(answers[1], QueueFull)


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """Before anything is sent: else nobody would know what has become of it."""
    await store.commit([insert("a")])
    assert store._open is not None
    [pid] = [t.link.connection.info.backend_pid for t in store._open.tracks if t.link.is_up]
    db.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    assert await store.commit([insert("b")]) == [Inserted(("b",))]


PLAIN = new("a")


@pytest.mark.parametrize(
    "command",
    [
        Insert((new("a", unique=UniqueKey("key")),)),
        Insert((new("a", delay=1.0),)),
        Insert((new("a", run_at=1.0),)),
        Insert((new("a", payload=f'"{"x" * 100}"'),)),
        Insert((new("a", task="unknown"),)),
        Insert((new("a", group="unknown"),)),
        Insert((PLAIN, new("b")), (Edge("a", "b"),)),
        Insert((PLAIN, new("b", delay=1.0))),
        Claim(worker="w", nonce="n"),
        Upkeep(),
    ],
    ids=lambda command: type(command).__name__.lower(),
)
def test_what_depends_on_more_is_looked_at(command: Command) -> None:
    news, lane = LaneCache(), ("default", "task", "")
    news.learn({lane: 1})

    assert news.lanes([Insert((PLAIN,))], 50) == {lane: 1}
    assert news.lanes([command], 50) is None
    assert news.lanes([Insert((PLAIN,)), command], 50) is None


def test_a_bounded_number_of_lanes_is_known() -> None:
    news = LaneCache()
    for number in range(LANES_MAX + 1):
        news.learn({("default", "task", str(number)): number})

    assert news.lanes([Insert((new("a", group="0"),))], 50) is None
    assert news.lanes([Insert((new("a", group=str(LANES_MAX)),))], 50) is not None
