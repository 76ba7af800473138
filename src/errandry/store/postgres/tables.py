"""The tables of a pass in PostgreSQL. They run statements and return rows.

A pass locks every job that it reads, so that the decisions about the job still hold when it writes them. A
read sees one snapshot and locks nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec
from psycopg.errors import SerializationFailure

from errandry.core.command import (
    Beat,
    Ref,
    WorkerRecord,
)
from errandry.core.event import EventRun
from errandry.core.job import JobRecord, Keep
from errandry.core.query import Query
from errandry.core.state import HELD_STATES, TERMINAL, State
from errandry.core.unique import KeyHolder
from errandry.store import cursors
from errandry.store.contract import ANSWERS_AGE, EventEntry, StoreLimits
from errandry.store.execute.insert import FIRST_FLUSH, FLUSH_BATCH
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.edges import CLOSING_FLOW_STATEMENTS
from errandry.store.postgres.partitions import day_of
from errandry.store.postgres.pipeline import Pipeline, StatementParams
from errandry.store.postgres.prefetch import DUE_STATEMENTS, PostgresPrefetch
from errandry.store.tables import rows
from errandry.store.tables.protocol import ANSWERS_TRIM_FACTOR, Change, ClaimedRefs, Deltas
from errandry.store.tables.writes import FINISH_LIVE_TIMES, FINISH_TIMES, Batches, group_by_tail, plan_writes

IDLE_LANE_AGE = 3_600.0
"""Seconds without use after which a lane without waiting jobs is deleted."""
PARKED_AGE_MAX = 60.0
"""Seconds after which a parked lane is unparked, in case the event that should have done it was missed."""
GROUPED_WRITES = {
    "finish_live": (
        ("seqs", "results", "errors"),
        ("state", "reason", "settled", "releases", "crashes", "at", "expires_at", "day"),
    ),
    "claim": (("seqs",), ("state", "attempts", "fence", "worker", "lease_until", "at", "started_at")),
    "start": (("seqs",), ("at",)),
    "renew": (("seqs",), ("lease_until", "at")),
}
"""Statements that write many rows with the same values: the columns of each row, and the shared ones."""
BLIND_INSERT_FIELDS = (
    *("id", "task", "queue", "group", "lifo", "payload", "priority", "max_attempts", "max_crashes"),
    *("timeout", "deadline", "metadata", "backoff", "keep", "tags"),
)
"""The fields of a job that a blind insert sends, besides its lane: the server adds numbers and times."""
EVENT_ROWS_PER_FETCH = 100
"""Number of event log rows in one query."""

_beat_decoder = msgspec.json.Decoder(Beat)
_list_decoder = msgspec.json.Decoder(list[str | int])
_first_value = itemgetter(0)
_blind_insert_columns = itemgetter(*(rows.NEW_JOB_FIELDS.index(name) for name in BLIND_INSERT_FIELDS), -1)


class PostgresTables(PostgresPrefetch):
    """The `Tables` protocol (store/tables/protocol.py) over one connection."""

    has_latency = True

    def __init__(self, pipeline: Pipeline, writes: bool) -> None:
        super().__init__(pipeline)
        self._writes = writes
        self._partition_days: set[int] = set()

    def write_jobs(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        self._new_ids = frozenset()
        self._discard(
            *DUE_STATEMENTS, "prunable_jobs", "keep_last_tasks", *CLOSING_FLOW_STATEMENTS, "lock_cached"
        )
        self._record_held(changes)
        self._lock_lanes(self._discard_changed(changes))
        batches = plan_writes(changes, lambda job: self._lanes[job.queue, job.task, job.group])
        self._add_days(batches)
        finished = {
            values[0] for values in batches["finish_live"]
        }  # the statement deletes the rows it copies
        batches["delete_live"] = [values for values in batches["delete_live"] if values[0] not in finished]
        for name, batch in batches.items():
            if name in GROUPED_WRITES:
                self._send_grouped(name, batch)
            elif batch and self._is_blind:
                self._send("insert_blind", [self._clock_time, *_blind_insert_columns(columns(batch))])
            elif batch:
                self._send(name, columns(batch))
        if ids := [values[1] for values in batches["insert_new"]]:
            self._send("assert_not_finished", {"ids": array(ids), "least": min(ids), "most": max(ids)})
        if len(changes) >= FIRST_FLUSH:
            self._pipeline.flush()
        self.is_dirty = True

    def _send_grouped(self, name: str, batch: Sequence[rows.Row]) -> None:
        """Send one statement for each group of rows that share values, in the order of their first values."""
        own, shared = GROUPED_WRITES[name]
        for shared_values, group in group_by_tail(batch, len(own)).items():
            ordered = sorted(group, key=_first_value)
            for start in range(0, len(ordered), FLUSH_BATCH):
                values = columns([row[: len(own)] for row in ordered[start : start + FLUSH_BATCH]])
                self._send(name, dict(zip((*own, *shared), (*values, *shared_values), strict=True)))

    def _record_held(self, changes: Iterable[Change]) -> None:
        """Record how the pass leaves jobs that workers hold; None for jobs that they held before."""
        for before, after in changes:
            if after is not None and after.state in HELD_STATES:
                self.held_jobs[after.id] = after
            elif before is not None and before.state in HELD_STATES:
                self.held_jobs[before.id] = None

    def _add_days(self, batches: Batches) -> None:
        """Add to each finished job the day on which it expires, and create the partitions of new days."""
        for name, end, expiry in (("finish_live", *FINISH_LIVE_TIMES), ("finish", *FINISH_TIMES)):
            batches[name] = [(*values, day_of(values[end], values[expiry])) for values in batches[name]]
            days = {values[-1] for values in batches[name]}
            if not self._partition_days.issuperset(days):
                self._partition_days = {
                    day for day, _, is_detaching in self._rows("partitions") if not is_detaching
                }
                for day in days - self._partition_days:
                    self._send("create_partition", (day,))
                    self._partition_days.add(day)

    def forget_partitions(self) -> None:
        """Read the partitions again: one was dropped, or the creation of one was rolled back."""
        self._partition_days = set()

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        """Locks nothing: an insert that returns the holder must not block the settle of that job."""
        return {slot: KeyHolder(*held) for slot, *held in self._rows("key_holders", (array(slots),))}

    def write_keys(
        self, freed: Mapping[str, str], taken: Mapping[str, KeyHolder], rivals: Mapping[str, str], now: float
    ) -> None:
        if freed:
            self._send("free_keys", (array(freed), array(freed.values())))
        if taken and rivals.keys().isdisjoint(taken):
            free = [(slot, key.job, key.expires_at) for slot, key in taken.items()]
            self._send("take_free_keys", columns(free))
        elif taken:
            held = [(slot, key.job, key.expires_at, rivals.get(slot)) for slot, key in taken.items()]
            [(count,)] = self._rows("take_keys", [*columns(held), now])
            if count < len(taken):
                raise SerializationFailure("another transaction has taken a unique key first")

    def append_events(self, now: float, event_runs: Sequence[EventRun], deltas: Deltas) -> None:
        """Keep the row for the commit: writing it locks the event log, which must not last."""
        packed = [(queue, task, changes) for (queue, task), changes in deltas.items()]
        at = self._clock_time if self._is_blind else now
        self.event_row = (at, *rows.from_event_runs(event_runs), rows.text(packed))
        self.is_dirty = True

    def find_jobs(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Search `live` first: a job that another pass moves meanwhile is then found in the other table.

        A pass searches `live` a second time, for jobs that moved back.
        """
        if self._new_ids.issuperset(ids):
            return {}
        if not self._writes:
            names, jobs = ["find_live", "find_history"], {}
        else:
            names, jobs = ["lock_live", "lock_history", "lock_live"], self._lock_cached(ids)
        for number, name in enumerate(names):
            if len(jobs) == len(ids):
                break
            missing = [
                job_id
                for job_id in ids
                if job_id not in jobs and (number < 2 or job_id not in self._inserted_ids)
            ]
            if missing and (name != "lock_history" or self._rows("any_finished", (array(missing),))):
                jobs |= {job.id: job for job in self._jobs(name, (array(missing),))}
                if name == "lock_history":
                    self._check_not_rewritten([job_id for job_id in missing if job_id not in jobs])
        return jobs

    def _check_not_rewritten(self, missing: Sequence[str]) -> None:
        """Retry the pass if a finished job is missing because another pass rewrote its row.

        That happens while this pass waits for the lock on the old row.
        """
        if missing and self._rows("any_finished", (array(missing),)):
            raise SerializationFailure("another transaction has rewritten a finished job")

    def _lock_cached(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Lock jobs that were in the row cache when the pass began; return those that have not changed."""
        params = (array(ids),)
        if not self._was_prefetched("lock_cached", params):
            return {}
        jobs = self._row_cache.unchanged_jobs(self._rows("lock_cached", params))
        if len(jobs) < len(ids):
            self._row_cache.discard([job_id for job_id in ids if job_id not in jobs])
        return jobs

    def ids_matching(self, part: str, limit: int) -> list[str]:
        params = {"part": part, "limit": limit}
        names = ("ids_matching_live", "ids_matching_history")
        return sorted(job_id for name in names for (job_id,) in self._rows(name, params))[:limit]

    def matching_jobs(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        wanted = set(states) & set(dict(query.within).get("state", State))
        params = _query_params(query, now) | _state_params(wanted) | {"above": above}
        jobs: list[JobRecord] = []
        while len(jobs) < limit:
            missing = limit - len(jobs)
            page = self._matching_page(params | {"below": _upper_seq(below), "limit": missing})
            jobs += self._still_matching(page, query, wanted, now) if self._writes else page
            if len(page) < missing:
                break
            below = page[-1].seq
        return jobs

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        params = _state_params(set(states)) | {"below": _upper_seq(below), "jobs": jobs}
        seqs = self._rows_with_custom_plan("seq_floor", params)
        return int(seqs[0][0]) if seqs else 0

    def _matching_page(self, params: Mapping[str, Any]) -> list[JobRecord]:
        return [rows.to_job(row) for row in self._rows_with_custom_plan("matching_jobs", params)]

    def _still_matching(
        self, jobs: Sequence[JobRecord], query: Query, states: set[State], now: float
    ) -> list[JobRecord]:
        """Lock these jobs, and return those that still match."""
        locked = self.find_jobs([job.id for job in jobs])
        current = [locked[job.id] for job in jobs if job.id in locked]
        return [job for job in current if job.state in states and query.matches(job, now)]

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        due = self._jobs("due_jobs", self._due_params("due_jobs", now, limit))
        if not self.has_gates:  # with gates, some jobs may keep the place they had
            self.expect_numbers(len(due))
        return due

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        if self._writes:
            return self._jobs("expired_jobs", self._due_params("expired_jobs", now, limit))
        return self._jobs("read_expired_jobs", (now, limit))

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("lapsed_jobs", self._due_params("lapsed_jobs", now, limit))

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("prunable_jobs" if self._writes else "read_prunable_jobs", (now, limit))

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        return [
            (task, State(state), rows.to_keep(keep)) for task, state, keep in self._rows("keep_last_tasks")
        ]

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        params = {"task": task, "state": state, "last": last - 1, "limit": limit}
        return self._jobs("excess_jobs" if self._writes else "read_excess_jobs", params)

    def jobs_held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return self._jobs("jobs_held_by", (array(workers), limit))

    def jobs_lost_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return self._jobs("jobs_lost_by", (array(workers), limit))

    def cancel_requests(self, worker: str) -> tuple[Ref, ...]:
        return tuple(Ref(*row) for row in self._rows("cancel_requests", (worker,)))

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        last, _ = self._load_last_claims(worker)
        self._send("save_claims", {"worker": worker, "last": last, "now": now, "refs": rows.text(claims)})

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        _, refs = self._load_last_claims(worker)
        return None if refs is None else rows.to_claimed_refs(refs, nonce)

    def _load_last_claims(self, worker: str) -> tuple[int, str | None]:
        """The number of the worker's last pass with claims, and the jobs of these claims as JSON."""
        if worker not in self._saved_claims:
            saved = self._rows("load_claims", (worker,))
            self._saved_claims[worker] = saved[0] if saved else (0, None)
        return self._saved_claims[worker]

    def save_answers(self, answers: Mapping[str, str], now: float) -> None:
        self._send("save_answers", (now, array(answers), array(answers.values())))

    def load_answers(self, nonces: Sequence[str]) -> dict[str, str]:
        """A blind insert does not look: it fails if one of its jobs exists, or has an answer already."""
        return {} if self._is_blind else dict(self._rows("load_answers", (array(nonces),)))

    def save_beat(self, beat: Beat, now: float) -> None:
        if beat.gone:
            self._send("delete_worker", (beat.worker,))
        else:
            self._send("save_beat", (beat.worker, now, rows.text(beat)))
        self.is_dirty = True

    def workers(self) -> list[WorkerRecord]:
        return [WorkerRecord(_beat_decoder.decode(beat), seen_at) for beat, seen_at in self._rows("workers")]

    def ready_since(self) -> dict[str, float]:
        return dict(self._rows("ready_since"))

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        return list(islice(self._event_entries(*after), limit))

    def _event_entries(self, row: int, seen: int) -> Iterator[EventEntry]:
        """Entries from `row` on, without the first `seen` events of that row."""
        start = row
        while log_rows := self._rows("read_events", (start, EVENT_ROWS_PER_FETCH)):
            for n, at, entries in log_rows:
                events = rows.to_events(entries)
                for index, event in enumerate(events):
                    if n > row or index >= seen:
                        yield EventEntry(cursors.in_row(self.identity, n, index, len(events)), at, event)
            start = log_rows[-1][0] + 1

    def event_log_span(self) -> tuple[int, int]:
        [(first, last)] = self._rows("event_log_span")
        return (last + 1 if first is None else first), last

    def trim(self, now: float, limits: StoreLimits, limit: int) -> int:
        if not self._rows("lock_trim")[0][0]:
            return 0
        queries: list[tuple[str, StatementParams]] = [
            ("drop_old_workers", (now - limits.workers_age,)),
            ("drop_expired_keys", (now, limit)),
            # The scan for idle lanes would read all dead entries, so it waits for the next full scan.
            ("idle_lanes", (now - IDLE_LANE_AGE, 0 if self._parts else limit)),
        ]
        for query in queries:
            self._prefetch(*query)
        self._fold()
        self._prefetch("event_count")
        self._prefetch("old_events", (limit,))
        self._roll_up(now)
        dropped = self._trim_events(now, limits, limit)
        workers, keys, idle = [self._rows(*query) for query in queries]
        dropped += len(workers) + len(keys)
        self._send("drop_old_claims", (now - limits.workers_age,))
        self._send("drop_old_answers", (now - ANSWERS_AGE, ANSWERS_TRIM_FACTOR * limit))
        self._discard("load_claims")
        self._saved_claims = {}
        self._send("drop_empty_gates", (now, now, limit))
        if idle:
            self._send("unmark_lanes", (array(lane for lane, is_ready in idle if is_ready),))
            self._send("drop_lanes", (array(lane for lane, _ in idle), now - IDLE_LANE_AGE))
            self._lanes = {}
        self._send("unpark_old", (now, now - PARKED_AGE_MAX, limit))
        self._send("reset_idle_virtual_times")
        self._send("drop_unused_virtual_times")
        self.is_dirty |= dropped > 0
        return dropped

    def _trim_events(self, now: float, limits: StoreLimits, limit: int) -> int:
        """Delete old rows of the event log; return their number."""
        [(events,)] = self._rows("event_count")
        dropped, last = 0, None
        for n, count, total, at in self._rows("old_events", (limit,)):
            if events <= limits.events and at > now - limits.events_age:
                break
            dropped, events, last = dropped + 1, events - count, (n, total, at)
        if last is not None:
            self._send("drop_events", last[:1])
            self._send("save_dropped", last)
        return dropped


def _query_params(query: Query, now: float) -> dict[str, Any]:
    """The parameters of `matching_jobs` for a query: lists as arrays, nested lists as JSON."""
    params: dict[str, Any] = dict(query.params(now))
    for name, value in params.items():
        if value is not None and name.endswith("_in"):
            params[name] = array(_list_decoder.decode(value))
    return params


def _state_params(states: set[State]) -> dict[str, Any]:
    """These states, and the parts of the view `job` that have jobs in them, as parameters."""
    parts = {"history" if state in TERMINAL else "live" for state in states}
    return {"parts": array(sorted(parts)), "states": array(sorted(states))}


def _upper_seq(below: int | None) -> int:
    return 2**63 - 1 if below is None else below
