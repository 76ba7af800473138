"""Events: in commit order, as they happen or from a reader's cursor."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, Event
from errandry.core.command import Upkeep
from errandry.core.event import EventKind
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import InvalidCursor, InvalidValue, UnknownJob
from errandry.store.contract import StoreLimits
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock, drain
from errandry.worker import observers
from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker
from tests.machine_load import WAIT_TIMEOUT, MachineLoad
from tests.run_worker import running_worker


async def take(events: AsyncIterator[Event], number: int) -> list[Event]:
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(number)]


def kinds_of(events: list[Event]) -> list[str]:
    return [str(event.kind) for event in events]


@pytest.fixture(params=["memory:", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs:

        @jobs.task(name="send")
        async def send(to: str) -> str:
            return to

        yield jobs


@pytest.fixture
def waiting(app: Errandry, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a reader waits for the next change."""
    waiting, original = threading.Event(), app.store.wait_for_change

    async def wait_for_change(version: int, timeout: float) -> bool:
        waiting.set()
        return await original(version, timeout)

    monkeypatch.setattr(app.store, "wait_for_change", wait_for_change)
    return waiting


async def test_a_reader_without_a_cursor_gets_events_from_now_on(
    app: Errandry, waiting: threading.Event
) -> None:
    await app.enqueue("send", {"to": "before"})
    reading = asyncio.create_task(take(app.events(), 1))
    assert await asyncio.to_thread(waiting.wait, WAIT_TIMEOUT)
    job = await app.enqueue("send", {"to": "ada"})

    [seen] = await reading
    assert (seen.kind, seen.job, seen.queue, seen.task) == (EventKind.WAITING, job.id, "default", "send")


async def test_a_reader_resumes_at_its_cursor(app: Errandry) -> None:
    start = await app.latest_cursor()
    job = await app.enqueue("send", {"to": "ada"})
    [first] = await take(app.events(after=start), 1)
    await drain(app)
    await app.enqueue("send", {"to": "grace"})

    rest = await take(app.events(after=first.cursor), 4)

    assert (first.job, kinds_of([first])) == (job.id, ["waiting"])
    assert kinds_of([event for event in rest if event.job == job.id]) == [
        "claimed",
        "started",
        "completed",
    ]


async def test_events_have_utc_datetimes_of_the_clock_of_the_store() -> None:
    async with Errandry(store=MemoryStore(clock := FakeClock(1_000.5)), clock=clock) as jobs:
        start = await jobs.latest_cursor()
        job = await jobs.enqueue("send", {"to": "ada"})
        clock.advance(10)

        [enqueued] = await take(jobs.events(after=start), 1)
        [state] = await take(job.observe(), 1)

    at = datetime(1970, 1, 1, 0, 16, 40, 500_000, tzinfo=UTC)
    assert enqueued == Event(EventKind.WAITING, job.id, "default", "send", at=at, cursor=enqueued.cursor)
    assert (state.kind, state.job, state.at, state.at.tzinfo) == (EventKind.WAITING, job.id, at, UTC)


async def test_the_cursor_of_every_event_continues_with_the_same_events(app: Errandry) -> None:
    start = await app.latest_cursor()
    await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(5)])
    await drain(app)
    all_events = await take(app.events(after=start), 21)

    for place, event in enumerate(all_events[:-1], 1):
        assert await take(app.events(after=event.cursor), len(all_events) - place) == all_events[place:]


async def test_more_events_than_a_page_arrive_once_each_without_a_wait(
    app: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.api.client.RECHECK_INTERVAL", 60.0)
    start = await app.latest_cursor()
    handles = await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(2_500)])

    seen = await take(app.events(after=start), 2_500)

    assert [event.job for event in seen] == [job.id for job in handles]


async def test_pausing_resuming_and_emptying_a_queue_are_events(app: Errandry) -> None:
    start = await app.latest_cursor()
    await app.queue("mail").pause(by="ops")
    await app.queue("mail").resume()
    await app.enqueue("send", {"to": "ada"})
    await drain(app)

    seen = await take(app.events(after=start), 7)

    assert sorted(kinds_of(seen)) == sorted(
        ["paused", "resumed", "waiting", "claimed", "started", "drained", "completed"]
    )


async def test_a_cursor_of_another_store_is_refused(app: Errandry) -> None:
    async with Errandry("memory:") as other:
        foreign = await other.engine.call(other.store.latest_cursor)

    for cursor in (foreign, "nonsense"):
        with pytest.raises(InvalidCursor):
            await anext(app.events(after=cursor))


@pytest.mark.parametrize("cursor", ["", 0, 5])
async def test_a_value_that_is_no_cursor_is_refused(app: Errandry, cursor: Any) -> None:
    with pytest.raises(InvalidCursor, match=f"cursor {cursor!r}: not a cursor of events"):
        await anext(app.events(after=cursor))


async def test_each_of_several_readers_gets_all_events(app: Errandry) -> None:
    start = await app.latest_cursor()
    readers = [asyncio.create_task(take(app.events(after=start), 3)) for _ in range(20)]

    await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(3)])

    seen = await asyncio.gather(*readers)
    assert all(events == seen[0] for events in seen)


async def test_a_reader_that_was_away_too_long_gets_events_missed(tmp_path: Path) -> None:
    jobs = Errandry(f"sqlite:////{tmp_path / 'jobs.db'}", store_limits=StoreLimits(events=1))
    async with jobs:
        start = await jobs.engine.call(jobs.store.latest_cursor)
        for number in range(3):
            await jobs.client.insert([NewJob(id=f"job-{number}", task="any", payload="{}")])
        await jobs.engine.submit(Upkeep())

        [first] = await take(jobs.events(after=start), 1)

        assert (first.kind, "missed" in first.text) == (EventKind.EVENTS_MISSED, True)


# Filters.


async def test_filters_select_events(app: Errandry) -> None:
    start = await app.latest_cursor()
    first, second = await app.enqueue("send", {"to": "ada"}), await app.enqueue("send", {"to": "grace"})
    await app.enqueue("send", {"to": "eve"}, queue="mail")
    await drain(app)

    ends = await take(app.events(start, kind=("completed", "failed"), queue="default"), 2)
    mails = await take(app.events(start, queue="mail", task="send", kind="started"), 1)
    of_first = await take(app.events(start, job=first.id), 4)

    assert {event.job for event in ends} == {first.id, second.id}
    assert kinds_of(mails) == ["started"]
    assert kinds_of(of_first) == ["waiting", "claimed", "started", "completed"]


async def test_an_unknown_kind_is_refused(app: Errandry) -> None:
    with pytest.raises(InvalidValue, match=r"kind='complete': unknown kind of event; did you mean completed"):
        await anext(app.events(kind="complete"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"task": 3}, "task=3: must be a name, or a list of names"),
        ({"task": [3]}, "task=3: must be a name, as text"),
        ({"queue": ""}, "queue='': must be a name, not empty"),
        ({"job": [""]}, "job='': must be a name, not empty"),
        ({"kind": 3}, "kind=3: must be a name, or a list"),
        ({"kind": "error", "task": "send"}, "task='send': error events have no task"),
    ],
    ids=str,
)
async def test_a_wrong_filter_is_refused(app: Errandry, wanted: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        await anext(app.events(**wanted))


async def test_a_stopped_reader_gets_all_earlier_events_first(app: Errandry) -> None:
    start, stop = await app.latest_cursor(), asyncio.Event()
    await app.enqueue("send", {"to": "ada"})
    stop.set()
    await drain(app)

    async with asyncio.timeout(30):
        seen = [event async for event in app.events(start, kind="completed", until=stop)]
    assert kinds_of(seen) == ["completed"]


async def test_a_waiting_reader_stops_at_once(app: Errandry, waiting: threading.Event) -> None:
    stop = asyncio.Event()

    async def read() -> list[Event]:
        return [event async for event in app.events(until=stop)]

    reading = asyncio.create_task(read())
    assert await asyncio.to_thread(waiting.wait, WAIT_TIMEOUT)
    with MachineLoad() as load:
        before = asyncio.get_running_loop().time()
        stop.set()
        assert await reading == []
        took = asyncio.get_running_loop().time() - before
    assert took < load.scaled(0.5)


# One job.


async def test_observe_yields_the_state_and_then_the_events_to_the_end(app: Errandry) -> None:
    job = await app.enqueue("send", {"to": "ada"})
    observing = job.observe()
    [first] = await take(observing, 1)
    await app.enqueue("send", {"to": "grace"})
    await drain(app)

    async with asyncio.timeout(30):
        rest = [event async for event in observing]
    assert (kinds_of([first]), first.job) == (["waiting"], job.id)
    assert kinds_of(rest) == ["claimed", "started", "completed"]
    assert {event.job for event in rest} == {job.id}


async def test_observe_yields_the_final_state_of_a_finished_job(app: Errandry) -> None:
    job = await app.enqueue("send", {"to": "ada"})
    await drain(app)
    async with asyncio.timeout(30):
        assert kinds_of([event async for event in job.observe()]) == ["completed"]


async def test_a_removed_job_cannot_be_observed(app: Errandry) -> None:
    job = await app.enqueue("send", {"to": "ada"})
    await app.remove(job.id)
    with pytest.raises(UnknownJob):
        await anext(job.observe())


# Observers.


async def test_observers_are_called_while_a_worker_runs(
    app: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "CLOSE_TIMEOUT", WAIT_TIMEOUT)
    seen: list[str] = []

    @app.on("completed", "failed", task="send")
    async def on_loop(event: Event) -> None:
        seen.append(f"loop {event.kind}")

    @app.on("started")
    def in_thread(event: Event) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(f"thread {event.kind}")

    await app.enqueue("send", {"to": "ada"})
    await Worker(app, WorkerOptions(burst=True)).run()

    assert sorted(seen) == ["loop completed", "thread started"]


async def test_an_observer_that_raises_or_hangs_affects_no_other(
    app: Errandry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "CLOSE_TIMEOUT", 0.1)
    seen: list[str] = []

    def error_count() -> int:
        return caplog.text.count("refused completed")

    @app.on("waiting", "completed")
    async def raises(event: Event) -> None:
        raise RuntimeError(f"refused {event.kind}")

    @app.on()
    async def hangs(event: Event) -> None:
        await asyncio.sleep(1_000)

    @app.on("completed")
    async def listens(event: Event) -> None:
        seen.append(event.job)

    jobs = [await app.enqueue("send", {"to": f"{n}"}) for n in range(3)]
    async with running_worker(app), asyncio.timeout(WAIT_TIMEOUT):
        while len(seen) < 3 or error_count() < 3:  # noqa: ASYNC110 - a log has no event to wait for
            await asyncio.sleep(0.005)

    assert (seen, error_count()) == ([job.id for job in jobs], 3)
    assert {(await job.refresh()).state for job in jobs} == {State.COMPLETED}


def test_an_observer_of_an_unknown_kind_is_refused(app: Errandry) -> None:
    with pytest.raises(InvalidValue, match="did you mean failed"):
        app.on("fail")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"task": "send"}, "task='send': error events have no task: .* leave task out"),
        ({"queue": ["mail"]}, "queue='mail': error events have no queue: .* leave queue out"),
    ],
    ids=str,
)
def test_an_observer_of_errors_cannot_select_by_queue_or_task(
    app: Errandry, wanted: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidValue, match=why):
        app.on("error", **wanted)
    with pytest.raises(InvalidValue, match=why):
        app.on("failed", "error", **wanted)


def test_an_observer_that_cannot_be_called_with_an_event_is_refused(app: Errandry) -> None:
    def forgetful() -> None: ...

    class Late:
        def __call__(self, event: Event, more: int) -> None: ...

    register: Any = app.on("failed")
    for wrong, why in (
        (forgetful, r"forgetful': is called with the event alone: write def observer\(event\)"),
        (Late(), "an object of type Late: is called with the event alone"),
        ("look", "observer='look': must be a function that takes the event"),
    ):
        with pytest.raises(InvalidValue, match=why):
            register(wrong)

    assert app.observers == []


def test_an_observer_without_parentheses_is_refused(app: Errandry) -> None:
    with pytest.raises(InvalidValue, match=r"'look': has no parentheses: write @jobs\.on"):

        @app.on  # type: ignore[arg-type]
        def look(event: Event) -> None: ...
