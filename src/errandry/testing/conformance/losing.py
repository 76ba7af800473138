"""Workers that lose jobs: which losses count as crashes, which are taken back, and when one is final."""

from typing import Any

import pytest

from errandry.core.command import (
    BEAT_INTERVAL,
    DEFAULT_LEASE,
    Beat,
    CompleteOutcome,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.event import EventKind
from errandry.core.state import Reason, State
from errandry.core.suspect import SuspectKind
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

SILENCE = DEFAULT_LEASE + 2 * BEAT_INTERVAL
"""Seconds without a heartbeat after which a worker counts as dead."""


async def _beat(store: Store, worker: str) -> None:
    await requests.send(store, Beat(worker=worker))


class WorkerLosses:
    async def test_a_worker_that_claims_after_its_lease_has_ended_has_not_crashed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running("stalled")
        clock.advance(DEFAULT_LEASE)

        [again] = await requests.claim(store, worker="stalled")

        assert (again.attempts, again.crashes, again.lost_by, len(again.errors)) == (2, 0, None, 1)

    async def test_a_worker_that_expires_its_own_job_by_upkeep_has_not_crashed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("stalled")
        clock.advance(DEFAULT_LEASE)
        await requests.run_upkeep(store, worker="stalled")

        assert (await requests.current_job(store, job)).crashes == 0

    async def test_a_worker_with_a_heartbeat_after_the_end_of_the_lease_has_not_crashed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("alive")
        clock.advance(DEFAULT_LEASE + 1)
        await _beat(store, "alive")
        await requests.run_upkeep(store)

        after = await requests.current_job(store, job)
        assert (after.state, after.attempts, after.crashes) == (State.WAITING, 1, 0)

    async def test_a_stall_still_spends_the_attempt(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("stalled", max_attempts=1)
        clock.advance(DEFAULT_LEASE)
        await requests.run_upkeep(store, worker="stalled")

        after = await requests.current_job(store, job)
        assert (after.state, after.reason, after.crashes) == (State.FAILED, Reason.WORKER_LOST, 0)

    async def test_a_heartbeat_takes_the_crash_back(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _beat(store, "away")
        job, other = await given.running("away"), await given.running("gone")
        clock.advance(DEFAULT_LEASE)
        await requests.run_upkeep(store, worker="other")
        before = await requests.current_job(store, job)
        cursor = await store.latest_cursor()
        await _beat(store, "away")

        after = await requests.current_job(store, job)
        assert (before.crashes, before.lost_by) == (1, "away")
        assert (after.crashes, after.lost_by, after.state) == (0, None, State.WAITING)
        assert (after.place, after.attempts) == (before.place, before.attempts)
        assert (await requests.current_job(store, other)).crashes == 1
        assert await requests.event_kinds(store, cursor) == []

    async def test_a_heartbeat_takes_the_crash_back_from_a_job_that_runs_again(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _beat(store, "away")
        await given.running("away")
        clock.advance(DEFAULT_LEASE)
        [again] = await requests.claim(store, worker="other")
        await _beat(store, "away")

        held = await requests.current_job(store, again)
        assert (held.state, held.crashes, held.fence) == (State.RUNNING, 0, again.fence)
        await requests.settle(store, again, CompleteOutcome("1"))
        assert (await requests.current_job(store, again)).state is State.COMPLETED

    @pytest.mark.parametrize("outcome", [SnoozeOutcome(60.0), RetryOutcome(delay=60.0)])
    async def test_a_heartbeat_leaves_a_job_scheduled_that_waits_for_its_own_time(
        self, store: Store, clock: FakeClock, given: Given, outcome: SnoozeOutcome | RetryOutcome
    ) -> None:
        await _beat(store, "away")
        await given.running("away", max_crashes=2)
        clock.advance(DEFAULT_LEASE)
        [again] = await requests.claim(store, worker="other")
        await requests.settle(store, again, outcome)
        await _beat(store, "away")

        after = await requests.current_job(store, again)
        assert (after.state, after.crashes, after.run_at) == (State.SCHEDULED, 0, clock.time() + 60)

    async def test_a_finished_job_keeps_its_crashes(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _beat(store, "away")
        await given.running("away")
        clock.advance(DEFAULT_LEASE)
        [again] = await requests.claim(store, worker="other")
        await requests.settle(store, again, CompleteOutcome())
        before = await requests.current_job(store, again)
        await _beat(store, "away")

        assert await requests.current_job(store, again) == before
        assert (before.crashes, before.lost_by) == (1, None)

    async def test_a_proven_death_makes_an_earlier_crash_final(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _beat(store, "away")
        job = await given.running("away")
        clock.advance(DEFAULT_LEASE)
        await requests.run_upkeep(store)
        await requests.run_upkeep(store, dead=("away",))
        await _beat(store, "away")

        after = await requests.current_job(store, job)
        assert (after.state, after.crashes, after.lost_by) == (State.WAITING, 1, None)

    async def test_a_worker_without_a_heartbeat_is_not_waited_for(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running("unknown", max_crashes=1)
        clock.advance(DEFAULT_LEASE)
        await requests.run_upkeep(store)

        assert (await requests.current_job(store, job)).state is State.FAILED


class CrashCap:
    """A job whose crashes are at their cap, while its worker may still show that it lives."""

    async def test_it_is_scheduled_until_the_worker_has_been_silent_for_long_enough(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        began = clock.time()
        job = await given.lost_at_the_cap(clock)
        assert (job.state, job.run_at, job.crashes, job.lost_by) == (
            State.SCHEDULED,
            began + SILENCE,
            1,
            "silent",
        )
        clock.advance(SILENCE - DEFAULT_LEASE - 0.25)
        assert await requests.claim_ids(store) == []
        assert (await requests.current_job(store, job)).state is State.SCHEDULED
        clock.advance(0.25)
        cursor = await store.latest_cursor()
        assert await requests.claim_ids(store) == []

        after = await requests.current_job(store, job)
        assert (after.state, after.reason, after.crashes) == (State.FAILED, Reason.WORKER_LOST, 1)
        assert await requests.event_kinds(store, cursor) == [EventKind.FAILED]

    async def test_a_heartbeat_lets_it_wait_again_at_once(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.lost_at_the_cap(clock)
        cursor = await store.latest_cursor()
        await _beat(store, "silent")

        after = await requests.current_job(store, job)
        assert (after.state, after.crashes, after.lost_by) == (State.WAITING, 0, None)
        assert await requests.event_kinds(store, cursor) == [EventKind.WAITING]
        assert await requests.claim_ids(store, worker="other") == [job.id]

    async def test_the_death_of_the_worker_fails_it_at_once(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.lost_at_the_cap(clock)
        await requests.run_upkeep(store, dead=("silent",))

        assert (await requests.current_job(store, job)).state is State.FAILED

    async def test_spent_attempts_fail_a_job_whether_its_worker_lives_or_not(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _beat(store, "silent")
        job = await given.running("silent", max_attempts=1, max_crashes=1)
        clock.advance(DEFAULT_LEASE)
        await requests.run_upkeep(store)

        assert (await requests.current_job(store, job)).state is State.FAILED

    async def test_an_outage_longer_than_the_lease_fails_no_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        """Three times, all workers are cut off from the store for three leases."""
        job = await given.waiting()
        for _ in range(3):
            await _beat(store, "first")
            assert await requests.claim_ids(store, worker="first") == [job.id]
            clock.advance(3 * DEFAULT_LEASE)
            await requests.run_upkeep(store, worker="second")
            await _beat(store, "first")

        after = await requests.current_job(store, job)
        assert (after.state, after.crashes, after.attempts) == (State.WAITING, 0, 3)


class SuspectKinds:
    async def test_a_claim_takes_only_suspects_of_its_kind(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _insert_suspects(clock, given)

        shared = await requests.claim_ids(store, suspects=9, suspect_kind=SuspectKind.SHARED)
        isolated = await requests.claim_ids(store, suspects=1, suspect_kind=SuspectKind.ISOLATED)

        assert (shared, isolated) == (["shared", "plain"], ["few crashes"])
        assert await requests.claim_ids(store) == ["few attempts"]

    async def test_suspects_of_another_kind_do_not_count_towards_the_limit(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _insert_suspects(clock, given)

        assert await requests.claim_ids(store, limit=1, suspects=9, suspect_kind=SuspectKind.SHARED) == [
            "shared"
        ]
        assert await requests.claim_ids(store, limit=1, suspects=9, suspect_kind=SuspectKind.SHARED) == [
            "plain"
        ]

    async def test_the_answer_to_a_claim_says_which_suspects_wait(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await _insert_suspects(clock, given)
        assert await _waiting_suspects(store, suspects=0) == (SuspectKind.SHARED, SuspectKind.ISOLATED)
        assert await _waiting_suspects(store, suspects=1, suspect_kind=SuspectKind.SHARED) == (
            SuspectKind.ISOLATED,
        )
        assert await _waiting_suspects(store) == ()


async def _waiting_suspects(store: Store, **fields: Any) -> tuple[SuspectKind, ...]:
    return (await requests.send_claim(store, limit=10, **fields)).waiting_suspects


async def _insert_suspects(clock: FakeClock, given: Given) -> None:
    """Two isolated suspects, a shared one, and a job that is none, in this order."""
    await given.running("lost", id="few crashes", max_crashes=2, priority=1)
    await given.running("lost", id="few attempts", max_attempts=2, priority=2)
    await given.running("lost", id="shared", priority=3)
    clock.advance(DEFAULT_LEASE)
    await requests.run_upkeep(given.store)
    await given.waiting(id="plain", priority=4)
