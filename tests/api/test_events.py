"""Events: as they happen, in commit order, from wherever a reader stopped."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import pytest

from errandry import Errandry
from errandry.core.command import Upkeep
from errandry.core.event import Kind
from errandry.core.job import NewJob
from errandry.errors import InvalidCursor
from errandry.store.contract import Bounds, Happened
from errandry.testing import drain


async def taken(events: AsyncIterator[Happened], number: int) -> list[Happened]:
    async with asyncio.timeout(10):
        return [await anext(events) for _ in range(number)]


def told(events: list[Happened]) -> list[str]:
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
    resting, wake = Event(), app.store.wake

    async def told(pulse: int, timeout: float) -> bool:
        resting.set()
        return await wake(pulse, timeout)

    monkeypatch.setattr(app.store, "wake", told)
    return resting


async def test_a_reader_sees_what_happens_from_now_on(app: Errandry, resting: Event) -> None:
    await app.enqueue("send", {"to": "before"})
    reading = asyncio.create_task(taken(app.events(), 1))
    await asyncio.to_thread(resting.wait, 10)
    job = await app.enqueue("send", {"to": "ada"})

    [seen] = [one.event for one in await reading]
    assert (seen.kind, seen.job, seen.queue, seen.task) == (Kind.WAITING, job.id, "default", "send")


async def test_a_reader_that_was_away_resumes_where_it_stopped(app: Errandry) -> None:
    start = await app.head()
    job = await app.enqueue("send", {"to": "ada"})
    [first] = await taken(app.events(after=start), 1)
    await drain(app)
    await app.enqueue("send", {"to": "grace"})

    rest = await taken(app.events(after=first.cursor), 4)

    assert (first.event.job, told([first])) == (job.id, ["waiting"])
    assert told([one for one in rest if one.event.job == job.id]) == ["claimed", "active", "completed"]


async def test_from_any_event_on_the_rest_is_the_same(app: Errandry) -> None:
    start = await app.head()
    await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(5)])
    await drain(app)
    whole = await taken(app.events(after=start), 21)

    for place, one in enumerate(whole[:-1], 1):
        assert await taken(app.events(after=one.cursor), len(whole) - place) == whole[place:]


async def test_more_events_than_a_page_arrive_once_each_and_without_a_pause(
    app: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.client.PATIENCE", 60.0)
    start = await app.head()
    made = await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(2_500)])

    seen = await taken(app.events(after=start), 2_500)

    assert [one.event.job for one in seen] == [job.id for job in made]


async def test_queues_that_are_paused_and_drained_are_told(app: Errandry) -> None:
    start = await app.head()
    await app.queue("mail").pause(by="ops")
    await app.queue("mail").resume()
    await app.enqueue("send", {"to": "ada"})
    await drain(app)

    seen = await taken(app.events(after=start), 7)

    assert sorted(told(seen)) == sorted(
        ["paused", "resumed", "waiting", "claimed", "active", "drained", "completed"]
    )


async def test_a_cursor_of_another_store_is_refused(app: Errandry) -> None:
    async with Errandry("memory:") as other:
        foreign = await other.engine.call(other.store.head)

    for cursor in (foreign, "nonsense"):
        with pytest.raises(InvalidCursor):
            await anext(app.events(after=cursor))


async def test_several_readers_each_see_everything(app: Errandry) -> None:
    start = await app.head()
    readers = [asyncio.create_task(taken(app.events(after=start), 3)) for _ in range(20)]

    await app.enqueue_many([app.tasks["send"].new(to=f"{n}") for n in range(3)])

    seen = await asyncio.gather(*readers)
    assert all(one == seen[0] for one in seen)


async def test_a_reader_that_was_away_too_long_is_told(tmp_path: Path) -> None:
    jobs = Errandry(f"sqlite:////{tmp_path / 'jobs.db'}", bounds=Bounds(events=1))
    async with jobs:
        start = await jobs.engine.call(jobs.store.head)
        for number in range(3):
            await jobs.insert([NewJob(id=f"job-{number}", task="any", payload="{}")])
        await jobs.engine.submit(Upkeep())

        [first] = await taken(jobs.events(after=start), 1)

        assert (first.event.kind, "missed" in first.event.text) == (Kind.ERROR, True)
