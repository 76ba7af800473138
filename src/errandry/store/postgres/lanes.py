"""Lanes of waiting jobs in PostgreSQL: who stands in line, who is next, and when something is due. No rules.

What a claim is going to ask is foreseen from the one before: mostly the same lanes have jobs. So a worker at
rest finds out in one round trip, and has, what came in.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

from errandry.core.command import Claim
from errandry.core.fair_queueing import AGED_PRIORITY, OldestJob, OpenLane, Position, by_urgency
from errandry.core.job import JobRecord
from errandry.core.state import SCHEDULED, WAITING
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.gates import PostgresGates
from errandry.store.postgres.pipeline import Pipeline, StatementParams
from errandry.store.postgres.scan_position import WHOLE, DueFloors, Parts, ScanPositions
from errandry.store.tables import rows
from errandry.store.tables.protocol import Change, DueTimes

UNLINED_MAX = 1_000
SHAPES = 10
"""So many kinds of claims are remembered."""

PART = ("lanes", "priorities", "places", "below")
"""How statements call the columns of the parts of lanes."""

Shape = tuple[tuple[str, ...] | None, tuple[str, ...] | None, tuple[str, ...]]
"""The queues and tasks of a claim, and those it leaves out."""


class PostgresLanes(PostgresGates):
    """Part of what `store.tables.Tables` asks for."""

    def __init__(self, wire: Pipeline) -> None:
        super().__init__(wire)
        self._trail = ScanPositions()
        self._parts: Parts = {}
        self._floors: DueFloors | None = None
        self._came: dict[int, list[tuple[int, int]]] = {}
        self._emptied: dict[int, list[tuple[int, int]]] = {}
        self._is_counting = False
        self._now = 0.0
        self._has_groups = self._has_unlined = self._is_foreseen = False
        self._marks: DueTimes | None = None
        self._lanes: dict[tuple[str, str, str], int] = {}
        self._before: dict[Shape, list[OpenLane]] = {}
        self._counted: dict[str, int] = {}
        self._left: Counter[str] = Counter()

    def _set_out(self, trail: ScanPositions) -> None:
        """Find out how much of the lanes the claims of a pass have to read."""
        moment, self._trail = time.monotonic(), trail
        self._parts, self._floors = trail.parts(moment), trail.floors(moment)
        self._is_counting = trail.is_counting(moment)
        self._came, self._emptied = {}, {}

    def committed(self) -> None:
        """The pass has become true."""
        for lane, spots in self._came.items():
            self._trail.came(lane, spots)
        for lane, spots in self._emptied.items():
            self._trail.emptied(lane, spots)

    @property
    def held_lanes(self) -> dict[tuple[str, str, str], int]:
        """The lanes that jobs of this pass have come to stand in."""
        return self._lanes

    def _ask_lanes(self, keys: Iterable[tuple[str, str, str]]) -> None:
        """Of jobs that are going to stand in line."""
        self._ask("share_lanes", columns(keys))

    def _stand_in_line(self, jobs: Sequence[JobRecord]) -> None:
        """Hold the lanes of these jobs, marked: they may have waiting jobs."""
        moments = {(job.queue, job.task, job.group): job.updated_at for job in jobs}
        if any(group for _, _, group in moments):
            self._has_groups = True
            self._forget_marks()  # a lane laid aside counts from now on
        for name in ("share_lanes", "mark_lanes"):
            keys = [key for key in moments if key not in self._lanes]
            if not keys:
                break
            when = [] if name == "share_lanes" else [max(moments.values())]
            found = self._all(name, [*when, *columns(keys)])
            self._lanes |= {(queue, *rest): lane for lane, queue, *rest in found}
        if self._parts:
            for job in jobs:
                spots = self._came.setdefault(self._lanes[job.queue, job.task, job.group], [])
                spots.append((job.priority, job.place or 0))

    def _line_up(self) -> None:
        """Give those their lane who were inserted in transactions that could not mark it."""
        jobs = self._jobs("unlined", (UNLINED_MAX,))
        self._stand_in_line(jobs)
        lanes = [self._lanes[job.queue, job.task, job.group] for job in jobs]
        self._run("line_up", (array(job.seq for job in jobs), array(lanes)))
        self._unask("open_lanes", "line", "lines")
        self._counted = {}
        self._has_unlined = len(jobs) == UNLINED_MAX

    def _foresee_claims(self, claims: Sequence[Claim], is_alone: bool, has_news: bool) -> None:
        """Ask what these are going to ask, unless the pass has news for them; alone, have the jobs at once.

        Else there may be a lock to be waited for later, which must not be done with jobs in hand.
        """
        if self.has_gates or self._has_groups:
            return
        for claim in claims:
            self._ask("recall", (claim.worker,))
        if self._is_counting:
            self._ask("entries", (0,))
        if self._parts:
            self._ask("fronts", self._columns(self._parts))
        if self._floors is None:  # else the time is needed, which comes with the answer to the first question
            self._ask("marks", self._since())
        [claim, *more] = claims
        if not has_news and not more and claim.order is None and not claim.batches:
            self._ask("open_lanes", self._open(claim, (), (), claim.limit + 1))
            if is_alone:
                self._foresee_jobs(claim)

    def _foresee_jobs(self, claim: Claim) -> None:
        """Where there were jobs the last time: have those the claim would take, and ask how many wait."""
        self._is_foreseen = True
        lines = self._before.get(_shape(claim), [])
        if lines:
            self._ask(*self._best(lines, claim.limit, claim.suspects != 0))
        self._unask("backlog")
        self._counted = {}
        for queue in {line.queue for line in lines}:
            self._counted[queue], self._left[queue] = claim.limit + 1, 0
            self._ask("backlog", self._backlog(queue, claim.limit + 1))
        if self._is_counting:
            self._ask("entries", (1,))

    def _watch(self, changes: Iterable[Change]) -> list[JobRecord]:
        """The jobs that come in line; what was foreseen otherwise is forgotten."""
        coming: list[JobRecord] = []
        is_other = False
        for before, after in changes:
            if after is not None and after.state is WAITING:
                coming.append(after)
            elif before is not None and before.state is WAITING:
                self._left[before.queue] += 1
                is_other = True
            if SCHEDULED in (before and before.state, after and after.state) or (
                after is not None and after.deadline is not None and after.deadline <= after.updated_at
            ):
                self._forget_marks()
        if coming or is_other:
            self._unask("open_lanes", "line", "lines")
        self._unask("lock_live", "any_ended")
        if coming:
            self._counted = {}
        return coming

    def _since(self) -> StatementParams:
        """Where to look for marks: everywhere, or between the last that were seen and now."""
        until = "infinity" if self._floors is None else self._now
        return {**(self._floors or DueFloors())._asdict(), "until": until}

    def _forget_marks(self) -> None:
        self._marks = None
        self._unask("marks")

    def _open(self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int) -> dict[str, Any]:
        return {
            "queues": None if claim.queues is None else array(claim.queues),
            "tasks": None if claim.tasks is None else array(claim.tasks),
            "without": array([*claim.without, *tasks]),
            "closed": array(queues),
            "suspects": claim.suspects != 0,
            "limit": None if self.has_gates or claim.order is not None else claim.limit,
            "width": width,
            **self._parted(),
        }

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        if self._has_unlined:
            self._line_up()
        if self._parts:
            self._part()
        params = self._open(claim, queues, tasks, width)
        if not self._has_groups:
            if not (self._is_foreseen or self.has_gates or claim.order is not None or claim.batches):
                self._ask("open_lanes", params)
                self._foresee_jobs(claim)
            self._is_foreseen = False
            found = [
                OpenLane._make((*row[:4], 0.0, 0.0, 0, row[4:])) for row in self._all("open_lanes", params)
            ]
            if not any(line.group for line in found):
                self._count(found)
                if found:
                    self._before = {**dict(islice(self._before.items(), SHAPES - 1)), _shape(claim): found}
                return found
            self._has_groups = True  # one came since the pass began
        while True:
            found = [OpenLane._make((*row[:7], row[7:])) for row in self._all("turns", params)]
            behind = [line.lane for line in found if line.turn < line.round]
            if not behind or not self._all("catch_up", (array({line.queue for line in found}),)):
                return found

    def best_jobs(self, lines: Sequence[OpenLane], limit: int, suspects: bool) -> list[JobRecord]:
        if not lines:
            return []
        jobs = self._jobs(*self._best(lines, limit, suspects))
        if suspects:  # else one that was passed over may stand among these
            lanes = {(line.queue, line.task, line.group): line.lane for line in lines}
            for job in takewhile(lambda job: not job.crashes, jobs):
                spots = self._emptied.setdefault(lanes[job.queue, job.task, job.group], [])
                spots.append((job.priority, job.place or 0))
        return jobs

    def _best(self, lines: Sequence[OpenLane], limit: int, suspects: bool) -> tuple[str, StatementParams]:
        """The statement for the first jobs of these lanes."""
        lanes = sorted(line.lane for line in sorted(lines, key=by_urgency)[:limit])
        name = "line" if len(lines) == 1 else "lines"
        return name, {"suspects": suspects, "limit": limit, **self._columns(lanes)}

    def _backlog(self, queue: str, bound: int) -> StatementParams:
        return {"queue": queue, "bound": bound, **self._parted()}

    def _parted(self) -> dict[str, str]:
        """The lanes that are not read as a whole, and the parts that are."""
        return {"parted": array(self._parts), **self._columns(self._parts)}

    def _part(self) -> None:
        """Have those lanes read as a whole where somebody stands in front."""
        whole = {lane for (lane,) in self._all("fronts", self._columns(self._parts))}
        if whole:
            self._parts = {lane: parts for lane, parts in self._parts.items() if lane not in whole}
            self._unask("open_lanes", "line", "lines", "backlog")
            self._counted = {}
            self._is_foreseen = False

    def _columns(self, lanes: Iterable[int]) -> dict[str, str]:
        """The parts of these lanes that are to be read."""
        parts = [(lane, *part) for lane in lanes for part in self._parts.get(lane, WHOLE)]
        values = columns(parts) or ["{}"] * len(PART)
        return dict(zip(PART, values, strict=True))

    def _count(self, lines: Iterable[OpenLane]) -> None:
        """Tell others how many entries were read to find these lanes with their first jobs, if all were."""
        self._is_counting = False
        asked = [("entries", (number,)) for number in (0, 1)]
        if all(question in self._asked for question in asked):
            before, after = (self._all(*question)[0][1] for question in asked)
            firsts = {line.lane: line.first for line in lines if line.first is not None}
            floors = DueFloors(
                *(self._now if at is None else min(at, self._now) for at in self.due_times()[:3])
            )
            self._trail.has_read(after - before, firsts, floors, time.monotonic())

    def positions(self, lines: Sequence[OpenLane], each: int, suspects: bool) -> dict[Any, list[Position]]:
        found: dict[Any, list[Position]] = {line.lane: [] for line in lines}
        for row in self._all("spots", (array(found), suspects, each)):
            found[row[3]].append(Position._make(row))
        return found

    def take(self, spots: Sequence[Position], suspects: bool) -> list[JobRecord]:
        """As many of each lane as stand there: what another pass is about to take is left to it."""
        named = {spot.lane for spot in spots if spot.priority == AGED_PRIORITY}
        shares = Counter(spot.lane for spot in spots if spot.lane not in named)
        found: dict[Any, list[JobRecord]] = {lane: [] for lane in shares}
        if shares:
            for lane, *row in self._all("shares", (array(shares), array(shares.values()), suspects)):
                found[lane].append(rows.to_job(row))
        lines = {lane: iter(jobs) for lane, jobs in found.items()}
        seqs = [spot.seq for spot in spots if spot.lane in named]
        own = {job.seq: job for job in self.jobs_by_seq(seqs)}
        jobs = (own.get(s.seq) if s.lane in named else next(lines[s.lane], None) for s in spots)
        return [job for job in jobs if job is not None]

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        found = {job.seq: job for job in self._jobs("numbered", (array(seqs),))} if seqs else {}
        return [found[seq] for seq in seqs if seq in found]

    def oldest_jobs(self, lanes: Sequence[Any], each: int, suspects: bool) -> list[OldestJob]:
        params = {"lanes": array(lanes), "each": each, "suspects": suspects}
        return [OldestJob(Position._make(row), since) for *row, since in self._all("elders", params)]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        if self._has_unlined:
            self._line_up()
        return [lane for (lane,) in self._all("lanes_of", {"queue": queue, "group": group})]

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        self._run("lock_sizes", (array(sorted(queues)),))

    def group_size(self, queue: str, group: str) -> int:
        return int(self._all("group_size", {"queue": queue, "group": group})[0][0])

    def put_turns(self, queue: str, turns: Mapping[str, float], round_: float) -> None:
        self._run("put_turns", (array(turns), array(turns.values()), queue))
        self._run("put_round", {"queue": queue, "turn": round_, "last": max(turns.values())})
        self.is_dirty = True

    def reset_turns(self, queue: str) -> None:
        self._run("end_round", (queue,))

    def park_lanes(self, lines: Sequence[tuple[OpenLane, float]], now: float) -> bool:
        if not lines:
            return False
        columns = {
            "lanes": array(line.lane for line, _ in lines),
            "opened": array(line.opened for line, _ in lines),
            "until": array(open_at for _, open_at in lines),
        }
        parked = self._all("park", columns | {"now": now})
        self._forget_marks()
        self.is_dirty |= bool(parked)
        return bool(parked)

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        if groups:
            self._run("open_groups", columns(groups))
            self._forget_marks()

    def unpark_queue(self, queue: str) -> None:
        self._run("open_queue", (queue,))
        self._forget_marks()

    def unpark_due(self, now: float) -> None:
        self._run("open_due", (now,))
        self._forget_marks()

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        return self._all("waiting_pairs")

    def is_drained(self, queue: str) -> bool:
        """Whether none waits any more; or no more waited, as far as was counted, than have left since."""
        if self._has_unlined:
            return False
        counted, left = self._counted.pop(queue, 0), self._left[queue]
        if counted <= left:
            counted, left = 1, 0
        [(waiting,)] = self._all("backlog", self._backlog(queue, counted))
        return bool(waiting <= left)

    def due_times(self) -> DueTimes:
        """Asked once a pass, and again if it has changed when something is due.

        Leases that a pass writes are not over yet in that pass.
        """
        if self._marks is None:
            self._marks = DueTimes(*self._all("marks", self._since())[0])
        return self._marks._replace(open_at=0.0) if self._has_unlined else self._marks


def _shape(claim: Claim) -> Shape:
    return claim.queues, claim.tasks, claim.without
