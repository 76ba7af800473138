"""Conveyor's page about the life of a job: adding jobs at once, after a delay and repeatedly.

Its terms: queue.add is `enqueue`, or a schedule for a repeated job; delayed is scheduled; delayUntil is
`run_at`; promoteDelayedJobs is done by upkeep, and by every claim before it takes jobs. Lines that begin
with > are quoted from the page.
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
from tests.run_worker import event_kinds

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
    result = await queue.engine.submit(Upkeep())
    assert isinstance(result, UpkeepResult)
    return result


async def delayed_jobs(queue: Errandry) -> list[JobRecord]:
    return [job.record for job in (await queue.list("state:scheduled")).jobs]


def local_time(job: JobRecord) -> str:
    assert job.run_at is not None
    return datetime.fromtimestamp(job.run_at, NEW_YORK).isoformat()


def set_clock(clock: FakeClock, text: str) -> None:
    """Advance the clock to this local time in New York."""
    clock.advance(datetime.fromisoformat(text).replace(tzinfo=NEW_YORK).timestamp() - clock.time())


class TestAdding:
    async def test_a_new_job_is_waiting_at_once(self, queue: Errandry) -> None:
        """> // Enters "waiting" immediately"""
        job = await queue.enqueue("send-email", {"to": "ada@example.com"})

        assert (await queue.client.record(job.id)).state is State.WAITING
        assert await event_kinds(queue, job.id) == [EventKind.WAITING]

    async def test_a_delayed_job_is_promoted_after_its_delay(self, queue: Errandry, clock: FakeClock) -> None:
        """> // Enters "delayed", promoted to "waiting" after 5 minutes"""
        job = await queue.enqueue("send-email", {"to": "ada@example.com"}, delay="5 minutes")

        record = await queue.client.record(job.id)
        assert (record.state, record.run_at) == (State.SCHEDULED, clock.time() + 300)
        clock.advance(300)
        assert (await promote_delayed_jobs(queue)).promoted == 1
        assert (await queue.client.record(job.id)).state is State.WAITING
        assert await event_kinds(queue, job.id) == [EventKind.SCHEDULED, EventKind.WAITING]

    async def test_a_job_of_a_cron_schedule_is_promoted_at_its_tick(
        self, queue: Errandry, clock: FakeClock
    ) -> None:
        """> // Enters "delayed", promoted on cron schedule
        > repeat: { cron: '0 9 * * *', tz: 'America/New_York' }"""
        set_clock(clock, "2026-06-01T12:00")
        report = queue.tasks["daily-report"]
        await queue.schedules.put("daily-report", report, "0 9 * * *", timezone="America/New_York")

        [job] = await delayed_jobs(queue)
        assert (job.task, job.state, local_time(job)) == (
            "daily-report",
            State.SCHEDULED,
            "2026-06-02T09:00:00-04:00",
        )
        set_clock(clock, "2026-06-02T09:00")
        await promote_delayed_jobs(queue)
        assert (await queue.client.record(job.id)).state is State.WAITING


class TestPromotion:
    async def test_a_delayed_job_is_not_promoted_early(self, queue: Errandry, clock: FakeClock) -> None:
        """> [delayed] ──delayUntil <= now──→ [waiting]"""
        job = await queue.enqueue("send-email", {"to": "ada"}, run_at=clock.time() + 10)
        clock.advance(9.5)
        assert (await promote_delayed_jobs(queue)).promoted == 0
        clock.advance(0.5)

        assert (await promote_delayed_jobs(queue)).promoted == 1
        assert (await queue.client.record(job.id)).state is State.WAITING

    async def test_all_due_jobs_are_promoted(self, queue: Errandry, clock: FakeClock) -> None:
        """> transitions all jobs whose delayUntil has passed to waiting"""
        for delay in (10, 20, 30, 4_000):
            await queue.enqueue("send-email", {"to": "ada"}, delay=delay)
        clock.advance(60)

        assert (await promote_delayed_jobs(queue)).promoted == 3
        assert (await queue.counts())["default"] == {"scheduled": 1, "waiting": 3}

    async def test_a_claim_promotes_due_jobs_first(self, queue: Errandry, clock: FakeClock) -> None:
        """There the worker promotes "periodically"; here every claim promotes due jobs first."""
        await queue.enqueue("send-email", {"to": "ada"}, delay=10)
        clock.advance(10)

        assert [job.state for job in await drain(queue)] == [State.COMPLETED]


class TestRepeating:
    @pytest.mark.parametrize("task", ["daily-report", "bad-report"])
    async def test_each_tick_inserts_the_next(self, queue: Errandry, clock: FakeClock, task: str) -> None:
        """> after each execution completes, the worker calculates the next cron tick and creates a new
        > delayed job automatically.

        Here the next job is inserted as soon as the tick before it is due, so that a failed run or a dead
        worker does not end the schedule.
        """
        set_clock(clock, "2026-06-01T12:00")
        await queue.schedules.put("daily", queue.tasks[task], "0 9 * * *", timezone="America/New_York")
        tick_times = []
        for day in (2, 3, 4):
            [job] = await delayed_jobs(queue)
            tick_times.append(local_time(job)[:16])
            set_clock(clock, f"2026-06-0{day}T09:00")
            [ended] = await drain(queue)
            assert ended.id == job.id

        assert tick_times == ["2026-06-02T09:00", "2026-06-03T09:00", "2026-06-04T09:00"]
        assert (await queue.schedules.get("daily")).runs == 3
        assert len(await delayed_jobs(queue)) == 1

    async def test_a_cron_time_follows_daylight_saving_time(self, queue: Errandry, clock: FakeClock) -> None:
        """> tz: 'America/New_York': by UTC an hour earlier in summer."""
        set_clock(clock, "2026-03-06T12:00")
        report = queue.tasks["daily-report"]
        await queue.schedules.put("daily", report, "0 9 * * *", timezone="America/New_York")
        hours = []
        for _ in range(3):
            [job] = await delayed_jobs(queue)
            hours.append(datetime.fromtimestamp(job.run_at or 0.0, UTC).hour)
            clock.advance((job.run_at or 0.0) - clock.time())
            await drain(queue)

        assert hours == [14, 13, 13]

    async def test_a_schedule_put_by_several_workers_has_one_job_per_tick(
        self, queue: Errandry, clock: FakeClock
    ) -> None:
        """Every worker that starts puts the same schedule, and each tick still gets one job."""
        report = queue.tasks["daily-report"]
        for _ in range(3):
            await queue.schedules.put("daily", report, timedelta(hours=1))
        clock.advance(3_600)
        for _ in range(3):
            await promote_delayed_jobs(queue)

        assert (await queue.counts())["default"] == {"scheduled": 1, "waiting": 1}
