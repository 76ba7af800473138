"""While a transaction holds an old snapshot, claims start at scan positions and still find every job."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from errandry.clock import Clock
from errandry.core.command import CancelJobs, CompleteOutcome, EditJobs
from errandry.core.event import EventKind
from errandry.errors import StoreFull
from errandry.store.contract import Store, StoreLimits
from errandry.store.postgres import scan_position
from errandry.store.postgres.connection import PostgresConnection
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.scan_position import WHOLE, DueFloors, LanePart, Parts, ScanPositions
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import Conformance, MakeStore, requests
from tests.faults.process import wait_until_async
from tests.new_jobs import new_job
from tests.store.postgres.given import opened
from tests.store.postgres.test_plans import touched_pages
from tests.store.server import reuse_sessions, server

LEAST, MOST = WHOLE[0].priority, WHOLE[0].below
TIMES = DueFloors(1.0, 2.0, 3.0)


# The positions.


def positions_after_long_scan(entries: int = 1_000_000) -> ScanPositions:
    """Scan positions after a full scan at second 10 that has read `entries` index entries."""
    positions = ScanPositions()
    positions.record_scan(entries, {}, TIMES, 10.0)
    return positions


def test_claims_scan_whole_lanes_while_a_scan_reads_few_entries() -> None:
    positions = positions_after_long_scan(scan_position.SLOW_SCAN_ENTRIES - 1)
    positions.record_taken(7, [(0, 5)])

    assert positions.parts(10.0) == {}
    assert positions.floors(10.0) is None


def test_a_lane_is_scanned_from_where_the_last_claim_stopped() -> None:
    positions = positions_after_long_scan()
    positions.record_taken(7, [(0, 4), (0, 5), (3, 1)])
    positions.record_taken(7, [(0, 9)])

    assert positions.parts(11.0) == {7: (LanePart(LEAST, LEAST, 0), LanePart(0, 9, 3), LanePart(3, 1, MOST))}
    assert positions.floors(11.0) == TIMES


def test_a_full_scan_follows_after_a_multiple_of_its_own_duration() -> None:
    positions = positions_after_long_scan(1_000_000)
    positions.record_taken(7, [(0, 5)])
    delay = 1_000_000 * scan_position.RESCAN_DELAY_PER_ENTRY

    assert positions.parts(9.9 + delay)
    assert not positions.wants_count(9.9 + delay)
    assert positions.parts(10.0 + delay) == {}
    assert positions.floors(10.0 + delay) is None
    assert positions.wants_count(10.0 + delay)


def test_entries_are_counted_once_per_interval_while_there_are_few() -> None:
    positions = ScanPositions()
    assert positions.wants_count(10.0)
    positions.record_scan(5, {}, TIMES, 10.0)

    assert not positions.wants_count(9.9 + scan_position.COUNT_INTERVAL)
    assert positions.wants_count(10.0 + scan_position.COUNT_INTERVAL)


@pytest.mark.parametrize(("place", "is_kept"), [(5, False), (1, False), (6, True), (-1, True)])
def test_a_job_before_the_scan_position_resets_the_position_of_its_priority(
    place: int, is_kept: bool
) -> None:
    for cause in ("arrival", "scan"):
        positions = positions_after_long_scan()
        positions.record_taken(7, [(0, 5)])
        if cause == "arrival":
            positions.record_arrivals(7, [(0, place)])
        else:
            positions.record_scan(1_000_000, {7: (0, place)}, TIMES, 11.0)

        assert positions.parts(11.0) == (
            {7: (LanePart(LEAST, LEAST, 0), LanePart(0, 5))} if is_kept else {7: WHOLE}
        )


def test_lifo_jobs_do_not_move_the_scan_position() -> None:
    positions = positions_after_long_scan()
    positions.record_taken(7, [(0, -9), (0, -8)])

    assert positions.parts(11.0) == {7: WHOLE}


def test_the_number_of_priorities_with_a_position_is_bounded() -> None:
    positions = positions_after_long_scan()
    positions.record_taken(7, [(priority, 1) for priority in range(100)])

    assert len(positions.parts(11.0)[7]) == scan_position.PRIORITIES_MAX + 1


# Claims.


@dataclass
class StoreWithSnapshot:
    """A store with scan positions, and a transaction whose snapshot keeps its dead rows."""

    store: PostgresStore
    clock: FakeClock
    db: psycopg.Connection[Any]
    holder: psycopg.Connection[Any]

    @property
    def scan_positions(self) -> ScanPositions:
        assert self.store._open is not None
        return self.store._open.scan_positions

    @property
    def parts(self) -> Parts:
        return self.scan_positions.parts(0.0)

    def scan_all(self) -> None:
        """Let the next claim scan whole lanes."""
        self.scan_positions._rescan_at = 0.0


async def run_jobs(store: Store, count: int, worker: str = "worker") -> None:
    """Claim and complete `count` jobs, ten at a time."""
    for _ in range(count // 10):
        jobs = await requests.claim(store, worker=worker, limit=10)
        assert len(jobs) == 10
        for job in jobs:
            await requests.settle(store, job, CompleteOutcome("1"))


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StoreWithSnapshot]:
    monkeypatch.setattr(scan_position, "SLOW_SCAN_ENTRIES", 80)
    monkeypatch.setattr(scan_position, "RESCAN_DELAY_PER_ENTRY", 1e9)
    monkeypatch.setattr(scan_position, "COUNT_INTERVAL", 0.0)
    clock = FakeClock()
    with server().lend_url() as url, psycopg.connect(server().url()) as holder:
        async with opened(url, clock) as store:
            await requests.insert(store, *[new_job(f"first-{n}") for n in range(200)])
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            await run_jobs(store, 100)
            with psycopg.connect(server().url(), autocommit=True) as db:
                held = StoreWithSnapshot(store, clock, db, holder)
                assert held.parts
                yield held
            holder.rollback()


async def test_a_claim_finds_the_next_jobs(held: StoreWithSnapshot) -> None:
    assert await requests.claim_ids(held.store, limit=3) == ["first-100", "first-101", "first-102"]


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -1},
        {"priority": -1, "lifo": True},
        {"lifo": True},
        {"task": "other", "priority": -1},
    ],
    ids=["priority", "priority and order", "order", "task"],
)
async def test_a_more_urgent_job_is_claimed_first(held: StoreWithSnapshot, fields: dict[str, Any]) -> None:
    await requests.insert(held.store, new_job("urgent", **fields))

    assert await requests.claim_ids(held.store, limit=2) == ["urgent", "first-100"]


async def test_a_single_lifo_job_is_found(held: StoreWithSnapshot) -> None:
    await run_jobs(held.store, 100)
    await requests.insert(held.store, new_job("alone", lifo=True))

    assert await requests.claim_ids(held.store) == ["alone"]


async def test_a_queue_is_not_drained_while_a_lane_with_lifo_jobs_has_waiting_jobs(
    held: StoreWithSnapshot,
) -> None:
    """Lifo jobs make the claim scan the whole lane, and in the same pass the first group appears."""
    store = held.store
    await requests.insert(
        store, new_job("alone", lifo=True), *[new_job(f"more-{number}") for number in range(3)]
    )
    await requests.claim(store)
    await requests.insert(store, new_job("again", lifo=True))
    lane = (
        "INSERT INTO errandry.lanes (queue, task, grp, ready, used_at) VALUES ('else', 'task', 'g', true, 0)"
    )
    held.db.execute(store.address.qualify(lane))
    left = (await store.counts())["default"]["waiting"]

    assert len(await requests.claim_ids(store, limit=60)) == 60 < left
    entries = (await store.events(None, 10_000)).entries
    assert not [entry for entry in entries if entry.event.kind is EventKind.DRAINED]


async def test_a_queue_with_a_waiting_lifo_job_is_not_drained_by_a_cancel(held: StoreWithSnapshot) -> None:
    """A lifo job stands before the scan position of its lane, and a pass without a claim must see it too."""
    await run_jobs(held.store, 100)
    await requests.insert(held.store, new_job("lifo", lifo=True), new_job("last"))
    cursor = await held.store.latest_cursor()

    await requests.operate(held.store, CancelJobs(ids=("last",)))

    assert await requests.event_kinds(held.store, cursor) == [EventKind.CANCELED]


async def test_a_job_edited_to_a_priority_that_was_empty_is_found(held: StoreWithSnapshot) -> None:
    await requests.insert(held.store, new_job("later", priority=5))
    await requests.insert(held.store, *[new_job(f"more-{n}") for n in range(10)])
    await run_jobs(held.store, 110)
    await requests.operate(held.store, EditJobs(ids=("later",), priority=0))

    assert await requests.claim_ids(held.store) == ["later"]


async def test_a_job_put_before_the_position_by_another_process_is_found_by_the_next_full_scan(
    held: StoreWithSnapshot,
) -> None:
    before = "UPDATE errandry.live SET place = 1 WHERE id = 'first-150'"
    held.db.execute(held.store.address.qualify(before))
    assert "first-150" not in await requests.claim_ids(held.store, limit=10)

    held.scan_all()

    assert (await requests.claim_ids(held.store, limit=10))[0] == "first-150"


async def test_more_jobs_before_the_position_than_one_claim_takes_are_found(held: StoreWithSnapshot) -> None:
    back = "UPDATE errandry.live SET place = place - 100 WHERE state = 'waiting' AND place <= 151"
    held.db.execute(held.store.address.qualify(back))
    held.scan_all()
    claims = [await requests.claim_ids(held.store, limit=20) for _ in range(3)]

    assert [name for names in claims for name in names] == [f"first-{n}" for n in range(100, 160)]


async def test_expired_leases_are_found(held: StoreWithSnapshot) -> None:
    [lost] = await requests.claim(held.store, worker="lost", limit=1, lease=10.0)
    await run_jobs(held.store, 50)
    held.clock.advance(10.0)
    await run_jobs(held.store, 40)

    assert (await requests.current_job(held.store, lost)).crashes == 1
    assert await requests.claim_ids(held.store, suspects=None) == [
        *(f"first-{n}" for n in range(191, 200)),
        lost.id,
    ]


async def test_a_job_that_becomes_due_is_found(held: StoreWithSnapshot) -> None:
    await requests.insert(held.store, new_job("due", delay=10.0, priority=-1))
    await run_jobs(held.store, 10)
    assert (await requests.send_claim(held.store, limit=1)).due_in == pytest.approx(10.0)
    held.clock.advance(10.0)

    assert (await requests.claim_ids(held.store, limit=1)) == ["due"]


async def test_upkeep_unmarks_no_lane_until_the_next_full_scan(
    held: StoreWithSnapshot,
) -> None:
    await run_jobs(held.store, 100)
    await requests.run_upkeep(held.store)
    ready = held.db.execute(held.store.address.qualify("SELECT ready FROM errandry.lanes")).fetchall()
    assert ready == [(True,)]

    held.scan_all()
    await requests.run_upkeep(held.store)
    ready = held.db.execute(held.store.address.qualify("SELECT ready FROM errandry.lanes")).fetchall()
    assert ready == [(False,)]


async def test_a_failed_pass_does_not_move_the_scan_position(
    held: StoreWithSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise psycopg.errors.DiskFull("no space left on device")

    parts = held.parts
    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "commit", fail)
        with pytest.raises(StoreFull):
            await requests.claim(held.store, limit=1)

    assert held.parts == parts
    assert await requests.claim_ids(held.store, limit=1) == ["first-100"]


async def test_after_the_snapshot_ends_whole_lanes_are_scanned_again(held: StoreWithSnapshot) -> None:
    held.holder.rollback()
    completed: list[str] = []

    async def is_clean() -> bool:
        """A scan removes dead entries, unless the server itself holds a snapshot at the moment."""
        held.scan_all()
        [job] = await requests.claim(held.store, limit=1)
        await requests.settle(held.store, job, CompleteOutcome("1"))
        completed.append(job.id)
        return not held.parts

    await wait_until_async(is_clean)
    assert completed == [f"first-{number}" for number in range(100, 100 + len(completed))]


async def test_the_pages_of_a_claim_do_not_depend_on_the_number_of_dead_entries(
    held: StoreWithSnapshot,
) -> None:
    """The least of three, because after an autoanalyze the next statement also reads the catalog."""
    await requests.insert(held.store, *[new_job(f"more-{n}") for n in range(3_000)])
    least_pages = []
    for part in (100, 1_500, 100):
        await run_jobs(held.store, part)
        pages = []
        for _ in range(3):
            start = touched_pages(held.store)
            await run_jobs(held.store, 100)
            pages.append(touched_pages(held.store) - start)
        least_pages.append(min(pages))

    assert least_pages[-1] < 1.5 * least_pages[0]


# The conformance suite.


@pytest.fixture
async def make_store() -> AsyncIterator[MakeStore]:
    """Makes stores that always use scan positions."""
    stores: list[Store] = []
    with pytest.MonkeyPatch.context() as patch, reuse_sessions(), ExitStack() as stack:
        patch.setattr(scan_position, "SLOW_SCAN_ENTRIES", 0)
        patch.setattr(scan_position, "RESCAN_DELAY_PER_ENTRY", 1e9)
        patch.setattr(scan_position, "COUNT_INTERVAL", 0.0)

        async def make(clock: Clock, bounds: StoreLimits) -> Store:
            store = store_at(stack.enter_context(server().lend_url()), clock, bounds)
            await store.open()
            stores.append(store)
            return store

        yield make
        for store in stores:
            await store.close()


@pytest.mark.prove
class TestConformance(Conformance):
    """The whole suite on such stores."""
