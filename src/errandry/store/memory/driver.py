"""The memory store: the reference. Nothing survives the process.

Latency and failures can be injected at run time, to see what a program does when its store
is slow or away.
"""

import asyncio
import secrets
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, TypeVar

from msgspec.structs import replace

from errandry.clock import Clock
from errandry.core.answer import Answer
from errandry.core.command import Beat, Claim, Command, Ref, WorkerInfo
from errandry.core.event import Event, EventRun, expand
from errandry.core.fair_queueing import OldestJob, OpenLane, Position
from errandry.core.gate import GateKey, GateKind, GateRecord, LaneKey
from errandry.core.job import JobRecord, Keep
from errandry.core.permit import NEVER
from errandry.core.query import Query
from errandry.core.state import HELD_STATES, TERMINAL, State
from errandry.core.unique import KeyHolder
from errandry.errors import ErrandryError, InvalidValue, StoreClosed
from errandry.store import cursors
from errandry.store.contract import Binding, EventEntry, StoreLimits
from errandry.store.execute.apply import apply
from errandry.store.health import Finding, Grade
from errandry.store.memory.counters import MemoryCounters
from errandry.store.table_store import TableStore
from errandry.store.tables.protocol import Change, ClaimedRefs, Deltas, DueTimes, Tables

_UNTAKEN = (State.BLOCKED, State.SCHEDULED, State.WAITING)
T = TypeVar("T")


class MemoryStore(TableStore):
    """All of the contract in plain dictionaries.

    `latency` delays each commit; `fail_before` and `fail_after` are errors to raise, one per
    commit, before anything was written or when everything has been.
    """

    def __init__(self, clock: Clock | None = None, bounds: StoreLimits | None = None) -> None:
        super().__init__(clock, bounds)
        self.tables = MemoryTables()
        self.latency = 0.0
        self.fail_before: list[ErrandryError] = []
        self.fail_after: list[ErrandryError] = []
        self._closed = False

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self.bell.increment()

    async def diagnose(self) -> list[Finding]:
        return [Finding(Grade.NOTE, "durability", "in memory: nothing survives the process")]

    def bind(self, connection: object) -> Binding:
        why = "a store in memory has no transactions that it could join: use sqlite: or postgresql:"
        raise InvalidValue("connection", type(connection).__name__, why)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self._closed:
            raise StoreClosed("memory", "the store is closed")
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.fail_before:
            raise self.fail_before.pop(0)
        self.tables.is_dirty = False
        answers = apply(commands, self.tables, self.clock.now(), self.bounds)
        if self.tables.is_dirty:  # or whoever claims in vain would wake itself by it
            self.bell.increment()
        if self.fail_after:
            raise self.fail_after.pop(0)
        return answers

    async def read(self, look: Callable[[Tables, float], T]) -> T:
        if self._closed:
            raise StoreClosed("memory", "the store is closed")
        return look(self.tables, self.clock.now())


class MemoryTables(MemoryCounters):
    """Dictionaries of jobs and, for each lane, its waiting jobs in order."""

    has_latency = reserves_numbers = False

    def __init__(self) -> None:
        super().__init__()
        self.identity = secrets.token_hex(8)
        self.is_dirty = False
        self._number = 0
        self._keys: dict[str, KeyHolder] = {}
        self._states: dict[State, dict[str, JobRecord]] = {state: {} for state in State}
        self._deadlines: dict[str, JobRecord] = {}
        self._lines: dict[LaneKey, list[tuple[int, int, str]]] = {}
        self._log: list[tuple[int, float, tuple[Event, ...]]] = []
        self._rows = 0
        self._claims: dict[str, tuple[float, dict[str, ClaimedRefs]]] = {}
        self._gates: dict[GateKey, GateRecord] = {}
        self._turns: dict[tuple[str, str], float] = {}
        self._rounds: dict[str, tuple[float, float]] = {}
        self._parked: dict[LaneKey, float] = {}
        self._workers: dict[str, WorkerInfo] = {}

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def expect_numbers(self, numbers: int) -> None: ...

    def write(self, changes: Iterable[Change]) -> None:
        self.is_dirty = True
        for before, after in changes:
            if before is not None:
                self._take_out(before)
            if after is not None:
                self._jobs[after.id] = self._states[after.state][after.id] = after
                if after.deadline is not None and after.state in _UNTAKEN:
                    self._deadlines[after.id] = after
                if after.state is State.WAITING:
                    insort(self._lines.setdefault(_lane(after), []), _spot(after))

    def _take_out(self, job: JobRecord) -> None:
        del self._jobs[job.id], self._states[job.state][job.id]
        self._deadlines.pop(job.id, None)
        if job.state is State.WAITING:
            line = self._lines[_lane(job)]
            del line[bisect_left(line, _spot(job))]
            if not line:
                del self._lines[_lane(job)]

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        return {one: self._keys[one] for one in slots if one in self._keys}

    def write_keys(
        self,
        freed: Mapping[str, str],
        taken: Mapping[str, KeyHolder],
        rivals: Mapping[str, str],  # noqa: ARG002 - nobody else can have taken one meanwhile
        now: float,  # noqa: ARG002 - whose time is over was decided in this pass
    ) -> None:
        for slot, job in freed.items():
            if slot in self._keys and self._keys[slot].job == job:
                del self._keys[slot]
        self._keys |= taken

    def append_events(self, now: float, told: Sequence[EventRun], deltas: Deltas) -> None:
        self.is_dirty = True
        self._rows += 1
        self._log.append((self._rows, now, expand(told)))
        self.count(now, deltas)

    def find(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        return {one: self._jobs[one] for one in ids if one in self._jobs}

    def ids_matching(self, part: str, limit: int) -> list[str]:
        return sorted(one for one in self._jobs if one.startswith(part) or one.endswith(part))[:limit]

    def matching(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        found = (job for job in self._under(states, below) if job.seq > above and query.matches(job, now))
        return sorted(found, key=lambda job: -job.seq)[:limit]

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        seqs = sorted((job.seq for job in self._under(states, below)), reverse=True)
        return seqs[jobs] if len(seqs) > jobs else 0

    def _under(self, states: Iterable[State], below: int | None) -> Iterable[JobRecord]:
        return (job for job in self._where(*states) if below is None or job.seq < below)

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        pairs: dict[tuple[str, str], list[OpenLane]] = {}
        for lane in self._lines:
            if _is_wanted(lane, claim, queues, tasks) and lane not in self._parked:
                queue, _, group = lane
                round_ = self._rounds.get(queue, (0.0, 0.0))[0]
                turn = max(self._turns.get((queue, group), 0.0), round_)
                first = next(self._line(lane, claim.suspects != 0), None)
                if first is not None:
                    line = OpenLane(lane, *lane, turn, round_, 0, (first.priority, first.place or 0))
                    pairs.setdefault(lane[:2], []).append(line)
        by_turn = (sorted(pair, key=lambda line: (line.turn, line.group)) for pair in pairs.values())
        return [line for pair in by_turn for line in pair[:width]]

    def best_jobs(self, lines: Sequence[OpenLane], limit: int, suspects: bool) -> list[JobRecord]:
        return list(islice(merge(*(self._line(line.lane, suspects) for line in lines), key=_spot), limit))

    def positions(self, lines: Sequence[OpenLane], each: int, suspects: bool) -> dict[Any, list[Position]]:
        return {
            line.lane: [
                Position(job.priority, job.place or 0, job.seq, line.lane)
                for job in islice(self._line(line.lane, suspects), each)
            ]
            for line in lines
        }

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        found = {job.seq: job for job in self._where(State.WAITING)}
        return [found[seq] for seq in seqs]

    def oldest_jobs(self, lanes: Sequence[Any], each: int, suspects: bool) -> list[OldestJob]:
        kinds: dict[tuple[Any, int, bool], list[OldestJob]] = {}
        for lane in lanes:
            for job in self._line(lane, suspects):
                place = job.place or 0
                elder = OldestJob(
                    Position(job.priority, place, job.seq, lane), max(job.created_at, job.run_at or 0.0)
                )
                kinds.setdefault((lane, job.priority, place > 0), []).append(elder)
        return [
            elder
            for kind in kinds.values()
            for elder in sorted(kind, key=lambda elder: abs(elder.spot.place))[:each]
        ]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        return [lane for lane in self._lines if lane[0] == queue and group in (None, lane[2])]

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        """One pass comes after the other."""

    def group_size(self, queue: str, group: str) -> int:
        return sum(len(self._lines[lane]) for lane in self.lanes_of(queue, group))

    def take(self, spots: Sequence[Position], suspects: bool) -> list[JobRecord]:  # noqa: ARG002 - spots are exact
        return self.jobs_by_seq([spot.seq for spot in spots])

    def put_turns(self, queue: str, turns: Mapping[str, float], round_: float) -> None:
        self._turns |= {(queue, group): turn for group, turn in turns.items()}
        last = max(self._rounds.get(queue, (0.0, 0.0))[1], *turns.values())
        self._rounds[queue] = round_, last

    def reset_turns(self, queue: str) -> None:
        self._rounds[queue] = (self._rounds[queue][1],) * 2

    def park_lanes(self, lines: Sequence[tuple[OpenLane, float]], now: float) -> bool:  # noqa: ARG002 - times are not kept
        self._parked |= {line.lane: open_at for line, open_at in lines}
        return bool(lines)

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        self._open([lane for lane in self._parked if (lane[0], lane[2]) in groups])

    def unpark_queue(self, queue: str) -> None:
        self._open([lane for lane in self._parked if lane[0] == queue])

    def unpark_due(self, now: float) -> None:
        self._open([lane for lane, open_at in self._parked.items() if open_at <= now])

    def _open(self, lanes: Iterable[LaneKey]) -> None:
        for lane in lanes:
            del self._parked[lane]

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        return list({lane[:2]: None for lane in self._lines if lane not in self._parked})

    def _line(self, lane: LaneKey, suspects: bool) -> Iterator[JobRecord]:
        jobs = (self._jobs[job_id] for _, _, job_id in self._lines.get(lane, ()))
        return (job for job in jobs if suspects or not job.crashes)

    def is_drained(self, queue: str) -> bool:
        return not any(lane[0] == queue for lane in self._lines)

    def due_times(self) -> DueTimes:
        return DueTimes(
            min((_run_at(job) for job in self._where(State.SCHEDULED)), default=None),
            min((_lease(job) for job in self._where(*HELD_STATES)), default=None),
            min(map(_deadline, self._deadlines.values()), default=None),
            min(
                (at for lane, at in self._parked.items() if lane in self._lines and at < NEVER), default=None
            ),
            self._next_tick(),
        )

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return _first((j for j in self._where(State.SCHEDULED) if _run_at(j) <= now), _run_at, limit)

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return _first((job for job in self._where(*HELD_STATES) if _lease(job) <= now), _lease, limit)

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        past = (job for job in self._deadlines.values() if _deadline(job) <= now)
        return _first(past, _deadline, limit)

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        past = (job for job in self._where(*TERMINAL) if _expiry(job) <= now)
        return _first(past, _expiry, limit)

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        newest: dict[tuple[str, State], Keep] = {}
        for job in self._by_number():
            if job.keep is not None:
                newest[job.task, job.state] = job.keep
        return [(*shelf, newest[shelf]) for shelf in sorted(newest)]

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        jobs = [job for job in self._by_number() if (job.task, job.state) == (task, state)]
        return jobs[: max(0, len(jobs) - last)][:limit]

    def _by_number(self) -> list[JobRecord]:
        kept = (job for job in self._where(*TERMINAL) if job.keep is not None and job.keep.is_by_number)
        return sorted(kept, key=lambda job: (job.finished_at, job.seq))

    def held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return _first((job for job in self._where(*HELD_STATES) if job.worker in workers), _lease, limit)

    def cancels(self, worker: str) -> tuple[Ref, ...]:
        mine = (job for job in self._where(State.RUNNING) if job.cancel_requested and job.worker == worker)
        return tuple(Ref(job.id, job.fence) for job in sorted(mine, key=lambda job: job.seq))

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        self._claims[worker] = (now, dict(claims))

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        return self._claims[worker][1].get(nonce) if worker in self._claims else None

    def gate(self, key: GateKey, make: bool = False) -> GateRecord:  # noqa: ARG002 - one pass comes after the other
        return self._gates.get(key) or GateRecord(*key)

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        for gate in gates:
            self._gates.pop(gate.key, None)
            if not gate.says_nothing(now):
                self._gates[gate.key] = gate

    @property
    def has_gates(self) -> bool:
        return bool(self._gates)

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        return [self._gates[key] for kind in kinds for key in sorted(self._gates) if key[0] is kind]

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        keys = [(GateKind.GROUP, *group) for group in groups]
        return [self._gates[key] for key in keys if key in self._gates], []

    def lock_gates(self, keys: Sequence[GateKey]) -> list[GateRecord]:
        return [self._gates[key] for key in keys if key in self._gates]

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        for key, at in until.items():
            gate = self.gate(key)
            self._gates[key] = replace(gate, closed_until=at and max(at, gate.closed_until))

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        for key, tat in tats.items():
            self._gates[key] = replace(self.gate(key), tat=tat)

    def held_counts(self) -> dict[LaneKey, int]:
        return Counter(map(_lane, self._where(*HELD_STATES)))

    def group_sizes(self, queue: str | None, limit: int, bound: int) -> list[tuple[str, str, int]]:
        waiting: Counter[tuple[str, str]] = Counter()
        for (name, _task, group), line in self._lines.items():
            if group and queue in (None, name):
                waiting[name, group] += len(line)
        return [(*key, min(waiting[key], bound)) for key in sorted(waiting)][:limit]

    def beat(self, beat: Beat, now: float) -> None:
        if beat.gone:
            self._workers.pop(beat.worker, None)
        else:
            self._workers[beat.worker] = WorkerInfo(beat, now)

    def workers(self) -> list[WorkerInfo]:
        return [self._workers[worker] for worker in sorted(self._workers)]

    def ready_since(self) -> dict[str, float]:
        since: dict[str, float] = {}
        for line in self._lines.values():
            job = self._jobs[line[0][2]]
            moment = max(job.created_at, job.run_at or 0.0)
            since[job.queue] = min(moment, since.get(job.queue, moment))
        return since

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        row, seen = after
        found = (
            EventEntry(cursors.in_row(self.identity, number, index, len(events)), at, event)
            for number, at, events in self._log
            if number >= row
            for index, event in enumerate(events)
            if number > row or index >= seen
        )
        return list(islice(found, limit))

    def event_log_span(self) -> tuple[int, int]:
        return (self._log[0][0] if self._log else self._rows + 1), self._rows

    def trim(self, now: float, bounds: StoreLimits, limit: int) -> int:
        self._roll(now)
        went, held = 0, sum(len(events) for _, _, events in self._log)
        for _, at, events in self._log[:limit]:
            if held <= bounds.events and at > now - bounds.events_age:
                break
            went, held = went + 1, held - len(events)
        del self._log[:went]
        silent = [
            worker for worker, info in self._workers.items() if info.seen_at <= now - bounds.workers_age
        ]
        for worker in silent:
            del self._workers[worker]
        for worker, (at, _) in list(self._claims.items()):
            if at <= now - bounds.workers_age:
                del self._claims[worker]
        over = sorted((key.expires_at, one) for one, key in self._keys.items() if key.expires_at is not None)
        past = [one for expires_at, one in over[:limit] if expires_at <= now]
        for one in past:
            del self._keys[one]
        for key, gate in list(self._gates.items()):
            if gate.says_nothing(now):
                del self._gates[key]
        for queue in self._rounds:
            if self.is_drained(queue):
                self.reset_turns(queue)
        self._turns = {group: turn for group, turn in self._turns.items() if turn > self._rounds[group[0]][0]}
        return went + len(silent) + len(past)

    def _where(self, *states: State) -> Iterable[JobRecord]:
        return chain.from_iterable(self._states[state].values() for state in states)


def _is_wanted(lane: LaneKey, claim: Claim, queues: Sequence[str], tasks: Sequence[str]) -> bool:
    queue, task, _group = lane
    return (
        (claim.queues is None or queue in claim.queues)
        and (claim.tasks is None or task in claim.tasks)
        and not (task in claim.without or task in tasks or queue in queues)
    )


def _lane(job: JobRecord) -> LaneKey:
    return job.queue, job.task, job.group


def _spot(job: JobRecord) -> tuple[int, int, str]:
    return job.priority, job.place or 0, job.id


def _deadline(job: JobRecord) -> float:
    return job.deadline or 0.0


def _run_at(job: JobRecord) -> float:
    return job.run_at or 0.0


def _lease(job: JobRecord) -> float:
    return job.lease_until or 0.0


def _expiry(job: JobRecord) -> float:
    return job.expires_at or 0.0


def _first(jobs: Iterable[JobRecord], key: Callable[[JobRecord], float], limit: int) -> list[JobRecord]:
    """The `limit` earliest; equals in the order they were inserted, as everywhere."""
    return sorted(jobs, key=lambda job: (key(job), job.seq))[:limit]
