"""The committer: errors, retries of a pass or of one rejected command, lost replies."""

import asyncio
import traceback

import pytest

from errandry.core.answer import WRITTEN, Answer, Inserted, LossCause, Lost
from errandry.core.command import Command
from errandry.core.unique import UniqueKey
from errandry.errors import (
    CommandFailed,
    ErrandryError,
    QueueFull,
    ReplyLost,
    SchemaTooNew,
    StoreClosed,
    StoreFull,
    StoreUnavailable,
    UnknownJob,
)
from errandry.store.contract import RANK
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.committer import BACKOFF_MAX, FIRST_BACKOFF, Committer
from errandry.testing.clock import FakeClock
from tests.new_jobs import insert
from tests.store.engine.committer_kit import (
    REJECTED,
    FakeSleep,
    RecordingStore,
    ScriptedStore,
    claim,
    outcomes,
    settle,
)


async def test_an_error_is_raised_only_to_the_caller_of_its_command() -> None:
    store = ScriptedStore([WRITTEN, QueueFull("q", 3, 3), Lost(LossCause.EXPIRED)])
    committer = Committer(store)

    answers = await outcomes(*[committer.submit(settle(job_id)) for job_id in "abc"])

    assert answers[0] == WRITTEN
    assert isinstance(answers[1], QueueFull)
    assert (answers[1].queue, answers[1].bound) == ("q", 3)
    assert answers[2] == Lost(LossCause.EXPIRED)


async def test_two_callers_never_get_the_same_error_object() -> None:
    error = UnknownJob("x")
    committer = Committer(ScriptedStore([error, error]))

    first, second = await outcomes(committer.submit(settle("a")), committer.submit(settle("b")))

    assert isinstance(first, UnknownJob)
    assert isinstance(second, UnknownJob)
    assert len({id(first), id(second), id(error)}) == 3
    assert error.__traceback__ is None
    assert len(traceback.extract_tb(first.__traceback__)) == len(traceback.extract_tb(second.__traceback__))


async def test_after_a_lost_reply_the_same_pass_is_sent_again() -> None:
    store = RecordingStore()
    store.fail_after = [ReplyLost("memory", "gone"), ReplyLost("memory", "gone")]
    clock = FakeClock()
    committer = Committer(store, clock=clock, sleep=FakeSleep(clock))
    commands: list[Command] = [insert("b"), insert("a"), claim()]

    answers = await asyncio.gather(*[committer.submit(command) for command in commands])

    assert store.passes == [commands] * 3
    assert answers[:2] == [Inserted(("b",)), Inserted(("a",))]  # the first try has made them
    assert (await store.totals())["default"]["inserted"] == 2


async def test_an_unavailable_store_is_retried_with_growing_back_off() -> None:
    clock = FakeClock()
    fake_sleep = FakeSleep(clock)
    committer = Committer(ScriptedStore(*[StoreUnavailable("s", "away")] * 10), clock=clock, sleep=fake_sleep)

    assert await committer.submit(insert("a")) is WRITTEN

    expected = [min(FIRST_BACKOFF * 2**n, BACKOFF_MAX) for n in range(10)]
    factors = [sleep / wait for sleep, wait in zip(fake_sleep.sleeps, expected, strict=True)]
    assert all(0.5 <= factor <= 1.5 for factor in factors)
    assert len(set(factors)) > 1


@pytest.mark.parametrize("error", [ReplyLost("s", "gone"), StoreUnavailable("s", "away")])
async def test_after_give_up_after_every_caller_gets_the_error(error: ErrandryError) -> None:
    clock = FakeClock()
    began = clock.monotonic()
    fake_sleep = FakeSleep(clock)
    store = ScriptedStore(*[error] * 100)
    committer = Committer(store, WriteLimits(give_up_after=30), clock, fake_sleep)

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [type(error)] * 2
    assert 30 <= clock.monotonic() - began <= 30 + 1.5 * BACKOFF_MAX
    store.script.clear()
    assert await committer.submit(insert("c")) is WRITTEN


async def test_a_command_that_waited_behind_a_failing_pass_for_as_long_gets_one_attempt() -> None:
    clock = FakeClock()
    store = ScriptedStore(*[StoreUnavailable("s", "away")] * 100)
    committer = Committer(store, WriteLimits(pass_rows=1), clock, FakeSleep(clock))

    answers = await outcomes(*[committer.submit(insert(job_id)) for job_id in "abc"])

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert store.passes[-2:] == [[insert("b")], [insert("c")]]
    assert store.passes[-3] == [insert("a")]


async def test_a_single_rejected_command_is_retried_in_a_later_pass() -> None:
    clock = FakeClock()
    store = ScriptedStore([WRITTEN, REJECTED, WRITTEN], [REJECTED])
    committer = Committer(store, clock=clock, sleep=FakeSleep(clock))

    answers = await outcomes(*[committer.submit(insert(job_id)) for job_id in "abc"])

    assert answers == [WRITTEN] * 3
    assert store.passes == [[insert("a"), insert("b"), insert("c")], [insert("b")], [insert("b")]]


async def test_only_commands_about_the_same_job_wait_for_a_rejected_command() -> None:
    pause = asyncio.Event()

    async def sleep(_: float) -> None:
        await pause.wait()

    store = ScriptedStore([REJECTED])
    committer = Committer(store, sleep=sleep)
    first, second = [asyncio.create_task(committer.submit(insert("a"))) for _ in range(2)]
    await store.entered.wait()

    assert await committer.submit(insert("b")) is WRITTEN
    assert not first.done()
    pause.set()
    assert await outcomes(first, second) == [WRITTEN] * 2
    assert store.passes == [[insert(job_id)] for job_id in "abaa"]


async def test_a_rejected_command_fails_after_give_up_after_and_a_workers_command_at_once() -> None:
    clock = FakeClock()
    began = clock.monotonic()
    store = ScriptedStore([REJECTED, REJECTED], *[[REJECTED]] * 1_000)
    committer = Committer(store, WriteLimits(give_up_after=30), clock, FakeSleep(clock))
    times: list[float] = []

    async def submitted(command: Command) -> None:
        with pytest.raises(StoreUnavailable):
            await committer.submit(command)
        times.append(clock.monotonic() - began)

    await asyncio.gather(submitted(insert("a")), submitted(settle("b")))

    assert times[0] < 1.0
    assert 30 <= times[1] < 31


async def test_a_command_in_doubt_stays_so_while_its_repeats_are_rejected() -> None:
    clock = FakeClock()
    store = ScriptedStore(ReplyLost("s", "gone"), [REJECTED], *[[REJECTED]] * 1_000)
    committer = Committer(store, clock=clock, sleep=FakeSleep(clock))

    with pytest.raises(ReplyLost):
        await committer.submit(insert("a"))
    store.script = [ReplyLost("s", "gone"), [REJECTED], [REJECTED]]
    assert await committer.submit(insert("a")) is WRITTEN


@pytest.mark.parametrize("command", [insert("b"), settle("b"), claim()], ids=["insert", "settle", "claim"])
async def test_a_single_command_whose_reply_was_lost_is_sent_again(command: Command) -> None:
    """A store that writes the commands of a pass one by one may lose the reply to one of them."""
    clock = FakeClock()
    lost: Answer = ReplyLost("s", "gone")
    passes = [insert("a"), command, insert("c")]
    passes.sort(key=lambda sent: RANK[type(sent)])
    store = ScriptedStore([lost if sent is command else WRITTEN for sent in passes], [lost])
    committer = Committer(store, clock=clock, sleep=FakeSleep(clock))

    answers = await outcomes(*[committer.submit(sent) for sent in passes])

    assert answers == [WRITTEN] * 3
    assert store.passes == [passes, [command], [command]]


async def test_a_single_command_in_doubt_is_raised_as_the_lost_reply_in_the_end() -> None:
    clock = FakeClock()
    began = clock.monotonic()
    store = ScriptedStore([WRITTEN, ReplyLost("s", "gone")], *[StoreUnavailable("s", "away")] * 1_000)
    committer = Committer(store, WriteLimits(give_up_after=30), clock, FakeSleep(clock))

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [type(WRITTEN), ReplyLost]
    assert clock.monotonic() - began >= 30


async def test_new_jobs_that_another_insert_made_existed_even_after_a_lost_reply() -> None:
    store = RecordingStore()
    await store.commit([insert("holder", unique=UniqueKey("key"))])
    store.fail_after = [ReplyLost("memory", "gone")]
    clock = FakeClock()
    committer = Committer(store, clock=clock, sleep=FakeSleep(clock))

    answer = await committer.submit(insert("new", unique=UniqueKey("key")))

    assert answer == Inserted(("holder",), frozenset({"holder"}))


@pytest.mark.parametrize(
    "error", [StoreFull("s", "full"), StoreClosed("s", "closed"), SchemaTooNew("s", "v9")]
)
async def test_an_error_that_a_retry_cannot_fix_is_raised_at_once(error: ErrandryError) -> None:
    clock = FakeClock()
    fake_sleep = FakeSleep(clock)
    committer = Committer(ScriptedStore(error), clock=clock, sleep=fake_sleep)

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [type(error)] * 2
    assert fake_sleep.sleeps == []
    assert await committer.submit(insert("c")) is WRITTEN


@pytest.mark.parametrize("after", [StoreFull("s", "full"), KeyError("bug")])
async def test_after_a_lost_reply_a_later_error_is_raised_as_the_lost_reply(after: Exception) -> None:
    clock = FakeClock()
    committer = Committer(ScriptedStore(ReplyLost("s", "gone"), after), clock=clock, sleep=FakeSleep(clock))

    with pytest.raises(ReplyLost) as caught:
        await committer.submit(insert("a"))

    assert caught.value.__cause__ is after


async def test_an_unexpected_error_in_the_store_fails_only_its_pass() -> None:
    bug = KeyError("oops")
    committer = Committer(ScriptedStore(bug))

    answers = await outcomes(committer.submit(insert("a")), committer.submit(settle("b")))

    assert [type(answer) for answer in answers] == [CommandFailed, CommandFailed]
    assert [str(answer) for answer in answers] == [
        "Insert could not be written: KeyError: 'oops'",
        "Settle could not be written: KeyError: 'oops'",
    ]
    assert [getattr(answer, "__cause__", None) for answer in answers] == [bug, bug]
    assert await committer.submit(insert("c")) is WRITTEN


async def test_the_wrong_number_of_answers_fails_the_whole_pass() -> None:
    committer = Committer(ScriptedStore([WRITTEN]))

    answers = await outcomes(committer.submit(insert("a")), committer.submit(insert("b")))

    assert [type(answer) for answer in answers] == [CommandFailed, CommandFailed]
    assert "1 answers to 2 commands" in str(answers[0])


async def test_a_cancellation_inside_the_store_is_a_lost_reply_and_the_next_pass_is_written() -> None:
    committer = Committer(ScriptedStore(asyncio.CancelledError()))

    with pytest.raises(ReplyLost):
        await committer.submit(insert("a"))

    assert await committer.submit(insert("b")) is WRITTEN
