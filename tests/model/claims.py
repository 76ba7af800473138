"""Promises about claims: which jobs are taken, in which order, and through which gates (P12)."""

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
from tests.model.passes import HELD_STATES, Jobs, Pass

Key = tuple[GateKind, str, str]
Rank = tuple[float, int]

RATE_RECOVERY_MAX = 30.0
"""Seconds after which every rate in `commands` allows a job again."""


class EffectiveGate(NamedTuple):
    """The limits of a gate that a job has to pass, including those from its queue."""

    key: Key
    limit: int | None
    rate: Rate | None
    closed_until: float


class ClaimPromises:
    """Remembers nonces, and when jobs passed the gates that have a rate."""

    def __init__(self) -> None:
        self.claims: dict[str, tuple[str, tuple[Ref, ...], float]] = {}
        self.nonces: set[tuple[str, str]] = set()
        self.passed: dict[Key, tuple[Rate, list[float]]] = {}
        self.last: dict[Key, float] = {}

    def check(self, pass_: Pass) -> None:
        limits_hold(pass_)
        self._rates_hold(pass_)
        self._a_claim_takes_the_most_urgent(pass_)
        self._a_repeated_claim_takes_nothing_new(pass_)

    def is_new(self, command: Command) -> bool:
        return isinstance(command, Claim) and (command.worker, command.nonce) not in self.nonces

    def forget(self, until: float) -> None:
        """Forget claims from before `until`, as a store may do if the worker has not sent a beat since."""
        self.claims = {worker: claim for worker, claim in self.claims.items() if claim[2] > until}

    def _rates_hold(self, pass_: Pass) -> None:
        """P12: in every interval at most burst + length × rate jobs pass a gate.

        Counted since its rule was set: another rule starts a new count.
        """
        taken = [job for answer in pass_.answers if isinstance(answer, Claims) for job in answer.jobs]
        new = [job for job in taken if job.id not in pass_.before or pass_.before[job.id].fence != job.fence]
        self.passed = {
            key: past for key, past in self.passed.items() if effective_gate(pass_, key).rate == past[0]
        }
        for key, _, rate, _ in (gate for job in new for gate in effective_gates(pass_, job)):
            self.last[key] = pass_.now
            if rate is not None:
                _, times = self.passed.setdefault(key, (rate, []))
                times.append(pass_.now)
                for n, since in enumerate(times):
                    most = rate.burst + (pass_.now - since) / rate.every
                    assert len(times) - n <= most + 0.01, (key, rate, times)

    def _a_claim_takes_the_most_urgent(self, pass_: Pass) -> None:
        """No job is skipped that the claim may take, and no due job is missed."""
        command, answer = pass_.commands[-1], pass_.answers[-1]
        if not isinstance(command, Claim) or not isinstance(answer, Claims) or not self.is_new(command):
            return
        no_closed_job_is_claimed(pass_, command, answer.jobs)
        first = list(_first_jobs_of_calls(answer.jobs, command.batches))
        assert len(first) <= command.limit, answer
        suspects = (
            None
            if command.suspects is None
            else command.suspects - sum(job.crashes > 0 for job in answer.jobs)
        )
        assert suspects is None or suspects >= 0, answer
        left = [
            job
            for job in pass_.after.values()
            if _is_eligible(job, command, suspects, pass_.closed) and not self._may_be_held_back(pass_, job)
        ]
        if len(pass_.commands) == 1:
            jobs_go_by_urgency(pass_, command, answer.jobs, first, left)
        for batch in command.batches:
            if sum(job.task == batch.task and not job.crashes for job in answer.jobs) % batch.size:
                more = [job for job in left if job.task == batch.task and not job.crashes]
                assert not [job for job in more if job.state is State.WAITING], (batch, left)
        if len(first) < command.limit:
            assert not [job for job in left if job.state is State.WAITING], left
            assert not [job for job in left if job.run_at is not None and job.run_at <= pass_.now], left
        held = [job for job in pass_.after.values() if job.state in HELD_STATES]
        assert all(job.lease_until is not None and job.lease_until > pass_.now for job in held), held

    def _may_be_held_back(self, pass_: Pass, job: JobRecord) -> bool:
        """Whether a limit is reached, a rate may be used up, or its group is closed for a while."""
        return any(
            (limit is not None and _held_count(pass_.after, key) >= limit)
            or (rate is not None and pass_.now < self.last.get(key, 0.0) + RATE_RECOVERY_MAX)
            or closed_until > pass_.now
            for key, limit, rate, closed_until in effective_gates(pass_, job)
        )

    def _a_repeated_claim_takes_nothing_new(self, pass_: Pass) -> None:
        for command, answer in pass_.pairs:
            if not isinstance(command, Claim) or not isinstance(answer, Claims):
                continue
            nonce, refs, _at = self.claims.get(command.worker, ("", (), 0.0))
            taken = tuple(Ref(job.id, job.fence) for job in answer.jobs)
            if nonce == command.nonce:
                assert set(taken) <= set(refs), (command, taken, refs)
                assert set(taken) >= {
                    ref for ref in refs if pass_.single != (None, None) and pass_.stands(ref)
                }
                assert all(job.lease_until is not None and job.lease_until > pass_.now for job in answer.jobs)
            elif taken:
                self.nonces.add((command.worker, command.nonce))
                self.claims[command.worker] = command.nonce, taken, pass_.now


def no_closed_job_is_claimed(pass_: Pass, command: Claim, jobs: Sequence[JobRecord]) -> None:
    """No job is claimed if its queue, task or group or the worker is paused, or if it has lapsed."""
    for job in jobs:
        assert _is_open(job, command, pass_.closed), job
        assert job.deadline is None or job.deadline > pass_.now, job


def limits_hold(pass_: Pass) -> None:
    """P12: no gate has more held jobs than its limit, unless it had them before the limit was lowered."""
    limits = {gate.key: gate.limit for job in pass_.after.values() for gate in effective_gates(pass_, job)}
    for key, limit in limits.items():
        if limit is not None:
            before, after = _held_count(pass_.before, key), _held_count(pass_.after, key)
            assert after <= max(limit, before), (key, limit, before, after)


def effective_gates(pass_: Pass, job: JobRecord) -> Iterator[EffectiveGate]:
    """The gates that a job has to pass."""
    yield effective_gate(pass_, (GateKind.QUEUE, job.queue, ""))
    yield effective_gate(pass_, (GateKind.TASK, job.task, ""))
    if job.group:
        yield effective_gate(pass_, (GateKind.GROUP, job.queue, job.group))


def effective_gate(pass_: Pass, key: Key) -> EffectiveGate:
    """A group without its own limit or rate has that of its queue."""
    gates = {(gate.kind, gate.name, gate.group): gate for gate in pass_.rules}
    rule = gates[key].rule if key in gates else NO_RULE
    limit, rate = rule.limit, rule.rate
    queue = gates.get((GateKind.QUEUE, key[1], ""))
    if key[0] is GateKind.GROUP and queue is not None:
        limit = queue.rule.group_limit if limit is None else limit
        rate = queue.rule.group_rate if rate is None else rate
    return EffectiveGate(key, limit, rate, gates[key].closed_until if key in gates else 0.0)


def jobs_go_by_urgency(
    pass_: Pass,
    command: Claim,
    jobs: Sequence[JobRecord],
    first: Sequence[JobRecord],
    left: Sequence[JobRecord],
) -> None:
    """Jobs go by urgency within a group, and among all queues without a group that has waiting jobs.

    Urgency does not apply between the groups of a queue, which have turns, or between queues that the claim
    orders.
    """
    known = {job.id: pass_.before[job.id] for job in jobs if job.id in pass_.before}
    taken = {job_id: job for job_id, job in known.items() if job.state is State.WAITING}
    waiting = [job for job in pass_.after.values() if job.place is not None]
    ranks = _ranks(pass_, [*taken.values(), *waiting])
    queues_with_groups = {
        job.queue
        for job in (*pass_.before.values(), *waiting, *jobs)
        if job.group and _is_waiting_or_held(job)
    }
    by_group: dict[tuple[str, str], tuple[list[Rank], list[Rank]]] = defaultdict(lambda: ([], []))

    def group_of(job: JobRecord) -> tuple[str, str]:
        if job.queue in queues_with_groups:
            return job.queue, job.group
        return ("", "") if command.queue_order is None else (job.queue, "")

    for job in first:
        if job.id in taken:
            by_group[group_of(job)][0].append(ranks[job.id])
    for job in left:
        if job.place is not None:
            by_group[group_of(job)][1].append(ranks[job.id])
    for group, (claimed, waits) in by_group.items():
        assert claimed == sorted(claimed), (group, claimed)
        assert not claimed or not waits or max(claimed) < min(waits), (group, claimed, waits)


def _is_waiting_or_held(job: JobRecord) -> bool:
    return job.state is State.WAITING or job.state in HELD_STATES


def _ranks(pass_: Pass, jobs: Sequence[JobRecord]) -> dict[str, Rank]:
    """The rank of each job: priority and place. In a queue with ageing, jobs that waited too long come first.

    An aged job does not overtake an older job of the same task, group and priority.
    """
    ageing = {gate.name: gate.rule.ageing for gate in pass_.rules if gate.kind is GateKind.QUEUE}
    ranks: dict[str, Rank] = {}
    young: set[object] = set()
    for job in sorted(jobs, key=lambda job: abs(job.place or 0)):
        place, span = job.place or 0, ageing.get(job.queue)
        kind = job.queue, job.task, job.group, job.priority, place > 0
        is_old = span is not None and max(job.created_at, job.run_at or 0.0) <= pass_.now - span
        if not is_old:
            young.add(kind)
        ranks[job.id] = (float("-inf"), abs(place)) if is_old and kind not in young else (job.priority, place)
    return ranks


def _held_count(jobs: Jobs, key: Key) -> int:
    kind, name, group = key
    held = [job for job in jobs.values() if job.state in HELD_STATES]
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
    """Whether the claim could have taken the job, if it may take `suspects` more suspects."""
    return (
        job.state in (State.WAITING, State.SCHEDULED)
        and (claim.queues is None or job.queue in claim.queues)
        and (claim.tasks is None or job.task in claim.tasks)
        and job.task not in claim.without
        and (job.crashes == 0 or suspects != 0)
        and _is_open(job, claim, closed)
    )


def _is_open(job: JobRecord, claim: Claim, closed: frozenset[tuple[str, ...]]) -> bool:
    """Whether none of the gates of the job is paused, nor the worker."""
    group = "group", job.queue, job.group
    return closed.isdisjoint((("queue", job.queue), ("task", job.task), group, ("worker", claim.worker)))


def _first_jobs_of_calls(jobs: Sequence[JobRecord], batches: Sequence[BatchSpec]) -> Iterator[JobRecord]:
    """The jobs that count towards the limit of a claim: of each batch only the first."""
    sizes, seen = {batch.task: batch.size for batch in batches}, Counter[str]()
    for job in jobs:
        if job.crashes or job.task not in sizes:
            yield job
            continue
        if seen[job.task] % sizes[job.task] == 0:
            yield job
        seen[job.task] += 1
