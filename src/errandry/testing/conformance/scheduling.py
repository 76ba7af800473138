"""Schedules: the job of the next tick exists ahead, each tick gets one job, missed ticks are reported."""

from typing import Any

import pytest
from msgspec.structs import replace

from errandry.core.answer import WRITTEN
from errandry.core.command import CancelJobs, Claim, CompleteOutcome, FailOutcome
from errandry.core.event import EventKind
from errandry.core.job import NewJob
from errandry.core.schedule import (
    CatchUp,
    Overlap,
    PutSchedule,
    ResumeSchedule,
    SchedulePlan,
    ScheduleRecord,
    job_id,
)
from errandry.core.state import State
from errandry.core.tick import CATCH_UP_MAX, DUE_TICKS_MAX, QUEUED_MAX, origin
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests

JOB = NewJob(id="-", task="report", payload='{"of":"all"}', queue="nightly", priority=3, tags=("red",))


def plan(**fields: Any) -> SchedulePlan:
    """A plan that ticks every ten seconds; the clock of a test starts at a tick."""
    fields_with_defaults: dict[str, Any] = {"job": JOB, "every": 10.0} | fields
    return SchedulePlan(**fields_with_defaults)


async def put_schedule(store: Store, name: str = "all", **fields: Any) -> ScheduleRecord:
    assert await requests.send(store, PutSchedule(name, plan(**fields))) is WRITTEN
    return await get_schedule(store, name)


async def get_schedule(store: Store, name: str = "all") -> ScheduleRecord:
    schedule = await store.schedule(name)
    assert schedule is not None, f"there is no schedule {name}"
    return schedule


async def ticks(store: Store, *states: State) -> list[float]:
    """The ticks of the jobs in these states, oldest first, in seconds since the start of the test."""
    found = [
        found
        for job in reversed(await requests.list_jobs(store))
        if job.state in states and (found := origin(job))
    ]
    return [found.tick - FakeClock().time() for found in found if found.tick is not None]


class ScheduleTicks:
    async def test_the_job_of_the_next_tick_exists_before_its_time(
        self, store: Store, clock: FakeClock
    ) -> None:
        schedule = await put_schedule(store, overlap=Overlap.SKIP)

        tick = clock.time() + 10
        assert (schedule.tick, schedule.due_at, schedule.runs, schedule.missed) == (tick, tick, 0, 0)
        [job] = await requests.list_jobs(store)
        assert (job.id, job.state, job.run_at) == (job_id("all", tick), State.SCHEDULED, tick)
        assert (job.task, job.payload, job.queue) == (JOB.task, JOB.payload, JOB.queue)
        assert (job.priority, job.tags) == (JOB.priority, JOB.tags)
        job_origin = origin(job)
        assert job_origin is not None
        assert (job_origin.schedule, job_origin.tick) == ("all", tick)

    async def test_a_claim_at_the_tick_takes_its_job_and_inserts_the_next(
        self, store: Store, clock: FakeClock
    ) -> None:
        first = await put_schedule(store)
        assert (await requests.send_claim(store)).due_in == 10
        clock.advance(10)

        claims = await requests.send_claim(store)

        assert [job.id for job in claims.jobs] == [first.job]
        assert claims.due_in == 10
        after = await get_schedule(store)
        assert (after.tick, after.last, after.runs) == (clock.time() + 10, clock.time(), 1)
        assert await ticks(store, State.SCHEDULED) == [20]

    async def test_upkeep_promotes_the_due_tick_and_inserts_the_next(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store)
        clock.advance(10)

        result = await requests.run_upkeep(store)

        assert (result.ticked, result.promoted) == (1, 0)
        assert await ticks(store, State.WAITING) == [10]
        assert (await requests.run_upkeep(store)).ticked == 0

    async def test_no_tick_happens_a_moment_early(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store)
        clock.advance(9.75)
        before = await requests.snapshot(store)

        assert (await requests.run_upkeep(store)).ticked == 0
        assert await requests.claim(store) == ()
        assert await requests.snapshot(store) == before

    async def test_each_tick_gets_exactly_one_job(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store)
        for _ in range(5):
            clock.advance(10)
            await store.commit([Claim(worker="ann", nonce=f"n{clock.time()}", limit=9)])
            await requests.run_upkeep(store)
            await requests.send_claim(store)

        assert await ticks(store, State.RUNNING) == [10, 20, 30, 40, 50]
        assert (await get_schedule(store)).runs == 5

    async def test_a_failed_run_does_not_end_the_schedule(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store, job=replace(JOB, max_attempts=1))
        for _ in range(3):
            clock.advance(10)
            [job] = await requests.claim(store)
            await requests.settle(store, job, FailOutcome())

        assert (await get_schedule(store)).runs == 3
        assert await ticks(store, State.FAILED) == [10, 20, 30]
        assert await ticks(store, State.SCHEDULED) == [40]

    async def test_many_schedules_tick_in_bounded_steps(self, store: Store, clock: FakeClock) -> None:
        for number in range(5):
            await put_schedule(store, f"s{number}")
        clock.advance(10)

        results = [await requests.run_upkeep(store, limit=2) for _ in range(3)]

        assert [(result.ticked, result.more) for result in results] == [(2, True), (2, True), (1, False)]
        assert len(await requests.claim(store, limit=10)) == 5

    async def test_a_claim_after_a_bounded_upkeep_misses_no_tick(
        self, store: Store, clock: FakeClock
    ) -> None:
        for number in range(5):
            await put_schedule(store, f"s{number}", overlap=Overlap.QUEUE)
        clock.advance(10)
        await requests.run_upkeep(store, limit=2)

        assert len(await requests.claim(store, limit=10)) == 5

    async def test_schedules_are_listed_by_name(self, store: Store) -> None:
        for name in ("b", "größe", "a", "C"):
            await put_schedule(store, name)

        assert [schedule.name for schedule in await store.schedules()] == ["C", "a", "b", "größe"]
        assert [schedule.name for schedule in await store.schedules("a", 1)] == ["b"]
        assert await store.schedule("d") is None

    async def test_a_schedule_is_stored_as_it_was_given(self, store: Store, clock: FakeClock) -> None:
        plan_given = SchedulePlan(
            job=replace(JOB, metadata='{"tenant":7}', timeout=2.5, max_attempts=2, group="acme"),
            cron="0 30 3 * * 1-5 *",
            zone="Europe/Vienna",
            start=clock.time() + 100,
            end=clock.time() + 1e7,
            limit=9,
            jitter=5.0,
            overlap=Overlap.QUEUE,
            catch_up=CatchUp.ALL,
        )
        await requests.send(store, PutSchedule("whole", plan_given, "ada"))

        schedule = await get_schedule(store, "whole")

        assert (schedule.plan, schedule.owners, schedule.by) == (plan_given, (), "ada")
        assert schedule.created_at == schedule.updated_at == clock.time()
        assert schedule.due_at is not None
        assert schedule.tick is not None
        assert 0 <= schedule.due_at - schedule.tick < 5
        [job] = await requests.list_jobs(store)
        assert (job.run_at, job.timeout, job.group) == (schedule.due_at, 2.5, "acme")

    async def test_ticks_are_reported_as_events(self, store: Store, clock: FakeClock) -> None:
        cursor = await store.latest_cursor()
        await put_schedule(store)
        clock.advance(10)
        await requests.run_upkeep(store)

        assert await requests.event_kinds(store, cursor) == [
            EventKind.SCHEDULED,
            EventKind.SCHEDULE_CHANGED,
            EventKind.WAITING,
            EventKind.SCHEDULED,
        ]

    async def test_a_missing_time_zone_pauses_its_schedule_only(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put_schedule(store, "broken", every=None, cron="* * * * *", zone="Europe/Vienna")
        await put_schedule(store, "working", every=60.0)
        monkeypatch.setattr("errandry.core.cron.ZoneInfo", _fail_to_load_zone)
        clock.advance(60)

        await requests.run_upkeep(store)

        broken = await get_schedule(store, "broken")
        assert broken.paused is not None
        assert "timezone='Europe/Vienna'" in broken.paused.by
        assert (broken.tick, broken.due_at) == (None, None)
        assert (await get_schedule(store, "working")).runs == 1
        monkeypatch.undo()
        assert await requests.send(store, ResumeSchedule("broken")) is WRITTEN
        assert (await get_schedule(store, "broken")).tick is not None


class ScheduleBounds:
    """The start, the end and the maximum number of runs of a schedule."""

    async def test_there_are_no_ticks_before_the_start(self, store: Store, clock: FakeClock) -> None:
        start = clock.time() + 33
        assert (await put_schedule(store, start=start)).tick == start

        clock.advance(33)
        await requests.run_upkeep(store)
        assert (await get_schedule(store)).tick == start + 10

    async def test_there_are_no_ticks_after_the_end(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store, end=clock.time() + 20)
        for _ in range(4):
            clock.advance(10)
            await requests.run_upkeep(store)

        after = await get_schedule(store)
        assert (after.runs, after.tick, after.due_at, after.is_over) == (2, None, None, True)
        assert await ticks(store, State.WAITING, State.SCHEDULED) == [10, 20]

    async def test_there_are_no_more_runs_than_the_limit(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store, limit=3, catch_up=CatchUp.ALL)
        clock.advance(10)
        await requests.run_upkeep(store)
        clock.advance(50)
        await requests.run_upkeep(store)

        assert await ticks(store, State.WAITING, State.SCHEDULED) == [10, 20, 30]
        assert (await get_schedule(store)).is_over

    async def test_a_raised_limit_continues_a_finished_schedule(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store, limit=1)
        clock.advance(10)
        await requests.run_upkeep(store)
        clock.advance(5)

        assert (await put_schedule(store, limit=2)).tick == clock.time() + 5


class ScheduleOverlap:
    async def test_runs_overlap_by_default(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store)
        for _ in range(3):
            clock.advance(10)
            await requests.claim(store)

        assert await ticks(store, State.RUNNING) == [10, 20, 30]

    async def test_with_overlap_skip_a_tick_is_missed_while_the_last_run_is_unfinished(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, overlap=Overlap.SKIP)
        clock.advance(10)
        [job] = await requests.claim(store, lease=1_000)
        cursor = await store.latest_cursor()
        clock.advance(10)

        assert await requests.claim(store) == ()

        after = await get_schedule(store)
        assert (after.runs, after.missed, after.tick) == (1, 1, clock.time() + 10)
        assert await store.get([job_id("all", clock.time())]) == [None]
        events = [
            event
            for event in await requests.read_events(store, cursor)
            if event.kind is EventKind.TICK_MISSED
        ]
        assert [(event.task, event.queue, event.text) for event in events] == [
            ("report", "nightly", job_id("all", clock.time()))
        ]
        await requests.settle(store, job, CompleteOutcome())
        clock.advance(10)
        assert len(await requests.claim(store)) == 1

    async def test_with_overlap_skip_a_waiting_run_counts_as_unfinished(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, overlap=Overlap.SKIP)
        for _ in range(3):
            clock.advance(10)
            await requests.run_upkeep(store)

        assert await ticks(store, State.WAITING) == [10]
        assert (await get_schedule(store)).missed == 2

    async def test_with_overlap_queue_a_tick_waits_for_the_last_run(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, overlap=Overlap.QUEUE)
        clock.advance(10)
        [first] = await requests.claim(store, lease=1_000)
        for _ in range(2):
            clock.advance(10)
            assert await requests.claim(store) == ()
        assert await ticks(store, State.BLOCKED) == [20, 30]

        await requests.settle(store, first, CompleteOutcome())
        assert await ticks(store, State.WAITING) == [20]
        [second] = await requests.claim(store, limit=5, lease=1_000)
        await requests.settle(store, second, FailOutcome())

        assert await ticks(store, State.WAITING) == [30]
        assert (await get_schedule(store)).missed == 0

    async def test_canceling_a_queued_tick_leaves_the_previous_run_alone(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, overlap=Overlap.QUEUE)
        clock.advance(10)
        [first] = await requests.claim(store, lease=1_000)
        clock.advance(10)
        await requests.run_upkeep(store)
        await requests.operate(store, CancelJobs(ids=(job_id("all", clock.time()),)))
        await requests.run_upkeep(store)

        assert (await requests.current_job(store, first)).cancel_requested is False
        assert await requests.settle(store, first, CompleteOutcome()) is WRITTEN
        assert await requests.claim(store) == ()

    async def test_with_overlap_queue_ticks_beyond_the_maximum_are_missed(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, overlap=Overlap.QUEUE)
        for _ in range(QUEUED_MAX + 2):
            clock.advance(10)
            await requests.run_upkeep(store)

        assert len(await ticks(store, State.WAITING, State.BLOCKED)) == QUEUED_MAX
        assert (await get_schedule(store)).missed == 2


class ScheduleCatchUp:
    """Five ticks pass during an outage: no worker claims and no upkeep runs."""

    @pytest.mark.parametrize(
        ("how", "ran", "missed"),
        [(CatchUp.ONE, [50], 4), (CatchUp.ALL, [10, 20, 30, 40, 50], 0), (CatchUp.SKIP, [50], 4)],
    )
    async def test_ticks_of_an_outage_run_or_are_missed_as_catch_up_says(
        self, store: Store, clock: FakeClock, how: CatchUp, ran: list[float], missed: int
    ) -> None:
        await put_schedule(store, catch_up=how)
        clock.advance(55)

        await requests.run_upkeep(store)

        assert await ticks(store, State.WAITING) == ran
        assert await ticks(store, State.SCHEDULED) == [60]
        after = await get_schedule(store)
        assert (after.missed, after.runs) == (missed, len(ran))

    async def test_with_catch_up_skip_ticks_older_than_a_minute_do_not_run(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, every=100.0, catch_up=CatchUp.SKIP)
        await put_schedule(store, "in time", every=100.0, catch_up=CatchUp.SKIP, start=clock.time() + 20)
        clock.advance(80)

        await requests.run_upkeep(store)

        assert [(schedule.runs, schedule.missed) for schedule in await store.schedules()] == [(0, 0), (1, 0)]
        clock.advance(40 + 61)
        await requests.run_upkeep(store)
        assert [(schedule.runs, schedule.missed) for schedule in await store.schedules()] == [(0, 1), (1, 1)]

    async def test_several_missed_ticks_are_reported_in_one_event(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store)
        first, cursor = (await get_schedule(store)).job, await store.latest_cursor()
        clock.advance(55)
        await requests.run_upkeep(store)

        events = [
            event
            for event in await requests.read_events(store, cursor)
            if event.kind is EventKind.TICK_MISSED
        ]
        assert [event.text for event in events] == [f"{first} and 3 more"]

    async def test_catching_up_after_a_very_long_outage_is_bounded(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, every=1.0, catch_up=CatchUp.ALL)
        clock.advance(10_000)

        await requests.run_upkeep(store)

        after = await get_schedule(store)
        assert after.tick == clock.time() + 1
        assert after.runs == CATCH_UP_MAX
        assert after.missed >= DUE_TICKS_MAX
        assert (await ticks(store, State.WAITING))[-1] == 10_000

    async def test_with_overlap_queue_the_ticks_of_an_outage_wait_for_each_other(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, catch_up=CatchUp.ALL, overlap=Overlap.QUEUE)
        clock.advance(30)
        await requests.run_upkeep(store)

        assert await ticks(store, State.WAITING) == [10]
        assert await ticks(store, State.BLOCKED) == [20, 30]


def _fail_to_load_zone(name: str) -> None:
    raise KeyError(name)
