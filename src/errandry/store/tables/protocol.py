"""What a pass needs of the place where jobs are kept.

The stores that decide in this process (memory, SQLite) differ only in this. A `Tables` keeps
and finds; it has no rules. `write` is told each job as it was and as it is now.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from errandry.core.command import (
    Beat,
    Claim,
    Ref,
    WorkerInfo,
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
from errandry.core.step import Step, StepKind
from errandry.core.unique import KeyHolder
from errandry.store.contract import EventEntry, StoreLimits

Deltas = Mapping[tuple[str, str], Mapping[str, int]]
"""For each (queue, task): by how much each counter changed."""

ClaimedRefs = Sequence[tuple[int, Sequence[str]]]
"""What a claim has brought, in its order: fences, which are mostly the same, and the jobs under each."""

Change = tuple[JobRecord | None, JobRecord | None]
"""A job before (None: it is new) and after one move (None: it is gone)."""


class DueTimes(NamedTuple):
    """The earliest time of each kind at which upkeep has something to do."""

    run_at: float | None
    lease_until: float | None
    deadline: float | None
    open_at: float | None = None
    tick_at: float | None = None


class Tables(Protocol):
    """`has_latency` says that every question takes its time, so that it is worth while to ask for much at once.

    `reserves_numbers` says that it helps to know early how many numbers a pass is going to need.
    """

    identity: str
    has_latency: bool

    @property
    def reserves_numbers(self) -> bool: ...

    def next_number(self) -> int:
        """The next number: for a job's `seq` and for its place in line. Never given twice."""

    def expect_numbers(self, numbers: int) -> None:
        """So many numbers are going to be asked for, at least."""

    def write(self, changes: Iterable[Change]) -> None: ...

    def key_holders(self, slots: Sequence[str]) -> dict[str, KeyHolder]:
        """Who holds these unique keys, or held them last."""

    def write_keys(
        self, freed: Mapping[str, str], taken: Mapping[str, KeyHolder], rivals: Mapping[str, str], now: float
    ) -> None:
        """Free what these jobs hold; then give away what is free, over, or was seen with a rival."""

    def append_events(self, now: float, told: Sequence[EventRun], deltas: Deltas) -> None:
        """Add one row to the event log."""

    def find(self, ids: Sequence[str]) -> dict[str, JobRecord]: ...

    def ids_matching(self, part: str, limit: int) -> list[str]:
        """Ids that begin or end with `part`, in their order."""

    def matching(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[JobRecord]:
        """Jobs in one of `states` that match, newest first, with a `seq` under `below` and over `above`."""

    def seq_floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        """The `seq` of the job that, under `below`, comes after so many in these states; 0 if none does."""

    def open_lanes(
        self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int
    ) -> list[OpenLane]:
        """Lanes with waiting jobs a claim may take, without those of closed `queues` and `tasks`.

        Of each queue and task, the first `width` of those that are not laid aside, by their turn and group.
        """

    def best_jobs(self, lines: Sequence[OpenLane], limit: int, suspects: bool) -> list[JobRecord]:
        """The first `limit` jobs of these lanes taken together, with suspects or without."""

    def positions(self, lines: Sequence[OpenLane], each: int, suspects: bool) -> dict[Any, list[Position]]:
        """For each lane where its first `each` jobs stand."""

    def jobs_by_seq(self, seqs: Sequence[int]) -> list[JobRecord]:
        """The waiting jobs with these numbers, as far as nobody else takes them."""

    def oldest_jobs(self, lanes: Sequence[Any], each: int, suspects: bool) -> list[OldestJob]:
        """Of each lane, priority and order (fifo, lifo) the `each` jobs that came in line first."""

    def take(self, spots: Sequence[Position], suspects: bool) -> list[JobRecord]:
        """The jobs that stand there, or as many of the same lanes, as far as nobody else takes them."""

    def put_turns(self, queue: str, turns: Mapping[str, float], round_: float) -> None:
        """When these groups of a queue have their next turn, and how far the queue is."""

    def reset_turns(self, queue: str) -> None:
        """Nothing waits: no group is behind another."""

    def park_lanes(self, lines: Sequence[tuple[OpenLane, float]], now: float) -> bool:
        """Lay lanes aside until a time, or until they are opened; whether that was done to any of them."""

    def unpark_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Lanes of these queues and groups are laid aside no longer."""

    def unpark_queue(self, queue: str) -> None: ...

    def unpark_due(self, now: float) -> None:
        """The same for those whose time has come."""

    def queue_task_pairs(self) -> list[tuple[str, str]]:
        """Queues and tasks with waiting jobs that are not laid aside."""

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        """The lanes of a queue, or of one of its groups, that may have waiting jobs."""

    def lock_queue_sizes(self, queues: Sequence[str]) -> None:
        """Nobody else inserts into these queues before the pass is over, who asks for the same."""

    def group_size(self, queue: str, group: str) -> int:
        """How many jobs of a group wait."""

    def is_drained(self, queue: str) -> bool: ...

    def due_times(self) -> DueTimes: ...

    def due_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Scheduled, and their time has come."""

    def expired_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Held, and their lease has run out."""

    def lapsed_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Not taken yet, and their deadline has passed."""

    def prunable_jobs(self, now: float, limit: int) -> list[JobRecord]:
        """Finished, and kept for long enough."""

    def keep_last_tasks(self) -> list[tuple[str, State, Keep]]:
        """Tasks and states of finished jobs that are kept by number, and what the newest of each says."""

    def excess_jobs(self, task: str, state: State, last: int, limit: int) -> list[JobRecord]:
        """Of finished jobs kept by number, of a task and state, all but the newest `last`; oldest first."""

    def held_by(self, workers: Sequence[str], limit: int) -> list[JobRecord]: ...

    def cancels(self, worker: str) -> tuple[Ref, ...]: ...

    def clear_edges(self, parents: Sequence[str]) -> None:
        """Drop what is left of earlier jobs with these ids: their edges, and their place on the list."""

    def add_edges(self, links: Sequence[EdgeRecord]) -> None:
        """Add edges."""

    def update_edges(self, links: Sequence[EdgeRecord]) -> None:
        """Write how children ended, or that they have not (None)."""

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        """The edges from the children with these numbers to their parents."""

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        """The edges from a parent to its children, in their order."""

    def open_child_count(self, parent: str) -> int:
        """How many children of a parent have not ended."""

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        """The edges from a parent to children that have ended once, and live again."""

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        """The first child that has failed and without which its parent cannot do."""

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        """Children in one of these states, in order, that nobody has asked to stop and nobody else awaits."""

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool: ...

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        """List a parent that has ended: why its children are still to be canceled, and when its edges go.

        Without `expires_at` that stays as it was listed.
        """

    def reopen_flow(self, parent: str) -> None:
        """Take a parent off the list: it lives again, or nothing is left to do."""

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        """Listed parents whose children are still to be canceled."""

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:
        """Take edges off the list of those whose children were there before and do not know of them."""

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        """The other listed parents, whose edges are to go."""

    def drop_edges(self, parent: str, limit: int) -> int:
        """Drop edges of a parent; how many there were."""

    def save_claims(self, worker: str, claims: Mapping[str, ClaimedRefs], now: float) -> None:
        """Keep the claims of a worker's last pass by their nonces, so that they can be repeated."""

    def load_claims(self, worker: str, nonce: str) -> ClaimedRefs | None:
        """What that claim of the worker's last pass has brought; None if it was not in it."""

    def gate(self, key: GateKey, make: bool = False) -> GateRecord:
        """A gate. One that is there, or with `make` any, nobody else changes before the pass is over."""

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        """Keep gates as they are now; those that say nothing are forgotten."""

    @property
    def has_gates(self) -> bool:
        """Whether there are any."""

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        """All gates of these kinds, by kind, name and group."""

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        """The gates of these groups, each with its queue, and which of them another pass counts just now."""

    def lock_gates(self, keys: Sequence[GateKey]) -> list[GateRecord]:
        """Gates whose permits are to be counted: nobody else counts them before the pass is over."""

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        """Close gates until some time, never shorter than they are; 0 opens them."""

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        """Where the rates of these gates are."""

    def held_counts(self) -> dict[tuple[str, str, str], int]:
        """For each queue, task and group: how many jobs workers have, where they have any."""

    def group_sizes(self, queue: str | None, limit: int, bound: int) -> list[tuple[str, str, int]]:
        """Queue and group of groups with waiting jobs, by name, and how many wait, counted up to `bound`."""

    def lock_schedule(self, name: str) -> ScheduleRecord | None:
        """A schedule. Nobody else decides about its ticks before the pass is over."""

    def schedules(self, names: Sequence[str]) -> list[ScheduleRecord]:
        """Those of these that are there, as they are just now."""

    def schedules_after(self, after: str, limit: int) -> list[ScheduleRecord]:
        """All schedules by name, after one."""

    def due_schedules(self, now: float, limit: int) -> list[ScheduleRecord]:
        """Those with ticks to decide about, as far as nobody else does, who is kept from it now."""

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None: ...

    def drop_schedule(self, name: str) -> None: ...

    def steps(self, job: str) -> list[Step]:
        """The steps of a job, in their order."""

    def step(self, job: str, kind: StepKind, name: str) -> Step | None: ...

    def put_step(self, step: Step) -> None:
        """Add a step, or write it anew."""

    def drop_steps(self, jobs: Sequence[str]) -> None: ...

    def beat(self, beat: Beat, now: float) -> None: ...

    def workers(self) -> list[WorkerInfo]: ...

    def counters(self) -> dict[str, dict[str, int]]:
        """For each queue: every counter, up to the last pass."""

    def stats(self, since: float, until: float) -> list[StatsRow]:
        """Figures of this time, up to the last pass."""

    def ready_since(self) -> dict[str, float]:
        """For each queue with waiting jobs: since when the job next in one of its lines could have run."""

    def read_events(self, after: tuple[int, int], limit: int) -> list[EventEntry]:
        """Events from row `after[0]` on, without the first `after[1]` of that row, at most `limit`."""

    def event_log_span(self) -> tuple[int, int]:
        """The numbers of the first row the event log still has and of the last it ever had, or (1, 0).

        Rows are numbered without gaps; an empty log begins after its last row.
        """

    def trim(self, now: float, bounds: StoreLimits, limit: int) -> int:
        """Drop old event rows, workers, keys, claims, lanes; fold counters, roll up figures.

        How many of the first three went.
        """
