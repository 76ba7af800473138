"""The committer, inline: on the test's own loop, with the memory store and a clock that stands still."""

import asyncio
import copy
import random
import traceback
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errandry.core.answer import WRITTEN, Answer, Claims, Inserted, LossCause, Lost, Moved
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
    PromoteJobs,
    PutStep,
    Ref,
    RemoveJobs,
    Renew,
    RerunJobs,
    ResolveJobs,
    Settle,
    Start,
    Upkeep,
)
from errandry.core.gate import GateKind, Pause, PutRule, Resume
from errandry.core.job import Failure, NewJob
from errandry.core.query import Query
from errandry.core.rule import Rule
from errandry.core.schedule import (
    Backfill,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    SchedulePlan,
)
from errandry.core.step import SendSignal
from errandry.errors import (
    CommandFailed,
    ErrandryError,
    InvalidValue,
    QueueFull,
    ReplyLost,
    SchemaTooNew,
    StoreClosed,
    StoreFull,
    StoreUnavailable,
    UnknownJob,
)
from errandry.store.contract import RANK
from errandry.store.engine.backlog import Callback, PendingCommand, WriteLimits, entry_of
from errandry.store.engine.committer import FIRST_PAUSE, LONGEST_PAUSE, Committer
from errandry.store.engine.reply import THREADS, LoopPort
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock


class Watched(MemoryStore):
    """A memory store that keeps the passes it was sent and can be held up."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.passes: list[list[Command]] = []
        self.entered = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        self._gate.clear()
        self.entered.clear()

    def let_go(self) -> None:
        self._gate.set()

    async def next_pass(self) -> None:
        """Let this pass end and hold up the next one."""
        self.let_go()
        await asyncio.sleep(0)
        self.hold()
        await self.entered.wait()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.passes.append(list(commands))
        self.entered.set()
        await self._gate.wait()
        return await super().commit(commands)


class Scripted(Watched):
    """Answers with what the script says, one entry per commit, and with WRITTEN after its end."""

    def __init__(self, *script: BaseException | list[Answer]) -> None:
        super().__init__()
        self.script = list(script)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.passes.append(list(commands))
        self.entered.set()
        await self._gate.wait()
        written: list[Answer] = [WRITTEN] * len(commands)
        step = self.script.pop(0) if self.script else written
        if isinstance(step, BaseException):
            raise step
        return step


class Waited:
    """A sleep that lets the clock's time pass instead."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.pauses: list[float] = []

    async def __call__(self, pause: float) -> None:
        self.pauses.append(pause)
        self.clock.advance(pause)
        await asyncio.sleep(0)


def insert(*ids: str, payload: str = "{}") -> Insert:
    return Insert(tuple(NewJob(id=one, task="task", payload=payload) for one in ids))


def claim(worker: str = "w", limit: int = 1) -> Claim:
    return Claim(worker=worker, nonce="n", limit=limit)


def settle(job: str, result: str | None = None) -> Settle:
    return Settle(Ref(job, 1), CompleteOutcome(result))


def renew(*jobs: str) -> Renew:
    return Renew(tuple(Ref(job, 1) for job in jobs))


async def outcomes(*submits: Awaitable[Answer]) -> list[Answer | BaseException]:
    return await asyncio.gather(*submits, return_exceptions=True)


async def behind(
    committer: Committer, store: Watched, *commands: Command, first: Command | None = None
) -> list[asyncio.Task[Answer]]:
    """Submit `commands` while the store is held up by a pass of its own; it is still held on return."""
    store.hold()
    tasks = [asyncio.create_task(committer.submit(first or insert("first")))]
    await store.entered.wait()
    tasks += [asyncio.create_task(committer.submit(command)) for command in commands]
    for _ in range(3):  # submitted, handed in
        await asyncio.sleep(0)
    return tasks


# Passes.


async def test_an_idle_committer_writes_a_command_at_once() -> None:
    async def never(pause: float) -> None:
        raise AssertionError("there is no timer")

    store = Watched()
    committer = Committer(store, sleep=never)

    assert await committer.submit(insert("a")) == Inserted(("a",))
    assert store.passes == [[insert("a")]]


async def test_what_is_submitted_in_one_iteration_is_one_pass() -> None:
    store = Watched()
    committer = Committer(store)

    answers = await asyncio.gather(*[committer.submit(insert(str(n))) for n in range(100)])

    assert answers == [Inserted((str(n),)) for n in range(100)]
    assert [len(one) for one in store.passes] == [100]


class Along:
    """A companion that wants one job with every pass."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Answer]] = []

    def __call__(self) -> list[tuple[Claim, asyncio.Future[Answer]]]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return [(Claim(worker="w", nonce=f"along-{len(self.answers)}"), self.answers[-1])]


async def test_a_companion_claims_a_job_in_the_pass_that_inserts_it() -> None:
    store, along = Watched(), Along()
    committer = Committer(store)
    committer.join(along)

    await committer.submit(insert("a"))

    assert [[type(one) for one in commands] for commands in store.passes] == [[Insert, Claim]]
    claims = along.answers[0].result()
    assert isinstance(claims, Claims)
    assert [job.id for job in claims.jobs] == ["a"]


async def test_a_companion_makes_no_pass_and_goes_with_none_that_makes_nothing_ready() -> None:
    store, along = Watched(), Along()
    committer = Committer(store)
    committer.join(along)

    await committer.submit(Beat(worker="w"))
    await committer.submit(claim("other"))
    await committer.submit(Pause(GateKind.QUEUE, "q"))

    assert [len(one) for one in store.passes] == [1, 1, 1]
    assert along.answers == []


async def test_a_companion_that_has_left_goes_along_no_more() -> None:
    store, along = Watched(), Along()
    committer = Committer(store)
    committer.join(along)
    committer.leave(along)

    await committer.submit(insert("a"))

    assert store.passes == [[insert("a")]]


async def test_what_goes_along_with_a_pass_that_fails_is_told_so() -> None:
    error = SchemaTooNew("file", "it is newer")
    store, along = Scripted(error, error), Along()
    committer = Committer(store)
    committer.join(along)

    with pytest.raises(SchemaTooNew):
        await committer.submit(insert("a"))

    assert isinstance(along.answers[0].result(), SchemaTooNew)


async def test_what_goes_along_does_not_cost_the_pass_it_goes_with() -> None:
    store, along = Scripted(StoreFull("file", "no space left")), Along()
    committer = Committer(store)
    committer.join(along)

    assert await committer.submit(insert("a")) == WRITTEN

    assert [[type(one) for one in commands] for commands in store.passes] == [[Insert, Claim], [Insert]]
    assert isinstance(along.answers[0].result(), StoreFull)


async def test_a_claim_that_goes_along_and_cannot_be_written_just_now_is_not_sent_again() -> None:
    clock = FakeClock()
    store, along = Scripted([WRITTEN, LOCKED]), Along()
    committer = Committer(store, WriteLimits(give_up_after=10_000), clock, Waited(clock))
    committer.join(along)

    assert await committer.submit(insert("a")) is WRITTEN
    await committer.close()

    assert along.answers[0].result() is LOCKED
    assert len(store.passes) == 1


async def test_a_claim_is_answered_before_the_command_it_goes_along_with() -> None:
    told: list[str] = []
    committer = Committer(Watched())
    committer.join(lambda: [(claim(), Callback(lambda _: told.append("claim")))])

    committer.send(insert("a"), lambda _: told.append("insert"), asyncio.get_running_loop())
    await committer.submit(insert("b"))

    assert told == ["claim", "insert"]


async def test_a_pass_whose_reply_was_lost_is_not_sent_without_what_went_along() -> None:
    """Whether it was written is not known, and it was sent again for as long as it may be."""
    store, along = Scripted(ReplyLost("server", "gone")), Along()
    committer = Committer(store, WriteLimits(give_up_after=0.0))
    committer.join(along)

    with pytest.raises(ReplyLost):
        await committer.submit(insert("a"))

    assert len(store.passes) == 1
    assert isinstance(along.answers[0].result(), ReplyLost)


async def test_nothing_goes_along_while_the_committer_closes() -> None:
    store, along = Watched(), Along()
    committer = Committer(store)
    committer.join(along)
    submitted = asyncio.create_task(committer.submit(insert("a")))
    await asyncio.sleep(0)

    await committer.close()

    assert await submitted == Inserted(("a",))
    assert along.answers == []


async def test_a_loop_hands_in_once_per_iteration() -> None:
    handed: list[list[PendingCommand]] = []
    loop = asyncio.get_running_loop()
    port = LoopPort(loop, handed.append)
    entries = [entry_of(insert(one), loop.create_future(), port) for one in "abc"]

    port.put(entries[0])
    port.put(entries[1])
    await asyncio.sleep(0)
    port.put(entries[2])
    await asyncio.sleep(0)

    assert handed == [entries[:2], entries[2:]]


async def test_who_does_not_wait_is_told_and_hurts_nobody_by_what_he_makes_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    committer, told = Committer(Watched()), list[Answer]()
    loop = asyncio.get_running_loop()

    def clumsy(_: Answer) -> NoReturn:
        raise RuntimeError("clumsy")

    committer.send(insert("a"), clumsy, loop)
    committer.send(insert("b"), told.append, loop)
    committer.send(settle("b"), told.append, loop)
    assert told == []

    assert await committer.submit(insert("c")) == Inserted(("c",))
    await committer.close()

    assert told == [Inserted(("b",)), Lost(LossCause.NOT_HELD)]
    assert "clumsy" in caplog.text
    with pytest.raises(StoreClosed):
        committer.send(insert("d"), told.append, loop)


async def test_what_arrives_during_a_pass_is_the_next_pass() -> None:
    store = Watched()
    committer = Committer(store)
    tasks = await behind(committer, store, insert("a"), insert("b"), insert("c"))

    store.let_go()
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
    (RerunJobs(query=Query()), CancelJobs(query=Query())),
]


@pytest.mark.parametrize("pair", SAME_KEY, ids=lambda pair: "-".join(type(one).__name__ for one in pair))
async def test_a_pass_has_one_command_per_key_and_the_next_waits_for_the_next_pass(
    pair: tuple[Command, Command],
) -> None:
    store = Watched()
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
    ],
    ids=lambda pair: "-".join(type(one).__name__ for one in pair),
)
async def test_commands_about_different_things_share_a_pass(pair: tuple[Command, Command]) -> None:
    store = Watched()
    committer = Committer(store)

    await outcomes(*[committer.submit(command) for command in pair])

    assert store.passes == [list(pair)]


async def test_nothing_overtakes_a_command_that_waits_for_a_key() -> None:
    store = Watched()
    committer = Committer(store)
    one, two, three = renew("a", "b"), renew("b", "c"), settle("c")

    await outcomes(*[committer.submit(command) for command in (one, two, three, settle("d"))])

    assert store.passes == [[one, settle("d")], [two], [three]]


async def test_a_workers_command_does_not_overtake_an_operators_about_the_same_job() -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pass_rows=2))
    commands: list[Command] = [insert("a"), insert("b"), CancelJobs(ids=("x",)), renew("x", "y"), settle("z")]
    tasks = await behind(committer, store, *commands)

    store.let_go()
    await outcomes(*tasks)

    assert store.passes[1:] == [
        [settle("z"), insert("a")],
        [insert("b"), CancelJobs(ids=("x",))],
        [renew("x", "y")],
    ]


async def test_inside_a_pass_commands_stand_in_the_order_of_the_contract() -> None:
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
        PutSchedule("a", SchedulePlan(job=NewJob(id="-", task="t", payload="{}"), every=60.0)),
        PauseSchedule("b"),
        ResumeSchedule("c"),
        RemoveSchedule("d"),
        RunSchedule("e", "run"),
        Backfill("f", 0.0, 1.0),
        Beat(worker="v"),
        Upkeep(),
        claim("w"),
    ]
    shuffled = random.Random(7).sample(commands, len(commands))
    store = Watched()
    committer = Committer(store)

    await outcomes(*[committer.submit(command) for command in shuffled])

    assert {type(command) for command in commands} == RANK.keys()
    assert store.passes == [sorted(shuffled, key=lambda command: RANK[type(command)])]


# Bounds of a pass.


async def written_behind(limits: WriteLimits, *commands: Command) -> list[list[Command]]:
    """The passes these commands make if they all wait together."""
    store = Watched()
    committer = Committer(store, limits)
    tasks = await behind(committer, store, *commands)
    store.let_go()
    await outcomes(*tasks)
    return store.passes[1:]


async def test_a_pass_is_bounded_in_rows() -> None:
    passes = await written_behind(
        WriteLimits(pass_rows=3), *[insert(f"{n}a", f"{n}b") for n in range(3)], insert("c")
    )

    assert passes == [[insert("0a", "0b")], [insert("1a", "1b")], [insert("2a", "2b"), insert("c")]]


async def test_a_command_larger_than_a_pass_goes_alone() -> None:
    large = insert("x", "y", "z")

    passes = await written_behind(WriteLimits(pass_rows=2), insert("a"), large, insert("b"))

    assert passes == [[insert("a")], [large], [insert("b")]]


async def test_a_pass_is_bounded_in_bytes() -> None:
    ten = [insert(one, payload='"23456789"') for one in "abc"]

    assert await written_behind(WriteLimits(pass_bytes=20), *ten) == [ten[:2], ten[2:]]


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
def test_a_command_weighs_the_jobs_it_touches_and_the_documents_it_carries(
    command: Command, rows: int, size: int
) -> None:
    entry = entry_of(command, Future(), THREADS)

    assert (entry.rows, entry.size) == (rows, size)


async def test_workers_commands_go_before_a_heap_of_inserts() -> None:
    heap = [insert(str(n)) for n in range(10)]

    passes = await written_behind(WriteLimits(pass_rows=4), *heap, renew("x"), settle("y"))

    assert passes[0] == [renew("x"), settle("y"), heap[0], heap[1]]


async def test_a_flood_of_workers_commands_does_not_starve_the_others() -> None:
    flood = [settle(str(n)) for n in range(20)]
    large = insert("a", "b", "c", "d")

    passes = await written_behind(WriteLimits(pass_rows=4), large, insert("e"), *flood)

    assert passes[:2] == [flood[:4], [large]]
    assert insert("e") in passes[3]


# Back-pressure.


async def test_beyond_the_bound_submits_wait_and_are_let_in_in_turn() -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pass_rows=2, pending_rows=3))
    heap = [insert(str(n)) for n in range(6)]
    tasks = await behind(committer, store, *heap)

    waiting = committer.stats().waiting
    store.let_go()
    await asyncio.gather(*tasks)

    assert [command for one in store.passes for command in one] == [insert("first"), *heap]
    assert (waiting, committer.stats().waiting) == (6, 0)


@pytest.mark.parametrize(
    "limits", [WriteLimits(pending_rows=2), WriteLimits(pending_bytes=4)], ids=["rows", "bytes"]
)
async def test_workers_commands_need_no_room(limits: WriteLimits) -> None:
    store = Watched()
    committer = Committer(store, limits)
    first = insert("1", "2", payload="12")
    tasks = await behind(committer, store, insert("a"), insert("b"), renew("x"), settle("y"), first=first)

    store.let_go()
    await outcomes(*tasks)

    assert store.passes[1] == [renew("x"), settle("y"), insert("a"), insert("b")]


@pytest.mark.parametrize("bound", [{"pending_rows": 3}, {"pending_bytes": 12}], ids=["rows", "bytes"])
async def test_pending_is_bounded_whatever_waits(bound: dict[str, Any]) -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pass_rows=1, **bound))
    tasks = await behind(committer, store, *[insert(str(n), payload="1234") for n in range(20)])
    seen = []

    async def commit(commands: Sequence[Command]) -> list[Answer]:
        seen.append(committer.stats().pending_rows)
        return [WRITTEN] * len(commands)

    store.commit = commit  # type: ignore[method-assign]
    store.let_go()
    await outcomes(*tasks)

    assert len(seen) == 20
    assert max(seen) == 3


async def test_a_submit_canceled_while_it_waits_for_room_leaves_nothing_behind() -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pending_rows=1))
    tasks = await behind(committer, store, insert("a"), insert("b"), insert("c"))
    await store.next_pass()

    tasks[2].cancel()
    await outcomes(tasks[2])
    await asyncio.sleep(0)
    waiting = committer.stats().waiting
    store.let_go()
    await outcomes(*tasks)

    assert waiting == 1
    assert store.passes == [[insert("first")], [insert("a")], [insert("c")]]


async def test_a_submit_canceled_just_as_there_is_room_leaves_nothing_behind() -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pending_rows=1))
    tasks = await behind(committer, store, insert("a"), insert("b"))
    await store.next_pass()

    store.let_go()
    tasks[2].cancel()
    await outcomes(*tasks)
    await committer.close()

    assert store.passes == [[insert("first")], [insert("a")]]


async def test_a_submit_canceled_before_anybody_looked_at_it_leaves_nothing_behind() -> None:
    store = Watched()
    committer = Committer(store)
    tasks = await behind(committer, store, insert("a"), insert("b"))

    tasks[1].cancel()
    await outcomes(tasks[1])
    store.let_go()
    await outcomes(*tasks)

    assert store.passes == [[insert("first")], [insert("b")]]


async def test_a_submit_canceled_after_it_was_accepted_is_written_and_its_neighbour_answered() -> None:
    store = Watched()
    committer = Committer(store)
    tasks = await behind(committer, store, insert("a"), insert("b"))
    await store.next_pass()

    tasks[1].cancel()
    await outcomes(tasks[1])
    store.let_go()

    assert await tasks[2] == Inserted(("b",))
    assert store.passes[1] == [insert("a"), insert("b")]


# Answers and errors.


async def test_an_error_is_raised_to_its_submitter_and_to_nobody_else() -> None:
    store = Scripted([WRITTEN, QueueFull("q", 3, 3), Lost(LossCause.EXPIRED)])
    committer = Committer(store)

    answers = await outcomes(*[committer.submit(settle(one)) for one in "abc"])

    assert answers[0] == WRITTEN
    assert isinstance(answers[1], QueueFull)
    assert (answers[1].queue, answers[1].bound) == ("q", 3)
    assert answers[2] == Lost(LossCause.EXPIRED)


async def test_no_two_submitters_are_raised_the_same_error() -> None:
    error = UnknownJob("x")
    committer = Committer(Scripted([error, error]))

    one, two = await outcomes(committer.submit(settle("a")), committer.submit(settle("b")))

    assert isinstance(one, UnknownJob)
    assert isinstance(two, UnknownJob)
    assert len({id(one), id(two), id(error)}) == 3
    assert error.__traceback__ is None
    assert len(traceback.extract_tb(one.__traceback__)) == len(traceback.extract_tb(two.__traceback__))


async def test_a_lost_reply_sends_the_same_pass_again() -> None:
    store = Watched()
    store.fail_after = [ReplyLost("memory", "gone"), ReplyLost("memory", "gone")]
    clock = FakeClock()
    committer = Committer(store, clock=clock, sleep=Waited(clock))
    commands: list[Command] = [insert("b"), insert("a"), claim()]

    answers = await asyncio.gather(*[committer.submit(command) for command in commands])

    assert store.passes == [commands] * 3
    assert answers[0] == Inserted(("b",), frozenset("b"))
    assert (await store.totals())["default"]["inserted"] == 2


async def test_a_store_that_is_away_is_tried_again_after_growing_pauses() -> None:
    clock = FakeClock()
    waited = Waited(clock)
    committer = Committer(Scripted(*[StoreUnavailable("s", "away")] * 10), clock=clock, sleep=waited)

    assert await committer.submit(insert("a")) is WRITTEN

    expected = [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n in range(10)]
    assert [0.5 <= pause / full <= 1.5 for pause, full in zip(waited.pauses, expected, strict=True)] == [
        True
    ] * 10
    assert len({pause / full for pause, full in zip(waited.pauses, expected, strict=True)}) > 1


@pytest.mark.parametrize("error", [ReplyLost("s", "gone"), StoreUnavailable("s", "away")])
async def test_after_the_time_to_give_up_every_submitter_gets_the_error(error: ErrandryError) -> None:
    clock = FakeClock()
    began = clock.monotonic()
    waited = Waited(clock)
    store = Scripted(*[error] * 100)
    committer = Committer(store, WriteLimits(give_up_after=30), clock, waited)

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [type(error)] * 2
    assert 30 <= clock.monotonic() - began <= 30 + 1.5 * LONGEST_PAUSE
    store.script.clear()
    assert await committer.submit(insert("c")) is WRITTEN


async def test_who_waited_as_long_behind_a_pass_gets_one_try() -> None:
    clock = FakeClock()
    store = Scripted(*[StoreUnavailable("s", "away")] * 100)
    committer = Committer(store, WriteLimits(pass_rows=1), clock, Waited(clock))

    answers = await outcomes(*[committer.submit(insert(one)) for one in "abc"])

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert store.passes[-2:] == [[insert("b")], [insert("c")]]
    assert store.passes[-3] == [insert("a")]


LOCKED: Answer = StoreUnavailable("s", "locked")


async def test_one_command_that_cannot_be_written_just_now_comes_with_a_later_pass() -> None:
    clock = FakeClock()
    store = Scripted([WRITTEN, LOCKED, WRITTEN], [LOCKED])
    committer = Committer(store, clock=clock, sleep=Waited(clock))

    answers = await outcomes(*[committer.submit(insert(one)) for one in "abc"])

    assert answers == [WRITTEN] * 3
    assert store.passes == [[insert("a"), insert("b"), insert("c")], [insert("b")], [insert("b")]]


async def test_what_is_about_the_same_job_waits_for_it_and_nothing_else_does() -> None:
    pause = asyncio.Event()

    async def sleep(_: float) -> None:
        await pause.wait()

    store = Scripted([LOCKED])
    committer = Committer(store, sleep=sleep)
    first, second = [asyncio.create_task(committer.submit(insert("a"))) for _ in range(2)]
    await store.entered.wait()

    assert await committer.submit(insert("b")) is WRITTEN
    assert not first.done()
    pause.set()
    assert await outcomes(first, second) == [WRITTEN] * 2
    assert store.passes == [[insert(one)] for one in "abaa"]


async def test_it_is_given_up_in_time_and_a_workers_command_at_once() -> None:
    clock = FakeClock()
    began = clock.monotonic()
    store = Scripted([LOCKED, LOCKED], *[[LOCKED]] * 1_000)
    committer = Committer(store, WriteLimits(give_up_after=30), clock, Waited(clock))
    times: list[float] = []

    async def submitted(command: Command) -> None:
        with pytest.raises(StoreUnavailable):
            await committer.submit(command)
        times.append(clock.monotonic() - began)

    await asyncio.gather(submitted(insert("a")), submitted(settle("b")))

    assert times[0] < 1.0
    assert 30 <= times[1] < 31


async def test_a_close_that_gives_up_tells_who_was_put_off() -> None:
    async def sleep(_: float) -> None:
        await asyncio.Event().wait()

    store = Scripted(*[[LOCKED]] * 10)
    committer = Committer(store, sleep=sleep)
    waiting = asyncio.create_task(committer.submit(insert("a")))
    await store.entered.wait()
    await asyncio.sleep(0)

    await committer.close(timeout=0)

    assert [type(answer) for answer in await outcomes(waiting)] == [StoreUnavailable]
    assert committer.stats().pending_rows == 0


async def test_a_reply_that_was_lost_stays_lost_though_the_command_was_refused_later() -> None:
    clock = FakeClock()
    store = Scripted(ReplyLost("s", "gone"), [LOCKED])
    committer = Committer(store, clock=clock, sleep=Waited(clock))

    with pytest.raises(ReplyLost):
        await committer.submit(insert("a"))


async def test_what_is_refused_when_sent_again_may_have_been_done() -> None:
    """A job that was removed is unknown the second time."""
    clock = FakeClock()
    store = Scripted(ReplyLost("s", "gone"), [Moved(refused=(("a", UnknownJob("a")),))])
    committer = Committer(store, clock=clock, sleep=Waited(clock))

    with pytest.raises(ReplyLost):
        await committer.submit(RemoveJobs(ids=("a",)))


@pytest.mark.parametrize(
    "error", [StoreFull("s", "full"), StoreClosed("s", "closed"), SchemaTooNew("s", "v9")]
)
async def test_what_trying_again_cannot_mend_is_raised_at_once(error: ErrandryError) -> None:
    clock = FakeClock()
    waited = Waited(clock)
    committer = Committer(Scripted(error), clock=clock, sleep=waited)

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [type(error)] * 2
    assert waited.pauses == []
    assert await committer.submit(insert("c")) is WRITTEN


@pytest.mark.parametrize("after", [StoreFull("s", "full"), KeyError("bug")])
async def test_once_a_reply_was_lost_no_later_error_says_that_nothing_was_written(after: Exception) -> None:
    clock = FakeClock()
    committer = Committer(Scripted(ReplyLost("s", "gone"), after), clock=clock, sleep=Waited(clock))

    with pytest.raises(ReplyLost) as caught:
        await committer.submit(insert("a"))

    assert caught.value.__cause__ is after


async def test_a_bug_in_the_store_fails_its_pass_and_the_next_goes_on() -> None:
    bug = KeyError("oops")
    committer = Committer(Scripted(bug))

    answers = await outcomes(committer.submit(insert("a")), committer.submit(settle("b")))

    assert [type(answer) for answer in answers] == [CommandFailed, CommandFailed]
    assert [str(answer) for answer in answers] == [
        "Insert could not be written: KeyError: 'oops'",
        "Settle could not be written: KeyError: 'oops'",
    ]
    assert [getattr(answer, "__cause__", None) for answer in answers] == [bug, bug]
    assert await committer.submit(insert("c")) is WRITTEN


async def test_the_wrong_number_of_answers_fails_the_whole_pass() -> None:
    committer = Committer(Scripted([WRITTEN]))

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [CommandFailed, CommandFailed]
    assert "1 answers to 2 commands" in str(answers[0])


async def test_a_cancellation_out_of_the_store_is_a_lost_reply_and_the_next_pass_goes_on() -> None:
    committer = Committer(Scripted(asyncio.CancelledError()))

    with pytest.raises(ReplyLost):
        await committer.submit(insert("a"))

    assert await committer.submit(insert("b")) is WRITTEN


# Closing.


async def test_closing_writes_what_was_handed_in_even_what_waits_for_room() -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pass_rows=1, pending_rows=1))
    tasks = await behind(committer, store, *[insert(str(n)) for n in range(5)])
    tasks.append(asyncio.create_task(committer.submit(insert("last"))))
    await asyncio.sleep(0)

    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await committer.submit(insert("late"))
    store.let_go()
    await closing

    assert [type(answer) for answer in await outcomes(*tasks)] == [Inserted] * 7
    assert len(store.passes) == 7
    with pytest.raises(StoreClosed):
        committer.submit_sync(insert("late"))


async def test_closing_writes_what_was_submitted_just_before() -> None:
    committer = Committer(Watched())
    task = asyncio.create_task(committer.submit(insert("a")))
    await asyncio.sleep(0)

    await committer.close()

    assert await task == Inserted(("a",))


async def test_closing_twice_or_idle_is_nothing() -> None:
    committer = Committer(Watched())

    await committer.close()
    await committer.close(timeout=0)

    with pytest.raises(StoreClosed):
        await committer.submit(insert("a"))


async def test_what_was_not_written_in_time_is_refused_wherever_it_waits() -> None:
    store = Watched()
    committer = Committer(store, WriteLimits(pass_rows=1, pending_rows=2))
    tasks = await behind(committer, store, *[insert(one) for one in "abc"])
    await store.next_pass()
    tasks.append(asyncio.create_task(committer.submit(insert("d"))))
    for _ in range(3):  # submitted, handed in
        await asyncio.sleep(0)
    accepted, waiting = committer.stats().pending_rows, committer.stats().waiting

    await committer.close(timeout=0)

    assert (accepted, waiting) == (2, 2)
    answers = await outcomes(*tasks)
    assert [type(answer) for answer in answers] == [
        Inserted,
        ReplyLost,
        StoreClosed,
        StoreClosed,
        StoreClosed,
    ]
    assert store.passes == [[insert("first")], [insert("a")]]


async def test_at_the_end_what_nobody_waits_for_is_not_sent_to_a_store_that_is_away_again() -> None:
    store = Scripted(*[StoreUnavailable("s", "away")] * 100)
    store.hold()
    committer = Committer(store, clock=FakeClock(), sleep=lambda _: asyncio.sleep(0))
    left = asyncio.create_task(committer.submit(Claim(worker="w", nonce="n")))
    await store.entered.wait()
    left.cancel()
    await asyncio.wait([left])
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    store.let_go()

    await asyncio.wait_for(closing, 10)

    assert len(store.passes) == 1


async def test_a_second_close_may_be_less_patient() -> None:
    store = Watched()
    committer = Committer(store)
    tasks = await behind(committer, store, insert("a"))
    patient = asyncio.create_task(committer.close())
    await asyncio.sleep(0)

    await committer.close(timeout=0)
    await patient

    assert [type(answer) for answer in await outcomes(*tasks)] == [ReplyLost, StoreClosed]


@pytest.mark.parametrize(
    ("error", "told"), [(StoreUnavailable("s", "away"), StoreClosed), (ReplyLost("s", "gone"), ReplyLost)]
)
async def test_closing_does_not_wait_for_the_end_of_a_pause(
    error: ErrandryError, told: type[ErrandryError]
) -> None:
    asleep = asyncio.Event()

    async def sleep(pause: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    committer = Committer(Scripted(error), clock=FakeClock(), sleep=sleep)
    task = asyncio.create_task(committer.submit(insert("a")))
    await asleep.wait()

    await committer.close(timeout=0)

    assert [type(answer) for answer in await outcomes(task)] == [told]


async def test_if_its_loop_cancels_everything_everybody_is_told() -> None:
    store = Watched()
    committer = Committer(store)
    tasks = await behind(committer, store, insert("a"))
    [work] = asyncio.all_tasks() - {*tasks, asyncio.current_task()}

    work.cancel()

    assert [type(answer) for answer in await outcomes(*tasks)] == [ReplyLost, StoreClosed]
    with pytest.raises(StoreClosed):
        await committer.submit(insert("b"))


async def test_if_its_work_is_canceled_before_it_began_everybody_is_told() -> None:
    store = Watched()
    committer = Committer(store)
    task = asyncio.create_task(committer.submit(insert("a")))
    for _ in range(3):  # submitted, handed in, begun
        await asyncio.sleep(0)
    [work] = asyncio.all_tasks() - {task, asyncio.current_task()}

    work.cancel()

    assert [type(answer) for answer in await outcomes(task)] == [StoreClosed]
    assert store.passes == []


async def test_if_it_fails_itself_everybody_is_told_why() -> None:
    class Broken(FakeClock):
        def monotonic(self) -> float:
            raise OSError("no clock")

    committer = Committer(Watched(), clock=Broken())

    with pytest.raises(StoreClosed) as caught:
        await committer.submit(insert("a"))

    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StoreClosed):
        await committer.submit(insert("b"))


async def test_what_is_handed_in_when_it_is_over_is_refused() -> None:
    committer = Committer(Watched())
    task = asyncio.create_task(committer.submit(insert("a")))
    await asyncio.sleep(0)  # submitted, to be handed in at the end of this iteration

    committer.fail(SchemaTooNew("s", "v9"))

    assert [type(answer) for answer in await outcomes(task)] == [SchemaTooNew]


def test_a_committer_whose_loop_was_closed_refuses() -> None:
    async def make() -> Committer:
        return Committer(Watched())

    committer = asyncio.run(make())

    with pytest.raises(StoreClosed):
        committer.submit_sync(insert("a"))
    with pytest.raises(StoreClosed):
        asyncio.run(committer.submit(insert("a")))


async def test_waiting_on_its_own_thread_is_refused() -> None:
    committer = Committer(Watched())

    with pytest.raises(RuntimeError, match="await submit"):
        committer.submit_sync(insert("a"))


# Statistics and limits.


async def test_statistics_tell_whether_it_moves() -> None:
    store, clock = Watched(), FakeClock()
    committer = Committer(store, WriteLimits(pending_rows=3), clock)
    fresh = committer.stats()
    tasks = await behind(committer, store, insert("a"), insert("b", "c"), insert("d"))
    busy = committer.stats()
    store.let_go()
    await asyncio.gather(*tasks)
    clock.advance(5)
    after = committer.stats()

    assert (fresh.age, fresh.passes) == (None, 0)
    assert (busy.age, busy.pending_rows, busy.waiting) == (None, 1, 3)
    assert (after.age, after.passes, after.commands, after.largest) == (5, 3, 4, 2)
    assert (after.pending_rows, after.waiting) == (0, 0)


async def test_a_pass_that_failed_is_no_progress() -> None:
    committer = Committer(Scripted(StoreFull("s", "full")), clock=FakeClock())

    await outcomes(committer.submit(insert("a")))

    assert (committer.stats().age, committer.stats().passes) == (None, 0)


@pytest.mark.parametrize(
    "limits", [{"pass_rows": 0}, {"pass_bytes": -1}, {"pending_rows": 1.5}, {"give_up_after": float("nan")}]
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(limits))):
        WriteLimits(**limits)


# Everything at once.

names = st.sampled_from("abcd")
commands = st.one_of(
    st.builds(insert, names),
    st.lists(names, max_size=4, unique=True).filter(bool).map(lambda ids: insert(*ids)),
    st.builds(settle, names),
    st.lists(names, max_size=5).map(lambda ids: renew(*ids)),
    st.lists(names, min_size=1, max_size=3).map(lambda ids: CancelJobs(ids=tuple(ids))),
    st.builds(claim, names, st.integers(1, 4)),
    st.just(Upkeep()),
)


class Noting(MemoryStore):
    """Answers each command with its identity; sometimes away, sometimes losing the reply."""

    def __init__(self, moods: list[str], tracks: int) -> None:
        super().__init__()
        self.tracks = tracks
        self.moods = iter(moods)
        self.passes: list[list[Command]] = []

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        await asyncio.sleep(0)
        match next(self.moods, "well"):
            case "away":
                raise StoreUnavailable("s", "away")
            case "lost":
                raise ReplyLost("s", "gone")
        self.passes.append(list(commands))
        return [Inserted((str(id(command)),)) for command in commands]

    def track(self, command: Command) -> int:
        return RANK[type(command)] % self.tracks


def keys(command: Command) -> set[Any]:
    """What a command is about, said once more and differently."""
    match command:
        case Insert():
            return {job.id for job in command.jobs}
        case Settle():
            return {command.ref.job}
        case Renew():
            return {ref.job for ref in command.refs}
        case CancelJobs():
            return set(command.ids)
        case Claim():
            return {("worker", command.worker)}
        case _:
            return {type(command)}


@settings(deadline=None, max_examples=60)
@given(
    rounds=st.lists(st.lists(commands, max_size=12), max_size=4),
    pass_rows=st.integers(1, 6),
    pending_rows=st.integers(1, 8) | st.just(10_000),
    moods=st.lists(st.sampled_from(["well", "away", "lost"]), max_size=20),
    tracks=st.sampled_from([1, 3]),
)
def test_any_commands_keep_the_rules(
    rounds: list[list[Command]], pass_rows: int, pending_rows: int, moods: list[str], tracks: int
) -> None:
    limits = WriteLimits(pass_rows=pass_rows, pending_rows=pending_rows, give_up_after=1e9)
    store = Noting(moods, tracks)
    # Objects of their own, so that equal commands can be told apart.
    rounds = [[copy.copy(command) for command in one] for one in rounds]

    async def run() -> list[Answer]:
        clock = FakeClock()
        committer = Committer(store, limits, clock, Waited(clock))
        tasks = []
        for one in rounds:
            tasks += [asyncio.create_task(committer.submit(command)) for command in one]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())

    handed = [command for one in rounds for command in one]
    assert answers == [Inserted((str(id(one)),)) for one in handed]
    assert sorted(id(one) for each in store.passes for one in each) == sorted(map(id, handed))
    for each in store.passes:
        held = [key for command in each for key in keys(command)]
        assert len(held) == len(set(held))
        assert len(each) == 1 or sum(rows(command) for command in each) <= pass_rows
        assert [RANK[type(command)] for command in each] == sorted(RANK[type(command)] for command in each)
    if pending_rows == 10_000:  # room for all: nothing is accepted before anything else
        check_order(handed, store.passes)
    check_order([command for command in handed if isinstance(command, Settle | Renew)], store.passes)
    check_order([command for command in handed if not isinstance(command, Settle | Renew)], store.passes)


def check_order(handed: list[Command], passes: list[list[Command]]) -> None:
    """About each key: one pass after the other, in the order they were handed in."""
    place = {id(command): number for number, each in enumerate(passes) for command in each}
    for key in {key for command in handed for key in keys(command)}:
        places = [place[id(command)] for command in handed if key in keys(command)]
        assert places == sorted(set(places))


def rows(command: Command) -> int:
    return command.limit if isinstance(command, Claim) else max(1, len(keys(command)))


async def test_a_close_that_gives_up_does_not_send_again_what_something_went_along_with() -> None:
    store, along = Scripted(*[StoreUnavailable("scripted", "away")] * 1_000), Along()
    committer = Committer(store, WriteLimits(give_up_after=30.0))
    committer.join(along)
    submit = asyncio.create_task(committer.submit(insert("a")))
    await store.entered.wait()
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await committer.close(timeout=0)

    assert [type(one) for one in await outcomes(submit)] == [StoreClosed]
    assert len(store.passes) <= 2
