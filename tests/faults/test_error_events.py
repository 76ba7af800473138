"""Trouble of a worker: observers of `error` in its process hear of it at once, the store gets it later."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from errandry import Errandry, Event, Worker, WorkerOptions
from errandry.claims import background, liveness, trouble
from errandry.core.command import Beat, Claim, Command, ReportTrouble, Settle, Upkeep
from errandry.core.event import EventKind, EventName
from errandry.errors import StoreRefused
from errandry.testing import drain
from tests.faults.process import WAIT_TIMEOUT, wait_until, wait_until_async
from tests.faults.troubled import FULL, FailingStore, TroubledApp
from tests.run_worker import running_worker


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "RETRY_AFTER", 0.01)
    monkeypatch.setattr(background, "LOOP_RESTART_DELAY", 0.01)


def observe(app: Errandry, *kinds: EventKind | EventName) -> list[Event]:
    """A list that gets each event with which an observer of these kinds is called."""
    seen: list[Event] = []

    @app.on(*kinds)
    async def observer(event: Event) -> None:
        seen.append(event)

    return seen


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events]


async def stored_texts(store: FailingStore) -> list[str]:
    """The texts of the stored `error` events."""
    entries = (await store.store.events(None, 10_000)).entries
    return [entry.event.text for entry in entries if entry.event.kind is EventKind.ERROR]


async def wait_until_stored(store: FailingStore, text: str) -> str:
    """The text of the first stored `error` event that has this text in it."""

    async def find() -> str | None:
        return next((stored for stored in await stored_texts(store) if text in stored), None)

    return await wait_until_async(find)


async def test_observers_hear_of_a_store_that_is_away_and_the_store_when_it_is_back(
    troubled: TroubledApp,
) -> None:
    seen = observe(troubled.app, "error")
    async with troubled.running_worker() as running:
        await wait_until(lambda: troubled.store.count(Upkeep))
        troubled.store.go_away()
        await wait_until(lambda: [text for text in texts(seen) if "upkeep failed" in text])
        assert await stored_texts(troubled.store) == []

        troubled.store.come_back()
        await wait_until_stored(troubled.store, "upkeep failed")

    failed_upkeeps = [event for event in seen if "upkeep failed" in event.text]
    [first] = failed_upkeeps  # although upkeep failed again and again, and the store has the event now
    assert first.kind is EventKind.ERROR
    assert (first.job, first.queue, first.task) == ("", "", "")
    assert first.text == (
        f"worker {running.id}: upkeep failed, retrying: StoreUnavailable: memory: not reachable"
    )
    assert sorted(await stored_texts(troubled.store)) == sorted(texts(seen))


async def test_other_processes_see_stored_errors(tmp_path: Path) -> None:
    """Two apps stand for the processes. Each has a connection of its own to the file."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as first, Errandry(url) as second:
        own, foreign, cursor = observe(first, "error"), observe(second, "error"), await first.latest_cursor()

        @first.on("waiting")
        async def alarm(event: Event) -> NoReturn:
            raise RuntimeError("no network")

        async with running_worker(second), running_worker(first) as worker_of_first:
            await wait_for_workers(first, 2)
            await first.enqueue("unknown")
            await wait_until(lambda: foreign and own)
            async with asyncio.timeout(WAIT_TIMEOUT):
                stored = await anext(first.events(cursor, kind="error"))

    assert stored.text.startswith(f"worker {worker_of_first.id}: observer ")
    assert texts(foreign) == texts(own) == [stored.text]


async def wait_for_workers(app: Errandry, count: int) -> None:
    """Return when `count` workers run."""

    async def are_there() -> bool:
        return len(await app.workers.list()) == count

    await wait_until_async(are_there)


async def test_an_observer_of_errors_that_raises_causes_no_further_error(
    troubled: TroubledApp, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    @troubled.app.on("error")
    async def raises(event: Event) -> NoReturn:
        calls.append(event.text)
        raise RuntimeError("cannot send the alarm")

    async with troubled.running_worker():
        await wait_until(lambda: troubled.store.count(Upkeep))
        troubled.store.error_for = lambda command: FULL if isinstance(command, Upkeep) else None
        await wait_until(lambda: "cannot send the alarm" in caplog.text)
        await wait_until_stored(troubled.store, "upkeep failed")
        troubled.store.come_back()

    assert [text for text in calls if "raised" in text] == []
    assert [text for text in await stored_texts(troubled.store) if "raised" in text] == []


async def test_an_observer_of_other_events_that_raises_is_an_error(troubled: TroubledApp) -> None:
    seen = observe(troubled.app, "error")

    @troubled.app.on("waiting")
    async def alarm(event: Event) -> NoReturn:
        raise RuntimeError("no network")

    async with troubled.running_worker():
        await wait_until(lambda: troubled.store.count(Upkeep))
        for _ in range(3):
            await troubled.answer.enqueue()
        await wait_until(lambda: seen)
        await wait_until_stored(troubled.store, "no network")

    [text] = texts(seen)
    assert text.endswith("alarm raised: RuntimeError: no network")


async def test_an_archive_function_that_raises_is_an_error_without_redacted_arguments(
    troubled: TroubledApp,
) -> None:
    seen = observe(troubled.app, "error")

    @troubled.app.task(redact=("card",), keep=1e-6)
    async def pay(card: str) -> None: ...

    @troubled.app.archive
    async def archive(jobs: Sequence[Any]) -> None:
        raise OSError(f"cannot write {jobs[0].record.payload}")

    await pay.enqueue("4111-1111")
    await drain(troubled.app)
    async with troubled.running_worker():
        await wait_until(lambda: seen)

    [text] = texts(seen)
    assert text.endswith('cannot archive jobs, retrying: OSError: cannot write {"card":"•••"}')


async def test_a_background_loop_that_raises_is_an_error(troubled: TroubledApp) -> None:
    seen = observe(troubled.app, "error")

    async def fail() -> None:
        raise ValueError("a bug")

    async with troubled.running_worker():
        troubled.store.before_read["workers"] = fail
        await wait_until(lambda: seen)

    assert texts(seen)[0].endswith("a background loop failed, restarting it: ValueError: a bug")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Claim, "cannot claim jobs, retrying: StoreRefused: memory: damaged"),
        (Settle, "gave up on an outcome: StoreRefused: memory: damaged"),
        (Beat, "cannot write heartbeats: StoreRefused: memory: damaged"),
    ],
)
async def test_a_command_of_the_worker_that_fails_is_an_error(
    troubled: TroubledApp, kind: type[Command], what: str
) -> None:
    refused = StoreRefused("memory", "damaged")
    troubled.may_finish.set()
    await troubled.wait.enqueue()
    seen = observe(troubled.app, "error")
    troubled.store.error_for = lambda command: refused if isinstance(command, kind) else None

    async with troubled.running_worker():
        await wait_until(lambda: [text for text in texts(seen) if what in text])
        await wait_until_stored(troubled.store, what)
        troubled.store.come_back()


async def test_a_worker_that_stops_because_it_cannot_claim_reports_why(troubled: TroubledApp) -> None:
    refused = StoreRefused("memory", "damaged")
    seen = observe(troubled.app, "error")
    troubled.store.error_for = lambda command: refused if isinstance(command, Claim) else None

    with pytest.raises(StoreRefused):
        await Worker(troubled.app, WorkerOptions(burst=True, upkeep=False)).run()

    [text] = texts(seen)
    assert text.endswith("cannot claim jobs, stopping: StoreRefused: memory: damaged")
    assert await stored_texts(troubled.store) == [text]


async def test_the_death_of_a_worker_process_is_reported_by_one_worker_of_its_host(
    troubled: TroubledApp,
) -> None:
    dead = liveness.Liveness()
    beat = Beat(worker="dead", host=os.uname().nodename, alive=dead.path)
    await troubled.app.engine.submit(beat)
    os.close(dead._lock)

    async with troubled.running_worker(), troubled.running_worker():
        await wait_until_stored(troubled.store, "worker dead has died")
        upkeeps = troubled.store.count(Upkeep)
        await wait_until(lambda: troubled.store.count(Upkeep) > upkeeps + 4)

    [text] = await stored_texts(troubled.store)
    assert text.endswith(": worker dead has died")


async def test_a_worker_that_stops_writes_its_last_errors(troubled: TroubledApp) -> None:
    """The store takes them in its last moment: they wait for no further report."""
    async with troubled.running_worker() as running:
        await wait_until(lambda: troubled.store.count(Upkeep))
        troubled.store.error_for = lambda command: FULL if isinstance(command, ReportTrouble) else None
        running._trouble.report("lost a screw")
        await wait_until(lambda: troubled.store.count(ReportTrouble))
        running.stop()
        troubled.store.come_back()

    # A command that shared the pass may have failed with it, and be reported too.
    assert f"worker {running.id}: lost a screw" in await stored_texts(troubled.store)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_claimer_tells_its_trouble_to_the_observers_of_its_app(
    troubled: TroubledApp, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """At once, while the store refuses the outcome. It calls them for no other events."""
    monkeypatch.setattr("errandry.api.claimed_job.RETRY_AFTER", 0.01)
    seen: list[Event] = []

    async def note_async(event: Event) -> None:
        seen.append(event)

    troubled.app.on()(note_async if kind == "async" else seen.append)
    await troubled.wait.enqueue()
    async with troubled.app.claimer(upkeep=False) as claimer:
        [job] = await claimer.claim()
        troubled.store.error_for = lambda command: (
            FULL if isinstance(command, Settle | ReportTrouble) else None
        )
        settling = asyncio.create_task(job.complete())
        await wait_until(lambda: seen)
        assert await stored_texts(troubled.store) == []
        troubled.store.come_back()
        await settling
        await wait_until_stored(troubled.store, "cannot write outcomes")

    [event] = seen
    assert event.kind is EventKind.ERROR
    assert event.text == (
        f"worker {claimer.id}: cannot write outcomes, retrying: StoreFull: memory: no space left"
    )
    assert [entry.kind async for entry in _first(troubled.app, event.cursor)]


async def _first(app: Errandry, cursor: str) -> AsyncIterator[Event]:
    """The first event after the place that an observer has got."""
    async for event in app.events(cursor):
        yield event
        return
