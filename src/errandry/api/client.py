"""The client: read jobs, queues, statistics and events of a store, from any loop or thread."""

import asyncio
import builtins
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.completion import EVENTS_PAGE, RECHECK_INTERVAL, CompletionWatcher, wait_for_first
from errandry.api.operations import Operations
from errandry.api.options import Duration, Moment
from errandry.api.queue import Queue
from errandry.api.workers import Workers
from errandry.clock import Clock, SystemClock
from errandry.codec.json_codec import Codec, DocumentInfo, PlainCodec, to_json
from errandry.core.answer import WRITTEN, Ack, Inserted
from errandry.core.command import Insert
from errandry.core.duration import moment, seconds
from errandry.core.event import Event, EventFilter, EventKind
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, GateRecord, PauseInfo
from errandry.core.job import JobRecord, NewJob
from errandry.core.query import parse, quote
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

QUEUE_FULL_BACKOFF = (0.005, 0.03)
"""Random back-off, in seconds, for clients waiting for queue space, so that they do not all retry at once."""
COUNTED_AHEAD_MAX = 5_000
"""Maximum number of waiting jobs read to count those that are before a given job."""


class JobPage(Struct, frozen=True):
    """Records of jobs, newest first. `cursor` reads the next page; None after the last."""

    jobs: tuple[JobRecord, ...]
    cursor: str | None


class Client(Operations):
    """Read a store and operate on its jobs. The store is opened on first use."""

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        codec: Codec | None = None,
        write_limits: WriteLimits | None = None,
    ) -> None:
        self.codec = codec or PlainCodec()
        self.clock = clock or SystemClock()
        self._write_limits = write_limits
        self.engine = Engine(store, write_limits, self.clock)
        self._closed = False
        self._completion_watcher: CompletionWatcher | None = None
        self.workers = Workers(self)

    async def open(self) -> None:
        """Open the store now rather than on first use; reopens it after `close`."""
        if self._closed:
            self.engine, self._closed = Engine(self.store, self._write_limits, self.clock), False
        await self.engine.start()

    async def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and close the store. Only `open` reopens it."""
        await self.retire().stop(timeout)

    def retire(self) -> Engine:
        """Mark the client as closed and return its engine, for the caller to stop."""
        self._closed = True
        return self.engine

    @contextmanager
    def override_store(self, store: Store, clock: Clock | None = None) -> Iterator[None]:
        """Work on another store inside a `with` block, as tests do. The store is closed at the end."""
        before = self.engine, self.clock, self._closed
        self.clock = clock or SystemClock()
        self.engine, self._closed = Engine(store, self._write_limits, self.clock), False
        try:
            yield
        finally:
            self.engine.stop_sync()
            self.engine, self.clock, self._closed = before

    def wrap(self, around: Callable[[Store], Store]) -> None:
        """Replace the store by `around(store)`, which delegates to it. Call it before the store is opened."""
        if self.engine.is_running:
            raise InvalidValue("wrap", around, "the store is open already: wrap it before its first use")
        self.engine = Engine(around(self.store), self._write_limits, self.clock)

    async def insert(self, jobs: builtins.list[NewJob], edges: tuple[Edge, ...] = ()) -> Inserted:
        """Insert all jobs or none; returns when they are durable.

        Waits for space if a queue is full and its rule is `overflow="wait"`.
        """
        command = Insert(tuple(jobs), edges)
        while True:
            version = self.store.version()
            try:
                return await self._submit(command, Inserted)
            except QueueFull as full:
                if not await self._waits_for_space(full, jobs):
                    raise
            await self.engine.call(self.store.wait_for_change, version, RECHECK_INTERVAL)
            await asyncio.sleep(random.uniform(*QUEUE_FULL_BACKOFF))

    async def _waits_for_space(self, full: QueueFull, jobs: builtins.list[NewJob]) -> bool:
        """True if the queue's rule is to wait, and the jobs fit into the queue once it has space."""
        rule = await self.queue(full.queue).rules()
        if rule.overflow is not Overflow.WAIT:
            return False
        new_jobs = [job for job in jobs if job.queue == full.queue and full.group in ("", job.group)]
        return len(new_jobs) <= full.bound

    async def record(self, job_id: str) -> JobRecord:
        """The job as stored; raises UnknownJob if there is none."""
        [record] = await self.engine.call(self.store.get, [job_id])
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def signal(self, job_id: str, name: str, payload: Any = None) -> bool:
        """Send a signal to a job that waits for it now or later with `ctx.wait_for(name)`.

            await jobs.signal(job_id, "approval", {"by": "ada"})

        Returns False if the job has got a signal of this name already; the first one counts. Raises
        InvalidValue if the job's wait has timed out, InvalidMove if the job has finished.
        """
        record = await self.record(job_id)
        text = self.codec.seal(to_json("payload", payload), _step_document(record, StepKind.SIGNAL, name))
        return await self._submit(SendSignal(job_id, name, text), Ack) is WRITTEN

    async def steps(self, job_id: str) -> builtins.list[Step]:
        """The steps and sleeps of a job and the signals sent to it, in the order they were begun."""
        return await self.read_steps(await self.record(job_id))

    async def read_steps(self, record: JobRecord) -> builtins.list[Step]:
        """`steps` for callers that have read the record already."""
        if record.steps is None:
            return []
        return [
            self._unseal_step(record, step) for step in await self.engine.call(self.store.steps, record.id)
        ]

    def _unseal_step(self, record: JobRecord, step: Step) -> Step:
        if step.result is None:
            return step
        document = _step_document(record, step.kind, step.name)
        return replace(step, result=self.codec.unseal(step.result, document))

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        """Job ids that begin or end with `part`."""
        return await self.engine.call(self.store.ids, part, limit)

    async def finished(self, job_id: str, timeout: float | None = None) -> JobRecord | None:
        """Wait until a job has finished and return its record; None if the job is gone."""
        return await self.engine.call(self._wait_finished, job_id, timeout)

    async def _wait_finished(self, job_id: str, timeout: float | None) -> JobRecord | None:
        watcher = self._completion_watcher
        # The engine has another loop after a reopen or a fork.
        if watcher is None or watcher.loop is not asyncio.get_running_loop():
            watcher = self._completion_watcher = CompletionWatcher(self.store)
        return await watcher.wait_finished(job_id, timeout)

    async def list(self, query: str = "", *, cursor: str | None = None, limit: int = 50) -> JobPage:
        """Jobs that match a query such as `state:failed task:send since:2h`, newest first."""
        page = await self.engine.call(self.store.list, parse(query), cursor, limit)
        return JobPage(page.jobs, page.cursor)

    async def counts(self) -> dict[str, dict[str, int]]:
        """The number of jobs in each state, by queue."""
        return await self.engine.call(self.store.counts)

    async def totals(self) -> dict[str, dict[str, int]]:
        """The lifetime totals of each queue: how many jobs were inserted, completed, failed, …"""
        return await self.engine.call(self.store.totals)

    async def now(self) -> float:
        """The store's time, which delays, leases and deadlines follow; on a server, the server's clock."""
        return await self.engine.call(self.store.now)

    async def stats(
        self,
        last: Duration = "1 hour",
        *,
        until: Moment | None = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> Stats:
        """How many jobs completed, failed, …, and how long they waited and ran, in the span `last`.

        The span ends now or at `until`. Figures are kept by the minute for three hours, by the hour for eight
        days, by the day for 400 days.
        """
        end = await self.now() if until is None else moment("until", until)
        since = max(0.0, end - seconds(last, "last"))
        figures = await self.engine.call(self.store.stats, since, end)
        selected = [row for row in figures if queue in (None, row.queue) and task in (None, row.task)]
        return stats(selected, since, end)

    async def queues(self) -> builtins.list[QueueInfo]:
        """Every queue: its jobs by state, how long its next job has waited, whether it is paused."""
        return await self.engine.call(self.store.queues)

    async def held(self, limit: int = 100) -> builtins.list[JobRecord]:
        """Jobs that workers hold, claimed or running, those whose lease ends first at the front."""
        return await self.engine.call(self.store.held, limit)

    async def paused(self) -> dict[GateKind, dict[str, PauseInfo]]:
        """The queues, tasks and workers that are paused."""
        return await self.engine.call(self.store.paused)

    async def why(self, job_id: str) -> Why:
        """Explain why a job is not running, or what it is doing: `print(await jobs.why(job.id))`."""
        return await self.engine.call(self._why, job_id)

    async def _why(self, job_id: str) -> Why:
        job = await self.record(job_id)
        in_queue = (await self.store.counts()).get(job.queue, {}).get(State.WAITING, 0)
        facts = WhyFacts(
            job=job,
            now=await self.store.now(),
            gates=tuple(await self.store.gates(job.queue, job.task, job.group)),
            workers=tuple(await self.store.workers()),
            held=tuple(await self.store.held(COUNTED_AHEAD_MAX)),
            ahead=await self._count_ahead(job, in_queue),
            in_queue=in_queue,
            children=await self._open_children(job),
        )
        return why(facts)

    async def _open_children(self, job: JobRecord) -> tuple[str, ...]:
        if job.state is not State.BLOCKED:
            return ()
        return tuple(edge.child for edge in await self.store.children(job.id) if edge.outcome is None)

    async def _count_ahead(self, job: JobRecord, in_queue: int) -> int | None:
        """How many waiting jobs of its queue come before the job; None if there are too many to count."""
        if job.state is not State.WAITING or in_queue <= 1:
            return 0
        if in_queue > COUNTED_AHEAD_MAX:
            return None
        query = parse(f"state:waiting queue:{quote(job.queue)} priority<={job.priority}")
        rivals = (await self.store.list(query, None, COUNTED_AHEAD_MAX)).jobs
        place = job.priority, job.place or 0
        return sum((rival.priority, rival.place or 0) < place for rival in rivals)

    async def rules(self) -> builtins.list[GateRecord]:
        """Every queue, task and group that is paused, has a rule, or was closed by a `pause_group`."""
        return await self.engine.call(self.store.rules)

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupInfo]:
        """The groups of one queue or of all: how many jobs wait and run, and their rules."""
        return await self.engine.call(self.store.groups, queue, limit)

    def queue(self, name: str) -> Queue:
        """A queue, to pause it, give it rules, or operate on all its jobs: `jobs.queue("mail").pause()`."""
        return Queue(self, name)

    async def latest_cursor(self, back: int = 0) -> str:
        """The cursor of this moment, or of `back` passes ago, for `events(after=cursor)`."""
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
        """Yield events as they happen, from the cursor `after` or from now on, filtered by the other options.

            async for entry in jobs.events(kind=("completed", "failed"), queue="mail"):
                print(entry.event.kind, entry.event.job)

        Never ends by itself; with `until`, it ends once that is set and all earlier events were yielded. A
        reader that was away for longer than events are kept gets an `events_missed` event first.
        """
        event_filter = EventFilter(as_tuple(kind), as_tuple(queue), as_tuple(task), as_tuple(job))
        cursor = after or await self.latest_cursor()
        while True:
            is_last, version = until is not None and until.is_set(), self.store.version()
            page = await self.engine.call(self.store.events, cursor, EVENTS_PAGE)
            if page.missed:
                text = "events before these are no longer kept: some were missed"
                yield EventEntry(
                    cursor or page.cursor,
                    self.clock.time(),
                    Event(EventKind.EVENTS_MISSED, "", "", "", 0, text),
                )
            for entry in page.entries:
                if event_filter.matches(entry.event):
                    yield entry
            cursor = page.cursor
            if len(page.entries) < EVENTS_PAGE:
                if is_last:
                    return
                await self._wait_for_events(version, until)

    async def _wait_for_events(self, version: int, until: asyncio.Event | None) -> None:
        """Wait until the store may have changed or `until` is set."""
        change = self.engine.call(self.store.wait_for_change, version, RECHECK_INTERVAL)
        await (change if until is None else wait_for_first(change, until.wait()))


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def _step_document(record: JobRecord, kind: StepKind, name: str) -> DocumentInfo:
    """The document that the result of a step, or the payload of a signal, is sealed as."""
    return DocumentInfo(record.id, record.task, f"{kind} {name}")
