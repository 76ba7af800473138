"""Arguments of older and newer versions: upgraded step by step, or left to a newer worker."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from errandry import Errandry, State, UniqueOptions
from errandry.clock import Clock
from errandry.core.argument_version import METADATA_KEY, version_of
from errandry.core.state import Reason
from errandry.errors import InvalidValue
from errandry.store.contract import Store
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock, drain
from tests.run_worker import run_burst

ran: list[tuple[str, str, bool]] = []
apps: list[Errandry] = []


@pytest.fixture(autouse=True)
async def clean_up() -> AsyncIterator[None]:
    """Forget what ran, and close the apps of `new_app`."""
    ran.clear()
    yield
    while apps:
        await apps.pop().close()


def new_app(store: Store, clock: Clock) -> Errandry:
    apps.append(Errandry(store=store, clock=clock))
    return apps[-1]


def first_version_app(store: MemoryStore, clock: FakeClock) -> Errandry:
    """The program at version 1 of the arguments."""
    jobs = new_app(store, clock)

    @jobs.task
    async def send(to: str) -> None:
        ran.append((to, "", False))

    return jobs


def third_version_app(store: MemoryStore, clock: FakeClock) -> Errandry:
    """The same program at version 3."""
    jobs = new_app(store, clock)

    @jobs.task(version=3)
    async def send(address: str, subject: str, html: bool = False) -> None:
        ran.append((address, subject, html))

    @send.upgrade(1)
    def _rename_to(old: dict[str, Any]) -> dict[str, Any]:
        return {"address": old["to"], "text": "hi"}

    @send.upgrade(2)
    def _rename_text(old: dict[str, Any]) -> dict[str, Any]:
        return {"address": old["address"], "subject": old["text"].upper()}

    return jobs


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


async def test_older_arguments_are_upgraded_step_by_step(store: MemoryStore, clock: FakeClock) -> None:
    old, new = first_version_app(store, clock), third_version_app(store, clock)
    await old.enqueue("send", {"to": "ada"})
    by_name = new_app(store, clock)
    await by_name.enqueue("send", {"address": "bob", "text": "yo"}, version=2)
    await new.enqueue("send", {"address": "cy", "subject": "news", "html": True})

    await drain(new)

    assert ran == [("ada", "HI", False), ("bob", "YO", False), ("cy", "news", True)]


async def test_a_worker_releases_jobs_of_a_newer_version(store: MemoryStore, clock: FakeClock) -> None:
    old, new = first_version_app(store, clock), third_version_app(store, clock)
    job = await new.enqueue("send", {"address": "ada", "subject": "news"})
    assert version_of(job.record.metadata) == 3

    await run_burst(old)

    record = await new.client.record(job.id)
    assert (record.state, record.attempts) == (State.SCHEDULED, 0)
    assert record.unhandled_since == clock.time()
    assert record.run_at == clock.time() + 5
    clock.advance(5)
    await drain(new)
    assert ran == [("ada", "news", False)]


async def test_the_first_version_is_not_stored(store: MemoryStore, clock: FakeClock) -> None:
    job = await first_version_app(store, clock).enqueue("send", {"to": "ada"})

    assert job.record.metadata is None


async def test_a_version_without_an_upgrade_leaves_the_arguments_unchanged(jobs: Errandry) -> None:
    @jobs.task(version=4)
    async def send(to: str, subject: str = "hi") -> None:
        ran.append((to, subject, False))

    other = new_app(jobs.store, jobs.clock)
    await other.enqueue("send", {"to": "ada"})
    await drain(jobs)

    assert ran == [("ada", "hi", False)]


@pytest.mark.parametrize(
    ("outcome", "why"),
    [(KeyError("to"), "raised KeyError: 'to'"), (["ada"], "returned ['ada'], not arguments")],
)
async def test_an_upgrade_that_raises_or_returns_no_mapping_is_tried_again(
    jobs: Errandry, clock: FakeClock, outcome: Any, why: str
) -> None:
    @jobs.task(version=2, fail_on=KeyError)
    async def send(to: str) -> None: ...

    @send.upgrade(1)
    def _(old: dict[str, Any]) -> dict[str, Any]:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    other = new_app(jobs.store, jobs.clock)
    job = await other.enqueue("send", {"too": "ada"}, max_attempts=2)
    states = []
    for _attempt in range(2):
        await run_burst(jobs)
        states.append((await jobs.client.record(job.id)).state)
        clock.advance(60)

    record = await jobs.client.record(job.id)
    assert (states, record.reason) == ([State.SCHEDULED, State.FAILED], Reason.ERROR)
    assert [error.type for error in record.errors] == ["UpgradeFailed"] * 2
    assert f"its upgrade from version 1 {why}" in record.errors[-1].message


async def test_edited_arguments_have_the_newest_version(store: MemoryStore, clock: FakeClock) -> None:
    old, new = first_version_app(store, clock), third_version_app(store, clock)
    job = await old.enqueue("send", {"to": "ada"}, delay=5, metadata={"tenant": 7})

    await new.edit(job.id, arguments={"address": "bob", "subject": "yo"})
    clock.advance(5)
    await drain(new)

    assert ran == [("bob", "yo", False)]
    assert (await new.client.record(job.id)).metadata == f'{{"tenant":7,"{METADATA_KEY}":3}}'


async def test_a_debounced_job_has_the_version_of_its_last_arguments(
    store: MemoryStore, clock: FakeClock
) -> None:
    old, new = first_version_app(store, clock), third_version_app(store, clock)
    debounced: dict[str, Any] = {"unique": UniqueOptions("mail", on_conflict="replace"), "delay": 5}
    await old.enqueue("send", {"to": "ada"}, **debounced)
    await new.enqueue("send", {"address": "bob", "subject": "yo"}, **debounced)
    clock.advance(5)
    await drain(new)

    assert ran == [("bob", "yo", False)]


async def test_arguments_of_an_older_schedule_are_upgraded(store: MemoryStore, clock: FakeClock) -> None:
    old, new = first_version_app(store, clock), third_version_app(store, clock)
    await old.schedules.put("all", old.tasks["send"].new(to="ada"), "every 10s")
    clock.advance(10)
    await drain(new)
    await new.schedules.edit("all", arguments={"address": "bob", "subject": "yo"})
    clock.advance(10)
    await drain(new)

    assert ran == [("ada", "HI", False), ("bob", "yo", False)]


def test_wrong_versions_are_refused(jobs: Errandry) -> None:
    async def send(to: str) -> None: ...

    for wrong in (0, "2", 1.5):
        options: dict[str, Any] = {"version": wrong}
        with pytest.raises(InvalidValue, match="version="):
            jobs.task(**options)(send)
    task = jobs.task(version=2)(send)
    for number in (2, 3, 0):
        with pytest.raises(InvalidValue, match="version="):
            task.upgrade(number)(lambda old: old)
