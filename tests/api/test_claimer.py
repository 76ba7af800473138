"""`jobs.claimer`: a program that is not a worker claims, renews and settles jobs by hand."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from errandry import Cancel, ClaimedJob, Claimer, Errandry, Fail, Retry, Snooze, State, flow, result_of
from errandry.codec.json_codec import DocumentInfo
from errandry.core.answer import Answer
from errandry.core.command import Claim, Command, Settle, Upkeep
from errandry.core.state import Reason
from errandry.errors import (
    AlreadySettled,
    CommandFailed,
    InvalidValue,
    LeaseLost,
    ReplyLost,
    SealBroken,
    StoreFull,
    StoreUnavailable,
    TooLarge,
)
from errandry.store.contract import StoreLimits
from errandry.store.engine.backlog import WriteLimits
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from tests.app_fixtures import STORES
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import outlast_lease, wait_for_job
from tests.store.server import reuse_sessions

LEASE = 30.0


@pytest.fixture(params=STORES)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Errandry]:
    """On each store, on a fake clock."""
    with reuse_sessions(), ExitStack() as stack:
        async with Errandry(store=STORES[request.param](tmp_path, clock, stack), clock=clock) as jobs:
            yield jobs


@pytest.fixture
async def memory_jobs(clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry("memory:", clock=clock) as jobs:
        yield jobs


async def claim_one(jobs: Errandry, claimer: Claimer) -> ClaimedJob:
    [job] = await claimer.claim()
    assert isinstance(job, ClaimedJob)
    return job


async def begin_to_wait(jobs: Errandry, claimer: Claimer) -> "asyncio.Task[list[ClaimedJob]]":
    """A claim that has found no job and waits for one. No other commands may be sent meanwhile."""
    passes = jobs.engine.stats().passes
    waiting = asyncio.create_task(claimer.claim(wait="1 hour"))
    async with asyncio.timeout(WAIT_TIMEOUT):
        while jobs.engine.stats().passes == passes:  # noqa: ASYNC110 - a pass has no event
            await asyncio.sleep(0.001)
    return waiting


async def snapshot(jobs: Errandry) -> tuple[object, ...]:
    """Everything that a refused verb could have changed."""
    page = await jobs.engine.call(jobs.store.list)
    return page.jobs, await jobs.counts(), await jobs.totals(), await jobs.latest_cursor()


# Claim


async def test_a_claimed_job_is_running_and_says_what_it_is(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send", {"to": "ada"}, queue="mail")

    async with jobs.claimer(worker="scraper") as claimer:
        [job] = await claimer.claim(limit=10)
        record = await jobs.client.record(enqueued.id)

        assert (job.id, job.task, job.queue, job.attempt) == (enqueued.id, "send", "mail", 1)
        assert job.arguments == {"to": "ada"}
        assert (job.settled, job.should_stop) == (False, False)
        assert (record.state, record.worker, record.fence) == (State.RUNNING, claimer.id, job.fence)
        assert claimer.id.startswith("scraper-")
        assert (await job.job.refresh()).id == job.id


async def test_a_claim_takes_up_to_its_limit_of_its_queues_and_tasks(jobs: Errandry) -> None:
    ids = [(await jobs.enqueue("send", queue="mail")).id for _ in range(3)]
    await jobs.enqueue("other", queue="mail")
    await jobs.enqueue("send", queue="bulk")

    async with jobs.claimer(queues=["mail"], tasks="send") as claimer:
        claims = [[job.id for job in await claimer.claim(limit=2)] for _ in range(3)]

    assert claims == [ids[:2], ids[2:], []]


async def test_a_claim_without_wait_returns_at_once(jobs: Errandry) -> None:
    async with jobs.claimer() as claimer:
        assert await claimer.claim() == []


async def test_a_claim_with_wait_returns_an_empty_list_if_no_job_came(memory_jobs: Errandry) -> None:
    async with memory_jobs.claimer() as claimer:
        began = time.monotonic()
        assert await claimer.claim(wait=0.05) == []

    assert time.monotonic() - began >= 0.05


async def test_a_waiting_claim_is_woken_by_a_new_job(jobs: Errandry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not poll: the next poll would be in an hour."""
    monkeypatch.setattr("errandry.api.claimer.POLL_INTERVAL", 3_600.0)
    async with jobs.claimer(upkeep=False) as claimer:
        waiting = await begin_to_wait(jobs, claimer)
        enqueued = await jobs.enqueue("send")
        async with asyncio.timeout(WAIT_TIMEOUT):
            [job] = await waiting

        assert job.id == enqueued.id


async def test_a_waiting_claim_gets_a_job_when_it_is_due(live: Errandry) -> None:
    enqueued = await live.enqueue("send", delay=0.05)
    async with live.claimer(upkeep=False) as claimer:
        [job] = await claimer.claim(wait=WAIT_TIMEOUT)

        assert job.id == enqueued.id


async def test_a_waiting_claim_ends_when_its_claimer_is_left(
    memory_jobs: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.api.claimer.POLL_INTERVAL", 3_600.0)
    async with memory_jobs.claimer(upkeep=False) as claimer:
        waiting = await begin_to_wait(memory_jobs, claimer)

    async with asyncio.timeout(WAIT_TIMEOUT):
        assert await waiting == []


async def test_pauses_and_limits_hold_for_a_claimer(jobs: Errandry) -> None:
    for _ in range(3):
        await jobs.enqueue("send", queue="mail")
    await jobs.queue("mail").set_rules(limit=2)

    async with jobs.claimer() as claimer:
        await jobs.workers.pause(claimer.id)
        assert await claimer.claim(limit=10) == []
        await jobs.workers.resume(claimer.id)
        await jobs.queue("mail").pause()
        assert await claimer.claim(limit=10) == []
        await jobs.queue("mail").resume()
        assert len(await claimer.claim(limit=10)) == 2


async def test_a_claimer_takes_one_suspect_at_a_time(jobs: Errandry, clock: FakeClock) -> None:
    """A job that was running when its worker died may do it again; the others should not die with it."""
    for _ in range(2):
        await jobs.enqueue("send")
    await jobs.engine.submit(Claim(worker="dead", nonce="1", limit=2, lease=LEASE))
    clock.advance(LEASE)

    async with jobs.claimer() as claimer:
        [first] = await claimer.claim(limit=10)
        assert await claimer.claim(limit=10) == []
        await first.complete()
        [second] = await claimer.claim(limit=10)

        assert (first.attempt, second.attempt) == (2, 2)


async def test_claims_of_one_claimer_at_the_same_time_take_one_suspect(
    jobs: Errandry, clock: FakeClock
) -> None:
    for _ in range(3):
        await jobs.enqueue("send")
    await jobs.engine.submit(Claim(worker="dead", nonce="1", limit=3, lease=LEASE))
    clock.advance(LEASE)

    async with jobs.claimer() as claimer:
        claims = await asyncio.gather(*[claimer.claim() for _ in range(3)])

    assert sorted(map(len, claims)) == [0, 0, 1]


async def test_a_claimer_is_listed_as_a_worker_while_it_is_open(jobs: Errandry) -> None:
    await jobs.enqueue("send", queue="mail")
    async with jobs.claimer(queues=["mail"], worker="scraper") as claimer:
        [worker] = await jobs.workers.list()
        [stored] = await jobs.engine.call(jobs.store.workers)
        assert (worker.id, worker.queues, worker.tasks, worker.slots) == (claimer.id, ("mail",), None, 0)
        assert Path(stored.beat.alive).exists()

    assert await jobs.workers.list() == []
    assert not Path(stored.beat.alive).exists()


async def test_a_claimer_sends_heartbeats(live: Errandry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("errandry.api.claimer.BEAT_INTERVAL", 0.01)
    await live.enqueue("send")
    async with live.claimer() as claimer:
        await claimer.claim()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (await live.workers.list())[0].running == 0:  # noqa: ASYNC110 - a beat has no event
                await asyncio.sleep(0.005)


async def test_a_claimer_runs_upkeep(live: Errandry) -> None:
    enqueued = await live.enqueue("send", delay=0.02)
    async with live.claimer(queues=["other"]):
        await wait_for_job(live, enqueued.id, lambda record: record.state is State.WAITING)


# Progress and log lines


async def test_progress_and_log_lines_are_stored_when_the_verb_returns(
    jobs: Errandry, clock: FakeClock
) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer() as claimer:
        job = await claim_one(jobs, claimer)
        await job.progress(50, "half", total=100)
        await job.log("on it", "warning")
        record = await jobs.client.record(enqueued.id)

    assert record.progress is not None
    assert (record.progress.share, record.progress.text) == (0.5, "half")
    assert [(line.at, line.text, line.level) for line in record.logs] == [(clock.time(), "on it", "warning")]


async def test_the_level_of_a_line_may_be_a_number_of_logging(memory_jobs: Errandry) -> None:
    enqueued = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        await (await claim_one(memory_jobs, claimer)).log("on it", logging.WARNING)

    assert [line.level for line in (await memory_jobs.client.record(enqueued.id)).logs] == ["warning"]


# Outcomes

Verb = Callable[[ClaimedJob], Awaitable[None]]
BOOM = RuntimeError("boom")

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
        job = await claim_one(jobs, claimer)
        await verb(job)
        assert job.settled
        record = await jobs.client.record(enqueued.id)

    assert (record.state, record.attempts) == (state, attempts)
    errors = [(failed.kind, failed.type, failed.message) for failed in record.errors]
    assert errors == ([] if error is None else [error])


async def test_a_completed_job_has_the_result(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer() as claimer:
        await (await claim_one(jobs, claimer)).complete({"sent": ["ada"]})

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
        job = await claim_one(jobs, claimer)
        await job.retry(Retry("slow down", after="5 seconds", pause_group=True), delay=delay)

        assert await claimer.claim() == []


async def test_a_retry_fails_the_job_when_its_attempts_are_spent(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send", max_attempts=1)
    async with jobs.claimer() as claimer:
        await (await claim_one(jobs, claimer)).retry(BOOM)

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
        job = await claim_one(memory_jobs, claimer)
        await job.snooze("1 hour")
        before = await snapshot(memory_jobs)

        with pytest.raises(AlreadySettled, match=f"job {job.id}: its claim was settled already, by snooze"):
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
            async with await claim_one(jobs, claimer):
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
        async with await claim_one(memory_jobs, claimer):
            raise outcome

        assert (await memory_jobs.client.record(enqueued.id)).state is state


@pytest.mark.parametrize("leave", ["normally", "by a cancellation", "by an exit"])
async def test_a_block_that_ends_without_an_outcome_or_an_error_releases_the_job(
    jobs: Errandry, leave: str
) -> None:
    enqueued = await jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(jobs, claimer):
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
        async with await claim_one(memory_jobs, claimer) as job:
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
        job = await claim_one(memory_jobs, claimer)
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


# A store that cannot take an outcome


class SettleRefusingStore(MemoryStore):
    """Raises `error` for each pass with an outcome, until `error` is None."""

    error: Exception | None = None
    refused = 0

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.error is not None and any(isinstance(command, Settle) for command in commands):
            self.refused += 1
            raise self.error
        return await super().commit(commands)


@pytest.fixture
def refusing(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> SettleRefusingStore:
    monkeypatch.setattr("errandry.api.claimed_job.RETRY_AFTER", 0.01)
    return SettleRefusingStore(clock)


async def refuse_once(store: SettleRefusingStore) -> None:
    """Wait until the store has refused an outcome, then let it take them."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not store.refused:  # noqa: ASYNC110 - a refusal has no event
            await asyncio.sleep(0.001)
    store.error = None


@pytest.mark.parametrize("leave", ["by a verb", "normally", "with an error", "with an outcome"])
@pytest.mark.parametrize(
    "error", [StoreFull("memory", "no space left"), StoreUnavailable("memory", "locked")], ids=str
)
async def test_an_outcome_that_the_store_cannot_take_yet_is_retried(
    refusing: SettleRefusingStore, clock: FakeClock, leave: str, error: StoreUnavailable
) -> None:
    async with Errandry(store=refusing, clock=clock, write_limits=WriteLimits(give_up_after=0.0)) as jobs:
        enqueued = await jobs.enqueue("send", backoff="1 minute")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(jobs, claimer)
            refusing.error = error
            recovering = asyncio.create_task(refuse_once(refusing))
            if leave == "by a verb":
                await job.complete("sent")
            elif leave == "with an error":
                with pytest.raises(RuntimeError):
                    async with job:
                        raise BOOM
            else:
                async with job:
                    if leave == "with an outcome":
                        raise Fail("no address")
            await recovering
            assert job.settled
        record = await jobs.client.record(enqueued.id)

    states = {"by a verb": State.COMPLETED, "normally": State.WAITING, "with an error": State.SCHEDULED}
    assert record.state is states.get(leave, State.FAILED)


async def test_an_outcome_whose_reply_was_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("errandry.api.claimed_job.RETRY_AFTER", 0.01)
    store = MemoryStore()
    async with Errandry(store=store, write_limits=WriteLimits(give_up_after=0.0)) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(jobs, claimer)
            store.fail_after += [ReplyLost("memory", "the connection was cut")]
            await job.complete("sent")

        assert await enqueued.result(WAIT_TIMEOUT) == "sent"


@pytest.mark.parametrize("leave", ["by a verb", "by its block"])
async def test_a_job_whose_outcome_cannot_be_written_is_free_when_its_lease_ends(
    refusing: SettleRefusingStore, clock: FakeClock, leave: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease is not renewed while the store refuses the outcome."""
    lease = 0.9

    async def settle() -> None:
        async with job:
            if leave == "by a verb":
                await job.complete("sent")

    async with Errandry(store=refusing, clock=clock) as jobs:
        cursor = await jobs.latest_cursor()
        await jobs.enqueue("send")
        async with jobs.claimer(lease=lease, upkeep=False) as claimer:
            job = await claim_one(jobs, claimer)
            refusing.error = StoreFull("memory", "no space left")
            settling = asyncio.create_task(settle())
            async with asyncio.timeout(WAIT_TIMEOUT):
                while not refusing.refused:  # noqa: ASYNC110 - a refusal has no event
                    await asyncio.sleep(0.001)
                for _ in range(4):
                    clock.advance(lease / 3)
                    await asyncio.sleep(0.05)
                if leave == "by a verb":
                    with pytest.raises(StoreFull):
                        await settling
                else:
                    await settling
            assert job.should_stop
            assert not job.settled
            refusing.error = None
            async with jobs.claimer(worker="other", upkeep=False) as other:
                [again] = await other.claim()
                assert (again.id, again.attempt) == (job.id, 2)
                await again.complete()
            async with asyncio.timeout(WAIT_TIMEOUT):
                errors = [await anext(jobs.events(cursor, kind="error"))]

    assert "cannot write outcomes, retrying: StoreFull" in errors[0].text
    assert "its outcome is unwritten, and its lease has expired; giving up" in caplog.text


async def test_the_lease_of_a_job_that_was_let_go_unsettled_is_not_renewed(
    refusing: SettleRefusingStore, clock: FakeClock
) -> None:
    """The store refuses the outcome for good: the program has left the block, and nothing can settle it."""
    lease = 0.9
    async with Errandry(store=refusing, clock=clock) as jobs:
        for _ in range(2):
            await jobs.enqueue("send")
        async with jobs.claimer(lease=lease, upkeep=False) as claimer:
            left, held = await claimer.claim(limit=2)
            refusing.error = CommandFailed("Settle", "no such table")
            async with left:
                pass
            for _ in range(3):
                clock.advance(0.4 * lease)
                async with asyncio.timeout(WAIT_TIMEOUT):
                    while (await jobs.client.record(held.id)).lease_until != clock.time() + lease:  # noqa: ASYNC110 - a renewal has no event
                        await asyncio.sleep(0.005)
            refusing.error = None
            async with jobs.claimer(worker="other", upkeep=False) as other:
                assert [job.id for job in await other.claim(limit=2)] == [left.id]


async def test_a_release_that_was_not_written_does_not_count_as_settled(
    refusing: SettleRefusingStore, clock: FakeClock
) -> None:
    async with Errandry(store=refusing, clock=clock) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            job = await claim_one(jobs, claimer)
            refusing.error = StoreFull("memory", "no space left")

        assert not job.settled
        assert (await jobs.client.record(enqueued.id)).state is State.RUNNING


# Leases


async def test_leases_are_renewed_until_the_job_is_settled(jobs: Errandry, clock: FakeClock) -> None:
    lease = 0.9
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer(lease=lease) as claimer:
        job = await claim_one(jobs, claimer)
        await outlast_lease(jobs, clock, job.id, lease)
        await job.complete("once")

    record = await jobs.client.record(enqueued.id)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)


async def test_without_automatic_renewal_the_program_renews(jobs: Errandry, clock: FakeClock) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer(lease=LEASE, renew=False, upkeep=False) as claimer:
        job = await claim_one(jobs, claimer)
        for _ in range(3):
            clock.advance(0.9 * LEASE)
            await job.renew()
            assert (await jobs.client.record(enqueued.id)).lease_until == clock.time() + LEASE
        assert not job.should_stop
        await job.complete()


async def test_a_lease_that_is_not_renewed_is_lost(
    jobs: Errandry, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer(lease=LEASE, renew=False, upkeep=False) as claimer:
        job = await claim_one(jobs, claimer)
        clock.advance(LEASE)
        assert job.should_stop
        async with jobs.claimer(worker="other", lease=LEASE, upkeep=False) as other:
            [again] = await other.claim()
            before = await snapshot(jobs)
            for verb in (job.renew(), job.progress(0.5), job.log("late"), job.complete("late")):
                with pytest.raises(LeaseLost, match="no longer held: another claim holds it"):
                    await verb

            assert await snapshot(jobs) == before
            assert again.fence > job.fence
            await again.complete("in time")

    assert await enqueued.result(WAIT_TIMEOUT) == "in time"
    assert not job.settled
    assert f"job {job.id} (send): its lease is lost" in caplog.text


async def test_a_block_whose_lease_is_lost_writes_nothing(jobs: Errandry) -> None:
    await jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(jobs, claimer) as job:
            await jobs.remove(job.id, force=True)
            await job.complete("late")

    async with jobs.claimer() as claimer:
        with pytest.raises(LeaseLost, match="no worker holds it"):
            await run()

    assert (await jobs.list()).jobs == ()


async def test_an_outcome_is_not_swallowed_if_the_lease_is_lost(memory_jobs: Errandry) -> None:
    await memory_jobs.enqueue("send")

    async def run() -> None:
        async with await claim_one(memory_jobs, claimer) as job:
            await memory_jobs.remove(job.id, force=True)
            raise Snooze("1 hour")

    async with memory_jobs.claimer() as claimer:
        with pytest.raises(LeaseLost):
            await run()


async def test_a_lost_reply_to_a_claim_costs_no_job(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with Errandry(store=store, write_limits=WriteLimits(give_up_after=0.0)) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(upkeep=False) as claimer:
            store.fail_after += [ReplyLost("memory", "the connection was cut")]
            job = await claim_one(jobs, claimer)

            assert (job.id, job.attempt) == (enqueued.id, 1)
    assert "cannot recover a claim after a lost reply" in caplog.text


# Stops


async def test_a_canceled_job_should_stop_and_ends_as_canceled(jobs: Errandry) -> None:
    enqueued = await jobs.enqueue("send")
    async with jobs.claimer() as claimer:
        async with await claim_one(jobs, claimer) as job:
            await jobs.cancel(job.id)
            async with asyncio.timeout(WAIT_TIMEOUT):
                while not job.should_stop:  # noqa: ASYNC110 - as a program checks it
                    await asyncio.sleep(0.005)

        assert (await jobs.client.record(enqueued.id)).state is State.CANCELED


@pytest.mark.parametrize("leave", ["the block", "the block with an error", "the claimer"])
async def test_a_job_whose_timeout_is_over_should_stop_and_is_retried(
    memory_jobs: Errandry, clock: FakeClock, leave: str
) -> None:
    enqueued = await memory_jobs.enqueue("send", timeout="5 seconds", backoff="1 minute")
    async with memory_jobs.claimer() as claimer:
        job = await claim_one(memory_jobs, claimer)
        assert not job.should_stop
        clock.advance(5.0)
        assert job.should_stop
        if leave == "the block":
            async with job:
                pass
        elif leave == "the block with an error":
            with pytest.raises(RuntimeError):
                async with job:
                    raise BOOM

    record = await memory_jobs.client.record(enqueued.id)
    assert (record.state, record.attempts) == (State.SCHEDULED, 1)
    [error] = record.errors
    assert (error.kind, error.message) == (Reason.TIMEOUT, "the handler ran longer than 5 s")


async def test_the_lease_of_a_job_whose_timeout_is_over_is_not_renewed(
    memory_jobs: Errandry, clock: FakeClock
) -> None:
    """So that another worker gets the job of a program that hangs."""
    lease = 0.9
    hanging = await memory_jobs.enqueue("send", timeout=0.5)
    other = await memory_jobs.enqueue("send")
    async with memory_jobs.claimer(lease=lease, upkeep=False) as claimer:
        await claimer.claim(limit=2)
        for _ in range(4):
            clock.advance(0.4)
            async with asyncio.timeout(WAIT_TIMEOUT):
                while (await memory_jobs.client.record(other.id)).lease_until != clock.time() + lease:  # noqa: ASYNC110 - a renewal has no event
                    await asyncio.sleep(0.005)
        await memory_jobs.engine.submit(Upkeep())
        records = [await memory_jobs.client.record(job.id) for job in (hanging, other)]

    assert [(record.state, record.crashes) for record in records] == [(State.WAITING, 1), (State.RUNNING, 0)]


async def test_the_jobs_of_a_slow_claim_are_renewed_before_it_returns(clock: FakeClock) -> None:
    class SlowStore(MemoryStore):
        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            answers = await super().commit(commands)
            if any(isinstance(command, Claim) for command in commands):
                clock.advance(0.9 * LEASE)
            return answers

    async with Errandry(store=SlowStore(clock), clock=clock) as jobs:
        enqueued = await jobs.enqueue("send")
        async with jobs.claimer(lease=LEASE, upkeep=False) as claimer:
            await claim_one(jobs, claimer)
            assert (await jobs.client.record(enqueued.id)).lease_until == clock.time() + LEASE


# Arguments, results, secrets


async def test_the_results_of_children_fill_arguments(jobs: Errandry) -> None:
    @jobs.task
    async def half(n: int) -> int:
        return n // 2

    @jobs.task
    async def double(n: int, text: str) -> int:
        return 2 * n

    await jobs.enqueue_flow(flow(double.new(result_of(half.new(8)), "x")))
    async with jobs.claimer() as claimer:
        await (await claim_one(jobs, claimer)).complete(4)
        job = await claim_one(jobs, claimer)

        assert (job.task, job.arguments) == ("double", {"n": 4, "text": "x"})


async def test_older_arguments_of_a_declared_task_are_upgraded(memory_jobs: Errandry) -> None:
    await memory_jobs.enqueue("send", {"to": "ada"})

    @memory_jobs.task(version=2)
    async def send(to: str, subject: str) -> None: ...

    @send.upgrade(1)
    def add_subject(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "subject": "(none)"}

    async with memory_jobs.claimer() as claimer:
        job = await claim_one(memory_jobs, claimer)

        assert job.arguments == {"to": "ada", "subject": "(none)"}


class Envelope:
    """A codec that puts each document into an array; it refuses those of the job `broken`."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        return f"[{text}]"

    def unseal(self, text: str, document: DocumentInfo) -> str:
        if document.job == "broken":
            raise SealBroken(document.job, document.field, "it was changed")
        return text[1:-1]


async def test_the_codec_seals_arguments_and_results() -> None:
    async with Errandry("memory:", codec=Envelope()) as jobs:
        enqueued = await jobs.enqueue("send", {"to": "ada"})
        async with jobs.claimer() as claimer:
            job = await claim_one(jobs, claimer)
            assert job.arguments == {"to": "ada"}
            await job.complete("sent")

        assert (await jobs.client.record(enqueued.id)).result == '["sent"]'


async def test_a_job_whose_arguments_cannot_be_trusted_fails() -> None:
    async with Errandry("memory:", codec=Envelope()) as jobs:
        await jobs.enqueue("send", {"to": "ada"}, id="broken")
        async with jobs.claimer() as claimer:
            with pytest.raises(SealBroken):
                async with await claim_one(jobs, claimer) as job:
                    await job.complete(job.arguments)
        record = await jobs.client.record("broken")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.INVALID_PAYLOAD, 1)


async def test_sealed_arguments_are_no_arguments_for_an_app_without_the_codec(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url, codec=Envelope()) as sealing, Errandry(url) as jobs:
        await sealing.enqueue("send", {"to": "ada"})
        async with jobs.claimer() as claimer:
            job = await claim_one(jobs, claimer)
            with pytest.raises(SealBroken, match="this app has no codec that unseals it"):
                _ = job.arguments


@pytest.mark.parametrize(
    ("result", "error"), [(object(), InvalidValue), (float("nan"), InvalidValue), ("x" * 200, TooLarge)]
)
async def test_a_result_that_cannot_be_stored_is_refused_and_fails_the_job_if_it_leaves_the_block(
    tmp_path: Path, result: object, error: type[Exception]
) -> None:
    """As in a worker: another attempt would have the same result."""
    async with Errandry("memory:", store_limits=StoreLimits(result=100)) as jobs:
        first, second = await jobs.enqueue("send"), await jobs.enqueue("send")
        async with jobs.claimer() as claimer:
            corrected, given_up = await claimer.claim(limit=2)
            async with corrected:
                with pytest.raises(error):
                    await corrected.complete(result)
                await corrected.complete("corrected")
            with pytest.raises(error):
                async with given_up:
                    await given_up.complete(result)

        assert await first.result(WAIT_TIMEOUT) == "corrected"
        record = await jobs.client.record(second.id)
        assert (record.state, record.reason) == (State.FAILED, Reason.UNRECOVERABLE)


@pytest.mark.parametrize("declared", [True, False])
async def test_redacted_arguments_are_replaced_in_all_texts(tmp_path: Path, declared: bool) -> None:
    """The job names them, so a program that does not declare the task redacts them too."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs, Errandry(url) as other:

        @jobs.task(redact="token")
        async def send(to: str, token: str) -> None: ...

        enqueued = await send.enqueue("ada", "hunter2")
        async with (jobs if declared else other).claimer() as claimer:
            job = await claim_one(jobs, claimer)
            await job.progress(0.1, "logging in with hunter2")
            await job.log("hunter2 was refused")
            await job.retry(RuntimeError("the token hunter2 is wrong"))
        record = await jobs.client.record(enqueued.id)

    assert record.progress is not None
    texts = [record.progress.text, record.logs[0].text, record.errors[0].message, record.errors[0].traceback]
    assert texts[:3] == ["logging in with •••", "••• was refused", "the token ••• is wrong"]
    assert "hunter2" not in texts[3]


async def test_arguments_that_the_program_has_changed_are_still_redacted(memory_jobs: Errandry) -> None:
    @memory_jobs.task(redact="token")
    async def send(to: str, token: str) -> None: ...

    async def run() -> None:
        async with await claim_one(memory_jobs, claimer) as job:
            token = job.arguments.pop("token")
            raise RuntimeError(f"the token {token} is wrong")

    enqueued = await send.enqueue("ada", "hunter2")
    async with memory_jobs.claimer() as claimer:
        with pytest.raises(RuntimeError):
            await run()
    [error] = (await memory_jobs.client.record(enqueued.id)).errors

    assert error.message == "the token ••• is wrong"
    assert "hunter2" not in error.traceback


# Wrong values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": []}, r"queues=\[\]: must be a list of names; leave it out for all"),
        ({"tasks": 7}, "tasks=7: must be a list of names"),
        ({"queues": ["mail", ""]}, "queues='': must be a name"),
        ({"lease": 0}, "lease=0.0: must be more than 0 seconds"),
        ({"lease": "soon"}, "lease='soon': not a duration"),
        ({"worker": ""}, "worker='': must be a name"),
        ({"renew": "no"}, "renew='no': must be True or False"),
        ({"upkeep": None}, "upkeep=None: must be True or False"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Errandry("memory:").claimer(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0: must be a whole number from 1 to 10,000"),
        ({"wait": -1}, "wait=-1: must be from 0 to a century"),
    ],
)
async def test_wrong_options_of_a_claim_are_refused(
    memory_jobs: Errandry, options: dict[str, Any], message: str
) -> None:
    async with memory_jobs.claimer() as claimer:
        with pytest.raises(InvalidValue, match=message):
            await claimer.claim(**options)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda job: job.progress(50), r"progress=50: give a share from 0 to 1, or a count with its total"),
        (lambda job: job.log("x", ""), "level='': must be a name"),
        (lambda job: job.retry(None), "error=None: must be an exception or a text"),
        (lambda job: job.retry("x", delay="soon"), "delay='soon': not a duration"),
        (lambda job: job.complete(Cancel), r"is an outcome, not a result: use job.cancel\(…\)"),
        (lambda job: job.complete(Snooze(5)), r"is an outcome, not a result: use job.snooze\(…\)"),
        (lambda job: job.log("x", 30.5), "level=30.5: must be a name, such as"),
        (lambda job: job.fail(7), "error=7: must be an exception or a text"),
        (lambda job: job.snooze(-1), "delay=-1: must be from 0 to a century"),
    ],
)
async def test_a_wrong_value_is_refused_and_the_job_goes_on(
    memory_jobs: Errandry, verb: Verb, message: str
) -> None:
    await memory_jobs.enqueue("send")
    async with memory_jobs.claimer() as claimer:
        job = await claim_one(memory_jobs, claimer)
        with pytest.raises(InvalidValue, match=message):
            await verb(job)
        await job.complete()


async def test_a_claimer_claims_only_while_it_is_open_and_is_opened_once(memory_jobs: Errandry) -> None:
    claimer = memory_jobs.claimer()
    with pytest.raises(InvalidValue, match="is not open"):
        await claimer.claim()
    async with claimer:
        pass
    with pytest.raises(InvalidValue, match="is not open"):
        await claimer.claim()
    with pytest.raises(InvalidValue, match="was opened before"):
        async with claimer:
            pass
