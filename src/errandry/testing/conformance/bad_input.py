"""Bad input: a typed error that names the thing, nothing stored or lost, and no neighbour harmed."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from errandry.core.answer import ALREADY, WRITTEN, Claims, Inserted, Moved
from errandry.core.batch import BatchSpec
from errandry.core.command import (
    Beat,
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    Insert,
    Note,
    PostponeJobs,
    Ref,
    ReleaseOutcome,
    Renew,
    RerunJobs,
    ResolveJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
)
from errandry.core.gate import GateKind, Pause, Resume
from errandry.core.job import Failure, Keep, LogLine, NewJob, Progress
from errandry.core.query import Query
from errandry.core.retry import Backoff
from errandry.core.state import Reason, State
from errandry.errors import InvalidCursor, InvalidValue, TooLarge
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref

DEEP = "[" * 100_000 + "]" * 100_000
DOCUMENTS = {
    "nothing": "",
    "no JSON": "{to: bob}",
    "NaN": '{"n": NaN}',
    "infinity": "[-Infinity]",
    "number out of range": "[1e999]",
    "integer beyond 64 bit": '{"n": 9223372036854775808}',
    "integer below 64 bit": '{"n": -9223372036854775809}',
    "huge integer": "1" * 5_000,
    "lone surrogate": '"\ud800"',
    "escaped lone surrogate": '"\\ud800"',
    "NUL": '"a\0b"',
    "escaped NUL": '{"a\\u0000b": 1}',
    "nested 100,000 deep": DEEP,
    "bytes": b"{}",
    "a value": {"to": "bob"},
}
NAMES = {
    "empty": "",
    "blank": "  ",
    "10,000 characters": "x" * 10_000,
    "NUL": "a\0b",
    "lone surrogate": "a\ud800b",
    "line break": "a\nb",
    "bytes": b"name",
    "None": None,
}
SPANS = {"negative": -1.0, "NaN": nan, "infinite": inf, "text": "60", "for ever": 1e12, "truth": True}
INSTANTS = {"negative": -1.0, "NaN": nan, "infinite": -inf, "text": "2026-01-31", "too far": 1e15}
WHOLE = {"negative": -1, "zero": 0, "fraction": 1.5, "huge": 2**70, "text": "1", "truth": True}
HELD = Ref("job", 1)


def _job(**fields: Any) -> Insert:
    return Insert((NewJob(**({"id": "bad", "task": "task", "payload": "{}"} | fields)),))


Make = Callable[[Any], Command]
DOORS: list[tuple[str, str, dict[str, Any], Make]] = [
    ("insert", "payload", DOCUMENTS, lambda bad: _job(payload=bad)),
    ("insert", "metadata", DOCUMENTS, lambda bad: _job(metadata=bad if bad is not None else "")),
    ("settle", "result", DOCUMENTS, lambda bad: Settle(HELD, CompleteOutcome(bad))),
    ("edit", "payload", DOCUMENTS, lambda bad: EditJobs(ids=("job",), payload=bad)),
    ("resolve", "result", DOCUMENTS, lambda bad: ResolveJobs(ids=("job",), result=bad)),
    ("insert", "id", NAMES, lambda bad: _job(id=bad)),
    ("insert", "task", NAMES, lambda bad: _job(task=bad)),
    ("insert", "queue", NAMES, lambda bad: _job(queue=bad)),
    ("insert", "group", {**NAMES, "empty": " ", "None": 1}, lambda bad: _job(group=bad)),
    ("insert", "tag", NAMES, lambda bad: _job(tags=("fine", bad))),
    ("edit", "tag", NAMES, lambda bad: EditJobs(ids=("job",), tags=("fine", bad))),
    ("claim", "worker", NAMES, lambda bad: Claim(worker=bad, nonce="n")),
    ("claim", "nonce", NAMES, lambda bad: Claim(worker="w", nonce=bad)),
    ("claim", "queue", NAMES, lambda bad: Claim(worker="w", nonce="n", queues=(bad,))),
    ("claim", "task", NAMES, lambda bad: Claim(worker="w", nonce="n", tasks=(bad,))),
    ("claim", "task", NAMES, lambda bad: Claim(worker="w", nonce="n", without=(bad,))),
    ("claim", "suspects", {**WHOLE, "zero": -2}, lambda bad: Claim(worker="w", nonce="n", suspects=bad)),
    (
        "claim",
        "size",
        {**WHOLE, "many": 1_001},
        lambda bad: Claim(worker="w", nonce="n", batches=(BatchSpec("t", bad),)),
    ),
    ("settle", "job", NAMES, lambda bad: Settle(Ref(bad, 1), CompleteOutcome())),
    ("start", "job", NAMES, lambda bad: Start(Ref(bad, 1))),
    ("renew", "job", NAMES, lambda bad: Renew((Ref(bad, 1),))),
    ("cancel", "id", NAMES, lambda bad: CancelJobs(ids=("job", bad))),
    ("pause", "queue", NAMES, lambda bad: Pause(GateKind.QUEUE, bad)),
    ("pause", "task", NAMES, lambda bad: Pause(GateKind.TASK, bad)),
    ("resume", "task", NAMES, lambda bad: Resume(GateKind.TASK, bad)),
    ("beat", "worker", NAMES, lambda bad: Beat(worker=bad)),
    ("beat", "queue", NAMES, lambda bad: Beat(worker="w", queues=(bad,))),
    ("beat", "task", NAMES, lambda bad: Beat(worker="w", tasks=(bad,))),
    ("upkeep", "worker", NAMES, lambda bad: Upkeep(dead=(bad,))),
    ("insert", "delay", SPANS, lambda bad: _job(delay=bad)),
    ("insert", "timeout", {**SPANS, "zero": 0.0}, lambda bad: _job(timeout=bad)),
    ("insert", "keep.failed", SPANS, lambda bad: _job(keep=Keep(failed=bad))),
    ("insert", "backoff.start", SPANS, lambda bad: _job(backoff=Backoff(start=bad))),
    ("insert", "backoff.cap", SPANS, lambda bad: _job(backoff=Backoff(cap=bad))),
    (
        "insert",
        "backoff.jitter",
        {"negative": -0.1, "over 1": 1.1, "NaN": nan},
        lambda bad: _job(backoff=Backoff(jitter=bad)),
    ),
    ("claim", "lease", {**SPANS, "zero": 0.0}, lambda bad: Claim(worker="w", nonce="n", lease=bad)),
    ("renew", "lease", {**SPANS, "zero": 0.0}, lambda bad: Renew((HELD,), bad)),
    ("retry", "delay", SPANS, lambda bad: Settle(HELD, RetryOutcome(delay=bad))),
    ("snooze", "delay", SPANS, lambda bad: Settle(HELD, SnoozeOutcome(bad))),
    ("release", "delay", SPANS, lambda bad: Settle(HELD, ReleaseOutcome(bad))),
    ("rerun", "delay", SPANS, lambda bad: RerunJobs(ids=("job",), delay=bad)),
    ("postpone", "delay", SPANS, lambda bad: PostponeJobs(ids=("job",), delay=bad)),
    ("insert", "run_at", INSTANTS, lambda bad: _job(run_at=bad)),
    ("insert", "deadline", INSTANTS, lambda bad: _job(deadline=bad)),
    ("edit", "run_at", INSTANTS, lambda bad: EditJobs(ids=("job",), run_at=bad)),
    ("rerun", "run_at", INSTANTS, lambda bad: RerunJobs(ids=("job",), run_at=bad)),
    ("postpone", "run_at", INSTANTS, lambda bad: PostponeJobs(ids=("job",), run_at=bad)),
    ("insert", "max_attempts", WHOLE, lambda bad: _job(max_attempts=bad)),
    ("insert", "max_crashes", WHOLE, lambda bad: _job(max_crashes=bad)),
    (
        "insert",
        "priority",
        {"low": -(2**31) - 1, "high": 2**31, "fraction": 0.5},
        lambda bad: _job(priority=bad),
    ),
    ("claim", "limit", {**WHOLE, "many": 10_001}, lambda bad: Claim(worker="w", nonce="n", limit=bad)),
    ("cancel", "limit", {**WHOLE, "many": 20_001}, lambda bad: CancelJobs(query=Query(), limit=bad)),
    ("upkeep", "limit", {**WHOLE, "many": 100_001}, lambda bad: Upkeep(limit=bad)),
    (
        "note",
        "progress",
        {"negative": -0.1, "over 1": 1.1, "NaN": nan, "text": "1"},
        lambda bad: Note(HELD, Progress(bad)),
    ),
]
"""The command, the name its error must give, the values, and how a value gets in."""


NONSENSE: list[tuple[str, Callable[[], Command]]] = [
    ("jobs", lambda: Insert(())),
    ("jobs", lambda: Insert(_job().jobs * 20_001)),
    ("id", lambda: Insert(_job().jobs * 2)),
    ("ids", CancelJobs),
    ("ids", lambda: CancelJobs(ids=tuple(map(str, range(20_001))))),
    ("run_at", lambda: _job(run_at=1.0, delay=1.0)),
    ("run_at", lambda: RerunJobs(ids=("a",), run_at=1.0, delay=1.0)),
    ("run_at", lambda: PostponeJobs(ids=("a",))),
    ("state", lambda: ResolveJobs(ids=("a",), state=State.CANCELED)),
    ("tags", lambda: _job(tags=tuple(map(str, range(21))))),
    ("metadata", lambda: _job(metadata=f'"{"x" * 65_536}"')),
    ("fence", lambda: Start(Ref("a", -1))),
    ("fence", lambda: Start(Ref("a", 2**63))),
    ("host", lambda: Beat(worker="w", host="\ud800")),
    ("pid", lambda: Beat(worker="w", pid=2**70)),
    ("started_at", lambda: Beat(worker="w", started_at=nan)),
    ("below", lambda: CancelJobs(query=Query(), below=2**70)),
]


DAMAGES: list[Callable[[str], str]] = [
    lambda _: "",
    lambda _: "nonsense",
    lambda _: "\ud800",
    lambda _: "x" * 100_000,
    lambda good: f"{good}-1",
    lambda good: f"{good}x",
    lambda good: good[: good.rindex("-") + 1],
    lambda good: good[: good.rindex("-")],
    lambda good: f"{good[: good.rindex('-')]}--1",
    lambda good: f"{good[: good.rindex('-')]}-٣",
    lambda good: f"{good[: good.rindex('-')]}-{2**63}",
    lambda good: f"{good[: good.rindex('-')]}-{10**30}",
]


class BadInput:
    @pytest.mark.parametrize("command", sorted({command for command, _, _, _ in DOORS}))
    async def test_a_bad_value_is_refused_by_name_at_every_door(self, store: Store, command: str) -> None:
        before = await requests.everything(store)
        doors = [(name, values, make) for kind, name, values, make in DOORS if kind == command]

        for name, what, bad, make in (
            (name, what, bad, make) for name, values, make in doors for what, bad in values.items()
        ):
            with pytest.raises(InvalidValue) as caught:
                await store.commit([make(bad)])
            assert caught.value.name == name, what
            assert len(str(caught.value)) < 500
        assert await requests.everything(store) == before

    async def test_a_command_that_makes_no_sense_cannot_be_made(self, store: Store) -> None:
        for name, make in NONSENSE:
            with pytest.raises(InvalidValue) as caught:
                await store.commit([make()])
            assert caught.value.name == name

        assert await requests.jobs(store) == []

    @pytest.mark.parametrize(
        ("payload", "size"), [('"12345678"', 10), ('"123456789"', 11), ('"éééé"', 10), ('"ééééé"', 12)]
    )
    async def test_the_bound_of_a_payload_counts_bytes(
        self, open_store: MakeStore, clock: FakeClock, payload: str, size: int
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10))

        answer = await requests.one(store, _job(payload=payload))

        if size <= 10:
            assert answer == Inserted(("bad",))
        else:
            assert isinstance(answer, TooLarge)
            assert (answer.name, answer.size, answer.bound) == ("payload", size, 10)
            assert await requests.jobs(store) == []

    async def test_an_edit_or_resolution_over_the_bound_is_refused(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10, result=10))
        job = await Given(store).waiting()
        before = await requests.everything(store)
        large = '"123456789"'

        for command in (EditJobs(ids=(job.id,), payload=large), ResolveJobs(ids=(job.id,), result=large)):
            assert isinstance(await requests.one(store, command), TooLarge)
        assert await requests.everything(store) == before

    async def test_payload_and_result_of_a_mebibyte_are_kept(self, given: Given) -> None:
        large = f'"{"x" * (1_048_576 - 2)}"'

        job = await given.completed(large, payload=large)

        assert (job.payload, job.result) == (large, large)

    async def test_one_bad_command_never_fails_its_neighbours(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10, result=10))
        given = Given(store)
        first, second, ended = await given.running(), await given.running(), await given.completed()
        large = '"123456789"'
        new = given.job()

        answers = await store.commit(
            [
                Start(Ref("nobody", 1)),
                Settle(ref(first), CompleteOutcome(large)),
                Settle(ref(second), CompleteOutcome("1")),
                Insert((given.job(payload=large),)),
                Insert((new,)),
                CancelJobs(ids=(ended.id, "nobody")),
                EditJobs(ids=("nobody",), payload=large),
                Pause(GateKind.QUEUE, "other"),
                Claim(worker="w", nonce="n", limit=10),
            ]
        )

        assert [type(answer).__name__ for answer in answers] == [
            *("Lost", "TooLarge", "Ack", "TooLarge", "Inserted", "Moved", "TooLarge", "Ack", "Claims")
        ]
        assert isinstance(answers[-1], Claims)
        assert [job.id for job in answers[-1].jobs] == [new.id]
        assert (await requests.current(store, first)).state is State.RUNNING
        assert (await requests.current(store, second)).state is State.COMPLETED

    async def test_text_that_cannot_be_stored_is_made_storable(self, store: Store, given: Given) -> None:
        job, other = await given.running(), await given.running()
        bad = "a\0b\ud800c"

        answers = await store.commit(
            [
                Note(ref(job), Progress(0.5, bad), (LogLine(1.0, bad, bad),)),
                Settle(ref(other), FailOutcome(Failure(Reason.ERROR, bad, bad, bad))),
            ]
        )

        assert answers == [WRITTEN, WRITTEN]
        noted, failed = await requests.current(store, job), await requests.current(store, other)
        assert noted.progress is not None
        [line], [error] = noted.logs, failed.errors
        texts = {noted.progress.text, line.text, line.level, error.type, error.message, error.traceback}
        assert texts == {"a\ufffdb\ufffdc"}

    async def test_text_that_looks_dangerous_is_kept_as_it_is(self, store: Store, given: Given) -> None:
        hostile = "'; DROP TABLE live; -- \" %s ${x} \\u0000 <script>"
        job = await given.running(
            hostile, id=hostile, task=hostile, queue=hostile, group=hostile, tags=(hostile,)
        )
        assert await requests.one(store, Pause(GateKind.TASK, hostile, hostile)) is WRITTEN
        assert await requests.one(store, Pause(GateKind.TASK, hostile)) is ALREADY
        await requests.operate(store, CancelJobs(ids=(hostile,)))

        assert (job.id, job.task, job.queue, job.group, job.worker) == (hostile,) * 5
        assert await store.cancels(hostile) == (ref(job),)
        assert await store.counts() == {hostile: {"running": 1}}
        assert list((await store.paused())[GateKind.TASK]) == [hostile]
        assert await requests.operate(store, CancelJobs(ids=(hostile,))) == Moved(already=(hostile,))

    async def test_a_damaged_cursor_is_refused(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.job() for _ in range(2)))
        page = await store.list(limit=1)
        assert page.cursor is not None

        for damage in DAMAGES:
            with pytest.raises(InvalidCursor):
                await store.list(cursor=damage(page.cursor))
            with pytest.raises(InvalidCursor):
                await store.events(damage(await store.latest_cursor()))
