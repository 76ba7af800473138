"""What people do to schedules: put them again, pause, resume, remove, run them; and to their next ticks."""

import pytest
from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN, Inserted
from errandry.core.command import CancelJobs, Command, EditJobs, PostponeJobs, PromoteJobs, RemoveJobs
from errandry.core.job import JobRecord
from errandry.core.query import parse
from errandry.core.schedule import (
    Backfill,
    Backfilled,
    Overlap,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    job_id,
)
from errandry.core.state import State
from errandry.core.tick import origin
from errandry.errors import TooLarge, UnknownSchedule
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.conformance.scheduling import JOB, one, plan, put, ticks


class Replanning:
    """Put again, paused, resumed, removed."""

    async def test_the_same_again_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        before = await put(store), await requests.everything(store)
        clock.advance(5)

        assert await requests.one(store, PutSchedule("all", plan(), by="somebody else")) is ALREADY
        assert (await one(store), await requests.everything(store)) == before

    async def test_what_is_changed_holds_at_once(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        clock.advance(5)

        after = await put(store, every=7.0, job=replace(JOB, payload="[7]"))

        assert after.tick == clock.time() + 7 - clock.time() % 7
        [job] = await requests.jobs(store)
        assert (job.id, job.payload, job.state) == (after.job, "[7]", State.SCHEDULED)

    async def test_other_arguments_leave_the_next_tick_where_it_is(
        self, store: Store, clock: FakeClock
    ) -> None:
        before = await put(store)
        clock.advance(5)

        after = await put(store, job=replace(JOB, payload="[7]", queue="other"))

        assert after.tick == before.tick
        [job] = await requests.jobs(store)
        assert (job.id, job.payload, job.queue) == (before.job, "[7]", "other")

    async def test_what_runs_goes_on_as_it_was(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        clock.advance(10)
        [job] = await requests.claim(store)
        await put(store, job=replace(JOB, payload="[7]"))

        assert (await requests.current(store, job)).payload == JOB.payload

    async def test_a_pause_takes_the_next_tick_back(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        assert await requests.one(store, PauseSchedule("all", "ada")) is WRITTEN
        assert await requests.one(store, PauseSchedule("all", "bob")) is ALREADY

        paused = await one(store)

        assert paused.paused is not None
        assert (paused.paused.by, paused.tick, paused.due_at, paused.is_over) == ("ada", None, None, False)
        assert await requests.jobs(store) == []
        clock.advance(100)
        assert await requests.upkeep(store) == await requests.upkeep(store)
        assert await requests.one(store, ResumeSchedule("all")) is WRITTEN
        assert await requests.one(store, ResumeSchedule("all")) is ALREADY
        resumed = await one(store)
        assert (resumed.paused, resumed.tick, resumed.missed) == (None, clock.time() + 10, 0)
        assert await ticks(store, State.SCHEDULED) == [110]

    async def test_a_pause_outlives_a_change(self, store: Store) -> None:
        await put(store)
        await requests.one(store, PauseSchedule("all"))

        after = await put(store, every=20.0)

        assert after.paused is not None
        assert after.tick is None
        assert await requests.jobs(store) == []

    async def test_a_schedule_that_is_removed_takes_its_next_tick_with_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put(store)
        clock.advance(10)
        [job] = await requests.claim(store)

        assert await requests.one(store, RemoveSchedule("all")) is WRITTEN
        assert await requests.one(store, RemoveSchedule("all")) is ALREADY

        assert await store.schedules() == []
        assert [found.id for found in await requests.jobs(store)] == [job.id]
        clock.advance(10)
        assert await requests.claim(store) == ()

    @pytest.mark.parametrize("move", [PromoteJobs, CancelJobs])
    async def test_a_tick_that_was_seen_to_is_not_made_again_by_a_change(
        self, store: Store, clock: FakeClock, move: type[PromoteJobs] | type[CancelJobs]
    ) -> None:
        schedule = await put(store)
        await requests.operate(store, move(ids=(str(schedule.job),)))
        taken = await requests.claim(store)

        after = await put(store, job=replace(JOB, payload="[7]"))

        assert after.tick == schedule.tick
        [job] = await requests.jobs(store)
        assert (job.id, job.payload) == (schedule.job, JOB.payload)
        await requests.one(store, RemoveSchedule("all"))
        await put(store)
        clock.advance(10)
        assert await requests.claim(store, limit=5) == ()
        assert len(taken) == (move is PromoteJobs)

    @pytest.mark.parametrize(
        "command",
        [PauseSchedule("no"), ResumeSchedule("no"), RunSchedule("no", "job"), Backfill("no", 0, 1)],
        ids=lambda command: type(command).__name__,
    )
    async def test_a_schedule_nobody_has_put_is_unknown(self, store: Store, command: Command) -> None:
        before = await requests.everything(store)

        answer = await requests.one(store, command)

        assert isinstance(answer, UnknownSchedule)
        assert answer.name == "no"
        assert await requests.everything(store) == before

    async def test_too_large_a_payload_is_refused(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(payload=10))

        answer = await requests.one(store, PutSchedule("all", plan()))

        assert isinstance(answer, TooLarge)
        assert await store.schedules() == []


class Meddling:
    """What operators do to the job of the next tick."""

    async def test_canceled_it_is_skipped_and_the_schedule_goes_on(
        self, store: Store, clock: FakeClock
    ) -> None:
        schedule = await put(store)
        await requests.operate(store, CancelJobs(ids=(str(schedule.job),)))
        assert (await requests.claims(store)).due_in == 10
        clock.advance(10)

        assert await requests.claim(store) == ()
        clock.advance(10)
        assert await requests.order(store) == [job_id("all", clock.time())]

    async def test_removed_it_is_not_made_again(self, store: Store, clock: FakeClock) -> None:
        schedule = await put(store)
        await requests.operate(store, RemoveJobs(ids=(str(schedule.job),)))
        clock.advance(10)

        assert await requests.claim(store) == ()
        assert await ticks(store, State.SCHEDULED) == [20]

    async def test_promoted_it_runs_now_and_not_again(self, store: Store, clock: FakeClock) -> None:
        schedule = await put(store)
        await requests.operate(store, PromoteJobs(ids=(str(schedule.job),)))
        assert await requests.order(store) == [schedule.job]
        clock.advance(10)

        assert await requests.claim(store) == ()
        assert await ticks(store, State.SCHEDULED) == [20]

    async def test_edited_to_run_earlier_it_does(self, store: Store, clock: FakeClock) -> None:
        schedule = await put(store)
        await requests.operate(store, EditJobs(ids=(str(schedule.job),), run_at=clock.time() + 5))
        clock.advance(5)

        assert await requests.order(store) == [schedule.job]

    async def test_postponed_it_runs_then(self, store: Store, clock: FakeClock) -> None:
        schedule = await put(store)
        await requests.operate(store, PostponeJobs(ids=(str(schedule.job),), delay=15))
        clock.advance(10)
        assert await requests.claim(store) == ()
        clock.advance(5)

        assert await requests.order(store) == [schedule.job]


class RunningNow:
    async def test_a_schedule_can_be_run_now(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        await requests.one(store, PauseSchedule("all"))

        assert await requests.one(store, RunSchedule("all", "by-hand")) == Inserted(("by-hand",))
        again = await requests.one(store, RunSchedule("all", "by-hand"))

        assert again == Inserted(("by-hand",), frozenset({"by-hand"}))
        [job] = await requests.claim(store)
        assert (job.id, job.payload, job.run_at) == ("by-hand", JOB.payload, None)
        found = origin(job)
        assert found is not None
        assert (found.schedule, found.tick) == ("all", None)
        assert clock.time() == job.created_at

    async def test_a_run_by_hand_lives_as_others_do(self, store: Store, clock: FakeClock) -> None:
        await put(store, overlap=Overlap.SKIP)
        await requests.one(store, RunSchedule("all", "by-hand"))
        clock.advance(10)
        await requests.upkeep(store)

        assert (await one(store)).missed == 1

    async def test_ticks_of_the_past_are_run_once(self, store: Store, clock: FakeClock) -> None:
        clock.advance(100)
        await put(store)
        start, now = clock.time() - 100, clock.time()

        answer = await requests.one(store, Backfill("all", start + 60, now + 1_000))

        ids = tuple(job_id("all", start + tick) for tick in (60, 70, 80, 90, 100))
        assert answer == Backfilled(ids)
        assert await ticks(store, State.WAITING) == [60, 70, 80, 90, 100]
        again = await requests.one(store, Backfill("all", start + 50, now))
        assert again == Backfilled((job_id("all", start + 50), *ids), frozenset(ids))
        assert [job.id for job in await _claimed(store)] == [*ids, job_id("all", start + 50)]
        assert (await one(store)).tick == now + 10

    async def test_a_long_range_is_gone_through_in_steps(self, store: Store, clock: FakeClock) -> None:
        clock.advance(100)
        await put(store)
        first: float | None = clock.time() - 100
        steps = []
        while first is not None:
            answer = await requests.one(store, Backfill("all", first, clock.time(), 4))
            assert isinstance(answer, Backfilled)
            steps.append(len(answer.ids))
            first = answer.first

        assert steps == [4, 4, 3]
        assert await ticks(store, State.WAITING) == [tick * 10 for tick in range(11)]

    async def test_ticks_of_the_past_do_not_overlap_where_others_must_not(
        self, store: Store, clock: FakeClock
    ) -> None:
        clock.advance(30)
        await put(store, overlap=Overlap.SKIP)

        await requests.one(store, Backfill("all", clock.time() - 20, clock.time()))

        assert await ticks(store, State.WAITING) == [10]
        assert await ticks(store, State.BLOCKED) == [20, 30]

    async def test_jobs_of_a_schedule_are_found_by_their_ids(self, store: Store, clock: FakeClock) -> None:
        await put(store)
        await put(store, "other")
        clock.advance(10)
        await requests.upkeep(store)

        found = await requests.jobs(store, parse('id~"other@"'))

        assert [job.state for job in found] == [State.SCHEDULED, State.WAITING]


async def _claimed(store: Store) -> tuple[JobRecord, ...]:
    return await requests.claim(store, limit=100)
