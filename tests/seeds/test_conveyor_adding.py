"""Conveyor's page of the life of a job, as far as adding goes: at once, after a delay, and again and again.

The page's words in ours: queue.add is `enqueue`, or for a repeated job a schedule; delayed is scheduled,
delayUntil is `run_at`, promoteDelayedJobs is what Upkeep does, and every claim before it. Lines after > are
the page's.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from errandry import Errandry, Fail, State
from errandry.core.answer import UpkeepResult
from errandry.core.command import Upkeep
from errandry.core.event import EventKind
from errandry.core.job import JobRecord
from errandry.store.contract import Store
from errandry.testing import drain
from errandry.testing.clock import FakeClock
from tests.working import kinds

NEW_YORK = ZoneInfo("America/New_York")


@pytest.fixture
async def queue(store: Store, clock: FakeClock) -> AsyncIterator[Errandry]:
    """> queue"""
    jobs = Errandry(store=store, clock=clock)

    @jobs.task(name="send-email")
    async def send_email(to: str) -> str:
        return to

    @jobs.task(name="daily-report")
    async def daily_report() -> None: ...

    @jobs.task(name="bad-report")
    async def bad_report() -> None:
        raise Fail("it never works")

    async with jobs:
        yield jobs


async def promote_delayed_jobs(queue: Errandry) -> UpkeepResult:
    """> promoteDelayedJobs()"""
    kept = await queue.engine.submit(Upkeep())
    assert isinstance(kept, UpkeepResult)
    return kept


async def delayed(queue: Errandry) -> list[JobRecord]:
    return list((await queue.list("state:scheduled")).jobs)


def local(job: JobRecord) -> str:
    assert job.run_at is not None
    return datetime.fromtimestamp(job.run_at, NEW_YORK).isoformat()


def set_to(clock: FakeClock, text: str) -> None:
    """By the clocks of New York."""
    clock.advance(datetime.fromisoformat(text).replace(tzinfo=NEW_YORK).timestamp() - clock.time())


class TestAdding:
    async def test_at_once(self, queue: Errandry) -> None:
        """> // Enters "waiting" immediately"""
        job = await queue.enqueue("send-email", {"to": "ada@example.com"})

        assert (await queue.record(job.id)).state is State.WAITING
        assert await kinds(queue, job.id) == [EventKind.WAITING]

    async def test_after_a_delay(self, queue: Errandry, clock: FakeClock) -> None:
        """> // Enters "delayed", promoted to "waiting" after 5 minutes"""
        job = await queue.enqueue("send-email", {"to": "ada@example.com"}, delay="5 minutes")

        record = await queue.record(job.id)
        assert (record.state, record.run_at) == (State.SCHEDULED, clock.time() + 300)
        clock.advance(300)
        assert (await promote_delayed_jobs(queue)).promoted == 1
        assert (await queue.record(job.id)).state is State.WAITING
        assert await kinds(queue, job.id) == [EventKind.SCHEDULED, EventKind.WAITING]

    async def test_on_a_cron_schedule(self, queue: Errandry, clock: FakeClock) -> None:
        """> // Enters "delayed", promoted on cron schedule
        > repeat: { cron: '0 9 * * *', tz: 'America/New_York' }"""
        set_to(clock, "2026-06-01T12:00")
        report = queue.tasks["daily-report"]
        await queue.schedules.put("daily-report", report, "0 9 * * *", timezone="America/New_York")

        [job] = await delayed(queue)
        assert (job.task, job.state, local(job)) == (
            "daily-report",
            State.SCHEDULED,
            "2026-06-02T09:00:00-04:00",
        )
        set_to(clock, "2026-06-02T09:00")
        await promote_delayed_jobs(queue)
        assert (await queue.record(job.id)).state is State.WAITING


class TestPromotion:
    async def test_not_a_moment_early(self, queue: Errandry, clock: FakeClock) -> None:
        """> [delayed] ──delayUntil <= now──→ [waiting]"""
        job = await queue.enqueue("send-email", {"to": "ada"}, run_at=clock.time() + 10)
        clock.advance(9.5)
        assert (await promote_delayed_jobs(queue)).promoted == 0
        clock.advance(0.5)

        assert (await promote_delayed_jobs(queue)).promoted == 1
        assert (await queue.record(job.id)).state is State.WAITING

    async def test_all_that_have_passed(self, queue: Errandry, clock: FakeClock) -> None:
        """> transitions all jobs whose delayUntil has passed to waiting"""
        for delay in (10, 20, 30, 4_000):
            await queue.enqueue("send-email", {"to": "ada"}, delay=delay)
        clock.advance(60)

        assert (await promote_delayed_jobs(queue)).promoted == 3
        assert (await queue.counts())["default"] == {"scheduled": 1, "waiting": 3}

    async def test_a_fetch_does_not_wait_for_it(self, queue: Errandry, clock: FakeClock) -> None:
        """The worker promotes "periodically"; here whoever claims promotes first, so nothing due is late."""
        await queue.enqueue("send-email", {"to": "ada"}, delay=10)
        clock.advance(10)

        assert [job.state for job in await drain(queue)] == [State.COMPLETED]


class TestRepeating:
    @pytest.mark.parametrize("task", ["daily-report", "bad-report"])
    async def test_each_execution_brings_the_next(self, queue: Errandry, clock: FakeClock, task: str) -> None:
        """> after each execution completes, the worker calculates the next cron tick and creates a new
        > delayed job automatically.

        Ours is there as soon as the tick before is due: a run that fails, or a worker that dies in it, ends
        nothing.
        """
        set_to(clock, "2026-06-01T12:00")
        await queue.schedules.put("daily", queue.tasks[task], "0 9 * * *", timezone="America/New_York")
        seen = []
        for day in (2, 3, 4):
            [job] = await delayed(queue)
            seen.append(local(job)[:16])
            set_to(clock, f"2026-06-0{day}T09:00")
            [ended] = await drain(queue)
            assert ended.id == job.id

        assert seen == ["2026-06-02T09:00", "2026-06-03T09:00", "2026-06-04T09:00"]
        assert (await queue.schedules.get("daily")).runs == 3
        assert len(await delayed(queue)) == 1

    async def test_at_nine_in_new_york_through_the_year(self, queue: Errandry, clock: FakeClock) -> None:
        """> tz: 'America/New_York': by UTC an hour earlier in summer."""
        set_to(clock, "2026-03-06T12:00")
        report = queue.tasks["daily-report"]
        await queue.schedules.put("daily", report, "0 9 * * *", timezone="America/New_York")
        hours = []
        for _ in range(3):
            [job] = await delayed(queue)
            hours.append(datetime.fromtimestamp(job.run_at or 0.0, UTC).hour)
            clock.advance((job.run_at or 0.0) - clock.time())
            await drain(queue)

        assert hours == [14, 13, 13]

    async def test_one_delayed_job_whatever_the_number_of_workers(
        self, queue: Errandry, clock: FakeClock
    ) -> None:
        """Every worker that starts adds the same repeat: it is the same schedule, and a tick has one job."""
        report = queue.tasks["daily-report"]
        for _ in range(3):
            await queue.schedules.put("daily", report, timedelta(hours=1))
        clock.advance(3_600)
        for _ in range(3):
            await promote_delayed_jobs(queue)

        assert (await queue.counts())["default"] == {"scheduled": 1, "waiting": 1}
