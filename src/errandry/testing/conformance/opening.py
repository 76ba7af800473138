"""Opening, closing and waking."""

import asyncio

import pytest

from errandry.core.command import Insert
from errandry.errors import InvalidValue, StoreClosed
from errandry.store.contract import Bounds, Store
from errandry.store.health import Grade
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import ask
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class Opening:
    async def test_a_new_store_is_empty(self, store: Store) -> None:
        assert await ask.jobs(store) == []
        assert await ask.events(store) == []
        assert (await store.counts(), await store.totals()) == ({}, {})
        assert (await store.queues(), await store.workers()) == ([], [])

    async def test_opening_twice_changes_nothing(self, store: Store, given: Given) -> None:
        job = await given.waiting()

        await store.open()

        assert await ask.current(store, job) == job

    async def test_a_pass_without_commands_changes_nothing(self, store: Store) -> None:
        before = await ask.everything(store)

        assert await store.commit([]) == []
        assert await ask.everything(store) == before

    async def test_nothing_is_missing_once_it_is_open(self, store: Store) -> None:
        assert await store.missing() is None

    async def test_it_says_what_a_write_survives(self, store: Store) -> None:
        findings = await store.examine()

        assert "durability" in {finding.topic for finding in findings}
        assert all(finding.text for finding in findings)
        assert all(finding.todo for finding in findings if finding.grade is Grade.WRONG)

    async def test_what_is_no_connection_cannot_be_bound(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="connection="):
            store.bind(object())

    async def test_a_closed_store_refuses_to_read_and_write(
        self, make_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await make_store(clock, Bounds())
        job = Given(store).job()
        await store.close()
        await store.close()

        with pytest.raises(StoreClosed):
            await store.commit([Insert((job,))])
        with pytest.raises(StoreClosed):
            await store.get([job.id])


class Waking:
    async def test_nobody_misses_what_was_committed_after_the_pulse_was_taken(
        self, store: Store, given: Given
    ) -> None:
        pulse = store.pulse()
        await given.waiting()

        async with asyncio.timeout(30):
            assert await store.wake(pulse, 60.0)

    async def test_a_commit_wakes_who_waits(self, store: Store, given: Given) -> None:
        waiting = asyncio.create_task(store.wake(store.pulse(), 60.0))
        await asyncio.sleep(0)
        await given.waiting()

        async with asyncio.timeout(30):
            assert await waiting

    async def test_waiting_ends_with_its_time(self, store: Store) -> None:
        async with asyncio.timeout(30):
            assert isinstance(await store.wake(store.pulse(), 0.01), bool)
