"""The memory store and another one, asked the same and compared.

The other is there twice, as two objects on the same data, as two processes would have it: whoever reads next
need not be who wrote. Everything runs on a loop of its own, one call after the other.
"""

import asyncio
from asyncio import gather
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from errandry.clock import Clock
from errandry.core.answer import Answer, Moved
from errandry.core.command import Command
from errandry.core.flow import EdgeRecord
from errandry.core.gate import GateKind, GateRecord, PauseInfo
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.core.schedule import ScheduleRecord
from errandry.core.step import Step
from errandry.errors import ErrandryError
from errandry.store.contract import EventEntry, EventPage, QueueInfo, RecordPage, Store, StoreLimits
from errandry.store.memory.driver import MemoryStore

T = TypeVar("T")
Cursors = tuple[str | None, str | None]
"""The memory store's, and the other's for the same place."""

PAGE = 10_000
READS = (
    "list",
    "counts",
    "totals",
    "queues",
    "paused",
    "rules",
    "schedules",
    "workers",
    "due_in",
    "head",
    "held",
)


class Look(NamedTuple):
    """What the memory store shows at one moment."""

    jobs: dict[str, JobRecord]
    news: tuple[EventEntry, ...]
    counts: dict[str, dict[str, int]]
    totals: dict[str, dict[str, int]]
    queues: list[QueueInfo]
    paused: dict[GateKind, dict[str, PauseInfo]]
    rules: list[GateRecord]
    schedules: list[ScheduleRecord]
    links: dict[str, list[EdgeRecord]]
    steps: dict[str, list[Step]]


class Pair:
    def __init__(
        self, make: Callable[[], Store], clock: Clock, bounds: StoreLimits, ids: list[str], workers: list[str]
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.make, self.ids = make, ids
        self.reads: list[list[Any]] = [
            *([read] for read in READS),
            *(["cancels", worker] for worker in workers),
        ]
        self.reads += [[read, one] for read in ("children", "steps") for one in ids[::4]]
        self.reads.append(["stats", 0.0, 1e11])
        self.model = MemoryStore(clock, bounds)
        self.stores = [make(), make()]
        self.turns = Random(1)
        self.told: tuple[str, str] = "", ""
        self.names = "", ""

    @property
    def now(self) -> float:
        return self.model.clock.now()

    @property
    def either(self) -> Store:
        return self.turns.choice(self.stores)

    def open(self) -> None:
        for store in (self.model, *self.stores):
            self.wait(store.open())
        self.told = self.both("head")
        self.names = self.told[0].split("-")[1], self.told[1].split("-")[1]

    def close(self) -> None:
        try:
            for store in self.stores:
                self.wait(store.close())
        finally:
            self.wait(self.loop.shutdown_default_executor())
            self.loop.close()

    def reopen(self, which: int) -> None:
        self.wait(self.stores[which].close())
        self.stores[which] = self.make()
        self.wait(self.stores[which].open())

    def commit(self, commands: Sequence[Command]) -> list[Answer]:
        expected = finish(self.model.commit(commands))
        answers = self.wait(self.either.commit(commands))
        for command, mine, other in zip(commands, expected, answers, strict=True):
            self.same(f"the answer to {command}", _comparable(mine), _comparable(other))
        return expected

    def look(self) -> Look:
        """Compare every job, what is new, and two of the other reads: now these, now those."""
        model, reads = self.model, self.turns.sample(self.reads, 2)
        ids = [*self.ids, *(job.id for job in finish(model.list(limit=PAGE)).jobs if "@" in job.id)]
        jobs, news = finish(model.get(ids)), finish(model.events(self.told[0], PAGE))
        other_jobs, other_news, *others = self.wait(self._asked(self.either, ids, reads))
        self.told = news.cursor, other_news.cursor
        assert jobs == other_jobs, _difference(ids, jobs, other_jobs)
        self.same("news", news, other_news)
        for (read, *arguments), other in zip(reads, others, strict=True):
            self.same(read, finish(getattr(model, read)(*arguments)), other)
        steps = {job.id: finish(model.steps(job.id)) for job in jobs if job is not None and job.steps}
        if steps:
            stepped = self.turns.choice(sorted(steps))
            self.same(f"steps of {stepped}", steps[stepped], self.wait(self.either.steps(stepped)))
        return Look(
            {job.id: job for job in jobs if job is not None},
            news.entries,
            finish(model.counts()),
            finish(model.totals()),
            finish(model.queues()),
            finish(model.paused()),
            finish(model.rules()),
            finish(model.schedules()),
            {job.id: finish(model.children(job.id)) for job in jobs if job is not None and job.children},
            steps,
        )

    def look_at_the_time(self) -> None:
        """For all at once: how slow a store's clock goes after a step back depends on when it looked last."""
        self.wait(_all(store.due_in() for store in self.stores))

    def get(self, ids: list[str]) -> None:
        self.same(f"jobs {ids}", *self.both("get", ids))

    def page_through(self, query: Query, limit: int) -> None:
        cursors: Cursors = None, None
        while True:
            mine = finish(self.model.list(query, cursors[0], limit))
            other = self.wait(self.either.list(query, cursors[1], limit))
            self.same(f"jobs that match {query}", mine, other)
            if mine.cursor is None:
                break
            cursors = mine.cursor, other.cursor

    def events(self, after: Cursors, limit: int) -> Cursors:
        """Compare what came `after`, and say where it ended."""
        mine = finish(self.model.events(after[0], limit))
        other = self.wait(self.either.events(after[1], limit))
        self.same(f"events after {after}", mine, other)
        return mine.cursor, other.cursor

    def same(self, what: str, mine: object, other: object) -> None:
        """Equal, but for the names of the stores that cursors carry."""
        expected, got = self._plain(mine), self._plain(other)
        assert expected == got, f"{what}: expected\n{expected}\ngot\n{got}"

    def both(self, read: str, *arguments: Any) -> tuple[Any, Any]:
        mine = finish(getattr(self.model, read)(*arguments))
        return mine, self.wait(getattr(self.either, read)(*arguments))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    async def _asked(self, store: Store, ids: Sequence[str], reads: Sequence[Sequence[str]]) -> Any:
        """Asked together: a store that reads on another thread is waited for once."""
        others = (getattr(store, read)(*arguments) for read, *arguments in reads)
        return await gather(store.get(ids), store.events(self.told[1], PAGE), *others)

    def _plain(self, value: object) -> object:
        match value:
            case str():
                return value.replace(self.names[0], "store").replace(self.names[1], "store")
            case RecordPage(jobs=jobs, cursor=cursor):
                return jobs, self._plain(cursor)
            case EventPage(entries=entries, cursor=cursor, missed=missed):
                return [(self._plain(e.cursor), e.at, e.event) for e in entries], self._plain(cursor), missed
            case tuple():
                return [self._plain(one) for one in value]
            case _:
                return value


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the memory store answers: it never waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    raise AssertionError("the memory store waits")


async def _all(coroutines: Any) -> None:
    await gather(*coroutines)


def _comparable(answer: object) -> object:
    """Errors by type and text."""
    if isinstance(answer, ErrandryError):
        return type(answer).__name__, str(answer)
    if isinstance(answer, Moved):
        refused = [(job, _comparable(error)) for job, error in answer.refused]
        return answer.moved, answer.already, refused, answer.below
    return answer


def _difference(ids: Sequence[str], mine: Sequence[object], other: Sequence[object]) -> str:
    pairs = zip(ids, mine, other, strict=True)
    return "\n".join(f"{one}: expected\n{job}\ngot\n{got}" for one, job, got in pairs if job != got)
