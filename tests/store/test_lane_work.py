"""The cost of a claim, in database pages, with thousands of groups, a paused backlog, and a rate limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Ref, Settle
from errandry.core.gate import GateKind, Pause, PutRule
from errandry.core.job import NewJob
from errandry.core.rule import Rate, Rule
from errandry.store.contract import Store
from errandry.store.postgres.driver import PostgresStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from errandry.testing.conformance import requests
from tests.store.postgres.test_plans import least_difference
from tests.store.postgres.test_plans import touched_pages as postgres_pages
from tests.store.server import server
from tests.store.sqlite.test_plans import pages_read as sqlite_pages

ROUNDS = 10
STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda path: SqliteStore(path / "jobs.db", durability="process"),
    "postgres": lambda _: store_at(server().new_url()),
}
Setting = Callable[[Store, int], Any]


def jobs(name: str, count: int, **fields: Any) -> list[NewJob]:
    return [NewJob(**({"id": f"{name}-{n}", "task": name, "payload": "{}"} | fields)) for n in range(count)]


async def fill(store: Store, new_jobs: list[NewJob]) -> None:
    for start in range(0, len(new_jobs), 5_000):
        await requests.insert(store, *new_jobs[start : start + 5_000])


async def fill_groups(store: Store, scale: int) -> None:
    """Insert two jobs for each of many groups, and pause some of the groups."""
    for turn in range(2):
        many = [
            NewJob(id=f"g-{turn}-{n}", task="task", payload="{}", group=f"g{n:06}")
            for n in range(scale // 10)
        ]
        await fill(store, many)
    for number in range(20):
        await requests.send(store, Pause(GateKind.GROUP, "default", group=f"g{number:06}"))


async def fill_paused_task(store: Store, scale: int) -> None:
    await fill(store, jobs("paused", scale, priority=-1))
    await requests.send(store, Pause(GateKind.TASK, "paused"))


async def fill_rated_queue(store: Store, scale: int) -> None:
    await fill(store, jobs("rated", scale, queue="rated", priority=-1))
    await requests.send(store, PutRule(GateKind.QUEUE, "rated", Rule(rate=Rate(1, 3_600.0, 1))))
    await requests.claim(store)


async def pages_per_claim(store: Store) -> float:
    """Return the number of pages touched by a pass that settles ten jobs and claims ten of ten groups.

    More jobs wait than it takes, because a table with few hundred jobs has only one or two pages.
    """
    for number in range(10):
        await fill(store, jobs(f"usual{number}", 20 * ROUNDS, task="task", group=f"usual{number}"))
    held: tuple[Any, ...] = ()
    page_counts: list[float] = []
    for number in range(4 * ROUNDS):
        if number % ROUNDS == 0:
            page_counts.append(pages(store))
        settles = [Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held]
        *_, claims = await store.commit([*settles, Claim(worker="w", nonce=f"n{number}", limit=10)])
        assert isinstance(claims, Claims)
        held = claims.jobs
        assert len(held) == 10
    _, *page_counts = *page_counts, pages(store)  # the first rounds plan statements and park lanes
    return least_difference(page_counts) / ROUNDS


def pages(store: Store) -> float:
    if isinstance(store, SqliteStore):
        return sqlite_pages(store.writer)
    assert isinstance(store, PostgresStore)
    return postgres_pages(store)


async def measure_pages(path: Path, name: str, setting: Setting | None, scale: int) -> float:
    path.mkdir()
    store = STORES[name](path)
    await store.open()
    try:
        if setting is not None:
            await setting(store, scale)
        return await pages_per_claim(store)
    finally:
        await store.close()


@pytest.mark.slow("fills tables")
@pytest.mark.parametrize(
    "setting", [fill_groups, fill_paused_task, fill_rated_queue], ids=lambda setting: setting.__name__
)
@pytest.mark.parametrize("name", STORES)
async def test_closed_lanes_and_waiting_groups_cost_a_claim_little(
    tmp_path: Path, name: str, setting: Setting
) -> None:
    await compare_with_empty_store(tmp_path, name, setting, 20_000)


@pytest.mark.prove
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("setting", "scale"),
    [(fill_groups, 100_000), (fill_paused_task, 1_000_000), (fill_rated_queue, 100_000)],
    ids=["groups", "paused", "rated"],
)
@pytest.mark.parametrize("name", STORES)
async def test_ten_thousand_groups_and_a_million_closed_jobs_cost_a_claim_little(
    tmp_path: Path, name: str, setting: Setting, scale: int
) -> None:
    await compare_with_empty_store(tmp_path, name, setting, scale)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORES)
async def test_a_group_with_a_hundred_thousand_jobs_delays_another_group_by_two_rounds_at_most(
    tmp_path: Path, name: str
) -> None:
    store = STORES[name](tmp_path)
    await store.open()
    try:
        await fill(store, jobs("task", 100_000, group="flood"))
        assert len(await requests.claim(store, limit=100)) == 100
        await fill(store, jobs("other", 10, group="other"))

        taken = [job.group for _ in range(11) for job in await requests.claim(store, limit=2)]
    finally:
        await store.close()

    assert taken.index("other") < 4
    assert taken.count("other") == 10


async def compare_with_empty_store(path: Path, name: str, setting: Setting, scale: int) -> None:
    empty = await measure_pages(path / "empty", name, None, 0)
    full = await measure_pages(path / "full", name, setting, scale)

    assert full <= 2 * empty, f"{full:.0f} pages a pass, {empty:.0f} in an empty store"
