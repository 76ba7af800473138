"""Leases and fences: who holds a job, for how long, and what a worker that lost it can still do."""

import pytest
from msgspec.structs import replace

from errandry.core.answer import ALREADY, CANCEL, HELD, WRITTEN, Answer, Claims, LossCause, Lost, Renewed
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    FailOutcome,
    GiveUpOutcome,
    Note,
    Outcome,
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
)
from errandry.core.job import JobRecord, LogLine, Progress
from errandry.core.state import Reason, State
from errandry.core.step import WaitOutcome
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

OUTCOMES: dict[str, Outcome] = {
    "complete": CompleteOutcome("1"),
    "retry": RetryOutcome(),
    "fail": FailOutcome(),
    "snooze": SnoozeOutcome(10.0),
    "wait": WaitOutcome("go", 10.0),
    "release": ReleaseOutcome(),
    "give_up": GiveUpOutcome(),
}
FENCED = ("start", "renew", "note", "step", *OUTCOMES)


def fenced(kind: str, held: Ref) -> Command:
    """A fenced command of each kind."""
    match kind:
        case "start":
            return Start(held)
        case "renew":
            return Renew((held,))
        case "note":
            return Note(held, Progress(0.5), (LogLine(1.0, "line"),))
        case "step":
            return PutStep(held, "charge")
        case _:
            return Settle(held, OUTCOMES[kind])


def lost(kind: str, cause: LossCause) -> Answer:
    return Renewed((Lost(cause),)) if kind == "renew" else Lost(cause)


class Leasing:
    async def test_a_renewed_lease_counts_from_the_renewal(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(20)

        assert await requests.renew(store, ref(job), lease=40.0) == (HELD,)

        assert await requests.current(store, job) == replace(
            job, lease_until=clock.time() + 40, updated_at=clock.time()
        )

    async def test_a_renewed_job_outlives_its_first_lease(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        for _ in range(5):
            clock.advance(20)
            assert await requests.renew(store, ref(job), lease=30.0) == (HELD,)

        assert await requests.order(store) == []
        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_leases_are_renewed_together_and_answered_one_by_one(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        short, long = await given.claimed(lease=10.0), await given.running(lease=60.0)
        asked = await given.running(lease=60.0)
        await requests.operate(store, CancelJobs(ids=(asked.id,)))
        stale = Ref(long.id, long.fence - 1)
        clock.advance(10)

        marks = await requests.renew(store, ref(long), ref(short), ref(asked), stale, Ref("nobody", 1))

        assert marks == (
            HELD,
            Lost(LossCause.EXPIRED),
            CANCEL,
            Lost(LossCause.OTHER_FENCE),
            Lost(LossCause.NOT_HELD),
        )

    async def test_an_empty_renewal_renews_nothing(self, store: Store) -> None:
        assert await requests.renew(store) == ()

    @pytest.mark.parametrize(("after", "answer"), [(29.75, WRITTEN), (30.0, Lost(LossCause.EXPIRED))])
    async def test_a_lease_has_run_out_at_the_moment_it_ends(
        self, store: Store, clock: FakeClock, given: Given, after: float, answer: Answer
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(after)

        assert await requests.settle(store, job, CompleteOutcome()) == answer

    @pytest.mark.parametrize("kind", FENCED)
    async def test_an_expired_claim_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, kind: str
    ) -> None:
        job = await given.brought(State.CLAIMED if kind == "start" else State.RUNNING, lease=30.0)
        clock.advance(30)
        before = await requests.everything(store)

        assert await requests.one(store, fenced(kind, ref(job))) == lost(kind, LossCause.EXPIRED)
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_claim_that_was_expired_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, kind: str
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(30)
        await requests.upkeep(store)
        before = await requests.everything(store)

        assert await requests.one(store, fenced(kind, ref(job))) == lost(kind, LossCause.NOT_HELD)
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("start", [False, True], ids=["claimed", "running"])
    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_claim_that_passed_to_another_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, kind: str, start: bool
    ) -> None:
        stale = await given.running(lease=30.0, worker="old")
        clock.advance(30)
        await given.taken(stale, worker="new", start=start)
        before = await requests.everything(store)

        assert await requests.one(store, fenced(kind, ref(stale))) == lost(kind, LossCause.OTHER_FENCE)
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_fence_nobody_was_given_changes_nothing(
        self, store: Store, given: Given, kind: str
    ) -> None:
        job = await given.running()
        before = await requests.everything(store)

        for fence in (0, job.fence - 1, job.fence + 1, 2**63 - 1):
            answer = await requests.one(store, fenced(kind, Ref(job.id, fence)))
            assert answer == lost(kind, LossCause.OTHER_FENCE)
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("kind", FENCED)
    async def test_a_forced_removal_makes_the_fence_void(self, store: Store, given: Given, kind: str) -> None:
        job = await given.running()
        await requests.operate(store, RemoveJobs(ids=(job.id,), force=True))
        before = await requests.everything(store)

        assert await requests.one(store, fenced(kind, ref(job))) == lost(kind, LossCause.NOT_HELD)
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("kind", ["complete", "retry", "fail", "snooze"])
    async def test_a_job_that_has_not_started_cannot_end(self, store: Store, given: Given, kind: str) -> None:
        job = await given.claimed()
        before = await requests.everything(store)

        assert await requests.one(store, fenced(kind, ref(job))) == Lost(LossCause.NOT_HELD)
        assert await requests.everything(store) == before

    async def test_a_settle_that_came_too_late_loses_to_the_claim_of_its_own_pass(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(30)

        answer, taken = await store.commit(
            [Settle(ref(job), CompleteOutcome()), Claim(worker="new", nonce="nonce")]
        )

        assert answer == Lost(LossCause.EXPIRED)
        assert isinstance(taken, Claims)
        assert [(one.id, one.worker) for one in taken.jobs] == [(job.id, "new")]


class Starting:
    async def test_a_claimed_job_starts(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await given.claimed(lease=30.0)
        clock.advance(5)

        assert await requests.one(store, Start(ref(job))) is WRITTEN

        now = clock.time()
        after = replace(job, state=State.RUNNING, started_at=now, updated_at=now)
        assert await requests.current(store, job) == after

    async def test_a_second_start_answers_already_and_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed()
        await requests.one(store, Start(ref(job)))
        clock.advance(5)
        before = await requests.everything(store)

        assert await requests.one(store, Start(ref(job))) is ALREADY
        assert await requests.everything(store) == before

    async def test_a_job_canceled_while_claimed_never_starts(self, store: Store, given: Given) -> None:
        job = await given.canceled()
        before = await requests.everything(store)

        assert await requests.one(store, Start(ref(job))) is CANCEL
        assert await requests.renew(store, ref(job)) == (CANCEL,)
        assert await requests.everything(store) == before

    async def test_the_worker_of_a_running_job_learns_of_a_cancel_and_keeps_its_lease(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        clock.advance(20)

        assert await requests.renew(store, ref(job), lease=30.0) == (CANCEL,)

        after = await requests.current(store, job)
        assert (after.state, after.lease_until) == (State.RUNNING, clock.time() + 30)

    async def test_cancels_lists_the_running_jobs_of_that_worker_only(
        self, store: Store, given: Given
    ) -> None:
        first, second = await given.running("me"), await given.running("me")
        others = [await given.running("you"), await given.claimed("me"), await given.waiting()]
        await given.running("me")
        await requests.operate(store, CancelJobs(ids=tuple(job.id for job in (second, first, *others))))

        assert await store.cancels("me") == (ref(first), ref(second))
        assert await store.cancels("nobody") == ()

    async def test_cancels_forgets_a_job_that_has_stopped(self, store: Store, given: Given) -> None:
        job = await given.running("me")
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.settle(store, job, GiveUpOutcome())

        assert await store.cancels("me") == ()


class Expiring:
    async def test_a_claim_that_expires_before_its_start_gives_the_attempt_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed(lease=30.0)
        clock.advance(30)
        await requests.upkeep(store)

        after = await requests.current(store, job)
        assert after.state is State.WAITING
        assert (after.attempts, after.releases, after.crashes, after.errors) == (0, 1, 0, ())
        assert (after.worker, after.lease_until, after.fence) == (None, None, job.fence)

    async def test_a_running_job_that_expires_keeps_its_attempt_and_is_a_suspect(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("lost", lease=30.0)
        clock.advance(31)

        [again] = await requests.claim(store)

        assert (again.attempts, again.releases, again.crashes) == (2, 0, 1)
        [error] = again.errors
        assert (error.attempt, error.worker, error.kind) == (1, "lost", Reason.WORKER_LOST)
        assert (error.started, error.ended) == (job.started_at, clock.time())

    @pytest.mark.parametrize(
        ("limits", "runs"),
        [({"max_attempts": 2}, 2), ({"max_crashes": 2}, 2), ({}, 3), ({"max_crashes": 1}, 1)],
    )
    async def test_a_job_that_kills_its_workers_runs_so_many_times_and_then_fails(
        self, store: Store, clock: FakeClock, given: Given, limits: dict[str, int], runs: int
    ) -> None:
        job = await given.waiting(**limits)
        beside = await given.waiting(delay=3_600.0)
        for _ in range(runs):
            assert await requests.order(store, lease=30.0) == [job.id]
            clock.advance(30)

        assert await requests.order(store) == []
        after = await requests.current(store, job)
        assert (after.state, after.reason) == (State.FAILED, Reason.WORKER_LOST)
        assert (after.attempts, after.crashes, len(after.errors)) == (runs, runs, runs)
        assert await requests.current(store, beside) == beside

    async def test_a_job_whose_cancel_was_asked_ends_canceled_when_it_expires(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0, max_attempts=1)
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        clock.advance(30)
        await requests.upkeep(store)

        after = await requests.current(store, job)
        assert (after.state, after.reason, after.crashes) == (State.CANCELED, Reason.CANCELED, 1)
        assert [error.kind for error in after.errors] == [Reason.WORKER_LOST]

    async def test_claims_that_expire_unstarted_more_than_twenty_times_fail_the_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting()
        for _ in range(21):
            assert await requests.order(store, start=False, lease=1.0) == [job.id]
            clock.advance(1)

        assert await requests.order(store) == []
        after = await requests.current(store, job)
        assert (after.state, after.reason, after.releases) == (State.FAILED, Reason.WORKER_LOST, 21)


class Fencing:
    async def test_a_fence_is_at_least_the_stores_clock_in_microseconds(
        self, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()

        assert job.fence >= int(clock.time() * 1_000_000)

    @pytest.mark.parametrize("step", [0.0, -3_600.0, 3_600.0], ids=["still", "back", "forward"])
    @pytest.mark.parametrize("way", ["retry", "snooze", "release", "rerun", "expire", "expire_unstarted"])
    async def test_the_fences_of_a_job_only_ever_rise(
        self, store: Store, clock: FakeClock, given: Given, way: str, step: float
    ) -> None:
        job = await given.waiting(max_attempts=10, max_crashes=10)
        fences = [0]
        for _ in range(3):
            [held] = await requests.claim(store, start=way != "expire_unstarted")
            fences.append(held.fence)
            await _let_go(store, clock, held, way)
            clock.jump(step)

        assert fences == sorted(set(fences))
        assert await requests.order(store) == [job.id]


class Noting:
    async def test_progress_is_replaced_and_log_lines_are_added(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.one(store, Note(ref(job), Progress(0.25, "a quarter"), (LogLine(1.0, "one"),)))

        answer = await requests.one(
            store, Note(ref(job), Progress(0.5), (LogLine(2.0, "two", "warning"), LogLine(3.0, "three")))
        )

        assert answer is WRITTEN
        after = await requests.current(store, job)
        assert after.progress == Progress(0.5)
        assert after.logs == (LogLine(1.0, "one"), LogLine(2.0, "two", "warning"), LogLine(3.0, "three"))

    async def test_a_note_sent_again_is_kept_once(self, store: Store, given: Given) -> None:
        job = await given.running()
        note = Note(ref(job), Progress(0.5), (LogLine(1.0, "one"), LogLine(2.0, "two")))
        await requests.one(store, note)
        after = await requests.current(store, job)

        assert await requests.one(store, note) is WRITTEN
        assert await requests.current(store, job) == after

    async def test_progress_alone_is_kept(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.one(store, Note(ref(job), Progress(0.25)))

        assert (await requests.current(store, job)).progress == Progress(0.25)

    async def test_a_note_without_progress_leaves_the_progress(self, store: Store, given: Given) -> None:
        job = await given.claimed()
        await requests.one(store, Note(ref(job), Progress(0.25)))
        await requests.one(store, Note(ref(job), logs=(LogLine(1.0, "line"),)))

        assert (await requests.current(store, job)).progress == Progress(0.25)

    async def test_progress_and_logs_stay_when_the_job_has_ended(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.one(store, Note(ref(job), Progress(0.25), (LogLine(1.0, "line"),)))
        await requests.settle(store, job, CompleteOutcome())

        after = await requests.current(store, job)
        assert (after.progress, after.logs) == (Progress(0.25), (LogLine(1.0, "line"),))

    async def test_the_newest_200_log_lines_are_kept(self, store: Store, given: Given) -> None:
        job = await given.running()
        for start in (0, 150):
            lines = tuple(LogLine(float(number), f"line {number}") for number in range(start, start + 150))
            await requests.one(store, Note(ref(job), logs=lines))

        logs = (await requests.current(store, job)).logs
        assert [line.text for line in logs] == [f"line {number}" for number in range(100, 300)]

    async def test_long_notes_are_cut(self, store: Store, given: Given) -> None:
        job = await given.running()
        long = "x" * 100_000
        await requests.one(store, Note(ref(job), Progress(0.5, long), (LogLine(1.0, long, long),)))

        after = await requests.current(store, job)
        assert after.progress is not None
        assert len(after.progress.text) <= 2_000
        assert len(after.logs[0].text) <= 2_000
        assert len(after.logs[0].level) <= 200


async def _let_go(store: Store, clock: FakeClock, job: JobRecord, way: str) -> None:
    """Make `job` ready to be claimed again."""
    match way:
        case "retry":
            await requests.settle(store, job, RetryOutcome(delay=0.0))
        case "snooze":
            await requests.settle(store, job, SnoozeOutcome(0.0))
        case "release":
            await requests.settle(store, job, ReleaseOutcome())
        case "rerun":
            await requests.settle(store, job, CompleteOutcome())
            await requests.operate(store, RerunJobs(ids=(job.id,)))
        case _:
            clock.advance(120)
