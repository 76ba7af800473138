"""The committer: limits of pending commands, canceled submits, statistics."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from errandry.core.answer import WRITTEN, Answer, Inserted
from errandry.core.command import Command
from errandry.errors import InvalidValue, StoreFull
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.committer import Committer
from errandry.testing.clock import FakeClock
from tests.new_jobs import insert
from tests.store.engine.committer_kit import (
    RecordingStore,
    ScriptedStore,
    outcomes,
    renew,
    settle,
    submit_behind,
)


async def test_commands_over_the_pending_limit_wait_and_are_accepted_in_order() -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pass_rows=2, pending_rows=3))
    inserts = [insert(str(n)) for n in range(6)]
    tasks = await submit_behind(committer, store, *inserts)

    waiting = committer.stats().waiting
    store.release()
    await asyncio.gather(*tasks)

    assert [command for commands in store.passes for command in commands] == [insert("first"), *inserts]
    assert (waiting, committer.stats().waiting) == (6, 0)


@pytest.mark.parametrize(
    "limits", [WriteLimits(pending_rows=2), WriteLimits(pending_bytes=4)], ids=["rows", "bytes"]
)
async def test_workers_commands_are_accepted_over_the_pending_limit(limits: WriteLimits) -> None:
    store = RecordingStore()
    committer = Committer(store, limits)
    first = insert("1", "2", payload="12")
    tasks = await submit_behind(
        committer, store, insert("a"), insert("b"), renew("x"), settle("y"), first=first
    )

    store.release()
    await outcomes(*tasks)

    assert store.passes[1] == [renew("x"), settle("y"), insert("a"), insert("b")]


@pytest.mark.parametrize("bound", [{"pending_rows": 3}, {"pending_bytes": 12}], ids=["rows", "bytes"])
async def test_the_pending_commands_never_exceed_their_limit(bound: dict[str, Any]) -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pass_rows=1, **bound))
    tasks = await submit_behind(committer, store, *[insert(str(n), payload="1234") for n in range(20)])
    seen = []

    async def commit(commands: Sequence[Command]) -> list[Answer]:
        seen.append(committer.stats().pending_rows)
        return [WRITTEN] * len(commands)

    store.commit = commit  # type: ignore[method-assign]
    store.release()
    await outcomes(*tasks)

    assert len(seen) == 20
    assert max(seen) == 3


async def test_a_submit_canceled_while_it_waits_for_room_is_not_written() -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pending_rows=1))
    tasks = await submit_behind(committer, store, insert("a"), insert("b"), insert("c"))
    await store.next_pass()

    tasks[2].cancel()
    await outcomes(tasks[2])
    await asyncio.sleep(0)
    waiting = committer.stats().waiting
    store.release()
    await outcomes(*tasks)

    assert waiting == 1
    assert store.passes == [[insert("first")], [insert("a")], [insert("c")]]


async def test_a_submit_canceled_at_the_moment_there_is_room_is_not_written() -> None:
    store = RecordingStore()
    committer = Committer(store, WriteLimits(pending_rows=1))
    tasks = await submit_behind(committer, store, insert("a"), insert("b"))
    await store.next_pass()

    store.release()
    tasks[2].cancel()
    await outcomes(*tasks)
    await committer.close()

    assert store.passes == [[insert("first")], [insert("a")]]


async def test_a_submit_canceled_before_it_is_accepted_is_not_written() -> None:
    store = RecordingStore()
    committer = Committer(store)
    tasks = await submit_behind(committer, store, insert("a"), insert("b"))

    tasks[1].cancel()
    await outcomes(tasks[1])
    store.release()
    await outcomes(*tasks)

    assert store.passes == [[insert("first")], [insert("b")]]


async def test_a_submit_canceled_after_it_was_accepted_is_written_and_other_commands_are_answered() -> None:
    store = RecordingStore()
    committer = Committer(store)
    tasks = await submit_behind(committer, store, insert("a"), insert("b"))
    await store.next_pass()

    tasks[1].cancel()
    await outcomes(tasks[1])
    store.release()

    assert await tasks[2] == Inserted(("b",))
    assert store.passes[1] == [insert("a"), insert("b")]


async def test_statistics_show_progress_and_pending_commands() -> None:
    store, clock = RecordingStore(), FakeClock()
    committer = Committer(store, WriteLimits(pending_rows=3), clock)
    fresh = committer.stats()
    tasks = await submit_behind(committer, store, insert("a"), insert("b", "c"), insert("d"))
    busy = committer.stats()
    store.release()
    await asyncio.gather(*tasks)
    clock.advance(5)
    after = committer.stats()

    assert (fresh.age, fresh.passes) == (None, 0)
    assert (busy.age, busy.pending_rows, busy.waiting) == (None, 1, 3)
    assert (after.age, after.passes, after.commands, after.largest) == (5, 3, 4, 2)
    assert (after.pending_rows, after.waiting) == (0, 0)


async def test_a_failed_pass_does_not_count_as_progress() -> None:
    committer = Committer(ScriptedStore(StoreFull("s", "full")), clock=FakeClock())

    await outcomes(committer.submit(insert("a")))

    assert (committer.stats().age, committer.stats().passes) == (None, 0)


@pytest.mark.parametrize(
    "limits", [{"pass_rows": 0}, {"pass_bytes": -1}, {"pending_rows": 1.5}, {"give_up_after": float("nan")}]
)
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(limits))):
        WriteLimits(**limits)


def test_a_command_is_not_retried_after_its_answer_may_be_deleted() -> None:
    with pytest.raises(InvalidValue, match="give_up_after=301: must be at most 300 seconds"):
        WriteLimits(give_up_after=301)
