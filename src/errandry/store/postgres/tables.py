"""The tables of a pass in PostgreSQL: statements in, rows out. No rules.

A writer locks every job it hands out, so that what was decided about it still holds when it is written. A
reader sees one moment and locks nothing.
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
    WorkerInfo,
)
from errandry.core.event import EventRun
from errandry.core.job import JobRecord, Keep
from errandry.core.query import Query
from errandry.core.state import HELD_STATES, TERMINAL, State
from errandry.core.unique import KeyHolder
from errandry.store import cursors
from errandry.store.contract import EventEntry, StoreLimits
from errandry.store.execute.insert import FEW, SENT
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.edges import CLOSING
from errandry.store.postgres.partitions import day_of
from errandry.store.postgres.pipeline import Pipeline, StatementParams
from errandry.store.postgres.prefetch import DUE, PostgresPrefetch
from errandry.store.tables import rows
from errandry.store.tables.protocol import Change, ClaimedRefs, Deltas
from errandry.store.tables.writes import ENDED, FINISHED, Batches, by_rest, planned

IDLE_LANE = 3_600.0
PARKED = 60.0
"""So long after a lane was laid aside is it looked at again, whatever should have opened it."""
ALIKE = {
    "finish_live": (
        ("seqs", "results", "errors"),
        ("state", "reason", "settled", "releases", "crashes", "at", "expires_at", "day"),
    ),
    "claim": (("seqs",), ("state", "attempts", "fence", "worker", "lease_until", "at", "started_at")),
    "start": (("seqs",), ("at",)),
    "renew": (("seqs",), ("lease_until", "at")),
}
"""Statements for rows that are mostly alike: what each has of its own, and what they share."""
UNSEEN = (
    *("id", "task", "queue", "group", "order", "payload", "priority", "max_attempts", "max_crashes"),
    *("timeout", "deadline", "metadata", "backoff", "keep", "tags"),
)
"""What is sent of a job, beside its lane, that gets its number and its time from the server."""
EVENT_ROWS = 100
"""So many rows of the event log are fetched at a time."""

_beat = msgspec.json.Decoder(Beat)
_list = msgspec.json.Decoder(list[str | int])
_number = itemgetter(0)
_unseen = itemgetter(*(rows.FRESH.index(name) for name in UNSEEN), -1)


class PostgresTables(PostgresPrefetch):
    """What `store.tables.Tables` asks for, over one connection."""

    has_latency = True

    def __init__(self, wire: Pipeline, writes: bool) -> None:
        super().__init__(wire)
        self._writes = writes
        self._days: set[int] = set()

    def write(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        self._new = frozenset()
        self._unask(*DUE, "outlived", "shelves", *CLOSING, "lock_known")
        self._note_held(changes)
        self._stand_in_line(self._watch(changes))
        batches = planned(changes, lambda job: self._lanes[job.queue, job.task, job.group])
        self._date(batches)
        ended = {values[0] for values in batches["finish_live"]}  # which deletes what it copies
        batches["delete_live"] = [values for values in batches["delete_live"] if values[0] not in ended]
        for name, batch in batches.items():
            if name in ALIKE:
                self._run_alike(name, batch)
            elif batch and self._is_unseen:
                self._run("make_unseen", [self._at, *_unseen(columns(batch))])
            elif batch:
                self._run(name, columns(batch))
        if made := [values[1] for values in batches["make"]]:
            self._run("never_ended", {"ids": array(made), "least": min(made), "most": max(made)})
        if len(changes) >= FEW:
            self._wire.push()
        self.is_dirty = True

    def _run_alike(self, name: str, batch: Sequence[rows.Row]) -> None:
        """One statement for all rows that differ only in what each has of its own, which is sent in order."""
        own, rest = ALIKE[name]
        for shared, alike in by_rest(batch, len(own)).items():
            ordered = sorted(alike, key=_number)
            for start in range(0, len(ordered), SENT):
                values = columns([row[: len(own)] for row in ordered[start : start + SENT]])
                self._run(name, dict(zip((*own, *rest), (*values, *shared), strict=True)))

    def _note_held(self, changes: Iterable[Change]) -> None:
        """Keep how the pass leaves what workers hold, or held."""
        for before, after in changes:
            if after is not None and after.state in HELD_STATES:
                self.held[after.id] = after
            elif before is not None and before.state in HELD_STATES:
                self.held[before.id] = None

    def _date(self, batches: Batches) -> None:
        """Add to what is finished the day it expires on, whose partition is there from now on."""
        for name, end, expiry in (("finish_live", *ENDED), ("finish", *FINISHED)):
            batches[name] = [(*values, day_of(values[end], values[expiry])) for values in batches[name]]
            days = {values[-1] for values in batches[name]}
            if not self._days.issuperset(days):
                self._days = {day for day, _, is_detaching in self._all("days") if not is_detaching}
                for day in days - self._days:
                    self._run("make_day", (day,))
                    self._days.add(day)

    def forget_days(self) -> None:
        """A partition that was there is gone, or one that was made has been rolled back."""
        self._days = set()

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        """Not locked: who is content with their holder must not be in the way of its end."""
        return {slot: KeyHolder(*held) for slot, *held in self._all("keys", (array(slots),))}

    def write_keys(
        self, freed: Mapping[str, str], taken: Mapping[str, KeyHolder], rivals: Mapping[str, str], now: float
    ) -> None:
        if freed:
            self._run("free_keys", (array(freed), array(freed.values())))
        if taken and rivals.keys().isdisjoint(taken):
            fresh = [(slot, key.job, key.expires_at) for slot, key in taken.items()]
            self._run("take_free_keys", columns(fresh))
        elif taken:
            held = [(slot, key.job, key.expires_at, rivals.get(slot)) for slot, key in taken.items()]
            [(got,)] = self._all("take_keys", [*columns(held), now])
            if got < len(taken):
                raise SerializationFailure("another transaction was quicker to take a unique key")

    def append_events(self, now: float, told: Sequence[EventRun], deltas: Deltas) -> None:
        """Kept for the end: it is written with the commit, under a lock that is not to last."""
        packed = [(queue, task, changes) for (queue, task), changes in deltas.items()]
        at = self._at if self._is_unseen else now
        self.event_row = (at, *rows.from_told(told), rows.text(packed))
        self.is_dirty = True

    def find(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Live first: a job that moves meanwhile is then found in the other table, or again in this one."""
        if self._new.issuperset(ids):
            return {}
        if not self._writes:
            names, found = ["find_live", "find_history"], {}
        else:
            names, found = ["lock_live", "lock_history", "lock_live"], self._lock_known(ids)
        for number, name in enumerate(names):
            if len(found) == len(ids):
                break
            missing = [one for one in ids if one not in found and (number < 2 or one not in self._fresh)]
            if missing and (name != "lock_history" or self._all("any_ended", (array(missing),))):
                found |= {job.id: job for job in self._jobs(name, (array(missing),))}
                if name == "lock_history":
                    self._check_moved([one for one in missing if one not in found])
        return found

    def _check_moved(self, missing: Sequence[str]) -> None:
        """A finished job that another pass has written anew, while its row was waited for, is there still."""
        if missing and self._all("any_ended", (array(missing),)):
            raise SerializationFailure("another transaction has written a finished job anew")

    def _lock_known(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Lock these, if some were known when the pass began: those of them that have not changed."""
        params = (array(ids),)
        if not self._is_asked("lock_known", params):
            return {}
        found = self._known.still(self._all("lock_known", params))
        if len(found) < len(ids):
            self._known.forget([one for one in ids if one not in found])
        return found

    def ids_matching(self, part: str, limit: int) -> list[str]:
        values = {"part": part, "limit": limit}
        return sorted(one for name in ("ids_live", "ids_history") for (one,) in self._all(name, values))[
            :limit
        ]

    def matching(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        wanted = set(states) & set(dict(query.within).get("state", State))
        params = _params(query, now) | _parts(wanted) | {"above": above}
        found: list[JobRecord] = []
        while len(found) < limit:
            room = limit - len(found)
            page = self._match(params | {"below": _under(below), "limit": room})
            found += self._still(page, query, wanted, now) if self._writes else page
            if len(page) < room:
                break
            below = page[-1].seq
        return found

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        params = _parts(set(states)) | {"below": _under(below), "jobs": jobs}
        found = self._planned_anew("floor", params)
        return int(found[0][0]) if found else 0

    def _match(self, params: Mapping[str, Any]) -> list[JobRecord]:
        return [rows.to_job(row) for row in self._planned_anew("matching", params)]

    def _still(
        self, jobs: Sequence[JobRecord], query: Query, states: set[State], now: float
    ) -> list[JobRecord]:
        """Those of `jobs` that match still, now that they are locked, as they are now."""
        locked = self.find([job.id for job in jobs])
        current = [locked[job.id] for job in jobs if job.id in locked]
        return [job for job in current if job.state in states and query.matches(job, now)]

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        due = self._jobs("due", self._span("due", now, limit))
        if not self.has_gates:  # where there are, some may keep the place they had
            self.expect_numbers(len(due))
        return due

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        if self._writes:
            return self._jobs("expired", self._span("expired", now, limit))
        return self._jobs("held", (now, limit))

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("lapsed", self._span("lapsed", now, limit))

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        return self._jobs("outlived" if self._writes else "seen_outlived", (now, limit))

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        return [(task, State(state), rows.to_keep(keep)) for task, state, keep in self._all("shelves")]

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        params = {"task": task, "state": state, "last": last - 1, "limit": limit}
        return self._jobs("surplus" if self._writes else "seen_surplus", params)

    def held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        return self._jobs("held_by", (array(workers), limit))

    def cancels(self, worker: str) -> tuple[Ref, ...]:
        return tuple(Ref(*row) for row in self._all("cancels", (worker,)))

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        last, _ = self._last_claims(worker)
        self._run("remember", {"worker": worker, "last": last, "now": now, "refs": rows.text(claims)})

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        _, refs = self._last_claims(worker)
        return None if refs is None else rows.to_brought(refs, nonce)

    def _last_claims(self, worker: str) -> tuple[int, str | None]:
        """The number of the last pass with claims of a worker, and what they have brought."""
        if worker not in self._recalled:
            found = self._all("recall", (worker,))
            self._recalled[worker] = found[0] if found else (0, None)
        return self._recalled[worker]

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
        start = row
        while found := self._all("events", (start, EVENT_ROWS)):
            for n, at, entries in found:
                events = rows.to_events(entries)
                for index, event in enumerate(events):
                    if n > row or index >= seen:
                        yield EventEntry(cursors.in_row(self.identity, n, index, len(events)), at, event)
            start = found[-1][0] + 1

    def event_log_span(self) -> tuple[int, int]:
        [(first, last)] = self._all("log_span")
        return (last + 1 if first is None else first), last

    def trim(self, now: float, bounds: StoreLimits, limit: int) -> int:
        if not self._all("may_trim")[0][0]:
            return 0
        others: list[tuple[str, StatementParams]] = [
            ("drop_workers", (now - bounds.workers_age,)),
            ("drop_keys", (now, limit)),
            ("idle_lanes", (now - IDLE_LANE, 0 if self._parts else limit)),  # it would read all that is dead
        ]
        for question in others:
            self._ask(*question)
        self._fold()
        self._ask("held_events")
        self._ask("old_events", (limit,))
        self._roll(now)
        went = self._trim_events(now, bounds, limit)
        workers, keys, idle = [self._all(*question) for question in others]
        went += len(workers) + len(keys)
        self._run("drop_claims", (now - bounds.workers_age,))
        self._unask("recall")
        self._recalled = {}
        self._run("drop_gates", (now, now, limit))
        if idle:
            self._run("rest_lanes", (array(lane for lane, is_ready in idle if is_ready),))
            self._run("drop_lanes", (array(lane for lane, _ in idle), now - IDLE_LANE))
            self._lanes = {}
        self._run("mend_parked", (now, now - PARKED, limit))
        self._run("end_rounds")
        self._run("drop_rounds")
        self.is_dirty |= went > 0
        return went

    def _trim_events(self, now: float, bounds: StoreLimits, limit: int) -> int:
        [(held,)] = self._all("held_events")
        went, last = 0, None
        for n, count, total, at in self._all("old_events", (limit,)):
            if held <= bounds.events and at > now - bounds.events_age:
                break
            went, held, last = went + 1, held - count, (n, total, at)
        if last is not None:
            self._run("drop_events", last[:1])
            self._run("dropped", last)
        return went


def _params(query: Query, now: float) -> dict[str, Any]:
    """The query as parameters of `matching`: its lists as arrays, what is nested as JSON."""
    params: dict[str, Any] = dict(query.params(now))
    for name, value in params.items():
        if value is not None and name.endswith("_in"):
            params[name] = array(_list.decode(value))
    return params


def _parts(states: set[State]) -> dict[str, Any]:
    """These states, and which parts of the view `job` have jobs in them."""
    parts = {"history" if state in TERMINAL else "live" for state in states}
    return {"parts": array(sorted(parts)), "states": array(sorted(states))}


def _under(below: int | None) -> int:
    return 2**63 - 1 if below is None else below
