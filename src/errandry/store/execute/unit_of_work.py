"""The unit of work of one pass: it caches the jobs that were read, and collects what is to be written.

Jobs change only through `move`, `update` and `remove`, which also collect events and counter changes.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from errandry.core.answer import Expiry
from errandry.core.command import Claim, Command, Insert
from errandry.core.event import EventKind
from errandry.core.flow import END_OF_STATE, ChildEnd
from errandry.core.gate import (
    GateCommand,
    GateKey,
    GateKind,
    GateRecord,
    Pause,
    Resume,
    key_of,
    may_create_gate,
)
from errandry.core.job import JobRecord
from errandry.core.move import holder_of, place, slot_of
from errandry.core.permit import Permits
from errandry.core.rule import NO_RULE, OnReturn, Rule
from errandry.core.state import HELD_STATES, SCHEDULED, TERMINAL, WAITING, Move, Reason, State
from errandry.core.unique import KeyHolder, UniqueKey, UniqueScope
from errandry.store.contract import StoreLimits
from errandry.store.execute.pass_events import PassEvents
from errandry.store.tables.protocol import Change, ClaimedRefs, Tables

CANCELED_CHILDREN_MAX = 1_000
"""Maximum number of children that one pass cancels because of their parents."""

_CLAIM_KINDS = GateKind.QUEUE, GateKind.TASK, GateKind.WORKER


class FlowEnd(Struct, frozen=True, gc=False):
    """The end of a job with parents or children; `cancel` is the reason to cancel its children, if any."""

    job: JobRecord
    outcome: ChildEnd
    cancel: Reason | None = None


class UnitOfWork:
    """Reads jobs through a cache, and writes all changes together.

    flow_ends       ended jobs whose parents and children are not updated yet, by job id
    cancel_budget   how many more children this pass may cancel because of their parents
    fair_queues     queues with groups from which this pass has claimed
    slots           for each new job with a unique key: the slot of that key
    is_upkeep_done  True if nothing is due any more in this pass
    expiries        the claims that this pass has expired and that no answer has named yet
    has_locked_due_jobs  True if jobs are due, and another pass has locked all of them
    locked_gates    the gates that commands of this pass change, as they are now; None before the first one
    """

    def __init__(
        self, tables: Tables, now: float, limits: StoreLimits, commands: Sequence[Command] = ()
    ) -> None:
        self.tables, self.now, self.limits, self._commands = tables, now, limits, commands
        self.is_upkeep_done = self.has_locked_due_jobs = False
        self.expiries: list[Expiry] = []
        self.fair_queues: set[str] = set()
        self._left_queues: dict[str, None] = {}
        self._permits: Permits | None = None
        self._rules: dict[str, Rule] | None = None
        self._gate_closings: dict[GateKey, float] = {}
        self.locked_gates: dict[GateKey, GateRecord] | None = None
        self._released_groups: set[tuple[str, str]] = set()
        self._sizes: dict[tuple[str, str | None], int] | None = None
        self._claims: dict[str, dict[str, ClaimedRefs]] = {}
        self.flow_ends: dict[str, FlowEnd] = {}
        self.cancel_budget = CANCELED_CHILDREN_MAX
        self._jobs: dict[str, JobRecord | None] = {}
        self._changes: dict[str, Change] = {}
        self._events = PassEvents(now)
        self.slots: dict[str, str] = {}
        self._keys: dict[str, KeyHolder | None] = {}
        self._freed_keys: dict[str, str] = {}
        self._taken_keys: dict[str, KeyHolder] = {}
        self._rivals: dict[str, str] = {}

    def take_expiries(self) -> tuple[Expiry, ...]:
        """Take the expiries, for the answer of the command that has caused them."""
        expiries, self.expiries = self.expiries, []
        return tuple(sorted(expiries, key=attrgetter("job")))

    def load(self, ids: Iterable[str]) -> None:
        """Fetch these jobs in one query, so that `get` finds them in the cache."""
        missing = [job_id for job_id in ids if job_id not in self._jobs]
        if missing:
            self._jobs.update(dict.fromkeys(missing))
            self._jobs.update(self.tables.find_jobs(missing))

    def reload_missing(self, ids: Iterable[str]) -> None:
        """Like `load`, but search again for jobs that did not exist when this pass first looked for them."""
        ids = list(ids)
        missing = [
            job_id
            for job_id in ids
            if job_id in self._jobs and self._jobs[job_id] is None and job_id not in self._changes
        ]
        if missing:
            self._jobs.update(self.tables.find_jobs(missing))
        self.load(ids)

    def remember(self, jobs: Iterable[JobRecord]) -> None:
        """Put jobs into the cache that were just read. They must have no unwritten changes."""
        self._jobs.update({job.id: job for job in jobs})

    def get(self, job_id: str) -> JobRecord | None:
        if job_id not in self._jobs:
            self.load((job_id,))
        return self._jobs[job_id]

    def load_keys(self, slots: Iterable[str]) -> None:
        """Fetch the holders of these unique keys in one query, for `holder`."""
        missing = [slot for slot in slots if slot not in self._keys]
        if missing:
            self._keys.update(dict.fromkeys(missing))
            self._keys.update(self.tables.key_holders(missing))

    def holder(self, slot: str) -> str | None:
        """Return the id of the job that holds this unique key, None if it is free or expired."""
        if slot not in self._keys:
            self.load_keys((slot,))
        key = self._keys[slot]
        if key is None or (key.expires_at is not None and key.expires_at <= self.now):
            return None
        job = self._jobs.get(key.job)
        if key.expires_at is None and job is not None and job.finished:
            return None  # the job has ended after the key was read and before the job was locked
        return key.job

    def saved_claims(self, worker: str) -> dict[str, ClaimedRefs]:
        """Return the jobs of this worker's claims by nonce: saved by an earlier pass, or claimed in this one.

        All nonces of the pass are looked up at once, because saving a new claim replaces the saved ones.
        """
        if worker not in self._claims:
            claims = [command for command in self._commands if isinstance(command, Claim)]
            nonces = [claim.nonce for claim in claims if claim.worker == worker]
            saved = {nonce: self.tables.load_claims(worker, nonce) for nonce in nonces}
            self._claims[worker] = {nonce: refs for nonce, refs in saved.items() if refs is not None}
        return self._claims[worker]

    def move(self, move: Move, before: JobRecord | None, after: JobRecord) -> JobRecord:
        """Record a move from `before` to `after`. Return `after`, with its place if it waits again."""
        state = after.state
        if before is not None:
            if state is WAITING and before.state is not state:
                # guard: old_place, same_place
                number = after.seq if self._keeps_place(after) else self.tables.next_number()
                after = replace(after, place=place(after.lifo, number))
            if after.group and self.tables.has_gates:
                self._hold_group(before, after)
        self._record_change(before, after, after)
        self._events.record_move(move, before, after, after)
        if state in TERMINAL:
            if after.parents or after.children:
                self.flow_ends[after.id] = FlowEnd(after, END_OF_STATE[state], _cancel_reason(after))
            if after.expires_at is not None and after.expires_at <= self.now:  # guard: keep_0
                self.remove(Move.REMOVE, after)
        return after

    def update(self, before: JobRecord, after: JobRecord) -> JobRecord:
        """Record a change of a job that is no move. There is no event for it."""
        self._record_change(before, after, after)
        self._events.record_move(None, before, after, after)
        return after

    def remove(self, move: Move, job: JobRecord, cancel: Reason | None = None) -> None:
        """Record that a job is deleted. What it added to the lifetime totals stays."""
        if job.group and job.state in HELD_STATES:
            self._released_groups.add((job.queue, job.group))
        self._record_change(job, None, job)
        self._events.record_move(move, job, None, job)
        if job.steps is not None:
            self.tables.drop_steps([job.id])
        if job.children or (job.parents and not job.finished):
            self.flow_ends.setdefault(
                job.id, FlowEnd(job, END_OF_STATE.get(job.state, ChildEnd.REMOVED), cancel)
            )

    def change_queue(self, before: JobRecord, after: JobRecord) -> None:
        """Move a job's counters to another queue before its move, and its unique key if that is per queue."""
        self._events.record_queue_change(before, after)
        if before.state is WAITING:
            self._left_queues[before.queue] = None
        unique = before.unique
        if unique is not None and unique.is_bound_to_queue:  # guard: key_follows_queue
            self._free_key(slot_of(before, unique, self.now), before.id)
            self._take_key(slot_of(after, unique, self.now), holder_of(after, unique, self.now))

    def emit(self, kind: EventKind, queue: str = "", task: str = "", job: str = "", text: str = "") -> None:
        self._events.emit(kind, queue, task, job, text)

    def report_drained_queues(self) -> None:
        """Emit `drained` for queues whose last waiting job has left that state since the last call."""
        queues, self._left_queues = self._left_queues, {}
        for queue in queues:
            if self.tables.is_drained(queue):
                self.emit(EventKind.DRAINED, queue)
                if queue in self.fair_queues:
                    self.tables.reset_virtual_time(queue)

    def rule(self, queue: str) -> Rule:
        """Return the rule of a queue."""
        if not self.tables.has_gates:
            return NO_RULE
        if self._rules is None:
            self._rules = {gate.name: gate.rule for gate in self.tables.gates(GateKind.QUEUE)}
        return self._rules.get(queue, NO_RULE)

    def permits(self) -> Permits | None:
        """Count and return what this pass may claim; None if there are no gates.

        Gates with limits stay locked until the pass ends, so that no other pass claims past them.
        """
        self._unpark_released_groups()
        if self._permits is None and (self.tables.has_gates or self._gate_closings):
            self._permits = self._count_permits()
        return self._permits

    def lock_queue_sizes(self) -> None:
        """Lock the queues with a maximum size that this pass inserts into. A second call does nothing."""
        if self._sizes is None:
            self._sizes = {}
            inserts = [command for command in self._commands if isinstance(command, Insert)]
            rules = {job.queue: self.rule(job.queue) for insert in inserts for job in insert.jobs}
            self.tables.lock_queue_sizes(
                [queue for queue, rule in rules.items() if rule.max_size or rule.group_max_size]
            )

    def queue_size(self, queue: str, group: str | None) -> int:
        """Return how many jobs wait in a queue, or in one of its groups, including those of this pass."""
        sizes = self._sizes = {} if self._sizes is None else self._sizes
        if (queue, group) not in sizes:
            if group is None:
                waiting = self.tables.counters().get(queue, {}).get(WAITING, 0)
                deltas = (d for (of, _), d in self._events.deltas().items() if of == queue)
                sizes[queue, None] = waiting + sum(delta.get(WAITING, 0) for delta in deltas)
            else:
                self.flush()
                sizes[queue, group] = self.tables.group_size(queue, group)
        return sizes[queue, group]

    def add_to_size(self, place: tuple[str, str | None], number: int) -> None:
        """Correct a size that `queue_size` has cached: `number` more jobs wait."""
        if self._sizes is not None and place in self._sizes:
            self._sizes[place] += number

    def close_gate(self, key: GateKey, until: float) -> None:
        """Close a gate until a time, unless this pass closes it for longer; 0 opens it."""
        self._gate_closings[key] = max(until, self._gate_closings.get(key, 0.0)) if until else 0.0

    def lock_gates(self) -> dict[GateKey, GateRecord]:
        """Lock the gates that commands of this pass change, and return them. A second call does nothing.

        All of them are locked at once, with those that it closes and those that its claims are going to
        count. So every pass locks gates in the same order, and no two passes wait for each other.
        """
        if self.locked_gates is None:
            commands = [command for command in self._commands if isinstance(command, GateCommand)]
            changed = {key_of(command) for command in commands}
            created = {key_of(command) for command in commands if may_create_gate(command)}
            also = {*self._counted_gates(Permits(self.tables.gates(*_CLAIM_KINDS), self.now))}
            if ruled := {command.name for command in commands if not isinstance(command, Pause | Resume)}:
                gates = self.tables.gates(GateKind.GROUP)
                also |= {gate.key for gate in gates if gate.name in ruled and gate.tat > self.now}
            closed = self._gate_closings.keys()
            keys = sorted(changed | also | closed)
            locked = self.tables.lock_gates(keys, created | closed)
            if closed:  # `locked` has the gates as they were before
                self._write_gate_closings()
                locked = self.tables.lock_gates(keys)
            self.locked_gates = {key: GateRecord(*key) for key in changed} | {
                gate.key: gate for gate in locked
            }
        return self.locked_gates

    def put_gates(self, gates: Sequence[GateRecord]) -> None:
        """Save gates that this pass has locked."""
        self.tables.put_gates(gates, self.now)
        self.lock_gates().update((gate.key, gate) for gate in gates)
        self._permits = self._rules = None

    def invalidate_gates(self) -> None:
        """Drop what is cached of gates: one has changed."""
        self._permits = self._rules = None

    def flush(self) -> None:
        """Write the changes so far, so that searches in the tables see them."""
        self.write_jobs()
        if self._freed_keys or self._taken_keys:
            self.tables.write_keys(self._freed_keys, self._taken_keys, self._rivals, self.now)
            self._freed_keys, self._taken_keys, self._rivals = {}, {}, {}

    def write_jobs(self) -> None:
        """Write changed jobs but not their unique keys: those are written together, in one order."""
        if self._changes:
            self.tables.write_jobs(self._changes.values())
            self._changes = {}

    def close(self) -> None:
        """Write all that is left. The pass can then be committed."""
        self.flush()
        self.report_drained_queues()
        self._unpark_released_groups()
        self._write_gate_closings()
        if self._events.event_runs:
            self.tables.append_events(self.now, self._events.event_runs, self._events.deltas())

    def _keeps_place(self, job: JobRecord) -> bool:
        return bool(job.group) and self.tables.has_gates and self.rule(job.queue).on_return is not None

    def _hold_group(self, before: JobRecord, after: JobRecord) -> None:
        """Close the group of a job that waits for a retry, if the rule of its queue says so.

        Also note the groups of jobs that no worker holds any more: their parked lanes may open.
        """
        if before.state in HELD_STATES and after.state not in HELD_STATES:
            self._released_groups.add((after.queue, after.group))
        is_moved = before.state is not after.state or before.queue != after.queue
        if is_moved and self.rule(before.queue).on_return is OnReturn.HOLD_GROUP:
            group = GateKind.GROUP, before.queue, before.group
            if before.state in HELD_STATES and after.state is SCHEDULED:
                self.close_gate(group, after.run_at or 0.0)
            elif before.state is SCHEDULED and before.fence and (before.run_at or 0.0) > self.now:
                self.close_gate(group, 0.0)

    def _unpark_released_groups(self) -> None:
        """Unpark the lanes of limited groups that a held job has left in this pass."""
        left, self._released_groups = sorted(self._released_groups), set()
        if not left or not self.tables.has_gates:
            return
        gates, _ = self.tables.group_gates(left)
        limited = {gate.key[1:] for gate in gates if gate.rule.limit is not None}
        groups = [group for group in left if group in limited or self.rule(group[0]).group_limit is not None]
        if groups:
            self.tables.unpark_groups(groups)  # guard: unpark_group

    def _count_permits(self) -> Permits:
        permits = Permits(self.tables.gates(*_CLAIM_KINDS), self.now)
        counted = self._counted_gates(permits)
        if counted or self._gate_closings:
            permits.update(self.tables.lock_gates(sorted({*counted, *self._gate_closings})))
        if self._gate_closings:
            self._write_gate_closings()
            permits.update(self.tables.gates(*_CLAIM_KINDS))
        if permits.has_limits:
            permits.set_held(self.tables.held_counts())
        return permits

    def _counted_gates(self, permits: Permits) -> list[GateKey]:
        """Return the gates whose permits the claims of this pass count."""
        claims = [command for command in self._commands if isinstance(command, Claim)]
        return [
            gate.key for gate in permits.limiting_gates if any(_may_pass(gate, claim) for claim in claims)
        ]

    def _write_gate_closings(self) -> None:
        closings, self._gate_closings = self._gate_closings, {}
        if closings:
            self.tables.close_gates(closings)
            self.tables.unpark_groups([key[1:] for key, until in closings.items() if not until])
            self.invalidate_gates()

    def _record_change(self, before: JobRecord | None, after: JobRecord | None, job: JobRecord) -> None:
        changes, job_id, stored = self._changes, job.id, before
        if job_id in changes:
            if after is None:
                stored = changes[job_id][0]
            else:
                self.flush()  # `Tables.write_jobs` takes one move per job at a time, or a removal
                changes = self._changes
        changes[job_id] = (stored, after)
        self._jobs[job_id] = after
        if after is not None and after.state is WAITING:
            self._left_queues.pop(after.queue, None)  # this job waits in it
        elif before is not None and before.state is WAITING:
            self._left_queues[before.queue] = None
        if job.unique is not None:
            self._update_unique_key(job.unique, before, after)

    def _update_unique_key(
        self, unique: UniqueKey, before: JobRecord | None, after: JobRecord | None
    ) -> None:
        """Take the unique key for a job that is new or was rerun; free the key of one that has ended."""
        was_alive = before is not None and not before.finished
        if after is not None and not after.finished:
            if before is None or (unique.scope is UniqueScope.ALIVE and not was_alive):
                known_slot = self.slots.get(after.id) if before is None else None
                slot = known_slot or slot_of(after, unique, self.now)
                self._take_key(slot, holder_of(after, unique, self.now))
        elif (
            before is not None and was_alive and unique.scope is UniqueScope.ALIVE
        ):  # guard: unique_key_freed
            self._free_key(slot_of(before, unique, self.now), before.id)

    def _take_key(self, slot: str, holder: KeyHolder) -> None:
        if (rival := self._keys.get(slot)) is not None:
            self._rivals[slot] = rival.job
        self._keys[slot] = self._taken_keys[slot] = holder

    def _free_key(self, slot: str, job_id: str) -> None:
        self._keys[slot] = None
        if self._taken_keys.pop(slot, None) is None:
            self._freed_keys[slot] = job_id


def _may_pass(gate: GateRecord, claim: Claim) -> bool:
    """Return True if the claim may take jobs that have to pass this gate."""
    if gate.kind is GateKind.QUEUE:
        return claim.queues is None or gate.name in claim.queues
    is_batched = any(batch.task == gate.name for batch in claim.batches)
    is_listed = claim.tasks is None or gate.name in claim.tasks
    return gate.kind is GateKind.TASK and (is_batched or (is_listed and gate.name not in claim.without))


def _cancel_reason(job: JobRecord) -> Reason | None:
    """Return why the children of a job that has ended are to be canceled, None if they are not."""
    if job.state is State.CANCELED or job.reason is Reason.CHILD_FAILED:
        return job.reason
    return None
