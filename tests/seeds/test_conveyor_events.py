"""Conveyor's table of events, each brought about and read from the store's log, and through the API.

The page's words in ours: waiting-children is blocked, delayed is scheduled, cancelled is canceled. Lines
after > are the page's.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from errandry import Errandry
from errandry.core.command import CompleteOutcome, Note
from errandry.core.event import EventKind
from errandry.core.job import Progress
from errandry.store.contract import Store, StoreLimits
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

Bring = Callable[[Store, FakeClock, Given], Awaitable[None]]


async def _waiting(store: Store, clock: FakeClock, given: Given) -> None:
    await given.waiting()


async def _blocked(store: Store, clock: FakeClock, given: Given) -> None:
    await given.blocked()


async def _scheduled(store: Store, clock: FakeClock, given: Given) -> None:
    await given.scheduled()


async def _active(store: Store, clock: FakeClock, given: Given) -> None:
    await given.running()


async def _completed(store: Store, clock: FakeClock, given: Given) -> None:
    await given.completed()


async def _failed(store: Store, clock: FakeClock, given: Given) -> None:
    await given.failed()


async def _progress(store: Store, clock: FakeClock, given: Given) -> None:
    await requests.one(store, Note(ref(await given.running()), Progress(0.5)))


async def _stalled(store: Store, clock: FakeClock, given: Given) -> None:
    await given.running(lease=30.0)
    clock.advance(30.0)
    await requests.upkeep(store)


async def _removed(store: Store, clock: FakeClock, given: Given) -> None:
    await given.gone()


async def _drained(store: Store, clock: FakeClock, given: Given) -> None:
    await given.waiting()
    await requests.claim(store)


async def _canceled(store: Store, clock: FakeClock, given: Given) -> None:
    await given.canceled()


EVENTS: dict[str, tuple[EventKind, Bring]] = {
    "waiting: Job added or re-enqueued": (EventKind.WAITING, _waiting),
    "waiting-children: Parent job created in a flow": (EventKind.BLOCKED, _blocked),
    "delayed: Job scheduled for future processing": (EventKind.SCHEDULED, _scheduled),
    "active: Worker picks up a job": (EventKind.STARTED, _active),
    "completed: Job processed successfully": (EventKind.COMPLETED, _completed),
    "failed: Job processing failed": (EventKind.FAILED, _failed),
    "progress: Job reports progress update": (EventKind.PROGRESS, _progress),
    "stalled: Active job's lock expired, re-enqueued": (EventKind.STALLED, _stalled),
    "removed: Job removed from the store": (EventKind.REMOVED, _removed),
    "drained: Queue has no more waiting jobs": (EventKind.DRAINED, _drained),
    "cancelled: Job was cancelled": (EventKind.CANCELED, _canceled),
}
"""`paused`, `resumed` and `error`, the other three of the fourteen, are below."""


@pytest.mark.parametrize("said", EVENTS)
async def test_each_event_is_told(store: Store, clock: FakeClock, said: str) -> None:
    kind, bring = EVENTS[said]
    await bring(store, clock, Given(store))

    assert kind in [one.event.kind for one in (await store.events(None, 100)).entries]


@pytest.fixture
async def jobs(store: Store, clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry(store=store, clock=clock) as jobs:
        yield jobs


async def test_pauses_are_told(jobs: Errandry) -> None:
    """> paused: Queue or job name paused · resumed: Queue or job name resumed"""
    head = await jobs.latest_cursor()
    await jobs.queue("mail").pause(by="ada")
    await jobs.queue("mail").resume()
    await jobs.task_gate("send").pause(by="ada")
    await jobs.task_gate("send").resume()

    told = []
    async for one in jobs.events(after=head):
        told.append((one.event.kind, one.event.queue or one.event.task))
        if len(told) == 4:
            break
    assert told == [
        (EventKind.PAUSED, "mail"),
        (EventKind.RESUMED, "mail"),
        (EventKind.PAUSED, "send"),
        (EventKind.RESUMED, "send"),
    ]


async def test_an_error_is_told_to_who_was_away_too_long() -> None:
    """> error: An error occurred in the queue/worker. Ours: what a reader cannot be told any more."""
    clock = FakeClock()
    async with Errandry(store=MemoryStore(clock, StoreLimits(events=1)), clock=clock) as jobs:
        given = Given(jobs.store)
        await given.waiting()
        first = (await jobs.store.events(None, 1)).cursor
        for _ in range(3):
            await given.waiting()
        await requests.upkeep(jobs.store)

        async for one in jobs.events(after=first):
            assert one.event.kind is EventKind.EVENTS_MISSED
            break


async def test_a_listener_hears_a_job_from_its_state_to_its_end(jobs: Errandry) -> None:
    """> events are emitted both locally (via EventBus) and through the store's pub/sub mechanism"""

    @jobs.task
    async def send() -> None: ...

    job = await send.enqueue()
    taken = await Given(jobs.store).taken(await jobs.record(job.id))
    told = []
    async for one in job.observe():
        told.append(one.event.kind)
        if one.event.kind is EventKind.STARTED:
            await requests.settle(jobs.store, taken, CompleteOutcome())
    assert told == [EventKind.STARTED, EventKind.COMPLETED]
