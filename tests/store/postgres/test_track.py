"""A store with several tracks: passes beside each other, and still one order for what is about one job."""

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
from errandry.core.job import NewJob
from errandry.core.query import Query
from errandry.errors import ErrandryError, ReplyLost, StoreClosed
from errandry.store.engine.committer import Committer
from errandry.store.memory.driver import MemoryStore

SETTLES, INSERTS, BULK = range(3)


class Tracked(MemoryStore):
    """Three tracks, each of which can be held up; it keeps the passes it was sent."""

    tracks = 3

    def __init__(self) -> None:
        super().__init__()
        self.passes: dict[int, list[list[Command]]] = defaultdict(list)
        self.doors = [asyncio.Event() for _ in range(3)]
        for gate in self.doors:
            gate.set()
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


def insert(*ids: str) -> Insert:
    return Insert(tuple(NewJob(id=one, task="task", payload="{}") for one in ids))


def settle(job: str) -> Settle:
    return Settle(Ref(job, 1), CompleteOutcome())


@pytest.fixture
async def store() -> Tracked:
    return Tracked()


async def turns(count: int = 10) -> None:
    """Let everybody do what they can do without being let through."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_pass_that_takes_long_does_not_hold_up_those_of_other_tracks(store: Tracked) -> None:
    committer = Committer(store)
    store.doors[BULK].clear()
    store.doors[INSERTS].clear()
    slow = [asyncio.create_task(committer.submit(one)) for one in (Upkeep(), insert("a"))]
    await turns()

    assert await committer.submit(settle("b")) == WRITTEN
    assert await committer.submit(settle("c")) == WRITTEN

    assert not any(task.done() for task in slow)
    store.doors[BULK].set()
    store.doors[INSERTS].set()
    assert await asyncio.gather(*slow) == [WRITTEN, WRITTEN]
    await committer.close()


async def test_what_comes_while_all_tracks_are_at_work_is_written_after_them(store: Tracked) -> None:
    committer = Committer(store)
    for gate in store.doors:
        gate.clear()
    first = [asyncio.create_task(committer.submit(one)) for one in (Upkeep(), insert("a"), settle("b"))]
    await turns()
    second = [asyncio.create_task(committer.submit(one)) for one in (settle("c"), settle("d"), insert("e"))]
    await turns()
    for gate in store.doors:
        gate.set()

    assert await asyncio.gather(*first, *second) == [WRITTEN] * 6
    assert store.passes[SETTLES] == [[settle("b")], [settle("c"), settle("d")]]
    await committer.close()


async def test_commands_about_one_job_keep_their_order_across_tracks(store: Tracked) -> None:
    committer = Committer(store)
    store.doors[SETTLES].clear()
    commands = (settle("a"), CancelJobs(ids=("a",)), settle("a"))
    tasks = [asyncio.create_task(committer.submit(command)) for command in commands]
    await turns()

    assert (len(store.passes[SETTLES]), len(store.passes[INSERTS])) == (1, 0)

    store.doors[INSERTS].clear()
    store.doors[SETTLES].set()
    await turns()
    assert (len(store.passes[SETTLES]), len(store.passes[INSERTS])) == (1, 1)

    store.doors[INSERTS].set()
    await asyncio.gather(*tasks)
    assert (len(store.passes[SETTLES]), len(store.passes[INSERTS])) == (2, 1)
    await committer.close()


async def test_claims_go_along_but_not_with_what_may_take_long(store: Tracked) -> None:
    committer = Committer(store)
    asked: list[int] = []

    def companion() -> list[tuple[Claim, asyncio.Future[Answer]]]:
        asked.append(1)
        return [(Claim(worker="w", nonce=str(len(asked))), asyncio.get_running_loop().create_future())]

    committer.join(companion)
    for command in (settle("a"), insert("b"), Upkeep(), CancelJobs(query=Query())):
        await committer.submit(command)

    kinds = {
        track: [[type(one) for one in each] for each in passes] for track, passes in store.passes.items()
    }
    assert kinds == {SETTLES: [[Settle, Claim]], INSERTS: [[Insert, Claim]], BULK: [[Upkeep], [CancelJobs]]}
    await committer.close()


async def test_a_close_waits_for_every_track(store: Tracked) -> None:
    committer = Committer(store)
    store.doors[BULK].clear()
    tasks = [asyncio.create_task(committer.submit(one)) for one in (Upkeep(), insert("a"), settle("b"))]
    await turns()
    closing = asyncio.create_task(committer.close())
    await turns()

    assert not closing.done()

    store.doors[BULK].set()
    await closing
    assert await asyncio.gather(*tasks) == [WRITTEN] * 3


async def test_a_close_that_gives_up_tells_everybody_what_is_known(store: Tracked) -> None:
    committer = Committer(store)
    for gate in store.doors:
        gate.clear()
    commands = (Upkeep(), insert("a"), settle("b"), settle("b"))
    tasks = [asyncio.create_task(committer.submit(one)) for one in commands]
    await turns()

    await committer.close(timeout=0)

    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ReplyLost, ReplyLost, ReplyLost, StoreClosed]


async def test_an_error_on_one_track_is_nobody_elses(store: Tracked) -> None:
    committer = Committer(store)
    store.doors[BULK].clear()
    slow = asyncio.create_task(committer.submit(Upkeep()))
    await turns()
    store.error = ValueError("broken")
    with pytest.raises(ErrandryError, match="broken"):
        await committer.submit(Beat(worker="w"))
    store.error = None

    store.doors[BULK].set()
    assert await slow == WRITTEN
    assert await committer.submit(Note(Ref("a", 1))) == WRITTEN
    await committer.close()
