"""The promises of proof.md as checks of one pass: its commands, its answers, the jobs before and after.

They implement each rule a second time and use neither the table nor `core.move`: a rule missing there would
be missing here, too. Most checks apply to every pass, some only to a pass of one command.
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
    ReportTrouble,
    RerunJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
    inserted_jobs,
)
from errandry.core.event import EventKind, trouble_text
from errandry.core.flow import AwaitOutcome, Policy
from errandry.core.gate import GateKey, PutRule, ResetRule
from errandry.core.job import JobRecord, Keep, NewJob
from errandry.core.rule import Overflow
from errandry.core.rule_info import RuleInfo, Source
from errandry.core.schedule import PutSchedule, RemoveSchedule, ResetSchedule, SchedulePlan, ScheduleRecord
from errandry.core.selection import JobSelection
from errandry.core.state import Reason, State
from errandry.core.step import SendSignal, StepKind, StepRecord, WaitOutcome
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.errors import DuplicateJob, ErrandryError
from errandry.store.contract import EventEntry
from tests.model.claims import ClaimPromises
from tests.model.commands import BOUNDS
from tests.model.flows import FlowPromises
from tests.model.passes import HELD_STATES, Jobs, Pass

Counts = Mapping[str, Mapping[str, int]]

AFTER_START = (CompleteOutcome, RetryOutcome, FailOutcome, SnoozeOutcome, AwaitOutcome, WaitOutcome)


class Promises:
    """Checks one pass after the other, and remembers what a check needs from earlier passes."""

    def __init__(self) -> None:
        self.fences: dict[tuple[str, int], int] = {}
        self.places = 0
        self.ordered: set[str] = set()
        self.claims = ClaimPromises()
        self.flows = FlowPromises()
        self.keys: dict[str, set[str]] = {}
        self.settled: dict[tuple[Ref, int], type] = {}
        self.ended: dict[tuple[str, str], int] = {}
        self.ticks: dict[str, ScheduleRecord] = {}
        self.steps: Mapping[str, Sequence[StepRecord]] = {}
        self.rules: dict[GateKey, RuleInfo] = {}
        self.plans: dict[str, SchedulePlan] = {}

    def check(self, pass_: Pass) -> None:
        one_lease_at_a_time(pass_)
        only_a_valid_claim_writes(pass_)
        a_refusal_changes_nothing(pass_)
        a_settle_obeys_cancel_attempts_and_start(pass_)
        a_settle_records_since_when_a_job_is_unhandled(pass_)
        an_expiry_obeys_its_limits(pass_)
        finished_jobs_stay_finished(pass_)
        an_insert_is_idempotent(pass_)
        a_key_has_one_live_holder(pass_)
        self._a_duplicate_gets_a_holder_of_its_key(pass_)
        a_job_with_retention_0_is_gone(pass_)
        a_task_keeps_at_most_its_number_of_jobs(pass_)
        a_query_moves_matching_jobs_and_scans_few(pass_)
        self.flows.check(pass_)
        self._no_due_tick_is_left(pass_)
        self._ticks_rise(pass_)
        self._values_of_operators_stay(pass_)
        self._fences_rise(pass_)
        self._places_are_unique_and_rise(pass_)
        self.claims.check(pass_)
        self._a_repeated_settle_answers_already(pass_)
        self._finished_steps_do_not_change(pass_)
        a_signal_is_accepted_only_in_time(pass_)
        sizes_are_limited(pass_)
        each_report_has_its_events(pass_)

    def check_counts(self, jobs: Jobs, counts: Counts, totals: Counts, events: Sequence[EventEntry]) -> None:
        """P8: counters equal a recount, no job is lost, and totals still count jobs that were removed."""
        recount: dict[str, dict[str, int]] = {}
        for job in jobs.values():
            states = recount.setdefault(job.queue, {})
            states[job.state] = states.get(job.state, 0) + 1
        assert {queue: states for queue, states in counts.items() if states} == recount
        for queue, total in totals.items():
            present = sum(counts.get(queue, {}).values())
            added = total.get("inserted", 0) + total.get("moved_in", 0)
            removed = total.get("removed", 0) + total.get("moved_out", 0)
            assert added == present + removed, (queue, total, counts)
        for entry in events:
            if entry.event.kind in _COUNTED:
                key = entry.event.queue, _COUNTED[entry.event.kind]
                self.ended[key] = self.ended.get(key, 0) + 1
        names = _COUNTED.values()
        assert self.ended == {
            (q, name): n for q, t in totals.items() for name, n in t.items() if name in names
        }

    def _no_due_tick_is_left(self, pass_: Pass) -> None:
        """After a claim, or an upkeep that did not stop at its limit, no schedule has a due tick."""
        command, answer = pass_.commands[-1], pass_.answers[-1]
        is_complete_upkeep = isinstance(answer, UpkeepResult) and not answer.more
        if is_complete_upkeep or (self.claims.is_new(command) and not pass_.has(Upkeep)):
            due = [s for s in pass_.schedules if s.due_at is not None and s.due_at <= pass_.now]
            assert not due, due
        for schedule in pass_.schedules:
            assert schedule.tick is None or schedule.paused is None, schedule

    def _ticks_rise(self, pass_: Pass) -> None:
        """P11: each tick is decided only once, even if the clock or the schedule changes."""
        for schedule in pass_.schedules:
            earlier = self.ticks.get(schedule.name)
            if earlier is not None and earlier.created_at == schedule.created_at:
                assert schedule.runs >= earlier.runs, (earlier, schedule)
                assert schedule.missed >= earlier.missed, (earlier, schedule)
                assert (schedule.last or 0.0) >= (earlier.last or 0.0), (earlier, schedule)
            assert schedule.tick is None or schedule.tick > (schedule.last or 0.0), schedule
        self.ticks = {schedule.name: schedule for schedule in pass_.schedules}

    def _values_of_operators_stay(self, pass_: Pass) -> None:
        """What an operator has set stays in force, whatever code declares, until an operator changes it."""
        rules = {gate.key: gate.rule_info for gate in pass_.rules if gate.rule_info is not None}
        if not pass_.has(PutRule, ResetRule):
            for key, earlier in self.rules.items():
                for field in earlier.operator_fields:
                    assert field in rules[key].operator_fields, (earlier, rules[key])
                    assert getattr(rules[key].rule, field) == getattr(earlier.rule, field), (
                        earlier,
                        rules[key],
                    )
        plans = {
            schedule.name: schedule.plan for schedule in pass_.schedules if schedule.source is Source.OPERATOR
        }
        if not pass_.has(PutSchedule, ResetSchedule, RemoveSchedule):
            for name, plan in self.plans.items():
                assert plans.get(name) == plan, (name, plan, plans.get(name))
        self.rules, self.plans = rules, plans

    def _fences_rise(self, pass_: Pass) -> None:
        """P5, for as long as the record exists."""
        for job in pass_.after.values():
            known = self.fences.get((job.id, job.seq), 0)
            assert job.fence >= known, (job, known)
            earlier = pass_.earlier(job)
            if earlier is not None and job.attempts > earlier.attempts:
                assert job.fence > known, (job, known)
            self.fences[job.id, job.seq] = job.fence

    def _places_are_unique_and_rise(self, pass_: Pass) -> None:
        """Every waiting job has a unique place; a new one is greater than all places before.

        In a queue with the rule `order`, a job of a group that returns gets the place of its `seq` instead.
        """
        now = {gate.name for gate in pass_.rules if gate.rule.on_return is not None}
        ordered, self.ordered = now | self.ordered, now  # a rule may have been set in this pass
        places = [job.place for job in pass_.after.values() if job.place is not None]
        assert len({abs(place) for place in places}) == len(places), places
        for job in pass_.after.values():
            assert (job.place is not None) == (job.state is State.WAITING), job
            earlier = pass_.earlier(job)
            if job.place is not None and (earlier is None or earlier.place != job.place):
                is_back = earlier is not None and bool(job.group) and job.queue in ordered
                is_back &= abs(job.place) == job.seq
                assert is_back or abs(job.place) > self.places, (job, self.places)
                assert (job.place < 0) == job.lifo, job
        self.places = max([self.places, *map(abs, places)])

    def _a_duplicate_gets_a_holder_of_its_key(self, pass_: Pass) -> None:
        """P9: if a job is not inserted, the answer is the id of a job that had its key, even if removed."""
        for command in pass_.commands:
            for new in inserted_jobs(command):
                if new.unique is not None:
                    self.keys.setdefault(new.id, set()).add(new.unique.key)
        for command, answer in pass_.pairs:
            if isinstance(command, Insert) and isinstance(answer, Inserted):
                for job, job_id in zip(command.jobs, answer.ids, strict=True):
                    if job_id != job.id and job.unique is not None:
                        assert job.unique.key in self.keys.get(job_id, ()), (job, job_id)

    def _a_repeated_settle_answers_already(self, pass_: Pass) -> None:
        """The answer to a repeated outcome is ALREADY, until the job is claimed again or removed."""
        for command, answer in pass_.pairs:
            if not isinstance(command, Settle):
                continue
            job, outcome = pass_.before.get(command.ref.job), type(command.outcome)
            if job is None or job.fence != command.ref.fence:
                continue
            if self.settled.get((command.ref, job.seq)) is outcome and not pass_.stands(command.ref):
                assert answer is ALREADY, (command, answer, job)
            if answer is WRITTEN:
                self.settled[command.ref, job.seq] = outcome

    def _finished_steps_do_not_change(self, pass_: Pass) -> None:
        """A finished step, sleep or signal does not change, unless its job is rerun from the start."""
        from_start = {
            job_id
            for command, answer in pass_.pairs
            if isinstance(command, RerunJobs) and command.from_start and isinstance(answer, Moved)
            for job_id in answer.moved
        }
        for job_id, old in self.steps.items():
            job = pass_.after.get(job_id)
            if job is not None and pass_.earlier(job) is not None and job_id not in from_start:
                new = pass_.steps.get(job_id, ())
                assert len(new) >= len(old), (job, old, new)
                for before, after in zip(old, new, strict=False):
                    is_open = before.at is None
                    expected = replace(before, result=after.result, at=after.at) if is_open else before
                    assert after == expected
        self.steps = pass_.steps


def a_signal_is_accepted_only_in_time(pass_: Pass) -> None:
    """A signal comes before the end of the wait, and wakes the job that waits for it in the same pass."""
    for job_id, steps in pass_.steps.items():
        job = pass_.after[job_id]
        assert job.steps is not None
        assert [step.n for step in steps] == list(range(job.steps.count)), (job, steps)
        for step in steps:
            if step.kind is StepKind.SIGNAL and step.at is not None:
                assert step.until is None or step.at < step.until, (job, step)
    command, answer = pass_.single
    if (
        isinstance(command, SendSignal)
        and answer is WRITTEN
        and pass_.before[command.job].awaited_signal == command.name
    ):
        assert pass_.after[command.job].state is State.WAITING, (command, pass_.after[command.job])


def sizes_are_limited(pass_: Pass) -> None:
    """P13: payloads, results and steps have a maximum size, and errors a maximum number."""
    for job in pass_.after.values():
        assert len(job.payload.encode()) <= BOUNDS.payload, job
        assert len((job.result or "").encode()) <= BOUNDS.result, job
        assert len(job.errors) <= 20, job
    for step in (step for steps in pass_.steps.values() for step in steps):
        assert len((step.result or "").encode()) <= BOUNDS.step, step


def each_report_has_its_events(pass_: Pass) -> None:
    """Each text of reported trouble is the text of one `error` event, and there are no other such events."""
    reports = [command for command in pass_.commands if isinstance(command, ReportTrouble)]
    texts = [trouble_text(report.worker, text) for report in reports for text in report.texts]
    events = [entry.event for entry in pass_.events if entry.event.kind is EventKind.ERROR]
    assert [event.text for event in events] == texts, (reports, events)


def one_lease_at_a_time(pass_: Pass) -> None:
    """P3: a valid claim is ended only by its worker, a cancel, a removal, or because its worker is dead."""
    settled = {command.ref for command in pass_.commands if isinstance(command, Settle)}
    dead = {worker for command in pass_.commands if isinstance(command, Upkeep) for worker in command.dead}
    ended = pass_.moved(CancelJobs) | pass_.moved(RemoveJobs)
    for job in pass_.before.values():
        ref = Ref(job.id, job.fence)
        is_over = ref in settled or job.worker in dead or job.id in ended
        if not pass_.stands(ref) or is_over or (job.parents and pass_.has(CancelJobs)):  # of its parent
            continue
        after = pass_.after.get(job.id)
        assert after is not None, job
        assert (after.fence, after.worker) == (job.fence, job.worker), (job, after)
        assert after.state in HELD_STATES, (job, after)


def only_a_valid_claim_writes(pass_: Pass) -> None:
    """P4, first half: a worker's command is written only under a valid claim."""
    for command, answer in pass_.pairs:
        match command, answer:
            case (
                (Start(ref=ref) | Note(ref=ref) | PutStep(ref=ref) | Settle(ref=ref)),
                ack,
            ) if ack is WRITTEN:
                assert pass_.stands(ref), (command, pass_.before.get(ref.job))
            case Renew(refs=refs), Renewed(acks=acks):
                for ref, ack in zip(refs, acks, strict=True):
                    assert ack is not HELD or pass_.stands(ref), (ref, pass_.before.get(ref.job))


def a_refusal_changes_nothing(pass_: Pass) -> None:
    """P4, second half: a stale, repeated or invalid command changes no job and makes no event."""
    command, answer = pass_.single
    refused = isinstance(answer, Lost | ErrandryError) or answer is ALREADY
    if isinstance(command, Renew) and isinstance(answer, Renewed):
        refused = all(isinstance(ack, Lost) for ack in answer.acks)
    if refused:
        assert pass_.before == pass_.after, (command, answer)
        assert not pass_.events


def a_settle_obeys_cancel_attempts_and_start(pass_: Pass) -> None:
    command, answer = pass_.single
    if not isinstance(command, Settle) or answer is not WRITTEN:
        return
    outcome = command.outcome
    before, after = pass_.before[command.ref.job], pass_.after.get(command.ref.job)
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
        case ReleaseOutcome(crashed=True) if before.state is State.RUNNING and after is not None:
            assert (after.attempts, after.crashes) == (before.attempts, before.crashes + 1), (command, after)
        case SnoozeOutcome() | ReleaseOutcome() | AwaitOutcome() | WaitOutcome() if (
            after is not None and not after.finished
        ):
            assert after.attempts == before.attempts - 1, (command, after)
            assert after.lease_until is None


def a_settle_records_since_when_a_job_is_unhandled(pass_: Pass) -> None:
    """Since the first release by a worker that could not run it, until a handler has begun."""
    command, answer = pass_.single
    if not isinstance(command, Settle) or answer is not WRITTEN:
        return
    before, after = pass_.before[command.ref.job], pass_.after.get(command.ref.job)
    if after is None:
        return
    if after.finished:
        expected = None
    elif isinstance(command.outcome, ReleaseOutcome) and command.outcome.unhandled:
        expected = pass_.now if before.unhandled_since is None else before.unhandled_since
        assert after.releases == before.releases, (command, after)
    else:
        expected = None if before.state is State.RUNNING else before.unhandled_since
    assert after.unhandled_since == expected, (command, before, after)


def an_expiry_obeys_its_limits(pass_: Pass) -> None:
    """P6: a job ends if its worker was lost too often, or in its last attempt.

    At the cap of its crashes it may wait for the proof that its worker has died. It also ends if it was
    canceled, if its parent ended, or if its deadline has passed.
    """
    rerun = pass_.moved(RerunJobs)
    for job in pass_.after.values():
        before = pass_.earlier(job)
        assert job.finished or job.releases < 1_000, job
        if before is None or job.crashes <= before.crashes or job.id in rerun:
            continue
        waits_for_proof = not job.finished and job.lost_by is not None
        is_capped = job.crashes >= job.max_crashes and not waits_for_proof
        spent = before.attempts >= before.max_attempts or is_capped
        is_canceled = job.reason is Reason.CANCELED and (before.cancel_requested or pass_.has(CancelJobs))
        is_lapsed = job.reason is Reason.DEADLINE and job.deadline is not None and job.deadline <= pass_.now
        with_parent = job.reason is Reason.CHILD_FAILED and job.parents > 0
        assert job.finished == (spent or is_canceled or is_lapsed or with_parent), (before, job)
        assert job.finished or not before.cancel_requested, (before, job)
        assert any(error.kind is Reason.WORKER_LOST for error in job.errors)


def finished_jobs_stay_finished(pass_: Pass) -> None:
    """P7: only a rerun or a forced cancel changes a finished job, and only an operator or age removes it.

    A rerun also reruns jobs of the flow that ended only because of the rerun job. A new job may wait for a
    finished one, which then has one more parent.
    """
    moved = pass_.moved(RerunJobs) | pass_.moved(CancelJobs) | pass_.moved(RemoveJobs)
    prunes = any(isinstance(command, Upkeep) and command.prune for command in pass_.commands)
    for job in pass_.before.values():
        after = pass_.after.get(job.id)
        if not job.finished or after == job or job.id in moved:
            continue
        if job.reason is Reason.CHILD_FAILED and pass_.has(RerunJobs):
            continue
        if after is not None and after.seq == job.seq:
            assert after == replace(job, parents=after.parents), (job, after)
            assert after.parents > job.parents, (job, after)
            assert _may_have_new_parents(pass_, job), (job, after)
        else:
            assert prunes, (job, after)
            assert job.expires_at is not None, (job, after)


def _may_have_new_parents(pass_: Pass, job: JobRecord) -> bool:
    """Whether the pass may have made new parents wait for an existing job."""
    for command, answer in pass_.pairs:
        match command, answer:
            case Insert(edges=edges), Inserted(existed=existed) if edges and job.id in existed:
                return True
            case Settle(outcome=AwaitOutcome(edges=edges)), ack if edges and ack is WRITTEN:
                return True
    return False


def an_insert_is_idempotent(pass_: Pass) -> None:
    """An insert changes an existing job only in four ways.

    The job gets new arguments (on conflict `replace`) or new parents, is dropped to make room, or becomes a
    child of a flow that fails at once and ends with it.
    """
    replaced: set[str] = set()
    for command, answer in pass_.pairs:
        if isinstance(command, Insert) and isinstance(answer, Inserted):
            replaced |= answer.replaced
            assert answer.existed >= {job.id for job in command.jobs if job.id in pass_.before}
            for new, job_id in zip(command.jobs, answer.ids, strict=True):
                assert job_id == new.id or new.unique is not None, (new, job_id)
    command_of_pass, _ = pass_.single
    if isinstance(command_of_pass, Insert):
        changed = [job for job in pass_.before.values() if pass_.after.get(job.id) != job]
        ended = [job for job in changed if _is_dropped(pass_, job) or _ended_with_a_flow(pass_, job)]
        for job in changed:
            after = pass_.after.get(job.id)
            only_parents_changed = after is not None and after == replace(job, parents=after.parents)
            is_of_ended_flow = bool(ended and (job.children or job.parents))
            has_new_parents = only_parents_changed and _may_have_new_parents(pass_, job)
            assert job.id in replaced or job in ended or is_of_ended_flow or has_new_parents, (job, after)


def _is_dropped(pass_: Pass, job: JobRecord) -> bool:
    """Whether the job was dropped to make room in its queue."""
    after = pass_.after.get(job.id)
    full = {gate.name for gate in pass_.rules if gate.rule.overflow is Overflow.DROP_OLDEST}
    is_gone = after is None or after.reason is Reason.DROPPED
    return is_gone and job.queue in full and job.state is State.WAITING


def _ended_with_a_flow(pass_: Pass, job: JobRecord) -> bool:
    """Whether the job became a child of a flow that failed at once because of another, failed child."""
    after = pass_.after.get(job.id)
    is_gone = after is None and (job.keep or Keep()).canceled == 0
    is_canceled = after is not None and (after.state, after.reason) == (State.CANCELED, Reason.CHILD_FAILED)
    return _may_have_new_parents(pass_, job) and job.state not in HELD_STATES and (is_gone or is_canceled)


def a_key_has_one_live_holder(pass_: Pass) -> None:
    """P9: one live job at a time holds a key of the scope `alive`. On conflict `raise` the insert fails."""
    alive = [job for job in pass_.after.values() if not job.finished]
    uniques = [(job, job.unique) for job in alive if job.unique is not None]
    held = [_slot(job, unique) for job, unique in uniques if unique.scope is UniqueScope.ALIVE]
    assert len(set(held)) == len(held), alive
    command, answer = pass_.single
    if not isinstance(command, Insert):
        return
    if isinstance(answer, DuplicateJob):
        assert any(job.on_conflict is Conflict.RAISE for job in command.jobs), command
    elif isinstance(answer, Inserted):
        ids = dict(zip((job.id for job in command.jobs), answer.ids, strict=True))
        for job in command.jobs:
            if ids[job.id] != job.id:
                assert job.id not in pass_.after, (job, answer)
                assert job.on_conflict is not Conflict.RAISE, (job, answer)
                _no_ended_job_holds_the_key(pass_, job, ids[job.id])
            elif job.id not in pass_.after:
                assert _may_end_at_once(pass_, command, answer, job), (job, answer)


def _no_ended_job_holds_the_key(pass_: Pass, job: NewJob, holder_id: str) -> None:
    """The end of a job frees its key of the scope `alive`.

    Another job may have the id of the holder since.
    """
    holder = pass_.after.get(holder_id)
    if holder is None or holder.unique is None or job.unique is None or not holder.finished:
        return
    if _slot(holder, holder.unique) == _slot(job, job.unique):
        assert holder.unique.scope is not UniqueScope.ALIVE, (job, holder)


def _may_end_at_once(pass_: Pass, command: Insert, answer: Inserted, job: NewJob) -> bool:
    """Whether an inserted job may be missing after the pass although the answer has its own id.

    Either a removed job of the same id holds its key; or its parent existed before; or an existing child had
    failed, so that the flow ended at once.
    """
    ids = dict(zip((new.id for new in command.jobs), answer.ids, strict=True))
    if job.id in pass_.before:
        return True  # `an_insert_is_idempotent` checks this case
    if job.id in answer.existed:
        old = any(edge.child == job.id and ids[edge.parent] in answer.existed for edge in command.edges)
        return old or job.unique is not None
    keep = job.keep or Keep()
    fails = [edge for edge in command.edges if edge.parent == job.id]
    is_removed = any(edge.policy is Policy.REMOVE or keep.failed == 0 for edge in fails)
    is_canceled = keep.canceled == 0 and any(edge.child == job.id for edge in command.edges)
    return bool(answer.existed) and (is_removed or is_canceled)


def _slot(job: JobRecord | NewJob, unique: UniqueKey) -> tuple[object, ...]:
    """The key with all that makes it a different one, except the calendar period."""
    return unique.key, job.queue if unique.per_queue else None, unique.scope if unique.is_aligned else None


def a_job_with_retention_0_is_gone(pass_: Pass) -> None:
    for job in pass_.after.values():
        if job.finished:
            assert getattr(job.keep or Keep(), job.state) > 0, job


def a_task_keeps_at_most_its_number_of_jobs(pass_: Pass) -> None:
    """P13: after a complete upkeep, only the newest jobs remain of those with a maximum number to keep."""
    command, _ = pass_.single
    if not isinstance(command, Upkeep) or not command.prune or command.limit < len(pass_.before):
        return
    kept: dict[tuple[str, State], list[JobRecord]] = {}
    for job in sorted(pass_.after.values(), key=lambda job: (job.finished_at or 0.0, job.seq)):
        keep = job.keep or Keep()
        if job.finished and (keep.last_completed or keep.last_failed or keep.last_canceled):
            kept.setdefault((job.task, job.state), []).append(job)
    for (_, state), jobs in kept.items():
        last = getattr(jobs[-1].keep, f"last_{state}")
        assert last is None or len(jobs) <= last, (state, jobs)
        assert all(job.expires_at is None or job.expires_at > pass_.now for job in jobs), jobs


def a_query_moves_matching_jobs_and_scans_few(pass_: Pass) -> None:
    """A command moves only jobs that match its query, and scans at most `scan` jobs for a slice."""
    command, answer = pass_.single
    if not isinstance(command, JobSelection) or command.query is None or not isinstance(answer, Moved):
        return
    under = command.below or 2**63
    for job_id in answer.moved:
        job = pass_.before[job_id]
        assert command.query.matches(job, pass_.now), (command, job)
        if not command.ids and "id" not in dict(command.query.within):
            newer = [other for other in pass_.before.values() if job.seq < other.seq < under]
            scanned = [other for other in newer if _section(other) == _section(job)]
            assert job.seq < under, (command, job)
            assert len(scanned) < BOUNDS.scan, (command, job, scanned)


def _section(job: JobRecord) -> tuple[bool, bool]:
    """A store scans unfinished, completed and other finished jobs separately."""
    return job.finished, job.state is State.COMPLETED


_COUNTED = {
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.CANCELED: "canceled",
    EventKind.STALLED: "expired",
    EventKind.REMOVED: "removed",
    EventKind.RETRYING: "retried",
}
