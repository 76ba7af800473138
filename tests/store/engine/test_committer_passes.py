"""The committer: which commands share a pass, in which order, and how large a pass is."""

import asyncio
import random
from concurrent.futures import Future
from typing import NoReturn

import pytest

from errandry.core.answer import Answer, Inserted, LossCause, Lost
from errandry.core.command import (
    Beat,
    CancelJobs,
    Command,
    EditJobs,
    FailOutcome,
    Insert,
    Note,
    PostponeJobs,
    PromoteJobs,
    PutStep,
    Ref,
    RemoveJobs,
    ReportTrouble,
    RerunJobs,
    ResolveJobs,
    Settle,
    Start,
    Upkeep,
)
from errandry.core.gate import DeclareRule, GateKind, Pause, PutRule, ResetRule, Resume
from errandry.core.job import Failure, NewJob
from errandry.core.query import Query
from errandry.core.rule import Rule
from errandry.core.schedule import (
    Backfill,
    DeclareSchedule,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResetSchedule,
    ResumeSchedule,
    RunSchedule,
    SchedulePlan,
)
from errandry.core.step import SendSignal
from errandry.errors import StoreClosed
from errandry.store.contract import RANK
from errandry.store.engine.backlog import PendingCommand, WriteLimits, make_entry
from errandry.store.engine.committer import Committer
from errandry.store.engine.reply import THREADS, LoopPort
from tests.new_jobs import insert
from tests.store.engine.committer_kit import (
    RecordingStore,
    claim,
    outcomes,
    passes_behind,
    renew,
    settle,
    submit_behind,
)


async def test_an_idle_committer_writes_a_command_at_once() -> None:
    async def never(pause: float) -> None:
        raise AssertionError("there is no timer")

    store = RecordingStore()
    committer = Committer(store, sleep=never)

    assert await committer.submit(insert("a")) == Inserted(("a",))
    assert store.passes == [[insert("a")]]


async def test_commands_submitted_in_one_loop_iteration_share_a_pass() -> None:
    store = RecordingStore()
    committer = Committer(store)

    answers = await asyncio.gather(*[committer.submit(insert(str(n))) for n in range(100)])

    assert answers == [Inserted((str(n),)) for n in range(100)]
    assert [len(commands) for commands in store.passes] == [100]


async def test_a_loop_hands_in_its_commands_once_per_iteration() -> None:
    handed: list[list[PendingCommand]] = []
    loop = asyncio.get_running_loop()
    port = LoopPort(loop, handed.append)
    entries = [make_entry(insert(job_id), loop.create_future(), port) for job_id in "abc"]

    port.put(entries[0])
    port.put(entries[1])
    await asyncio.sleep(0)
    port.put(entries[2])
    await asyncio.sleep(0)

    assert handed == [entries[:2], entries[2:]]


async def test_send_calls_back_with_the_answer_and_an_error_in_a_callback_affects_no_other_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer, answers = Committer(RecordingStore()), list[Answer]()
    loop = asyncio.get_running_loop()

    def failing_callback(_: Answer) -> NoReturn:
        raise RuntimeError("clumsy")

    committer.send(insert("a"), failing_callback, loop)
    committer.send(insert("b"), answers.append, loop)
    committer.send(settle("b"), answers.append, loop)
    assert answers == []

    assert await committer.submit(insert("c")) == Inserted(("c",))
    await committer.close()

    assert answers == [Inserted(("b",)), Lost(LossCause.NOT_HELD)]
    assert "clumsy" in caplog.text
    with pytest.raises(StoreClosed):
        committer.send(insert("d"), answers.append, loop)


async def test_commands_that_arrive_during_a_pass_share_the_next_pass() -> None:
    store = RecordingStore()
    committer = Committer(store)
    tasks = await submit_behind(committer, store, insert("a"), insert("b"), insert("c"))

    store.release()
    await asyncio.gather(*tasks)

    assert store.passes == [[insert("first")], [insert("a"), insert("b"), insert("c")]]


SAME_KEY: list[tuple[Command, Command]] = [
    (Start(Ref("x", 1)), settle("x")),
    (settle("x"), Note(Ref("x", 1))),
    (insert("x"), CancelJobs(ids=("x",))),
    (CancelJobs(ids=("x",)), Start(Ref("x", 1))),
    (EditJobs(ids=("x", "y"), priority=1), renew("y", "z")),
    (renew("x", "x"), renew("x")),
    (claim("w"), claim("w")),
    (claim("w"), Beat(worker="w")),
    (Upkeep(), Upkeep(dead=("w",))),
    (Pause(GateKind.QUEUE, "x"), Resume(GateKind.QUEUE, "x")),
    (Pause(GateKind.QUEUE, "x"), PutRule(GateKind.QUEUE, "x", Rule(limit=1))),
    (DeclareRule(GateKind.QUEUE, "x", Rule(limit=1), "app"), ResetRule(GateKind.QUEUE, "x")),
    (DeclareSchedule("x", None, "app"), ResetSchedule("x")),
    (RerunJobs(query=Query()), CancelJobs(query=Query())),
]


@pytest.mark.parametrize(
    "pair", SAME_KEY, ids=lambda pair: "-".join(type(command).__name__ for command in pair)
)
async def test_a_pass_has_one_command_per_key_and_the_next_waits_for_the_next_pass(
    pair: tuple[Command, Command],
) -> None:
    store = RecordingStore()
    committer = Committer(store)

    await outcomes(*[committer.submit(command) for command in pair])

    assert store.passes == [[pair[0]], [pair[1]]]


@pytest.mark.parametrize(
    "pair",
    [
        (settle("x"), settle("y")),
        (claim("v"), claim("w")),
        (Pause(GateKind.QUEUE, "x"), Pause(GateKind.TASK, "x")),
        (insert("upkeep"), Upkeep()),
        (insert("w"), claim("w")),
        (insert("x"), CancelJobs(query=Query())),
        (Beat(worker="w"), ReportTrouble("w", ("text",))),
        (ReportTrouble("w", ("text",)), ReportTrouble("w", ("text",))),
    ],
    ids=lambda pair: "-".join(type(command).__name__ for command in pair),
)
async def test_commands_about_different_things_share_a_pass(pair: tuple[Command, Command]) -> None:
    store = RecordingStore()
    committer = Committer(store)

    await outcomes(*[committer.submit(command) for command in pair])

    assert store.passes == [list(pair)]


async def test_no_command_overtakes_another_that_waits_for_the_same_key() -> None:
    store = RecordingStore()
    committer = Committer(store)
    one, two, three = renew("a", "b"), renew("b", "c"), settle("c")

    await outcomes(*[committer.submit(command) for command in (one, two, three, settle("d"))])

    assert store.passes == [[one, settle("d")], [two], [three]]


async def test_a_workers_command_does_not_overtake_an_operators_command_about_the_same_job() -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pass_rows=2))
    commands: list[Command] = [insert("a"), insert("b"), CancelJobs(ids=("x",)), renew("x", "y"), settle("z")]
    tasks = await submit_behind(committer, store, *commands)

    store.release()
    await outcomes(*tasks)

    assert store.passes[1:] == [
        [settle("z"), insert("a")],
        [insert("b"), CancelJobs(ids=("x",))],
        [renew("x", "y")],
    ]


async def test_the_commands_of_a_pass_have_the_order_of_the_contract() -> None:
    ids = iter("abcdefghijklmnopqrs")
    commands: list[Command] = [
        *(
            Start(Ref(next(ids), 1)),
            renew(next(ids)),
            Note(Ref(next(ids), 1)),
            settle(next(ids)),
            settle("z"),
            PutStep(Ref(next(ids), 1), "step", "1"),
        ),
        SendSignal(next(ids), "signal"),
        insert(next(ids)),
        insert(next(ids)),
        CancelJobs(ids=(next(ids),)),
        RerunJobs(ids=(next(ids),)),
        EditJobs(ids=(next(ids),), priority=1),
        PostponeJobs(ids=(next(ids),), delay=1),
        PromoteJobs(ids=(next(ids),)),
        ResolveJobs(ids=(next(ids),)),
        RemoveJobs(ids=(next(ids),)),
        Pause(GateKind.QUEUE, "x"),
        Resume(GateKind.QUEUE, "y"),
        PutRule(GateKind.QUEUE, "z", Rule(limit=1)),
        ResetRule(GateKind.QUEUE, "u"),
        DeclareRule(GateKind.QUEUE, "v", Rule(limit=1), "app"),
        PutSchedule("a", SchedulePlan(job=NewJob(id="-", task="t", payload="{}"), every=60.0)),
        DeclareSchedule("g", None, "app"),
        ResetSchedule("h"),
        PauseSchedule("b"),
        ResumeSchedule("c"),
        RemoveSchedule("d"),
        RunSchedule("e", "run"),
        Backfill("f", 0.0, 1.0),
        Beat(worker="v"),
        ReportTrouble("v", ("text",)),
        Upkeep(),
        claim("w"),
    ]
    shuffled = random.Random(7).sample(commands, len(commands))
    store = RecordingStore()
    committer = Committer(store)

    await outcomes(*[committer.submit(command) for command in shuffled])

    assert {type(command) for command in commands} == RANK.keys()
    assert store.passes == [sorted(shuffled, key=lambda command: RANK[type(command)])]


async def test_a_pass_has_a_maximum_number_of_rows() -> None:
    passes = await passes_behind(
        WriteLimits(pass_rows=3), *[insert(f"{n}a", f"{n}b") for n in range(3)], insert("c")
    )

    assert passes == [[insert("0a", "0b")], [insert("1a", "1b")], [insert("2a", "2b"), insert("c")]]


async def test_a_command_larger_than_the_limits_gets_a_pass_of_its_own() -> None:
    large = insert("x", "y", "z")

    passes = await passes_behind(WriteLimits(pass_rows=2), insert("a"), large, insert("b"))

    assert passes == [[insert("a")], [large], [insert("b")]]


async def test_a_pass_has_a_maximum_size_in_bytes() -> None:
    ten_bytes = [insert(job_id, payload='"23456789"') for job_id in "abc"]

    assert await passes_behind(WriteLimits(pass_bytes=20), *ten_bytes) == [ten_bytes[:2], ten_bytes[2:]]


@pytest.mark.parametrize(
    ("command", "rows", "size"),
    [
        (insert("a", "b", payload='"x"'), 2, 6),
        (insert("a", payload='"é"'), 1, 12),
        (Insert((NewJob(id="a", task="t", payload="1", metadata="{}"),)), 1, 3),
        (settle("a", result='"xx"'), 1, 4),
        (Settle(Ref("a", 1), FailOutcome(Failure(message="no", traceback="trace"))), 1, 7),
        (EditJobs(ids=("a", "b"), payload="12"), 2, 4),
        (ResolveJobs(ids=("a",), result="12"), 1, 2),
        (renew("a", "b", "c"), 3, 0),
        (renew(), 1, 0),
        (claim(limit=70), 70, 0),
        (CancelJobs(query=Query(), limit=30), 30, 0),
        (Upkeep(), 1, 0),
    ],
)
def test_the_size_of_a_command_counts_its_jobs_and_its_payloads_and_results(
    command: Command, rows: int, size: int
) -> None:
    entry = make_entry(command, Future(), THREADS)

    assert (entry.rows, entry.size) == (rows, size)


async def test_workers_commands_are_written_before_inserts() -> None:
    inserts = [insert(str(n)) for n in range(10)]

    passes = await passes_behind(WriteLimits(pass_rows=4), *inserts, renew("x"), settle("y"))

    assert passes[0] == [renew("x"), settle("y"), inserts[0], inserts[1]]


async def test_many_workers_commands_do_not_starve_the_others() -> None:
    flood = [settle(str(n)) for n in range(20)]
    large = insert("a", "b", "c", "d")

    passes = await passes_behind(WriteLimits(pass_rows=4), large, insert("e"), *flood)

    assert passes[:2] == [flood[:4], [large]]
    assert insert("e") in passes[3]
