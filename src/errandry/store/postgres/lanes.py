"""Lanes of waiting jobs in PostgreSQL: which jobs wait, which are next, and when upkeep has work.

A claim prefetches the jobs of the lanes that had jobs at the previous claim of its kind, as these mostly have
jobs again. So an idle worker finds and locks new jobs in one round trip.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

from errandry.core.command import Claim
from errandry.core.fair_queueing import AGED_PRIORITY, OldestJob, OpenLane, Position, urgency
from errandry.core.job import JobRecord
from errandry.core.state import SCHEDULED, WAITING
from errandry.core.suspect import SuspectKind
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.gates import PostgresGates
from errandry.store.postgres.pipeline import Pipeline, StatementParams
from errandry.store.postgres.scan_position import WHOLE, DueFloors, Parts, ScanPositions
from errandry.store.tables import rows
from errandry.store.tables.protocol import BestJobs, Change, DueTimes

JOBS_WITHOUT_LANE_MAX = 1_000
"""Maximum number of jobs to which one pass assigns a lane."""
CLAIM_SHAPES_MAX = 10
"""Maximum number of kinds of claims whose last open lanes are remembered."""

PART_COLUMNS = ("lanes", "priorities", "places", "below")
"""The parameters of statements for parts of lanes, as columns: the lane, then the fields of `LanePart`."""

ClaimShape = tuple[tuple[str, ...] | None, tuple[str, ...] | None, tuple[str, ...]]
"""The queues and tasks of a claim, and those it leaves out."""


class PostgresLanes(PostgresGates):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._scan_positions = ScanPositions()
        self._parts: Parts = {}
        self._floors: DueFloors | None = None
        self._arrived: dict[int, list[tuple[int, int]]] = {}
        self._taken: dict[int, list[tuple[int, int]]] = {}
        self._is_counting = self._are_lifo_lanes_excluded = False
        self._now = 0.0
        self._has_groups = self._has_jobs_without_lane = self._has_prefetched_jobs = False
        self._due_times: DueTimes | None = None
        self._lanes: dict[tuple[str, str, str], int] = {}
        self._last_open_lanes: dict[ClaimShape, list[OpenLane]] = {}
        self._waiting_bounds: dict[str, int] = {}
        self._left_waiting: Counter[str] = Counter()

    def _start_scan(self, scan_positions: ScanPositions) -> None:
        """Choose the parts of lanes that the claims of a pass have to read."""
        moment, self._scan_positions = time.monotonic(), scan_positions
        self._parts, self._floors = scan_positions.parts(moment), scan_positions.floors(moment)
        self._is_counting = scan_positions.wants_count(moment)
        self._are_lifo_lanes_excluded = False
        self._arrived, self._taken = {}, {}

    def record_commit(self) -> None:
        """Update the scan positions after the commit of the pass."""
        for lane, places in self._arrived.items():
            self._scan_positions.record_arrivals(lane, places)
        for lane, places in self._taken.items():
            self._scan_positions.record_taken(lane, places)

    @property
    def held_lanes(self) -> dict[tuple[str, str, str], int]:
        """The lanes into which this pass has put jobs. It holds a lock on each."""
        return self._lanes

    def _prefetch_lanes(self, keys: Iterable[tuple[str, str, str]]) -> None:
        self._prefetch("lock_marked_lanes", columns(keys))

    def _lock_lanes(self, jobs: Sequence[JobRecord]) -> None:
        """Lock the lanes of these waiting jobs, so that they keep their mark. Insert or mark the others."""
        updated_at = {(job.queue, job.task, job.group): job.updated_at for job in jobs}
        if any(group for _, _, group in updated_at):
            self._has_groups = True
            self._discard_due_times()  # a parked lane with a waiting job has a due time
        for name in ("lock_marked_lanes", "insert_lanes"):
            keys = [key for key in updated_at if key not in self._lanes]
            if not keys:
                break
            used_at = [] if name == "lock_marked_lanes" else [max(updated_at.values())]
            lanes = self._rows(name, [*used_at, *columns(keys)])
            self._lanes |= {(queue, *rest): lane for lane, queue, *rest in lanes}
        if self._parts:
            for job in jobs:
                places = self._arrived.setdefault(self._lanes[job.queue, job.task, job.group], [])
                places.append((job.priority, job.place or 0))

    def _assign_lanes(self) -> None:
        """Set the lanes of jobs that `insert_jobs` inserted without one."""
        jobs = self._jobs("jobs_without_lane", (JOBS_WITHOUT_LANE_MAX,))
        self._lock_lanes(jobs)
        lanes = [self._lanes[job.queue, job.task, job.group] for job in jobs]
        self._send("set_lanes", (array(job.seq for job in jobs), array(lanes)))
        self._discard("open_lanes", "best_jobs_of_lane", "best_jobs")
        self._waiting_bounds = {}
        self._has_jobs_without_lane = len(jobs) == JOBS_WITHOUT_LANE_MAX

    def _prefetch_claims(self, claims: Sequence[Claim], is_alone: bool, has_inserts: bool) -> None:
        """Send the queries that the claims of a pass will need.

        With `has_inserts`, the pass inserts jobs, so its open lanes are not known yet. With `is_alone`, no
        other command of the pass may wait for a lock. Only then are jobs prefetched too, because that locks
        them.
        """
        if self.has_gates or self._has_groups:
            return
        for claim in claims:
            self._prefetch("load_claims", (claim.worker,))
        if self._is_counting:
            self._prefetch("index_entries_read", (0,))
        if self._parts:
            self._prefetch("lanes_with_lifo_jobs", self._part_columns(self._parts))
        if self._floors is None:  # else the query needs the time, which comes with the first reply
            self._prefetch("due_times", self._due_times_params())
        [claim, *more] = claims
        if not has_inserts and not more and claim.queue_order is None and not claim.batches:
            self._prefetch("open_lanes", self._open_lanes_params(claim, (), (), claim.limit + 1))
            if is_alone:
                self._prefetch_best_jobs(claim)

    def _prefetch_best_jobs(self, claim: Claim) -> None:
        """Lock the jobs that the claim would take from its last open lanes, and count the waiting jobs."""
        self._has_prefetched_jobs = True
        lanes = self._last_open_lanes.get(_shape_of(claim), [])
        if lanes:
            self._prefetch(*self._best_jobs_statement(lanes, claim.limit, claim.suspect_filter))
        self._discard("count_waiting")
        self._waiting_bounds = {}
        for queue in {lane.queue for lane in lanes}:
            self._waiting_bounds[queue], self._left_waiting[queue] = claim.limit + 1, 0
            self._prefetch("count_waiting", self._count_waiting_params(queue, claim.limit + 1))
        if self._is_counting:
            self._prefetch("index_entries_read", (1,))

    def _discard_changed(self, changes: Iterable[Change]) -> list[JobRecord]:
        """Discard prefetched results that these changes make stale. Return the jobs that now wait."""
        waiting: list[JobRecord] = []
        has_departures = False
        for before, after in changes:
            if after is not None and after.state is WAITING:
                waiting.append(after)
            elif before is not None and before.state is WAITING:
                self._left_waiting[before.queue] += 1
                has_departures = True
            if (
                SCHEDULED in (before and before.state, after and after.state)
                or (after is not None and after.deadline is not None and after.deadline <= after.updated_at)
                or (after is not None and after.crashes)
            ):
                self._discard_due_times()
        if waiting or has_departures:
            self._discard("open_lanes", "best_jobs_of_lane", "best_jobs")
        self._discard("lock_live", "any_finished")
        if waiting:
            self._waiting_bounds = {}
        return waiting

    def _due_times_params(self) -> StatementParams:
        """The times to scan: all of them, or those between the scan floors and now."""
        until = "infinity" if self._floors is None else self._now
        return {**(self._floors or DueFloors())._asdict(), "until": until}

    def _discard_due_times(self) -> None:
        self._due_times = None
        self._discard("due_times")

    def _open_lanes_params(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> dict[str, Any]:
        return {
            "queues": None if claim.queues is None else array(claim.queues),
            "tasks": None if claim.tasks is None else array(claim.tasks),
            "without": array([*claim.without, *tasks]),
            "closed": array(queues),
            "suspects": claim.suspect_filter,
            "limit": None if self.has_gates or claim.queue_order is not None else claim.limit,
            "width": width,
            **self._parts_params(),
        }

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        if self._has_jobs_without_lane:
            self._assign_lanes()
        self._exclude_lifo_lanes()
        params = self._open_lanes_params(claim, queues, tasks, width)
        if not self._has_groups:
            if not (
                self._has_prefetched_jobs or self.has_gates or claim.queue_order is not None or claim.batches
            ):
                self._prefetch("open_lanes", params)
                self._prefetch_best_jobs(claim)
            self._has_prefetched_jobs = False
            lanes = [
                OpenLane._make((*row[:4], 0.0, 0.0, 0, row[4:])) for row in self._rows("open_lanes", params)
            ]
            if not any(lane.group for lane in lanes):
                self._record_scan(lanes)
                if lanes:
                    self._last_open_lanes = {
                        **dict(islice(self._last_open_lanes.items(), CLAIM_SHAPES_MAX - 1)),
                        _shape_of(claim): lanes,
                    }
                return lanes
            self._has_groups = True  # another process has inserted the first job with a group
        while True:
            lanes = [OpenLane._make((*row[:7], row[7:])) for row in self._rows("open_group_lanes", params)]
            behind = [lane.id for lane in lanes if lane.virtual_start < lane.virtual_time]
            if not behind or not self._rows("raise_virtual_starts", (array({lane.queue for lane in lanes}),)):
                return lanes

    def best_jobs(self, lanes: Sequence[OpenLane], limit: int, suspects: SuspectKind) -> BestJobs:
        if not lanes:
            return BestJobs([])
        best = self._rows(*self._best_jobs_statement(lanes, limit, suspects))
        jobs = [rows.to_job(row) for row in best]
        # If suspects wait that the scan has skipped, they still wait before these jobs.
        if suspects is SuspectKind.ANY or not self.due_times().waiting_suspects:
            lane_ids = {(lane.queue, lane.task, lane.group): lane.id for lane in lanes}
            for job in takewhile(lambda job: not job.crashes, jobs):
                places = self._taken.setdefault(lane_ids[job.queue, job.task, job.group], [])
                places.append((job.priority, job.place or 0))
        return BestJobs(jobs, has_locked=len(lanes) > 1 and 0 < len(jobs) < limit == best[0][-1])

    def _best_jobs_statement(
        self, lanes: Sequence[OpenLane], limit: int, suspects: SuspectKind
    ) -> tuple[str, StatementParams]:
        """The statement for the first jobs of these lanes, and its parameters."""
        lane_ids = sorted(lane.id for lane in sorted(lanes, key=urgency)[:limit])
        name = "best_jobs_of_lane" if len(lanes) == 1 else "best_jobs"
        return name, {"suspects": suspects, "limit": limit, **self._part_columns(lane_ids)}

    def _count_waiting_params(self, queue: str, bound: int) -> StatementParams:
        return {"queue": queue, "bound": bound, **self._parts_params()}

    def _parts_params(self) -> dict[str, str]:
        """The lanes that are not read as a whole, and the parts of them that are."""
        return {"parted": array(self._parts), **self._part_columns(self._parts)}

    def _exclude_lifo_lanes(self) -> None:
        """Read a lane as a whole if lifo jobs wait in it: they stand before the scan position."""
        if not self._parts or self._are_lifo_lanes_excluded:
            return
        self._are_lifo_lanes_excluded = True
        whole = {lane for (lane,) in self._rows("lanes_with_lifo_jobs", self._part_columns(self._parts))}
        if whole:
            self._parts = {lane: parts for lane, parts in self._parts.items() if lane not in whole}
            self._discard("open_lanes", "best_jobs_of_lane", "best_jobs", "count_waiting")
            self._waiting_bounds = {}
            self._has_prefetched_jobs = False

    def _part_columns(self, lanes: Iterable[int]) -> dict[str, str]:
        """The parts of these lanes to read, as columns."""
        parts = [(lane, *part) for lane in lanes for part in self._parts.get(lane, WHOLE)]
        values = columns(parts) or ["{}"] * len(PART_COLUMNS)
        return dict(zip(PART_COLUMNS, values, strict=True))

    def _record_scan(self, lanes: Iterable[OpenLane]) -> None:
        """Record how many index entries a full scan has read to find these lanes, if it counted."""
        self._is_counting = False
        counts = [("index_entries_read", (number,)) for number in (0, 1)]
        if all(count in self._prefetched for count in counts):
            before, after = (self._rows(*count)[0][1] for count in counts)
            firsts = {lane.id: lane.first for lane in lanes if lane.first is not None}
            floors = DueFloors(
                *(self._now if at is None else min(at, self._now) for at in self.due_times()[:3])
            )
            self._scan_positions.record_scan(after - before, firsts, floors, time.monotonic())

    def positions(
        self, lanes: Sequence[OpenLane], per_lane: int, suspects: SuspectKind
    ) -> dict[Any, list[Position]]:
        positions: dict[Any, list[Position]] = {lane.id: [] for lane in lanes}
        for row in self._rows("positions", (array(positions), suspects, per_lane)):
            positions[row[3]].append(Position._make(row))
        return positions

    def jobs_at(self, positions: Sequence[Position], suspects: SuspectKind) -> list[JobRecord]:
        """Lock the first jobs of each lane, as many as it has positions here.

        They need not be the jobs that were at these positions: a pass skips jobs that another pass has
        locked. Lanes with aged jobs are the exception: their jobs are not the first of the lane, so `seq`
        names them.
        """
        aged_lanes = {position.lane_id for position in positions if position.priority == AGED_PRIORITY}
        sizes = Counter(position.lane_id for position in positions if position.lane_id not in aged_lanes)
        jobs_of_lane: dict[Any, list[JobRecord]] = {lane: [] for lane in sizes}
        if sizes:
            for lane, *row in self._rows("jobs_at", (array(sizes), array(sizes.values()), suspects)):
                jobs_of_lane[lane].append(rows.to_job(row))
        remaining = {lane: iter(jobs) for lane, jobs in jobs_of_lane.items()}
        seqs = [position.seq for position in positions if position.lane_id in aged_lanes]
        aged = {job.seq: job for job in self.jobs_by_seq(seqs)}
        jobs = (
            aged.get(p.seq) if p.lane_id in aged_lanes else next(remaining[p.lane_id], None)
            for p in positions
        )
        return [job for job in jobs if job is not None]

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        jobs = {job.seq: job for job in self._jobs("jobs_by_seq", (array(seqs),))} if seqs else {}
        return [jobs[seq] for seq in seqs if seq in jobs]

    def oldest_jobs(self, lanes: Sequence[Any], per_kind: int, suspects: SuspectKind) -> list[OldestJob]:
        params = {"lanes": array(lanes), "each": per_kind, "suspects": suspects}
        return [OldestJob(Position._make(row), since) for *row, since in self._rows("oldest_jobs", params)]

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        if self._has_jobs_without_lane:
            self._assign_lanes()
        return [lane for (lane,) in self._rows("lanes_of", {"queue": queue, "group": group})]

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        self._send("lock_queue_sizes", (array(sorted(queues)),))

    def group_size(self, queue: str, group: str) -> int:
        return int(self._rows("group_size", {"queue": queue, "group": group})[0][0])

    def put_virtual_starts(self, queue: str, starts: Mapping[str, float], virtual_time: float) -> None:
        self._send("put_virtual_starts", (array(starts), array(starts.values()), queue))
        params = {"queue": queue, "virtual_time": virtual_time, "highest_start": max(starts.values())}
        self._send("put_virtual_time", params)
        self.is_dirty = True

    def reset_virtual_time(self, queue: str) -> None:
        self._send("reset_virtual_time", (queue,))

    def park_lanes(self, lanes: Sequence[tuple[OpenLane, float]], now: float) -> bool:
        if not lanes:
            return False
        params = {
            "lanes": array(lane.id for lane, _ in lanes),
            "opened": array(lane.open_count for lane, _ in lanes),
            "until": array(open_at for _, open_at in lanes),
            "now": now,
        }
        parked = self._rows("park_lanes", params)
        self._discard_due_times()
        self.is_dirty |= bool(parked)
        return bool(parked)

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        if groups:
            self._send("unpark_groups", columns(groups))
            self._discard_due_times()

    def unpark_queue(self, queue: str) -> None:
        self._send("unpark_queue", (queue,))
        self._discard_due_times()

    def unpark_due(self, now: float) -> None:
        self._send("unpark_due", (now,))
        self._discard_due_times()

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        return self._rows("queue_task_pairs")

    def is_drained(self, queue: str) -> bool:
        """Whether no job of the queue waits any more.

        If the waiting jobs were counted before this pass took some, up to a bound, the queue is drained if
        the count is at most the number of jobs that have left the waiting state since.
        """
        if self._has_jobs_without_lane and self._rows("queue_has_jobs_without_lane", (queue,)):
            return False
        self._exclude_lifo_lanes()
        counted, left = self._waiting_bounds.pop(queue, 0), self._left_waiting[queue]
        if counted <= left:
            counted, left = 1, 0
        [(waiting,)] = self._rows("count_waiting", self._count_waiting_params(queue, counted))
        return bool(waiting <= left)

    def due_times(self) -> DueTimes:
        """Queried once per pass, and again after a change of a due time.

        A renewed or new lease does not count as such a change: it cannot expire within the pass.
        """
        if self._due_times is None:
            self._due_times = DueTimes(*self._rows("due_times", self._due_times_params())[0])
        return self._due_times._replace(open_at=0.0) if self._has_jobs_without_lane else self._due_times


def _shape_of(claim: Claim) -> ClaimShape:
    return claim.queues, claim.tasks, claim.without
