"""The tables of a pass in SQLite: statements in, rows out. No rules.

Used on the writing connection between `begin` and `leave`, and on the reading one for reads.
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
    WorkerInfo,
)
from errandry.core.event import EventRun
from errandry.core.fair_queueing import AGED_PRIORITY, OldestJob, OpenLane, Position, by_urgency
from errandry.core.flow import EdgeRecord
from errandry.core.job import JobRecord, Keep
from errandry.core.query import Query, fold
from errandry.core.state import HELD_STATES, TERMINAL, Reason, State
from errandry.core.unique import KeyHolder
from errandry.store import cursors
from errandry.store.contract import EventEntry, StoreLimits
from errandry.store.sqlite.counters import SqliteCounters
from errandry.store.sqlite.gates import SQL
from errandry.store.tables import rows
from errandry.store.tables.protocol import Change, ClaimedRefs, Deltas, DueTimes
from errandry.store.tables.writes import by_rest, planned

FOLD_EVERY = 256
IDLE_LANE = 3_600.0
HELD_MAX = 10_000
HELD_PAYLOAD = 4_096
PAGEFUL = 16
"""So many rows are about a page: what `live` has no more of, `history` takes in the same pass."""

_beat = msgspec.json.Decoder(Beat)


class SqliteTables(SqliteCounters):
    """What `store.tables.Tables` asks for, over one connection."""

    has_latency = reserves_numbers = False

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        functions: dict[str, Any] = {"has_all": _has_all, "has_none": _has_none}
        for name, function in functions.items():
            self._db.create_scalar_function(name, function, 2, deterministic=True)
        self.identity = ""
        self._number = self._folded = self._row = self._events = 0
        self._has_groups = False
        self._lanes: dict[tuple[str, str, str], int] = {}
        # Jobs this process holds, as it wrote them: true until another connection commits, which
        # `data_version` tells. It spares a settle the reading of its row.
        self._held: dict[str, JobRecord] = {}
        self.version = 0

    def begin(self) -> float:
        """Read what the pass starts from; the time nobody may go back behind."""
        [head] = self._all("head")
        self.identity, self._number, floor, self._folded, self._row, self._events, *has = head
        self.has_gates, self._has_groups = has
        self._lanes = {}
        self.is_dirty = False
        [(version,)] = self._all("version")
        if version != self.version or len(self._held) > HELD_MAX:  # guard: foreign_commits
            self._held.clear()
        self.version = version
        return float(floor)

    def forget(self) -> None:
        """The pass was rolled back: nothing it wrote is so."""
        self._held.clear()

    def leave(self, now: float) -> None:
        """Write what the next pass starts from, if this one changed anything."""
        if self.is_dirty:
            self._run("leave", (self._number, now, self._row, self._events))

    def next_number(self) -> int:
        self._number += 1
        self.is_dirty = True
        return self._number

    def expect_numbers(self, numbers: int) -> None: ...

    def write(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        for before, after in changes:
            if after is not None and after.state in HELD_STATES and len(after.payload) <= HELD_PAYLOAD:
                self._held[after.id] = after
            elif before is not None:
                self._held.pop(before.id, None)
        batches = planned(changes, self._lane)
        ended, gone = batches.pop("finish_live"), batches.pop("delete_live")
        for start in range(0, len(gone), PAGEFUL):
            self._finish(ended[start : start + PAGEFUL])
            self._alike("delete_live", gone[start : start + PAGEFUL])
        for name in ("claim", "start", "renew"):
            self._alike(name, batches.pop(name))
        for name, batch in batches.items():
            self._many(name, batch)
        self.is_dirty = True

    def _many(self, name: str, batch: Sequence[rows.Row]) -> None:
        if batch:
            self._db.executemany(SQL[name], batch)

    def _alike(self, name: str, batch: Sequence[rows.Row]) -> None:
        """Rows that mostly differ only in their first value: one statement for all that do."""
        for rest, own in by_rest(batch, 1).items():
            self._run(name, (rows.text([row[0] for row in own]), *rest))

    def _finish(self, ended: Sequence[rows.Row]) -> None:
        """The same with rows that mostly differ only in their first two values."""
        for rest, own in by_rest(ended, 2).items():
            self._run("finish_live", (rows.text({row[0]: row[1] for row in own}), *rest))

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        return {slot: KeyHolder(*held) for slot, *held in self._all("keys", (rows.text(slots),))}

    def write_keys(
        self,
        freed: Mapping[str, str],
        taken: Mapping[str, KeyHolder],
        rivals: Mapping[str, str],  # noqa: ARG002 - nobody else can have taken one meanwhile
        now: float,  # noqa: ARG002 - whose time is over was decided in this pass
    ) -> None:
        self._db.executemany(SQL["free_key"], list(freed.items()))
        self._db.executemany(
            SQL["take_key"], [(slot, key.job, key.expires_at) for slot, key in taken.items()]
        )

    def _lane(self, job: JobRecord) -> int:
        """The lane a waiting job stands in, marked: it may have waiting jobs."""
        key = (job.queue, job.task, job.group)
        lane = self._lanes.get(key)
        if lane is None:
            found = self._all("lane", key) or self._all("make_lane", (*key, job.updated_at))
            lane, ready = found[0]
            if not ready:  # guard: lane_mark
                self._run("mark_lane", (lane, job.updated_at))
            self._lanes[key] = lane
            self._has_groups |= bool(job.group)
        return lane

    def append_events(self, now: float, told: Sequence[EventRun], deltas: Deltas) -> None:
        packed = [(queue, task, changes) for (queue, task), changes in deltas.items()]
        count, entries = rows.from_told(told)
        self._row += 1
        self._events += count
        self._run("append", (self._row, now, count, entries, rows.text(packed)))
        self.is_dirty = True
        if self._row - self._folded >= FOLD_EVERY:
            self._fold()

    def find(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        found = {one: self._held[one] for one in ids if one in self._held}
        for name in ("find_live", "find_history"):  # guard: history_of_ids
            if len(found) < len(ids):
                missing = [one for one in ids if one not in found]
                found |= {job.id: job for job in self._jobs(name, (rows.text(missing),))}
        return found

    def ids_matching(self, part: str, limit: int) -> list[str]:
        found = [one for name in ("ids_live", "ids_history") for (one,) in self._all(name, (part, limit))]
        return sorted(found)[:limit]

    def matching(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        wanted = set(states) & set(dict(query.within).get("state", State))
        bounds = {"states": rows.text(sorted(wanted)), "limit": limit, "above": above}
        return self._jobs("matching", query.params(now) | _parts(wanted, below) | bounds)

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        found = self._all("floor", _parts(set(states), below) | {"jobs": jobs})
        return int(found[0][0]) if found else 0

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        wanted = None if claim.queues is None else rows.text(claim.queues)
        kinds = None if claim.tasks is None else rows.text(claim.tasks)
        without = (*claim.without, *tasks)
        closed = rows.text(without) if without else None, rows.text(queues) if queues else None
        suspects = claim.suspects != 0
        if not self._has_groups:
            found = self._all("open_lanes", (wanted, kinds, *closed, suspects))
            if suspects:
                self._unmark([(row[0],) for row in found if row[-1] is None])
            return [OpenLane._make((*row[:4], 0.0, 0.0, 0, row[4:])) for row in found if row[-1] is not None]
        return [
            line
            for pair in self._all("pairs", (wanted, kinds, *closed))
            for line in self._in_turn(pair, width, suspects)
        ]

    def _in_turn(self, pair: rows.Row, width: int, suspects: bool) -> list[OpenLane]:
        """The lanes of a queue and a task by their turn. Who was behind the round is in it from now on."""
        queue, task, round_ = pair
        while True:
            found = self._all("turns", (queue, task, width, suspects))
            empty = [(lane,) for lane, _, _, priority, _ in found if priority is None]
            if found and found[0][2] < round_:
                self._run("catch_up", (queue, task, round_))
            elif empty:
                self._unmark(empty)
            else:
                break
        return [
            OpenLane(lane, queue, task, group, turn, round_, 0, tuple(first))
            for lane, group, turn, *first in found
        ]

    def best_jobs(self, lines: Sequence[OpenLane], limit: int, suspects: bool) -> list[JobRecord]:
        if len(lines) <= 1:
            return [job for line in lines for job in self._jobs("line", (line.lane, limit, suspects))]
        best: list[rows.Row] = []
        for line in sorted(lines, key=by_urgency):
            if len(best) == limit and line.first is not None and line.first > best[-1][:2]:
                break
            best = sorted(best + self._all("places", (line.lane, limit, suspects)))[:limit]
        return self.jobs_by_seq([seq for _, _, seq in best])

    def positions(self, lines: Sequence[OpenLane], each: int, suspects: bool) -> dict[Any, list[Position]]:
        return {
            line.lane: [
                Position._make((*row, line.lane)) for row in self._all("places", (line.lane, each, suspects))
            ]
            for line in lines
        }

    def oldest_jobs(self, lanes: Sequence[Any], each: int, suspects: bool) -> list[OldestJob]:
        return [
            OldestJob(Position._make((*row, lane)), since)
            for lane, priority in self._all("priorities", (rows.text(lanes),))
            for name in ("eldest_fifo", "eldest_lifo")
            for *row, since in self._all(name, (lane, priority, each, suspects))
        ]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        return [lane for (lane,) in self._all("lanes_of", (queue, group))]

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        """One pass comes after the other."""

    def group_size(self, queue: str, group: str) -> int:
        return int(self._all("group_size", (queue, group))[0][0])

    def take(self, spots: Sequence[Position], suspects: bool) -> list[JobRecord]:
        if len({spot.lane for spot in spots}) == 1 and spots[0].priority != AGED_PRIORITY:
            return self._jobs("line", (spots[0].lane, len(spots), suspects))
        return self.jobs_by_seq([spot.seq for spot in spots])

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        found = {job.seq: job for job in self._jobs("numbered", (rows.text(seqs),))}
        return [found[seq] for seq in seqs]

    def put_turns(self, queue: str, turns: Mapping[str, float], round_: float) -> None:
        self._alike("put_turn", [(group, queue, turn) for group, turn in turns.items()])
        self._run("put_round", (queue, round_, max(turns.values())))
        self.is_dirty = True

    def reset_turns(self, queue: str) -> None:
        self._run("end_round", (queue,))

    def park_lanes(self, lines: Sequence[tuple[OpenLane, float]], now: float) -> bool:
        self._db.executemany(SQL["park"], [(line.lane, open_at, now) for line, open_at in lines])
        self.is_dirty |= bool(lines)
        return bool(lines)

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        self._db.executemany(SQL["open_group"], groups)

    def unpark_queue(self, queue: str) -> None:
        self._run("open_queue", (queue,))

    def unpark_due(self, now: float) -> None:
        self._run("open_due", (now,))

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        return self._all("waiting_pairs")

    def _unmark(self, lanes: Sequence[rows.Row]) -> None:
        if lanes:
            self._db.executemany(SQL["unmark_lane"], lanes)
            self._lanes = {}
            self.is_dirty = True

    def is_drained(self, queue: str) -> bool:
        return not self._all("queue_has_waiting", (queue,))

    def due_times(self) -> DueTimes:
        return DueTimes(*self._all("marks")[0])

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("due", (now, limit))

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("expired", (now, limit))

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("lapsed", (now, limit))

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("outlived", (now, limit))

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        return [(task, State(state), rows.to_keep(keep)) for task, state, keep in self._all("shelves")]

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        return self._jobs("surplus", (task, state, last - 1, limit))  # guard: kept_by_number

    def held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return self._jobs("held_by", (rows.text(workers), limit))

    def cancels(self, worker: str) -> tuple[Ref, ...]:
        return tuple(Ref(*row) for row in self._all("cancels", (worker,)))

    def clear_edges(self, parents: Sequence[str]) -> None:
        for name in ("clear_edges", "clear_closing"):
            self._run(name, (rows.text(parents),))

    def add_edges(self, links: Sequence[EdgeRecord]) -> None:
        self._db.executemany(SQL["tie"], map(rows.from_link, links))
        self.is_dirty = True

    def update_edges(self, links: Sequence[EdgeRecord]) -> None:
        self._db.executemany(SQL["mark"], [(one.parent, one.n, one.outcome, one.result) for one in links])
        self.is_dirty = True

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        return sorted(self._links("over", (rows.text(seqs),)), key=lambda link: (link.parent, link.n))

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        return self._links("under", (parent,))

    def open_child_count(self, parent: str) -> int:
        return int(self._all("open_links", (parent,))[0][0])

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        return self._links("again", (parent,))

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        return next(iter(self._links("fatal", (parent,))), None)

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        return self._jobs("unended", (parent, rows.text(states), limit))

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self._all("unended", (parent, rows.text(states), 1)))

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        if expires_at is None:
            self._run("canceled_flow", (parent,))
        else:
            self._run("close_flow", (parent, cancel, expires_at))
        self.is_dirty = True

    def reopen_flow(self, parent: str) -> None:
        self._run("forget_flow", (parent,))
        self.is_dirty = True

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        return [(parent, Reason(cancel)) for parent, cancel in self._all("canceling", (limit,))]

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:  # noqa: ARG002 - what every store is asked
        return []

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        return [parent for (parent,) in self._all("outlived_flows", (now, limit))]

    def drop_edges(self, parent: str, limit: int) -> int:
        self.is_dirty = True
        return len(self._all("untie", (parent, limit)))

    def _links(self, name: str, bindings: Any) -> list[EdgeRecord]:
        return [rows.to_link(row) for row in self._all(name, bindings)]

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        self._run("remember", (worker, now, rows.text(claims)))

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        found = self._all("recall", (worker,))
        return rows.to_brought(found[0][0], nonce) if found else None

    def beat(self, beat: Beat, now: float) -> None:
        if beat.gone:
            self._run("forget_worker", (beat.worker,))
        else:
            self._run("beat", (beat.worker, now, rows.text(beat)))
        self.is_dirty = True

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(_beat.decode(beat), seen_at) for beat, seen_at in self._all("workers")]

    def ready_since(self) -> dict[str, float]:
        return dict(self._all("ready_since"))

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        return list(islice(self._happened(*after), limit))

    def _happened(self, row: int, seen: int) -> Iterator[EventEntry]:
        for n, at, entries in self._steps("events", (row,)):
            events = rows.to_events(entries)
            for index, event in enumerate(events):
                if n > row or index >= seen:
                    yield EventEntry(cursors.in_row(self.identity, n, index, len(events)), at, event)

    def event_log_span(self) -> tuple[int, int]:
        [(first, last)] = self._all("log_span")
        return (last + 1 if first is None else first), last

    def trim(self, now: float, bounds: StoreLimits, limit: int) -> int:
        self._fold()
        self._roll(now)
        went = self._trim_events(now, bounds, limit)
        went += len(self._all("drop_workers", (now - bounds.workers_age,)))
        went += len(self._all("drop_keys", (now, limit)))
        self._run("drop_claims", (now - bounds.workers_age,))
        self._run("drop_gates", (now, limit))
        self._run("mend_lanes", (now - IDLE_LANE, limit))
        self._run("drop_lanes", (now - IDLE_LANE, limit))
        self._run("mend_parked", (now - IDLE_LANE, now, limit))
        self._run("end_rounds", ())
        self._run("drop_rounds", ())
        self.is_dirty |= went > 0
        self._lanes = {}
        return went

    def _trim_events(self, now: float, bounds: StoreLimits, limit: int) -> int:
        went = dropped = last = 0
        for n, count, at in self._all("old_events", (limit,)):
            if self._events - dropped <= bounds.events and at > now - bounds.events_age:
                break
            went, dropped, last = went + 1, dropped + count, n
        if went:
            self._run("drop_events", (last,))
            self._events -= dropped
        return went

    def _steps(self, name: str, bindings: Any) -> Generator[Any, None, None]:
        """Rows one by one, only as far as they are taken."""
        cursor = self._db.cursor()
        try:
            yield from cursor.execute(SQL[name], bindings)
        finally:
            cursor.close()


def _parts(states: set[State], below: int | None) -> dict[str, int]:
    """Which parts of the view `job` have jobs in these states, and where to begin."""
    return {
        "live": any(state not in TERMINAL for state in states),
        "completed": State.COMPLETED in states,
        "troubled": State.FAILED in states or State.CANCELED in states,
        "below": 2**63 - 1 if below is None else below,
    }


@lru_cache(maxsize=64)
def _needles(text: str) -> list[list[bytes]]:
    return [[one.encode() for one in any_of] for any_of in msgspec.json.decode(text, type=list[list[str]])]


def _has_all(value: Any, wanted: Any) -> bool:
    """Whether `value` holds at least one needle of each list."""
    if value is None:
        return False
    folded = fold(value)
    return all(any(one in folded for one in any_of) for any_of in _needles(wanted))


def _has_none(value: Any, unwanted: Any) -> bool:
    """Whether `value` holds no needle of the list."""
    return value is None or not _has_all(value, f"[{unwanted}]")
