"""Changes to schedules: put again, pause, resume, remove, run now, backfill; and changes to the next tick."""

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
from errandry.errors import ScheduleChanged, TooLarge, UnknownSchedule
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.conformance.scheduling import JOB, get_schedule, plan, put_schedule, ticks


class ScheduleChanges:
    """Schedules that are put again, paused, resumed or removed."""

    async def test_putting_the_same_schedule_again_changes_nothing(
        self, store: Store, clock: FakeClock
    ) -> None:
        before = await put_schedule(store), await requests.snapshot(store)
        clock.advance(5)

        assert await requests.send(store, PutSchedule("all", plan(), by="another author")) is ALREADY
        assert (await get_schedule(store), await requests.snapshot(store)) == before

    async def test_an_edit_is_refused_if_the_plan_has_changed_since_it_was_read(self, store: Store) -> None:
        read = (await put_schedule(store)).plan
        limited, delayed = replace(read, limit=5), replace(read, jitter=3.0)

        answers = await store.commit(
            [PutSchedule("all", limited, "ada", edited=read), PutSchedule("all", delayed, "bob", edited=read)]
        )

        assert answers[0] is WRITTEN
        assert isinstance(answers[1], ScheduleChanged)
        assert answers[1].name == "all"
        stored = await get_schedule(store)
        assert (stored.plan, stored.by) == (limited, "ada")
        both = replace(limited, jitter=3.0)
        assert await requests.send(store, PutSchedule("all", both, "bob", edited=limited)) is WRITTEN
        assert (await get_schedule(store)).plan == both

    async def test_an_edit_that_is_sent_again_after_it_was_written_changes_nothing(
        self, store: Store
    ) -> None:
        read = (await put_schedule(store)).plan
        edit = PutSchedule("all", replace(read, limit=5), "ada", edited=read)
        assert await requests.send(store, edit) is WRITTEN
        before = await get_schedule(store), await requests.snapshot(store)

        assert await requests.send(store, edit) is ALREADY
        assert (await get_schedule(store), await requests.snapshot(store)) == before

    async def test_an_edit_does_not_bring_back_a_removed_schedule(self, store: Store) -> None:
        read = (await put_schedule(store)).plan
        await requests.send(store, RemoveSchedule("all"))

        answer = await requests.send(store, PutSchedule("all", replace(read, limit=5), edited=read))

        assert isinstance(answer, UnknownSchedule)
        assert await store.schedules() == []

    async def test_a_changed_interval_moves_the_next_tick_at_once(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store)
        clock.advance(5)

        after = await put_schedule(store, every=7.0, job=replace(JOB, payload="[7]"))

        assert after.tick == clock.time() + 7 - clock.time() % 7
        [job] = await requests.list_jobs(store)
        assert (job.id, job.payload, job.state) == (after.job, "[7]", State.SCHEDULED)

    async def test_changed_arguments_do_not_move_the_next_tick(self, store: Store, clock: FakeClock) -> None:
        before = await put_schedule(store)
        clock.advance(5)

        after = await put_schedule(store, job=replace(JOB, payload="[7]", queue="other"))

        assert after.tick == before.tick
        [job] = await requests.list_jobs(store)
        assert (job.id, job.payload, job.queue) == (before.job, "[7]", "other")

    async def test_a_changed_schedule_leaves_running_jobs_unchanged(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store)
        clock.advance(10)
        [job] = await requests.claim(store)
        await put_schedule(store, job=replace(JOB, payload="[7]"))

        assert (await requests.current_job(store, job)).payload == JOB.payload

    async def test_a_pause_removes_the_next_tick_until_the_schedule_is_resumed(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store)
        assert await requests.send(store, PauseSchedule("all", "ada")) is WRITTEN
        assert await requests.send(store, PauseSchedule("all", "bob")) is ALREADY

        paused = await get_schedule(store)

        assert paused.paused is not None
        assert (paused.paused.by, paused.tick, paused.due_at, paused.is_over) == ("ada", None, None, False)
        assert await requests.list_jobs(store) == []
        clock.advance(100)
        assert await requests.run_upkeep(store) == await requests.run_upkeep(store)
        assert await requests.send(store, ResumeSchedule("all")) is WRITTEN
        assert await requests.send(store, ResumeSchedule("all")) is ALREADY
        resumed = await get_schedule(store)
        assert (resumed.paused, resumed.tick, resumed.missed) == (None, clock.time() + 10, 0)
        assert await ticks(store, State.SCHEDULED) == [110]

    async def test_a_paused_schedule_stays_paused_when_it_is_changed(self, store: Store) -> None:
        await put_schedule(store)
        await requests.send(store, PauseSchedule("all"))

        after = await put_schedule(store, every=20.0)

        assert after.paused is not None
        assert after.tick is None
        assert await requests.list_jobs(store) == []

    async def test_removing_a_schedule_removes_the_job_of_its_next_tick(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store)
        clock.advance(10)
        [job] = await requests.claim(store)

        assert await requests.send(store, RemoveSchedule("all")) is WRITTEN
        assert await requests.send(store, RemoveSchedule("all")) is ALREADY

        assert await store.schedules() == []
        assert [stored.id for stored in await requests.list_jobs(store)] == [job.id]
        clock.advance(10)
        assert await requests.claim(store) == ()

    @pytest.mark.parametrize("move", [PromoteJobs, CancelJobs])
    async def test_a_change_does_not_recreate_a_promoted_or_canceled_tick(
        self, store: Store, clock: FakeClock, move: type[PromoteJobs] | type[CancelJobs]
    ) -> None:
        schedule = await put_schedule(store)
        await requests.operate(store, move(ids=(str(schedule.job),)))
        claimed = await requests.claim(store)

        after = await put_schedule(store, job=replace(JOB, payload="[7]"))

        assert after.tick == schedule.tick
        [job] = await requests.list_jobs(store)
        assert (job.id, job.payload) == (schedule.job, JOB.payload)
        await requests.send(store, RemoveSchedule("all"))
        await put_schedule(store)
        clock.advance(10)
        assert await requests.claim(store, limit=5) == ()
        assert len(claimed) == (move is PromoteJobs)

    @pytest.mark.parametrize(
        "command",
        [PauseSchedule("no"), ResumeSchedule("no"), RunSchedule("no", "job"), Backfill("no", 0, 1)],
        ids=lambda command: type(command).__name__,
    )
    async def test_a_command_for_an_unknown_schedule_is_refused(self, store: Store, command: Command) -> None:
        before = await requests.snapshot(store)

        answer = await requests.send(store, command)

        assert isinstance(answer, UnknownSchedule)
        assert answer.name == "no"
        assert await requests.snapshot(store) == before

    async def test_a_schedule_with_too_large_a_payload_is_refused(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10))

        answer = await requests.send(store, PutSchedule("all", plan()))

        assert isinstance(answer, TooLarge)
        assert await store.schedules() == []


class NextTickChanges:
    """Operator commands for the job of the next tick."""

    async def test_a_canceled_tick_is_skipped_and_the_schedule_continues(
        self, store: Store, clock: FakeClock
    ) -> None:
        schedule = await put_schedule(store)
        await requests.operate(store, CancelJobs(ids=(str(schedule.job),)))
        assert (await requests.send_claim(store)).due_in == 10
        clock.advance(10)

        assert await requests.claim(store) == ()
        clock.advance(10)
        assert await requests.claim_ids(store) == [job_id("all", clock.time())]

    async def test_a_removed_tick_is_not_recreated(self, store: Store, clock: FakeClock) -> None:
        schedule = await put_schedule(store)
        await requests.operate(store, RemoveJobs(ids=(str(schedule.job),)))
        clock.advance(10)

        assert await requests.claim(store) == ()
        assert await ticks(store, State.SCHEDULED) == [20]

    async def test_a_promoted_tick_runs_now_and_not_again(self, store: Store, clock: FakeClock) -> None:
        schedule = await put_schedule(store)
        await requests.operate(store, PromoteJobs(ids=(str(schedule.job),)))
        assert await requests.claim_ids(store) == [schedule.job]
        clock.advance(10)

        assert await requests.claim(store) == ()
        assert await ticks(store, State.SCHEDULED) == [20]

    async def test_a_tick_edited_to_an_earlier_time_runs_then(self, store: Store, clock: FakeClock) -> None:
        schedule = await put_schedule(store)
        await requests.operate(store, EditJobs(ids=(str(schedule.job),), run_at=clock.time() + 5))
        clock.advance(5)

        assert await requests.claim_ids(store) == [schedule.job]

    async def test_a_postponed_tick_runs_at_its_new_time(self, store: Store, clock: FakeClock) -> None:
        schedule = await put_schedule(store)
        await requests.operate(store, PostponeJobs(ids=(str(schedule.job),), delay=15))
        clock.advance(10)
        assert await requests.claim(store) == ()
        clock.advance(5)

        assert await requests.claim_ids(store) == [schedule.job]


class ManualRuns:
    async def test_a_schedule_can_be_run_now(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store)
        await requests.send(store, PauseSchedule("all"))

        assert await requests.send(store, RunSchedule("all", "by-hand")) == Inserted(("by-hand",))
        answer = await requests.send(store, RunSchedule("all", "by-hand"))

        assert answer == Inserted(("by-hand",), frozenset({"by-hand"}))
        [job] = await requests.claim(store)
        assert (job.id, job.payload, job.run_at) == ("by-hand", JOB.payload, None)
        job_origin = origin(job)
        assert job_origin is not None
        assert (job_origin.schedule, job_origin.tick) == ("all", None)
        assert clock.time() == job.created_at

    async def test_with_overlap_skip_a_manual_run_makes_the_next_tick_missed(
        self, store: Store, clock: FakeClock
    ) -> None:
        await put_schedule(store, overlap=Overlap.SKIP)
        await requests.send(store, RunSchedule("all", "by-hand"))
        clock.advance(10)
        await requests.run_upkeep(store)

        assert (await get_schedule(store)).missed == 1

    async def test_a_backfill_runs_each_past_tick_once(self, store: Store, clock: FakeClock) -> None:
        clock.advance(100)
        await put_schedule(store)
        start, now = clock.time() - 100, clock.time()

        answer = await requests.send(store, Backfill("all", start + 60, now + 1_000))

        ids = tuple(job_id("all", start + tick) for tick in (60, 70, 80, 90, 100))
        assert answer == Backfilled(ids)
        assert await ticks(store, State.WAITING) == [60, 70, 80, 90, 100]
        repeated = await requests.send(store, Backfill("all", start + 50, now))
        assert repeated == Backfilled((job_id("all", start + 50), *ids), frozenset(ids))
        assert [job.id for job in await _claim_all(store)] == [*ids, job_id("all", start + 50)]
        assert (await get_schedule(store)).tick == now + 10

    async def test_a_backfill_of_a_long_range_runs_in_bounded_steps(
        self, store: Store, clock: FakeClock
    ) -> None:
        clock.advance(100)
        await put_schedule(store)
        first: float | None = clock.time() - 100
        steps = []
        while first is not None:
            answer = await requests.send(store, Backfill("all", first, clock.time(), 4))
            assert isinstance(answer, Backfilled)
            steps.append(len(answer.ids))
            first = answer.first

        assert steps == [4, 4, 3]
        assert await ticks(store, State.WAITING) == [tick * 10 for tick in range(11)]

    async def test_with_overlap_skip_backfilled_ticks_wait_for_each_other(
        self, store: Store, clock: FakeClock
    ) -> None:
        clock.advance(30)
        await put_schedule(store, overlap=Overlap.SKIP)

        await requests.send(store, Backfill("all", clock.time() - 20, clock.time()))

        assert await ticks(store, State.WAITING) == [10]
        assert await ticks(store, State.BLOCKED) == [20, 30]

    async def test_jobs_of_a_schedule_are_found_by_their_ids(self, store: Store, clock: FakeClock) -> None:
        await put_schedule(store)
        await put_schedule(store, "other")
        clock.advance(10)
        await requests.run_upkeep(store)

        jobs = await requests.list_jobs(store, parse('id~"other@"'))

        assert [job.state for job in jobs] == [State.SCHEDULED, State.WAITING]


async def _claim_all(store: Store) -> tuple[JobRecord, ...]:
    return await requests.claim(store, limit=100)
