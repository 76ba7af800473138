"""The reporter: which trouble becomes an event, what its text says, and what waits for the store."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from errandry import Errandry, Event, Worker, WorkerOptions
from errandry.claims import trouble
from errandry.claims.trouble import KNOWN_MAX, QUIET_AFTER, UNSTORED_MAX, TroubleReporter
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.core.event import EventKind, EventRecord
from errandry.errors import StoreFull, StoreReplaced, StoreUnavailable
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from tests.machine_load import WAIT_TIMEOUT


def listen(reporter: TroubleReporter) -> list[str]:
    """A list that gets the text of each report."""
    texts: list[str] = []

    def add(event: EventRecord) -> None:
        assert event.kind is EventKind.ERROR
        texts.append(event.text)

    reporter.set_observer(add)
    return texts


async def store_all(jobs: Errandry, reporter: TroubleReporter) -> list[str]:
    """Store the reports, and return the texts of all stored events."""
    reporter.close()
    await jobs.engine.call(reporter.store_forever)
    return [entry.event.text for entry in (await jobs.engine.call(jobs.store.events)).entries]


async def test_the_same_trouble_is_reported_again_only_after_a_quiet_time(
    jobs: Errandry, clock: FakeClock
) -> None:
    reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
    texts = listen(reporter)
    for _ in range(10):
        reporter.report("cannot claim", StoreUnavailable("store", "away"))
        clock.advance(QUIET_AFTER / 2)
    assert len(texts) == 1

    clock.advance(QUIET_AFTER / 2)
    reporter.report("cannot claim", StoreUnavailable("store", "away again"))

    assert texts == [
        "worker w: cannot claim: StoreUnavailable: store: away",
        "worker w: cannot claim: StoreUnavailable: store: away again",
    ]


async def test_a_bounded_number_of_different_errors_is_remembered(
    jobs: Errandry,
) -> None:
    reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
    texts = listen(reporter)
    for number in range(3 * KNOWN_MAX):
        reporter.report(f"worker {number} has died")
    assert len(texts) == 3 * KNOWN_MAX

    reporter.report(f"worker {2 * KNOWN_MAX} has died")
    reporter.report("worker 0 has died")

    assert texts[3 * KNOWN_MAX :] == ["worker w: worker 0 has died"]


async def test_an_error_that_goes_on_is_remembered_longer_than_an_older_one(
    jobs: Errandry, clock: FakeClock
) -> None:
    reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
    texts = listen(reporter)
    for what in ("lasting", "single", "lasting"):
        reporter.report(what)
        clock.advance(QUIET_AFTER / 2 - 1)
    clock.advance(3)
    reporter.report("single")
    reporter.report("lasting")

    assert texts == [f"worker w: {what}" for what in ("lasting", "single", "single")]


async def test_other_trouble_and_other_errors_are_reported_meanwhile(jobs: Errandry) -> None:
    reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
    texts = listen(reporter)
    for _ in range(2):
        reporter.report("cannot claim", ValueError("a bug"))
        reporter.report("cannot claim", KeyError("a bug"))
        reporter.report("cannot renew", ValueError("a bug"))
        reporter.report("something blocks the event loop")

    assert texts == [
        "worker w: cannot claim: ValueError: a bug",
        "worker w: cannot claim: KeyError: 'a bug'",
        "worker w: cannot renew: ValueError: a bug",
        "worker w: something blocks the event loop",
    ]


async def test_a_text_is_redacted_before_it_is_cut(jobs: Errandry) -> None:
    reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
    texts = listen(reporter)
    secret = "4111" * 60

    reporter.report("failed", ValueError(f"{secret} is no card"), lambda text: text.replace(secret, "•••"))
    reporter.report("failed too", ValueError("x" * 500))

    assert texts == [
        "worker w: failed: ValueError: ••• is no card",
        f"worker w: failed too: ValueError: {'x' * 500}"[:200],
    ]
    assert await store_all(jobs, reporter) == texts


async def test_a_store_that_is_back_gets_the_newest_reports_and_the_number_of_the_dropped(
    jobs: Errandry,
) -> None:
    store = jobs.store
    assert isinstance(store, MemoryStore)
    store.fail_before = [StoreUnavailable("store", "away")] * 3
    reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
    for number in range(UNSTORED_MAX + 20):
        reporter.report(f"trouble {number}")

    stored = await store_all(jobs, reporter)

    assert stored == [
        "worker w: 20 older errors were dropped while the store could not write them",
        *(f"worker w: trouble {number}" for number in range(20, UNSTORED_MAX + 20)),
    ]


async def test_reports_that_could_not_be_stored_keep_their_place_before_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trouble, "RETRY_AFTER", 0.001)

    class FullStore(MemoryStore):
        """Its first commit fails, while there is more trouble."""

        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            if not has_failed:
                has_failed.append(True)
                for number in range(3):
                    reporter.report(f"later {number}")
                raise StoreFull("memory", "no space left")
            return await super().commit(commands)

    has_failed: list[bool] = []
    async with Errandry(store=FullStore()) as jobs:
        reporter = TroubleReporter(jobs.engine, jobs.clock, "w")
        for number in range(UNSTORED_MAX):
            reporter.report(f"early {number}")
        stored = await store_all(jobs, reporter)

    assert stored == [
        "worker w: 3 older errors were dropped while the store could not write them",
        *(f"worker w: early {number}" for number in range(3, UNSTORED_MAX)),
        *(f"worker w: later {number}" for number in range(3)),
    ]


class SwitchedStore(MemoryStore):
    """Takes no writes while `is_available` is False."""

    is_available = True

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if not self.is_available:
            raise StoreUnavailable("memory", "the server is down")
        return await super().commit(commands)


@pytest.mark.parametrize("when", ["at its start", "while it works"])
async def test_a_store_that_cannot_be_written_is_an_error_event_at_once(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine retries for 30 s before a caller gets the error."""
    store = SwitchedStore()
    async with Errandry(store=store) as jobs:
        heard: asyncio.Queue[str] = asyncio.Queue()

        @jobs.on("error")
        async def hear(event: Event) -> None:
            heard.put_nowait(event.text)

        @jobs.task
        async def work() -> str:
            return "done"

        if when == "at its start":
            store.is_available = False
        worker = Worker(jobs)
        running = asyncio.create_task(worker.run())
        if when == "while it works":
            await (await work.enqueue()).result(WAIT_TIMEOUT)
            store.is_available = False
        enqueuing = asyncio.create_task(work.enqueue())
        text = await asyncio.wait_for(heard.get(), WAIT_TIMEOUT)
        store.is_available = True

        assert await (await enqueuing).result(WAIT_TIMEOUT) == "done"
        worker.stop()
        await running

    down = "StoreUnavailable: memory: the server is down"
    assert text == f"worker {worker.id}: cannot write to the store, retrying: {down}"
    assert caplog.text.count("cannot write to the store, retrying: memory: the server is down") == 1


async def test_a_worker_that_claims_nothing_notices_that_its_store_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with Errandry(f"sqlite:///{path}") as jobs:
        worker = Worker(jobs, WorkerOptions(upkeep=False, beat_every=0.01))
        worker.pause()
        running = asyncio.create_task(worker.run())
        while not await jobs.workers.list():  # noqa: ASYNC110 - the store is asked
            await asyncio.sleep(0.01)

        path.unlink()

        with pytest.raises(StoreReplaced, match=r"jobs\.db was deleted while it was in use"):
            await asyncio.wait_for(running, WAIT_TIMEOUT)
    assert not path.exists()
