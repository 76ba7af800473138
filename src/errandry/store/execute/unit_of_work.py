"""What one pass has touched: jobs as they were and are, the events, and the deltas of the counters."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from errandry.core.command import Claim, Command, Insert
from errandry.core.event import EventKind
from errandry.core.flow import END_OF_STATE, ChildEnd
from errandry.core.gate import GateKey, GateKind, GateRecord
from errandry.core.job import JobRecord
from errandry.core.move import holder_of, place, slot_of
from errandry.core.permit import Permits
from errandry.core.rule import NO_RULE, Comeback, Rule
from errandry.core.state import HELD_STATES, SCHEDULED, TERMINAL, WAITING, Move, Reason, State
from errandry.core.unique import KeyHolder, UniqueKey, UniqueScope
from errandry.store.contract import StoreLimits
from errandry.store.execute.pass_events import PassEvents
from errandry.store.tables.protocol import Change, ClaimedRefs, Tables

CANCELED_CHILDREN_MAX = 1_000
"""So many children does a pass cancel because of their parents."""


class FlowEnd(Struct, frozen=True, gc=False):
    """A job of a flow that has ended; `cancel` is why its children are to be canceled, if they are."""

    job: JobRecord
    outcome: ChildEnd
    cancel: Reason | None = None


class UnitOfWork:
    """Reads through to the tables, remembers every move, and writes them together."""

    def __init__(
        self, tables: Tables, now: float, bounds: StoreLimits, commands: Sequence[Command] = ()
    ) -> None:
        self.tables, self.now, self.bounds, self._commands = tables, now, bounds, commands
        self.is_tidy = False
        self.turning: set[str] = set()
        self._permits: Permits | None = None
        self._rules: dict[str, Rule] | None = None
        self._shut: dict[GateKey, float] = {}
        self._left: set[tuple[str, str]] = set()
        self._sizes: dict[tuple[str, str | None], int] | None = None
        self._claims: dict[str, dict[str, ClaimedRefs]] = {}
        self.ended: dict[str, FlowEnd] = {}
        self.room = CANCELED_CHILDREN_MAX
        self._jobs: dict[str, JobRecord | None] = {}
        self._changes: dict[str, Change] = {}
        self._tally = PassEvents(now)
        self.slots: dict[str, str] = {}
        self._keys: dict[str, KeyHolder | None] = {}
        self._freed: dict[str, str] = {}
        self._taken: dict[str, KeyHolder] = {}
        self._rivals: dict[str, str] = {}

    def load(self, ids: Iterable[str]) -> None:
        """Fetch these jobs in one go, so that `get` need not fetch them one by one."""
        missing = [one for one in ids if one not in self._jobs]
        if missing:
            self._jobs.update(dict.fromkeys(missing))
            self._jobs.update(self.tables.find(missing))

    def load_again(self, ids: Iterable[str]) -> None:
        """The same; and what was not there when it was looked for may have come since."""
        ids = list(ids)
        gone = [
            one for one in ids if one in self._jobs and self._jobs[one] is None and one not in self._changes
        ]
        if gone:
            self._jobs.update(self.tables.find(gone))
        self.load(ids)

    def know(self, jobs: Iterable[JobRecord]) -> None:
        """These jobs were just read, and nothing of them is left to be written."""
        self._jobs.update({job.id: job for job in jobs})

    def get(self, job_id: str) -> JobRecord | None:
        if job_id not in self._jobs:
            self.load((job_id,))
        return self._jobs[job_id]

    def load_keys(self, slots: Iterable[str]) -> None:
        """The same for `holder`."""
        missing = [one for one in slots if one not in self._keys]
        if missing:
            self._keys.update(dict.fromkeys(missing))
            self._keys.update(self.tables.key_holders(missing))

    def holder(self, slot: str) -> str | None:
        """The id of the job that holds this unique key."""
        if slot not in self._keys:
            self.load_keys((slot,))
        key = self._keys[slot]
        if key is None or (key.expires_at is not None and key.expires_at <= self.now):
            return None
        job = self._jobs.get(key.job)
        if key.expires_at is None and job is not None and job.finished:
            return None  # it has ended after the key was read, and before it was locked
        return key.job

    def claims_of(self, worker: str) -> dict[str, ClaimedRefs]:
        """By nonce, what the claims of a worker in this pass have brought, or had brought when sent before.

        They are looked up together: a claim that is new takes the place of those that were remembered.
        """
        if worker not in self._claims:
            nonces = [one.nonce for one in self._commands if isinstance(one, Claim) and one.worker == worker]
            found = {nonce: self.tables.load_claims(worker, nonce) for nonce in nonces}
            self._claims[worker] = {nonce: brought for nonce, brought in found.items() if brought is not None}
        return self._claims[worker]

    def move(self, move: Move, before: JobRecord | None, after: JobRecord) -> JobRecord:
        """`before` has become `after`, which comes back with its place if it is in line again."""
        state = after.state
        if before is not None:
            if state is WAITING and before.state is not state:
                # guard: old_place, same_place
                number = after.seq if self._keeps_place(after) else self.tables.next_number()
                after = replace(after, place=place(after.order, number))
            if after.group and self.tables.has_gates:
                self._hold_or_let(before, after)
        self._keep(before, after, after)
        self._tally.moved(move, before, after, after)
        if state in TERMINAL:
            if after.parents or after.children:
                self.ended[after.id] = FlowEnd(after, END_OF_STATE[state], _cancels(after))
            if after.expires_at is not None and after.expires_at <= self.now:  # guard: keep_0
                self.remove(Move.REMOVE, after)
        return after

    def put(self, before: JobRecord, after: JobRecord) -> JobRecord:
        """`before` has become `after` without a move: nobody is told."""
        self._keep(before, after, after)
        self._tally.moved(None, before, after, after)
        return after

    def remove(self, move: Move, job: JobRecord, cancel: Reason | None = None) -> None:
        """`job` is gone; what it added to the lifetime totals stays."""
        if job.group and job.state in HELD_STATES:
            self._left.add((job.queue, job.group))
        self._keep(job, None, job)
        self._tally.moved(move, job, None, job)
        if job.steps is not None:
            self.tables.drop_steps([job.id])
        if job.children or (job.parents and not job.finished):
            self.ended.setdefault(job.id, FlowEnd(job, END_OF_STATE.get(job.state, ChildEnd.REMOVED), cancel))

    def leave_queue(self, before: JobRecord, after: JobRecord) -> None:
        """`before` is about to become `after`, in another queue: counted there, with a key of that queue."""
        self._tally.left_queue(before, after)
        unique = before.unique
        if unique is not None and unique.is_of_queue:  # guard: key_goes_along
            self._free(slot_of(before, unique, self.now), before.id)
            self._take(slot_of(after, unique, self.now), holder_of(after, unique, self.now))

    def tell(self, kind: EventKind, queue: str = "", task: str = "", job: str = "", text: str = "") -> None:
        self._tally.tell(kind, queue, task, job, text)

    def rule(self, queue: str) -> Rule:
        """What holds for a queue."""
        if not self.tables.has_gates:
            return NO_RULE
        if self._rules is None:
            self._rules = {gate.name: gate.rule for gate in self.tables.gates(GateKind.QUEUE)}
        return self._rules.get(queue, NO_RULE)

    def permits(self) -> Permits | None:
        """What may be claimed in this pass, counted: nobody else claims there before it is over.

        None where no gate says anything.
        """
        self._open_what_was_left()
        if self._permits is None and (self.tables.has_gates or self._shut):
            self._permits = self._counted()
        return self._permits

    def lock_sizes(self) -> None:
        """Have the queues to this pass that it inserts into and that take only so many. Once is enough."""
        if self._sizes is None:
            self._sizes = {}
            inserting = {job.queue for one in self._commands if isinstance(one, Insert) for job in one.jobs}
            rules = {queue: self.rule(queue) for queue in inserting}
            self.tables.lock_queue_sizes(
                [q for q, rule in rules.items() if rule.max_size or rule.group_max_size]
            )

    def size(self, queue: str, group: str | None) -> int:
        """How many jobs wait in a queue, or in one of its groups, with those of this pass."""
        sizes = self._sizes = {} if self._sizes is None else self._sizes
        if (queue, group) not in sizes:
            if group is None:
                waiting = self.tables.counters().get(queue, {}).get(WAITING, 0)
                deltas = (d for (of, _), d in self._tally.deltas().items() if of == queue)
                sizes[queue, None] = waiting + sum(delta.get(WAITING, 0) for delta in deltas)
            else:
                self.flush()
                sizes[queue, group] = self.tables.group_size(queue, group)
        return sizes[queue, group]

    def grow(self, place: tuple[str, str | None], number: int) -> None:
        """So many more wait there."""
        if self._sizes is not None and place in self._sizes:
            self._sizes[place] += number

    def shut(self, key: GateKey, until: float) -> None:
        """Nothing passes a gate before `until`, or before a later time that was said already; 0 opens it."""
        self._shut[key] = max(until, self._shut.get(key, 0.0)) if until else 0.0

    def forget_gates(self) -> None:
        """A gate has changed."""
        self._permits = self._rules = None

    def flush(self) -> None:
        """Write the changes so far, so that searches see them."""
        self.send()
        if self._freed or self._taken:
            self.tables.write_keys(self._freed, self._taken, self._rivals, self.now)
            self._freed, self._taken, self._rivals = {}, {}, {}

    def send(self) -> None:
        """Write the jobs that have changed so far; their unique keys are taken together, in one order."""
        if self._changes:
            self.tables.write(self._changes.values())
            self._changes = {}

    def close(self) -> None:
        """Write everything that is left; the pass can then be made durable."""
        self.flush()
        self._open_what_was_left()
        self._close_what_is_shut()
        if self._tally.told:
            self.tables.append_events(self.now, self._tally.told, self._tally.deltas())

    def _keeps_place(self, job: JobRecord) -> bool:
        return bool(job.group) and self.tables.has_gates and self.rule(job.queue).order is not None

    def _hold_or_let(self, before: JobRecord, after: JobRecord) -> None:
        """A group is held while a job of it that came back waits for its time, if its queue says so."""
        if before.state in HELD_STATES and after.state not in HELD_STATES:
            self._left.add((after.queue, after.group))
        is_other = before.state is not after.state or before.queue != after.queue
        if is_other and self.rule(before.queue).order is Comeback.HOLD:
            group = GateKind.GROUP, before.queue, before.group
            if before.state in HELD_STATES and after.state is SCHEDULED:
                self.shut(group, after.run_at or 0.0)
            elif before.state is SCHEDULED and before.fence and (before.run_at or 0.0) > self.now:
                self.shut(group, 0.0)

    def _open_what_was_left(self) -> None:
        """Lanes that were laid aside while their group was full."""
        left, self._left = sorted(self._left), set()
        if not left or not self.tables.has_gates:
            return
        limited = {gate.key[1:] for gate in self.tables.group_gates(left)[0] if gate.rule.limit is not None}
        groups = [one for one in left if one in limited or self.rule(one[0]).group_limit is not None]
        if groups:
            self.tables.unpark_groups(groups)  # guard: group_comes_back

    def _counted(self) -> Permits:
        kinds = GateKind.QUEUE, GateKind.TASK, GateKind.WORKER
        permits = Permits(self.tables.gates(*kinds), self.now)
        claims = [command for command in self._commands if isinstance(command, Claim)]
        counted = [gate.key for gate in permits.limiting if any(_concerns(gate, one) for one in claims)]
        if counted or self._shut:
            permits.update(self.tables.lock_gates(sorted({*counted, *self._shut})))
        if self._shut:
            self._close_what_is_shut()
            permits.update(self.tables.gates(*kinds))
        if permits.has_limits:
            permits.hold(self.tables.held_counts())
        return permits

    def _close_what_is_shut(self) -> None:
        shut, self._shut = self._shut, {}
        if shut:
            self.tables.close_gates(shut)
            self.tables.unpark_groups([key[1:] for key, until in shut.items() if not until])
            self.forget_gates()

    def _keep(self, before: JobRecord | None, after: JobRecord | None, job: JobRecord) -> None:
        changes, job_id, stored = self._changes, job.id, before
        if job_id in changes:
            if after is None:
                stored = changes[job_id][0]
            else:
                self.flush()  # what is written is one move, or a removal: tables rely on it
                changes = self._changes
        changes[job_id] = (stored, after)
        self._jobs[job_id] = after
        if job.unique is not None:
            self._hold(job.unique, before, after)

    def _hold(self, unique: UniqueKey, before: JobRecord | None, after: JobRecord | None) -> None:
        """Give a job that is new, or lives again, its unique key; take it from one that lives no more."""
        was_alive = before is not None and not before.finished
        if after is not None and not after.finished:
            if before is None or (unique.scope is UniqueScope.ALIVE and not was_alive):
                known = self.slots.get(after.id) if before is None else None
                slot = known or slot_of(after, unique, self.now)
                self._take(slot, holder_of(after, unique, self.now))
        elif (
            before is not None and was_alive and unique.scope is UniqueScope.ALIVE
        ):  # guard: unique_key_freed
            self._free(slot_of(before, unique, self.now), before.id)

    def _take(self, slot: str, holder: KeyHolder) -> None:
        if (rival := self._keys.get(slot)) is not None:
            self._rivals[slot] = rival.job
        self._keys[slot] = self._taken[slot] = holder

    def _free(self, slot: str, job_id: str) -> None:
        self._keys[slot] = None
        if self._taken.pop(slot, None) is None:
            self._freed[slot] = job_id


def _concerns(gate: GateRecord, claim: Claim) -> bool:
    """Whether the claim may take jobs that have to pass the gate."""
    if gate.kind is GateKind.QUEUE:
        return claim.queues is None or gate.name in claim.queues
    batched = any(batch.task == gate.name for batch in claim.batches)
    listed = claim.tasks is None or gate.name in claim.tasks
    return gate.kind is GateKind.TASK and (batched or (listed and gate.name not in claim.without))


def _cancels(job: JobRecord) -> Reason | None:
    """Why the children of a job that has ended are to be canceled."""
    if job.state is State.CANCELED or job.reason is Reason.CHILD_FAILED:
        return job.reason
    return None
