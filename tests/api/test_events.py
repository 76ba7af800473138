"""Events: as they happen, in commit order, from wherever a reader stopped."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event, current_thread, main_thread

import pytest

from errandry import Errandry
from errandry.core.command import Upkeep
from errandry.core.event import EventKind
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import InvalidCursor, InvalidValue, UnknownJob
from errandry.store.contract import EventEntry, StoreLimits
from errandry.testing import drain
from errandry.worker import observers
from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker
from tests.pace import PATIENCE, Pace
from tests.working import working


async def taken(events: AsyncIterator[EventEntry], number: int) -> list[EventEntry]:
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(number)]


def told(events: list[EventEntry]) -> list[str]:
    return [str(one.event.kind) for one in events]


@pytest.fixture(params=["memory:", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs:

        @jobs.task(name="send")
        async def send(to: str) -> str:
            return to

        yield jobs


@pytest.fixture
def resting(app: Errandry, monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set once somebody has looked and waits for the next change."""
    resting, wake = Event(), app.store.wait_for_change

    async def told(pulse: int, timeout: float) -> bool:
        resting.set()
        return await wake(pulse, timeout)

    monkeypatch.setattr(app.store, "wait_for_change", told)
    return resting


async def test_a_reader_sees_what_happens_from_now_on(app: Errandry, resting: Event) -> None:
    await app.enqueue("send", {"to": "before"})
    reading = asyncio.create_task(taken(app.events(), 1))
    assert await asyncio.to_thread(resting.wait, PATIENCE)
    job = await app.enqueue("send", {"to": "ada"})

    [seen] = [one.event for one in await reading]
    assert (seen.kind, seen.job, seen.queue, seen.task) == (EventKind.WAITING, job.id, "default", "send")


async def test_a_reader_that_was_away_resumes_where_it_stopped(app: Errandry) -> None:
    start = await app.latest_cursor()
    job = await app.enqueue("send", {"to": "ada"})
    [first] = await taken(app.events(after=start), 1)
    await drain(app)
    await app.enqueue("send", {"to": "grace"})

    rest = await taken(app.events(after=first.cursor), 4)

    assert (first.event.job, told([first])) == (job.id, ["waiting"])
    assert told([one for one in rest if one.event.job == job.id]) == ["claimed", "started", "completed"]


async def test_from_any_event_on_the_rest_is_the_same(app: Errandry) -> None:
    start = await app.latest_cursor()
    await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(5)])
    await drain(app)
    whole = await taken(app.events(after=start), 21)

    for place, one in enumerate(whole[:-1], 1):
        assert await taken(app.events(after=one.cursor), len(whole) - place) == whole[place:]


async def test_more_events_than_a_page_arrive_once_each_and_without_a_pause(
    app: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.api.client.PATIENCE", 60.0)
    start = await app.latest_cursor()
    made = await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(2_500)])

    seen = await taken(app.events(after=start), 2_500)

    assert [one.event.job for one in seen] == [job.id for job in made]


async def test_queues_that_are_paused_and_drained_are_told(app: Errandry) -> None:
    start = await app.latest_cursor()
    await app.queue("mail").pause(by="ops")
    await app.queue("mail").resume()
    await app.enqueue("send", {"to": "ada"})
    await drain(app)

    seen = await taken(app.events(after=start), 7)

    assert sorted(told(seen)) == sorted(
        ["paused", "resumed", "waiting", "claimed", "started", "drained", "completed"]
    )


async def test_a_cursor_of_another_store_is_refused(app: Errandry) -> None:
    async with Errandry("memory:") as other:
        foreign = await other.engine.call(other.store.latest_cursor)

    for cursor in (foreign, "nonsense"):
        with pytest.raises(InvalidCursor):
            await anext(app.events(after=cursor))


async def test_several_readers_each_see_everything(app: Errandry) -> None:
    start = await app.latest_cursor()
    readers = [asyncio.create_task(taken(app.events(after=start), 3)) for _ in range(20)]

    await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(3)])

    seen = await asyncio.gather(*readers)
    assert all(one == seen[0] for one in seen)


async def test_a_reader_that_was_away_too_long_is_told(tmp_path: Path) -> None:
    jobs = Errandry(f"sqlite:////{tmp_path / 'jobs.db'}", bounds=StoreLimits(events=1))
    async with jobs:
        start = await jobs.engine.call(jobs.store.latest_cursor)
        for number in range(3):
            await jobs.insert([NewJob(id=f"job-{number}", task="any", payload="{}")])
        await jobs.engine.submit(Upkeep())

        [first] = await taken(jobs.events(after=start), 1)

        assert (first.event.kind, "missed" in first.event.text) == (EventKind.EVENTS_MISSED, True)


# Filters.


async def test_only_what_is_wanted_is_told(app: Errandry) -> None:
    start = await app.latest_cursor()
    one, other = await app.enqueue("send", {"to": "ada"}), await app.enqueue("send", {"to": "grace"})
    await app.enqueue("send", {"to": "eve"}, queue="mail")
    await drain(app)

    ends = await taken(app.events(start, kind=("completed", "failed"), queue="default"), 2)
    mails = await taken(app.events(start, queue="mail", task="send", kind="started"), 1)
    ones = await taken(app.events(start, job=one.id), 4)

    assert {happened.event.job for happened in ends} == {one.id, other.id}
    assert told(mails) == ["started"]
    assert told(ones) == ["waiting", "claimed", "started", "completed"]


async def test_a_kind_that_does_not_exist_is_refused(app: Errandry) -> None:
    with pytest.raises(
        InvalidValue, match=r"kind='complete': there are no such events: did you mean completed"
    ):
        await anext(app.events(kind="complete"))


async def test_a_reader_that_is_told_to_stop_gets_everything_first(app: Errandry) -> None:
    start, stop = await app.latest_cursor(), asyncio.Event()
    await app.enqueue("send", {"to": "ada"})
    stop.set()
    await drain(app)

    async with asyncio.timeout(30):
        seen = [happened async for happened in app.events(start, kind="completed", until=stop)]
    assert told(seen) == ["completed"]


async def test_a_reader_that_waits_stops_at_once(app: Errandry, resting: Event) -> None:
    stop = asyncio.Event()

    async def read() -> list[EventEntry]:
        return [happened async for happened in app.events(until=stop)]

    reading = asyncio.create_task(read())
    assert await asyncio.to_thread(resting.wait, PATIENCE)
    with Pace() as pace:
        before = asyncio.get_running_loop().time()
        stop.set()
        assert await reading == []
        took = asyncio.get_running_loop().time() - before
    assert took < pace.allowed(0.5)


# One job.


async def test_who_observes_a_job_is_told_its_state_and_then_its_fate(app: Errandry) -> None:
    job = await app.enqueue("send", {"to": "ada"})
    observing = job.observe()
    [first] = await taken(observing, 1)
    await app.enqueue("send", {"to": "grace"})
    await drain(app)

    async with asyncio.timeout(30):
        rest = [happened async for happened in observing]
    assert (told([first]), first.event.job) == (["waiting"], job.id)
    assert told(rest) == ["claimed", "started", "completed"]
    assert {happened.event.job for happened in rest} == {job.id}


async def test_who_comes_late_is_told_how_it_ended(app: Errandry) -> None:
    job = await app.enqueue("send", {"to": "ada"})
    await drain(app)
    async with asyncio.timeout(30):
        assert told([happened async for happened in job.observe()]) == ["completed"]


async def test_a_job_that_is_gone_cannot_be_observed(app: Errandry) -> None:
    job = await app.enqueue("send", {"to": "ada"})
    await app.remove(job.id)
    with pytest.raises(UnknownJob):
        await anext(job.observe())


# Functions that are told.


async def test_functions_are_told_while_a_worker_works(
    app: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "LAST_CALL", PATIENCE)
    seen: list[str] = []

    @app.on("completed", "failed", task="send")
    async def on_loop(happened: EventEntry) -> None:
        seen.append(f"loop {happened.event.kind}")

    @app.on("started")
    def in_thread(happened: EventEntry) -> None:
        assert current_thread() is not main_thread()
        seen.append(f"thread {happened.event.kind}")

    await app.enqueue("send", {"to": "ada"})
    await Worker(app, WorkerOptions(burst=True)).run()

    assert sorted(seen) == ["loop completed", "thread started"]


async def test_one_that_raises_or_hangs_disturbs_nobody(
    app: Errandry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "LAST_CALL", 0.1)
    seen: list[str] = []

    def said() -> int:
        return caplog.text.count("cannot stand completed")

    @app.on("waiting", "completed")
    async def raises(happened: EventEntry) -> None:
        raise RuntimeError(f"cannot stand {happened.event.kind}")

    @app.on()
    async def hangs(happened: EventEntry) -> None:
        await asyncio.sleep(1_000)

    @app.on("completed")
    async def listens(happened: EventEntry) -> None:
        seen.append(happened.event.job)

    jobs = [await app.enqueue("send", {"to": f"{n}"}) for n in range(3)]
    async with working(app), asyncio.timeout(PATIENCE):
        while len(seen) < 3 or said() < 3:  # noqa: ASYNC110 - a log has no event to wait for
            await asyncio.sleep(0.005)

    assert (seen, said()) == ([job.id for job in jobs], 3)
    assert {(await job.refresh()).state for job in jobs} == {State.COMPLETED}


def test_functions_for_events_that_do_not_exist_are_refused(app: Errandry) -> None:
    with pytest.raises(InvalidValue, match="did you mean failed"):
        app.on("fail")
