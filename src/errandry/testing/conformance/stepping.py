"""Durable steps: results stored under the fence, sleeps and waits that hold no lease, and signals."""

from typing import Any

import pytest

from errandry.core.answer import ALREADY, WRITTEN, LossCause, Lost, Moved
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    FailOutcome,
    PostponeJobs,
    PromoteJobs,
    PutStep,
    ReleaseOutcome,
    RemoveJobs,
    RerunJobs,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.event import EventKind
from errandry.core.job import JobRecord, Keep
from errandry.core.state import State
from errandry.core.step import STEPS_MAX, SendSignal, StepKind, StepRecord, StepState, WaitOutcome
from errandry.errors import InvalidMove, InvalidValue, TooLarge, UnknownJob
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

MINUTE, HOUR = 60.0, 3_600.0


async def running_job_with_steps(store: Store, given: Given, *names: str, **fields: Any) -> JobRecord:
    """A running job that has stored these steps."""
    job = await given.running(**fields)
    for name in names:
        assert await requests.send(store, PutStep(ref(job), name, f'"{name}"')) is WRITTEN
    return job


async def job_waiting_for_signal(
    store: Store, given: Given, name: str = "go", timeout: float = HOUR
) -> JobRecord:
    """A job that waits for the signal `name`."""
    job = await given.running()
    assert await requests.settle(store, job, WaitOutcome(name, timeout)) is WRITTEN
    return await requests.current_job(store, job)


async def step_results(store: Store, job: JobRecord) -> list[tuple[str, str | None]]:
    return [(step.name, step.result) for step in await store.steps(job.id)]


class Steps:
    async def test_steps_are_stored_in_their_order(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await running_job_with_steps(store, given, "reserve")
        clock.advance(5)
        await requests.send(store, PutStep(ref(job), "charge", '{"ok":true}'))

        assert await store.steps(job.id) == [
            StepRecord(job.id, 0, StepKind.STEP, "reserve", '"reserve"', clock.time() - 5),
            StepRecord(job.id, 1, StepKind.STEP, "charge", '{"ok":true}', clock.time()),
        ]
        after = await requests.current_job(store, job)
        assert (after.steps, after.state, after.updated_at) == (StepState(2), State.RUNNING, clock.time())

    async def test_a_job_without_steps_has_none(self, store: Store, given: Given) -> None:
        job = await given.running()

        assert await store.steps(job.id) == []
        assert await store.steps("unknown") == []
        assert job.steps is None

    async def test_the_first_result_of_a_step_is_kept(self, store: Store, given: Given) -> None:
        job = await running_job_with_steps(store, given, "charge")

        assert await requests.send(store, PutStep(ref(job), "charge", '"again"')) is ALREADY

        assert await step_results(store, job) == [("charge", '"charge"')]
        assert (await requests.current_job(store, job)).steps == StepState(1)

    async def test_a_stale_claim_cannot_write_a_step(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        stale = await running_job_with_steps(store, given, "one", max_attempts=9)
        clock.advance(30)
        fresh = await given.claim(stale)

        assert await requests.send(store, PutStep(ref(stale), "two")) == Lost(LossCause.OTHER_FENCE)
        assert await requests.send(store, PutStep(ref(fresh), "two", "2")) is WRITTEN

        assert await step_results(store, stale) == [("one", '"one"'), ("two", "2")]

    @pytest.mark.parametrize(
        "outcome",
        [RetryOutcome(delay=0.0), ReleaseOutcome(), SnoozeOutcome(0.0)],
        ids=["retry", "release", "snooze"],
    )
    async def test_the_next_attempt_finds_the_steps(
        self, store: Store, given: Given, outcome: RetryOutcome | ReleaseOutcome | SnoozeOutcome
    ) -> None:
        job = await running_job_with_steps(store, given, "one")
        await requests.settle(store, job, outcome)

        reclaimed = await given.claim(job)

        assert reclaimed.steps == StepState(1)
        assert await step_results(store, job) == [("one", '"one"')]
        assert await requests.send(store, PutStep(ref(reclaimed), "one")) is ALREADY

    async def test_a_step_result_over_the_size_limit_is_refused(self, store: Store, given: Given) -> None:
        job = await given.running()

        answer = await requests.send(store, PutStep(ref(job), "big", '"' + "x" * 262_144 + '"'))

        assert isinstance(answer, TooLarge), answer
        assert await step_results(store, job) == []

    async def test_steps_beyond_the_maximum_are_refused(self, store: Store, given: Given) -> None:
        job = await given.running()
        for number in range(STEPS_MAX):
            await requests.send(store, PutStep(ref(job), f"step {number}"))

        for command in (PutStep(ref(job), "more"), SendSignal(job.id, "more")):
            answer = await requests.send(store, command)
            assert isinstance(answer, InvalidValue), answer

        assert await requests.send(store, PutStep(ref(job), "step 7")) is ALREADY
        assert (await requests.current_job(store, job)).steps == StepState(STEPS_MAX)

    async def test_steps_are_deleted_with_their_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        pruned = await running_job_with_steps(store, given, "one", keep=Keep(completed=HOUR))
        await requests.settle(store, pruned, CompleteOutcome())
        removed = await running_job_with_steps(store, given, "one")
        at_once = await running_job_with_steps(store, given, "one", keep=Keep(completed=0))
        assert await step_results(store, pruned) == [("one", '"one"')]

        await requests.operate(store, RemoveJobs(ids=(removed.id,), force=True))
        await requests.settle(store, at_once, CompleteOutcome())
        clock.advance(HOUR)
        await requests.run_upkeep(store)

        for job in (pruned, removed, at_once):
            assert await requests.is_gone(store, job)
            assert await store.steps(job.id) == []

    async def test_a_new_job_under_a_reused_id_has_no_steps(self, store: Store, given: Given) -> None:
        job = await running_job_with_steps(store, given, "one", id="same")
        await requests.operate(store, RemoveJobs(ids=(job.id,), force=True))

        new_job = await given.running(id="same")

        assert new_job.steps is None
        assert await requests.send(store, PutStep(ref(new_job), "one", "2")) is WRITTEN
        assert await step_results(store, new_job) == [("one", "2")]

    @pytest.mark.parametrize("outcome", [CompleteOutcome("1"), FailOutcome()], ids=["completed", "failed"])
    async def test_a_rerun_keeps_the_finished_steps(
        self, store: Store, given: Given, outcome: CompleteOutcome | FailOutcome
    ) -> None:
        job = await running_job_with_steps(store, given, "one")
        await requests.settle(store, job, outcome)

        await requests.operate(store, RerunJobs(ids=(job.id,)))

        assert (await given.claim(job)).steps == StepState(1)
        assert await step_results(store, job) == [("one", '"one"')]

    async def test_a_rerun_from_the_start_deletes_the_steps(self, store: Store, given: Given) -> None:
        job, other = await running_job_with_steps(store, given, "one"), await given.failed()
        await requests.settle(store, job, FailOutcome())

        moved = await requests.operate(store, RerunJobs(ids=(job.id, other.id), from_start=True))

        assert moved == Moved((job.id, other.id))
        assert (await given.claim(job)).steps is None
        assert await store.steps(job.id) == []


class DurableSleeps:
    async def test_a_durable_sleep_is_stored_with_its_outcome(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job, now = await running_job_with_steps(store, given, "one"), clock.time()

        await requests.settle(store, job, SnoozeOutcome(HOUR, "sleep 1"))

        asleep = await requests.current_job(store, job)
        assert (asleep.state, asleep.run_at, asleep.attempts) == (State.SCHEDULED, now + HOUR, 0)
        assert (asleep.worker, asleep.lease_until, asleep.steps) == (None, None, StepState(2))
        [_, sleep] = await store.steps(job.id)
        assert sleep == StepRecord(job.id, 1, StepKind.SLEEP, "sleep 1", None, now, now + HOUR)

    async def test_a_plain_snooze_writes_no_step(self, store: Store, given: Given) -> None:
        job = await given.settled(SnoozeOutcome(HOUR))

        assert job.steps is None
        assert await store.steps(job.id) == []

    async def test_a_sleeping_job_runs_again_after_its_sleep(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.settled(SnoozeOutcome(HOUR, "sleep 1"))
        clock.advance(HOUR - 1)
        assert await requests.claim(store) == ()

        clock.advance(1)

        reclaimed = await given.claim(job)
        assert (reclaimed.attempts, reclaimed.steps) == (1, StepState(1))

    async def test_a_job_with_a_cancel_request_is_canceled_instead_of_sleeping(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running()
        await requests.operate(store, CancelJobs(ids=(job.id,)))

        await requests.settle(store, job, SnoozeOutcome(HOUR, "sleep 1"))

        assert (await requests.current_job(store, job)).state is State.CANCELED
        assert await store.steps(job.id) == []


class Signals:
    async def test_a_job_that_waits_for_a_signal_holds_no_lease_and_no_attempt(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job, now = await job_waiting_for_signal(store, given, timeout=HOUR), clock.time()

        assert (job.state, job.run_at, job.attempts, job.awaited_signal) == (
            State.SCHEDULED,
            now + HOUR,
            0,
            "go",
        )
        assert (job.worker, job.lease_until) == (None, None)
        assert await store.steps(job.id) == [
            StepRecord(job.id, 0, StepKind.SIGNAL, "go", None, None, now + HOUR)
        ]
        assert await requests.claim(store) == ()

    async def test_a_signal_makes_the_job_that_waits_for_it_ready(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await job_waiting_for_signal(store, given)
        clock.advance(MINUTE)
        cursor = await store.latest_cursor()

        assert await requests.send(store, SendSignal(job.id, "go", '{"by":"ann"}')) is WRITTEN

        assert await requests.event_kinds(store, cursor) == [EventKind.WAITING]
        reclaimed = await given.claim(job)
        assert (reclaimed.attempts, reclaimed.awaited_signal) == (1, None)
        [signal] = await store.steps(job.id)
        assert (signal.result, signal.at) == ('{"by":"ann"}', clock.time())
        await requests.check_counters(store)

    async def test_a_signal_sent_before_the_wait_is_kept(self, store: Store, given: Given) -> None:
        job = await given.running()
        assert await requests.send(store, SendSignal(job.id, "go", "1")) is WRITTEN

        await requests.settle(store, job, WaitOutcome("go", HOUR))

        assert (await requests.current_job(store, job)).state is State.WAITING
        assert await step_results(store, await given.claim(job)) == [("go", "1")]

    @pytest.mark.parametrize("state", [State.BLOCKED, State.SCHEDULED, State.WAITING, State.CLAIMED])
    async def test_a_job_can_be_signaled_before_it_runs(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.in_state(state)

        assert await requests.send(store, SendSignal(job.id, "go", "1")) is WRITTEN

        after = await requests.current_job(store, job)
        assert (after.state, after.place, after.steps) == (state, job.place, StepState(1))

    async def test_the_first_signal_of_a_name_is_kept(self, store: Store, given: Given) -> None:
        job = await job_waiting_for_signal(store, given)
        await requests.send(store, SendSignal(job.id, "go", "1"))

        assert await requests.send(store, SendSignal(job.id, "go", "2")) is ALREADY

        assert await step_results(store, job) == [("go", "1")]

    async def test_a_signal_of_another_name_leaves_the_job_waiting(self, store: Store, given: Given) -> None:
        job = await job_waiting_for_signal(store, given)

        assert await requests.send(store, SendSignal(job.id, "other", "1")) is WRITTEN

        after = await requests.current_job(store, job)
        assert (after.state, after.awaited_signal, after.steps) == (State.SCHEDULED, "go", StepState(2, "go"))

    async def test_a_signal_cannot_replace_a_step_of_the_same_name(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.send(store, SendSignal(job.id, "charge", '"forged"'))

        assert await requests.send(store, PutStep(ref(job), "charge", '"real"')) is WRITTEN

        assert await step_results(store, job) == [("charge", '"forged"'), ("charge", '"real"')]

    async def test_a_signal_does_not_wake_a_sleeping_job(self, store: Store, given: Given) -> None:
        job = await job_waiting_for_signal(store, given)
        await requests.operate(store, PromoteJobs(ids=(job.id,)))
        await requests.settle(store, await given.claim(job), SnoozeOutcome(MINUTE, "sleep 1"))

        assert await requests.send(store, SendSignal(job.id, "go")) is WRITTEN

        assert (await requests.current_job(store, job)).state is State.SCHEDULED

    async def test_a_job_runs_without_its_signal_after_the_timeout(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await job_waiting_for_signal(store, given, timeout=MINUTE)
        clock.advance(MINUTE)

        reclaimed = await given.claim(job)

        [wait] = await store.steps(job.id)
        assert (wait.at, wait.until) == (None, reclaimed.claimed_at)

    async def test_a_signal_after_the_timeout_is_refused(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await job_waiting_for_signal(store, given, timeout=MINUTE)
        clock.advance(MINUTE)

        for _ in range(2):
            answer = await requests.send(store, SendSignal(job.id, "go", "1"))
            assert isinstance(answer, InvalidValue), answer
            assert await step_results(store, job) == [("go", None)]
            await requests.claim(store)

    async def test_a_repeated_wait_keeps_the_first_timeout(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job, now = await job_waiting_for_signal(store, given, timeout=HOUR), clock.time()
        clock.advance(MINUTE)
        await requests.operate(store, PromoteJobs(ids=(job.id,)))

        await requests.settle(store, await given.claim(job), WaitOutcome("go", 10 * HOUR))

        after = await requests.current_job(store, job)
        assert (after.run_at, after.awaited_signal, after.steps) == (now + HOUR, "go", StepState(1, "go"))

    async def test_a_postponed_job_still_waits_for_its_signal(self, store: Store, given: Given) -> None:
        job = await job_waiting_for_signal(store, given)
        await requests.operate(store, PostponeJobs(ids=(job.id,), delay=60.0))

        assert await requests.send(store, SendSignal(job.id, "go")) is WRITTEN

        assert (await requests.current_job(store, job)).state is State.WAITING

    async def test_a_wait_without_a_timeout_never_ends_by_itself(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.settled(WaitOutcome("go"))
        clock.advance(10 * 365 * 24 * HOUR)
        assert await requests.claim(store) == ()

        await requests.send(store, SendSignal(job.id, "go"))

        assert (await given.claim(job)).attempts == 1

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELED])
    async def test_a_signal_to_a_finished_job_is_refused(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.in_state(state)

        answer = await requests.send(store, SendSignal(job.id, "go"))

        assert isinstance(answer, InvalidMove), answer
        assert (answer.move, answer.state) == ("signal", state)
        assert await store.steps(job.id) == []

    async def test_a_signal_to_an_unknown_job_is_refused(self, store: Store) -> None:
        assert isinstance(await requests.send(store, SendSignal("unknown", "go")), UnknownJob)

    async def test_a_signal_payload_over_the_size_limit_is_refused(self, store: Store, given: Given) -> None:
        job = await given.waiting()

        answer = await requests.send(store, SendSignal(job.id, "go", '"' + "x" * 262_144 + '"'))

        assert isinstance(answer, TooLarge), answer
