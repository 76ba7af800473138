"""The pipeline: the round trips of a pass, and the statements before and after a failed one."""

from collections.abc import Iterator, Sequence
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
from errandry.store.execute.insert import FLUSH_BATCH
from errandry.store.postgres.connection import connect
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.store.url import store_at
from tests.store.postgres.given import opened
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
def pipeline() -> Iterator[Pipeline]:
    store = store_at(server().url())
    assert isinstance(store, PostgresStore)
    with connect(store.address) as connection:
        yield Pipeline(connection, SQL, prepares=True)


def test_results_can_be_fetched_in_any_order(pipeline: Pipeline) -> None:
    pipeline.begin("begin")
    replies = [pipeline.send("number", (number,)) for number in range(5)]
    last = pipeline.send("both", {"b": "ö", "a": None}), pipeline.send("both", {"b": "ö", "a": "a"})

    assert [pipeline.fetch(reply) for reply in reversed(replies)] == [
        [(number,)] for number in (4, 3, 2, 1, 0)
    ]
    assert [pipeline.fetch(reply) for reply in last] == [[(None,)], [("aöa%",)]]
    pipeline.send("commit")
    pipeline.end()


def test_statements_after_an_error_are_skipped_and_the_pipeline_recovers(pipeline: Pipeline) -> None:
    pipeline.begin("begin")
    pipeline.send("wrong", (0,))
    late = pipeline.send("number", (1,))  # not prepared, because it follows the error
    with pytest.raises(errors.DivisionByZero):
        pipeline.fetch(late)
    pipeline.roll_back()

    for _ in range(2):
        pipeline.begin("begin")
        assert pipeline.fetch(pipeline.send("number", (2,))) == [(2,)]
        assert pipeline.fetch(pipeline.send("wrong", (1,))) == [(1,)]
        pipeline.send("commit")
        pipeline.end()


def test_an_error_of_a_statement_that_was_not_fetched_is_raised_at_the_end(pipeline: Pipeline) -> None:
    pipeline.begin("begin")
    pipeline.send("wrong", (0,))
    pipeline.send("commit")
    with pytest.raises(errors.DivisionByZero):
        pipeline.end()
    pipeline.roll_back()

    pipeline.begin("begin")
    assert pipeline.fetch(pipeline.send("number", (3,))) == [(3,)]
    pipeline.roll_back()


def test_requested_results_arrive_while_a_later_statement_waits_for_a_lock(pipeline: Pipeline) -> None:
    with psycopg.connect(server().url(), autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(7)")
        pipeline.begin("begin")
        replies = [pipeline.send("number", (number,)) for number in range(2)]
        pipeline.request_replies()
        late = pipeline.send("lock", (7,))

        assert [pipeline.fetch(reply) for reply in replies] == [[(0,)], [(1,)]]
        assert late.result is None
        other.execute("SELECT pg_advisory_unlock(7)")
    assert pipeline.fetch(late) == [(1,)]
    pipeline.roll_back()


def test_large_requests_and_large_results_do_not_deadlock(pipeline: Pipeline) -> None:
    size = 4_000_000
    pipeline.begin("begin")
    replies = [pipeline.send("text", (size, "y" * size)) for _ in range(4)]

    assert [[(len(text), length) for text, length in pipeline.fetch(reply)] for reply in replies] == [
        [(size, size)] for _ in replies
    ]
    pipeline.roll_back()


def test_a_text_with_a_nul_character_is_refused(pipeline: Pipeline) -> None:
    pipeline.begin("begin")
    with pytest.raises(psycopg.DataError, match=r"U\+0000"):
        pipeline.send("both", {"a": "a\0b", "b": ""})
    pipeline.roll_back()


def test_a_lost_connection_raises_an_operational_error(pipeline: Pipeline) -> None:
    pipeline.begin("begin")
    [(pid,)] = pipeline.fetch(pipeline.send("number", (pipeline._pg.backend_pid,)))
    with psycopg.connect(server().url(), autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s)", (pid,))

    with pytest.raises(psycopg.OperationalError):
        pipeline.fetch(pipeline.send("text", (1, "y" * 1_000_000)))


def end_connection_at(monkeypatch: pytest.MonkeyPatch, at: str, before: bool) -> None:
    """Let the server end the connection right before or right after a statement."""
    send = Pipeline.send

    def end(pipeline: Pipeline) -> None:
        pipeline._pg.send_query_params(b"SELECT pg_terminate_backend(pg_backend_pid())", None)
        pipeline._pending.append(PendingResult())

    def sending(pipeline: Pipeline, name: str, params: StatementParams = ()) -> PendingResult:
        if name == at and before:
            end(pipeline)
        reply = send(pipeline, name, params)
        if name == at and not before:
            end(pipeline)
        return reply

    monkeypatch.setattr(Pipeline, "send", sending)


@pytest.mark.parametrize("is_first", [True, False], ids=["normal", "blind"])
async def test_a_pass_is_written_if_the_connection_ends_after_its_commit(
    url: str, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    async with opened(url) as store:
        if not is_first:
            await store.commit([insert(1)])
        command = insert(1)
        with monkeypatch.context() as patch:
            end_connection_at(patch, "commit", before=False)
            answers = await store.commit([command])

        assert answers == [Inserted((command.jobs[0].id,))]
        assert await store.get([command.jobs[0].id]) != [None]


@pytest.mark.parametrize("is_first", [True, False], ids=["normal", "blind"])
async def test_a_pass_is_in_doubt_if_the_connection_ends_before_the_reply_to_its_commit(
    url: str, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    async with opened(url) as store:
        if not is_first:
            await store.commit([insert(1)])
        command = insert(1)
        with monkeypatch.context() as patch:
            end_connection_at(patch, "commit", before=True)
            with pytest.raises(ReplyLost):
                await store.commit([command])

        assert await store.get([command.jobs[0].id]) == [None]
        assert await store.commit([command]) == [Inserted((command.jobs[0].id,))]


class RoundTrips:
    """Counts the round trips of all pipelines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        requested: set[PendingResult] = set()
        receive = Pipeline._receive

        def counting_receive(pipeline: Pipeline, last: PendingResult | None = None) -> None:
            nonlocal requested
            self.count += last not in requested  # else it arrives with the previous round trip
            requested = {reply for reply in pipeline._pending if reply.is_requested}
            receive(pipeline, last)

        monkeypatch.setattr(Pipeline, "_receive", counting_receive)

    async def of(self, store: PostgresStore, *commands: Command) -> tuple[int, Sequence[Answer]]:
        before = self.count
        answers = await store.commit(commands)
        return self.count - before, answers


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    return RoundTrips(monkeypatch)


_numbers = count()


def insert(jobs: int, **fields: Any) -> Insert:
    ids = [f"job-{next(_numbers)}" for _ in range(jobs)]
    return Insert(
        tuple(NewJob(**({"id": job_id, "task": "task", "payload": "{}"} | fields)) for job_id in ids)
    )


def claim(limit: int = 10) -> Claim:
    return Claim(worker="w", nonce=f"n{next(_numbers)}", limit=limit, start=True)


def claimed_jobs(answer: Answer) -> tuple[JobRecord, ...]:
    assert isinstance(answer, Claims)
    return answer.jobs


async def round_trips_of_passes(store: PostgresStore, round_trips: RoundTrips) -> dict[str, int]:
    """The round trips of each kind of pass, from the insert of some jobs to their end."""
    counts: dict[str, int] = {}
    counts["insert"], _ = await round_trips.of(store, insert(1))
    counts["inserts"], _ = await round_trips.of(store, insert(5), insert(2))
    counts["claim"], [claims] = await round_trips.of(store, claim(4))
    counts["settle and claim"], [*_, claims] = await round_trips.of(store, *settles(claims), claim(4))
    counts["settle"], _ = await round_trips.of(store, *settles(claims))
    counts["claim in vain"], _ = await round_trips.of(store, claim(4))
    return counts


def settles(claims: Answer) -> list[Settle]:
    held = claimed_jobs(claims)
    assert len(held) == 4
    return [Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held]


async def test_passes_take_few_round_trips(url: str, round_trips: RoundTrips) -> None:
    """The first passes take more: they create lanes and partitions, and have nothing to prefetch."""
    async with opened(url) as store:
        await round_trips_of_passes(store, round_trips)
        counts = await round_trips_of_passes(store, round_trips)
        await store.commit([Upkeep()])
        counts["upkeep"], _ = await round_trips.of(store, Upkeep())

    expected = {"insert": 1, "inserts": 1, "claim": 2, "settle and claim": 2, "settle": 2, "claim in vain": 2}
    assert counts == expected | {"upkeep": 6}


async def test_a_wrong_prefetch_changes_nothing(url: str) -> None:
    """A claim prefetches the lanes of the last one, which are empty while others have jobs."""
    async with opened(url) as store:
        held: list[JobRecord] = []
        for task in ("a", "b", "a", "c"):
            await store.commit([insert(2, task=task)])
            [answer] = await store.commit([claim()])
            held += claimed_jobs(answer)
        *_, answer = await store.commit(
            [Settle(Ref(held[3].id, held[3].fence), RetryOutcome(Failure(Reason.ERROR), delay=0.0)), claim()]
        )

    assert [job.task for job in held] == ["a", "a", "b", "b", "a", "a", "c", "c"]
    assert [job.id for job in claimed_jobs(answer)] == [held[3].id]


async def test_jobs_that_finish_in_one_pass_keep_their_own_results(url: str) -> None:
    """In any order of their outcomes, and with more jobs than one statement writes."""
    async with opened(url) as store:
        await store.commit([insert(2 * FLUSH_BATCH + 10)])
        [answer] = await store.commit([claim(2 * FLUSH_BATCH + 10)])
        held = claimed_jobs(answer)
        ends = [Settle(Ref(job.id, job.fence), CompleteOutcome(str(job.seq))) for job in held]
        await store.commit([*ends[1::2], *ends[::2][::-1]])
        after = await store.get([job.id for job in held])

    assert [job.result for job in after if job is not None] == [str(job.seq) for job in held]


@pytest.mark.parametrize("end", [False, True], ids=["live", "finished"])
@pytest.mark.parametrize(
    ("ids", "existing"),
    [(("a", "c"), ()), (("b", "c", "d"), ("b",)), (("a", "b"), ("b",)), (("é", "Z", "b"), ("b",))],
    ids=["one between", "the first", "the last", "in another order"],
)
async def test_an_existing_id_is_found_among_new_ones(
    url: str, ids: tuple[str, ...], existing: tuple[str, ...], end: bool
) -> None:
    async with opened(url) as store:
        await store.commit([insert(1, id="b")])
        if end:
            [answer] = await store.commit([claim()])
            [job] = claimed_jobs(answer)
            await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome("1"))])
        new = Insert(tuple(NewJob(id=job_id, task="task", payload="{}") for job_id in ids))

        assert await store.commit([new]) == [Inserted(ids, frozenset(existing))]


async def test_numbers_are_taken_only_for_jobs_that_are_inserted(url: str) -> None:
    async with opened(url) as store:
        first = insert(2)
        await store.commit([first])
        await store.commit([first])  # the same again: no job is new
        await store.commit([insert(1, unique=UniqueKey("key")), insert(1, unique=UniqueKey("key"))])
        last = insert(1)
        await store.commit([last])
        jobs = await store.get([first.jobs[0].id, last.jobs[0].id])

    assert [job.seq for job in jobs if job is not None] == [1, 4]
