"""`Client`: the part of the app that reads jobs, queues, statistics and events."""

import asyncio
import builtins
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any

from errandry.api.completion import EVENTS_PAGE, RECHECK_INTERVAL, wait_for_first
from errandry.api.context import Child
from errandry.api.events import Event, event_at, event_of_entry
from errandry.api.flow import child_of_edge
from errandry.api.gate_info import (
    GateInfo,
    GroupInfo,
    PauseInfo,
    QueueInfo,
    gate_info,
    group_info,
    queue_info,
)
from errandry.api.job import Job
from errandry.api.job_view import JobPage
from errandry.api.operations import Operations
from errandry.api.options import Duration, Moment
from errandry.api.queue import Queue
from errandry.api.steps import Step, step_of_record
from errandry.api.store_client import StoreClient, step_document
from errandry.api.task import Task
from errandry.api.workers import Workers
from errandry.codec.json_codec import to_json
from errandry.core.duration import as_datetime, moment, seconds
from errandry.core.event import EventFilter, EventKind, EventName, EventRecord
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord
from errandry.core.query import parse, quote
from errandry.core.state import State
from errandry.core.stats import Stats, stats
from errandry.core.step import SendSignal, StepKind
from errandry.core.why import Why, WhyFacts, why
from errandry.errors import InvalidValue

COUNTED_AHEAD_MAX = 5_000
"""Maximum number of waiting jobs read to count those that are before a given job."""


class Client(Operations):
    """Read a store and operate on its jobs. The store is opened on first use."""

    def __init__(self, client: StoreClient) -> None:
        self.client = client
        self.tasks: dict[str, Task[..., Any]] = {}
        self.workers = Workers(self)
        """The workers of the store, to list and pause them."""

    async def open(self) -> None:
        """Open the store now rather than on first use; reopens it after `close`."""
        await self.client.open()

    async def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and close the store. Only `open` reopens it."""
        await self.client.close(timeout)

    async def get(self, job_id: str) -> Job[Any]:
        """The job with this id; raises UnknownJob if there is none."""
        return Job(self, await self.client.record(job_id))

    def _jobs(self, records: Iterable[JobRecord]) -> tuple[Job[Any], ...]:
        return tuple([Job(self, record) for record in records])

    async def signal(self, job_id: str, name: str, payload: Any = None) -> bool:
        """Send a signal to a job that waits for it now or later with `ctx.wait_for(name)`.

            await jobs.signal(job_id, "approval", {"by": "ada"})

        Returns False if the job has got a signal of this name already; the first one counts. Raises
        InvalidValue if the job's wait has timed out, InvalidMove if the job has finished.
        """
        record = await self.client.record(job_id)
        text = self.codec.seal(to_json("payload", payload), step_document(record, StepKind.SIGNAL, name))
        return await self.client.submit_change(SendSignal(job_id, name, text))

    async def steps(self, job_id: str) -> builtins.list[Step]:
        """The steps and sleeps of a job and the signals sent to it, in the order they were begun."""
        record = await self.client.record(job_id)
        return [step_of_record(step) for step in await self.client.steps(record)]

    async def children(self, job_id: str) -> builtins.list[Child]:
        """The child jobs that a job waits for or has waited for, in their order, and how they ended."""
        return [child_of_edge(self, edge) for edge in await self.client.edges(job_id)]

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        """Job ids that begin or end with `part`."""
        return await self.engine.call(self.store.ids, part, limit)

    async def list(self, query: str = "", *, cursor: str | None = None, limit: int = 50) -> JobPage[Job[Any]]:
        """Jobs that match a query such as `state:failed task:send since:2h`, newest first."""
        page = await self.engine.call(self.store.list, parse(query), cursor, limit)
        return JobPage(self._jobs(page.jobs), page.cursor)

    async def counts(self) -> dict[str, dict[str, int]]:
        """The number of jobs in each state, by queue."""
        return await self.engine.call(self.store.counts)

    async def totals(self) -> dict[str, dict[str, int]]:
        """The lifetime totals of each queue: how many jobs were inserted, completed, failed, …"""
        return await self.engine.call(self.store.totals)

    async def now(self) -> datetime:
        """The store's time, which delays, leases and deadlines follow; on a server, the server's clock."""
        return as_datetime(await self.engine.call(self.store.now))

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
        end = await self.engine.call(self.store.now) if until is None else moment("until", until)
        since = max(0.0, end - seconds(last, "last"))
        figures = await self.engine.call(self.store.stats, since, end)
        selected = [row for row in figures if queue in (None, row.queue) and task in (None, row.task)]
        return stats(selected, since, end)

    async def queues(self) -> builtins.list[QueueInfo]:
        """Every queue: its jobs by state, how long its next job has waited, whether it is paused."""
        return [queue_info(record) for record in await self.engine.call(self.store.queues)]

    async def held(self, limit: int = 100) -> builtins.list[Job[Any]]:
        """Jobs that workers hold, claimed or running, sorted by the end of their lease."""
        return [*self._jobs(await self.engine.call(self.store.held, limit))]

    async def paused(self) -> dict[GateKind, dict[str, PauseInfo]]:
        """The queues, tasks and workers that are paused."""
        records = await self.engine.call(self.store.paused)
        return {
            kind: {name: PauseInfo(as_datetime(pause.at), pause.by) for name, pause in pauses.items()}
            for kind, pauses in records.items()
        }

    async def why(self, job_id: str) -> Why:
        """Explain why a job is not running, or what it is doing: `print(await jobs.why(job.id))`."""
        return await self.engine.call(self._why, job_id)

    async def _why(self, job_id: str) -> Why:
        job = await self.client.record(job_id)
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

    async def rules(self) -> builtins.list[GateInfo]:
        """Every queue, task and group that is paused, has a rule, or was closed by a `pause_group`."""
        return [gate_info(record) for record in await self.engine.call(self.store.rules)]

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupInfo]:
        """The groups of one queue or of all: how many jobs wait and run, and their rules."""
        return [group_info(record) for record in await self.engine.call(self.store.groups, queue, limit)]

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
        kind: EventKind | EventName | Sequence[EventKind | EventName] = (),
        queue: str | Sequence[str] = (),
        task: str | Sequence[str] = (),
        job: str | Sequence[str] = (),
        until: asyncio.Event | None = None,
    ) -> AsyncIterator[Event]:
        """Yield events as they happen, from the cursor `after` or from now on, filtered by the other options.

            async for event in jobs.events(kind=("completed", "failed"), queue="mail"):
                print(event.kind, event.job)

        Never ends by itself; with `until`, it ends once that is set and all earlier events were yielded. A
        reader that was away for longer than events are kept gets an `events_missed` event first.
        """
        event_filter = EventFilter(
            as_tuple("kind", kind), as_tuple("queue", queue), as_tuple("task", task), as_tuple("job", job)
        )
        cursor = await self.latest_cursor() if after is None else after
        while True:
            is_last, version = until is not None and until.is_set(), self.store.version()
            page = await self.engine.call(self.store.events, cursor, EVENTS_PAGE)
            if page.missed:
                text = "events before these are no longer kept: some were missed"
                record = EventRecord(EventKind.EVENTS_MISSED, "", "", "", 0, text)
                yield event_at(record, self.clock.time(), cursor)
            for entry in page.entries:
                if event_filter.matches(entry.event):
                    yield event_of_entry(entry)
            cursor = page.cursor
            if len(page.entries) < EVENTS_PAGE:
                if is_last:
                    return
                await self._wait_for_events(version, until)

    async def _wait_for_events(self, version: int, until: asyncio.Event | None) -> None:
        """Wait until the store may have changed or `until` is set."""
        change = self.engine.call(self.store.wait_for_change, version, RECHECK_INTERVAL)
        await (change if until is None else wait_for_first(change, until.wait()))


def as_tuple(field: str, names: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Sequence | set | frozenset):
        raise InvalidValue(field, names, "must be a name, or a list of names")
    return tuple(names)
