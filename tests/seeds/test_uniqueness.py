"""Sidequest's rules for unique jobs and TaskHarbor's for idempotency keys, replayed on every store.

Lines that begin with > state the rules of these systems, from their documents and their code. Comments name
the differences.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from errandry import Errandry, State, UniqueOptions
from errandry.api.task import Task
from errandry.errors import DuplicateJob
from errandry.store.contract import Store
from errandry.testing import FakeClock, drain


@pytest.fixture
async def jobs(store: Store, clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry(store=store, clock=clock) as jobs:
        yield jobs


@pytest.fixture
def email(jobs: Errandry) -> Task[[str], str]:
    @jobs.task(max_attempts=1)
    async def email(to: str) -> str:
        if to == "unknown":
            raise LookupError(to)
        return f"sent to {to}"

    return email


def unique_while_alive(with_args: bool) -> UniqueOptions:
    return UniqueOptions(by=None if with_args else (), on_conflict="raise")


def unique_per_period(
    of: Literal["second", "minute", "hour", "day", "week", "month"], with_args: bool = False
) -> UniqueOptions:
    return UniqueOptions(by=None if with_args else (), scope=of, on_conflict="raise")


class TestSidequest:
    async def test_a_unique_task_has_one_live_job_whatever_its_arguments(
        self, email: Task[[str], str]
    ) -> None:
        """> One job of the class is alive (waiting, claimed or running) at a time, whatever its arguments."""
        unique = email.using(unique=unique_while_alive(with_args=False))
        await unique.enqueue("ada")

        with pytest.raises(DuplicateJob):  # > DuplicatedJobError
            await unique.enqueue("grace")

    async def test_unique_by_arguments_allows_jobs_with_other_arguments(
        self, email: Task[[str], str]
    ) -> None:
        """> With withArgs, jobs of other arguments are others."""
        unique = email.using(unique=unique_while_alive(with_args=True))
        await unique.enqueue("ada")
        await unique.enqueue("grace")

        with pytest.raises(DuplicateJob):
            await unique.enqueue("ada")

    @pytest.mark.parametrize("to", ["ada", "unknown"])
    async def test_a_finished_job_frees_its_key(
        self, jobs: Errandry, email: Task[[str], str], to: str
    ) -> None:
        """> The digest is nulled when the job completes, fails or is canceled."""
        unique = email.using(unique=unique_while_alive(with_args=True))
        for _ in range(2):
            await unique.enqueue(to)
            await drain(jobs)
        await (await unique.enqueue(to)).cancel()
        await unique.enqueue(to)

    @pytest.mark.parametrize(
        ("of", "last", "following"),
        [
            ("second", "2026-05-13T10:20:30.75", "2026-05-13T10:20:31"),
            ("minute", "2026-05-13T10:20:59", "2026-05-13T10:21:00"),
            ("hour", "2026-05-13T10:59:59", "2026-05-13T11:00:00"),
            ("day", "2026-05-13T23:59:59", "2026-05-14T00:00:00"),
            ("week", "2026-05-17T23:59:59", "2026-05-18T00:00:00"),  # weeks begin on Monday here
            ("month", "2026-05-31T23:59:59", "2026-06-01T00:00:00"),
        ],
    )
    async def test_a_period_is_a_fixed_window_in_utc_and_outlives_the_job(
        self, jobs: Errandry, email: Task[[str], str], clock: FakeClock, of: Any, last: str, following: str
    ) -> None:
        """> One job per period. The digest of a period is kept when the job has finished."""
        unique = email.using(unique=unique_per_period(of))
        set_clock(clock, "2026-05-13T10:20:30.5")
        await unique.enqueue("ada")
        await drain(jobs)
        set_clock(clock, last)
        with pytest.raises(DuplicateJob):
            await unique.enqueue("ada")
        set_clock(clock, following)

        assert not (await unique.enqueue("ada")).existed

    async def test_the_due_time_of_a_job_chooses_its_period(
        self, email: Task[[str], str], clock: FakeClock
    ) -> None:
        """> The window is the one available_at falls into, not the one of the insert."""
        set_clock(clock, "2026-05-13T10:20:30")
        unique = email.using(unique=unique_per_period("day"))
        await unique.enqueue("today")
        await unique.using(delay="1 day").enqueue("tomorrow")

        with pytest.raises(DuplicateJob):
            await unique.using(run_at=datetime(2026, 5, 14, 23, tzinfo=UTC)).enqueue("tomorrow, too")

    async def test_a_cron_job_on_several_instances_runs_once_a_period(
        self, jobs: Errandry, email: Task[[str], str], clock: FakeClock
    ) -> None:
        """> To run a schedule of several instances once, use unique with a period. Nothing to catch here."""
        set_clock(clock, "2026-05-13T10:20:30")
        unique = email.using(unique=UniqueOptions(by=(), scope="minute"))

        inserted = [not (await unique.enqueue("report")).existed for _instance in range(4)]

        assert inserted == [True, False, False, False]
        assert len(await drain(jobs)) == 1


class TestTaskHarbor:
    def with_key(self, email: Task[[str], str], key: str) -> Task[[str], str]:
        return email.using(unique=UniqueOptions(key, per="queue", scope="ever"))

    async def test_a_duplicate_returns_the_existing_id_and_changes_nothing(
        self, jobs: Errandry, email: Task[[str], str]
    ) -> None:
        """> Enqueue returns (id, existed): the same key again gives the first id, existed=true, no change."""
        first = await self.with_key(email, "order-7").enqueue("ada")
        second = await self.with_key(email, "order-7").enqueue("grace")

        assert (second.id, first.existed, second.existed) == (first.id, False, True)
        assert (await jobs.client.record(first.id)).payload == '{"to":"ada"}'
        assert await jobs.counts() == {"default": {"waiting": 1}}

    async def test_the_same_key_in_another_queue_is_another_job(self, email: Task[[str], str]) -> None:
        """> The key is unique within its queue: (queue, idempotency_key)."""
        mail = await self.with_key(email, "order-7").using(queue="mail").enqueue("ada")
        printed = await self.with_key(email, "order-7").using(queue="print").enqueue("ada")

        assert (mail.id != printed.id, printed.existed) == (True, False)

    @pytest.mark.parametrize(("to", "state"), [("ada", State.COMPLETED), ("unknown", State.FAILED)])
    async def test_a_finished_job_still_holds_its_key(
        self, jobs: Errandry, email: Task[[str], str], to: str, state: State
    ) -> None:
        """> Done and dead-lettered jobs keep their key."""
        first = await self.with_key(email, "order-7").enqueue(to)
        await drain(jobs)

        repeated = await self.with_key(email, "order-7").enqueue(to)

        assert (repeated.id, repeated.state, repeated.existed) == (first.id, state, True)

    async def test_a_dead_letter_can_be_requeued_under_its_key(
        self, jobs: Errandry, email: Task[[str], str]
    ) -> None:
        """> RequeueDLQ takes the job itself: its key is no obstacle to it."""
        job = await self.with_key(email, "order-7").enqueue("unknown")
        await drain(jobs)
        await job.rerun()

        assert job.state is State.WAITING

    async def test_without_a_key_every_enqueue_inserts_a_job(
        self, jobs: Errandry, email: Task[[str], str]
    ) -> None:
        """> An empty key means no idempotency."""
        ids = {(await email.enqueue("ada")).id for _ in range(3)}

        assert len(ids) == 3


def set_clock(clock: FakeClock, text: str) -> None:
    clock.advance(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() - clock.time())
