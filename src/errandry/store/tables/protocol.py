"""The protocol between a pass and a store: read and write jobs, lanes, gates, flows and so on.

Stores whose passes run in this process (memory, SQLite, PostgreSQL) differ only in their `Tables`.
It stores and finds records. The rules are elsewhere: in `errandry.core` and `errandry.store.execute`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol

from errandry.core.command import (
    Beat,
    Claim,
    Ref,
    WorkerRecord,
)
from errandry.core.event import EventRun
from errandry.core.fair_queueing import OldestJob, OpenLane, Position
from errandry.core.flow import EdgeRecord
from errandry.core.gate import GateKey, GateKind, GateRecord
from errandry.core.job import JobRecord, Keep
from errandry.core.query import Query
from errandry.core.schedule import ScheduleRecord
from errandry.core.state import Reason, State
from errandry.core.stats import StatsRow
from errandry.core.step import StepKind, StepRecord
from errandry.core.suspect import SuspectKind
from errandry.core.unique import KeyHolder
from errandry.store.contract import EventEntry, StoreLimits

ANSWERS_TRIM_FACTOR = 10
"""Maximum number of saved answers that one upkeep deletes, as a multiple of its limit."""

Deltas = Mapping[tuple[str, str], Mapping[str, int]]
"""For each queue and task, the change of each counter."""

ClaimedRefs = Sequence[tuple[int, Sequence[str]]]
"""The claimed jobs in their order: each fence with the ids of the jobs that were claimed under it."""

Change = tuple[JobRecord | None, JobRecord | None]
"""A job before (None: it is new) and after one move (None: it was removed)."""


class DueTimes(NamedTuple):
    """The earliest time of each kind at which upkeep has something to do; None if there is none.

    run_at       a scheduled job is due
    lease_until  a lease runs out
    deadline     the deadline of an unclaimed job passes
    open_at      a parked lane opens
    tick_at      a schedule has a tick to decide about

    The last two say whether suspects of a kind wait.
    """

    run_at: float | None
    lease_until: float | None
    deadline: float | None
    open_at: float | None = None
    tick_at: float | None = None
    has_shared_suspects: bool = False
    has_isolated_suspects: bool = False

    @property
    def waiting_suspects(self) -> tuple[SuspectKind, ...]:
        """The kinds of suspects that wait."""
        if not (self.has_shared_suspects or self.has_isolated_suspects):
            return ()
        kinds = (SuspectKind.SHARED, SuspectKind.ISOLATED)
        return tuple(compress(kinds, (self.has_shared_suspects, self.has_isolated_suspects)))


class BestJobs(NamedTuple):
    """The most urgent jobs of some lanes, without those that another pass has locked.

    `has_locked`: there were some, and other jobs of these lanes could take their place.
    """

    jobs: list[JobRecord]
    has_locked: bool = False


class Tables(Protocol):
    """Where one pass reads and writes. A store author implements this and the open methods of `TableStore`.

    Where a store runs several passes at a time, a method that returns jobs to a writing pass locks them. A
    method that lists jobs leaves out those that another pass has locked; `find_jobs` waits for them. A search
    sees what the pass has written so far.
    """

    identity: str
    """Random id of the store. Cursors carry it, so that no other store accepts them."""
    has_latency: bool
    """True if each statement costs a round trip: callers then send long lists of writes in several parts."""

    @property
    def reserves_numbers(self) -> bool:
        """True if `next_number` is faster when `expect_numbers` has said how many will follow."""

    # Jobs: numbers and writes.

    def next_number(self) -> int:
        """Return a number that was never returned before, for a job's `seq` or its place in its lane."""

    def expect_numbers(self, count: int) -> None:
        """Announce that the pass will ask for at least `count` numbers. May do nothing."""

    def write_jobs(self, changes: Iterable[Change]) -> None:
        """Insert, update and delete jobs. Each change is one move, or a removal."""

    # Jobs: reads.

    def find_jobs(self, ids: Sequence[str]) -> dict[str, JobRecord]:
        """Return the jobs with these ids; ids that do not exist are left out."""

    def ids_matching(self, part: str, limit: int) -> list[str]:
        """Return ids that begin or end with `part`, sorted."""

    def matching_jobs(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        """Return jobs in one of `states` that match `query` and have `above < seq < below`, newest first."""

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        """Skip `jobs` jobs in these states from `below` downwards; return the next one's `seq`, 0 if none."""

    def jobs_held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        """Return the claimed and running jobs of these workers; those whose lease ends first come first."""

    def jobs_lost_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]:
        """Return unfinished jobs whose last loss is by these workers, as long as it is not final."""

    def cancel_requests(self, worker: str) -> tuple[Ref, ...]:
        """Return the running jobs of a worker that it was asked to cancel."""

    def group_size(self, queue: str, group: str) -> int:
        """Return how many jobs of a group wait."""

    def group_sizes(self, queue: str | None, limit: int, max_count: int) -> list[tuple[str, str, int]]:
        """Return queue, group and number of waiting jobs, counted up to `max_count`, for groups by name."""

    def held_counts(self) -> dict[tuple[str, str, str], int]:
        """Return for each queue, task and group with claimed or running jobs how many there are."""

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        """Lock these queues until the pass ends against other inserts that check a queue's size."""

    # Lanes: the waiting jobs of one queue, task and group, by urgency.

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        """Return lanes with waiting jobs that a claim may take, except those of closed `queues` and `tasks`.

        For each queue and task, the first `width` lanes that are not parked, by virtual start.
        """

    def best_jobs(self, lanes: Sequence[OpenLane], limit: int, suspects: SuspectKind) -> BestJobs:
        """Return the most urgent jobs of all these lanes together. Skip suspects of other kinds."""

    def positions(
        self, lanes: Sequence[OpenLane], per_lane: int, suspects: SuspectKind
    ) -> dict[Any, list[Position]]:
        """Return for each lane, by its id, the positions of its first `per_lane` jobs."""

    def jobs_at(self, positions: Sequence[Position], suspects: SuspectKind) -> list[JobRecord]:
        """Return the jobs at these positions, or as many other jobs of the same lanes."""

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        """Return the waiting jobs with these numbers."""

    def oldest_jobs(self, lanes: Sequence[Any], per_kind: int, suspects: SuspectKind) -> list[OldestJob]:
        """Return the `per_kind` oldest jobs of each lane and priority, lifo jobs apart."""

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        """Return the ids of the lanes of a queue, or of one of its groups, that may have waiting jobs."""

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        """Return the queues and tasks of the lanes that have waiting jobs and are not parked."""

    def is_drained(self, queue: str) -> bool:
        """Return True if no job of the queue waits."""

    def ready_since(self) -> dict[str, float]:
        """Return for each queue with waiting jobs since when the first job of a lane could have run."""

    # Lanes: virtual start times of groups, and lanes parked because nothing may be claimed from them.

    def put_virtual_starts(self, queue: str, starts: Mapping[str, float], virtual_time: float) -> None:
        """Save the virtual start of these groups, and the virtual time of their queue."""

    def reset_virtual_time(self, queue: str) -> None:
        """Set the virtual time of the queue to its highest virtual start, so that all groups start equal."""

    def park_lanes(self, lanes: Sequence[tuple[OpenLane, float]], now: float) -> bool:
        """Hide each lane from `open_lanes` until its time or until it is unparked; True if any was parked."""

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Unpark the lanes of these queues and groups."""

    def unpark_queue(self, queue: str) -> None:
        """Unpark the lanes of a queue."""

    def unpark_due(self, now: float) -> None:
        """Unpark the lanes whose time has come."""

    # Unique keys, by slot: the key with what it is unique in.

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        """Return the jobs that hold these unique keys, or held them last."""

    def write_keys(
        self, freed: Mapping[str, str], taken: Mapping[str, KeyHolder], rivals: Mapping[str, str], now: float
    ) -> None:
        """Free each key in `freed` if that job holds it; then give the keys in `taken` to their new holders.

        A key is given away if it is free, expired, or held by the job that `rivals` names for it.
        """

    # Claims.

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        """Save the claims of a worker's last pass by their nonces, so that they can be answered again."""

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        """Return what this claim of the worker's last pass got; None if that pass did not contain it."""

    # Answers.

    def save_answers(self, answers: Mapping[str, str], now: float) -> None:
        """Save the answers to commands by their nonces, so that they can be answered again.

        The pass fails if another pass has saved an answer under one of the nonces at the same time.
        """

    def load_answers(self, nonces: Sequence[str]) -> dict[str, str]:
        """Return the saved answers under these nonces."""

    # Upkeep.

    def due_times(self) -> DueTimes:
        """Return the earliest time of each kind at which upkeep has something to do."""

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Return scheduled jobs whose time has come, earliest first."""

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Return claimed and running jobs whose lease has run out, earliest first."""

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Return unclaimed jobs whose deadline has passed, earliest first."""

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Return finished jobs that have been kept for long enough."""

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        """Return tasks and states whose finished jobs are kept by count, with the newest job's `keep`."""

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        """Return finished jobs kept by count of a task and state, except the newest `last`; oldest first."""

    def trim(self, now: float, limits: StoreLimits, limit: int) -> int:
        """Delete old event rows, workers, keys, claims, answers and lanes; sum up counters and statistics.

        Return how many event rows, workers and keys were deleted.
        """

    # Flows: edges between parents and children, and the closing flows, whose parents have ended.

    def clear_edges(self, parents: Sequence[str]) -> None:
        """Delete what earlier jobs with these ids have left: edges to children, and closing flows."""

    def add_edges(self, edges: Sequence[EdgeRecord]) -> None:
        """Insert edges."""

    def update_edges(self, edges: Sequence[EdgeRecord]) -> None:
        """Write the outcome and the result of these edges; None if the child has not ended."""

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        """Return the edges from the children with these numbers to their parents."""

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        """Return the edges from a parent to its children, in their order."""

    def open_child_count(self, parent: str) -> int:
        """Return how many children of a parent have not ended."""

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        """Return the edges to children that have ended once and were rerun since."""

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        """Return the edge to the first child whose failure makes its parent fail."""

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        """Return children in one of these states, in order, without a cancel request and with no other parent
        that is unfinished."""

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool:
        """Return True if `open_children` would return any, locked by another pass or not."""

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        """Add a parent that has ended to the closing flows, or change its entry.

        `cancel` is why its children are still to be canceled, `expires_at` when its edges are to be deleted;
        None leaves the time as it is.
        """

    def reopen_flow(self, parent: str) -> None:
        """Remove a parent from the closing flows: it runs again, or nothing is left to do."""

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        """Return closing flows whose children are still to be canceled."""

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        """Return the other closing flows, if their edges are to be deleted by now."""

    def drop_edges(self, parent: str, limit: int) -> int:
        """Delete up to `limit` edges of a parent; return how many were deleted."""

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:
        """Return and unmark edges that a caller's transaction has added to children that existed before.

        Those children do not count their new parents yet. Empty where inserts never run outside a pass.
        """

    # Gates: the pause, the rule and the rate of a queue, task, group or worker.

    @property
    def has_gates(self) -> bool:
        """True if there are any gates."""

    def gate(self, key: GateKey) -> GateRecord:
        """Return a gate, for a reader; without a rule or a pause if it does not exist."""

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        """Return all gates of these kinds, by kind, name and group."""

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        """Lock and return the gates of these groups, and the keys of those that another pass has locked."""

    def lock_gates(self, keys: Sequence[GateKey], created: Collection[GateKey] = ()) -> list[GateRecord]:
        """Lock gates until the pass ends, in the order of their keys, and return those that exist.

        Those in `created` are locked even if they do not exist. They may be inserted for that.
        """

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        """Save gates; delete those that have no effect any more."""

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        """Close gates until these times, never for shorter than they are closed already; 0 opens a gate."""

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        """Save the theoretical arrival time (GCRA) of the rates of these gates."""

    # Schedules.

    def lock_schedule(self, name: str) -> ScheduleRecord | None:
        """Lock a schedule until the pass ends, and return it."""

    def schedules(self, names: Sequence[str]) -> list[ScheduleRecord]:
        """Return the schedules with these names, without locking them."""

    def schedules_after(self, after: str, limit: int) -> list[ScheduleRecord]:
        """Return the schedules whose names come after `after`, by name."""

    def due_schedules(self, now: float, limit: int) -> list[ScheduleRecord]:
        """Lock and return schedules with due ticks that no other pass has locked."""

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Insert or replace schedules."""

    def drop_schedule(self, name: str) -> None:
        """Delete a schedule."""

    # Steps.

    def steps(self, job: str) -> list[StepRecord]:
        """Return the steps, sleeps and signals of a job, in their order."""

    def step(self, job: str, kind: StepKind, name: str) -> StepRecord | None:
        """Return one of them."""

    def put_step(self, step: StepRecord) -> None:
        """Insert or replace a step."""

    def drop_steps(self, jobs: Sequence[str]) -> None:
        """Delete the steps of these jobs."""

    # Workers.

    def save_beat(self, beat: Beat, now: float) -> None:
        """Save a worker's heartbeat, or delete the worker if it says that it has gone."""

    def workers(self) -> list[WorkerRecord]:
        """Return all workers with their last heartbeat."""

    # Events and counters.

    def append_events(self, now: float, event_runs: Sequence[EventRun], deltas: Deltas) -> None:
        """Append one row with the events of the pass to the event log, and add up its counter changes."""

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        """Return events from row `after[0]` on, without the first `after[1]` events of that row."""

    def event_log_span(self) -> tuple[int, int]:
        """Return the numbers of the oldest row kept and of the newest row ever written, (1, 0) at first.

        Rows are numbered without gaps; an empty log begins after its last row.
        """

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters of each queue, including those of the last pass."""

    def stats(self, since: float, until: float) -> list[StatsRow]:
        """Return the statistics of this time span, including those of the last pass."""
