"""Send the same commands and reads to the memory store and another store, and compare the answers.

The other store is opened twice, as by two processes: each call goes to one of the two objects at random.
Everything runs on an event loop of its own, one call after the other.
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
from errandry.core.gate import GateKind, GateRecord, PauseRecord
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.core.schedule import ScheduleRecord
from errandry.core.step import StepRecord
from errandry.errors import ErrandryError
from errandry.store.contract import EventEntry, EventPage, QueueRecord, RecordPage, Store, StoreLimits
from errandry.store.memory.driver import MemoryStore

T = TypeVar("T")
Cursors = tuple[str | None, str | None]
"""The cursor of the memory store, and the cursor of the other store for the same position."""

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
    "latest_cursor",
    "held",
)


class Look(NamedTuple):
    """The state of the memory store at one moment."""

    jobs: dict[str, JobRecord]
    new_events: tuple[EventEntry, ...]
    counts: dict[str, dict[str, int]]
    totals: dict[str, dict[str, int]]
    queues: list[QueueRecord]
    paused: dict[GateKind, dict[str, PauseRecord]]
    rules: list[GateRecord]
    schedules: list[ScheduleRecord]
    edges: dict[str, list[EdgeRecord]]
    steps: dict[str, list[StepRecord]]


class Pair:
    def __init__(
        self, make: Callable[[], Store], clock: Clock, limits: StoreLimits, ids: list[str], workers: list[str]
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.make, self.ids = make, ids
        self.reads: list[list[Any]] = [
            *([read] for read in READS),
            *(["cancels", worker] for worker in workers),
        ]
        self.reads += [[read, job_id] for read in ("children", "steps") for job_id in ids[::4]]
        self.reads.append(["stats", 0.0, 1e11])
        self.model = MemoryStore(clock, limits)
        self.stores = [make(), make()]
        self.random = Random(1)
        self.last_cursors: tuple[str, str] = "", ""
        self.store_names = "", ""

    @property
    def now(self) -> float:
        return self.model.clock.now()

    @property
    def random_store(self) -> Store:
        return self.random.choice(self.stores)

    def open(self) -> None:
        for store in (self.model, *self.stores):
            self.wait(store.open())
        self.last_cursors = self.both("latest_cursor")
        self.store_names = self.last_cursors[0].split("-")[1], self.last_cursors[1].split("-")[1]

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
        expected = run_now(self.model.commit(commands))
        answers = self.wait(self.random_store.commit(commands))
        for command, mine, other in zip(commands, expected, answers, strict=True):
            self.assert_same(f"the answer to {command}", _comparable(mine), _comparable(other))
        return expected

    def look(self) -> Look:
        """Compare every job, the new events, and two other reads at random; return the state."""
        model, reads = self.model, self.random.sample(self.reads, 2)
        ids = [*self.ids, *(job.id for job in run_now(model.list(limit=PAGE)).jobs if "@" in job.id)]
        jobs, new_events = run_now(model.get(ids)), run_now(model.events(self.last_cursors[0], PAGE))
        other_jobs, other_news, *others = self.wait(self._read_together(self.random_store, ids, reads))
        self.last_cursors = new_events.cursor, other_news.cursor
        assert jobs == other_jobs, _difference(ids, jobs, other_jobs)
        self.assert_same("new_events", new_events, other_news)
        for (read, *arguments), other in zip(reads, others, strict=True):
            self.assert_same(read, run_now(getattr(model, read)(*arguments)), other)
        steps = {job.id: run_now(model.steps(job.id)) for job in jobs if job is not None and job.steps}
        if steps:
            stepped = self.random.choice(sorted(steps))
            self.assert_same(
                f"steps of {stepped}", steps[stepped], self.wait(self.random_store.steps(stepped))
            )
        return Look(
            {job.id: job for job in jobs if job is not None},
            new_events.entries,
            run_now(model.counts()),
            run_now(model.totals()),
            run_now(model.queues()),
            run_now(model.paused()),
            run_now(model.rules()),
            run_now(model.schedules()),
            {job.id: run_now(model.children(job.id)) for job in jobs if job is not None and job.children},
            steps,
        )

    def read_the_clocks(self) -> None:
        """Read all clocks together: after a step back, a clock depends on when it was last read."""
        self.wait(_all(store.due_in() for store in self.stores))

    def get(self, ids: list[str]) -> None:
        self.assert_same(f"jobs {ids}", *self.both("get", ids))

    def page_through(self, query: Query, limit: int) -> None:
        cursors: Cursors = None, None
        while True:
            mine = run_now(self.model.list(query, cursors[0], limit))
            other = self.wait(self.random_store.list(query, cursors[1], limit))
            self.assert_same(f"jobs that match {query}", mine, other)
            if mine.cursor is None:
                break
            cursors = mine.cursor, other.cursor

    def events(self, after: Cursors, limit: int) -> Cursors:
        """Compare the events after the cursors; return the cursors of the last ones."""
        mine = run_now(self.model.events(after[0], limit))
        other = self.wait(self.random_store.events(after[1], limit))
        self.assert_same(f"events after {after}", mine, other)
        return mine.cursor, other.cursor

    def assert_same(self, what: str, mine: object, other: object) -> None:
        """Assert that two answers are equal, except for the names of the stores in cursors."""
        expected, got = self._plain(mine), self._plain(other)
        assert expected == got, f"{what}: expected\n{expected}\ngot\n{got}"

    def both(self, read: str, *arguments: Any) -> tuple[Any, Any]:
        mine = run_now(getattr(self.model, read)(*arguments))
        return mine, self.wait(getattr(self.random_store, read)(*arguments))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    async def _read_together(self, store: Store, ids: Sequence[str], reads: Sequence[Sequence[str]]) -> Any:
        """Send all reads together, to wait only once for a store that reads on another thread."""
        others = (getattr(store, read)(*arguments) for read, *arguments in reads)
        return await gather(store.get(ids), store.events(self.last_cursors[1], PAGE), *others)

    def _plain(self, value: object) -> object:
        match value:
            case str():
                return value.replace(self.store_names[0], "store").replace(self.store_names[1], "store")
            case RecordPage(jobs=jobs, cursor=cursor):
                return jobs, self._plain(cursor)
            case EventPage(entries=entries, cursor=cursor, missed=missed):
                return [(self._plain(e.cursor), e.at, e.event) for e in entries], self._plain(cursor), missed
            case tuple():
                return [self._plain(item) for item in value]
            case _:
                return value


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the memory store, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    raise AssertionError("the memory store waits")


async def _all(coroutines: Any) -> None:
    await gather(*coroutines)


def _comparable(answer: object) -> object:
    """An answer in which errors are replaced by their type and text."""
    if isinstance(answer, ErrandryError):
        return type(answer).__name__, str(answer)
    if isinstance(answer, Moved):
        refused = [(job, _comparable(error)) for job, error in answer.refused]
        return answer.moved, answer.already, refused, answer.below
    return answer


def _difference(ids: Sequence[str], mine: Sequence[object], other: Sequence[object]) -> str:
    pairs = zip(ids, mine, other, strict=True)
    return "\n".join(f"{job_id}: expected\n{job}\ngot\n{got}" for job_id, job, got in pairs if job != got)
