"""The base of stores whose passes run in this process on `Tables`: it has all reads of the contract.

A driver adds its tables, `commit`, which applies a pass in a transaction, `read`, which calls a function with
a snapshot of the tables, and the other methods that raise NotImplementedError here.
"""

import builtins
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from msgspec.structs import replace

from errandry import failpoint
from errandry.clock import Clock, StoreClock, SystemClock
from errandry.core import check
from errandry.core.answer import Answer, Claims
from errandry.core.command import Command, Ref, Settle, WorkerRecord
from errandry.core.flow import EdgeRecord
from errandry.core.gate import (
    GateKey,
    GateKind,
    GateRecord,
    GateStatus,
    PauseRecord,
    gate_statuses,
    group_limits,
)
from errandry.core.job import JobRecord
from errandry.core.permit import Permits
from errandry.core.query import Query
from errandry.core.rule import NO_RULE
from errandry.core.schedule import ScheduleRecord
from errandry.core.selection import JobSelection
from errandry.core.state import State
from errandry.core.stats import StatsRow, is_time
from errandry.core.step import StepRecord
from errandry.errors import CommandFailed
from errandry.store import cursors
from errandry.store.contract import (
    Binding,
    EventPage,
    GroupRecord,
    QueueRecord,
    RecordPage,
    SchemaChange,
    StoreLimits,
)
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.execute.claim import due_in
from errandry.store.execute.pass_events import LIFETIME_PREFIX
from errandry.store.execute.upkeep import prunable_jobs
from errandry.store.health import Finding
from errandry.store.tables.counters import merge_stats
from errandry.store.tables.protocol import Tables

PAGE_MAX = 10_000
GROUP_COUNT_MAX = 1_000
"""Maximum number of waiting jobs of a group that are counted."""
_ALL_JOBS = Query()

T = TypeVar("T")


class TableStore:
    """The reads of the contract on `Tables`. Drivers that run several passes at a time set `tracks`."""

    tracks = 1

    def __init__(self, clock: Clock | None = None, limits: StoreLimits | None = None) -> None:
        self.clock = StoreClock(clock or SystemClock())
        self.limits = limits or StoreLimits()
        self.changes = ChangeCounter()
        self.schema_change: SchemaChange | None = None
        self.may_be_read_only = False

    def allow_read_only(self) -> None:
        self.may_be_read_only = True

    async def needs_setup(self) -> str | None:
        return None

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        raise NotImplementedError

    async def diagnose(self) -> list[Finding]:
        raise NotImplementedError

    def bind(self, connection: object) -> Binding:
        raise NotImplementedError

    def track(self, command: Command) -> int:  # noqa: ARG002 - there is only one track
        return 0

    def version(self) -> int:
        return self.changes.version

    async def wait_for_change(self, version: int, timeout: float) -> bool:
        return await self.changes.wait(version, timeout)

    async def read(self, reader: Callable[[Tables, float], T]) -> T:
        """Call `reader` with a snapshot of the tables and its time; return the result."""
        raise NotImplementedError

    async def get(self, ids: Sequence[str]) -> builtins.list[JobRecord | None]:
        for job_id in ids:
            check.name("id", job_id)

        def reader(tables: Tables, _now: float) -> builtins.list[JobRecord | None]:
            jobs = tables.find_jobs(ids)
            return [jobs.get(job_id) for job_id in ids]

        return await self.read(reader)

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        check.name("part", part)
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, _now: tables.ids_matching(part, limit))

    async def list(self, query: Query = _ALL_JOBS, cursor: str | None = None, limit: int = 50) -> RecordPage:
        check.whole("limit", limit, 1, PAGE_MAX)

        def reader(tables: Tables, now: float) -> RecordPage:
            start = None if cursor is None else cursors.below(cursor, tables.identity, query)
            jobs = tables.matching_jobs(query, State, start, now, limit + 1)
            if len(jobs) <= limit:
                return RecordPage(tuple(jobs), None)
            page = tuple(jobs[:limit])
            return RecordPage(page, cursors.for_jobs(tables.identity, query, page[-1].seq))

        return await self.read(reader)

    async def children(self, parent: str) -> builtins.list[EdgeRecord]:
        check.name("parent", parent)
        return await self.read(lambda tables, _now: tables.child_edges(parent))

    async def steps(self, job: str) -> builtins.list[StepRecord]:
        check.name("job", job)
        return await self.read(lambda tables, _now: tables.steps(job))

    async def counts(self) -> dict[str, dict[str, int]]:
        return await self.read(lambda tables, _now: _split_counters(tables, lifetime=False))

    async def totals(self) -> dict[str, dict[str, int]]:
        return await self.read(lambda tables, _now: _split_counters(tables, lifetime=True))

    async def stats(self, since: float, until: float) -> builtins.list[StatsRow]:
        check.instant("since", since)
        check.instant("until", until)
        return await self.read(lambda tables, _now: merge_stats(tables.stats(since, until)))

    async def queues(self) -> builtins.list[QueueRecord]:
        def reader(tables: Tables, now: float) -> builtins.list[QueueRecord]:
            states, ready_since = _split_counters(tables, lifetime=False), tables.ready_since()
            paused = _pauses(tables, GateKind.QUEUE)
            return [
                QueueRecord(
                    name,
                    states.get(name, {}),
                    max(0.0, now - ready_since[name]) if name in ready_since else None,
                    paused.get(name),
                )
                for name in sorted(states.keys() | paused.keys())
            ]

        return await self.read(reader)

    async def paused(self) -> dict[GateKind, dict[str, PauseRecord]]:
        kinds = (GateKind.QUEUE, GateKind.TASK, GateKind.WORKER)
        return await self.read(lambda tables, _now: {kind: _pauses(tables, kind) for kind in kinds})

    async def rules(self) -> builtins.list[GateRecord]:
        def reader(tables: Tables, now: float) -> builtins.list[GateRecord]:
            kinds = (GateKind.QUEUE, GateKind.TASK, GateKind.GROUP)
            return [
                replace(gate, tat=0.0, closed_until=max(0.0, gate.closed_until))
                for gate in tables.gates(*kinds)
                if gate.paused is not None or gate.rule_info is not None or gate.closed_until > now
            ]

        return await self.read(reader)

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupRecord]:
        if queue is not None:
            check.name("queue", queue)
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, now: _groups(tables, queue, limit, now)[:limit])

    async def gates(self, queue: str, task: str, group: str = "") -> builtins.list[GateStatus]:
        keys: builtins.list[GateKey] = [(GateKind.QUEUE, queue, ""), (GateKind.TASK, task, "")]
        if group:
            keys.append((GateKind.GROUP, queue, group))
        for kind, name, _ in keys:
            check.name(kind, name)
        return await self.read(
            lambda tables, now: gate_statuses(map(tables.gate, keys), tables.held_counts(), now)
        )

    async def schedule(self, name: str) -> ScheduleRecord | None:
        check.name("schedule", name)
        return await self.read(lambda tables, _now: next(iter(tables.schedules([name])), None))

    async def schedules(self, after: str = "", limit: int = 1_000) -> builtins.list[ScheduleRecord]:
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, _now: tables.schedules_after(after, limit))

    async def workers(self) -> builtins.list[WorkerRecord]:
        def reader(tables: Tables, _now: float) -> builtins.list[WorkerRecord]:
            paused = _pauses(tables, GateKind.WORKER)
            return [replace(info, paused=paused.get(info.beat.worker)) for info in tables.workers()]

        return await self.read(reader)

    async def held(self, limit: int = 100) -> builtins.list[JobRecord]:
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, _now: tables.expired_jobs(inf, limit))

    async def cancels(self, worker: str) -> tuple[Ref, ...]:
        check.name("worker", worker)
        return await self.read(lambda tables, _now: tables.cancel_requests(worker))

    async def events(self, after: str | None = None, limit: int = 1_000) -> EventPage:
        check.whole("limit", limit, 1, PAGE_MAX)

        def reader(tables: Tables, _now: float) -> EventPage:
            first, _ = tables.event_log_span()
            start = (first, 0) if after is None else cursors.after(after, tables.identity)
            entries = tuple(tables.read_events(start, limit))
            onwards = max(start, (first, 0))  # so that the next page reports no missed events again
            seen = entries[-1].cursor if entries else cursors.for_events(tables.identity, *onwards)
            return EventPage(entries, seen, missed=start[0] < first)

        return await self.read(reader)

    async def latest_cursor(self, back: int = 0) -> str:
        check.whole("back", back, 0, check.INT_MAX)

        def reader(tables: Tables, _now: float) -> str:
            first, last = tables.event_log_span()
            return cursors.for_events(tables.identity, max(first, last + 1 - back), 0)

        return await self.read(reader)

    async def prunable(self, limit: int = 500) -> builtins.list[JobRecord]:
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, now: prunable_jobs(tables, now, limit))

    async def now(self) -> float:
        return await self.read(lambda _tables, now: now)

    async def due_in(self) -> float | None:
        def reader(tables: Tables, now: float) -> float | None:
            if not tables.has_gates:
                return due_in(tables, None, now)
            permits = Permits(tables.gates(GateKind.QUEUE, GateKind.TASK), now)
            if permits.has_limits:
                permits.set_held(tables.held_counts())
            return due_in(tables, permits, now)

        return await self.read(reader)


def _groups(tables: Tables, queue: str | None, limit: int, now: float) -> list[GroupRecord]:
    waiting = {
        (name, group): count for name, group, count in tables.group_sizes(queue, limit, GROUP_COUNT_MAX)
    }
    held: Counter[tuple[str, str]] = Counter()
    for (name, _task, group), count in tables.held_counts().items():
        if group and queue in (None, name):
            held[name, group] += count
    gates = {(gate.name, gate.group): gate for gate in tables.gates(GateKind.GROUP)}
    gates = {key: gate for key, gate in gates.items() if queue in (None, key[0]) and not gate.is_default(now)}
    rules = {gate.name: gate.rule for gate in tables.gates(GateKind.QUEUE)}
    infos = []
    for name, group in sorted({*waiting, *held, *gates}):
        gate = gates.get((name, group)) or GateRecord(GateKind.GROUP, name, group)
        limit_and_rate = group_limits(gate.rule, rules.get(name, NO_RULE))
        infos.append(GroupRecord(waiting.get((name, group), 0), held[name, group], gate, *limit_and_rate))
    return infos


def command_failed(command: Command, error: Exception) -> CommandFailed:
    """Return the answer to a command that failed with an unexpected error."""
    failed = CommandFailed(type(command).__name__, f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


def reach_failpoints(when: str, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
    """Reach the failpoints around the commit of a pass that claims, settles, or has an operator's command."""
    if failpoint.IS_ARMED:
        if any(isinstance(answer, Claims) and answer.jobs for answer in answers):
            failpoint.reach(f"{when}_claim_commit")
        if any(isinstance(command, Settle) for command in commands):
            failpoint.reach(f"{when}_settle_commit")
        if any(isinstance(command, JobSelection) for command in commands):
            failpoint.reach(f"{when}_operator_commit")


def _pauses(tables: Tables, kind: GateKind) -> dict[str, PauseRecord]:
    return {gate.name: gate.paused for gate in tables.gates(kind) if gate.paused is not None}


def _split_counters(tables: Tables, lifetime: bool) -> dict[str, dict[str, int]]:
    return {
        queue: {
            name.removeprefix(LIFETIME_PREFIX): number
            for name, number in sorted(counters.items())
            if number and name.startswith(LIFETIME_PREFIX) == lifetime and not is_time(name)
        }
        for queue, counters in tables.counters().items()
    }
