"""Bad input is refused with an error that names the field; nothing is stored and no other command fails."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from msgspec.structs import force_setattr

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
    ReportTrouble,
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
from errandry.errors import CommandFailed, InvalidCursor, InvalidValue, TooLarge
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref

DEEPLY_NESTED = "[" * 100_000 + "]" * 100_000
BAD_DOCUMENTS = {
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
    "nested 100,000 deep": DEEPLY_NESTED,
    "bytes": b"{}",
    "a value": {"to": "bob"},
}
BAD_NAMES = {
    "empty": "",
    "blank": "  ",
    "10,000 characters": "x" * 10_000,
    "NUL": "a\0b",
    "lone surrogate": "a\ud800b",
    "line break": "a\nb",
    "bytes": b"name",
    "None": None,
}
BAD_NONCES = {label: bad for label, bad in BAD_NAMES.items() if bad is not None}
BAD_DURATIONS = {"negative": -1.0, "NaN": nan, "infinite": inf, "text": "60", "for ever": 1e12, "truth": True}
BAD_TIMES = {"negative": -1.0, "NaN": nan, "infinite": -inf, "text": "2026-01-31", "too far": 1e15}
BAD_TEXTS = {"a number": 30, "bytes": b"text", "None": None}
BAD_INTEGERS = {"negative": -1, "zero": 0, "fraction": 1.5, "huge": 2**70, "text": "1", "truth": True}
BAD_TUPLES = {"text": "mail", "bytes": b"mail", "number": 5, "mapping": {"mail": 1}}
BAD_TRUTHS = {"number": 1, "text": "yes", "None": None}
CLAIM_REF = Ref("job", 1)


def _insert_command(**fields: Any) -> Insert:
    return Insert((NewJob(**({"id": "bad", "task": "task", "payload": "{}"} | fields)),))


MakeCommand = Callable[[Any], Command]
INVALID_FIELDS: list[tuple[str, str, dict[str, Any], MakeCommand]] = [
    ("insert", "payload", BAD_DOCUMENTS, lambda bad: _insert_command(payload=bad)),
    (
        "insert",
        "metadata",
        BAD_DOCUMENTS,
        lambda bad: _insert_command(metadata=bad if bad is not None else ""),
    ),
    ("settle", "result", BAD_DOCUMENTS, lambda bad: Settle(CLAIM_REF, CompleteOutcome(bad))),
    ("edit", "payload", BAD_DOCUMENTS, lambda bad: EditJobs(ids=("job",), payload=bad)),
    ("resolve", "result", BAD_DOCUMENTS, lambda bad: ResolveJobs(ids=("job",), result=bad)),
    ("insert", "id", BAD_NAMES, lambda bad: _insert_command(id=bad)),
    ("insert", "task", BAD_NAMES, lambda bad: _insert_command(task=bad)),
    ("insert", "queue", BAD_NAMES, lambda bad: _insert_command(queue=bad)),
    ("insert", "group", {**BAD_NAMES, "empty": " ", "None": 1}, lambda bad: _insert_command(group=bad)),
    ("insert", "tag", BAD_NAMES, lambda bad: _insert_command(tags=("fine", bad))),
    ("edit", "tag", BAD_NAMES, lambda bad: EditJobs(ids=("job",), tags=("fine", bad))),
    ("claim", "worker", BAD_NAMES, lambda bad: Claim(worker=bad, nonce="n")),
    ("claim", "nonce", BAD_NAMES, lambda bad: Claim(worker="w", nonce=bad)),
    ("cancel", "nonce", BAD_NONCES, lambda bad: CancelJobs(ids=("job",), nonce=bad)),
    ("pause", "nonce", BAD_NONCES, lambda bad: Pause(GateKind.QUEUE, "q", nonce=bad)),
    ("claim", "queue", BAD_NAMES, lambda bad: Claim(worker="w", nonce="n", queues=(bad,))),
    ("claim", "task", BAD_NAMES, lambda bad: Claim(worker="w", nonce="n", tasks=(bad,))),
    ("claim", "task", BAD_NAMES, lambda bad: Claim(worker="w", nonce="n", without=(bad,))),
    (
        "claim",
        "suspects",
        {**BAD_INTEGERS, "zero": -2},
        lambda bad: Claim(worker="w", nonce="n", suspects=bad),
    ),
    (
        "claim",
        "size",
        {**BAD_INTEGERS, "many": 1_001},
        lambda bad: Claim(worker="w", nonce="n", batches=(BatchSpec("t", bad),)),
    ),
    ("settle", "job", BAD_NAMES, lambda bad: Settle(Ref(bad, 1), CompleteOutcome())),
    ("start", "job", BAD_NAMES, lambda bad: Start(Ref(bad, 1))),
    ("renew", "job", BAD_NAMES, lambda bad: Renew((Ref(bad, 1),))),
    ("cancel", "id", BAD_NAMES, lambda bad: CancelJobs(ids=("job", bad))),
    ("pause", "queue", BAD_NAMES, lambda bad: Pause(GateKind.QUEUE, bad)),
    ("pause", "task", BAD_NAMES, lambda bad: Pause(GateKind.TASK, bad)),
    ("resume", "task", BAD_NAMES, lambda bad: Resume(GateKind.TASK, bad)),
    ("beat", "worker", BAD_NAMES, lambda bad: Beat(worker=bad)),
    ("beat", "queue", BAD_NAMES, lambda bad: Beat(worker="w", queues=(bad,))),
    ("beat", "task", BAD_NAMES, lambda bad: Beat(worker="w", tasks=(bad,))),
    ("claim", "queues", BAD_TUPLES, lambda bad: Claim(worker="w", nonce="n", queues=bad)),
    ("claim", "tasks", BAD_TUPLES, lambda bad: Claim(worker="w", nonce="n", tasks=bad)),
    ("beat", "queues", BAD_TUPLES, lambda bad: Beat(worker="w", queues=bad)),
    ("beat", "tasks", BAD_TUPLES, lambda bad: Beat(worker="w", tasks=bad)),
    ("beat", "blocked_by", {"None": None, "bytes": b"x"}, lambda bad: Beat(worker="w", blocked_by=bad)),
    ("beat", "shares", BAD_TUPLES, lambda bad: Beat(worker="w", shares=bad)),
    ("beat", "versions", BAD_TUPLES, lambda bad: Beat(worker="w", versions=bad)),
    ("beat", "batches", BAD_TUPLES | {"None": None}, lambda bad: Beat(worker="w", batches=bad)),
    ("beat", "start", BAD_TRUTHS, lambda bad: Beat(worker="w", batches=(BatchSpec("t", 1, bad),))),
    ("beat", "draining", BAD_TRUTHS, lambda bad: Beat(worker="w", draining=bad)),
    ("beat", "gone", BAD_TRUTHS, lambda bad: Beat(worker="w", gone=bad)),
    ("beat", "host", {**BAD_NAMES, "empty": " "}, lambda bad: Beat(worker="w", host=bad)),
    ("report", "worker", BAD_NAMES, lambda bad: ReportTrouble(bad, ("text",))),
    ("report", "text", {"bytes": b"text", "None": None}, lambda bad: ReportTrouble("w", ("fine", bad))),
    ("upkeep", "worker", BAD_NAMES, lambda bad: Upkeep(dead=(bad,))),
    ("insert", "delay", BAD_DURATIONS, lambda bad: _insert_command(delay=bad)),
    ("insert", "timeout", {**BAD_DURATIONS, "zero": 0.0}, lambda bad: _insert_command(timeout=bad)),
    ("insert", "keep.failed", BAD_DURATIONS, lambda bad: _insert_command(keep=Keep(failed=bad))),
    ("insert", "backoff.start", BAD_DURATIONS, lambda bad: _insert_command(backoff=Backoff(start=bad))),
    ("insert", "backoff.cap", BAD_DURATIONS, lambda bad: _insert_command(backoff=Backoff(cap=bad))),
    (
        "insert",
        "backoff.jitter",
        {"negative": -0.1, "over 1": 1.1, "NaN": nan},
        lambda bad: _insert_command(backoff=Backoff(jitter=bad)),
    ),
    ("claim", "lease", {**BAD_DURATIONS, "zero": 0.0}, lambda bad: Claim(worker="w", nonce="n", lease=bad)),
    ("renew", "lease", {**BAD_DURATIONS, "zero": 0.0}, lambda bad: Renew((CLAIM_REF,), bad)),
    ("retry", "delay", BAD_DURATIONS, lambda bad: Settle(CLAIM_REF, RetryOutcome(delay=bad))),
    ("snooze", "delay", BAD_DURATIONS, lambda bad: Settle(CLAIM_REF, SnoozeOutcome(bad))),
    ("release", "delay", BAD_DURATIONS, lambda bad: Settle(CLAIM_REF, ReleaseOutcome(bad))),
    ("rerun", "delay", BAD_DURATIONS, lambda bad: RerunJobs(ids=("job",), delay=bad)),
    ("postpone", "delay", BAD_DURATIONS, lambda bad: PostponeJobs(ids=("job",), delay=bad)),
    ("insert", "run_at", BAD_TIMES, lambda bad: _insert_command(run_at=bad)),
    ("insert", "deadline", BAD_TIMES, lambda bad: _insert_command(deadline=bad)),
    ("edit", "run_at", BAD_TIMES, lambda bad: EditJobs(ids=("job",), run_at=bad)),
    ("rerun", "run_at", BAD_TIMES, lambda bad: RerunJobs(ids=("job",), run_at=bad)),
    ("postpone", "run_at", BAD_TIMES, lambda bad: PostponeJobs(ids=("job",), run_at=bad)),
    ("insert", "max_attempts", BAD_INTEGERS, lambda bad: _insert_command(max_attempts=bad)),
    ("insert", "max_crashes", BAD_INTEGERS, lambda bad: _insert_command(max_crashes=bad)),
    (
        "insert",
        "priority",
        {"low": -(2**31) - 1, "high": 2**31, "fraction": 0.5},
        lambda bad: _insert_command(priority=bad),
    ),
    ("claim", "limit", {**BAD_INTEGERS, "many": 10_001}, lambda bad: Claim(worker="w", nonce="n", limit=bad)),
    ("cancel", "limit", {**BAD_INTEGERS, "many": 20_001}, lambda bad: CancelJobs(query=Query(), limit=bad)),
    ("upkeep", "limit", {**BAD_INTEGERS, "many": 100_001}, lambda bad: Upkeep(limit=bad)),
    (
        "note",
        "progress",
        {"negative": -0.1, "over 1": 1.1, "NaN": nan, "text": "1"},
        lambda bad: Note(CLAIM_REF, Progress(bad)),
    ),
    ("note", "text", BAD_TEXTS, lambda bad: Note(CLAIM_REF, Progress(0.5, bad))),
    ("note", "progress", {"a number": 0.5}, lambda bad: Note(CLAIM_REF, bad)),
    ("note", "line", {"text": "fine", "None": None}, lambda bad: Note(CLAIM_REF, None, (bad,))),
    ("note", "at", BAD_TIMES, lambda bad: Note(CLAIM_REF, None, (LogLine(bad, "fine"),))),
    ("note", "text", BAD_TEXTS, lambda bad: Note(CLAIM_REF, None, (LogLine(0.0, bad),))),
    ("note", "level", BAD_TEXTS, lambda bad: Note(CLAIM_REF, None, (LogLine(0.0, "fine", bad),))),
    ("fail", "message", BAD_TEXTS, lambda bad: Settle(CLAIM_REF, FailOutcome(Failure(message=bad)))),
    ("fail", "type", BAD_TEXTS, lambda bad: Settle(CLAIM_REF, FailOutcome(Failure(type=bad)))),
    ("resolve", "message", BAD_TEXTS, lambda bad: ResolveJobs(ids=("job",), message=bad)),
]
"""The kind of command, the field that the error must name, invalid values, and a command with one of them."""


INVALID_COMMANDS: list[tuple[str, Callable[[], Command]]] = [
    ("jobs", lambda: Insert(())),
    ("jobs", lambda: Insert(_insert_command().jobs * 20_001)),
    ("id", lambda: Insert(_insert_command().jobs * 2)),
    ("ids", CancelJobs),
    ("ids", lambda: CancelJobs(ids=tuple(map(str, range(20_001))))),
    ("run_at", lambda: _insert_command(run_at=1.0, delay=1.0)),
    ("run_at", lambda: RerunJobs(ids=("a",), run_at=1.0, delay=1.0)),
    ("run_at", lambda: PostponeJobs(ids=("a",))),
    ("state", lambda: ResolveJobs(ids=("a",), state=State.CANCELED)),
    ("tags", lambda: _insert_command(tags=tuple(map(str, range(21))))),
    ("metadata", lambda: _insert_command(metadata=f'"{"x" * 65_536}"')),
    ("fence", lambda: Start(Ref("a", -1))),
    ("fence", lambda: Start(Ref("a", 2**63))),
    ("host", lambda: Beat(worker="w", host="\ud800")),
    ("pid", lambda: Beat(worker="w", pid=2**70)),
    ("started_at", lambda: Beat(worker="w", started_at=nan)),
    ("texts", lambda: ReportTrouble("w", ())),
    ("texts", lambda: ReportTrouble("w", ("text",) * 101)),
    ("below", lambda: CancelJobs(query=Query(), below=2**70)),
]


CURSOR_DAMAGES: list[Callable[[str], Any]] = [
    lambda _: 0,
    lambda _: b"nonsense",
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
    @pytest.mark.parametrize("command", sorted({command for command, _, _, _ in INVALID_FIELDS}))
    async def test_every_command_refuses_invalid_values_and_names_the_field(
        self, store: Store, command: str
    ) -> None:
        before = await requests.snapshot(store)
        fields_of_command = [
            (name, values, make) for kind, name, values, make in INVALID_FIELDS if kind == command
        ]

        for name, label, bad, make in (
            (name, label, bad, make)
            for name, values, make in fields_of_command
            for label, bad in values.items()
        ):
            with pytest.raises(InvalidValue) as caught:
                await store.commit([make(bad)])
            assert caught.value.name == name, label
            assert len(str(caught.value)) < 500
        assert await requests.snapshot(store) == before

    async def test_contradictory_and_oversized_commands_are_refused(self, store: Store) -> None:
        for name, make in INVALID_COMMANDS:
            with pytest.raises(InvalidValue) as caught:
                await store.commit([make()])
            assert caught.value.name == name

        assert await requests.list_jobs(store) == []

    @pytest.mark.parametrize(
        ("payload", "size"), [('"12345678"', 10), ('"123456789"', 11), ('"éééé"', 10), ('"ééééé"', 12)]
    )
    async def test_the_payload_limit_counts_bytes(
        self, open_store: MakeStore, clock: FakeClock, payload: str, size: int
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10))

        answer = await requests.send(store, _insert_command(payload=payload))

        if size <= 10:
            assert answer == Inserted(("bad",))
        else:
            assert isinstance(answer, TooLarge)
            assert (answer.name, answer.size, answer.bound) == ("payload", size, 10)
            assert await requests.list_jobs(store) == []

    async def test_an_edit_or_resolve_over_the_size_limit_is_refused(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10, result=10))
        job = await Given(store).waiting()
        before = await requests.snapshot(store)
        large = '"123456789"'

        for command in (EditJobs(ids=(job.id,), payload=large), ResolveJobs(ids=(job.id,), result=large)):
            assert isinstance(await requests.send(store, command), TooLarge)
        assert await requests.snapshot(store) == before

    async def test_a_payload_and_a_result_of_one_mebibyte_are_stored(self, given: Given) -> None:
        large = f'"{"x" * (1_048_576 - 2)}"'

        job = await given.completed(large, payload=large)

        assert (job.payload, job.result) == (large, large)

    async def test_a_bad_command_does_not_fail_the_other_commands_of_its_pass(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10, result=10))
        given = Given(store)
        first, second, completed = await given.running(), await given.running(), await given.completed()
        large = '"123456789"'
        new = given.new_job()

        answers = await store.commit(
            [
                Start(Ref("unknown", 1)),
                Settle(ref(first), CompleteOutcome(large)),
                Settle(ref(second), CompleteOutcome("1")),
                Insert((given.new_job(payload=large),)),
                Insert((new,)),
                CancelJobs(ids=(completed.id, "unknown")),
                EditJobs(ids=("unknown",), payload=large),
                Pause(GateKind.QUEUE, "other"),
                Claim(worker="w", nonce="n", limit=10),
            ]
        )

        assert [type(answer).__name__ for answer in answers] == [
            *("Lost", "TooLarge", "Ack", "TooLarge", "Inserted", "Moved", "TooLarge", "Ack", "Claims")
        ]
        assert isinstance(answers[-1], Claims)
        assert [job.id for job in answers[-1].jobs] == [new.id]
        assert (await requests.current_job(store, first)).state is State.RUNNING
        assert (await requests.current_job(store, second)).state is State.COMPLETED

    async def test_a_command_that_fails_unexpectedly_does_not_fail_the_others_of_its_pass(
        self, store: Store, given: Given
    ) -> None:
        """Such as one with a value that no check has refused."""
        first, second = await given.running(), await given.running()
        line = LogLine(0.0, "fine")
        force_setattr(line, "level", 30)
        new = given.new_job()

        answers = await store.commit(
            [
                Note(ref(first), Progress(0.5)),
                Note(ref(first), None, (line,)),
                Insert((new,)),
                Settle(ref(second), CompleteOutcome("1")),
            ]
        )

        assert answers[:1] == [WRITTEN]
        assert isinstance(answers[1], CommandFailed)
        assert answers[2:] == [Inserted((new.id,)), WRITTEN]
        noted = await requests.current_job(store, first)
        assert (noted.progress, noted.logs) == (Progress(0.5), ())
        assert (await requests.current_job(store, second)).state is State.COMPLETED
        [inserted] = await store.get([new.id])
        assert inserted is not None

    async def test_characters_that_cannot_be_stored_are_replaced(self, store: Store, given: Given) -> None:
        job, other = await given.running(), await given.running()
        bad = "a\0b\ud800c"

        answers = await store.commit(
            [
                Note(ref(job), Progress(0.5, bad), (LogLine(1.0, bad, bad),)),
                Settle(ref(other), FailOutcome(Failure(Reason.ERROR, bad, bad, bad))),
            ]
        )

        assert answers == [WRITTEN, WRITTEN]
        noted_job, failed_job = (
            await requests.current_job(store, job),
            await requests.current_job(store, other),
        )
        assert noted_job.progress is not None
        [line], [error] = noted_job.logs, failed_job.errors
        texts = {noted_job.progress.text, line.text, line.level, error.type, error.message, error.traceback}
        assert texts == {"a\ufffdb\ufffdc"}

    async def test_hostile_text_is_stored_unchanged(self, store: Store, given: Given) -> None:
        hostile = "'; DROP TABLE live; -- \" %s ${x} \\u0000 <script>"
        job = await given.running(
            hostile, id=hostile, task=hostile, queue=hostile, group=hostile, tags=(hostile,)
        )
        assert await requests.send(store, Pause(GateKind.TASK, hostile, hostile)) is WRITTEN
        assert await requests.send(store, Pause(GateKind.TASK, hostile)) is ALREADY
        await requests.operate(store, CancelJobs(ids=(hostile,)))

        assert (job.id, job.task, job.queue, job.group, job.worker) == (hostile,) * 5
        assert await store.cancels(hostile) == (ref(job),)
        assert await store.counts() == {hostile: {"running": 1}}
        assert list((await store.paused())[GateKind.TASK]) == [hostile]
        assert await requests.operate(store, CancelJobs(ids=(hostile,))) == Moved(already=(hostile,))

    async def test_a_damaged_cursor_is_refused(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.new_job() for _ in range(2)))
        page = await store.list(limit=1)
        assert page.cursor is not None

        for damage in CURSOR_DAMAGES:
            with pytest.raises(InvalidCursor):
                await store.list(cursor=damage(page.cursor))
            with pytest.raises(InvalidCursor):
                await store.events(damage(await store.latest_cursor()))
