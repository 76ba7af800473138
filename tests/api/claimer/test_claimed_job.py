"""The verbs of a claimed job: progress and outcomes, and what its block settles."""

import asyncio
import logging
from typing import Any

import pytest

from errandry import Cancel, ClaimedJob, Errandry, Fail, Retry, Snooze, State
from errandry.claims.open_claim import OpenClaim
from errandry.core.answer import Claims
from errandry.core.command import Claim
from errandry.core.job import Progress
from errandry.core.state import Reason
from errandry.errors import AlreadySettled, InvalidValue
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from tests.api.claimer.claims import BOOM, Verb, claim_one, snapshot
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import wait_for_job

# Progress and log lines


async def test_progress_and_log_lines_are_stored_when_the_verb_returns(
    jobs: Errandry, clock: FakeClock
) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer() as claimer:
        job = await claim_one(claimer)
        await job.progress(50, "half", total=100)
        await job.log("on it", "warning")
        record = await jobs.client.record(enqueued.id)

    assert record.progress is not None
    assert (record.progress.share, record.progress.text) == (0.5, "half")
    assert [(line.at, line.text, line.level) for line in record.logs] == [(clock.time(), "on it", "warning")]


async def test_the_level_of_a_line_may_be_a_number_of_logging(memory_jobs: Errandry) -> None:
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        await (await claim_one(claimer)).log("on it", logging.WARNING)

    assert [line.level for line in (await memory_jobs.client.record(enqueued.id)).logs] == ["warning"]


@pytest.mark.parametrize("level", ["", 30.5])
async def test_a_line_with_a_wrong_level_is_written_as_info_with_a_warning(
    memory_jobs: Errandry, level: Any, caplog: pytest.LogCaptureFixture
) -> None:
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        await (await claim_one(claimer)).log("on it", level)

    assert [line.level for line in (await memory_jobs.client.record(enqueued.id)).logs] == ["info"]
    assert f"a log line is written as info: level={level!r}: must be a name" in caplog.text


async def test_a_value_that_is_no_progress_is_not_written_and_costs_no_attempt(
    memory_jobs: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer, await claim_one(claimer) as job:
        await job.progress(0.25)
        await job.progress(50)
        await job.complete()

    record = await memory_jobs.client.record(enqueued.id)
    assert (record.state, record.progress) == (State.COMPLETED, Progress(0.25))
    assert "progress(50) is not written: give a share from 0 to 1, or a count with its total" in caplog.text


# Outcomes


OUTCOMES: dict[str, tuple[Verb, State, tuple[Reason, str, str] | None, int]] = {
    "complete": (lambda job: job.complete(7), State.COMPLETED, None, 1),
    "retry": (lambda job: job.retry(BOOM), State.SCHEDULED, (Reason.ERROR, "RuntimeError", "boom"), 1),
    "retry with a text": (
        lambda job: job.retry("busy", delay=0),
        State.WAITING,
        (Reason.ERROR, "Retry", "busy"),
        1,
    ),
    "fail": (
        lambda job: job.fail(BOOM),
        State.FAILED,
        (Reason.UNRECOVERABLE, "RuntimeError", "boom"),
        1,
    ),
    "fail with a text": (
        lambda job: job.fail("no address"),
        State.FAILED,
        (Reason.UNRECOVERABLE, "Fail", "no address"),
        1,
    ),
    "snooze": (lambda job: job.snooze("1 hour"), State.SCHEDULED, None, 0),
    "release": (lambda job: job.release(), State.WAITING, None, 0),
    "cancel": (
        lambda job: job.cancel("obsolete"),
        State.CANCELED,
        (Reason.CANCELED, "Cancel", "obsolete"),
        1,
    ),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_verb_settles_the_job(jobs: Errandry, outcome: str) -> None:
    verb, state, error, attempts = OUTCOMES[outcome]
    enqueued = await jobs.enqueue("send", backoff="1 minute")

    async with jobs.claimer() as claimer:
        job = await claim_one(claimer)
        await verb(job)
        assert job.settled
        record = await jobs.client.record(enqueued.id)

    assert (record.state, record.attempts) == (state, attempts)
    errors = [(failed.kind, failed.type, failed.message) for failed in record.errors]
    assert errors == ([] if error is None else [error])


async def test_a_completed_job_has_the_result(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer() as claimer:
        await (await claim_one(claimer)).complete({"sent": ["ada"]})

    assert await enqueued.result(WAIT_TIMEOUT) == {"sent": ["ada"]}


async def test_a_retry_waits_for_the_delay_or_the_backoff_function(jobs: Errandry, clock: FakeClock) -> None:
    @jobs.backoff
    def patient(attempt: int) -> float:
        return 100.0 * attempt

    @jobs.task(backoff="patient")
    async def send() -> None: ...

    for _ in range(3):
        await send.enqueue()
    async with jobs.claimer() as claimer:
        first, second, third = await claimer.claim(limit=3)
        await first.retry("busy")
        await second.retry("busy", delay="5 seconds")
        await third.retry(Retry("busy", after="7 seconds"))
    delays = [
        ((await jobs.client.record(job.id)).run_at or 0.0) - clock.time() for job in (first, second, third)
    ]

    assert delays == [100.0, 5.0, 7.0]


@pytest.mark.parametrize("delay", [None, "5 seconds"])
async def test_a_retry_may_pause_the_group(jobs: Errandry, delay: str | None) -> None:
    for _ in range(2):
        await jobs.enqueue("send", group="acme")
    async with jobs.claimer() as claimer:
        job = await claim_one(claimer)
        await job.retry(Retry("slow down", after="5 seconds", pause_group=True), delay=delay)

        assert await claimer.claim() == []


async def test_a_retry_fails_the_job_when_its_attempts_are_spent(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send", max_attempts=1)
    async with jobs.claimer() as claimer:
        await (await claim_one(claimer)).retry(BOOM)

    assert (await jobs.client.record(enqueued.id)).state is State.FAILED


@pytest.mark.parametrize("second", ["renew", "progress", "log", *OUTCOMES])
async def test_a_settled_job_refuses_every_verb(memory_jobs: Errandry, second: str) -> None:
    verbs: dict[str, Verb] = {
        "renew": lambda job: job.renew(),
        "progress": lambda job: job.progress(0.5),
        "log": lambda job: job.log("late"),
        **{name: outcome[0] for name, outcome in OUTCOMES.items()},
    }
    await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        job = await claim_one(claimer)
        await job.snooze("1 hour")
        before = await snapshot(memory_jobs)

        with pytest.raises(AlreadySettled, match="is settled, or being settled, by snooze"):
            await verbs[second](job)

        assert await snapshot(memory_jobs) == before


# Blocks


async def test_an_exception_that_leaves_the_block_retries_the_job_and_is_raised_on(jobs: Errandry) -> None:
    failing, other = [await jobs.enqueue("send", backoff="1 minute") for _ in range(2)]

    async def run() -> None:
        async with jobs.claimer() as claimer:
            for job in await claimer.claim(limit=2):
                async with job:
                    raise BOOM

    with pytest.raises(RuntimeError, match="boom"):
        await run()
    failed, released = [await jobs.client.record(job.id) for job in (failing, other)]
    assert (failed.state, failed.attempts, failed.errors[0].message) == (State.SCHEDULED, 1, "boom")
    assert "raise BOOM" in failed.errors[0].traceback
    assert (released.state, released.attempts, released.releases) == (State.WAITING, 0, 1)


async def test_the_rules_of_a_declared_task_decide_about_an_exception(jobs: Errandry) -> None:
    @jobs.task(fail_on=LookupError)
    async def send() -> None: ...

    job = await send.enqueue()
    async with jobs.claimer() as claimer:
        with pytest.raises(LookupError):
            async with await claim_one(claimer):
                raise LookupError("no such address")

    record = await jobs.client.record(job.id)
    assert (record.state, record.reason) == (State.FAILED, Reason.UNRECOVERABLE)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Retry("busy", after=0), State.WAITING),
        (Snooze("1 hour"), State.SCHEDULED),
        (Fail("no address"), State.FAILED),
        (Cancel("obsolete"), State.CANCELED),
        (ExceptionGroup("tasks", [Snooze("1 hour")]), State.SCHEDULED),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_outcome_that_leaves_the_block_settles_the_job_and_ends_there(
    memory_jobs: Errandry, outcome: Exception, state: State
) -> None:
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        async with await claim_one(claimer):
            raise outcome

        assert (await memory_jobs.client.record(enqueued.id)).state is state


@pytest.mark.parametrize("leave", ["normally", "by a cancellation", "by an exit"])
async def test_a_block_that_ends_without_an_outcome_or_an_error_releases_the_job(
    jobs: Errandry, leave: str
) -> None:
    enqueued = await jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(claimer):
            if leave == "by a cancellation":
                raise asyncio.CancelledError
            if leave == "by an exit":
                raise SystemExit(1)

    async with jobs.claimer() as claimer:
        try:
            await run()
        except (asyncio.CancelledError, SystemExit):
            assert leave != "normally"
        record = await jobs.client.record(enqueued.id)

    assert (record.state, record.attempts, record.releases, record.errors) == (State.WAITING, 0, 1, ())


async def test_a_block_leaves_a_settled_job_alone(memory_jobs: Errandry) -> None:
    enqueued = await memory_jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(claimer) as job:
            await job.complete("done")
            raise BOOM

    async with memory_jobs.claimer() as claimer:
        with pytest.raises(RuntimeError):
            await run()

    record = await memory_jobs.client.record(enqueued.id)
    assert (record.state, record.errors) == (State.COMPLETED, ())


async def test_leaving_the_claimer_releases_unsettled_jobs_at_no_cost(jobs: Errandry) -> None:
    ids = [(await jobs.enqueue("send")).id for _ in range(3)]
    async with jobs.claimer() as claimer:
        first, *others = await claimer.claim(limit=3)
        await first.complete()

    records = [await jobs.client.record(job_id) for job_id in ids]
    assert [(record.state, record.attempts) for record in records] == [
        (State.COMPLETED, 1),
        (State.WAITING, 0),
        (State.WAITING, 0),
    ]
    with pytest.raises(AlreadySettled, match="by release"):
        await others[0].complete()


async def test_an_outcome_whose_caller_was_canceled_is_written(memory_jobs: Errandry) -> None:
    assert isinstance(memory_jobs.store, MemoryStore)
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer(upkeep=False) as claimer:
        job = await claim_one(claimer)
        memory_jobs.store.latency = 0.3
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), job:
                await job.complete("done")
        assert job.settled

    assert (await memory_jobs.client.record(enqueued.id)).state is State.COMPLETED


async def test_the_jobs_of_a_canceled_claim_are_released(memory_jobs: Errandry) -> None:
    assert isinstance(memory_jobs.store, MemoryStore)
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer(upkeep=False) as claimer:
        memory_jobs.store.latency = 0.3
        claiming = asyncio.create_task(claimer.claim())
        await asyncio.sleep(0.01)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        record = await wait_for_job(memory_jobs, enqueued.id, lambda record: record.releases == 1)

    assert (record.state, record.attempts) == (State.WAITING, 0)


# Wrong values


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda job: job.retry(None), "error=None: must be an exception or a text"),
        (lambda job: job.retry("x", delay="soon"), "delay='soon': not a duration"),
        (lambda job: job.complete(Cancel), r"is an outcome, not a result: use job.cancel\(…\)"),
        (lambda job: job.complete(Snooze(5)), r"is an outcome, not a result: use job.snooze\(…\)"),
        (lambda job: job.fail(7), "error=7: must be an exception or a text"),
        (lambda job: job.snooze(-1), "delay=-1: must be from 0 to a century"),
    ],
)
async def test_a_wrong_value_is_refused_and_the_job_goes_on(
    memory_jobs: Errandry, verb: Verb, message: str
) -> None:
    await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        job = await claim_one(claimer)
        with pytest.raises(InvalidValue, match=message):
            await verb(job)
        await job.complete()


async def test_an_exception_that_ends_the_claimers_block_is_that_of_its_only_job(jobs: Errandry) -> None:
    done, failed = await jobs.enqueue("send"), await jobs.enqueue("send", backoff="1 minute")

    async def run() -> None:
        async with jobs.claimer() as claimer:
            await (await claim_one(claimer)).complete()
            await claim_one(claimer)
            raise BOOM

    with pytest.raises(RuntimeError):
        await run()

    record = await jobs.client.record(failed.id)
    assert (await done.refresh()).state is State.COMPLETED
    assert (record.state, record.attempts, record.releases) == (State.SCHEDULED, 1, 0)
    assert record.errors[0].type == "RuntimeError"


async def test_an_exception_that_ends_the_claimers_block_releases_several_jobs(jobs: Errandry) -> None:
    enqueued = [await jobs.enqueue("send") for _ in range(2)]

    async def run() -> None:
        async with jobs.claimer() as claimer:
            await claimer.claim(2)
            raise BOOM

    with pytest.raises(RuntimeError):
        await run()

    records = [await jobs.client.record(job.id) for job in enqueued]
    assert {(record.state, record.attempts, record.errors) for record in records} == {(State.WAITING, 0, ())}


@pytest.mark.parametrize("settle", [ClaimedJob.complete, ClaimedJob.release])
async def test_a_settled_claim_is_not_renewed_before_it_is_forgotten(
    memory_jobs: Errandry, clock: FakeClock, settle: Verb
) -> None:
    """The leases are renewed on another thread: it would find the lease lost, and log a false warning."""
    await memory_jobs.enqueue("send")
    claimed = await memory_jobs.engine.submit(Claim(worker="w", nonce="n", start=True, lease=30.0))
    assert isinstance(claimed, Claims)
    needs_renewal = list[bool]()

    def note_end(claim: OpenClaim) -> None:
        needs_renewal.append(claim.needs_renewal(clock.monotonic()))

    claim = OpenClaim(claimed.jobs[0], clock, 30.0, clock.monotonic(), True, note_end)
    await settle(ClaimedJob(memory_jobs, claim))

    assert needs_renewal == [False]
