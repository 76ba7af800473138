"""The tables of the memory store: dictionaries of jobs and, for each lane, its waiting jobs in order."""

import secrets
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice, takewhile
from typing import Any

from msgspec.structs import replace

from errandry.core.command import Beat, Claim, Ref, WorkerRecord
from errandry.core.event import EventRecord, EventRun, expand
from errandry.core.fair_queueing import OldestJob, OpenLane, Position
from errandry.core.gate import GateKey, GateKind, GateRecord, LaneKey
from errandry.core.job import JobRecord, Keep
from errandry.core.permit import NEVER
from errandry.core.query import Query
from errandry.core.state import HELD_STATES, TERMINAL, State
from errandry.core.suspect import SuspectKind
from errandry.core.unique import KeyHolder
from errandry.store import cursors
from errandry.store.contract import ANSWERS_AGE, EventEntry, StoreLimits
from errandry.store.memory.counters import MemoryCounters
from errandry.store.tables.protocol import (
    ANSWERS_TRIM_FACTOR,
    BestJobs,
    Change,
    ClaimedRefs,
    Deltas,
    DueTimes,
)

_UNTAKEN = (State.BLOCKED, State.SCHEDULED, State.WAITING)


class MemoryTables(MemoryCounters):
    """All tables of the memory store. Only one pass runs at a time, so nothing needs locks."""

    has_latency = reserves_numbers = False

    def __init__(self) -> None:
        super().__init__()
        self.identity = secrets.token_hex(8)
        self.is_dirty = False
        self._number = 0
        self._keys: dict[str, KeyHolder] = {}
        self._states: dict[State, dict[str, JobRecord]] = {state: {} for state in State}
        self._deadlines: dict[str, JobRecord] = {}
        self._suspects: dict[str, JobRecord] = {}
        self._lanes: dict[LaneKey, list[tuple[int, int, str]]] = {}
        self._log: list[tuple[int, float, tuple[EventRecord, ...]]] = []
        self._rows = 0
        self._claims: dict[str, tuple[float, dict[str, ClaimedRefs]]] = {}
        self._answers: dict[str, tuple[float, str]] = {}
        self._gates: dict[GateKey, GateRecord] = {}
        self._virtual_starts: dict[tuple[str, str], float] = {}
        self._virtual_times: dict[str, tuple[float, float]] = {}
        self._parked: dict[LaneKey, float] = {}
        self._workers: dict[str, WorkerRecord] = {}

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def expect_numbers(self, count: int) -> None: ...

    def write_jobs(self, changes: Iterable[Change]) -> None:
        self.is_dirty = True
        for before, after in changes:
            if before is not None:
                self._remove(before)
            if after is not None:
                self._jobs[after.id] = self._states[after.state][after.id] = after
                if after.deadline is not None and after.state in _UNTAKEN:
                    self._deadlines[after.id] = after
                if after.crashes and not after.finished:
                    self._suspects[after.id] = after
                if after.state is State.WAITING:
                    insort(self._lanes.setdefault(_lane_of(after), []), _position_of(after))

    def _remove(self, job: JobRecord) -> None:
        del self._jobs[job.id], self._states[job.state][job.id]
        self._deadlines.pop(job.id, None)
        self._suspects.pop(job.id, None)
        if job.state is State.WAITING:
            lane = self._lanes[_lane_of(job)]
            del lane[bisect_left(lane, _position_of(job))]
            if not lane:
                del self._lanes[_lane_of(job)]

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        return {slot: self._keys[slot] for slot in slots if slot in self._keys}

    def write_keys(
        self,
        freed: Mapping[str, str],
        taken: Mapping[str, KeyHolder],
        rivals: Mapping[str, str],  # noqa: ARG002 - no other pass can have taken a key
        now: float,  # noqa: ARG002 - this pass has checked what is expired
    ) -> None:
        for slot, job in freed.items():
            if slot in self._keys and self._keys[slot].job == job:
                del self._keys[slot]
        self._keys |= taken

    def append_events(self, now: float, event_runs: Sequence[EventRun], deltas: Deltas) -> None:
        self.is_dirty = True
        self._rows += 1
        self._log.append((self._rows, now, expand(event_runs)))
        self.count(now, deltas)

    def find_jobs(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        return {job_id: self._jobs[job_id] for job_id in ids if job_id in self._jobs}

    def ids_matching(self, part: str, limit: int) -> list[str]:
        ids = (job_id for job_id in self._jobs if job_id.startswith(part) or job_id.endswith(part))
        return sorted(ids)[:limit]

    def matching_jobs(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        jobs = (job for job in self._below(states, below) if job.seq > above and query.matches(job, now))
        return sorted(jobs, key=lambda job: -job.seq)[:limit]

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        seqs = sorted((job.seq for job in self._below(states, below)), reverse=True)
        return seqs[jobs] if len(seqs) > jobs else 0

    def _below(self, states: Iterable[State], below: int | None) -> Iterable[JobRecord]:
        return (job for job in self._jobs_in(*states) if below is None or job.seq < below)

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        pairs: dict[tuple[str, str], list[OpenLane]] = {}
        for key in self._lanes:
            if _is_wanted(key, claim, queues, tasks) and key not in self._parked:
                queue, _, group = key
                virtual_time = self._virtual_times.get(queue, (0.0, 0.0))[0]
                start = max(self._virtual_starts.get((queue, group), 0.0), virtual_time)
                first = next(self._waiting_jobs(key, claim.suspect_filter), None)
                if first is not None:
                    lane = OpenLane(key, *key, start, virtual_time, 0, (first.priority, first.place or 0))
                    pairs.setdefault(key[:2], []).append(lane)
        by_turn = (sorted(pair, key=lambda lane: (lane.virtual_start, lane.group)) for pair in pairs.values())
        return [lane for pair in by_turn for lane in pair[:width]]

    def best_jobs(self, lanes: Sequence[OpenLane], limit: int, suspects: SuspectKind) -> BestJobs:
        waiting = (self._waiting_jobs(lane.id, suspects) for lane in lanes)
        return BestJobs(list(islice(merge(*waiting, key=_position_of), limit)))

    def positions(
        self, lanes: Sequence[OpenLane], per_lane: int, suspects: SuspectKind
    ) -> dict[Any, list[Position]]:
        return {
            lane.id: [
                Position(job.priority, job.place or 0, job.seq, lane.id)
                for job in islice(self._waiting_jobs(lane.id, suspects), per_lane)
            ]
            for lane in lanes
        }

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        waiting = {job.seq: job for job in self._jobs_in(State.WAITING)}
        return [waiting[seq] for seq in seqs]

    def oldest_jobs(self, lanes: Sequence[Any], per_kind: int, suspects: SuspectKind) -> list[OldestJob]:
        kinds: dict[tuple[Any, int, bool], list[OldestJob]] = {}
        for lane in lanes:
            for job in self._waiting_jobs(lane, suspects):
                place = job.place or 0
                oldest = OldestJob(
                    Position(job.priority, place, job.seq, lane), max(job.created_at, job.run_at or 0.0)
                )
                kinds.setdefault((lane, job.priority, place > 0), []).append(oldest)
        return [
            oldest
            for kind in kinds.values()
            for oldest in sorted(kind, key=lambda oldest: abs(oldest.position.place))[:per_kind]
        ]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        return [lane for lane in self._lanes if lane[0] == queue and group in (None, lane[2])]

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        """Do nothing: only one pass runs at a time."""

    def group_size(self, queue: str, group: str) -> int:
        return sum(len(self._lanes[lane]) for lane in self.lanes_of(queue, group))

    def jobs_at(self, positions: Sequence[Position], suspects: SuspectKind) -> list[JobRecord]:  # noqa: ARG002 - no other pass claims
        return self.jobs_by_seq([position.seq for position in positions])

    def put_virtual_starts(self, queue: str, starts: Mapping[str, float], virtual_time: float) -> None:
        self._virtual_starts |= {(queue, group): start for group, start in starts.items()}
        highest_start = max(self._virtual_times.get(queue, (0.0, 0.0))[1], *starts.values())
        self._virtual_times[queue] = virtual_time, highest_start

    def reset_virtual_time(self, queue: str) -> None:
        self._virtual_times[queue] = (self._virtual_times[queue][1],) * 2

    def park_lanes(self, lanes: Sequence[tuple[OpenLane, float]], now: float) -> bool:  # noqa: ARG002 - not saved here
        self._parked |= {lane.id: open_at for lane, open_at in lanes}
        return bool(lanes)

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        self._unpark([lane for lane in self._parked if (lane[0], lane[2]) in groups])

    def unpark_queue(self, queue: str) -> None:
        self._unpark([lane for lane in self._parked if lane[0] == queue])

    def unpark_due(self, now: float) -> None:
        self._unpark([lane for lane, open_at in self._parked.items() if open_at <= now])

    def _unpark(self, lanes: Iterable[LaneKey]) -> None:
        for lane in lanes:
            del self._parked[lane]

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        return list({lane[:2]: None for lane in self._lanes if lane not in self._parked})

    def _waiting_jobs(self, lane: LaneKey, suspects: SuspectKind) -> Iterator[JobRecord]:
        jobs = (self._jobs[job_id] for _, _, job_id in self._lanes.get(lane, ()))
        return (job for job in jobs if not job.crashes or suspects in (SuspectKind.ANY, job.suspect))

    def is_drained(self, queue: str) -> bool:
        return not any(lane[0] == queue for lane in self._lanes)

    def due_times(self) -> DueTimes:
        return DueTimes(
            min((_run_at(job) for job in self._jobs_in(State.SCHEDULED)), default=None),
            min((_lease_until(job) for job in self._jobs_in(*HELD_STATES)), default=None),
            min(map(_deadline, self._deadlines.values()), default=None),
            min(
                (at for lane, at in self._parked.items() if lane in self._lanes and at < NEVER), default=None
            ),
            self._next_tick(),
            *self._waiting_suspects(),
        )

    def _waiting_suspects(self) -> tuple[bool, bool]:
        kinds = {job.suspect for job in self._suspects.values() if job.state is State.WAITING}
        return SuspectKind.SHARED in kinds, SuspectKind.ISOLATED in kinds

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return _earliest((j for j in self._jobs_in(State.SCHEDULED) if _run_at(j) <= now), _run_at, limit)

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return _earliest(
            (job for job in self._jobs_in(*HELD_STATES) if _lease_until(job) <= now), _lease_until, limit
        )

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        lapsed = (job for job in self._deadlines.values() if _deadline(job) <= now)
        return _earliest(lapsed, _deadline, limit)

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        expired = (job for job in self._jobs_in(*TERMINAL) if _expires_at(job) <= now)
        return _earliest(expired, _expires_at, limit)

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        newest: dict[tuple[str, State], Keep] = {}
        for job in self._kept_by_number():
            if job.keep is not None:
                newest[job.task, job.state] = job.keep
        return [(*task_and_state, newest[task_and_state]) for task_and_state in sorted(newest)]

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        jobs = [job for job in self._kept_by_number() if (job.task, job.state) == (task, state)]
        return jobs[: max(0, len(jobs) - last)][:limit]

    def _kept_by_number(self) -> list[JobRecord]:
        jobs = (job for job in self._jobs_in(*TERMINAL) if job.keep is not None and job.keep.is_by_number)
        return sorted(jobs, key=lambda job: (job.finished_at, job.seq))

    def jobs_held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return _earliest(
            (job for job in self._jobs_in(*HELD_STATES) if job.worker in workers), _lease_until, limit
        )

    def jobs_lost_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return list(islice((job for job in self._suspects.values() if job.lost_by in workers), limit))

    def cancel_requests(self, worker: str) -> tuple[Ref, ...]:
        canceled = (
            job for job in self._jobs_in(State.RUNNING) if job.cancel_requested and job.worker == worker
        )
        return tuple(Ref(job.id, job.fence) for job in sorted(canceled, key=lambda job: job.seq))

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        self._claims[worker] = (now, dict(claims))

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        return self._claims[worker][1].get(nonce) if worker in self._claims else None

    def save_answers(self, answers: Mapping[str, str], now: float) -> None:
        self._answers |= {nonce: (now, answer) for nonce, answer in answers.items()}

    def load_answers(self, nonces: Sequence[str]) -> dict[str, str]:
        return {nonce: self._answers[nonce][1] for nonce in nonces if nonce in self._answers}

    def gate(self, key: GateKey) -> GateRecord:
        return self._gates.get(key) or GateRecord(*key)

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        for gate in gates:
            self._gates.pop(gate.key, None)
            if not gate.is_default(now):
                self._gates[gate.key] = gate

    @property
    def has_gates(self) -> bool:
        return bool(self._gates)

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        return [self._gates[key] for kind in kinds for key in sorted(self._gates) if key[0] is kind]

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        keys = [(GateKind.GROUP, *group) for group in groups]
        return [self._gates[key] for key in keys if key in self._gates], []

    def lock_gates(
        self,
        keys: Sequence[GateKey],
        created: Collection[GateKey] = (),  # noqa: ARG002 - only one pass runs at a time
    ) -> list[GateRecord]:
        return [self._gates[key] for key in keys if key in self._gates]

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        for key, at in until.items():
            gate = self.gate(key)
            self._gates[key] = replace(gate, closed_until=at and max(at, gate.closed_until))

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        for key, tat in tats.items():
            self._gates[key] = replace(self.gate(key), tat=tat)

    def held_counts(self) -> dict[LaneKey, int]:
        return Counter(map(_lane_of, self._jobs_in(*HELD_STATES)))

    def group_sizes(self, queue: str | None, limit: int, max_count: int) -> list[tuple[str, str, int]]:
        waiting: Counter[tuple[str, str]] = Counter()
        for (name, _task, group), lane in self._lanes.items():
            if group and queue in (None, name):
                waiting[name, group] += len(lane)
        return [(*key, min(waiting[key], max_count)) for key in sorted(waiting)][:limit]

    def save_beat(self, beat: Beat, now: float) -> None:
        if beat.gone:
            self._workers.pop(beat.worker, None)
        else:
            self._workers[beat.worker] = WorkerRecord(beat, now)

    def workers(self) -> list[WorkerRecord]:
        return [self._workers[worker] for worker in sorted(self._workers)]

    def ready_since(self) -> dict[str, float]:
        since: dict[str, float] = {}
        for lane in self._lanes.values():
            job = self._jobs[lane[0][2]]
            moment = max(job.created_at, job.run_at or 0.0)
            since[job.queue] = min(moment, since.get(job.queue, moment))
        return since

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        row, seen = after
        entries = (
            EventEntry(cursors.in_row(self.identity, number, index, len(events)), at, event)
            for number, at, events in self._log
            if number >= row
            for index, event in enumerate(events)
            if number > row or index >= seen
        )
        return list(islice(entries, limit))

    def event_log_span(self) -> tuple[int, int]:
        return (self._log[0][0] if self._log else self._rows + 1), self._rows

    def trim(self, now: float, limits: StoreLimits, limit: int) -> int:
        self._roll(now)
        rows_deleted, event_count = 0, sum(len(events) for _, _, events in self._log)
        for _, at, events in self._log[:limit]:
            if event_count <= limits.events and at > now - limits.events_age:
                break
            rows_deleted, event_count = rows_deleted + 1, event_count - len(events)
        del self._log[:rows_deleted]
        silent = [
            worker for worker, info in self._workers.items() if info.seen_at <= now - limits.workers_age
        ]
        for worker in silent:
            del self._workers[worker]
        for worker, (at, _) in list(self._claims.items()):
            if at <= now - limits.workers_age:
                del self._claims[worker]
        old = takewhile(lambda entry: entry[1][0] <= now - ANSWERS_AGE, self._answers.items())  # by age
        for nonce, _ in list(islice(old, ANSWERS_TRIM_FACTOR * limit)):
            del self._answers[nonce]
        by_expiry = sorted(
            (key.expires_at, slot) for slot, key in self._keys.items() if key.expires_at is not None
        )
        expired = [slot for expires_at, slot in by_expiry[:limit] if expires_at <= now]
        for slot in expired:
            del self._keys[slot]
        for key, gate in list(self._gates.items()):
            if gate.is_default(now):
                del self._gates[key]
        for queue in self._virtual_times:
            if self.is_drained(queue):
                self.reset_virtual_time(queue)
        self._virtual_starts = {
            group: start
            for group, start in self._virtual_starts.items()
            if start > self._virtual_times[group[0]][0]
        }
        return rows_deleted + len(silent) + len(expired)

    def _jobs_in(self, *states: State) -> Iterable[JobRecord]:
        return chain.from_iterable(self._states[state].values() for state in states)


def _is_wanted(lane: LaneKey, claim: Claim, queues: Sequence[str], tasks: Sequence[str]) -> bool:
    queue, task, _group = lane
    return (
        (claim.queues is None or queue in claim.queues)
        and (claim.tasks is None or task in claim.tasks)
        and not (task in claim.without or task in tasks or queue in queues)
    )


def _lane_of(job: JobRecord) -> LaneKey:
    return job.queue, job.task, job.group


def _position_of(job: JobRecord) -> tuple[int, int, str]:
    return job.priority, job.place or 0, job.id


def _deadline(job: JobRecord) -> float:
    return job.deadline or 0.0


def _run_at(job: JobRecord) -> float:
    return job.run_at or 0.0


def _lease_until(job: JobRecord) -> float:
    return job.lease_until or 0.0


def _expires_at(job: JobRecord) -> float:
    return job.expires_at or 0.0


def _earliest(jobs: Iterable[JobRecord], key: Callable[[JobRecord], float], limit: int) -> list[JobRecord]:
    """Return the `limit` earliest jobs; of jobs with equal times, those inserted first."""
    return sorted(jobs, key=lambda job: (key(job), job.seq))[:limit]
