"""Claims: choose waiting jobs for a worker, by gates, fair queueing of groups, and urgency.

The tables find lanes and jobs, `core.permit` counts how many may pass each gate, and `core.fair_queueing`
picks the next jobs. Without gates and groups, a claim simply takes the most urgent jobs.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from errandry.core import move
from errandry.core.answer import Claims, LossCause
from errandry.core.batch import CLAIM_MAX, call_count, free_places
from errandry.core.command import Claim, Ref
from errandry.core.fair_queueing import (
    OpenLane,
    PickRules,
    aged_positions,
    pick_positions,
    queue_ranks,
    queues_with_groups,
    urgency,
    virtual_times_after,
)
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord
from errandry.core.permit import Permits
from errandry.core.state import Move
from errandry.core.suspect import SuspectKind
from errandry.store.execute import upkeep
from errandry.store.execute.unit_of_work import UnitOfWork
from errandry.store.tables.protocol import ClaimedRefs, Tables

FULL_READ_LANES_MAX = 8
"""Maximum number of lanes of which a claim reads `limit` positions each; with more lanes it reads fewer of
each."""
LANES_MAX = 1_000
"""Maximum number of lanes of one queue and task that are read together."""


def claim(work: UnitOfWork, command: Claim) -> Claims:
    tables, now = work.tables, work.now
    work.flush()
    claims = work.saved_claims(command.worker)
    refs = claims.get(command.nonce)
    if refs is not None:  # guard: nonce_repeat
        return _answer(work, tuple(_still_held(work, refs)))
    upkeep.before_claim(work, command.worker)
    taken = _take_jobs(work, command)
    if command.batches:
        _fill_calls(work, command, taken)
    if taken:
        claims[command.nonce] = [
            (fence, [job.id for job in jobs]) for fence, jobs in groupby(taken, attrgetter("fence"))
        ]
        tables.save_claims(command.worker, claims, now)
        work.report_drained_queues()
    return _answer(work, tuple(taken))


def _answer(work: UnitOfWork, jobs: tuple[JobRecord, ...]) -> Claims:
    seconds = due_in(work.tables, work.permits(), work.now)
    suspects = work.tables.due_times().waiting_suspects
    return Claims(jobs, seconds, suspects, work.has_locked_due_jobs, work.take_expiries())


def due_in(tables: Tables, permits: Permits | None, now: float) -> float | None:
    """Return the seconds until the next job or tick is due or a gate opens, None if neither will."""
    due_times = tables.due_times()
    opens_at = None
    if permits is not None and permits.may_open_by_time:
        opens_at = permits.next_opening(tables.queue_task_pairs())
    times = (due_times.run_at, due_times.open_at, due_times.tick_at, opens_at)
    first = min((at for at in times if at is not None), default=None)
    return None if first is None else max(0.0, first - now)


def _take_jobs(work: UnitOfWork, command: Claim) -> list[JobRecord]:
    """Claim the most urgent jobs and return them. Lapsed jobs fail, suspects over the limit are skipped."""
    permits = work.permits()
    if permits is not None and permits.is_paused(GateKind.WORKER, command.worker):  # guard: worker_gate
        return []
    claim_run = _ClaimInProgress(work, command, permits)
    while claim_run.room and claim_run.claim_next():
        work.flush()
    work.flush()
    claim_run.save_rates()
    return claim_run.taken


def _fill_calls(work: UnitOfWork, command: Claim, taken: list[JobRecord]) -> None:
    """Claim more jobs for batch handlers: for the calls that are left, and for free places in batches."""
    limit, claimed = command.limit, len(taken)
    while claimed == limit and (left := command.limit - call_count(taken, command.batches)):
        limit = min(left, CLAIM_MAX - len(taken))
        if limit <= 0:
            break
        suspects = command.suspects
        if suspects is not None:
            suspects -= sum(job.crashes > 0 for job in taken)
        more = _take_jobs(work, replace(command, limit=limit, suspects=suspects))
        claimed = len(more)
        taken += more
    for batch in command.batches:
        if free := free_places(taken, batch):
            taken += _take_jobs(
                work, replace(command, tasks=(batch.task,), without=(), limit=free, suspects=0)
            )


class _ClaimInProgress:
    """One claim in progress: `claim_next` runs until the claim is full or there are no more jobs."""

    def __init__(self, work: UnitOfWork, command: Claim, permits: Permits | None) -> None:
        self.taken: list[JobRecord] = []
        self._work, self._tables, self._command, self._permits = work, work.tables, command, permits
        self._ranks = queue_ranks(command)
        self._suspects = command.suspects
        self._unstarted_tasks = {batch.task for batch in command.batches if not batch.start}
        self._width = command.limit + 1
        self._tried_lanes: set[Any] = set()
        self._skipped_lanes: set[Any] = set()

    @property
    def room(self) -> int:
        return self._command.limit - len(self.taken)

    def claim_next(self) -> bool:
        """Claim the next jobs; return False if another call would find nothing more."""
        wanted = self._command
        if self.taken:
            wanted = replace(wanted, limit=self.room, suspects=self._suspects)
        lanes = self._open_lanes(wanted)
        is_exhausted = False
        if self._is_plain(lanes, wanted.limit):
            jobs, has_locked = self._tables.best_jobs(lanes, wanted.limit, wanted.suspect_filter)
            is_cut = has_locked or max(len(jobs), len(lanes)) >= wanted.limit
            is_exhausted = self._permits is None and not is_cut
            self._tried_lanes = set() if jobs or not lanes else {min(lanes, key=urgency).id}
        elif parked := self._park_full_lanes(lanes):
            self._width = min(LANES_MAX, 2 * self._width)
            return parked
        else:
            jobs = self._pick_jobs(lanes, wanted)
        if not jobs and self._tried_lanes:  # another pass has locked them: go on with the other lanes
            self._skipped_lanes |= self._tried_lanes
            return True
        before = len(self.taken)
        changed = [job for job in jobs if self._claim_job(job)]
        self._advance_virtual_starts(self.taken[before:], lanes)
        return bool(changed) and not is_exhausted

    def save_rates(self) -> None:
        """Save the state of the rates that this claim has used."""
        if self._permits is not None and (spent := self._permits.changed_tats()):
            self._tables.put_rate_state(spent)

    def _open_lanes(self, wanted: Claim) -> list[OpenLane]:
        permits, skipped = self._permits or _NO_PERMITS, self._skipped_lanes
        if skipped:
            wanted = replace(wanted, limit=wanted.limit + len(skipped))
        queues, tasks = permits.closed_names(GateKind.QUEUE), permits.closed_names(GateKind.TASK)
        lanes = self._tables.open_lanes(wanted, queues, tasks, self._width + len(skipped))
        return [lane for lane in lanes if lane.id not in skipped] if skipped else lanes

    def _is_plain(self, lanes: Sequence[OpenLane], number: int) -> bool:
        """Return True if the next jobs are the most urgent of all lanes, and `number` of them may pass."""
        if self._ranks or any(lane.group for lane in lanes):
            return False
        permits = self._permits
        return permits is None or all(permits.has_room_for(lane, number) for lane in lanes)

    def _park_full_lanes(self, lanes: Sequence[OpenLane]) -> bool:
        """Park the lanes whose group is closed or full; return True if any was parked."""
        permits = self._permits
        groups = {(lane.queue, lane.group) for lane in lanes if lane.group}
        if permits is None or not groups:
            return False
        gates, busy = self._tables.group_gates(sorted(groups))
        permits.update(gates)
        permits.exclude(busy)
        if any(permits.has_group_limit(*group) for group in groups):
            permits.set_held(self._tables.held_counts())
        full = [lane for lane in lanes if lane.group and permits.available(lane.keys[2]) <= 0]
        return bool(full) and self._tables.park_lanes(
            [(lane, permits.opens_at(lane.keys[2])) for lane in full if lane.keys[2] not in busy],
            self._work.now,
        )

    def _pick_jobs(self, lanes: Sequence[OpenLane], wanted: Claim) -> list[JobRecord]:
        permits = self._permits or _NO_PERMITS
        limit, suspects = wanted.limit, wanted.suspect_filter
        per_lane = limit if len(lanes) <= FULL_READ_LANES_MAX else max(2, 2 * limit // len(lanes))
        positions = self._tables.positions(lanes, per_lane, suspects)
        cut_lanes = {lane for lane, own_positions in positions.items() if len(own_positions) == per_lane}
        for queue in {lane.queue for lane in lanes}:
            if (ageing := permits.rule(queue).ageing) is not None:
                lane_ids = [lane.id for lane in lanes if lane.queue == queue]
                oldest_jobs = self._tables.oldest_jobs(lane_ids, per_lane, suspects)
                for position in reversed(aged_positions(oldest_jobs, self._work.now - ageing)):
                    others = [other for other in positions[position.lane_id] if other.seq != position.seq]
                    positions[position.lane_id] = [position, *others]
                if len(oldest_jobs) >= per_lane:
                    cut_lanes.update(oldest.position.lane_id for oldest in oldest_jobs)
        rules = PickRules(permits.available, permits.weight)
        picked = pick_positions(lanes, positions, cut_lanes, limit, rules, self._ranks)
        self._tried_lanes = {position.lane_id for position in picked}
        return self._tables.jobs_at(picked, suspects)

    def _claim_job(self, job: JobRecord) -> bool:
        """Claim a job, or let it lapse; return False if it is skipped."""
        now, work, command = self._work.now, self._work, self._command
        if job.deadline is not None and job.deadline <= now:  # guard: lapsed_claim
            work.move(Move.LAPSE, job, move.lapsed(job, now))
            return True
        if job.crashes and self._suspects is not None:
            if not self._suspects or command.suspect_kind not in (SuspectKind.ANY, job.suspect):
                return False
            self._suspects -= 1
        start = command.start and job.task not in self._unstarted_tasks
        held = move.claimed(job, command.worker, command.lease, start, now)
        self.taken.append(work.move(Move.CLAIM, job, held))
        if self._permits is not None:
            self._permits.take(job)
        return True

    def _advance_virtual_starts(self, jobs: Sequence[JobRecord], lanes: Sequence[OpenLane]) -> None:
        """Advance the virtual start time of each served group, by 1 / weight for each of its jobs."""
        turning = queues_with_groups(lanes)
        if not turning:
            return
        by_start = sorted(lanes, key=lambda lane: lane.virtual_start)
        starts = {(lane.queue, lane.group): lane.virtual_start for lane in by_start}
        times = {lane.queue: lane.virtual_time for lane in lanes}
        weight = (self._permits or _NO_PERMITS).weight
        moved: dict[str, dict[str, float]] = {}
        for job in jobs:
            if job.queue in turning:
                group = job.queue, job.group
                # guard: virtual_starts
                starts[group], times[job.queue] = virtual_times_after(
                    starts[group], times[job.queue], weight(*group)
                )
                moved.setdefault(job.queue, {})[job.group] = starts[group]
        for queue, groups in moved.items():
            self._tables.put_virtual_starts(queue, groups, times[queue])
        self._work.fair_queues.update(moved)


_NO_PERMITS = Permits((), 0.0)


def _still_held(work: UnitOfWork, claimed: ClaimedRefs) -> Iterator[JobRecord]:
    refs = [Ref(job, fence) for fence, jobs in claimed for job in jobs]
    work.load(ref.job for ref in refs)
    for ref in refs:
        job = move.held_job(work.get(ref.job), ref, Move.RENEW, work.now)
        if not isinstance(job, LossCause):
            yield job
