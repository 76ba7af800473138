"""Schedules: the next tick is there before its time, each has one job, and none is forgotten silently."""

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
from errandry.core.tick import CATCH_UP_MAX, LOOKED_AT, QUEUED_MAX, origin
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests

JOB = NewJob(id="-", task="report", payload='{"of":"all"}', queue="nightly", priority=3, tags=("red",))


def plan(**fields: Any) -> SchedulePlan:
    """Every ten seconds, which the clock of a test begins with."""
    given: dict[str, Any] = {"job": JOB, "every": 10.0} | fields
    return SchedulePlan(**given)


async def put(store: Store, name: str = "all", **fields: Any) -> ScheduleRecord:
    assert await requests.one(store, PutSchedule(name, plan(**fields))) is WRITTEN
    return await one(store, name)


async def one(store: Store, name: str = "all") -> ScheduleRecord:
    found = await store.schedule(name)
    assert found is not None, f"there is no schedule {name}"
    return found


async def ticks(store: Store, *states: State) -> list[float]:
    """Of jobs in these states, oldest first, the ticks since the clock began."""
    found = [
        found
        for job in reversed(await requests.jobs(store))
        if job.state in states and (found := origin(job))
    ]
    return [found.tick - FakeClock().time() for found in found if found.tick is not None]


class Scheduling:
    async def test_the_job_of_the_next_tick_is_there_before_its_time(
        self, store: Store, clock: FakeClock
    ) -> None:
        schedule = await put(store, overlap=Overlap.SKIP)

        tick = clock.time() + 10
        assert (schedule.tick, schedule.due_at, schedule.runs, schedule.missed) == (tick, tick, 0, 0)
        [job] = await requests.jobs(store)
        assert (job.id, job.state, job.run_at) == (job_id("all", tick), State.SCHEDULED, tick)
        assert (job.task, job.payload, job.queue) == (JOB.task, JOB.payload, JOB.queue)
        assert (job.priority, job.tags) == (JOB.priority, JOB.tags)
        found = origin(job)
        assert found is not None
        assert (found.schedule, found.tick) == ("all", tick)

    async def test_a_claim_at_the_tick_takes_its_job_and_brings_the_next(
        self, store: Store, clock: FakeClock
    ) -> None:
        first = await put(store)
        assert (await requests.claims(store)).due_in == 10
        clock.advance(10)

        claims = await requests.claims(store)

        assert [job.id for job in claims.jobs] == [first.job]
        assert claims.due_in == 10
        after = await one(store)
        assert (after.tick, after.last, after.runs) == (clock.time() + 10, clock.time(), 1)
        assert await ticks(store, State.SCHEDULED) == [20]

    async def test_upkeep_ticks_too(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        clock.advance(10)

        kept = await requests.upkeep(store)

        assert (kept.ticked, kept.promoted) == (1, 0)
        assert await ticks(store, State.WAITING) == [10]
        assert (await requests.upkeep(store)).ticked == 0

    async def test_nothing_ticks_a_moment_early(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        clock.advance(9.75)
        before = await requests.everything(store)

        assert (await requests.upkeep(store)).ticked == 0
        assert await requests.claim(store) == ()
        assert await requests.everything(store) == before

    async def test_a_tick_has_one_job_however_often_it_is_looked_at(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put(store)
        for _ in range(5):
            clock.advance(10)
            await store.commit([Claim(worker="ann", nonce=f"n{clock.time()}", limit=9)])
            await requests.upkeep(store)
            await requests.claims(store)

        assert await ticks(store, State.RUNNING) == [10, 20, 30, 40, 50]
        assert (await one(store)).runs == 5

    async def test_a_run_that_fails_ends_nothing(self, store: Store, clock: FakeClock) -> None:
        await put(store, job=replace(JOB, max_attempts=1))
        for _ in range(3):
            clock.advance(10)
            [job] = await requests.claim(store)
            await requests.settle(store, job, FailOutcome())

        assert (await one(store)).runs == 3
        assert await ticks(store, State.FAILED) == [10, 20, 30]
        assert await ticks(store, State.SCHEDULED) == [40]

    async def test_many_schedules_tick_in_bounded_steps(self, store: Store, clock: FakeClock) -> None:
        for number in range(5):
            await put(store, f"s{number}")
        clock.advance(10)

        kept = [await requests.upkeep(store, limit=2) for _ in range(3)]

        assert [(one.ticked, one.more) for one in kept] == [(2, True), (2, True), (1, False)]
        assert len(await requests.claim(store, limit=10)) == 5

    async def test_a_claim_after_a_bounded_upkeep_misses_no_tick(
        self, store: Store, clock: FakeClock
    ) -> None:
        for number in range(5):
            await put(store, f"s{number}", overlap=Overlap.QUEUE)
        clock.advance(10)
        await requests.upkeep(store, limit=2)

        assert len(await requests.claim(store, limit=10)) == 5

    async def test_schedules_are_listed_by_name(self, store: Store) -> None:
        for name in ("b", "größe", "a", "C"):
            await put(store, name)

        assert [found.name for found in await store.schedules()] == ["C", "a", "b", "größe"]
        assert [found.name for found in await store.schedules("a", 1)] == ["b"]
        assert await store.schedule("d") is None

    async def test_a_schedule_comes_back_as_it_was_put(self, store: Store, clock: FakeClock) -> None:
        whole = SchedulePlan(
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
        await requests.one(store, PutSchedule("whole", whole, "shop", "ada"))

        found = await one(store, "whole")

        assert (found.plan, found.owner, found.by) == (whole, "shop", "ada")
        assert found.created_at == found.updated_at == clock.time()
        assert found.due_at is not None
        assert found.tick is not None
        assert 0 <= found.due_at - found.tick < 5
        [job] = await requests.jobs(store)
        assert (job.run_at, job.timeout, job.group) == (found.due_at, 2.5, "acme")

    async def test_ticks_are_told(self, store: Store, clock: FakeClock) -> None:
        head = await store.latest_cursor()
        await put(store)
        clock.advance(10)
        await requests.upkeep(store)

        assert await requests.kinds(store, head) == [
            EventKind.SCHEDULED,
            EventKind.SCHEDULE_CHANGED,
            EventKind.WAITING,
            EventKind.SCHEDULED,
        ]

    async def test_a_zone_that_is_gone_pauses_the_schedule_and_nothing_else(
        self, store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await put(store, "sad", every=None, cron="* * * * *", zone="Europe/Vienna")
        await put(store, "glad", every=60.0)
        monkeypatch.setattr("errandry.core.cron.ZoneInfo", _no_zones)
        clock.advance(60)

        await requests.upkeep(store)

        sad = await one(store, "sad")
        assert sad.paused is not None
        assert "timezone='Europe/Vienna'" in sad.paused.by
        assert (sad.tick, sad.due_at) == (None, None)
        assert (await one(store, "glad")).runs == 1
        monkeypatch.undo()
        assert await requests.one(store, ResumeSchedule("sad")) is WRITTEN
        assert (await one(store, "sad")).tick is not None


class Ending:
    """Start, end, limit."""

    async def test_there_are_no_ticks_before_the_start(self, store: Store, clock: FakeClock) -> None:
        start = clock.time() + 33
        assert (await put(store, start=start)).tick == start

        clock.advance(33)
        await requests.upkeep(store)
        assert (await one(store)).tick == start + 10

    async def test_there_are_none_after_the_end(self, store: Store, clock: FakeClock) -> None:
        await put(store, end=clock.time() + 20)
        for _ in range(4):
            clock.advance(10)
            await requests.upkeep(store)

        after = await one(store)
        assert (after.runs, after.tick, after.due_at, after.is_over) == (2, None, None, True)
        assert await ticks(store, State.WAITING, State.SCHEDULED) == [10, 20]

    async def test_there_are_no_more_runs_than_the_limit(self, store: Store, clock: FakeClock) -> None:
        await put(store, limit=3, catch_up=CatchUp.ALL)
        clock.advance(10)
        await requests.upkeep(store)
        clock.advance(50)
        await requests.upkeep(store)

        assert await ticks(store, State.WAITING, State.SCHEDULED) == [10, 20, 30]
        assert (await one(store)).is_over

    async def test_a_higher_limit_lets_it_go_on(self, store: Store, clock: FakeClock) -> None:
        await put(store, limit=1)
        clock.advance(10)
        await requests.upkeep(store)
        clock.advance(5)

        assert (await put(store, limit=2)).tick == clock.time() + 5


class Overlapping:
    async def test_runs_may_overlap(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        for _ in range(3):
            clock.advance(10)
            await requests.claim(store)

        assert await ticks(store, State.RUNNING) == [10, 20, 30]

    async def test_a_tick_is_missed_while_the_last_run_lives(self, store: Store, clock: FakeClock) -> None:
        await put(store, overlap=Overlap.SKIP)
        clock.advance(10)
        [job] = await requests.claim(store, lease=1_000)
        head = await store.latest_cursor()
        clock.advance(10)

        assert await requests.claim(store) == ()

        after = await one(store)
        assert (after.runs, after.missed, after.tick) == (1, 1, clock.time() + 10)
        assert await store.get([job_id("all", clock.time())]) == [None]
        told = [event for event in await requests.events(store, head) if event.kind is EventKind.TICK_MISSED]
        assert [(event.task, event.queue, event.text) for event in told] == [
            ("report", "nightly", job_id("all", clock.time()))
        ]
        await requests.settle(store, job, CompleteOutcome())
        clock.advance(10)
        assert len(await requests.claim(store)) == 1

    async def test_a_run_that_waits_lives_too(self, store: Store, clock: FakeClock) -> None:
        await put(store, overlap=Overlap.SKIP)
        for _ in range(3):
            clock.advance(10)
            await requests.upkeep(store)

        assert await ticks(store, State.WAITING) == [10]
        assert (await one(store)).missed == 2

    async def test_a_tick_waits_for_the_last_run(self, store: Store, clock: FakeClock) -> None:
        await put(store, overlap=Overlap.QUEUE)
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
        assert (await one(store)).missed == 0

    async def test_to_cancel_a_tick_that_waits_leaves_the_run_before_it_alone(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put(store, overlap=Overlap.QUEUE)
        clock.advance(10)
        [first] = await requests.claim(store, lease=1_000)
        clock.advance(10)
        await requests.upkeep(store)
        await requests.operate(store, CancelJobs(ids=(job_id("all", clock.time()),)))
        await requests.upkeep(store)

        assert (await requests.current(store, first)).cancel_requested is False
        assert await requests.settle(store, first, CompleteOutcome()) is WRITTEN
        assert await requests.claim(store) == ()

    async def test_only_so_many_ticks_wait(self, store: Store, clock: FakeClock) -> None:
        await put(store, overlap=Overlap.QUEUE)
        for _ in range(QUEUED_MAX + 2):
            clock.advance(10)
            await requests.upkeep(store)

        assert len(await ticks(store, State.WAITING, State.BLOCKED)) == QUEUED_MAX
        assert (await one(store)).missed == 2


class CatchingUp:
    """Nobody was there for five ticks."""

    @pytest.mark.parametrize(
        ("how", "ran", "missed"),
        [(CatchUp.ONE, [50], 4), (CatchUp.ALL, [10, 20, 30, 40, 50], 0), (CatchUp.SKIP, [50], 4)],
    )
    async def test_what_becomes_of_ticks_nobody_was_there_for(
        self, store: Store, clock: FakeClock, how: CatchUp, ran: list[float], missed: int
    ) -> None:
        await put(store, catch_up=how)
        clock.advance(55)

        await requests.upkeep(store)

        assert await ticks(store, State.WAITING) == ran
        assert await ticks(store, State.SCHEDULED) == [60]
        after = await one(store)
        assert (after.missed, after.runs) == (missed, len(ran))

    async def test_with_skip_nothing_older_than_a_minute_runs(self, store: Store, clock: FakeClock) -> None:
        await put(store, every=100.0, catch_up=CatchUp.SKIP)
        await put(store, "in time", every=100.0, catch_up=CatchUp.SKIP, start=clock.time() + 20)
        clock.advance(80)

        await requests.upkeep(store)

        assert [(found.runs, found.missed) for found in await store.schedules()] == [(0, 0), (1, 0)]
        clock.advance(40 + 61)
        await requests.upkeep(store)
        assert [(found.runs, found.missed) for found in await store.schedules()] == [(0, 1), (1, 1)]

    async def test_a_miss_is_told_once_for_all(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        first, head = (await one(store)).job, await store.latest_cursor()
        clock.advance(55)
        await requests.upkeep(store)

        told = [event for event in await requests.events(store, head) if event.kind is EventKind.TICK_MISSED]
        assert [event.text for event in told] == [f"{first} and 3 more"]

    async def test_a_very_long_outage_is_caught_up_with_in_bounds(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put(store, every=1.0, catch_up=CatchUp.ALL)
        clock.advance(10_000)

        await requests.upkeep(store)

        after = await one(store)
        assert after.tick == clock.time() + 1
        assert after.runs == CATCH_UP_MAX
        assert after.missed >= LOOKED_AT
        assert (await ticks(store, State.WAITING))[-1] == 10_000

    async def test_ticks_to_catch_up_with_wait_for_each_other(self, store: Store, clock: FakeClock) -> None:
        await put(store, catch_up=CatchUp.ALL, overlap=Overlap.QUEUE)
        clock.advance(30)
        await requests.upkeep(store)

        assert await ticks(store, State.WAITING) == [10]
        assert await ticks(store, State.BLOCKED) == [20, 30]


def _no_zones(name: str) -> None:
    raise KeyError(name)
