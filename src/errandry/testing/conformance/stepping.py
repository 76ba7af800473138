"""Durable steps: kept under the fence; sleeps and waits that hold nothing; signals, early, once and late."""

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
from errandry.core.step import STEPS_MAX, SendSignal, Step, StepKind, StepState, WaitOutcome
from errandry.errors import InvalidMove, InvalidValue, TooLarge, UnknownJob
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

MINUTE, HOUR = 60.0, 3_600.0


async def stepped(store: Store, given: Given, *names: str, **fields: Any) -> JobRecord:
    """A running job that has done these steps."""
    job = await given.running(**fields)
    for name in names:
        assert await requests.one(store, PutStep(ref(job), name, f'"{name}"')) is WRITTEN
    return job


async def waiting_for(store: Store, given: Given, name: str = "go", timeout: float = HOUR) -> JobRecord:
    """A job that waits for a signal."""
    job = await given.running()
    assert await requests.settle(store, job, WaitOutcome(name, timeout)) is WRITTEN
    return await requests.current(store, job)


async def results(store: Store, job: JobRecord) -> list[tuple[str, str | None]]:
    return [(step.name, step.result) for step in await store.steps(job.id)]


class Stepping:
    async def test_steps_are_kept_in_their_order(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await stepped(store, given, "reserve")
        clock.advance(5)
        await requests.one(store, PutStep(ref(job), "charge", '{"ok":true}'))

        assert await store.steps(job.id) == [
            Step(job.id, 0, StepKind.STEP, "reserve", '"reserve"', clock.time() - 5),
            Step(job.id, 1, StepKind.STEP, "charge", '{"ok":true}', clock.time()),
        ]
        after = await requests.current(store, job)
        assert (after.steps, after.state, after.updated_at) == (StepState(2), State.RUNNING, clock.time())

    async def test_a_job_without_steps_has_none(self, store: Store, given: Given) -> None:
        job = await given.running()

        assert await store.steps(job.id) == []
        assert await store.steps("nobody") == []
        assert job.steps is None

    async def test_the_first_result_of_a_step_stays(self, store: Store, given: Given) -> None:
        job = await stepped(store, given, "charge")

        assert await requests.one(store, PutStep(ref(job), "charge", '"again"')) is ALREADY

        assert await results(store, job) == [("charge", '"charge"')]
        assert (await requests.current(store, job)).steps == StepState(1)

    async def test_a_lost_claim_writes_no_step(self, store: Store, clock: FakeClock, given: Given) -> None:
        stale = await stepped(store, given, "one", max_attempts=9)
        clock.advance(30)
        fresh = await given.taken(stale)

        assert await requests.one(store, PutStep(ref(stale), "two")) == Lost(LossCause.OTHER_FENCE)
        assert await requests.one(store, PutStep(ref(fresh), "two", "2")) is WRITTEN

        assert await results(store, stale) == [("one", '"one"'), ("two", "2")]

    @pytest.mark.parametrize(
        "outcome",
        [RetryOutcome(delay=0.0), ReleaseOutcome(), SnoozeOutcome(0.0)],
        ids=["retry", "release", "snooze"],
    )
    async def test_the_next_attempt_finds_them(
        self, store: Store, given: Given, outcome: RetryOutcome | ReleaseOutcome | SnoozeOutcome
    ) -> None:
        job = await stepped(store, given, "one")
        await requests.settle(store, job, outcome)

        again = await given.taken(job)

        assert again.steps == StepState(1)
        assert await results(store, job) == [("one", '"one"')]
        assert await requests.one(store, PutStep(ref(again), "one")) is ALREADY

    async def test_a_result_has_a_bound(self, store: Store, given: Given) -> None:
        job = await given.running()

        refused = await requests.one(store, PutStep(ref(job), "big", '"' + "x" * 262_144 + '"'))

        assert isinstance(refused, TooLarge), refused
        assert await results(store, job) == []

    async def test_a_job_has_so_many_steps_and_no_more(self, store: Store, given: Given) -> None:
        job = await given.running()
        for number in range(STEPS_MAX):
            await requests.one(store, PutStep(ref(job), f"step {number}"))

        for command in (PutStep(ref(job), "more"), SendSignal(job.id, "more")):
            refused = await requests.one(store, command)
            assert isinstance(refused, InvalidValue), refused

        assert await requests.one(store, PutStep(ref(job), "step 7")) is ALREADY
        assert (await requests.current(store, job)).steps == StepState(STEPS_MAX)

    async def test_steps_go_with_their_job(self, store: Store, clock: FakeClock, given: Given) -> None:
        pruned = await stepped(store, given, "one", keep=Keep(completed=HOUR))
        await requests.settle(store, pruned, CompleteOutcome())
        removed = await stepped(store, given, "one")
        at_once = await stepped(store, given, "one", keep=Keep(completed=0))
        assert await results(store, pruned) == [("one", '"one"')]

        await requests.operate(store, RemoveJobs(ids=(removed.id,), force=True))
        await requests.settle(store, at_once, CompleteOutcome())
        clock.advance(HOUR)
        await requests.upkeep(store)

        for job in (pruned, removed, at_once):
            assert await requests.is_gone(store, job)
            assert await store.steps(job.id) == []

    async def test_who_comes_after_under_the_same_id_has_no_steps(self, store: Store, given: Given) -> None:
        job = await stepped(store, given, "one", id="same")
        await requests.operate(store, RemoveJobs(ids=(job.id,), force=True))

        again = await given.running(id="same")

        assert again.steps is None
        assert await requests.one(store, PutStep(ref(again), "one", "2")) is WRITTEN
        assert await results(store, again) == [("one", "2")]

    @pytest.mark.parametrize("outcome", [CompleteOutcome("1"), FailOutcome()], ids=["completed", "failed"])
    async def test_a_rerun_goes_on_after_what_is_done(
        self, store: Store, given: Given, outcome: CompleteOutcome | FailOutcome
    ) -> None:
        job = await stepped(store, given, "one")
        await requests.settle(store, job, outcome)

        await requests.operate(store, RerunJobs(ids=(job.id,)))

        assert (await given.taken(job)).steps == StepState(1)
        assert await results(store, job) == [("one", '"one"')]

    async def test_a_rerun_from_the_start_forgets_them(self, store: Store, given: Given) -> None:
        job, other = await stepped(store, given, "one"), await given.failed()
        await requests.settle(store, job, FailOutcome())

        moved = await requests.operate(store, RerunJobs(ids=(job.id, other.id), from_start=True))

        assert moved == Moved((job.id, other.id))
        assert (await given.taken(job)).steps is None
        assert await store.steps(job.id) == []


class Sleeping:
    async def test_a_sleep_is_written_with_the_outcome(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job, now = await stepped(store, given, "one"), clock.time()

        await requests.settle(store, job, SnoozeOutcome(HOUR, "sleep 1"))

        asleep = await requests.current(store, job)
        assert (asleep.state, asleep.run_at, asleep.attempts) == (State.SCHEDULED, now + HOUR, 0)
        assert (asleep.worker, asleep.lease_until, asleep.steps) == (None, None, StepState(2))
        [_, sleep] = await store.steps(job.id)
        assert sleep == Step(job.id, 1, StepKind.SLEEP, "sleep 1", None, now, now + HOUR)

    async def test_a_plain_snooze_is_no_step(self, store: Store, given: Given) -> None:
        job = await given.settled(SnoozeOutcome(HOUR))

        assert job.steps is None
        assert await store.steps(job.id) == []

    async def test_it_runs_again_when_it_has_slept(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.settled(SnoozeOutcome(HOUR, "sleep 1"))
        clock.advance(HOUR - 1)
        assert await requests.claim(store) == ()

        clock.advance(1)

        again = await given.taken(job)
        assert (again.attempts, again.steps) == (1, StepState(1))

    async def test_one_to_be_canceled_does_not_fall_asleep(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.operate(store, CancelJobs(ids=(job.id,)))

        await requests.settle(store, job, SnoozeOutcome(HOUR, "sleep 1"))

        assert (await requests.current(store, job)).state is State.CANCELED
        assert await store.steps(job.id) == []


class Signaling:
    async def test_a_waiting_job_holds_nothing(self, store: Store, clock: FakeClock, given: Given) -> None:
        job, now = await waiting_for(store, given, timeout=HOUR), clock.time()

        assert (job.state, job.run_at, job.attempts, job.awaits) == (State.SCHEDULED, now + HOUR, 0, "go")
        assert (job.worker, job.lease_until) == (None, None)
        assert await store.steps(job.id) == [Step(job.id, 0, StepKind.SIGNAL, "go", None, None, now + HOUR)]
        assert await requests.claim(store) == ()

    async def test_its_signal_puts_it_in_line(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await waiting_for(store, given)
        clock.advance(MINUTE)
        head = await store.latest_cursor()

        assert await requests.one(store, SendSignal(job.id, "go", '{"by":"ann"}')) is WRITTEN

        assert await requests.kinds(store, head) == [EventKind.WAITING]
        again = await given.taken(job)
        assert (again.attempts, again.awaits) == (1, None)
        [signal] = await store.steps(job.id)
        assert (signal.result, signal.at) == ('{"by":"ann"}', clock.time())
        await requests.conserved(store)

    async def test_a_signal_before_the_wait_is_kept(self, store: Store, given: Given) -> None:
        job = await given.running()
        assert await requests.one(store, SendSignal(job.id, "go", "1")) is WRITTEN

        await requests.settle(store, job, WaitOutcome("go", HOUR))

        assert (await requests.current(store, job)).state is State.WAITING
        assert await results(store, await given.taken(job)) == [("go", "1")]

    @pytest.mark.parametrize("state", [State.BLOCKED, State.SCHEDULED, State.WAITING, State.CLAIMED])
    async def test_one_can_be_signaled_before_it_has_begun(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.brought(state)

        assert await requests.one(store, SendSignal(job.id, "go", "1")) is WRITTEN

        after = await requests.current(store, job)
        assert (after.state, after.place, after.steps) == (state, job.place, StepState(1))

    async def test_the_first_signal_of_a_name_counts(self, store: Store, given: Given) -> None:
        job = await waiting_for(store, given)
        await requests.one(store, SendSignal(job.id, "go", "1"))

        assert await requests.one(store, SendSignal(job.id, "go", "2")) is ALREADY

        assert await results(store, job) == [("go", "1")]

    async def test_another_signal_leaves_it_waiting(self, store: Store, given: Given) -> None:
        job = await waiting_for(store, given)

        assert await requests.one(store, SendSignal(job.id, "other", "1")) is WRITTEN

        after = await requests.current(store, job)
        assert (after.state, after.awaits, after.steps) == (State.SCHEDULED, "go", StepState(2, "go"))

    async def test_a_signal_does_not_pose_as_a_step(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.one(store, SendSignal(job.id, "charge", '"forged"'))

        assert await requests.one(store, PutStep(ref(job), "charge", '"real"')) is WRITTEN

        assert await results(store, job) == [("charge", '"forged"'), ("charge", '"real"')]

    async def test_one_that_sleeps_is_not_woken(self, store: Store, given: Given) -> None:
        job = await waiting_for(store, given)
        await requests.operate(store, PromoteJobs(ids=(job.id,)))
        await requests.settle(store, await given.taken(job), SnoozeOutcome(MINUTE, "sleep 1"))

        assert await requests.one(store, SendSignal(job.id, "go")) is WRITTEN

        assert (await requests.current(store, job)).state is State.SCHEDULED

    async def test_after_the_timeout_it_runs_without(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await waiting_for(store, given, timeout=MINUTE)
        clock.advance(MINUTE)

        again = await given.taken(job)

        [wait] = await store.steps(job.id)
        assert (wait.at, wait.until) == (None, again.claimed_at)

    async def test_a_signal_that_comes_too_late_is_refused(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await waiting_for(store, given, timeout=MINUTE)
        clock.advance(MINUTE)

        for _ in range(2):
            late = await requests.one(store, SendSignal(job.id, "go", "1"))
            assert isinstance(late, InvalidValue), late
            assert await results(store, job) == [("go", None)]
            await requests.claim(store)

    async def test_who_waits_again_waits_for_what_is_left(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job, now = await waiting_for(store, given, timeout=HOUR), clock.time()
        clock.advance(MINUTE)
        await requests.operate(store, PromoteJobs(ids=(job.id,)))

        await requests.settle(store, await given.taken(job), WaitOutcome("go", 10 * HOUR))

        after = await requests.current(store, job)
        assert (after.run_at, after.awaits, after.steps) == (now + HOUR, "go", StepState(1, "go"))

    async def test_one_that_was_postponed_still_waits(self, store: Store, given: Given) -> None:
        job = await waiting_for(store, given)
        await requests.operate(store, PostponeJobs(ids=(job.id,), delay=60.0))

        assert await requests.one(store, SendSignal(job.id, "go")) is WRITTEN

        assert (await requests.current(store, job)).state is State.WAITING

    async def test_without_a_timeout_it_waits_for_as_long_as_it_takes(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.settled(WaitOutcome("go"))
        clock.advance(10 * 365 * 24 * HOUR)
        assert await requests.claim(store) == ()

        await requests.one(store, SendSignal(job.id, "go"))

        assert (await given.taken(job)).attempts == 1

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELED])
    async def test_one_that_has_finished_takes_no_signal(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.brought(state)

        refused = await requests.one(store, SendSignal(job.id, "go"))

        assert isinstance(refused, InvalidMove), refused
        assert (refused.move, refused.state) == ("signal", state)
        assert await store.steps(job.id) == []

    async def test_nobody_has_no_signals(self, store: Store) -> None:
        assert isinstance(await requests.one(store, SendSignal("nobody", "go")), UnknownJob)

    async def test_what_comes_with_a_signal_has_a_bound(self, store: Store, given: Given) -> None:
        job = await given.waiting()

        refused = await requests.one(store, SendSignal(job.id, "go", '"' + "x" * 262_144 + '"'))

        assert isinstance(refused, TooLarge), refused
