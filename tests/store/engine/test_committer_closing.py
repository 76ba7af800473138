"""The committer: closing, timeouts of a close, and a committer whose loop or writer fails."""

import asyncio

import pytest

from errandry.core.answer import Inserted
from errandry.core.command import Claim
from errandry.errors import ErrandryError, ReplyLost, SchemaTooNew, StoreClosed, StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.committer import Committer
from errandry.testing.clock import FakeClock
from tests.new_jobs import insert
from tests.store.engine.committer_kit import REJECTED, RecordingStore, ScriptedStore, outcomes, submit_behind


async def test_a_close_that_times_out_answers_a_rejected_command_that_waits_for_its_retry() -> None:
    async def sleep(_: float) -> None:
        await asyncio.Event().wait()

    store = ScriptedStore(*[[REJECTED]] * 10)
    committer = Committer(store, sleep=sleep)
    waiting = asyncio.create_task(committer.submit(insert("a")))
    await store.entered.wait()
    await asyncio.sleep(0)

    await committer.close(timeout=0)

    assert [type(answer) for answer in await outcomes(waiting)] == [StoreUnavailable]
    assert committer.stats().pending_rows == 0


async def test_closing_writes_all_commands_even_those_that_wait_for_room() -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pass_rows=1, pending_rows=1))
    tasks = await submit_behind(committer, store, *[insert(str(n)) for n in range(5)])
    tasks.append(asyncio.create_task(committer.submit(insert("last"))))
    await asyncio.sleep(0)

    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await committer.submit(insert("late"))
    store.release()
    await closing

    assert [type(answer) for answer in await outcomes(*tasks)] == [Inserted] * 7
    assert len(store.passes) == 7
    with pytest.raises(StoreClosed):
        committer.submit_sync(insert("late"))


async def test_closing_writes_a_command_submitted_just_before() -> None:
    committer = Committer(RecordingStore())
    task = asyncio.create_task(committer.submit(insert("a")))
    await asyncio.sleep(0)

    await committer.close()

    assert await task == Inserted(("a",))


async def test_closing_an_idle_or_closed_committer_does_nothing() -> None:
    committer = Committer(RecordingStore())

    await committer.close()
    await committer.close(timeout=0)

    with pytest.raises(StoreClosed):
        await committer.submit(insert("a"))


async def test_a_close_that_times_out_refuses_commands_in_every_state() -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pass_rows=1, pending_rows=2))
    tasks = await submit_behind(committer, store, *[insert(job_id) for job_id in "abc"])
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


async def test_a_closing_committer_does_not_retry_commands_whose_callers_have_gone() -> None:
    store = ScriptedStore(*[StoreUnavailable("s", "away")] * 100)
    store.block()
    committer = Committer(store, clock=FakeClock(), sleep=lambda _: asyncio.sleep(0))
    abandoned = asyncio.create_task(committer.submit(Claim(worker="w", nonce="n")))
    await store.entered.wait()
    abandoned.cancel()
    await asyncio.wait([abandoned])
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    store.release()

    await asyncio.wait_for(closing, 10)

    assert len(store.passes) == 1


async def test_a_second_close_may_have_a_shorter_timeout() -> None:
    store = RecordingStore()
    committer = Committer(store)
    tasks = await submit_behind(committer, store, insert("a"))
    first_close = asyncio.create_task(committer.close())
    await asyncio.sleep(0)

    await committer.close(timeout=0)
    await first_close

    assert [type(answer) for answer in await outcomes(*tasks)] == [ReplyLost, StoreClosed]


@pytest.mark.parametrize(
    ("error", "answer_type"),
    [(StoreUnavailable("s", "away"), StoreClosed), (ReplyLost("s", "gone"), ReplyLost)],
)
async def test_a_close_that_times_out_does_not_wait_for_the_end_of_a_back_off(
    error: ErrandryError, answer_type: type[ErrandryError]
) -> None:
    asleep = asyncio.Event()

    async def sleep(pause: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    committer = Committer(ScriptedStore(error), clock=FakeClock(), sleep=sleep)
    task = asyncio.create_task(committer.submit(insert("a")))
    await asleep.wait()

    await committer.close(timeout=0)

    assert [type(answer) for answer in await outcomes(task)] == [answer_type]


async def test_if_its_loop_cancels_all_tasks_every_caller_gets_an_error() -> None:
    store = RecordingStore()
    committer = Committer(store)
    tasks = await submit_behind(committer, store, insert("a"))
    [writer] = asyncio.all_tasks() - {*tasks, asyncio.current_task()}

    writer.cancel()

    assert [type(answer) for answer in await outcomes(*tasks)] == [ReplyLost, StoreClosed]
    with pytest.raises(StoreClosed):
        await committer.submit(insert("b"))


async def test_if_its_writer_is_canceled_before_it_starts_every_caller_gets_an_error() -> None:
    store = RecordingStore()
    committer = Committer(store)
    task = asyncio.create_task(committer.submit(insert("a")))
    for _ in range(3):  # submitted, handed in, begun
        await asyncio.sleep(0)
    [writer] = asyncio.all_tasks() - {task, asyncio.current_task()}

    writer.cancel()

    assert [type(answer) for answer in await outcomes(task)] == [StoreClosed]
    assert store.passes == []


async def test_if_the_committer_itself_fails_every_caller_gets_the_cause() -> None:
    class Broken(FakeClock):
        def monotonic(self) -> float:
            raise OSError("no clock")

    committer = Committer(RecordingStore(), clock=Broken())

    with pytest.raises(StoreClosed) as caught:
        await committer.submit(insert("a"))

    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StoreClosed):
        await committer.submit(insert("b"))


async def test_a_command_handed_in_after_a_failure_is_refused() -> None:
    committer = Committer(RecordingStore())
    task = asyncio.create_task(committer.submit(insert("a")))
    await asyncio.sleep(0)  # submitted, to be handed in at the end of this iteration

    committer.fail(SchemaTooNew("s", "v9"))

    assert [type(answer) for answer in await outcomes(task)] == [SchemaTooNew]


def test_a_committer_whose_loop_is_closed_refuses_commands() -> None:
    async def make() -> Committer:
        return Committer(RecordingStore())

    committer = asyncio.run(make())

    with pytest.raises(StoreClosed):
        committer.submit_sync(insert("a"))
    with pytest.raises(StoreClosed):
        asyncio.run(committer.submit(insert("a")))


async def test_submit_sync_on_the_committers_own_thread_is_refused() -> None:
    committer = Committer(RecordingStore())

    with pytest.raises(RuntimeError, match="await submit"):
        committer.submit_sync(insert("a"))
