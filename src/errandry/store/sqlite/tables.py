"""The tables of a pass in SQLite: it runs statements and returns rows.

A pass uses it on the writing connection between `begin` and `save_state`; reads use it on the reading
connection.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import apsw
import msgspec

from errandry.core.command import (
    Beat,
    Claim,
    Ref,
    WorkerRecord,
)
from errandry.core.event import EventRun
from errandry.core.fair_queueing import AGED_PRIORITY, OldestJob, OpenLane, Position, urgency
from errandry.core.flow import EdgeRecord
from errandry.core.job import JobRecord, Keep
from errandry.core.query import Query, fold
from errandry.core.state import HELD_STATES, TERMINAL, Reason, State
from errandry.core.suspect import SuspectKind
from errandry.core.unique import KeyHolder
from errandry.store import cursors
from errandry.store.contract import ANSWERS_AGE, EventEntry, StoreLimits
from errandry.store.sqlite.counters import SqliteCounters
from errandry.store.sqlite.gates import SQL
from errandry.store.tables import rows
from errandry.store.tables.protocol import (
    ANSWERS_TRIM_FACTOR,
    BestJobs,
    Change,
    ClaimedRefs,
    Deltas,
    DueTimes,
)
from errandry.store.tables.writes import group_by_tail, plan_writes

FOLD_INTERVAL = 256
"""Number of event rows after which a pass folds their counter changes into the totals."""
IDLE_LANE_AGE = 3_600.0
"""Seconds after its last use until an idle lane is deleted, and until a parked lane is checked again."""
CACHED_JOBS_MAX = 10_000
"""Maximum number of held jobs in the cache; with more, the next pass empties it."""
CACHED_PAYLOAD_MAX = 4_096
"""Maximum length of the payload of a cached job."""
FINISH_BATCH = 16
"""Number of jobs that are moved from `live` to `history` at a time.

About a page of rows: the pages that they leave in `live` can be used again for `history` in the same pass.
"""

_beat = msgspec.json.Decoder(Beat)


class SqliteTables(SqliteCounters):
    """`Tables` (store/tables/protocol.py) over one connection."""

    has_latency = reserves_numbers = False

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        functions: dict[str, Any] = {"has_all": _has_all, "has_none": _has_none}
        for name, function in functions.items():
            self._db.create_scalar_function(name, function, 2, deterministic=True)
        self.identity = ""
        self._number = self._folded = self._event_row = self._event_count = 0
        self._has_groups = False
        self._lanes: dict[tuple[str, str, str], int] = {}
        # A cache of the held jobs that this connection wrote, so that a settle need not read its row. Valid
        # until another connection commits, which changes `data_version`.
        self._cached_jobs: dict[str, JobRecord] = {}
        self.version = 0

    def begin(self) -> float:
        """Load the state of the store; return the time of the last pass, the floor of the clock."""
        [state] = self._all("load_state")
        self.identity, self._number, floor, self._folded, self._event_row, self._event_count, *flags = state
        self.has_gates, self._has_groups = flags
        self._lanes = {}
        self.is_dirty = False
        [(version,)] = self._all("data_version")
        if version != self.version or len(self._cached_jobs) > CACHED_JOBS_MAX:  # guard: foreign_commits
            self._cached_jobs.clear()
        self.version = version
        return float(floor)

    def drop_cached_jobs(self) -> None:
        """Empty the cache: the pass was rolled back, so the cached jobs may differ from the stored ones."""
        self._cached_jobs.clear()

    def save_state(self, now: float) -> None:
        """Write the state that the next pass starts from, if this pass changed anything."""
        if self.is_dirty:
            self._run("save_state", (self._number, now, self._event_row, self._event_count))

    def next_number(self) -> int:
        self._number += 1
        self.is_dirty = True
        return self._number

    def expect_numbers(self, count: int) -> None: ...

    def write_jobs(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        for before, after in changes:
            if after is not None and after.state in HELD_STATES and len(after.payload) <= CACHED_PAYLOAD_MAX:
                self._cached_jobs[after.id] = after
            elif before is not None:
                self._cached_jobs.pop(before.id, None)
        batches = plan_writes(changes, self._lane)
        finished, deleted = batches.pop("finish_live"), batches.pop("delete_live")
        for start in range(0, len(deleted), FINISH_BATCH):
            self._finish_live(finished[start : start + FINISH_BATCH])
            self._run_grouped("delete_live", deleted[start : start + FINISH_BATCH])
        for name in ("claim", "start", "renew"):
            self._run_grouped(name, batches.pop(name))
        for name, batch in batches.items():
            self._run_many(name, batch)
        self.is_dirty = True

    def _run_many(self, name: str, batch: Sequence[rows.Row]) -> None:
        if batch:
            self._db.executemany(SQL[name], batch)

    def _run_grouped(self, name: str, batch: Sequence[rows.Row]) -> None:
        """Run one statement for all rows that differ only in their first value; most rows of a batch do."""
        for tail, group in group_by_tail(batch, 1).items():
            self._run(name, (rows.text([row[0] for row in group]), *tail))

    def _finish_live(self, batch: Sequence[rows.Row]) -> None:
        """The same for rows that differ only in their first two values: `seq` and result."""
        for tail, group in group_by_tail(batch, 2).items():
            self._run("finish_live", (rows.text({row[0]: row[1] for row in group}), *tail))

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        return {slot: KeyHolder(*holder) for slot, *holder in self._all("key_holders", (rows.text(slots),))}

    def write_keys(
        self,
        freed: Mapping[str, str],
        taken: Mapping[str, KeyHolder],
        rivals: Mapping[str, str],  # noqa: ARG002 - no other pass can have taken a key meanwhile
        now: float,  # noqa: ARG002 - this pass has already found the expired keys
    ) -> None:
        self._db.executemany(SQL["free_key"], list(freed.items()))
        self._db.executemany(
            SQL["take_key"], [(slot, holder.job, holder.expires_at) for slot, holder in taken.items()]
        )

    def _lane(self, job: JobRecord) -> int:
        """The lane of a waiting job. Inserts it if it is missing, and marks it: it may have waiting jobs."""
        key = (job.queue, job.task, job.group)
        lane = self._lanes.get(key)
        if lane is None:
            [(lane, ready)] = self._all("find_lane", key) or self._all("insert_lane", (*key, job.updated_at))
            if not ready:  # guard: lane_mark
                self._run("mark_lane_ready", (lane, job.updated_at))
            self._lanes[key] = lane
            self._has_groups |= bool(job.group)
        return lane

    def append_events(self, now: float, event_runs: Sequence[EventRun], deltas: Deltas) -> None:
        changes = [(queue, task, counts) for (queue, task), counts in deltas.items()]
        count, entries = rows.from_event_runs(event_runs)
        self._event_row += 1
        self._event_count += count
        self._run("append_events", (self._event_row, now, count, entries, rows.text(changes)))
        self.is_dirty = True
        if self._event_row - self._folded >= FOLD_INTERVAL:
            self._fold()

    def find_jobs(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        jobs = {job_id: self._cached_jobs[job_id] for job_id in ids if job_id in self._cached_jobs}
        for name in ("find_live", "find_history"):  # guard: history_of_ids
            if len(jobs) < len(ids):
                missing = [job_id for job_id in ids if job_id not in jobs]
                jobs |= {job.id: job for job in self._jobs(name, (rows.text(missing),))}
        return jobs

    def ids_matching(self, part: str, limit: int) -> list[str]:
        names = ("ids_matching_live", "ids_matching_history")
        ids = [job_id for name in names for (job_id,) in self._all(name, (part, limit))]
        return sorted(ids)[:limit]

    def matching_jobs(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        wanted = set(states) & set(dict(query.within).get("state", State))
        limits = {"states": rows.text(sorted(wanted)), "limit": limit, "above": above}
        return self._jobs("matching_jobs", query.params(now) | _search_parts(wanted, below) | limits)

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        seqs = self._all("seq_floor", _search_parts(set(states), below) | {"jobs": jobs})
        return int(seqs[0][0]) if seqs else 0

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        excluded = (*claim.without, *tasks)
        filters = (
            None if claim.queues is None else rows.text(claim.queues),
            None if claim.tasks is None else rows.text(claim.tasks),
            rows.text(excluded) if excluded else None,
            rows.text(queues) if queues else None,
        )
        suspects = claim.suspect_filter
        if not self._has_groups:
            lanes = self._all("open_lanes", (*filters, suspects))
            if suspects is SuspectKind.ANY:
                self._mark_empty([(row[0],) for row in lanes if row[-1] is None])
            return [OpenLane._make((*row[:4], 0.0, 0.0, 0, row[4:])) for row in lanes if row[-1] is not None]
        return [
            lane
            for pair in self._all("queue_task_virtual_times", filters)
            for lane in self._open_lanes_by_turn(pair, width, suspects)
        ]

    def _open_lanes_by_turn(self, pair: rows.Row, width: int, suspects: SuspectKind) -> list[OpenLane]:
        """The open lanes of a queue and a task by virtual start, none below the virtual time of the queue."""
        queue, task, virtual_time = pair
        while True:
            lanes = self._all("open_lanes_by_virtual_start", (queue, task, width, suspects))
            empty = [(lane,) for lane, _, _, priority, _ in lanes if priority is None]
            if lanes and lanes[0][2] < virtual_time:
                self._run("raise_virtual_starts", (queue, task, virtual_time))
            elif empty:
                self._mark_empty(empty)
            else:
                break
        return [
            OpenLane(lane, queue, task, group, virtual_start, virtual_time, 0, tuple(first))
            for lane, group, virtual_start, *first in lanes
        ]

    def best_jobs(self, lanes: Sequence[OpenLane], limit: int, suspects: SuspectKind) -> BestJobs:
        if len(lanes) <= 1:
            jobs = [job for lane in lanes for job in self._jobs("best_jobs", (lane.id, limit, suspects))]
            return BestJobs(jobs)
        best: list[rows.Row] = []
        for lane in sorted(lanes, key=urgency):
            if len(best) == limit and lane.first is not None and lane.first > best[-1][:2]:
                break
            best = sorted(best + self._all("positions", (lane.id, limit, suspects)))[:limit]
        return BestJobs(self.jobs_by_seq([seq for _, _, seq in best]))

    def positions(
        self, lanes: Sequence[OpenLane], per_lane: int, suspects: SuspectKind
    ) -> dict[Any, list[Position]]:
        return {
            lane.id: [
                Position._make((*row, lane.id))
                for row in self._all("positions", (lane.id, per_lane, suspects))
            ]
            for lane in lanes
        }

    def oldest_jobs(self, lanes: Sequence[Any], per_kind: int, suspects: SuspectKind) -> list[OldestJob]:
        return [
            OldestJob(Position._make((*row, lane)), since)
            for lane, priority in self._all("lane_priorities", (rows.text(lanes),))
            for name in ("oldest_fifo_jobs", "oldest_lifo_jobs")
            for *row, since in self._all(name, (lane, priority, per_kind, suspects))
        ]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        return [lane for (lane,) in self._all("lanes_of", (queue, group))]

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        """Nothing to lock: only one pass runs at a time."""

    def group_size(self, queue: str, group: str) -> int:
        return int(self._all("group_size", (queue, group))[0][0])

    def jobs_at(self, positions: Sequence[Position], suspects: SuspectKind) -> list[JobRecord]:
        if len({position.lane_id for position in positions}) == 1 and positions[0].priority != AGED_PRIORITY:
            return self._jobs("best_jobs", (positions[0].lane_id, len(positions), suspects))
        return self.jobs_by_seq([position.seq for position in positions])

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        jobs = {job.seq: job for job in self._jobs("jobs_by_seq", (rows.text(seqs),))}
        return [jobs[seq] for seq in seqs]

    def put_virtual_starts(self, queue: str, starts: Mapping[str, float], virtual_time: float) -> None:
        self._run_grouped("put_virtual_starts", [(group, queue, start) for group, start in starts.items()])
        self._run("put_virtual_time", (queue, virtual_time, max(starts.values())))
        self.is_dirty = True

    def reset_virtual_time(self, queue: str) -> None:
        self._run("reset_virtual_time", (queue,))

    def park_lanes(self, lanes: Sequence[tuple[OpenLane, float]], now: float) -> bool:
        self._db.executemany(SQL["park_lane"], [(lane.id, open_at, now) for lane, open_at in lanes])
        self.is_dirty |= bool(lanes)
        return bool(lanes)

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        self._db.executemany(SQL["unpark_group"], groups)

    def unpark_queue(self, queue: str) -> None:
        self._run("unpark_queue", (queue,))

    def unpark_due(self, now: float) -> None:
        self._run("unpark_due", (now,))

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        return self._all("queue_task_pairs")

    def _mark_empty(self, lanes: Sequence[rows.Row]) -> None:
        if lanes:
            self._db.executemany(SQL["mark_lane_empty"], lanes)
            self._lanes = {}
            self.is_dirty = True

    def is_drained(self, queue: str) -> bool:
        return not self._all("queue_has_waiting", (queue,))

    def due_times(self) -> DueTimes:
        return DueTimes(*self._all("due_times")[0])

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("due_jobs", (now, limit))

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("expired_jobs", (now, limit))

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("lapsed_jobs", (now, limit))

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("prunable_jobs", (now, limit))

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        return [
            (task, State(state), rows.to_keep(keep)) for task, state, keep in self._all("keep_last_tasks")
        ]

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        return self._jobs("excess_jobs", (task, state, last - 1, limit))  # guard: kept_by_number

    def jobs_held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return self._jobs("jobs_held_by", (rows.text(workers), limit))

    def jobs_lost_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return self._jobs("jobs_lost_by", (rows.text(workers), limit))

    def cancel_requests(self, worker: str) -> tuple[Ref, ...]:
        return tuple(Ref(*row) for row in self._all("cancel_requests", (worker,)))

    def clear_edges(self, parents: Sequence[str]) -> None:
        for name in ("clear_edges", "clear_closing_flows"):
            self._run(name, (rows.text(parents),))

    def add_edges(self, edges: Sequence[EdgeRecord]) -> None:
        self._db.executemany(SQL["add_edges"], map(rows.from_edge, edges))
        self.is_dirty = True

    def update_edges(self, edges: Sequence[EdgeRecord]) -> None:
        self._db.executemany(
            SQL["update_edges"], [(edge.parent, edge.n, edge.outcome, edge.result) for edge in edges]
        )
        self.is_dirty = True

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        return sorted(self._edges("parent_edges", (rows.text(seqs),)), key=lambda edge: (edge.parent, edge.n))

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        return self._edges("child_edges", (parent,))

    def open_child_count(self, parent: str) -> int:
        return int(self._all("open_child_count", (parent,))[0][0])

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        return self._edges("reopened_edges", (parent,))

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        return next(iter(self._edges("fatal_edge", (parent,))), None)

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        return self._jobs("open_children", (parent, rows.text(states), limit))

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self._all("open_children", (parent, rows.text(states), 1)))

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        if expires_at is None:
            self._run("end_flow_cancel", (parent,))
        else:
            self._run("close_flow", (parent, cancel, expires_at))
        self.is_dirty = True

    def reopen_flow(self, parent: str) -> None:
        self._run("reopen_flow", (parent,))
        self.is_dirty = True

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        return [(parent, Reason(cancel)) for parent, cancel in self._all("flows_to_cancel", (limit,))]

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:  # noqa: ARG002 - only PostgreSQL has such a list
        return []

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        return [parent for (parent,) in self._all("prunable_flows", (now, limit))]

    def drop_edges(self, parent: str, limit: int) -> int:
        self.is_dirty = True
        return len(self._all("drop_edges", (parent, limit)))

    def _edges(self, name: str, bindings: Any) -> list[EdgeRecord]:
        return [rows.to_edge(row) for row in self._all(name, bindings)]

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        self._run("save_claims", (worker, now, rows.text(claims)))

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        saved = self._all("load_claims", (worker,))
        return rows.to_claimed_refs(saved[0][0], nonce) if saved else None

    def save_answers(self, answers: Mapping[str, str], now: float) -> None:
        self._db.executemany(SQL["save_answer"], [(nonce, now, answer) for nonce, answer in answers.items()])

    def load_answers(self, nonces: Sequence[str]) -> dict[str, str]:
        return dict(self._all("load_answers", (rows.text(nonces),)))

    def save_beat(self, beat: Beat, now: float) -> None:
        if beat.gone:
            self._run("delete_worker", (beat.worker,))
        else:
            self._run("save_beat", (beat.worker, now, rows.text(beat)))
        self.is_dirty = True

    def workers(self) -> list[WorkerRecord]:
        return [WorkerRecord(_beat.decode(beat), seen_at) for beat, seen_at in self._all("workers")]

    def ready_since(self) -> dict[str, float]:
        return dict(self._all("ready_since"))

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        return list(islice(self._event_entries(*after), limit))

    def _event_entries(self, row: int, seen: int) -> Iterator[EventEntry]:
        for n, at, entries in self._stream("read_events", (row,)):
            events = rows.to_events(entries)
            for index, event in enumerate(events):
                if n > row or index >= seen:
                    yield EventEntry(cursors.in_row(self.identity, n, index, len(events)), at, event)

    def event_log_span(self) -> tuple[int, int]:
        [(first, last)] = self._all("event_log_span")
        return (last + 1 if first is None else first), last

    def trim(self, now: float, limits: StoreLimits, limit: int) -> int:
        self._fold()
        self._roll(now)
        dropped = self._trim_events(now, limits, limit)
        dropped += len(self._all("drop_old_workers", (now - limits.workers_age,)))
        dropped += len(self._all("drop_expired_keys", (now, limit)))
        self._run("drop_old_claims", (now - limits.workers_age,))
        self._run("drop_old_answers", (now - ANSWERS_AGE, ANSWERS_TRIM_FACTOR * limit))
        self._run("drop_empty_gates", (now, limit))
        self._run("repair_lane_marks", (now - IDLE_LANE_AGE, limit))
        self._run("drop_idle_lanes", (now - IDLE_LANE_AGE, limit))
        self._run("unpark_old", (now - IDLE_LANE_AGE, now, limit))
        self._run("reset_idle_virtual_times", ())
        self._run("drop_unused_virtual_times", ())
        self.is_dirty |= dropped > 0
        self._lanes = {}
        return dropped

    def _trim_events(self, now: float, limits: StoreLimits, limit: int) -> int:
        rows_dropped = events_dropped = last = 0
        for n, count, at in self._all("old_events", (limit,)):
            if self._event_count - events_dropped <= limits.events and at > now - limits.events_age:
                break
            rows_dropped, events_dropped, last = rows_dropped + 1, events_dropped + count, n
        if rows_dropped:
            self._run("drop_events", (last,))
            self._event_count -= events_dropped
        return rows_dropped

    def _stream(self, name: str, bindings: Any) -> Generator[Any, None, None]:
        """Yield rows one by one; rows that the caller does not take are never read."""
        cursor = self._db.cursor()
        try:
            yield from cursor.execute(SQL[name], bindings)
        finally:
            cursor.close()


def _search_parts(states: set[State], below: int | None) -> dict[str, int]:
    """The parts of the view `job` that can have jobs in these states, and the `seq` to begin below."""
    return {
        "live": any(state not in TERMINAL for state in states),
        "completed": State.COMPLETED in states,
        "unsuccessful": State.FAILED in states or State.CANCELED in states,
        "below": 2**63 - 1 if below is None else below,
    }


@lru_cache(maxsize=64)
def _needles(text: str) -> list[list[bytes]]:
    return [
        [needle.encode() for needle in any_of] for any_of in msgspec.json.decode(text, type=list[list[str]])
    ]


def _has_all(value: Any, wanted: Any) -> bool:
    """Whether `value` contains at least one needle of each list."""
    if value is None:
        return False
    folded = fold(value)
    return all(any(needle in folded for needle in any_of) for any_of in _needles(wanted))


def _has_none(value: Any, unwanted: Any) -> bool:
    """Whether `value` contains no needle of the list."""
    return value is None or not _has_all(value, f"[{unwanted}]")
