"""What can be asked of a store and done to its jobs, from any loop or thread."""

import asyncio
import builtins
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.completion import PAGE, PATIENCE, CompletionWatcher, first
from errandry.api.gates import GateHandle
from errandry.api.operations import Operations
from errandry.api.options import Duration, Moment
from errandry.api.queue import Queue
from errandry.clock import Clock, SystemClock
from errandry.codec.json_codec import Codec, DocumentInfo, PlainCodec, to_json
from errandry.core.answer import WRITTEN, Ack, Inserted
from errandry.core.command import (
    Insert,
    WorkerInfo,
)
from errandry.core.duration import moment, seconds
from errandry.core.event import Event, EventFilter, EventKind
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, GateRecord, PauseInfo
from errandry.core.job import JobRecord, NewJob
from errandry.core.query import parse, quoted
from errandry.core.rule import Overflow
from errandry.core.state import State
from errandry.core.stats import Stats, stats
from errandry.core.step import SendSignal, Step, StepKind
from errandry.core.why import Why, WhyFacts, why
from errandry.errors import InvalidValue, QueueFull, UnknownJob
from errandry.store.contract import EventEntry, GroupInfo, QueueInfo, Store
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.engine import Engine

A = TypeVar("A")

CROWD = (0.005, 0.03)
"""So many seconds, by chance, who waits for room lets others go first: they are woken all together."""
LINE_MAX = 5_000
"""So many waiting jobs are counted one by one to tell how many are before one of them."""


class JobPage(Struct, frozen=True):
    """Records of jobs, newest first; `cursor` goes on below them, None at the end."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class Client(Operations):
    """Reads, and what operators do. Opens its store on first use."""

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        codec: Codec | None = None,
        limits: WriteLimits | None = None,
    ) -> None:
        self.codec = codec or PlainCodec()
        self.clock = clock or SystemClock()
        self._limits = limits
        self.engine = Engine(store, limits, self.clock)
        self._closed = False
        self._waiting: CompletionWatcher | None = None

    async def open(self) -> None:
        """Open the store now rather than on first use; also one that was closed."""
        if self._closed:
            self.engine, self._closed = Engine(self.store, self._limits, self.clock), False
        await self.engine.start()

    async def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and let go of the store. Only `open` opens it again."""
        await self.retire().stop(timeout)

    def retire(self) -> Engine:
        """The engine, to be stopped; `open` makes a new one."""
        self._closed = True
        return self.engine

    @contextmanager
    def override_store(self, store: Store, clock: Clock | None = None) -> Iterator[None]:
        """Work on another store while this lasts, as tests do. It is closed at the end."""
        before = self.engine, self.clock, self._closed
        self.clock = clock or SystemClock()
        self.engine, self._closed = Engine(store, self._limits, self.clock), False
        try:
            yield
        finally:
            self.engine.stop_sync()
            self.engine, self.clock, self._closed = before

    def wrap(self, around: Callable[[Store], Store]) -> None:
        """Use what `around` makes of the store instead of it. To be called before the store is opened."""
        if self.engine.is_running:
            raise InvalidValue("wrap", around, "the store is open already: wrap it before its first use")
        self.engine = Engine(around(self.store), self._limits, self.clock)

    async def insert(self, jobs: builtins.list[NewJob], edges: tuple[Edge, ...] = ()) -> Inserted:
        """All of these, or none. Returns when they are durable; waits first if a queue wants that."""
        command = Insert(tuple(jobs), edges)
        while True:
            pulse = self.store.version()
            try:
                return await self._submit(command, Inserted)
            except QueueFull as full:
                if not await self._can_wait(full, jobs):
                    raise
            await self.engine.call(self.store.wait_for_change, pulse, PATIENCE)
            await asyncio.sleep(random.uniform(*CROWD))

    async def _can_wait(self, full: QueueFull, jobs: builtins.list[NewJob]) -> bool:
        """Whether there will be room one day, and the rule is to wait for it."""
        rule = await self.queue(full.queue).rule()
        if rule.overflow is not Overflow.WAIT:
            return False
        wanted = [job for job in jobs if job.queue == full.queue and full.group in ("", job.group)]
        return len(wanted) <= full.bound

    async def record(self, job_id: str) -> JobRecord:
        """The job as stored; UnknownJob if there is none."""
        [record] = await self.engine.call(self.store.get, [job_id])
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def signal(self, job_id: str, name: str, payload: Any = None) -> bool:
        """Tell a job that has not finished what it waits for, or will: see `JobContext.wait_for`.

        False if it has had a signal of this name, which stays; InvalidValue if it waits no longer.
        """
        record = await self.record(job_id)
        text = self.codec.seal(to_json("payload", payload), _about(record, StepKind.SIGNAL, name))
        return await self._submit(SendSignal(job_id, name, text), Ack) is WRITTEN

    async def steps(self, job_id: str) -> builtins.list[Step]:
        """The steps of a job in the order they were begun, its sleeps, and the signals sent to it."""
        return await self.read_steps(await self.record(job_id))

    async def read_steps(self, record: JobRecord) -> builtins.list[Step]:
        """The same for who has the job."""
        if record.steps is None:
            return []
        return [self._unsealed(record, step) for step in await self.engine.call(self.store.steps, record.id)]

    def _unsealed(self, record: JobRecord, step: Step) -> Step:
        if step.result is None:
            return step
        about = _about(record, step.kind, step.name)
        return replace(step, result=self.codec.unseal(step.result, about))

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        """Ids that begin or end with `part`."""
        return await self.engine.call(self.store.ids, part, limit)

    async def finished(self, job_id: str, timeout: float | None = None) -> JobRecord | None:
        """The job once it has finished; None if it is gone."""
        return await self.engine.call(self._finished, job_id, timeout)

    async def _finished(self, job_id: str, timeout: float | None) -> JobRecord | None:
        if self._waiting is None or self._waiting.loop is not asyncio.get_running_loop():
            self._waiting = CompletionWatcher(
                self.store
            )  # the engine was started anew: reopened, or after a fork
        return await self._waiting.finished(job_id, timeout)

    async def list(self, query: str = "", *, cursor: str | None = None, limit: int = 50) -> JobPage:
        """Jobs that match a query such as `state:failed task:send since:2h`, newest first."""
        page = await self.engine.call(self.store.list, parse(query), cursor, limit)
        return JobPage(page.jobs, page.cursor)

    async def counts(self) -> dict[str, dict[str, int]]:
        """For each queue: how many jobs are in each state."""
        return await self.engine.call(self.store.counts)

    async def totals(self) -> dict[str, dict[str, int]]:
        """For each queue: what ever happened in it."""
        return await self.engine.call(self.store.totals)

    async def now(self) -> float:
        """The store's time, which delays, leases and deadlines follow: a server's where there is one."""
        return await self.engine.call(self.store.now)

    async def stats(
        self,
        last: Duration = "1 hour",
        *,
        until: Moment | None = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> Stats:
        """How many jobs ended how, and how long they waited and ran, in the time up to now or to `until`.

        They are kept by the minute for three hours, by the hour for eight days, by the day for 400 days.
        """
        end = await self.now() if until is None else moment("until", until)
        since = max(0.0, end - seconds(last, "last"))
        figures = await self.engine.call(self.store.stats, since, end)
        wanted = [one for one in figures if queue in (None, one.queue) and task in (None, one.task)]
        return stats(wanted, since, end)

    async def queues(self) -> builtins.list[QueueInfo]:
        return await self.engine.call(self.store.queues)

    async def workers(self) -> builtins.list[WorkerInfo]:
        return await self.engine.call(self.store.workers)

    async def held(self, limit: int = 100) -> builtins.list[JobRecord]:
        """Jobs that workers have, claimed or running; those whose lease ends first come first."""
        return await self.engine.call(self.store.held, limit)

    async def paused(self) -> dict[GateKind, dict[str, PauseInfo]]:
        """The queues, the tasks and the workers that are paused."""
        return await self.engine.call(self.store.paused)

    async def why(self, job_id: str) -> Why:
        """Why the job is not running, in words, or what else it is doing."""
        return await self.engine.call(self._why, job_id)

    async def _why(self, job_id: str) -> Why:
        job = await self.record(job_id)
        in_queue = (await self.store.counts()).get(job.queue, {}).get(State.WAITING, 0)
        facts = WhyFacts(
            job=job,
            now=await self.store.now(),
            passages=tuple(await self.store.gates(job.queue, job.task, job.group)),
            workers=tuple(await self.store.workers()),
            held=tuple(await self.store.held(LINE_MAX)),
            ahead=await self._ahead(job, in_queue),
            in_queue=in_queue,
            children=await self._open_children(job),
        )
        return why(facts)

    async def _open_children(self, job: JobRecord) -> tuple[str, ...]:
        if job.state is not State.BLOCKED:
            return ()
        return tuple(link.child for link in await self.store.children(job.id) if link.outcome is None)

    async def _ahead(self, job: JobRecord, in_queue: int) -> int | None:
        """How many jobs of its queue are before it; None if they are too many to look at."""
        if job.state is not State.WAITING or in_queue <= 1:
            return 0
        if in_queue > LINE_MAX:
            return None
        line = parse(f"state:waiting queue:{quoted(job.queue)} priority<={job.priority}")
        found = (await self.store.list(line, None, LINE_MAX)).jobs
        return sum((one.priority, one.place or 0) < (job.priority, job.place or 0) for one in found)

    async def rules(self) -> builtins.list[GateRecord]:
        """Every queue, task and group that is paused, has a rule, or is closed for a while."""
        return await self.engine.call(self.store.rules)

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupInfo]:
        """The groups of one queue or all: how many jobs wait and run, and what rules hold for them."""
        return await self.engine.call(self.store.groups, queue, limit)

    def queue(self, name: str) -> Queue:
        """A queue: to pause it, to give it rules, to name a group in it, to do something to all its jobs."""
        return Queue(self, name)

    def worker(self, worker_id: str) -> GateHandle:
        """A worker, to pause and resume it; what it runs goes on."""
        return GateHandle(self, GateKind.WORKER, worker_id)

    async def latest_cursor(self, back: int = 0) -> str:
        """The cursor of this moment, or of `back` passes ago: `events(after=…)` tells what came since."""
        return await self.engine.call(self.store.latest_cursor, back)

    async def events(
        self,
        after: str | None = None,
        *,
        kind: str | Sequence[str] = (),
        queue: str | Sequence[str] = (),
        task: str | Sequence[str] = (),
        job: str | Sequence[str] = (),
        until: asyncio.Event | None = None,
    ) -> AsyncIterator[EventEntry]:
        """What happens, as it happens: from the cursor `after`, or from now on; all, or only of these.

        Ends when `until` is set and everything has been told, else never by itself. Whoever was away for
        longer than events are kept gets an `error` event first that says so.
        """
        wanted = EventFilter(as_tuple(kind), as_tuple(queue), as_tuple(task), as_tuple(job))
        cursor = after or await self.latest_cursor()
        while True:
            is_last, pulse = until is not None and until.is_set(), self.store.version()
            page = await self.engine.call(self.store.events, cursor, PAGE)
            if page.missed:
                text = "events before these are no longer kept: some were missed"
                yield EventEntry(
                    cursor or page.cursor,
                    self.clock.time(),
                    Event(EventKind.EVENTS_MISSED, "", "", "", 0, text),
                )
            for one in page.entries:
                if wanted.has(one.event):
                    yield one
            cursor = page.cursor
            if len(page.entries) < PAGE:
                if is_last:
                    return
                await self._news(pulse, until)

    async def _news(self, pulse: int, until: asyncio.Event | None) -> None:
        """Until something may have happened, or nobody wants to know any more."""
        wake = self.engine.call(self.store.wait_for_change, pulse, PATIENCE)
        await (wake if until is None else first(wake, until.wait()))


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as several."""
    return (names,) if isinstance(names, str) else tuple(names)


def _about(record: JobRecord, kind: StepKind, name: str) -> DocumentInfo:
    """What the result of a step, or what comes with a signal, is sealed for."""
    return DocumentInfo(record.id, record.task, f"{kind} {name}")
