"""A store with several tracks: passes run in parallel, and commands about one job keep their order."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from errandry.core.answer import WRITTEN, Answer, Claims
from errandry.core.command import (
    Beat,
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    Insert,
    Note,
    Ref,
    Renew,
    Settle,
    Upkeep,
)
from errandry.core.query import Query
from errandry.errors import ErrandryError, ReplyLost, StoreClosed
from errandry.store.engine.committer import Committer
from errandry.store.memory.driver import MemoryStore
from tests.new_jobs import insert

SETTLES, INSERTS, BULK = range(3)


class TrackedStore(MemoryStore):
    """A store with three tracks, each of which can be blocked. It records its passes."""

    tracks = 3

    def __init__(self) -> None:
        super().__init__()
        self.passes: dict[int, list[list[Command]]] = defaultdict(list)
        self.doors = [asyncio.Event() for _ in range(3)]
        for door in self.doors:
            door.set()
        self.error: Exception | None = None

    def track(self, command: Command) -> int:
        return SETTLES if isinstance(command, Settle | Renew) else BULK if is_bulk(command) else INSERTS

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        track = self.track(commands[0])
        self.passes[track].append(list(commands))
        await self.doors[track].wait()
        if self.error is not None:
            raise self.error
        return [Claims(()) if isinstance(command, Claim) else WRITTEN for command in commands]


def is_bulk(command: Command) -> bool:
    return isinstance(command, Upkeep) or (isinstance(command, CancelJobs) and command.query is not None)


def settle(job: str) -> Settle:
    return Settle(Ref(job, 1), CompleteOutcome())


@pytest.fixture
async def store() -> TrackedStore:
    return TrackedStore()


async def run_loop(count: int = 10) -> None:
    """Run the event loop until all tasks wait."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_long_pass_does_not_delay_passes_of_other_tracks(store: TrackedStore) -> None:
    committer = Committer(store)
    store.doors[BULK].clear()
    store.doors[INSERTS].clear()
    slow = [asyncio.create_task(committer.submit(command)) for command in (Upkeep(), insert("a"))]
    await run_loop()

    assert await committer.submit(settle("b")) == WRITTEN
    assert await committer.submit(settle("c")) == WRITTEN

    assert not any(task.done() for task in slow)
    store.doors[BULK].set()
    store.doors[INSERTS].set()
    assert await asyncio.gather(*slow) == [WRITTEN, WRITTEN]
    await committer.close()


async def test_commands_submitted_while_all_tracks_are_busy_are_written_afterwards(
    store: TrackedStore,
) -> None:
    committer = Committer(store)
    for door in store.doors:
        door.clear()
    first = [
        asyncio.create_task(committer.submit(command)) for command in (Upkeep(), insert("a"), settle("b"))
    ]
    await run_loop()
    second = [
        asyncio.create_task(committer.submit(command)) for command in (settle("c"), settle("d"), insert("e"))
    ]
    await run_loop()
    for door in store.doors:
        door.set()

    assert await asyncio.gather(*first, *second) == [WRITTEN] * 6
    assert store.passes[SETTLES] == [[settle("b")], [settle("c"), settle("d")]]
    await committer.close()


async def test_commands_about_one_job_keep_their_order_across_tracks(store: TrackedStore) -> None:
    committer = Committer(store)
    store.doors[SETTLES].clear()
    commands = (settle("a"), CancelJobs(ids=("a",)), settle("a"))
    tasks = [asyncio.create_task(committer.submit(command)) for command in commands]
    await run_loop()

    assert (len(store.passes[SETTLES]), len(store.passes[INSERTS])) == (1, 0)

    store.doors[INSERTS].clear()
    store.doors[SETTLES].set()
    await run_loop()
    assert (len(store.passes[SETTLES]), len(store.passes[INSERTS])) == (1, 1)

    store.doors[INSERTS].set()
    await asyncio.gather(*tasks)
    assert (len(store.passes[SETTLES]), len(store.passes[INSERTS])) == (2, 1)
    await committer.close()


async def test_claims_join_passes_except_on_the_bulk_track(store: TrackedStore) -> None:
    committer = Committer(store)
    calls: list[int] = []

    def companion() -> list[tuple[Claim, asyncio.Future[Answer]]]:
        calls.append(1)
        return [(Claim(worker="w", nonce=str(len(calls))), asyncio.get_running_loop().create_future())]

    committer.add_piggyback_claims(companion)
    for command in (settle("a"), insert("b"), Upkeep(), CancelJobs(query=Query())):
        await committer.submit(command)

    kinds = {
        track: [[type(command) for command in commands] for commands in passes]
        for track, passes in store.passes.items()
    }
    assert kinds == {SETTLES: [[Settle, Claim]], INSERTS: [[Insert, Claim]], BULK: [[Upkeep], [CancelJobs]]}
    await committer.close()


async def test_a_close_waits_for_every_track(store: TrackedStore) -> None:
    committer = Committer(store)
    store.doors[BULK].clear()
    tasks = [
        asyncio.create_task(committer.submit(command)) for command in (Upkeep(), insert("a"), settle("b"))
    ]
    await run_loop()
    closing = asyncio.create_task(committer.close())
    await run_loop()

    assert not closing.done()

    store.doors[BULK].set()
    await closing
    assert await asyncio.gather(*tasks) == [WRITTEN] * 3


async def test_a_close_that_gives_up_answers_every_command(store: TrackedStore) -> None:
    committer = Committer(store)
    for door in store.doors:
        door.clear()
    commands = (Upkeep(), insert("a"), settle("b"), settle("b"))
    tasks = [asyncio.create_task(committer.submit(command)) for command in commands]
    await run_loop()

    await committer.close(timeout=0)

    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ReplyLost, ReplyLost, ReplyLost, StoreClosed]


async def test_an_error_on_one_track_does_not_affect_others(store: TrackedStore) -> None:
    committer = Committer(store)
    store.doors[BULK].clear()
    slow = asyncio.create_task(committer.submit(Upkeep()))
    await run_loop()
    store.error = ValueError("broken")
    with pytest.raises(ErrandryError, match="broken"):
        await committer.submit(Beat(worker="w"))
    store.error = None

    store.doors[BULK].set()
    assert await slow == WRITTEN
    assert await committer.submit(Note(Ref("a", 1))) == WRITTEN
    await committer.close()
