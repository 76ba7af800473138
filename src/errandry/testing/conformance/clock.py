"""The store's clock never goes back, and leases and due times still work when the host's clock jumps."""

import pytest

from errandry.core.answer import LossCause, Lost
from errandry.core.command import CompleteOutcome
from errandry.core.job import Keep
from errandry.core.state import State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

HOUR = 3_600.0


class ClockJumps:
    async def test_recorded_times_never_go_back(self, store: Store, clock: FakeClock, given: Given) -> None:
        jobs = []
        for step in (0.0, -HOUR, 1.0, -HOUR, -0.25, 60.0):
            clock.jump(step)
            jobs.append(await given.waiting())
            clock.advance(0.25)

        times = [job.created_at for job in jobs]

        assert times == sorted(times)
        assert [entry.at for entry in (await store.events()).entries] == times

    async def test_a_lease_still_expires_after_the_clock_stepped_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(lease=30.0)
        clock.jump(-HOUR)
        assert await requests.claim_ids(store) == []
        clock.advance(60)

        assert await requests.settle(store, job, CompleteOutcome()) == Lost(LossCause.EXPIRED)
        assert await requests.claim_ids(store) == [job.id]

    async def test_a_lease_given_after_the_clock_stepped_back_is_not_shorter(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting()
        clock.jump(-HOUR)
        job = await given.running(lease=30.0)
        clock.advance(29.75)

        assert await requests.settle(store, job, CompleteOutcome()) == "written"

    async def test_a_scheduled_job_still_comes_due_after_the_clock_stepped_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled(delay=30.0)
        clock.jump(-HOUR)
        clock.advance(60)

        assert job.id in await requests.claim_ids(store)

    async def test_everything_comes_due_when_the_clock_jumps_ahead(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=30.0)
        await given.scheduled(delay=60.0)
        gone = await given.completed(keep=Keep(completed=60.0))
        clock.jump(HOUR)
        await requests.run_upkeep(store)

        assert [job.state for job in await requests.list_jobs(store)] == [State.WAITING] * 2
        assert await requests.is_gone(store, gone)

    @pytest.mark.parametrize("ahead", [HOUR, 365 * 24 * HOUR])
    async def test_leases_still_expire_after_the_clock_was_ahead_for_a_while(
        self, store: Store, clock: FakeClock, given: Given, ahead: float
    ) -> None:
        clock.jump(ahead)
        await given.waiting(id="early")
        clock.jump(-ahead)
        [job] = await requests.claim(store, lease=30.0)
        clock.advance(60)

        [reclaimed] = await requests.claim(store, lease=30.0)

        assert (job.id, reclaimed.id) == ("early", "early")
        assert reclaimed.fence > job.fence
