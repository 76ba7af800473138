"""AsyncEndpoints' page about the life of a job: allowed transitions, the retry process, recovery, timestamps.

Its terms: Queued is waiting, InProgress is running, RetryCount is `attempts` - 1, MaxRetries is
`max_attempts` - 1, RetryDelayUntil is `run_at`, a claim's timeout is its lease, CompletedAt is `finished_at`.
Lines that begin with > are quoted from the page.
"""

import pytest

from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    PromoteJobs,
    RerunJobs,
    ResolveJobs,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.job import Failure, JobRecord
from errandry.core.retry import Backoff, Curve
from errandry.core.state import Reason, State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

QUEUED, SCHEDULED, RUNNING = State.WAITING, State.SCHEDULED, State.RUNNING
COMPLETED, FAILED, CANCELED = State.COMPLETED, State.FAILED, State.CANCELED
Trigger = (
    Outcome
    | type[CancelJobs]
    | type[PromoteJobs]
    | type[RerunJobs]
    | type[ResolveJobs]
    | type[EditJobs]
    | None
)

TRIGGERS: dict[tuple[State, State], tuple[Trigger, dict[str, object]]] = {
    (QUEUED, COMPLETED): (ResolveJobs, {"state": COMPLETED, "result": "1"}),
    (QUEUED, FAILED): (ResolveJobs, {"state": FAILED}),
    (QUEUED, CANCELED): (CancelJobs, {}),
    (QUEUED, RUNNING): (None, {}),
    (QUEUED, SCHEDULED): (EditJobs, {"run_at": 4e9}),
    (SCHEDULED, QUEUED): (PromoteJobs, {}),
    (SCHEDULED, CANCELED): (CancelJobs, {}),
    (RUNNING, COMPLETED): (CompleteOutcome("1"), {}),
    (RUNNING, FAILED): (FailOutcome(), {}),
    (RUNNING, CANCELED): (GiveUpOutcome(), {}),
    (RUNNING, SCHEDULED): (SnoozeOutcome(60.0), {}),
    (FAILED, QUEUED): (RerunJobs, {}),
    (FAILED, SCHEDULED): (RerunJobs, {"delay": 60.0}),
    (FAILED, CANCELED): (CancelJobs, {"force": True}),
    (COMPLETED, CANCELED): (CancelJobs, {"force": True}),
}
"""> private static bool IsValidStateTransition(JobStatus from, JobStatus to)"""


@pytest.mark.parametrize(("start", "end"), TRIGGERS, ids=str)
async def test_every_transition_that_the_page_allows_is_possible(
    store: Store, start: State, end: State
) -> None:
    given = Given(store)
    job = await given.in_state(start)
    trigger, options = TRIGGERS[start, end]
    if trigger is None:
        await given.claim(job)
    elif isinstance(trigger, type):
        answer = await requests.operate(store, trigger(ids=(job.id,), **options))  # type: ignore[arg-type]
        assert answer.moved == (job.id,), answer
    else:
        await requests.settle(store, job, trigger)

    assert (await given.current_job(job.id)).state is end


async def test_retries_back_off_exponentially_and_the_last_one_fails(store: Store, clock: FakeClock) -> None:
    """> Retry 0: 2 seconds (2^0 * 2) · Retry 1: 4 · Retry 2: 8 · Retry 3: 16
    > Increment retryCount · Set RetryDelayUntil · Update status to Scheduled · Release worker assignment
    > If no retries available: Set error details · Update status to Failed"""
    given = Given(store)
    backoff = Backoff(Curve.EXPONENTIAL, 2.0, jitter=0.0)
    job = await given.waiting(max_attempts=5, backoff=backoff)
    for retry, wait in enumerate((2.0, 4.0, 8.0, 16.0)):
        job = await given.claim(job)
        assert job.attempts == retry + 1
        await requests.settle(store, job, RetryOutcome(Failure(Reason.ERROR, "OSError", "no")))
        job = await given.current_job(job.id)
        assert (job.state, job.worker, job.run_at) == (SCHEDULED, None, clock.time() + wait)
        clock.advance(wait)
    await requests.settle(store, await given.claim(job), RetryOutcome(Failure(Reason.ERROR, "OSError", "no")))

    job = await given.current_job(job.id)
    assert (job.state, len(job.errors), job.errors[-1].message) == (FAILED, 5, "no")


async def test_a_timeout_fails_the_job_and_is_recorded(store: Store) -> None:
    """> The job transitions to Failed status · An appropriate timeout error is recorded"""
    given = Given(store)
    job = await given.running(max_attempts=1, timeout=1_800.0)
    await requests.settle(
        store, job, RetryOutcome(Failure(Reason.TIMEOUT, "TimeoutError", "longer than 1800 s"))
    )

    job = await given.current_job(job.id)
    assert (job.state, job.reason, job.errors[0].type) == (FAILED, Reason.TIMEOUT, "TimeoutError")


async def test_a_job_of_a_failed_worker_can_be_claimed_by_another(store: Store, clock: FakeClock) -> None:
    """> Workers can claim jobs that were being processed by failed instances"""
    given = Given(store)
    job = await given.running(worker="failed instance", lease=300.0)
    clock.advance(300.0)

    reclaimed = await given.claim(job, worker="another")
    assert (reclaimed.worker, reclaimed.attempts, reclaimed.crashes) == ("another", 2, 1)


@pytest.mark.parametrize("outcome", [CompleteOutcome(), FailOutcome(), GiveUpOutcome()])
async def test_each_move_sets_its_timestamp(store: Store, clock: FakeClock, outcome: Outcome) -> None:
    """> CreatedAt · StartedAt: set when status becomes InProgress
    > CompletedAt: set when status becomes Completed/Failed/Canceled
    > LastUpdatedAt: When the job record was last modified"""
    given = Given(store)
    times = [clock.time()]
    job = await given.waiting()
    assert _timestamps(job) == (times[0], None, None, times[0])

    clock.advance(10.0)
    times.append(clock.time())
    job = await given.claim(job)
    assert _timestamps(job) == (times[0], times[1], None, times[1])

    clock.advance(10.0)
    times.append(clock.time())
    await requests.settle(store, job, outcome)
    assert _timestamps(await given.current_job(job.id)) == (*times, times[2])


def _timestamps(job: JobRecord) -> tuple[float | None, ...]:
    return job.created_at, job.started_at, job.finished_at, job.updated_at
