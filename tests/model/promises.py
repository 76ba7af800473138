"""The promises of proof.md as checks of one pass: what was sent, what came back, the jobs before and after.

They say each rule again in their own words and never ask the table or `core.move`, or a rule
missing there would be missing here too. Most hold for any pass; what only a pass of one command shows
is asked of those alone.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from errandry.core.answer import ALREADY, HELD, WRITTEN, Inserted, Lost, Moved, Renewed, UpkeepResult
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Note,
    PutStep,
    Ref,
    ReleaseOutcome,
    RemoveJobs,
    Renew,
    RerunJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
    inserted_jobs,
)
from errandry.core.event import EventKind
from errandry.core.flow import AwaitOutcome, Policy
from errandry.core.job import JobOrder, JobRecord, Keep, NewJob
from errandry.core.rule import Overflow
from errandry.core.schedule import ScheduleRecord
from errandry.core.selection import JobSelection
from errandry.core.state import Reason, State
from errandry.core.step import SendSignal, Step, StepKind, WaitOutcome
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.errors import DuplicateJob, ErrandryError
from errandry.store.contract import EventEntry
from tests.model.claims import Claiming
from tests.model.commands import BOUNDS
from tests.model.done import IN_HAND, Jobs, Pass
from tests.model.families import Families

Counts = Mapping[str, Mapping[str, int]]

AFTER_START = (CompleteOutcome, RetryOutcome, FailOutcome, SnoozeOutcome, AwaitOutcome, WaitOutcome)


class Promises:
    """Checks pass after pass, and remembers what a single pass cannot show."""

    def __init__(self) -> None:
        self.fences: dict[tuple[str, int], int] = {}
        self.places = 0
        self.ordered: set[str] = set()
        self.claiming = Claiming()
        self.families = Families()
        self.keys: dict[str, set[str]] = {}
        self.settled: dict[tuple[Ref, int], type] = {}
        self.ended: dict[tuple[str, str], int] = {}
        self.ticks: dict[str, ScheduleRecord] = {}
        self.steps: Mapping[str, Sequence[Step]] = {}

    def check(self, done: Pass) -> None:
        one_lease_at_a_time(done)
        only_a_standing_claim_writes(done)
        a_refusal_changes_nothing(done)
        a_settle_obeys_cancel_attempts_and_start(done)
        an_expiry_obeys_its_caps(done)
        finished_jobs_stay_finished(done)
        an_insert_is_idempotent(done)
        a_key_has_one_live_holder(done)
        self._who_is_sent_away_is_told_who_holds_its_key(done)
        nothing_kept_for_no_time_is_listed(done)
        a_task_keeps_only_so_many(done)
        a_query_moves_what_matches_and_looks_at_few(done)
        self.families.check(done)
        self._every_tick_is_decided_about(done)
        self._ticks_rise(done)
        self._fences_rise(done)
        self._places_are_unique_and_rise(done)
        self.claiming.check(done)
        self._a_repeated_settle_is_known(done)
        self._steps_stay_as_they_were(done)
        a_signal_comes_in_time_or_not_at_all(done)
        everything_is_bounded(done)

    def check_counts(self, jobs: Jobs, counts: Counts, totals: Counts, events: Sequence[EventEntry]) -> None:
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
        is_kept = isinstance(answer, UpkeepResult) and not answer.more
        if is_kept or (self.claiming.is_new(command) and not done.has(Upkeep)):
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
            earlier = done.earlier(job)
            if earlier is not None and job.attempts > earlier.attempts:
                assert job.fence > known, (job, known)
            self.fences[job.id, job.seq] = job.fence

    def _places_are_unique_and_rise(self, done: Pass) -> None:
        """A waiting job has a place of its own; whoever joins the line goes behind everyone who ever did.

        In a queue that keeps the order of its groups, who comes back has the place of its number instead.
        """
        now = {gate.name for gate in done.rules if gate.rule.order is not None}
        ordered, self.ordered = now | self.ordered, now  # a rule may have been put in this pass
        places = [job.place for job in done.after.values() if job.place is not None]
        assert len({abs(place) for place in places}) == len(places), places
        for job in done.after.values():
            assert (job.place is not None) == (job.state is State.WAITING), job
            earlier = done.earlier(job)
            if job.place is not None and (earlier is None or earlier.place != job.place):
                is_back = earlier is not None and bool(job.group) and job.queue in ordered
                is_back &= abs(job.place) == job.seq
                assert is_back or abs(job.place) > self.places, (job, self.places)
                assert (job.place < 0) == (job.order is JobOrder.LIFO), job
        self.places = max([self.places, *map(abs, places)])

    def _who_is_sent_away_is_told_who_holds_its_key(self, done: Pass) -> None:
        """P9: and that is one who has had this key, though he may be gone."""
        for command in done.commands:
            for new in inserted_jobs(command):
                if new.unique is not None:
                    self.keys.setdefault(new.id, set()).add(new.unique.key)
        for command, answer in done.pairs:
            if isinstance(command, Insert) and isinstance(answer, Inserted):
                for job, job_id in zip(command.jobs, answer.ids, strict=True):
                    if job_id != job.id and job.unique is not None:
                        assert job.unique.key in self.keys.get(job_id, ()), (job, job_id)

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
        anew = {
            one
            for command, answer in done.pairs
            if isinstance(command, RerunJobs) and command.from_start and isinstance(answer, Moved)
            for one in answer.moved
        }
        for job_id, old in self.steps.items():
            job = done.after.get(job_id)
            if job is not None and done.earlier(job) is not None and job_id not in anew:
                new = done.steps.get(job_id, ())
                assert len(new) >= len(old), (job, old, new)
                for one, now in zip(old, new, strict=False):
                    assert now == (one if one.at is not None else replace(one, result=now.result, at=now.at))
        self.steps = done.steps


def a_signal_comes_in_time_or_not_at_all(done: Pass) -> None:
    """And puts the job in line that waits for it: in the same pass, so it does so once."""
    for job_id, steps in done.steps.items():
        job = done.after[job_id]
        assert job.steps is not None
        assert [step.n for step in steps] == list(range(job.steps.count)), (job, steps)
        for step in steps:
            if step.kind is StepKind.SIGNAL and step.at is not None:
                assert step.until is None or step.at < step.until, (job, step)
    command, answer = done.sole
    if (
        isinstance(command, SendSignal)
        and answer is WRITTEN
        and done.before[command.job].awaits == command.name
    ):
        assert done.after[command.job].state is State.WAITING, (command, done.after[command.job])


def everything_is_bounded(done: Pass) -> None:
    """P13: what somebody sends is of a size, or refused; errors are few."""
    for job in done.after.values():
        assert len(job.payload.encode()) <= BOUNDS.payload, job
        assert len((job.result or "").encode()) <= BOUNDS.result, job
        assert len(job.errors) <= 20, job
    for step in (one for steps in done.steps.values() for one in steps):
        assert len((step.result or "").encode()) <= BOUNDS.step, step


def one_lease_at_a_time(done: Pass) -> None:
    """P3: a claim that stands ends by its worker, a cancel or removal, or with a worker known to be dead."""
    settled = {command.ref for command in done.commands if isinstance(command, Settle)}
    dead = {worker for command in done.commands if isinstance(command, Upkeep) for worker in command.dead}
    ended = done.moved(CancelJobs) | done.moved(RemoveJobs)
    for job in done.before.values():
        ref = Ref(job.id, job.fence)
        is_over = ref in settled or job.worker in dead or job.id in ended
        if not done.stands(ref) or is_over or (job.parents and done.has(CancelJobs)):  # with its parent
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
            case Renew(refs=refs), Renewed(acks=marks):
                for ref, mark in zip(refs, marks, strict=True):
                    assert mark is not HELD or done.stands(ref), (ref, done.before.get(ref.job))


def a_refusal_changes_nothing(done: Pass) -> None:
    """P4, the other half: a stale, repeated or wrong command leaves every job as it was, and no event."""
    command, answer = done.sole
    refused = isinstance(answer, Lost | ErrandryError) or answer is ALREADY
    if isinstance(command, Renew) and isinstance(answer, Renewed):
        refused = all(isinstance(mark, Lost) for mark in answer.acks)
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
        case RetryOutcome() if before.attempts >= before.max_attempts:
            assert after is None or after.state is State.FAILED, (command, after)
        case RetryOutcome():
            assert after is not None
            assert (after.attempts, after.worker) == (before.attempts, None)
            assert after.state in (State.SCHEDULED, State.WAITING), (command, after)
            assert after.errors[-1].attempt == before.attempts
        case SnoozeOutcome() | ReleaseOutcome() | AwaitOutcome() | WaitOutcome() if (
            after is not None and not after.finished
        ):
            assert after.attempts == before.attempts - 1, (command, after)
            assert after.lease_until is None


def an_expiry_obeys_its_caps(done: Pass) -> None:
    """P6: no job goes on whose handler has lost its worker too often, or on its last attempt.

    One that may go on still ends if it was canceled, if its parent ended, or if its time is over.
    """
    for job in done.after.values():
        before = done.earlier(job)
        assert job.finished or job.releases <= 20, job
        if before is None or job.crashes <= before.crashes:
            continue
        spent = before.attempts >= before.max_attempts or job.crashes >= job.max_crashes
        is_canceled = job.reason is Reason.CANCELED and (before.cancel_requested or done.has(CancelJobs))
        is_lapsed = job.reason is Reason.DEADLINE and job.deadline is not None and job.deadline <= done.now
        with_parent = job.reason is Reason.CHILD_FAILED and job.parents > 0
        assert job.finished == (spent or is_canceled or is_lapsed or with_parent), (before, job)
        assert job.finished or not before.cancel_requested, (before, job)
        assert any(error.kind is Reason.WORKER_LOST for error in job.errors)


def finished_jobs_stay_finished(done: Pass) -> None:
    """P7: a finished job changes by a rerun or a forced cancel, and goes by removal, by hand or by age.

    A rerun brings back its family too, where it ended only because of another one; and a job that comes
    later may wait for one that has ended, which then counts it among its parents.
    """
    moved = done.moved(RerunJobs) | done.moved(CancelJobs) | done.moved(RemoveJobs)
    prunes = any(isinstance(one, Upkeep) and one.prune for one in done.commands)
    for job in done.before.values():
        after = done.after.get(job.id)
        if not job.finished or after == job or job.id in moved:
            continue
        if job.reason is Reason.CHILD_FAILED and done.has(RerunJobs):
            continue
        if after is not None and after.seq == job.seq:
            assert after == replace(job, parents=after.parents), (job, after)
            assert after.parents > job.parents, (job, after)
            assert _is_tied(done, job), (job, after)
        else:
            assert prunes, (job, after)
            assert job.expires_at is not None, (job, after)


def _is_tied(done: Pass, job: JobRecord) -> bool:
    """Whether somebody may have been made to wait for a job that was there."""
    for command, answer in done.pairs:
        match command, answer:
            case Insert(edges=edges), Inserted(existed=existed) if edges and job.id in existed:
                return True
            case Settle(outcome=AwaitOutcome(edges=edges)), mark if edges and mark is WRITTEN:
                return True
    return False


def an_insert_is_idempotent(done: Pass) -> None:
    """What is there stays as it is: it may only get new arguments, new parents, or make room for others.

    One that becomes a child of a flow goes with it, if that fails at once."""
    replaced: set[str] = set()
    for command, answer in done.pairs:
        if isinstance(command, Insert) and isinstance(answer, Inserted):
            replaced |= answer.replaced
            assert answer.existed >= {job.id for job in command.jobs if job.id in done.before}
            for new, job_id in zip(command.jobs, answer.ids, strict=True):
                assert job_id == new.id or new.unique is not None, (new, job_id)
    sole, _ = done.sole
    if isinstance(sole, Insert):
        changed = [job for job in done.before.values() if done.after.get(job.id) != job]
        ended = [job for job in changed if _is_dropped(done, job) or _is_swept(done, job)]
        for job in changed:
            after = done.after.get(job.id)
            is_parent_more = after is not None and after == replace(job, parents=after.parents)
            is_family = bool(ended and (job.children or job.parents))
            is_tied = is_parent_more and _is_tied(done, job)
            assert job.id in replaced or job in ended or is_family or is_tied, (job, after)


def _is_dropped(done: Pass, job: JobRecord) -> bool:
    """Whether it had to make room: its queue says so, and it was in line."""
    after = done.after.get(job.id)
    full = {gate.name for gate in done.rules if gate.rule.overflow is Overflow.DROP_OLDEST}
    is_gone = after is None or after.reason is Reason.DROPPED
    return is_gone and job.queue in full and job.state is State.WAITING


def _is_swept(done: Pass, job: JobRecord) -> bool:
    """Whether it became the child of a flow that failed at once, with another child that had failed."""
    after = done.after.get(job.id)
    is_gone = after is None and (job.keep or Keep()).canceled == 0
    is_canceled = after is not None and (after.state, after.reason) == (State.CANCELED, Reason.CHILD_FAILED)
    return _is_tied(done, job) and job.state not in IN_HAND and (is_gone or is_canceled)


def a_key_has_one_live_holder(done: Pass) -> None:
    """P9: of jobs that hold a key while they are alive, one is; who is to raise is never sent away."""
    alive = [job for job in done.after.values() if not job.finished]
    uniques = [(job, job.unique) for job in alive if job.unique is not None]
    held = [_slot(job, unique) for job, unique in uniques if unique.scope is UniqueScope.ALIVE]
    assert len(set(held)) == len(held), alive
    command, answer = done.sole
    if not isinstance(command, Insert):
        return
    if isinstance(answer, DuplicateJob):
        assert any(job.on_conflict is Conflict.RAISE for job in command.jobs), command
    elif isinstance(answer, Inserted):
        ids = dict(zip((job.id for job in command.jobs), answer.ids, strict=True))
        for job in command.jobs:
            if ids[job.id] != job.id:
                assert job.id not in done.after, (job, answer)
                assert job.on_conflict is not Conflict.RAISE, (job, answer)
                _nobody_who_has_ended_holds_it(done, job, ids[job.id])
            elif job.id not in done.after:
                assert _is_gone_at_once(done, command, answer, job), (job, answer)


def _nobody_who_has_ended_holds_it(done: Pass, job: NewJob, holder_id: str) -> None:
    """A key held while alive is free with the end of its job. Another job may have the id of a holder."""
    holder = done.after.get(holder_id)
    if holder is None or holder.unique is None or job.unique is None or not holder.finished:
        return
    if _slot(holder, holder.unique) == _slot(job, job.unique):
        assert holder.unique.scope is not UniqueScope.ALIVE, (job, holder)


def _is_gone_at_once(done: Pass, command: Insert, answer: Inserted, job: NewJob) -> bool:
    """Whether a job may have been handed in under its own id and not be there.

    Its key is held by one of its id that is gone; its parent is there, and it was; or a child that was
    there had failed, and the flow has ended at once.
    """
    ids = dict(zip((one.id for one in command.jobs), answer.ids, strict=True))
    if job.id in done.before:
        return True  # `an_insert_is_idempotent` says how that may be
    if job.id in answer.existed:
        old = any(edge.child == job.id and ids[edge.parent] in answer.existed for edge in command.edges)
        return old or job.unique is not None
    keep = job.keep or Keep()
    fails = [edge for edge in command.edges if edge.parent == job.id]
    is_removed = any(edge.policy is Policy.REMOVE or keep.failed == 0 for edge in fails)
    is_canceled = keep.canceled == 0 and any(edge.child == job.id for edge in command.edges)
    return bool(answer.existed) and (is_removed or is_canceled)


def _slot(job: JobRecord | NewJob, unique: UniqueKey) -> tuple[object, ...]:
    """Keys that are held through a day or an hour are others on other days."""
    return unique.key, job.queue if unique.per_queue else None, unique.scope if unique.is_aligned else None


def nothing_kept_for_no_time_is_listed(done: Pass) -> None:
    for job in done.after.values():
        if job.finished:
            assert getattr(job.keep or Keep(), job.state) > 0, job


def a_task_keeps_only_so_many(done: Pass) -> None:
    """P13: after an upkeep that was not cut short, only the newest of those that say how many."""
    command, _ = done.sole
    if not isinstance(command, Upkeep) or not command.prune or command.limit < len(done.before):
        return
    shelves: dict[tuple[str, State], list[JobRecord]] = {}
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
    if not isinstance(command, JobSelection) or command.query is None or not isinstance(answer, Moved):
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


def _is_done(job: JobRecord) -> bool:
    return job.state is State.COMPLETED


_COUNTED = {
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.CANCELED: "canceled",
    EventKind.STALLED: "expired",
    EventKind.REMOVED: "removed",
    EventKind.RETRYING: "retried",
}
