"""Settling: what each outcome writes, what repeated commands answer, and how long finished jobs are kept."""

import pytest
from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN, Claims, LossCause, Lost
from errandry.core.command import (
    CancelJobs,
    Claim,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    ReleaseOutcome,
    RerunJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
)
from errandry.core.event import EventKind
from errandry.core.job import DAY, AttemptError, Failure, Keep
from errandry.core.retry import Backoff, Curve
from errandry.core.state import Reason, State
from errandry.errors import TooLarge
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref

BOOM = Failure(Reason.TIMEOUT, "TimeoutError", "took too long", "Traceback: …")
OUTCOMES: dict[str, Outcome] = {
    "complete": CompleteOutcome('{"n": 1}'),
    "retry": RetryOutcome(BOOM, 60.0),
    "fail": FailOutcome(BOOM),
    "snooze": SnoozeOutcome(60.0),
    "release": ReleaseOutcome(),
    "give_up": GiveUpOutcome(),
}
EACH = pytest.mark.parametrize("name", list(OUTCOMES))


class SettledOutcomes:
    async def test_a_completed_job_keeps_its_result(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()
        clock.advance(5)

        assert await requests.settle(store, job, CompleteOutcome(' {"é": [1.50]} ')) is WRITTEN

        after, now = await requests.current_job(store, job), clock.time()
        assert (after.state, after.reason, after.result) == (State.COMPLETED, None, ' {"é": [1.50]} ')
        assert (after.finished_at, after.updated_at, after.lease_until) == (now, now, None)
        assert (after.attempts, after.worker, after.fence) == (1, "worker", job.fence)

    async def test_jobs_settled_in_one_pass_get_their_own_outcomes(self, store: Store, given: Given) -> None:
        results = [
            None,
            "null",
            '""',
            "0",
            '"a\\"b\\\\"',
            '{"é": "\U0001f600"}',
            '"\\u00e9\\ud83d\\ude00"',
            " \t\n[]",
            "[1,2]",
        ]
        jobs = [await given.running() for _ in range(2 * len(results))]
        ends: list[Outcome] = [FailOutcome(Failure(message=str(result))) for result in results]
        ends[::2] = [GiveUpOutcome()] * len(ends[::2])
        ends += [CompleteOutcome(result) for result in results]

        settles = [Settle(ref(job), end) for job, end in zip(jobs, ends, strict=True)]
        answers = await store.commit([*settles[1::2], *settles[::2][::-1]])  # another order

        assert answers == [WRITTEN] * len(jobs)
        after = [await requests.current_job(store, job) for job in jobs]
        assert [job.result for job in after[len(results) :]] == results
        for job, end in zip(after, ends, strict=True):
            match end:
                case FailOutcome(failure=failure):
                    assert (job.state, job.errors[-1].message) == (State.FAILED, failure.message)
                case GiveUpOutcome():
                    assert (job.state, job.errors, job.result) == (State.CANCELED, (), None)

    @pytest.mark.parametrize("result", [None, "null", '""', "0"])
    async def test_no_result_differs_from_an_empty_result(self, given: Given, result: str | None) -> None:
        job = await given.completed(result)

        assert job.result == result

    async def test_a_failure_is_recorded_with_its_attempt(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("me")
        clock.advance(5)
        await requests.settle(store, job, FailOutcome(BOOM))

        after = await requests.current_job(store, job)
        assert (after.state, after.reason, after.finished_at) == (State.FAILED, Reason.TIMEOUT, clock.time())
        assert after.errors == (
            AttemptError(
                attempt=1,
                worker="me",
                started=job.started_at,
                ended=clock.time(),
                kind=Reason.TIMEOUT,
                type="TimeoutError",
                message="took too long",
                traceback="Traceback: …",
            ),
        )

    async def test_a_retry_waits_for_the_delay_its_worker_gave(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, RetryOutcome(BOOM, 90.0))

        after = await requests.current_job(store, job)
        assert (after.state, after.run_at, after.attempts) == (State.SCHEDULED, clock.time() + 90, 1)
        assert (after.reason, after.worker, after.lease_until) == (None, None, None)
        assert [error.message for error in after.errors] == ["took too long"]

    async def test_a_retry_without_a_delay_waits_for_the_jobs_own_backoff(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(backoff=Backoff(Curve.EXPONENTIAL, start=2.0, jitter=0.0))
        delays = []
        for _ in range(4):
            await requests.settle(store, await given.claim(job), RetryOutcome())
            after = await requests.current_job(store, job)
            delays.append((after.run_at or 0) - clock.time())
            clock.advance(delays[-1])

        assert delays == [2.0, 4.0, 8.0, 16.0]

    async def test_the_default_backoff_is_one_second_with_25_percent_jitter(
        self, clock: FakeClock, given: Given
    ) -> None:
        delays = [((await given.settled(RetryOutcome())).run_at or 0) - clock.time() for _ in range(8)]

        assert all(0.75 <= delay <= 1.25 for delay in delays)
        assert len(set(delays)) > 1

    async def test_a_retry_of_the_last_attempt_fails_with_the_reason_of_its_error(self, given: Given) -> None:
        job = await given.settled(RetryOutcome(BOOM, 60.0), max_attempts=1)

        assert (job.state, job.reason, len(job.errors)) == (State.FAILED, Reason.TIMEOUT, 1)

    async def test_a_snooze_gives_the_attempt_back(self, clock: FakeClock, given: Given) -> None:
        job = await given.settled(SnoozeOutcome(60.0), max_attempts=1)

        assert (job.state, job.run_at) == (State.SCHEDULED, clock.time() + 60)
        assert (job.attempts, job.releases, job.errors) == (0, 0, ())

    @pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
    async def test_a_release_gives_the_attempt_back_and_counts_the_release(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.in_state(state, max_attempts=1)
        await requests.settle(store, job, ReleaseOutcome())

        after = await requests.current_job(store, job)
        assert (after.state, after.attempts, after.releases) == (State.WAITING, 0, 1)
        assert (after.worker, after.lease_until, after.errors) == (None, None, ())

    async def test_a_job_that_no_worker_can_run_keeps_the_time_of_its_first_release(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job, began = await given.running(max_attempts=1), clock.time()
        for _ in range(3):
            await requests.settle(store, job, ReleaseOutcome(5.0, unhandled=True))
            clock.advance(5)
            job = await given.claim(job)

        assert (job.unhandled_since, job.attempts, job.releases) == (began, 1, 0)
        assert await requests.current_job(store, job) == job

    @pytest.mark.parametrize(
        "outcome",
        [CompleteOutcome(), FailOutcome(BOOM), RetryOutcome(BOOM), SnoozeOutcome(1.0), ReleaseOutcome()],
        ids=lambda outcome: str(outcome.move),
    )
    async def test_a_job_whose_handler_has_begun_is_no_longer_unhandled(
        self, store: Store, clock: FakeClock, given: Given, outcome: Outcome
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, ReleaseOutcome(5.0, unhandled=True))
        clock.advance(5)
        job = await given.claim(job)
        assert job.unhandled_since is not None
        await requests.settle(store, job, outcome)

        assert (await requests.current_job(store, job)).unhandled_since is None

    async def test_an_edited_or_rerun_job_is_no_longer_unhandled(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, ReleaseOutcome(5.0, unhandled=True))
        assert (await requests.current_job(store, job)).unhandled_since == clock.time()
        await requests.operate(store, EditJobs(ids=(job.id,), priority=1))
        assert (await requests.current_job(store, job)).unhandled_since is None

        clock.advance(5)
        job = await given.claim(job)
        await requests.settle(store, job, ReleaseOutcome(5.0, unhandled=True))
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.operate(store, RerunJobs(ids=(job.id,)))
        after = await requests.current_job(store, job)
        assert (after.state, after.unhandled_since) == (State.WAITING, None)

    async def test_a_release_by_a_worker_that_ends_unasked_spends_the_attempt_and_counts_a_crash(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(max_attempts=2)
        await requests.settle(store, job, ReleaseOutcome(crashed=True))

        after = await requests.current_job(store, job)
        assert (after.state, after.attempts, after.crashes, after.releases) == (State.WAITING, 1, 1, 0)
        assert (after.worker, after.lease_until) == (None, None)
        assert [error.kind for error in after.errors] == [Reason.WORKER_LOST]

    @pytest.mark.parametrize(
        ("max_attempts", "max_crashes", "runs"), [(9, 2, 2), (2, 9, 2)], ids=["crashes", "attempts"]
    )
    async def test_a_job_that_ends_its_workers_fails_at_its_limits(
        self, store: Store, given: Given, max_attempts: int, max_crashes: int, runs: int
    ) -> None:
        job = await given.running(max_attempts=max_attempts, max_crashes=max_crashes)
        for number in range(runs - 1):
            release = Settle(ref(job), ReleaseOutcome(crashed=True))
            _, answer = await store.commit([release, Claim(worker="w", nonce=f"{number}")])
            assert isinstance(answer, Claims)
            [job] = answer.jobs
        assert await requests.settle(store, job, ReleaseOutcome(crashed=True)) is WRITTEN

        assert await requests.settle(store, job, ReleaseOutcome(crashed=True)) is ALREADY
        after = await requests.current_job(store, job)
        assert (after.state, after.reason, after.crashes) == (State.FAILED, Reason.WORKER_LOST, runs)

    async def test_a_job_that_has_not_started_is_not_to_blame_for_the_end_of_its_worker(
        self, store: Store, given: Given
    ) -> None:
        job = await given.claimed(max_attempts=1)
        await requests.settle(store, job, ReleaseOutcome(crashed=True))

        after = await requests.current_job(store, job)
        assert (after.state, after.attempts, after.crashes, after.errors) == (State.WAITING, 0, 0, ())

    @pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
    async def test_a_job_given_up_is_canceled(self, store: Store, given: Given, state: State) -> None:
        job = await given.in_state(state)
        await requests.settle(store, job, GiveUpOutcome(BOOM))

        after = await requests.current_job(store, job)
        assert (after.state, after.reason) == (State.CANCELED, Reason.CANCELED)
        assert [error.message for error in after.errors] == ["took too long"]

    @EACH
    async def test_a_cancel_request_overrides_every_outcome(
        self, store: Store, given: Given, name: str
    ) -> None:
        job = await given.running(max_attempts=1)
        await requests.operate(store, CancelJobs(ids=(job.id,)))

        assert await requests.settle(store, job, OUTCOMES[name]) is WRITTEN

        after = await requests.current_job(store, job)
        assert (after.state, after.reason, after.cancel_requested) == (State.CANCELED, Reason.CANCELED, True)
        assert after.result == ('{"n": 1}' if name == "complete" else None)
        messages = [error.message for error in after.errors]
        assert messages == ["took too long"] if name in ("retry", "fail") else len(messages) <= 1

    async def test_a_job_that_completed_despite_a_cancel_request_records_the_cancel(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running()
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.settle(store, job, CompleteOutcome("1"))

        assert [error.kind for error in (await requests.current_job(store, job)).errors] == [Reason.CANCELED]

    async def test_the_newest_20_errors_are_kept(self, store: Store, given: Given) -> None:
        job = await given.running(max_attempts=100)
        for number in range(1, 25):
            settle = Settle(ref(job), RetryOutcome(Failure(message=f"error {number}"), delay=0.0))
            _, answer = await store.commit([settle, Claim(worker="w", nonce=f"{number}")])
            assert isinstance(answer, Claims)
            [job] = answer.jobs

        assert [error.attempt for error in job.errors] == list(range(5, 25))
        assert [error.message for error in job.errors] == [f"error {number}" for number in range(5, 25)]

    async def test_long_error_texts_are_truncated(self, given: Given) -> None:
        long = "x" * 100_000

        job = await given.settled(FailOutcome(Failure(Reason.ERROR, long, long, long)))

        [error] = job.errors
        assert [len(text) <= 16_384 for text in (error.type, error.message, error.traceback)] == [True] * 3
        assert error.message.endswith("more")

    async def test_a_lapsed_deadline_does_not_stop_a_running_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(deadline=clock.time() + 10)
        clock.advance(10)
        await requests.run_upkeep(store)

        assert await requests.settle(store, job, CompleteOutcome()) is WRITTEN

    async def test_the_next_job_can_be_claimed_in_the_pass_that_settles_the_previous(
        self, store: Store, given: Given
    ) -> None:
        job, next_job = await given.running(), await given.waiting()

        settled, answer = await store.commit(
            [Settle(ref(job), CompleteOutcome()), Claim(worker="worker", nonce="nonce")]
        )

        assert settled is WRITTEN
        assert isinstance(answer, Claims)
        assert [claimed.id for claimed in answer.jobs] == [next_job.id]

    async def test_a_result_over_the_size_limit_is_refused_and_the_job_stays_running(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(result=10))
        job = await Given(store).running()
        before = await requests.snapshot(store)

        answer = await requests.settle(store, job, CompleteOutcome('"ééééé"'))

        assert isinstance(answer, TooLarge)
        assert (answer.name, answer.size, answer.bound) == ("result", 12, 10)
        assert await requests.snapshot(store) == before
        assert await requests.settle(store, job, CompleteOutcome('"éééé"')) is WRITTEN


class RepeatedCommands:
    @EACH
    async def test_a_repeated_outcome_answers_already_and_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, name: str
    ) -> None:
        job = await given.running(lease=30.0)
        await requests.settle(store, job, OUTCOMES[name])
        clock.advance(31)
        before = await requests.snapshot(store)

        assert await requests.settle(store, job, OUTCOMES[name]) is ALREADY
        assert await requests.snapshot(store) == before

    @EACH
    async def test_a_repeated_outcome_answers_already_until_the_job_is_claimed_again(
        self, store: Store, clock: FakeClock, given: Given, name: str
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, OUTCOMES[name])
        if (await requests.current_job(store, job)).finished:
            await requests.operate(store, RerunJobs(ids=(job.id,)))
        clock.advance(60)
        await requests.run_upkeep(store)
        assert (await requests.current_job(store, job)).state is State.WAITING
        assert await requests.settle(store, job, OUTCOMES[name]) is ALREADY
        await given.claim(job)
        before = await requests.snapshot(store)

        assert await requests.settle(store, job, OUTCOMES[name]) == Lost(LossCause.OTHER_FENCE)
        assert await requests.snapshot(store) == before

    @EACH
    async def test_a_different_outcome_of_the_same_claim_is_refused(
        self, store: Store, given: Given, name: str
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, OUTCOMES[name])
        before = await requests.snapshot(store)

        answers = {
            other_name: await requests.settle(store, job, OUTCOMES[other_name]) for other_name in OUTCOMES
        }

        assert answers == dict.fromkeys(OUTCOMES, Lost(LossCause.NOT_HELD)) | {name: ALREADY}
        assert await requests.snapshot(store) == before

    @EACH
    async def test_a_repeated_outcome_that_a_cancel_overruled_answers_already(
        self, store: Store, given: Given, name: str
    ) -> None:
        job = await given.running()
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.settle(store, job, OUTCOMES[name])
        before = await requests.snapshot(store)

        assert await requests.settle(store, job, OUTCOMES[name]) is ALREADY
        assert await requests.snapshot(store) == before

    async def test_giving_up_a_job_that_is_already_canceled_answers_already(
        self, store: Store, given: Given
    ) -> None:
        job = await given.canceled()

        assert await requests.settle(store, job, GiveUpOutcome()) is ALREADY

    @EACH
    async def test_the_same_outcome_of_a_later_attempt_is_not_a_repeat(
        self, store: Store, clock: FakeClock, given: Given, name: str
    ) -> None:
        job = await given.running()
        await requests.settle(store, job, OUTCOMES[name])
        if (await requests.current_job(store, job)).finished:
            await requests.operate(store, RerunJobs(ids=(job.id,)))
        clock.advance(60)
        reclaimed = await given.claim(job, lease=30.0)
        clock.advance(30)
        await requests.run_upkeep(store)

        assert await requests.settle(store, reclaimed, OUTCOMES[name]) == Lost(LossCause.NOT_HELD)

    async def test_a_repeated_claim_answers_the_same_jobs(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(5):
            await given.waiting()
        first = await requests.claim(store, worker="me", nonce="n", limit=3)
        clock.advance(5)
        before = await requests.snapshot(store)

        assert await requests.claim(store, worker="me", nonce="n", limit=3) == first
        assert await requests.snapshot(store) == before

    async def test_several_claims_repeated_in_one_pass_answer_the_same_jobs(
        self, store: Store, given: Given
    ) -> None:
        """A worker with handlers of several kinds sends several claims in one pass."""
        for _ in range(4):
            await given.waiting()
        claims = [Claim(worker="me", nonce=nonce) for nonce in ("one", "two")]
        first = await store.commit(claims)
        before = await requests.snapshot(store)

        assert await store.commit(claims) == first
        assert await requests.snapshot(store) == before

    async def test_a_repeated_claim_answers_only_the_jobs_it_still_holds(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for _ in range(4):
            await given.waiting()
        first, second, third = await requests.claim(store, worker="me", nonce="n", limit=3, lease=30.0)
        await requests.settle(store, second, CompleteOutcome())
        clock.advance(20)
        await requests.renew(store, ref(third), lease=30.0)
        clock.advance(10)

        assert await requests.claim(store, worker="me", nonce="n", limit=3) == (
            replace(third, lease_until=clock.time() + 20, updated_at=clock.time() - 10),
        )
        assert (await requests.current_job(store, first)).state is State.RUNNING

    async def test_an_empty_claim_that_is_repeated_takes_new_jobs(self, store: Store, given: Given) -> None:
        assert await requests.claim_ids(store, nonce="n") == []
        job = await given.waiting()

        assert await requests.claim_ids(store, nonce="n") == [job.id]

    @pytest.mark.parametrize(("worker", "nonce"), [("me", "other"), ("you", "n")])
    async def test_a_claim_with_another_nonce_or_worker_takes_other_jobs(
        self, store: Store, given: Given, worker: str, nonce: str
    ) -> None:
        await given.waiting()
        next_job = await given.waiting()
        await requests.claim(store, worker="me", nonce="n")

        assert await requests.claim_ids(store, limit=1, worker=worker, nonce=nonce) == [next_job.id]


class KeepTimes:
    @pytest.mark.parametrize(
        ("state", "days"), [(State.COMPLETED, 7), (State.FAILED, 30), (State.CANCELED, 7)]
    )
    async def test_a_finished_job_is_kept_for_its_default_number_of_days(
        self, given: Given, state: State, days: int
    ) -> None:
        job = await given.in_state(state)

        assert job.finished_at is not None
        assert job.expires_at == job.finished_at + days * DAY

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELED])
    async def test_a_finished_job_is_pruned_when_the_keep_time_of_its_state_ends(
        self, store: Store, clock: FakeClock, given: Given, state: State
    ) -> None:
        job = await given.in_state(state, keep=Keep(completed=10.0, failed=10.0, canceled=10.0))
        other = await given.in_state(state, keep=replace(Keep(10.0, 10.0, 10.0), **{state: 10.25}))
        clock.advance(10)
        assert not await requests.is_gone(store, job)

        assert (await requests.run_upkeep(store)).pruned == 1

        assert await requests.is_gone(store, job)
        assert not await requests.is_gone(store, other)

    @pytest.mark.parametrize("name", ["complete", "fail", "give_up"])
    async def test_keep_0_removes_the_job_at_once_and_the_totals_still_count_it(
        self, store: Store, given: Given, name: str
    ) -> None:
        job = await given.running(keep=Keep(completed=0.0, failed=0.0, canceled=0.0))
        cursor = await store.latest_cursor()

        assert await requests.settle(store, job, OUTCOMES[name]) is WRITTEN

        final_state = {"complete": "completed", "fail": "failed", "give_up": "canceled"}[name]
        assert await requests.is_gone(store, job)
        assert await requests.list_jobs(store) == []
        assert (await store.totals())["default"] == {"inserted": 1, final_state: 1, "removed": 1}
        assert await requests.event_kinds(store, cursor) == [EventKind(final_state), EventKind.REMOVED]

    async def test_keep_0_applies_to_the_state_it_names_only(self, given: Given) -> None:
        job = await given.settled(FailOutcome(), keep=Keep(completed=0.0))

        assert job.state is State.FAILED

    async def test_a_retried_job_with_keep_0_stays(self, given: Given) -> None:
        job = await given.settled(
            RetryOutcome(BOOM, 60.0), keep=Keep(completed=0.0, failed=0.0, canceled=0.0)
        )

        assert job.state is State.SCHEDULED
