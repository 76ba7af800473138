"""Leases and fences: how long a worker holds a job, and that a worker whose claim ended cannot change it."""

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
FENCED_KINDS = ("start", "renew", "note", "step", *OUTCOMES)


def fenced_command(kind: str, claim_ref: Ref) -> Command:
    """A command of this kind that carries `claim_ref`."""
    match kind:
        case "start":
            return Start(claim_ref)
        case "renew":
            return Renew((claim_ref,))
        case "note":
            return Note(claim_ref, Progress(0.5), (LogLine(1.0, "line"),))
        case "step":
            return PutStep(claim_ref, "charge")
        case _:
            return Settle(claim_ref, OUTCOMES[kind])


def lost_answer(kind: str, cause: LossCause) -> Answer:
    return Renewed((Lost(cause),)) if kind == "renew" else Lost(cause)


class LeaseRenewal:
    async def test_a_renewed_lease_counts_from_the_renewal(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(20)

        assert await requests.renew(store, ref(job), lease=40.0) == (HELD,)

        assert await requests.current_job(store, job) == replace(
            job, lease_until=clock.time() + 40, updated_at=clock.time()
        )

    async def test_a_renewed_job_outlives_its_first_lease(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        for _ in range(5):
            clock.advance(20)
            assert await requests.renew(store, ref(job), lease=30.0) == (HELD,)

        assert await requests.claim_ids(store) == []
        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_a_renewal_of_several_leases_answers_each_of_them(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        short, long = await given.claimed(lease=10.0), await given.running(lease=60.0)
        to_cancel = await given.running(lease=60.0)
        await requests.operate(store, CancelJobs(ids=(to_cancel.id,)))
        stale = Ref(long.id, long.fence - 1)
        clock.advance(10)

        acks = await requests.renew(store, ref(long), ref(short), ref(to_cancel), stale, Ref("unknown", 1))

        assert acks == (
            HELD,
            Lost(LossCause.EXPIRED),
            CANCEL,
            Lost(LossCause.OTHER_FENCE),
            Lost(LossCause.NOT_HELD),
        )

    async def test_an_empty_renewal_renews_nothing(self, store: Store) -> None:
        assert await requests.renew(store) == ()

    @pytest.mark.parametrize(("after", "answer"), [(29.75, WRITTEN), (30.0, Lost(LossCause.EXPIRED))])
    async def test_a_lease_is_expired_at_the_exact_moment_it_ends(
        self, store: Store, clock: FakeClock, given: Given, after: float, answer: Answer
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(after)

        assert await requests.settle(store, job, CompleteOutcome()) == answer

    @pytest.mark.parametrize("kind", FENCED_KINDS)
    async def test_a_command_under_an_expired_lease_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, kind: str
    ) -> None:
        job = await given.in_state(State.CLAIMED if kind == "start" else State.RUNNING, lease=30.0)
        clock.advance(30)
        before = await requests.snapshot(store)

        assert await requests.send(store, fenced_command(kind, ref(job))) == lost_answer(
            kind, LossCause.EXPIRED
        )
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("kind", FENCED_KINDS)
    async def test_a_command_changes_nothing_after_upkeep_expired_its_claim(
        self, store: Store, clock: FakeClock, given: Given, kind: str
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(30)
        await requests.run_upkeep(store)
        before = await requests.snapshot(store)

        assert await requests.send(store, fenced_command(kind, ref(job))) == lost_answer(
            kind, LossCause.NOT_HELD
        )
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("start", [False, True], ids=["claimed", "running"])
    @pytest.mark.parametrize("kind", FENCED_KINDS)
    async def test_a_command_changes_nothing_after_another_worker_claimed_the_job(
        self, store: Store, clock: FakeClock, given: Given, kind: str, start: bool
    ) -> None:
        stale = await given.running(lease=30.0, worker="old")
        clock.advance(30)
        await given.claim(stale, worker="new", start=start)
        before = await requests.snapshot(store)

        assert await requests.send(store, fenced_command(kind, ref(stale))) == lost_answer(
            kind, LossCause.OTHER_FENCE
        )
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("kind", FENCED_KINDS)
    async def test_a_command_with_an_unknown_fence_changes_nothing(
        self, store: Store, given: Given, kind: str
    ) -> None:
        job = await given.running()
        before = await requests.snapshot(store)

        for fence in (0, job.fence - 1, job.fence + 1, 2**63 - 1):
            answer = await requests.send(store, fenced_command(kind, Ref(job.id, fence)))
            assert answer == lost_answer(kind, LossCause.OTHER_FENCE)
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("kind", FENCED_KINDS)
    async def test_a_forced_removal_invalidates_the_fence(
        self, store: Store, given: Given, kind: str
    ) -> None:
        job = await given.running()
        await requests.operate(store, RemoveJobs(ids=(job.id,), force=True))
        before = await requests.snapshot(store)

        assert await requests.send(store, fenced_command(kind, ref(job))) == lost_answer(
            kind, LossCause.NOT_HELD
        )
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("kind", ["complete", "retry", "fail", "snooze"])
    async def test_a_job_that_has_not_started_cannot_complete_retry_fail_or_snooze(
        self, store: Store, given: Given, kind: str
    ) -> None:
        job = await given.claimed()
        before = await requests.snapshot(store)

        assert await requests.send(store, fenced_command(kind, ref(job))) == Lost(LossCause.NOT_HELD)
        assert await requests.snapshot(store) == before

    async def test_a_settle_after_the_lease_expired_loses_to_a_claim_of_the_same_pass(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        clock.advance(30)

        answer, claims = await store.commit(
            [Settle(ref(job), CompleteOutcome()), Claim(worker="new", nonce="nonce")]
        )

        assert answer == Lost(LossCause.EXPIRED)
        assert isinstance(claims, Claims)
        assert [(one.id, one.worker) for one in claims.jobs] == [(job.id, "new")]


class StartAndCancel:
    async def test_starting_a_claimed_job_makes_it_running(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed(lease=30.0)
        clock.advance(5)

        assert await requests.send(store, Start(ref(job))) is WRITTEN

        now = clock.time()
        after = replace(job, state=State.RUNNING, started_at=now, updated_at=now)
        assert await requests.current_job(store, job) == after

    async def test_a_second_start_answers_already_and_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed()
        await requests.send(store, Start(ref(job)))
        clock.advance(5)
        before = await requests.snapshot(store)

        assert await requests.send(store, Start(ref(job))) is ALREADY
        assert await requests.snapshot(store) == before

    async def test_a_job_canceled_while_claimed_never_starts(self, store: Store, given: Given) -> None:
        job = await given.canceled()
        before = await requests.snapshot(store)

        assert await requests.send(store, Start(ref(job))) is CANCEL
        assert await requests.renew(store, ref(job)) == (CANCEL,)
        assert await requests.snapshot(store) == before

    async def test_renewing_a_job_with_a_cancel_request_answers_cancel_and_keeps_the_lease(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        clock.advance(20)

        assert await requests.renew(store, ref(job), lease=30.0) == (CANCEL,)

        after = await requests.current_job(store, job)
        assert (after.state, after.lease_until) == (State.RUNNING, clock.time() + 30)

    async def test_cancels_lists_the_running_jobs_of_the_given_worker_only(
        self, store: Store, given: Given
    ) -> None:
        first, second = await given.running("me"), await given.running("me")
        not_listed = [await given.running("you"), await given.claimed("me"), await given.waiting()]
        await given.running("me")
        await requests.operate(store, CancelJobs(ids=tuple(job.id for job in (second, first, *not_listed))))

        assert await store.cancels("me") == (ref(first), ref(second))
        assert await store.cancels("unknown") == ()

    async def test_cancels_no_longer_lists_a_job_that_has_stopped(self, store: Store, given: Given) -> None:
        job = await given.running("me")
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.settle(store, job, GiveUpOutcome())

        assert await store.cancels("me") == ()


class LeaseExpiry:
    async def test_a_claim_that_expires_before_its_start_gives_the_attempt_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed(lease=30.0)
        clock.advance(30)
        await requests.run_upkeep(store)

        after = await requests.current_job(store, job)
        assert after.state is State.WAITING
        assert (after.attempts, after.releases, after.crashes, after.errors) == (0, 1, 0, ())
        assert (after.worker, after.lease_until, after.fence) == (None, None, job.fence)

    async def test_a_running_job_that_expires_spends_its_attempt_and_becomes_a_suspect(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("lost", lease=30.0)
        clock.advance(31)

        [reclaimed] = await requests.claim(store)

        assert (reclaimed.attempts, reclaimed.releases, reclaimed.crashes) == (2, 0, 1)
        [error] = reclaimed.errors
        assert (error.attempt, error.worker, error.kind) == (1, "lost", Reason.WORKER_LOST)
        assert (error.started, error.ended) == (job.started_at, clock.time())

    @pytest.mark.parametrize(
        ("limits", "runs"),
        [({"max_attempts": 2}, 2), ({"max_crashes": 2}, 2), ({}, 3), ({"max_crashes": 1}, 1)],
    )
    async def test_a_job_that_kills_its_workers_fails_at_max_attempts_or_max_crashes(
        self, store: Store, clock: FakeClock, given: Given, limits: dict[str, int], runs: int
    ) -> None:
        job = await given.waiting(**limits)
        beside = await given.waiting(delay=3_600.0)
        for run in range(runs):
            assert await requests.claim_ids(store, worker=f"worker-{run}", lease=30.0) == [job.id]
            clock.advance(30)

        assert await requests.claim_ids(store) == []
        after = await requests.current_job(store, job)
        assert (after.state, after.reason) == (State.FAILED, Reason.WORKER_LOST)
        assert (after.attempts, after.crashes, len(after.errors)) == (runs, runs, runs)
        assert await requests.current_job(store, beside) == beside

    async def test_a_job_with_a_cancel_request_is_canceled_when_it_expires(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0, max_attempts=1)
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        clock.advance(30)
        await requests.run_upkeep(store)

        after = await requests.current_job(store, job)
        assert (after.state, after.reason, after.crashes) == (State.CANCELED, Reason.CANCELED, 1)
        assert [error.kind for error in after.errors] == [Reason.WORKER_LOST]


class Fences:
    async def test_a_fence_is_at_least_the_store_clock_in_microseconds(
        self, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()

        assert job.fence >= int(clock.time() * 1_000_000)

    @pytest.mark.parametrize("step", [0.0, -3_600.0, 3_600.0], ids=["still", "back", "forward"])
    @pytest.mark.parametrize("way", ["retry", "snooze", "release", "rerun", "expire", "expire_unstarted"])
    async def test_every_claim_of_a_job_gets_a_higher_fence(
        self, store: Store, clock: FakeClock, given: Given, way: str, step: float
    ) -> None:
        job = await given.waiting(max_attempts=10, max_crashes=10)
        fences = [0]
        for _ in range(3):
            [claimed] = await requests.claim(store, start=way != "expire_unstarted")
            fences.append(claimed.fence)
            await _make_claimable(store, clock, claimed, way)
            clock.jump(step)

        assert fences == sorted(set(fences))
        assert await requests.claim_ids(store) == [job.id]


class ProgressAndLogs:
    async def test_a_note_replaces_the_progress_and_appends_its_log_lines(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running()
        await requests.send(store, Note(ref(job), Progress(0.25, "a quarter"), (LogLine(1.0, "one"),)))

        answer = await requests.send(
            store, Note(ref(job), Progress(0.5), (LogLine(2.0, "two", "warning"), LogLine(3.0, "three")))
        )

        assert answer is WRITTEN
        after = await requests.current_job(store, job)
        assert after.progress == Progress(0.5)
        assert after.logs == (LogLine(1.0, "one"), LogLine(2.0, "two", "warning"), LogLine(3.0, "three"))

    async def test_a_repeated_note_is_stored_once(self, store: Store, given: Given) -> None:
        job = await given.running()
        note = Note(ref(job), Progress(0.5), (LogLine(1.0, "one"), LogLine(2.0, "two")))
        await requests.send(store, note)
        after = await requests.current_job(store, job)

        assert await requests.send(store, note) is WRITTEN
        assert await requests.current_job(store, job) == after

    async def test_a_note_with_progress_alone_stores_it(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.send(store, Note(ref(job), Progress(0.25)))

        assert (await requests.current_job(store, job)).progress == Progress(0.25)

    async def test_a_note_without_progress_keeps_the_earlier_progress(
        self, store: Store, given: Given
    ) -> None:
        job = await given.claimed()
        await requests.send(store, Note(ref(job), Progress(0.25)))
        await requests.send(store, Note(ref(job), logs=(LogLine(1.0, "line"),)))

        assert (await requests.current_job(store, job)).progress == Progress(0.25)

    async def test_progress_and_logs_stay_when_the_job_has_ended(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.send(store, Note(ref(job), Progress(0.25), (LogLine(1.0, "line"),)))
        await requests.settle(store, job, CompleteOutcome())

        after = await requests.current_job(store, job)
        assert (after.progress, after.logs) == (Progress(0.25), (LogLine(1.0, "line"),))

    async def test_the_newest_200_log_lines_are_kept(self, store: Store, given: Given) -> None:
        job = await given.running()
        for start in (0, 150):
            lines = tuple(LogLine(float(number), f"line {number}") for number in range(start, start + 150))
            await requests.send(store, Note(ref(job), logs=lines))

        logs = (await requests.current_job(store, job)).logs
        assert [line.text for line in logs] == [f"line {number}" for number in range(100, 300)]

    async def test_long_progress_and_log_texts_are_truncated(self, store: Store, given: Given) -> None:
        job = await given.running()
        long = "x" * 100_000
        await requests.send(store, Note(ref(job), Progress(0.5, long), (LogLine(1.0, long, long),)))

        after = await requests.current_job(store, job)
        assert after.progress is not None
        assert len(after.progress.text) <= 2_000
        assert len(after.logs[0].text) <= 2_000
        assert len(after.logs[0].level) <= 200


async def _make_claimable(store: Store, clock: FakeClock, job: JobRecord, way: str) -> None:
    """End the claim in this way, so that the job can be claimed again."""
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
