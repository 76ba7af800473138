"""Statements in line: how many round trips a pass takes, and what becomes of those around one that fails."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg import errors

from errandry.core.answer import Answer, Claims, Inserted
from errandry.core.command import Claim, Command, CompleteOutcome, Insert, Ref, RetryOutcome, Settle, Upkeep
from errandry.core.job import Failure, JobRecord, NewJob
from errandry.core.state import Reason
from errandry.core.unique import UniqueKey
from errandry.errors import ReplyLost
from errandry.store.execute.insert import SENT
from errandry.store.postgres.connection import connect
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.store.url import store_at
from tests.store.server import server

SQL = {
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "number": "SELECT %s::bigint",
    "both": "SELECT %(a)s::text || %(b)s::text || %(a)s::text || '%%'",
    "wrong": "SELECT 1 / %s::bigint",
    "lock": "SELECT 1 FROM pg_advisory_xact_lock(%s::bigint)",
    "text": "SELECT repeat('x', %s::int), length(%s::text)",
}


@pytest.fixture
def wire() -> Iterator[Pipeline]:
    store = store_at(server().url())
    assert isinstance(store, PostgresStore)
    with connect(store.address) as connection:
        yield Pipeline(connection, SQL, prepares=True)


def test_answers_come_together_in_any_order_they_are_wanted(wire: Pipeline) -> None:
    wire.begin("begin")
    replies = [wire.send("number", (number,)) for number in range(5)]
    last = wire.send("both", {"b": "ö", "a": None}), wire.send("both", {"b": "ö", "a": "a"})

    assert [wire.fetch(reply) for reply in reversed(replies)] == [[(number,)] for number in (4, 3, 2, 1, 0)]
    assert [wire.fetch(reply) for reply in last] == [[(None,)], [("aöa%",)]]
    wire.send("commit")
    wire.end()


def test_after_an_error_nothing_is_carried_out_and_all_works_again(wire: Pipeline) -> None:
    wire.begin("begin")
    wire.send("wrong", (0,))
    late = wire.send("number", (1,))  # prepared by nobody: it came after the error
    with pytest.raises(errors.DivisionByZero):
        wire.fetch(late)
    wire.roll_back()

    for _ in range(2):
        wire.begin("begin")
        assert wire.fetch(wire.send("number", (2,))) == [(2,)]
        assert wire.fetch(wire.send("wrong", (1,))) == [(1,)]
        wire.send("commit")
        wire.end()


def test_an_error_of_what_nobody_waited_for_shows_at_the_end(wire: Pipeline) -> None:
    wire.begin("begin")
    wire.send("wrong", (0,))
    wire.send("commit")
    with pytest.raises(errors.DivisionByZero):
        wire.end()
    wire.roll_back()

    wire.begin("begin")
    assert wire.fetch(wire.send("number", (3,))) == [(3,)]
    wire.roll_back()


def test_what_was_called_for_comes_whatever_the_server_waits_for_after_it(wire: Pipeline) -> None:
    with psycopg.connect(server().url(), autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(7)")
        wire.begin("begin")
        replies = [wire.send("number", (number,)) for number in range(2)]
        wire.call()
        late = wire.send("lock", (7,))

        assert [wire.fetch(reply) for reply in replies] == [[(0,)], [(1,)]]
        assert late.result is None
        other.execute("SELECT pg_advisory_unlock(7)")
    assert wire.fetch(late) == [(1,)]
    wire.roll_back()


def test_both_sides_may_have_much_to_say_at_once(wire: Pipeline) -> None:
    size = 4_000_000
    wire.begin("begin")
    replies = [wire.send("text", (size, "y" * size)) for _ in range(4)]

    assert [[(len(text), length) for text, length in wire.fetch(reply)] for reply in replies] == [
        [(size, size)] for _ in replies
    ]
    wire.roll_back()


def test_a_text_with_a_nul_is_refused_and_not_cut(wire: Pipeline) -> None:
    wire.begin("begin")
    with pytest.raises(psycopg.DataError, match=r"U\+0000"):
        wire.send("both", {"a": "a\0b", "b": ""})
    wire.roll_back()


def test_a_connection_that_is_lost_is_told_as_such(wire: Pipeline) -> None:
    wire.begin("begin")
    [(pid,)] = wire.fetch(wire.send("number", (wire._pg.backend_pid,)))
    with psycopg.connect(server().url(), autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s)", (pid,))

    with pytest.raises(psycopg.OperationalError):
        wire.fetch(wire.send("text", (1, "y" * 1_000_000)))


def dies(monkeypatch: pytest.MonkeyPatch, at: str, before: bool) -> None:
    """Have the server end the connection right before it carries out a statement, or right after."""
    send = Pipeline.send

    def end(wire: Pipeline) -> None:
        wire._pg.send_query_params(b"SELECT pg_terminate_backend(pg_backend_pid())", None)
        wire._pending.append(PendingResult())

    def sending(wire: Pipeline, name: str, params: StatementParams = ()) -> PendingResult:
        if name == at and before:
            end(wire)
        reply = send(wire, name, params)
        if name == at and not before:
            end(wire)
        return reply

    monkeypatch.setattr(Pipeline, "send", sending)


@pytest.mark.parametrize("is_first", [True, False], ids=["seen", "unseen"])
async def test_a_pass_is_written_though_the_server_goes_right_after_its_commit(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    async with opened() as store:
        if not is_first:
            await store.commit([insert(1)])
        command = insert(1)
        with monkeypatch.context() as patch:
            dies(patch, "commit", before=False)
            answers = await store.commit([command])

        assert answers == [Inserted((command.jobs[0].id,))]
        assert await store.get([command.jobs[0].id]) != [None]


@pytest.mark.parametrize("is_first", [True, False], ids=["seen", "unseen"])
async def test_of_a_server_that_goes_before_it_answers_a_commit_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    async with opened() as store:
        if not is_first:
            await store.commit([insert(1)])
        command = insert(1)
        with monkeypatch.context() as patch:
            dies(patch, "commit", before=True)
            with pytest.raises(ReplyLost):
                await store.commit([command])

        assert await store.get([command.jobs[0].id]) == [None]
        assert await store.commit([command]) == [Inserted((command.jobs[0].id,))]


class Trips:
    """Counts how often anyone waits for a server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        coming: set[PendingResult] = set()
        receive = Pipeline._receive

        def counted(wire: Pipeline, last: PendingResult | None = None) -> None:
            nonlocal coming
            self.made += last not in coming  # else it comes with what was waited for before
            coming = {reply for reply in wire._pending if reply.is_wanted}
            receive(wire, last)

        monkeypatch.setattr(Pipeline, "_receive", counted)

    async def of(self, store: PostgresStore, *commands: Command) -> tuple[int, Sequence[Answer]]:
        before = self.made
        answers = await store.commit(commands)
        return self.made - before, answers


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


@asynccontextmanager
async def opened() -> AsyncIterator[PostgresStore]:
    with server().lent() as url:
        store = store_at(url)
        assert isinstance(store, PostgresStore)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


_numbers = count()


def insert(jobs: int, **fields: Any) -> Insert:
    ids = [f"job-{next(_numbers)}" for _ in range(jobs)]
    return Insert(tuple(NewJob(**({"id": one, "task": "task", "payload": "{}"} | fields)) for one in ids))


def claim(limit: int = 10) -> Claim:
    return Claim(worker="w", nonce=f"n{next(_numbers)}", limit=limit, start=True)


def claimed(answer: Answer) -> tuple[JobRecord, ...]:
    assert isinstance(answer, Claims)
    return answer.jobs


async def lived(store: PostgresStore, trips: Trips) -> dict[str, int]:
    """Round trips of each kind of pass in the lives of some jobs."""
    made: dict[str, int] = {}
    made["insert"], _ = await trips.of(store, insert(1))
    made["inserts"], _ = await trips.of(store, insert(5), insert(2))
    made["claim"], [claims] = await trips.of(store, claim(4))
    made["settle and claim"], [*_, claims] = await trips.of(store, *settles(claims), claim(4))
    made["settle"], _ = await trips.of(store, *settles(claims))
    made["claim in vain"], _ = await trips.of(store, claim(4))
    return made


def settles(claims: Answer) -> list[Settle]:
    held = claimed(claims)
    assert len(held) == 4
    return [Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held]


async def test_passes_take_few_round_trips(trips: Trips) -> None:
    """The first ones, which make lanes and partitions and have nothing to guess from, take some more."""
    async with opened() as store:
        await lived(store, trips)
        made = await lived(store, trips)
        await store.commit([Upkeep()])
        made["upkeep"], _ = await trips.of(store, Upkeep())

    few = {"insert": 1, "inserts": 1, "claim": 2, "settle and claim": 2, "settle": 2, "claim in vain": 2}
    assert made == few | {"upkeep": 6}


async def test_what_was_foreseen_wrongly_changes_nothing() -> None:
    """A claim that was expected to find what the last one did, and finds the lane empty, others full."""
    async with opened() as store:
        held: list[JobRecord] = []
        for task in ("a", "b", "a", "c"):
            await store.commit([insert(2, task=task)])
            [answer] = await store.commit([claim()])
            held += claimed(answer)
        *_, answer = await store.commit(
            [Settle(Ref(held[3].id, held[3].fence), RetryOutcome(Failure(Reason.ERROR), delay=0.0)), claim()]
        )

    assert [job.task for job in held] == ["a", "a", "b", "b", "a", "a", "c", "c"]
    assert [job.id for job in claimed(answer)] == [held[3].id]


async def test_many_that_end_in_one_pass_have_each_its_own_result() -> None:
    """In whatever order they end; more than are sent at a time."""
    async with opened() as store:
        await store.commit([insert(2 * SENT + 10)])
        [answer] = await store.commit([claim(2 * SENT + 10)])
        held = claimed(answer)
        ends = [Settle(Ref(job.id, job.fence), CompleteOutcome(str(job.seq))) for job in held]
        await store.commit([*ends[1::2], *ends[::2][::-1]])
        after = await store.get([job.id for job in held])

    assert [job.result for job in after if job is not None] == [str(job.seq) for job in held]


@pytest.mark.parametrize("end", [False, True], ids=["live", "finished"])
@pytest.mark.parametrize(
    ("ids", "there"),
    [(("a", "c"), ()), (("b", "c", "d"), ("b",)), (("a", "b"), ("b",)), (("é", "Z", "b"), ("b",))],
    ids=["one between", "the first", "the last", "in another order"],
)
async def test_new_ids_are_told_from_one_that_is_there(
    ids: tuple[str, ...], there: tuple[str, ...], end: bool
) -> None:
    async with opened() as store:
        await store.commit([insert(1, id="b")])
        if end:
            [answer] = await store.commit([claim()])
            [job] = claimed(answer)
            await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1"))])
        new = Insert(tuple(NewJob(id=one, task="task", payload="{}") for one in ids))

        assert await store.commit([new]) == [Inserted(ids, frozenset(there))]


async def test_numbers_are_taken_for_those_alone_that_are_made() -> None:
    async with opened() as store:
        first = insert(2)
        await store.commit([first])
        await store.commit([first])  # again: nothing is new
        await store.commit([insert(1, unique=UniqueKey("key")), insert(1, unique=UniqueKey("key"))])
        last = insert(1)
        await store.commit([last])
        jobs = await store.get([first.jobs[0].id, last.jobs[0].id])

    assert [job.seq for job in jobs if job is not None] == [1, 4]
