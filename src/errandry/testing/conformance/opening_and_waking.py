"""Opening and closing a store, and waiting for a change."""

import asyncio

import pytest

from errandry.core.command import Insert
from errandry.errors import InvalidValue, StoreClosed
from errandry.store.contract import Store, StoreLimits
from errandry.store.health import Grade
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class OpeningAndClosing:
    async def test_a_new_store_is_empty(self, store: Store) -> None:
        assert await requests.list_jobs(store) == []
        assert await requests.read_events(store) == []
        assert (await store.counts(), await store.totals()) == ({}, {})
        assert (await store.queues(), await store.workers()) == ([], [])

    async def test_opening_twice_changes_nothing(self, store: Store, given: Given) -> None:
        job = await given.waiting()

        await store.open()

        assert await requests.current_job(store, job) == job

    async def test_a_pass_without_commands_changes_nothing(self, store: Store) -> None:
        before = await requests.snapshot(store)

        assert await store.commit([]) == []
        assert await requests.snapshot(store) == before

    async def test_an_open_store_needs_no_setup(self, store: Store) -> None:
        assert await store.needs_setup() is None

    async def test_a_store_that_is_opened_again_is_up_to_date(self, store: Store) -> None:
        """A store without a schema says None."""
        await store.close()
        await store.open()

        change = store.schema_change

        assert change is None or change.before == change.after > 0

    async def test_the_diagnosis_covers_durability(self, store: Store) -> None:
        findings = await store.diagnose()

        assert "durability" in {finding.topic for finding in findings}
        assert all(finding.text for finding in findings)
        assert all(finding.todo for finding in findings if finding.grade is Grade.WRONG)

    async def test_an_object_that_is_no_connection_cannot_be_bound(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="connection="):
            store.bind(object())

    async def test_a_closed_store_refuses_to_read_and_write(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await make_store(clock, StoreLimits())
        job = Given(store).new_job()
        await store.close()
        await store.close()

        with pytest.raises(StoreClosed):
            await store.commit([Insert((job,))])
        with pytest.raises(StoreClosed):
            await store.get([job.id])


class ChangeNotification:
    async def test_a_commit_after_the_version_was_read_ends_the_wait_at_once(
        self, store: Store, given: Given
    ) -> None:
        pulse = store.version()
        await given.waiting()

        async with asyncio.timeout(30):
            assert await store.wait_for_change(pulse, 60.0)

    async def test_a_commit_wakes_a_waiting_reader(self, store: Store, given: Given) -> None:
        waiting = asyncio.create_task(store.wait_for_change(store.version(), 60.0))
        await asyncio.sleep(0)
        await given.waiting()

        async with asyncio.timeout(30):
            assert await waiting

    async def test_waiting_for_a_change_ends_at_its_timeout(self, store: Store) -> None:
        async with asyncio.timeout(30):
            assert isinstance(await store.wait_for_change(store.version(), 0.01), bool)
