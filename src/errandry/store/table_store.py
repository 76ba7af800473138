"""A store that decides in this process: passes applied to tables, reads taken from them.

Drivers bring the tables, say how a pass is made atomic, and where reads run.
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
from errandry.core.command import Command, Ref, Settle, WorkerInfo
from errandry.core.flow import EdgeRecord
from errandry.core.gate import GateKey, GateKind, GateRecord, GateStatus, PauseInfo, gate_statuses, limits
from errandry.core.job import JobRecord
from errandry.core.permit import Permits
from errandry.core.query import Query
from errandry.core.rule import NO_RULE
from errandry.core.schedule import ScheduleRecord
from errandry.core.selection import JobSelection
from errandry.core.state import State
from errandry.core.stats import StatsRow, is_time
from errandry.core.step import Step
from errandry.errors import CommandFailed
from errandry.store import cursors
from errandry.store.contract import Binding, EventPage, GroupInfo, QueueInfo, RecordPage, StoreLimits
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.execute.claim import due_in
from errandry.store.execute.pass_events import LIFETIME
from errandry.store.execute.upkeep import outlived
from errandry.store.health import Finding
from errandry.store.tables.counters import merged
from errandry.store.tables.protocol import Tables

PAGE_MAX = 10_000
COUNTED = 1_000
"""So many waiting jobs of a group are counted one by one."""
_ALL = Query()

T = TypeVar("T")


class TableStore:
    """The reads of the contract, in terms of `Tables`; one pass at a time, unless a driver says otherwise."""

    tracks = 1

    def __init__(self, clock: Clock | None = None, bounds: StoreLimits | None = None) -> None:
        self.clock = StoreClock(clock or SystemClock())
        self.bounds = bounds or StoreLimits()
        self.bell = ChangeCounter()

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

    def track(self, command: Command) -> int:  # noqa: ARG002 - all go on the one there is
        return 0

    def version(self) -> int:
        return self.bell.count

    async def wait_for_change(self, pulse: int, timeout: float) -> bool:
        return await self.bell.wait(pulse, timeout)

    async def read(self, look: Callable[[Tables, float], T]) -> T:
        """What `look` sees in the tables at one moment, and the time of that moment."""
        raise NotImplementedError

    async def get(self, ids: Sequence[str]) -> builtins.list[JobRecord | None]:
        for one in ids:
            check.name("id", one)

        def look(tables: Tables, _now: float) -> builtins.list[JobRecord | None]:
            found = tables.find(ids)
            return [found.get(one) for one in ids]

        return await self.read(look)

    async def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        check.name("part", part)
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, _now: tables.ids_matching(part, limit))

    async def list(self, query: Query = _ALL, cursor: str | None = None, limit: int = 50) -> RecordPage:
        check.whole("limit", limit, 1, PAGE_MAX)

        def look(tables: Tables, now: float) -> RecordPage:
            start = None if cursor is None else cursors.below(cursor, tables.identity, query)
            found = tables.matching(query, State, start, now, limit + 1)
            if len(found) <= limit:
                return RecordPage(tuple(found), None)
            page = tuple(found[:limit])
            return RecordPage(page, cursors.for_jobs(tables.identity, query, page[-1].seq))

        return await self.read(look)

    async def children(self, parent: str) -> builtins.list[EdgeRecord]:
        check.name("parent", parent)
        return await self.read(lambda tables, _now: tables.child_edges(parent))

    async def steps(self, job: str) -> builtins.list[Step]:
        check.name("job", job)
        return await self.read(lambda tables, _now: tables.steps(job))

    async def counts(self) -> dict[str, dict[str, int]]:
        return await self.read(lambda tables, _now: _counted(tables, lifetime=False))

    async def totals(self) -> dict[str, dict[str, int]]:
        return await self.read(lambda tables, _now: _counted(tables, lifetime=True))

    async def stats(self, since: float, until: float) -> builtins.list[StatsRow]:
        check.instant("since", since)
        check.instant("until", until)
        return await self.read(lambda tables, _now: merged(tables.stats(since, until)))

    async def queues(self) -> builtins.list[QueueInfo]:
        def look(tables: Tables, now: float) -> builtins.list[QueueInfo]:
            states, since = _counted(tables, lifetime=False), tables.ready_since()
            paused = _paused(tables, GateKind.QUEUE)
            return [
                QueueInfo(
                    name,
                    states.get(name, {}),
                    max(0.0, now - since[name]) if name in since else None,
                    paused.get(name),
                )
                for name in sorted(states.keys() | paused.keys())
            ]

        return await self.read(look)

    async def paused(self) -> dict[GateKind, dict[str, PauseInfo]]:
        kinds = (GateKind.QUEUE, GateKind.TASK, GateKind.WORKER)
        return await self.read(lambda tables, _now: {kind: _paused(tables, kind) for kind in kinds})

    async def rules(self) -> builtins.list[GateRecord]:
        def look(tables: Tables, now: float) -> builtins.list[GateRecord]:
            kinds = (GateKind.QUEUE, GateKind.TASK, GateKind.GROUP)
            return [
                replace(gate, tat=0.0, closed_until=max(0.0, gate.closed_until))
                for gate in tables.gates(*kinds)
                if gate.paused is not None or gate.ruling is not None or gate.closed_until > now
            ]

        return await self.read(look)

    async def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupInfo]:
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

    async def workers(self) -> builtins.list[WorkerInfo]:
        def look(tables: Tables, _now: float) -> builtins.list[WorkerInfo]:
            paused = _paused(tables, GateKind.WORKER)
            return [replace(info, paused=paused.get(info.beat.worker)) for info in tables.workers()]

        return await self.read(look)

    async def held(self, limit: int = 100) -> builtins.list[JobRecord]:
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, _now: tables.expired_jobs(inf, limit))

    async def cancels(self, worker: str) -> tuple[Ref, ...]:
        check.name("worker", worker)
        return await self.read(lambda tables, _now: tables.cancels(worker))

    async def events(self, after: str | None = None, limit: int = 1_000) -> EventPage:
        check.whole("limit", limit, 1, PAGE_MAX)

        def look(tables: Tables, _now: float) -> EventPage:
            first, _ = tables.event_log_span()
            start = (first, 0) if after is None else cursors.after(after, tables.identity)
            entries = tuple(tables.read_events(start, limit))
            onwards = max(start, (first, 0))  # what was missed is said once
            seen = entries[-1].cursor if entries else cursors.for_events(tables.identity, *onwards)
            return EventPage(entries, seen, missed=start[0] < first)

        return await self.read(look)

    async def latest_cursor(self, back: int = 0) -> str:
        check.whole("back", back, 0, check.INT_MAX)

        def look(tables: Tables, _now: float) -> str:
            first, last = tables.event_log_span()
            return cursors.for_events(tables.identity, max(first, last + 1 - back), 0)

        return await self.read(look)

    async def prunable(self, limit: int = 500) -> builtins.list[JobRecord]:
        check.whole("limit", limit, 1, PAGE_MAX)
        return await self.read(lambda tables, now: outlived(tables, now, limit))

    async def now(self) -> float:
        return await self.read(lambda _tables, now: now)

    async def due_in(self) -> float | None:
        def look(tables: Tables, now: float) -> float | None:
            if not tables.has_gates:
                return due_in(tables, None, now)
            permits = Permits(tables.gates(GateKind.QUEUE, GateKind.TASK), now)
            if permits.has_limits:
                permits.hold(tables.held_counts())
            return due_in(tables, permits, now)

        return await self.read(look)


def _groups(tables: Tables, queue: str | None, limit: int, now: float) -> list[GroupInfo]:
    waiting = {(name, group): count for name, group, count in tables.group_sizes(queue, limit, COUNTED)}
    held: Counter[tuple[str, str]] = Counter()
    for (name, _task, group), count in tables.held_counts().items():
        if group and queue in (None, name):
            held[name, group] += count
    gates = {(gate.name, gate.group): gate for gate in tables.gates(GateKind.GROUP)}
    gates = {
        key: gate for key, gate in gates.items() if queue in (None, key[0]) and not gate.says_nothing(now)
    }
    rules = {gate.name: gate.rule for gate in tables.gates(GateKind.QUEUE)}
    found = []
    for name, group in sorted({*waiting, *held, *gates}):
        gate = gates.get((name, group)) or GateRecord(GateKind.GROUP, name, group)
        limit_and_rate = limits(gate.rule, rules.get(name, NO_RULE))
        found.append(GroupInfo(waiting.get((name, group), 0), held[name, group], gate, *limit_and_rate))
    return found


def failed(command: Command, error: Exception) -> CommandFailed:
    """The answer to a command that could not be written."""
    failed = CommandFailed(type(command).__name__, f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


def reach(when: str, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
    """The failpoints around the commit of a pass that has claimed something, settles, or is an operator's."""
    if failpoint.IS_ARMED:
        if any(isinstance(answer, Claims) and answer.jobs for answer in answers):
            failpoint.reach(f"{when}_claim_commit")
        if any(isinstance(command, Settle) for command in commands):
            failpoint.reach(f"{when}_settle_commit")
        if any(isinstance(command, JobSelection) for command in commands):
            failpoint.reach(f"{when}_operator_commit")


def _paused(tables: Tables, kind: GateKind) -> dict[str, PauseInfo]:
    return {gate.name: gate.paused for gate in tables.gates(kind) if gate.paused is not None}


def _counted(tables: Tables, lifetime: bool) -> dict[str, dict[str, int]]:
    return {
        queue: {
            name.removeprefix(LIFETIME): number
            for name, number in sorted(counters.items())
            if number and name.startswith(LIFETIME) == lifetime and not is_time(name)
        }
        for queue, counters in tables.counters().items()
    }
