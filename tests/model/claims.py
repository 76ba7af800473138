"""Promises about claims: who is taken, in which order, and through which gates (P12)."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from errandry.core.answer import Claims
from errandry.core.batch import BatchSpec
from errandry.core.command import Claim, Command, Ref
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE, Rate
from errandry.core.state import State
from tests.model.done import IN_HAND, Jobs, Pass

Key = tuple[GateKind, str, str]
Spot = tuple[float, int]

SLOWEST = 30.0
"""No rate of `commands` is used up for so long."""


class Passage(NamedTuple):
    """What holds at a gate that a job has to pass."""

    key: Key
    limit: int | None
    rate: Rate | None
    closed_until: float


class Claiming:
    """Remembers nonces, and what has passed the gates that have a rate."""

    def __init__(self) -> None:
        self.claims: dict[str, tuple[str, tuple[Ref, ...], float]] = {}
        self.nonces: set[tuple[str, str]] = set()
        self.passed: dict[Key, tuple[Rate, list[float]]] = {}
        self.last: dict[Key, float] = {}

    def check(self, done: Pass) -> None:
        limits_hold(done)
        self._rates_hold(done)
        self._a_claim_takes_the_most_urgent(done)
        self._a_repeated_claim_takes_nothing_new(done)

    def is_new(self, command: Command) -> bool:
        return isinstance(command, Claim) and (command.worker, command.nonce) not in self.nonces

    def forget(self, until: float) -> None:
        """A store may forget claims of workers it has not heard of for so long."""
        self.claims = {worker: claim for worker, claim in self.claims.items() if claim[2] > until}

    def _rates_hold(self, done: Pass) -> None:
        """P12: in no stretch of time more pass a gate than come at once and evenly in that time.

        From the moment its rule was put: another rule has another count.
        """
        taken = [job for answer in done.answers if isinstance(answer, Claims) for job in answer.jobs]
        fresh = [job for job in taken if job.id not in done.before or done.before[job.id].fence != job.fence]
        self.passed = {key: past for key, past in self.passed.items() if passage(done, key).rate == past[0]}
        for key, _, rate, _ in (one for job in fresh for one in passages(done, job)):
            self.last[key] = done.now
            if rate is not None:
                _, times = self.passed.setdefault(key, (rate, []))
                times.append(done.now)
                for n, since in enumerate(times):
                    most = rate.burst + (done.now - since) / rate.every
                    assert len(times) - n <= most + 0.01, (key, rate, times)

    def _a_claim_takes_the_most_urgent(self, done: Pass) -> None:
        """Nobody is passed over who may be taken, nobody due is missed."""
        command, answer = done.commands[-1], done.answers[-1]
        if not isinstance(command, Claim) or not isinstance(answer, Claims) or not self.is_new(command):
            return
        nobody_is_taken_who_must_not_be(done, command, answer.jobs)
        first = list(_first_of_calls(answer.jobs, command.batches))
        assert len(first) <= command.limit, answer
        suspects = (
            None
            if command.suspects is None
            else command.suspects - sum(job.crashes > 0 for job in answer.jobs)
        )
        assert suspects is None or suspects >= 0, answer
        left = [
            job
            for job in done.after.values()
            if _is_eligible(job, command, suspects, done.closed) and not self._is_kept_back(done, job)
        ]
        if len(done.commands) == 1:
            urgent_first(done, command, answer.jobs, first, left)
        for batch in command.batches:
            if sum(job.task == batch.task and not job.crashes for job in answer.jobs) % batch.size:
                more = [job for job in left if job.task == batch.task and not job.crashes]
                assert not [job for job in more if job.state is State.WAITING], (batch, left)
        if len(first) < command.limit:
            assert not [job for job in left if job.state is State.WAITING], left
            assert not [job for job in left if job.run_at is not None and job.run_at <= done.now], left
        held = [job for job in done.after.values() if job.state in IN_HAND]
        assert all(job.lease_until is not None and job.lease_until > done.now for job in held), held

    def _is_kept_back(self, done: Pass, job: JobRecord) -> bool:
        """Whether a limit is reached, a rate may be used up, or its group is closed for a while."""
        return any(
            (limit is not None and _held(done.after, key) >= limit)
            or (rate is not None and done.now < self.last.get(key, 0.0) + SLOWEST)
            or closed_until > done.now
            for key, limit, rate, closed_until in passages(done, job)
        )

    def _a_repeated_claim_takes_nothing_new(self, done: Pass) -> None:
        for command, answer in done.pairs:
            if not isinstance(command, Claim) or not isinstance(answer, Claims):
                continue
            nonce, refs, _at = self.claims.get(command.worker, ("", (), 0.0))
            taken = tuple(Ref(job.id, job.fence) for job in answer.jobs)
            if nonce == command.nonce:
                assert set(taken) <= set(refs), (command, taken, refs)
                assert set(taken) >= {ref for ref in refs if done.sole != (None, None) and done.stands(ref)}
                assert all(job.lease_until is not None and job.lease_until > done.now for job in answer.jobs)
            elif taken:
                self.nonces.add((command.worker, command.nonce))
                self.claims[command.worker] = command.nonce, taken, done.now


def nobody_is_taken_who_must_not_be(done: Pass, command: Claim, jobs: Sequence[JobRecord]) -> None:
    """By a worker, or out of a queue, task or group, that is paused; or when it has lapsed."""
    for job in jobs:
        assert _is_open(job, command, done.closed), job
        assert job.deadline is None or job.deadline > done.now, job


def limits_hold(done: Pass) -> None:
    """P12: no gate has more held jobs than it may have, unless it had them before its limit was lowered."""
    limits = {one.key: one.limit for job in done.after.values() for one in passages(done, job)}
    for key, limit in limits.items():
        if limit is not None:
            before, after = _held(done.before, key), _held(done.after, key)
            assert after <= max(limit, before), (key, limit, before, after)


def passages(done: Pass, job: JobRecord) -> Iterator[Passage]:
    """The gates a job has to pass."""
    yield passage(done, (GateKind.QUEUE, job.queue, ""))
    yield passage(done, (GateKind.TASK, job.task, ""))
    if job.group:
        yield passage(done, (GateKind.GROUP, job.queue, job.group))


def passage(done: Pass, key: Key) -> Passage:
    """A group without its own limit or rate has that of its queue."""
    gates = {(gate.kind, gate.name, gate.group): gate for gate in done.rules}
    rule = gates[key].rule if key in gates else NO_RULE
    limit, rate = rule.limit, rule.rate
    queue = gates.get((GateKind.QUEUE, key[1], ""))
    if key[0] is GateKind.GROUP and queue is not None:
        limit = queue.rule.group_limit if limit is None else limit
        rate = queue.rule.group_rate if rate is None else rate
    return Passage(key, limit, rate, gates[key].closed_until if key in gates else 0.0)


def urgent_first(
    done: Pass,
    command: Claim,
    jobs: Sequence[JobRecord],
    first: Sequence[JobRecord],
    left: Sequence[JobRecord],
) -> None:
    """Jobs go by urgency: those of a group among themselves, and all of the queues where no group waits.

    Groups have turns, and a claim may say which queue goes first; between those nobody is more urgent.
    """
    known = {job.id: done.before[job.id] for job in jobs if job.id in done.before}
    taken = {one: job for one, job in known.items() if job.state is State.WAITING}
    waiting = [job for job in done.after.values() if job.place is not None]
    spots = _spots(done, [*taken.values(), *waiting])
    turning = {job.queue for job in (*done.before.values(), *waiting, *jobs) if job.group and _lines_up(job)}
    parties: dict[tuple[str, str], tuple[list[Spot], list[Spot]]] = defaultdict(lambda: ([], []))

    def party(job: JobRecord) -> tuple[str, str]:
        if job.queue in turning:
            return job.queue, job.group
        return ("", "") if command.order is None else (job.queue, "")

    for job in first:
        if job.id in taken:
            parties[party(job)][0].append(spots[job.id])
    for job in left:
        if job.place is not None:
            parties[party(job)][1].append(spots[job.id])
    for which, (went, stayed) in parties.items():
        assert went == sorted(went), (which, went)
        assert not went or not stayed or max(went) < min(stayed), (which, went, stayed)


def _lines_up(job: JobRecord) -> bool:
    return job.state is State.WAITING or job.state in IN_HAND


def _spots(done: Pass, jobs: Sequence[JobRecord]) -> dict[str, Spot]:
    """Where each stands: by priority and place. In a queue with ageing, who has waited too long goes first.

    But nobody overtakes, of his own task, group and priority, who was in line before him.
    """
    ageing = {gate.name: gate.rule.ageing for gate in done.rules if gate.kind is GateKind.QUEUE}
    spots: dict[str, Spot] = {}
    young: set[object] = set()
    for job in sorted(jobs, key=lambda job: abs(job.place or 0)):
        place, span = job.place or 0, ageing.get(job.queue)
        kind = job.queue, job.task, job.group, job.priority, place > 0
        is_old = span is not None and max(job.created_at, job.run_at or 0.0) <= done.now - span
        if not is_old:
            young.add(kind)
        spots[job.id] = (float("-inf"), abs(place)) if is_old and kind not in young else (job.priority, place)
    return spots


def _held(jobs: Jobs, key: Key) -> int:
    kind, name, group = key
    held = [job for job in jobs.values() if job.state in IN_HAND]
    match kind:
        case GateKind.QUEUE:
            return sum(job.queue == name for job in held)
        case GateKind.TASK:
            return sum(job.task == name for job in held)
        case _:
            return sum((job.queue, job.group) == (name, group) for job in held)


def _is_eligible(
    job: JobRecord, claim: Claim, suspects: int | None, closed: frozenset[tuple[str, ...]]
) -> bool:
    """Whether the claim could have taken the job, with so many suspects to spare."""
    return (
        job.state in (State.WAITING, State.SCHEDULED)
        and (claim.queues is None or job.queue in claim.queues)
        and (claim.tasks is None or job.task in claim.tasks)
        and job.task not in claim.without
        and (job.crashes == 0 or suspects != 0)
        and _is_open(job, claim, closed)
    )


def _is_open(job: JobRecord, claim: Claim, closed: frozenset[tuple[str, ...]]) -> bool:
    """Whether nothing that the job has to pass is paused, nor the worker."""
    group = "group", job.queue, job.group
    return closed.isdisjoint((("queue", job.queue), ("task", job.task), group, ("worker", claim.worker)))


def _first_of_calls(jobs: Sequence[JobRecord], batches: Sequence[BatchSpec]) -> Iterator[JobRecord]:
    """The jobs for which a claim has counted: not those that came along in a batch."""
    sizes, seen = {batch.task: batch.size for batch in batches}, Counter[str]()
    for job in jobs:
        if job.crashes or job.task not in sizes:
            yield job
            continue
        if seen[job.task] % sizes[job.task] == 0:
            yield job
        seen[job.task] += 1
