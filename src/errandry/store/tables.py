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
from errandry.core.event import Alike
from errandry.core.flow import Link
from errandry.core.gate import Gate, GateKind, Key
from errandry.core.job import Job, Keep
from errandry.core.pick import Elder, Line, Spot
from errandry.core.query import Query
from errandry.core.schedule import Schedule
from errandry.core.state import Reason, State
from errandry.core.stats import Figure
from errandry.core.step import Step, StepKind
from errandry.core.unique import Holder
from errandry.store.contract import Bounds, Happened

Deltas = Mapping[tuple[str, str], Mapping[str, int]]
"""For each (queue, task): by how much each counter changed."""

Brought = Sequence[tuple[int, Sequence[str]]]
"""What a claim has brought, in its order: fences, which are mostly the same, and the jobs under each."""

Change = tuple[Job | None, Job | None]
"""A job before (None: it is new) and after one move (None: it is gone)."""


class Marks(NamedTuple):
    """The earliest time of each kind at which upkeep has something to do."""

    run_at: float | None
    lease_until: float | None
    deadline: float | None
    open_at: float | None = None
    tick_at: float | None = None


class Tables(Protocol):
    """`is_far` says that every question takes its time, so that it is worth while to ask for much at once.

    `wants_to_expect` says that it helps to know early how many numbers a pass is going to need.
    """

    identity: str
    is_far: bool

    @property
    def wants_to_expect(self) -> bool: ...

    def number(self) -> int:
        """The next number: for a job's `seq` and for its place in line. Never given twice."""

    def expect(self, numbers: int) -> None:
        """So many numbers are going to be asked for, at least."""

    def write(self, changes: Iterable[Change]) -> None: ...

    def keys(self, slots: Sequence[str]) -> dict[str, Holder]:
        """Who holds these unique keys, or held them last."""

    def write_keys(
        self, freed: Mapping[str, str], taken: Mapping[str, Holder], rivals: Mapping[str, str], now: float
    ) -> None:
        """Free what these jobs hold; then give away what is free, over, or was seen with a rival."""

    def append(self, now: float, told: Sequence[Alike], deltas: Deltas) -> None:
        """Add one row to the event log."""

    def find(self, ids: Sequence[str]) -> dict[str, Job]: ...

    def ids(self, part: str, limit: int) -> list[str]:
        """Ids that begin or end with `part`, in their order."""

    def matching(
        self, query: Query, states: Iterable[State], below: int | None, now: float, limit: int, above: int = 0
    ) -> list[Job]:
        """Jobs in one of `states` that match, newest first, with a `seq` under `below` and over `above`."""

    def floor(self, states: Iterable[State], below: int | None, jobs: int) -> int:
        """The `seq` of the job that, under `below`, comes after so many in these states; 0 if none does."""

    def lines(self, claim: Claim, queues: Sequence[str], tasks: Sequence[str], width: int) -> list[Line]:
        """Lanes with waiting jobs a claim may take, without those of closed `queues` and `tasks`.

        Of each queue and task, the first `width` of those that are not laid aside, by their turn and group.
        """

    def best(self, lines: Sequence[Line], limit: int, suspects: bool) -> list[Job]:
        """The first `limit` jobs of these lanes taken together, with suspects or without."""

    def spots(self, lines: Sequence[Line], each: int, suspects: bool) -> dict[Any, list[Spot]]:
        """For each lane where its first `each` jobs stand."""

    def numbered(self, seqs: Sequence[int]) -> list[Job]:
        """The waiting jobs with these numbers, as far as nobody else takes them."""

    def elders(self, lanes: Sequence[Any], each: int, suspects: bool) -> list[Elder]:
        """Of each lane, priority and order (fifo, lifo) the `each` jobs that came in line first."""

    def take(self, spots: Sequence[Spot], suspects: bool) -> list[Job]:
        """The jobs that stand there, or as many of the same lanes, as far as nobody else takes them."""

    def put_turns(self, queue: str, turns: Mapping[str, float], round_: float) -> None:
        """When these groups of a queue have their next turn, and how far the queue is."""

    def end_round(self, queue: str) -> None:
        """Nothing waits: no group is behind another."""

    def park(self, lines: Sequence[tuple[Line, float]], now: float) -> bool:
        """Lay lanes aside until a time, or until they are opened; whether that was done to any of them."""

    def open_groups(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Lanes of these queues and groups are laid aside no longer."""

    def open_queue(self, queue: str) -> None: ...

    def open_due(self, now: float) -> None:
        """The same for those whose time has come."""

    def pairs(self) -> list[tuple[str, str]]:
        """Queues and tasks with waiting jobs that are not laid aside."""

    def lanes_of(self, queue: str, group: str | None = None) -> list[Any]:
        """The lanes of a queue, or of one of its groups, that may have waiting jobs."""

    def lock_sizes(self, queues: Sequence[str]) -> None:
        """Nobody else inserts into these queues before the pass is over, who asks for the same."""

    def group_size(self, queue: str, group: str) -> int:
        """How many jobs of a group wait."""

    def is_drained(self, queue: str) -> bool: ...

    def marks(self) -> Marks: ...

    def due(self, now: float, limit: int) -> list[Job]:
        """Scheduled, and their time has come."""

    def expired(self, now: float, limit: int) -> list[Job]:
        """Held, and their lease has run out."""

    def lapsed(self, now: float, limit: int) -> list[Job]:
        """Not taken yet, and their deadline has passed."""

    def outlived(self, now: float, limit: int) -> list[Job]:
        """Finished, and kept for long enough."""

    def shelves(self) -> list[tuple[str, State, Keep]]:
        """Tasks and states of finished jobs that are kept by number, and what the newest of each says."""

    def surplus(self, task: str, state: State, last: int, limit: int) -> list[Job]:
        """Of finished jobs kept by number, of a task and state, all but the newest `last`; oldest first."""

    def held_by(self, workers: Sequence[str], limit: int) -> list[Job]: ...

    def cancels(self, worker: str) -> tuple[Ref, ...]: ...

    def clear(self, parents: Sequence[str]) -> None:
        """Drop what is left of earlier jobs with these ids: their edges, and their place on the list."""

    def tie(self, links: Sequence[Link]) -> None:
        """Add edges."""

    def mark(self, links: Sequence[Link]) -> None:
        """Write how children ended, or that they have not (None)."""

    def over(self, seqs: Sequence[int]) -> list[Link]:
        """The edges from the children with these numbers to their parents."""

    def under(self, parent: str) -> list[Link]:
        """The edges from a parent to its children, in their order."""

    def open_links(self, parent: str) -> int:
        """How many children of a parent have not ended."""

    def again(self, parent: str) -> list[Link]:
        """The edges from a parent to children that have ended once, and live again."""

    def fatal(self, parent: str) -> Link | None:
        """The first child that has failed and without which its parent cannot do."""

    def unended(self, parent: str, states: Sequence[State], limit: int) -> list[Job]:
        """Children in one of these states, in order, that nobody has asked to stop and nobody else awaits."""

    def has_unended(self, parent: str, states: Sequence[State]) -> bool: ...

    def enlist(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        """List a parent that has ended: why its children are still to be canceled, and when its edges go.

        Without `expires_at` that stays as it was listed.
        """

    def unlist(self, parent: str) -> None:
        """Take a parent off the list: it lives again, or nothing is left to do."""

    def canceling(self, limit: int) -> list[tuple[str, Reason]]:
        """Listed parents whose children are still to be canceled."""

    def late(self, limit: int) -> list[Link]:
        """Take edges off the list of those whose children were there before and do not know of them."""

    def outlived_flows(self, now: float, limit: int) -> list[str]:
        """The other listed parents, whose edges are to go."""

    def untie(self, parent: str, limit: int) -> int:
        """Drop edges of a parent; how many there were."""

    def remember(self, worker: str, claims: Mapping[str, Brought], now: float) -> None:
        """Keep the claims of a worker's last pass by their nonces, so that they can be repeated."""

    def recall(self, worker: str, nonce: str) -> Brought | None:
        """What that claim of the worker's last pass has brought; None if it was not in it."""

    def gate(self, key: Key, make: bool = False) -> Gate:
        """A gate. One that is there, or with `make` any, nobody else changes before the pass is over."""

    def put_gates(self, gates: Sequence[Gate], now: float) -> None:
        """Keep gates as they are now; those that say nothing are forgotten."""

    @property
    def has_gates(self) -> bool:
        """Whether there are any."""

    def gates(self, *kinds: GateKind) -> list[Gate]:
        """All gates of these kinds, by kind, name and group."""

    def groups(self, groups: Sequence[tuple[str, str]]) -> tuple[list[Gate], list[Key]]:
        """The gates of these groups, each with its queue, and which of them another pass counts just now."""

    def lock_gates(self, keys: Sequence[Key]) -> list[Gate]:
        """Gates whose permits are to be counted: nobody else counts them before the pass is over."""

    def shut(self, until: Mapping[Key, float]) -> None:
        """Close gates until some time, never shorter than they are; 0 opens them."""

    def spend(self, tats: Mapping[Key, float]) -> None:
        """Where the rates of these gates are."""

    def holding(self) -> dict[tuple[str, str, str], int]:
        """For each queue, task and group: how many jobs workers have, where they have any."""

    def crowds(self, queue: str | None, limit: int, bound: int) -> list[tuple[str, str, int]]:
        """Queue and group of groups with waiting jobs, by name, and how many wait, counted up to `bound`."""

    def schedule(self, name: str) -> Schedule | None:
        """A schedule. Nobody else decides about its ticks before the pass is over."""

    def schedules(self, names: Sequence[str]) -> list[Schedule]:
        """Those of these that are there, as they are just now."""

    def timetable(self, after: str, limit: int) -> list[Schedule]:
        """All schedules by name, after one."""

    def ticking(self, now: float, limit: int) -> list[Schedule]:
        """Those with ticks to decide about, as far as nobody else does, who is kept from it now."""

    def put_schedules(self, schedules: Sequence[Schedule]) -> None: ...

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

    def stats(self, since: float, until: float) -> list[Figure]:
        """Figures of this time, up to the last pass."""

    def ready_since(self) -> dict[str, float]:
        """For each queue with waiting jobs: since when the job next in one of its lines could have run."""

    def happened(self, after: tuple[int, int], limit: int) -> list[Happened]:
        """Events from row `after[0]` on, without the first `after[1]` of that row, at most `limit`."""

    def log_span(self) -> tuple[int, int]:
        """The numbers of the first row the event log still has and of the last it ever had, or (1, 0).

        Rows are numbered without gaps; an empty log begins after its last row.
        """

    def trim(self, now: float, bounds: Bounds, limit: int) -> int:
        """Drop old event rows, workers, keys, claims, lanes; fold counters, roll up figures.

        How many of the first three went.
        """
