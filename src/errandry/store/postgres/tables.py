"""The tables of a pass in PostgreSQL: statements in, rows out. No rules.

A writer locks every job it hands out, so that what was decided about it still holds when it is written. A
reader sees one moment and locks nothing.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import json as msgjson
from psycopg import Connection
from psycopg.errors import SerializationFailure

from errandry.core.command import (
    Beat,
    Claim,
    Ref,
    WorkerInfo,
)
from errandry.core.event import Event
from errandry.core.job import Job, Keep
from errandry.core.pick import AGED, Elder, Line, Spot, by_urgency
from errandry.core.query import Query
from errandry.core.state import SCHEDULED, TERMINAL, WAITING, State
from errandry.core.unique import Holder
from errandry.store import cursor as cursors
from errandry.store import row as rows
from errandry.store.contract import Bounds, Happened
from errandry.store.plan import ENDED, FINISHED, Batches, planned
from errandry.store.postgres.array import array
from errandry.store.postgres.days import day_of
from errandry.store.postgres.timetable import Timetable
from errandry.store.tables import Change, Deltas, Marks

FOLD_MAX = 10_000
IDLE_LANE = 3_600.0
UNLINED_MAX = 1_000
EVENT_ROWS = 100
"""So many rows of the event log are fetched at a time."""

_events = msgjson.Decoder(tuple[Event, ...])
_beat = msgjson.Decoder(Beat)
_deltas = msgjson.Decoder(list[tuple[str, str, dict[str, int]]])
_list = msgjson.Decoder(list[str | int])


class PostgresTables(Timetable):
    """What `store.tables.Tables` asks for, over one connection; `sql` has its statements by name."""

    is_far = True

    def __init__(self, connection: Connection[Any], sql: Mapping[str, str], writes: bool) -> None:
        super().__init__(connection, sql)
        self._writes = writes
        self.identity = ""
        self.is_dirty = self.has_gates = self._has_groups = False
        self.event_row: tuple[Any, ...] | None = None
        self._has_unlined = False
        self._marks: Marks | None = None
        self._lanes: dict[tuple[str, str, str], int] = {}
        self._days: set[int] = set()
        self._fresh: frozenset[str] = frozenset()
        self._numbers: deque[int] = deque()
        self._wanted = 0

    def begin(self, lock_timeout: str, workers: Iterable[str], fresh: Iterable[str]) -> tuple[float, float]:
        """Read what a pass starts from: the time nobody may go back behind, and the server's.

        `workers` claim in it. `fresh` are ids it brings: they are not expected to be there.
        """
        [found] = self._all("head", (lock_timeout, array(sorted(workers))))
        *_, has_bound, self._has_unlined, self.has_gates, self._has_groups, self.identity, _, floor, now = (
            found
        )
        self.is_dirty = has_bound
        self.event_row = (0.0, 0, "[]", "[]") if has_bound else None  # what others inserted is to be numbered
        self._marks, self._lanes = None, {}
        self._fresh = frozenset(fresh)
        self._numbers, self._wanted = deque(), 0
        return floor, now

    def look(self) -> tuple[float, float]:
        """The same for who only reads."""
        self._marks = None
        [(*_, self.identity, _, floor, now, self.has_gates)] = self._all("head_read")
        return floor, now

    def number(self) -> int:
        """From a sequence, as many at once as are known to be wanted: none must be left over.

        A number given to a later pass would put its job before those that came first.
        """
        self.is_dirty = True
        if not self._numbers:
            self._numbers.extend([one for (one,) in self._all("numbers", (max(1, self._wanted),))])
            self._wanted = 0
        return self._numbers.popleft()

    def expect(self, numbers: int) -> None:
        self._wanted = max(self._wanted, numbers - len(self._numbers))

    def write(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        waiting = []
        for before, after in changes:
            if after is not None and after.state is WAITING:
                waiting.append(after)
            for job in (before, after):
                if job is not None and job.state is SCHEDULED:
                    self._marks = None
        self._stand_in_line(waiting)
        batches = planned(changes, lambda job: self._lanes[job.queue, job.task, job.group])
        self._date(batches)
        ended = {values[0] for values in batches["finish_live"]}  # which deletes what it copies
        batches["delete_live"] = [values for values in batches["delete_live"] if values[0] not in ended]
        for name, batch in batches.items():
            if batch:
                self._run(name, [array(column) for column in zip(*batch, strict=True)])
        self.is_dirty = True

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

    def keys(self, slots: Sequence[str]) -> dict[str, Holder]:
        """Not locked: who is content with their holder must not be in the way of its end."""
        return {slot: Holder(*held) for slot, *held in self._all("keys", (array(slots),))}

    def write_keys(
        self, freed: Mapping[str, str], taken: Mapping[str, Holder], rivals: Mapping[str, str], now: float
    ) -> None:
        if freed:
            self._run("free_keys", (array(freed), array(freed.values())))
        if taken:
            held = [(slot, key.job, key.expires_at, rivals.get(slot)) for slot, key in taken.items()]
            got = self._all("take_keys", [*(array(column) for column in zip(*held, strict=True)), now])
            if len(got) < len(taken):
                raise SerializationFailure("another transaction was quicker to take a unique key")

    def _stand_in_line(self, jobs: Iterable[Job]) -> None:
        """Hold the lanes of these jobs, marked: they may have waiting jobs."""
        moments = {(job.queue, job.task, job.group): job.updated_at for job in jobs}
        self._has_groups |= any(group for _, _, group in moments)
        for name in ("share_lanes", "mark_lanes"):
            keys = [key for key in moments if key not in self._lanes]
            if not keys:
                return
            columns = [array(column) for column in zip(*keys, strict=True)]
            when = [] if name == "share_lanes" else [max(moments.values())]
            self._lanes |= {(queue, *rest): lane for lane, queue, *rest in self._all(name, [*when, *columns])}

    def _line_up(self) -> None:
        """Give those their lane who were inserted in transactions that could not mark it."""
        jobs = self._jobs("unlined", (UNLINED_MAX,))
        self._stand_in_line(jobs)
        lanes = [self._lanes[job.queue, job.task, job.group] for job in jobs]
        self._run("line_up", (array(job.seq for job in jobs), array(lanes)))
        self._has_unlined = False

    def append(self, now: float, events: Sequence[Event], deltas: Deltas) -> None:
        """Kept for the end: it is written with the commit, under a lock that is not to last."""
        packed = [(queue, task, changes) for (queue, task), changes in deltas.items()]
        self.event_row = (now, len(events), rows.text(events), rows.text(packed))
        self.is_dirty = True

    def find(self, ids: Sequence[str]) -> dict[str, Job]:
        """Live first: a job that moves meanwhile is then found in the other table, or again in this one."""
        found: dict[str, Job] = {}
        if not self._writes:
            names = ["find_live", "find_history"]
        else:
            names = ["lock_live", "lock_history", "lock_live"]
        for number, name in enumerate(names):
            missing = [one for one in ids if one not in found and (number < 2 or one not in self._fresh)]
            if missing and (name != "lock_history" or self._all("any_ended", (array(missing),))):
                found |= {job.id: job for job in self._jobs(name, (array(missing),))}
        return found

    def ids(self, part: str, limit: int) -> list[str]:
        values = {"part": part, "limit": limit}
        return sorted(one for name in ("ids_live", "ids_history") for (one,) in self._all(name, values))[
            :limit
        ]

    def matching(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[Job]:
        wanted = set(states) & set(dict(query.within).get("state", State))
        params = _params(query, now) | _parts(wanted) | {"above": above}
        found: list[Job] = []
        while len(found) < limit:
            room = limit - len(found)
            page = self._match(params | {"below": _under(below), "limit": room})
            found += self._still(page, query, wanted, now) if self._writes else page
            if len(page) < room:
                break
            below = page[-1].seq
        return found

    def floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        params = _parts(set(states)) | {"below": _under(below), "jobs": jobs}
        found = self._cursor.execute(self._sql["floor"], params, prepare=False).fetchone()
        return 0 if found is None else int(found[0])

    def _match(self, params: Mapping[str, Any]) -> list[Job]:
        cursor = self._cursor.execute(self._sql["matching"], params, prepare=False)
        return [rows.to_job(row) for row in cursor.fetchall()]

    def _still(self, jobs: Sequence[Job], query: Query, states: set[State], now: float) -> list[Job]:
        """Those of `jobs` that match still, now that they are locked, as they are now."""
        locked = self.find([job.id for job in jobs])
        current = [locked[job.id] for job in jobs if job.id in locked]
        return [job for job in current if job.state in states and query.matches(job, now)]

    def lines(self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int) -> list[Line]:
        if self._has_unlined:
            self._line_up()
        params = {
            "queues": None if claim.queues is None else array(claim.queues),
            "tasks": None if claim.tasks is None else array(claim.tasks),
            "without": array([*claim.without, *tasks]),
            "closed": array(queues),
            "suspects": claim.suspects != 0,
            "limit": None if self.has_gates or claim.order is not None else claim.limit,
            "width": width,
        }
        if not self._has_groups:
            return [Line._make((*row[:4], 0.0, 0.0, 0, row[4:])) for row in self._all("open_lanes", params)]
        while True:
            found = [Line._make((*row[:7], row[7:])) for row in self._all("turns", params)]
            behind = [line.lane for line in found if line.turn < line.round]
            if not behind or not self._all("catch_up", (array({line.queue for line in found}),)):
                return found

    def best(self, lines: Sequence[Line], limit: int, suspects: bool) -> list[Job]:
        if len(lines) == 1:
            return self._jobs("line", (lines[0].lane, suspects, limit))
        if not lines:
            return []
        lanes = array(line.lane for line in sorted(lines, key=by_urgency)[:limit])
        return self._jobs("lines", {"lanes": lanes, "suspects": suspects, "limit": limit})

    def spots(self, lines: Sequence[Line], each: int, suspects: bool) -> dict[Any, list[Spot]]:
        found: dict[Any, list[Spot]] = {line.lane: [] for line in lines}
        for row in self._all("spots", (array(found), suspects, each)):
            found[row[3]].append(Spot._make(row))
        return found

    def take(self, spots: Sequence[Spot], suspects: bool) -> list[Job]:
        """As many of each lane as stand there: what another pass is about to take is left to it."""
        named = {spot.lane for spot in spots if spot.priority == AGED}
        shares = Counter(spot.lane for spot in spots if spot.lane not in named)
        found: dict[Any, list[Job]] = {lane: [] for lane in shares}
        if shares:
            for lane, *row in self._all("shares", (array(shares), array(shares.values()), suspects)):
                found[lane].append(rows.to_job(row))
        lines = {lane: iter(jobs) for lane, jobs in found.items()}
        seqs = [spot.seq for spot in spots if spot.lane in named]
        own = {job.seq: job for job in self.numbered(seqs)}
        jobs = (own.get(s.seq) if s.lane in named else next(lines[s.lane], None) for s in spots)
        return [job for job in jobs if job is not None]

    def numbered(self, seqs: Sequence[int]) -> list[Job]:
        found = {job.seq: job for job in self._jobs("numbered", (array(seqs),))} if seqs else {}
        return [found[seq] for seq in seqs if seq in found]

    def elders(self, lanes: Sequence[Any], each: int, suspects: bool) -> list[Elder]:
        params = {"lanes": array(lanes), "each": each, "suspects": suspects}
        return [Elder(Spot._make(row), since) for *row, since in self._all("elders", params)]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        if self._has_unlined:
            self._line_up()
        return [lane for (lane,) in self._all("lanes_of", {"queue": queue, "group": group})]

    def lock_sizes(self, queues: Sequence[str]) -> None:
        self._run("lock_sizes", (array(sorted(queues)),))

    def group_size(self, queue: str, group: str) -> int:
        return int(self._all("group_size", {"queue": queue, "group": group})[0][0])

    def put_turns(self, queue: str, turns: Mapping[str, float], round_: float) -> None:
        self._run("put_turns", (array(turns), array(turns.values()), queue))
        self._run("put_round", {"queue": queue, "turn": round_, "last": max(turns.values())})
        self.is_dirty = True

    def end_round(self, queue: str) -> None:
        self._run("end_round", (queue,))

    def park(self, lines: Sequence[tuple[Line, float]], now: float) -> bool:
        if not lines:
            return False
        columns = {
            "lanes": array(line.lane for line, _ in lines),
            "opened": array(line.opened for line, _ in lines),
            "until": array(open_at for _, open_at in lines),
        }
        parked = self._all("park", columns | {"now": now})
        self._marks = None
        self.is_dirty |= bool(parked)
        return bool(parked)

    def open_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        if groups:
            self._run("open_groups", [array(column) for column in zip(*groups, strict=True)])
            self._marks = None

    def open_queue(self, queue: str) -> None:
        self._run("open_queue", (queue,))
        self._marks = None

    def open_due(self, now: float) -> None:
        self._run("open_due", (now,))
        self._marks = None

    def pairs(self) -> list[tuple[str, str]]:
        return self._all("waiting_pairs")

    def is_drained(self, queue: str) -> bool:
        return not self._all("queue_has_waiting", (queue,))

    def marks(self) -> Marks:
        """Asked once a pass, and again if it has changed when something is due.

        Leases and deadlines that a pass writes are not over yet in that pass.
        """
        if self._marks is None:
            self._marks = Marks(*self._all("marks")[0])
        return self._marks

    def due(self, now: float, limit: int) -> list[Job]:
        due = self._jobs("due", (now, limit))
        self.expect(len(due))
        return due

    def expired(self, now: float, limit: int) -> list[Job]:
        return self._jobs("expired" if self._writes else "held", (now, limit))

    def lapsed(self, now: float, limit: int) -> list[Job]:
        return self._jobs("lapsed", (now, limit))

    def outlived(self, now: float, limit: int) -> list[Job]:
        return self._jobs("outlived" if self._writes else "seen_outlived", (now, limit))

    def shelves(self) -> list[tuple[str, State, Keep]]:
        return [(task, State(state), rows.to_keep(keep)) for task, state, keep in self._all("shelves")]

    def surplus(self, task: str, state: State, last: int, limit: int) -> list[Job]:
        params = {"task": task, "state": state, "last": last - 1, "limit": limit}
        return self._jobs("surplus" if self._writes else "seen_surplus", params)

    def held_by(self, workers: Sequence[str], limit: int) -> list[Job]:
        return self._jobs("held_by", (array(workers), limit))

    def cancels(self, worker: str) -> tuple[Ref, ...]:
        return tuple(Ref(*row) for row in self._all("cancels", (worker,)))

    def remember(self, worker: str, claims: Mapping[str, Sequence[Ref]], now: float) -> None:
        self._run("remember", (worker, now, rows.text(claims)))

    def recall(self, worker: str, nonce: str) -> Sequence[Ref] | None:
        found = self._all("recall", (worker,))
        return rows.to_refs(found[0][0], nonce) if found else None

    def beat(self, beat: Beat, now: float) -> None:
        if beat.gone:
            self._run("forget_worker", (beat.worker,))
        else:
            self._run("beat", (beat.worker, now, rows.text(beat)))
        self.is_dirty = True

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(_beat.decode(beat), seen_at) for beat, seen_at in self._all("workers")]

    def counters(self) -> dict[str, dict[str, int]]:
        counters: dict[str, dict[str, int]] = {}
        for queue, name, value in self._all("totals"):
            counters.setdefault(queue, {})[name] = value
        newest = [deltas for _, deltas in self._all("unfolded", (2**62,))]
        for deltas in newest + [deltas for (deltas,) in self._all("unnumbered")]:
            for queue, _task, changes in _deltas.decode(deltas):
                _add(counters.setdefault(queue, {}), changes)
        return dict(sorted(counters.items()))

    def ready_since(self) -> dict[str, float]:
        return dict(self._all("ready_since"))

    def happened(self, after: tuple[int, int], limit: int) -> list[Happened]:
        return list(islice(self._happened(*after), limit))

    def _happened(self, row: int, seen: int) -> Iterator[Happened]:
        start = row
        while found := self._all("events", (start, EVENT_ROWS)):
            for n, at, entries in found:
                events = _events.decode(entries)
                for index, event in enumerate(events):
                    if n > row or index >= seen:
                        yield Happened(cursors.in_row(self.identity, n, index, len(events)), at, event)
            start = found[-1][0] + 1

    def log_span(self) -> tuple[int, int]:
        [(first, last)] = self._all("log_span")
        return (last + 1 if first is None else first), last

    def trim(self, now: float, bounds: Bounds, limit: int) -> int:
        if not self._all("may_trim")[0][0]:
            return 0
        self._fold()
        went = self._trim_events(now, bounds, limit)
        went += len(self._all("drop_workers", (now - bounds.workers_age,)))
        went += len(self._all("drop_keys", (now, limit)))
        self._run("drop_claims", (now - bounds.workers_age,))
        self._run("drop_gates", (now, now, limit))
        if idle := self._all("idle_lanes", (now - IDLE_LANE, limit)):
            lanes = array([lane for (lane,) in idle])
            self._run("rest_lanes", (lanes,))
            self._run("drop_lanes", (lanes, now - IDLE_LANE))
            self._lanes = {}
        self._run("mend_parked", (now, now - IDLE_LANE, limit))
        self._run("end_rounds")
        self.is_dirty |= went > 0
        return went

    def _trim_events(self, now: float, bounds: Bounds, limit: int) -> int:
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

    def _fold(self) -> None:
        """Add the deltas of the event rows since the last time to the totals."""
        sums: dict[tuple[str, str], dict[str, int]] = {}
        last = 0
        for n, deltas in self._all("unfolded", (FOLD_MAX,)):
            last = n
            for queue, task, changes in _deltas.decode(deltas):
                _add(sums.setdefault((queue, task), {}), changes)
        if last:
            flat = [(*lane, name, change) for lane, d in sums.items() for name, change in d.items()]
            if flat:
                self._run("fold", [array(column) for column in zip(*flat, strict=True)])
            self._run("folded", (last,))


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


def _add(counters: dict[str, int], changes: dict[str, int]) -> None:
    for name, change in changes.items():
        counters[name] = counters.get(name, 0) + change
