"""Conveyor's table of events: a test causes each event and reads it from the store's log or through the API.

Its terms: waiting-children is blocked, delayed is scheduled, cancelled is canceled. Lines that begin with >
are quoted from the page.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from errandry import Errandry, Event, Worker, WorkerOptions
from errandry.core.command import CompleteOutcome, Note
from errandry.core.event import EventKind
from errandry.core.job import Progress
from errandry.store.contract import Store
from errandry.testing import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

Cause = Callable[[Store, FakeClock, Given], Awaitable[None]]


async def _insert_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.waiting()


async def _insert_flow(store: Store, clock: FakeClock, given: Given) -> None:
    await given.blocked()


async def _insert_delayed_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.scheduled()


async def _run_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.running()


async def _complete_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.completed()


async def _fail_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.failed()


async def _report_progress(store: Store, clock: FakeClock, given: Given) -> None:
    await requests.send(store, Note(ref(await given.running()), Progress(0.5)))


async def _expire_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.running(lease=30.0)
    clock.advance(30.0)
    await requests.run_upkeep(store)


async def _remove_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.removed()


async def _claim_last_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.waiting()
    await requests.claim(store)


async def _cancel_job(store: Store, clock: FakeClock, given: Given) -> None:
    await given.canceled()


EVENTS: dict[str, tuple[EventKind, Cause]] = {
    "waiting: Job added or re-enqueued": (EventKind.WAITING, _insert_job),
    "waiting-children: Parent job created in a flow": (EventKind.BLOCKED, _insert_flow),
    "delayed: Job scheduled for future processing": (EventKind.SCHEDULED, _insert_delayed_job),
    "active: Worker picks up a job": (EventKind.STARTED, _run_job),
    "completed: Job processed successfully": (EventKind.COMPLETED, _complete_job),
    "failed: Job processing failed": (EventKind.FAILED, _fail_job),
    "progress: Job reports progress update": (EventKind.PROGRESS, _report_progress),
    "stalled: Active job's lock expired, re-enqueued": (EventKind.STALLED, _expire_job),
    "removed: Job removed from the store": (EventKind.REMOVED, _remove_job),
    "drained: Queue has no more waiting jobs": (EventKind.DRAINED, _claim_last_job),
    "cancelled: Job was cancelled": (EventKind.CANCELED, _cancel_job),
}
"""The other three of the fourteen, `paused`, `resumed` and `error`, have tests of their own below."""


@pytest.mark.parametrize("page_line", EVENTS)
async def test_each_event_of_the_table_is_written(store: Store, clock: FakeClock, page_line: str) -> None:
    kind, cause = EVENTS[page_line]
    await cause(store, clock, Given(store))

    assert kind in [entry.event.kind for entry in (await store.events(None, 100)).entries]


@pytest.fixture
async def jobs(store: Store, clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry(store=store, clock=clock) as jobs:
        yield jobs


async def test_pauses_and_resumes_are_reported(jobs: Errandry) -> None:
    """> paused: Queue or job name paused · resumed: Queue or job name resumed"""
    cursor = await jobs.latest_cursor()
    await jobs.queue("mail").pause(by="ada")
    await jobs.queue("mail").resume()
    await jobs.remote_task("send").pause(by="ada")
    await jobs.remote_task("send").resume()

    events = []
    async for event in jobs.events(after=cursor):
        events.append((event.kind, event.queue or event.task))
        if len(events) == 4:
            break
    assert events == [
        (EventKind.PAUSED, "mail"),
        (EventKind.RESUMED, "mail"),
        (EventKind.PAUSED, "send"),
        (EventKind.RESUMED, "send"),
    ]


async def test_trouble_of_a_worker_is_an_error(jobs: Errandry) -> None:
    """> error: An error occurred in the queue/worker"""
    cursor = await jobs.latest_cursor()
    heard: list[str] = []

    @jobs.task
    async def send() -> None: ...

    @jobs.on("error")
    async def alarm(event: Event) -> None:
        heard.append(event.text)

    @jobs.on("completed")
    async def breaks(event: Event) -> None:
        raise ConnectionError("no route to host")

    await send.enqueue()
    await Worker(jobs, WorkerOptions(burst=True)).run()

    stored = await anext(jobs.events(after=cursor, kind="error"))
    assert heard == [stored.text]
    assert heard[0].endswith("raised: ConnectionError: no route to host")


async def test_an_observer_sees_the_events_of_a_job_until_its_end(jobs: Errandry) -> None:
    """> events are emitted both locally (via EventBus) and through the store's pub/sub mechanism"""

    @jobs.task
    async def send() -> None: ...

    job = await send.enqueue()
    claimed = await Given(jobs.store).claim(await jobs.client.record(job.id))
    kinds = []
    async for event in job.observe():
        kinds.append(event.kind)
        if event.kind is EventKind.STARTED:
            await requests.settle(jobs.store, claimed, CompleteOutcome())
    assert kinds == [EventKind.STARTED, EventKind.COMPLETED]
