"""The promises of proof.md as checks of one pass: what was sent, what came back, the jobs before and after.

They say each rule again in their own words and never ask the table or `core.move`, or a rule
missing there would be missing here too. Most hold for any pass; what only a pass of one command shows
is asked of those alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from errandry.core.answer import (
    ALREADY,
    HELD,
    WRITTEN,
    Answer,
    Claims,
    Inserted,
    Kept,
    Lost,
    Moved,
    Renewed,
)
from errandry.core.batch import Batch
from errandry.core.command import (
    Cancel,
    Claim,
    Command,
    Complete,
    Fail,
    Insert,
    Note,
    PutStep,
    Ref,
    Release,
    Remove,
    Renew,
    Rerun,
    Retry,
    Settle,
    Snooze,
    Start,
    Upkeep,
)
from errandry.core.event import Kind
from errandry.core.flow import Await, Ended, Link, Policy
from errandry.core.gate import Gate, GateKind
from errandry.core.job import Job, Keep, Order
from errandry.core.operator import Operator
from errandry.core.schedule import Schedule
from errandry.core.state import Reason, State
from errandry.core.step import Step, Wait
from errandry.core.unique import Conflict, Scope
from errandry.errors import DuplicateJob
from errandry.store.contract import Happened
from tests.model.commands import BOUNDS

Counts = Mapping[str, Mapping[str, int]]
Jobs = Mapping[str, Job]

AFTER_START = (Complete, Retry, Fail, Snooze, Await, Wait)
IN_HAND = (State.CLAIMED, State.RUNNING)


@dataclass
class Pass:
    """A pass as it looked from outside. `closed` holds what is paused: queues, tasks, groups and workers.

    `links` are the edges of each parent after it, `steps` those of each job that has some.
    """

    commands: Sequence[Command]
    answers: Sequence[Answer]
    now: float
    before: Jobs
    after: Jobs
    events: Sequence[Happened]
    closed: frozenset[tuple[str, ...]]
    rules: Sequence[Gate]
    schedules: Sequence[Schedule]
    links: Mapping[str, Sequence[Link]]
    steps: Mapping[str, Sequence[Step]]

    @property
    def sole(self) -> tuple[Command, Answer] | tuple[None, None]:
        """The command and its answer, of a pass of one."""
        return (self.commands[0], self.answers[0]) if len(self.commands) == 1 else (None, None)

    @property
    def pairs(self) -> Iterator[tuple[Command, Answer]]:
        return zip(self.commands, self.answers, strict=True)

    def has(self, *kinds: type) -> bool:
        return any(isinstance(command, kinds) for command in self.commands)

    def stands(self, ref: Ref) -> bool:
        """Whether the claim held when the pass began: held, this fence, not expired."""
        job = self.before.get(ref.job)
        return (
            job is not None
            and job.state in IN_HAND
            and job.fence == ref.fence
            and job.lease_until is not None
            and job.lease_until > self.now
        )


class Promises:
    """Checks pass after pass, and remembers what a single pass cannot show."""

    def __init__(self) -> None:
        self.fences: dict[tuple[str, int], int] = {}
        self.places = 0
        self.claims: dict[str, tuple[str, tuple[Ref, ...], float]] = {}
        self.nonces: set[tuple[str, str]] = set()
        self.settled: dict[tuple[Ref, int], type] = {}
        self.ended: dict[tuple[str, str], int] = {}
        self.ticks: dict[str, Schedule] = {}
        self.steps: Mapping[str, Sequence[Step]] = {}

    def check(self, done: Pass) -> None:
        one_lease_at_a_time(done)
        limits_hold(done)
        only_a_standing_claim_writes(done)
        a_refusal_changes_nothing(done)
        a_settle_obeys_cancel_attempts_and_start(done)
        an_expiry_obeys_its_caps(done)
        finished_jobs_stay_finished(done)
        an_insert_is_idempotent(done)
        a_key_has_one_live_holder(done)
        nothing_kept_for_no_time_is_listed(done)
        a_task_keeps_only_so_many(done)
        a_query_moves_what_matches_and_looks_at_few(done)
        a_parent_waits_for_its_open_children(done)
        a_parent_is_released_once_and_not_too_early(done)
        self._every_tick_is_decided_about(done)
        self._ticks_rise(done)
        self._fences_rise(done)
        self._places_are_unique_and_rise(done)
        self._a_claim_takes_the_most_urgent(done)
        self._a_repeated_claim_takes_nothing_new(done)
        self._a_repeated_settle_is_known(done)
        self._steps_stay_as_they_were(done)

    def check_counts(self, jobs: Jobs, counts: Counts, totals: Counts, events: Sequence[Happened]) -> None:
        """P8: counters equal a recount, nothing is lost, and totals go on when jobs are gone."""
        recount: dict[str, dict[str, int]] = {}
        for job in jobs.values():
            states = recount.setdefault(job.queue, {})
            states[job.state] = states.get(job.state, 0) + 1
        assert {queue: states for queue, states in counts.items() if states} == recount
        for queue, total in totals.items():
            here = sum(counts.get(queue, {}).values())
            came = total.get("inserted", 0) + total.get("moved_in", 0)
            left = total.get("removed", 0) + total.get("moved_out", 0)
            assert came == here + left, (queue, total, counts)
        for happened in events:
            if happened.event.kind in _COUNTED:
                key = happened.event.queue, _COUNTED[happened.event.kind]
                self.ended[key] = self.ended.get(key, 0) + 1
        told = {(q, name): n for q, t in totals.items() for name, n in t.items() if name in _COUNTED.values()}
        assert told == self.ended

    def _every_tick_is_decided_about(self, done: Pass) -> None:
        """Who claims, or keeps up without a narrow bound, leaves no schedule with a tick that is due."""
        command, answer = done.commands[-1], done.answers[-1]
        is_new = isinstance(command, Claim) and (command.worker, command.nonce) not in self.nonces
        if (is_new and not done.has(Upkeep)) or (isinstance(answer, Kept) and not answer.more):
            due = [one for one in done.schedules if one.due_at is not None and one.due_at <= done.now]
            assert not due, due
        for schedule in done.schedules:
            assert schedule.tick is None or schedule.paused is None, schedule

    def _ticks_rise(self, done: Pass) -> None:
        """P11: a tick that was decided about is over, whatever becomes of the clock and the schedule."""
        for schedule in done.schedules:
            earlier = self.ticks.get(schedule.name)
            if earlier is not None and earlier.created_at == schedule.created_at:
                assert schedule.runs >= earlier.runs, (earlier, schedule)
                assert schedule.missed >= earlier.missed, (earlier, schedule)
                assert (schedule.last or 0.0) >= (earlier.last or 0.0), (earlier, schedule)
            assert schedule.tick is None or schedule.tick > (schedule.last or 0.0), schedule
        self.ticks = {schedule.name: schedule for schedule in done.schedules}

    def _fences_rise(self, done: Pass) -> None:
        """P5, for as long as the record exists."""
        for job in done.after.values():
            known = self.fences.get((job.id, job.seq), 0)
            assert job.fence >= known, (job, known)
            earlier = done.before.get(job.id)
            if earlier is not None and earlier.seq == job.seq and job.attempts > earlier.attempts:
                assert job.fence > known, (job, known)
            self.fences[job.id, job.seq] = job.fence

    def _places_are_unique_and_rise(self, done: Pass) -> None:
        """A waiting job has a place of its own; whoever joins the line goes behind everyone who ever did.

        In a queue that keeps the order of its groups, a job may have the place of its number instead.
        """
        ordered = {gate.name for gate in done.rules if gate.rule.order is not None}
        places = [job.place for job in done.after.values() if job.place is not None]
        assert len({abs(place) for place in places}) == len(places), places
        for job in done.after.values():
            assert (job.place is not None) == (job.state is State.WAITING), job
            earlier = done.before.get(job.id)
            if job.place is not None and (earlier is None or earlier.place != job.place):
                is_back = bool(job.group) and job.queue in ordered and abs(job.place) == job.seq
                assert is_back or abs(job.place) > self.places, (job, self.places)
                assert (job.place < 0) == (job.order is Order.LIFO), job
        self.places = max([self.places, *map(abs, places)])

    def _a_claim_takes_the_most_urgent(self, done: Pass) -> None:
        """In order of priority and place; nobody eligible is passed over, nobody due is missed."""
        command, answer = done.commands[-1], done.answers[-1]
        if not isinstance(command, Claim) or not isinstance(answer, Claims):
            return
        if (command.worker, command.nonce) in self.nonces:
            return
        first = list(_first_of_calls(answer.jobs, command.batches))
        assert len(first) <= command.limit, answer
        for job in answer.jobs:
            gates = {("queue", job.queue), ("task", job.task), ("worker", command.worker)}
            assert not gates & done.closed, job
            assert job.deadline is None or job.deadline > done.now, job
        suspects = (
            None
            if command.suspects is None
            else command.suspects - sum(job.crashes > 0 for job in answer.jobs)
        )
        assert suspects is None or suspects >= 0, answer
        left = [
            job
            for job in done.after.values()
            if _is_eligible(job, command, suspects, done.closed) and not _is_ruled(job, done.rules)
        ]
        grouped = [job for job in done.after.values() if job.group and job.state is State.WAITING]
        has_turns = command.order is not None or any(job.group for job in (*answer.jobs, *grouped))
        has_turns |= any(gate.rule.ageing is not None for gate in done.rules)
        if len(done.commands) == 1 and not has_turns:
            known = [done.before[job.id] for job in first if job.id in done.before]
            taken = [_spot(job) for job in known if job.place is not None]
            assert taken == sorted(taken)
            assert all(_spot(job) > taken[-1] for job in left if job.place is not None and taken)
        for batch in command.batches:
            if sum(job.task == batch.task and not job.crashes for job in answer.jobs) % batch.size:
                more = [job for job in left if job.task == batch.task and not job.crashes]
                assert not [job for job in more if job.state is State.WAITING], (batch, left)
        if len(first) < command.limit:
            assert not [job for job in left if job.state is State.WAITING], left
            assert not [job for job in left if job.run_at is not None and job.run_at <= done.now], left
        held = [job for job in done.after.values() if job.state in IN_HAND]
        assert all(job.lease_until is not None and job.lease_until > done.now for job in held), held

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

    def _a_repeated_settle_is_known(self, done: Pass) -> None:
        """The same outcome again answers already, until the job is claimed again or its record is gone."""
        for command, answer in done.pairs:
            if not isinstance(command, Settle):
                continue
            job, outcome = done.before.get(command.ref.job), type(command.outcome)
            if job is None or job.fence != command.ref.fence:
                continue
            if self.settled.get((command.ref, job.seq)) is outcome and not done.stands(command.ref):
                assert answer is ALREADY, (command, answer, job)
            if answer is WRITTEN:
                self.settled[command.ref, job.seq] = outcome

    def _steps_stay_as_they_were(self, done: Pass) -> None:
        """What was done, slept or told stays so, as long as its job, unless that is run anew."""
        is_anew = any(isinstance(command, Rerun) and command.from_start for command in done.commands)
        for job_id, steps in done.steps.items():
            job, before = done.after[job_id], done.before.get(job_id)
            assert job.steps is not None
            assert [step.n for step in steps] == list(range(job.steps.count)), (job, steps)
            if before is None or before.seq != job.seq or is_anew:
                continue
            for old, new in zip(self.steps.get(job_id, ()), steps, strict=False):
                assert new == (old if old.at is not None else replace(old, result=new.result, at=new.at))
            assert len(steps) >= len(self.steps.get(job_id, ())), (job, steps)
        self.steps = done.steps

    def forget_claims(self, until: float) -> None:
        """A store may forget claims of workers it has not heard of for so long."""
        self.claims = {worker: claim for worker, claim in self.claims.items() if claim[2] > until}


def limits_hold(done: Pass) -> None:
    """P12: no gate has more held jobs than it may have, unless it had them before its limit was lowered."""
    queues = {gate.name: gate.rule for gate in done.rules if gate.kind is GateKind.QUEUE}
    groups = {(gate.name, gate.group): gate.rule.limit for gate in done.rules if gate.kind is GateKind.GROUP}
    limits = {(gate.kind, gate.name, gate.group): gate.rule.limit for gate in done.rules}
    for job in done.after.values():
        if job.group and groups.get((job.queue, job.group)) is None and job.queue in queues:
            limits[GateKind.GROUP, job.queue, job.group] = queues[job.queue].group_limit
    for key, limit in limits.items():
        if limit is not None:
            before, after = _held(done.before, key), _held(done.after, key)
            assert after <= max(limit, before), (key, limit, before, after)


def _held(jobs: Jobs, key: tuple[str, str, str]) -> int:
    kind, name, group = key
    held = [job for job in jobs.values() if job.state in IN_HAND]
    match GateKind(kind):
        case GateKind.QUEUE:
            return sum(job.queue == name for job in held)
        case GateKind.TASK:
            return sum(job.task == name for job in held)
        case _:
            return sum((job.queue, job.group) == (name, group) for job in held)


def _is_ruled(job: Job, rules: Sequence[Gate]) -> bool:
    """Whether something else than a pause may keep it back."""
    keys = ("queue", job.queue, ""), ("task", job.task, ""), ("group", job.queue, job.group)
    return any((gate.kind, gate.name, gate.group) in keys for gate in rules)


def one_lease_at_a_time(done: Pass) -> None:
    """P3: a claim that stands ends by its worker, a cancel or removal, or with a worker known to be dead."""
    settled = {command.ref for command in done.commands if isinstance(command, Settle)}
    dead = {worker for command in done.commands if isinstance(command, Upkeep) for worker in command.dead}
    for job in done.before.values():
        ref = Ref(job.id, job.fence)
        if not done.stands(ref) or ref in settled or job.worker in dead or done.has(Cancel, Remove):
            continue
        after = done.after.get(job.id)
        assert after is not None, job
        assert (after.fence, after.worker) == (job.fence, job.worker), (job, after)
        assert after.state in IN_HAND, (job, after)


def only_a_standing_claim_writes(done: Pass) -> None:
    """P4, one half: what was written was written under a claim that stood."""
    for command, answer in done.pairs:
        match command, answer:
            case (
                (Start(ref=ref) | Note(ref=ref) | PutStep(ref=ref) | Settle(ref=ref)),
                mark,
            ) if mark is WRITTEN:
                assert done.stands(ref), (command, done.before.get(ref.job))
            case Renew(refs=refs), Renewed(marks=marks):
                for ref, mark in zip(refs, marks, strict=True):
                    assert mark is not HELD or done.stands(ref), (ref, done.before.get(ref.job))


def a_refusal_changes_nothing(done: Pass) -> None:
    """P4, the other half: a stale or repeated command leaves every job as it was, and no event."""
    command, answer = done.sole
    refused = isinstance(answer, Lost) or answer is ALREADY
    if isinstance(command, Renew) and isinstance(answer, Renewed):
        refused = all(isinstance(mark, Lost) for mark in answer.marks)
    if refused:
        assert done.before == done.after, (command, answer)
        assert not done.events


def a_settle_obeys_cancel_attempts_and_start(done: Pass) -> None:
    command, answer = done.sole
    if not isinstance(command, Settle) or answer is not WRITTEN:
        return
    outcome = command.outcome
    before, after = done.before[command.ref.job], done.after.get(command.ref.job)
    assert before.state is State.RUNNING or not isinstance(outcome, AFTER_START), (command, before)
    if before.cancel_requested:
        assert after is None or after.state is State.CANCELED, (command, after)
        return
    match outcome:
        case Retry() if before.attempts >= before.max_attempts:
            assert after is None or after.state is State.FAILED, (command, after)
        case Retry():
            assert after is not None
            assert (after.attempts, after.worker) == (before.attempts, None)
            assert after.state in (State.SCHEDULED, State.WAITING), (command, after)
            assert after.errors[-1].attempt == before.attempts
        case Snooze() | Release() | Await() | Wait() if after is not None and not after.finished:
            assert after.attempts == before.attempts - 1, (command, after)
            assert after.lease_until is None


def an_expiry_obeys_its_caps(done: Pass) -> None:
    """P6: no job goes on whose handler has lost its worker too often, or on its last attempt."""
    for job in done.after.values():
        before = done.before.get(job.id)
        assert job.finished or job.releases <= 20, job
        if before is None or before.seq != job.seq or job.crashes <= before.crashes:
            continue
        spent = before.attempts >= before.max_attempts or job.crashes >= job.max_crashes
        over = spent or job.reason in (Reason.CANCELED, Reason.CHILD_FAILED, Reason.DEADLINE)
        assert job.finished == over, (before, job)
        assert any(error.kind is Reason.WORKER_LOST for error in job.errors)


def finished_jobs_stay_finished(done: Pass) -> None:
    """P7: a finished job changes by a rerun or a forced cancel, and goes by removal, by hand or by age."""
    brought_back = done.has(Rerun) or any(isinstance(one, Cancel) and one.force for one in done.commands)
    for job in done.before.values():
        after = done.after.get(job.id)
        if job.finished and after != job and not brought_back:
            if after is not None and after == replace(job, parents=after.parents):
                assert done.has(Insert, Settle) or "@" in job.id, (job, after)  # the next tick waits for it
                continue
            prunes = any(isinstance(one, Upkeep) and one.prune for one in done.commands)
            assert done.has(Remove) or (prunes and job.expires_at is not None), (job, after)
            assert after is None or after.seq != job.seq, (job, after)


def an_insert_is_idempotent(done: Pass) -> None:
    replaced: set[str] = set()
    for command, answer in done.pairs:
        if isinstance(command, Insert) and isinstance(answer, Inserted):
            replaced |= answer.replaced
            assert answer.existed >= {job.id for job in command.jobs if job.id in done.before}
            for job, job_id in zip(command.jobs, answer.ids, strict=True):
                assert job_id == job.id or job.unique is not None, (job, job_id)
    sole, outcome = done.sole
    if isinstance(sole, Insert) and not (sole.edges and isinstance(outcome, Inserted) and outcome.existed):
        for before in done.before.values():
            after = done.after.get(before.id)
            is_dropped = after is None or after.reason is Reason.DROPPED
            is_family = bool(before.children or before.parents)  # of one that was dropped
            assert after == before or before.id in replaced or is_dropped or is_family


def a_key_has_one_live_holder(done: Pass) -> None:
    """P9: of jobs that hold a key while they are alive, one is; and who is sent away is told who that is."""
    alive = [job for job in done.after.values() if not job.finished]
    held = [
        (job.unique.key, job.queue if job.unique.per_queue else None)
        for job in alive
        if job.unique is not None and job.unique.scope is Scope.ALIVE
    ]
    assert len(set(held)) == len(held), alive
    command, answer = done.sole
    if not isinstance(command, Insert):
        return
    if isinstance(answer, DuplicateJob):
        assert any(job.on_conflict is Conflict.RAISE for job in command.jobs), command
        assert done.before == done.after
    elif isinstance(answer, Inserted):
        for job, job_id in zip(command.jobs, answer.ids, strict=True):
            is_repeat = bool(command.edges)  # a parent may have gone with its child, and is not made again
            is_there = job_id in done.after or job.unique is not None or is_repeat
            assert job_id != job.id or is_there, (job, answer)
            assert job_id == job.id or job.id not in done.after, (job, answer)
            assert job_id == job.id or job.on_conflict is not Conflict.RAISE, (job, answer)
            holder = done.after.get(job_id)
            if job_id == job.id or holder is None or not holder.finished or holder.unique is None:
                continue
            if job.unique is not None and holder.unique.key == job.unique.key:  # else another had its id
                assert holder.unique.scope is not Scope.ALIVE, (job, holder)


def a_parent_waits_for_its_open_children(done: Pass) -> None:
    """A job is blocked by as many children as have not ended; who has ended, or is gone, is written down.

    A job that was about to run, or awaits more children, need not wait for one that was run again.
    """
    for job in done.after.values():
        links = done.links.get(job.id, ())
        if job.state is State.BLOCKED:
            assert job.open_children == sum(link.outcome is None for link in links) > 0, (job, links)
        for link in links:
            child = done.after.get(link.child)
            if child is None or child.seq != link.seq:
                assert link.outcome is not None, (job, link)
            elif child.finished:
                assert str(link.outcome) == str(child.state), (job, link, child)
            elif job.state is State.BLOCKED and _comes_back_to(done, job, child):
                assert link.outcome is None, (job, link, child)


def _comes_back_to(done: Pass, parent: Job, child: Job) -> bool:
    """Whether the child runs again, and its parent has waited or ended. One that was about to run goes on."""
    before, waiting = done.before.get(child.id), done.before.get(parent.id)
    is_back = before is not None and before.seq == child.seq and before.finished
    return is_back and waiting is not None and (waiting.finished or waiting.state is State.BLOCKED)


def a_parent_is_released_once_and_not_too_early(done: Pass) -> None:
    """When all its children have ended, and none of them badly; an operator may have it run all the same."""
    if done.has(Rerun):
        return
    for job in done.after.values():
        before = done.before.get(job.id)
        if before is None or before.seq != job.seq or before.state is not State.BLOCKED:
            continue
        if job.state in (State.WAITING, State.SCHEDULED, *IN_HAND):
            links = done.links[job.id]
            assert all(link.outcome is not None for link in links), (job, links)
            failed = [link for link in links if link.outcome is not Ended.COMPLETED]
            assert all(link.policy in (Policy.IGNORE, Policy.AFTER) for link in failed), (job, links)
            told = [e.event.kind for e in done.events if e.event.job == job.id]
            assert len(done.commands) > 1 or told.count(Kind.WAITING) <= 1, (job, told)


def nothing_kept_for_no_time_is_listed(done: Pass) -> None:
    for job in done.after.values():
        if job.finished:
            assert getattr(job.keep or Keep(), job.state) > 0, job


def a_task_keeps_only_so_many(done: Pass) -> None:
    """P13: after an upkeep that was not cut short, only the newest of those that say how many."""
    command, _ = done.sole
    if not isinstance(command, Upkeep) or not command.prune or command.limit < len(done.before):
        return
    shelves: dict[tuple[str, State], list[Job]] = {}
    for job in sorted(done.after.values(), key=lambda job: (job.finished_at or 0.0, job.seq)):
        keep = job.keep or Keep()
        if job.finished and (keep.last_completed or keep.last_failed or keep.last_canceled):
            shelves.setdefault((job.task, job.state), []).append(job)
    for (_, state), jobs in shelves.items():
        last = getattr(jobs[-1].keep, f"last_{state}")
        assert last is None or len(jobs) <= last, (state, jobs)
        assert all(job.expires_at is None or job.expires_at > done.now for job in jobs), jobs


def a_query_moves_what_matches_and_looks_at_few(done: Pass) -> None:
    """By query, or by ids that must match; of all jobs only the first so many of a slice are looked at."""
    command, answer = done.sole
    if not isinstance(command, Operator) or command.query is None or not isinstance(answer, Moved):
        return
    under = command.below or 2**63
    for job_id in answer.moved:
        job = done.before[job_id]
        assert command.query.matches(job, done.now), (command, job)
        if not command.ids and "id" not in dict(command.query.within):
            newer = [one for one in done.before.values() if job.seq < one.seq < under]
            beside = [one for one in newer if one.finished == job.finished and _is_done(one) == _is_done(job)]
            assert job.seq < under, (command, job)
            assert len(beside) < BOUNDS.scan, (command, job, beside)


def _is_done(job: Job) -> bool:
    return job.state is State.COMPLETED


_COUNTED = {
    Kind.COMPLETED: "completed",
    Kind.FAILED: "failed",
    Kind.CANCELED: "canceled",
    Kind.STALLED: "expired",
    Kind.REMOVED: "removed",
    Kind.RETRYING: "retried",
}


def _is_eligible(job: Job, claim: Claim, suspects: int | None, closed: frozenset[tuple[str, ...]]) -> bool:
    """Whether the claim could have taken the job, with so many suspects to spare."""
    return (
        job.state in (State.WAITING, State.SCHEDULED)
        and (claim.queues is None or job.queue in claim.queues)
        and (claim.tasks is None or job.task in claim.tasks)
        and job.task not in claim.without
        and (job.crashes == 0 or suspects != 0)
        and ("queue", job.queue) not in closed
        and ("task", job.task) not in closed
        and ("group", job.queue, job.group) not in closed
        and ("worker", claim.worker) not in closed
    )


def _first_of_calls(jobs: Sequence[Job], batches: Sequence[Batch]) -> Iterator[Job]:
    """The jobs for which a claim has counted: not those that came along in a batch."""
    sizes, seen = {batch.task: batch.size for batch in batches}, Counter[str]()
    for job in jobs:
        if job.crashes or job.task not in sizes:
            yield job
            continue
        if seen[job.task] % sizes[job.task] == 0:
            yield job
        seen[job.task] += 1


def _spot(job: Job) -> tuple[int, int]:
    return job.priority, job.place or 0
