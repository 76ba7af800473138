"""While somebody holds an old snapshot, claims begin where the last ones ended, and find what there is."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from errandry.clock import Clock
from errandry.core.command import CompleteOutcome, EditJobs
from errandry.core.event import EventKind
from errandry.core.job import JobOrder, NewJob
from errandry.errors import StoreFull
from errandry.store.contract import Store, StoreLimits
from errandry.store.postgres import scan_position
from errandry.store.postgres.connection import PostgresConnection
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.scan_position import WHOLE, DueFloors, LanePart, Parts, ScanPositions
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import Conformance, MakeStore, requests
from tests.faults.process import until_said
from tests.store.postgres.test_driver import opened
from tests.store.postgres.test_plans import pages
from tests.store.server import kept_sessions, server

LEAST, MOST = WHOLE[0].priority, WHOLE[0].below
TIMES = DueFloors(1.0, 2.0, 3.0)


# What is known.


def after_many(entries: int = 1_000_000) -> ScanPositions:
    """One that was told at second 10 that so many entries were read."""
    known = ScanPositions()
    known.has_read(entries, {}, TIMES, 10.0)
    return known


def test_while_few_entries_are_read_all_are() -> None:
    known = after_many(scan_position.MANY - 1)
    known.emptied(7, [(0, 5)])

    assert known.parts(10.0) == {}
    assert known.floors(10.0) is None


def test_a_lane_is_read_from_where_the_last_claim_ended() -> None:
    known = after_many()
    known.emptied(7, [(0, 4), (0, 5), (3, 1)])
    known.emptied(7, [(0, 9)])

    assert known.parts(11.0) == {7: (LanePart(LEAST, LEAST, 0), LanePart(0, 9, 3), LanePart(3, 1, MOST))}
    assert known.floors(11.0) == TIMES


def test_everything_is_read_again_after_a_rest_that_is_long_beside_it() -> None:
    known = after_many(1_000_000)
    known.emptied(7, [(0, 5)])
    rest = 1_000_000 * scan_position.REST

    assert known.parts(9.9 + rest)
    assert not known.is_counting(9.9 + rest)
    assert known.parts(10.0 + rest) == {}
    assert known.floors(10.0 + rest) is None
    assert known.is_counting(10.0 + rest)


def test_entries_are_counted_now_and_then_while_there_are_few() -> None:
    known = ScanPositions()
    assert known.is_counting(10.0)
    known.has_read(5, {}, TIMES, 10.0)

    assert not known.is_counting(9.9 + scan_position.EVERY)
    assert known.is_counting(10.0 + scan_position.EVERY)


@pytest.mark.parametrize(("place", "is_known"), [(5, False), (1, False), (6, True), (-1, True)])
def test_who_stands_before_the_end_of_a_claim_is_read_with_all_of_its_priority(
    place: int, is_known: bool
) -> None:
    for tell in ("came", "has_read"):
        known = after_many()
        known.emptied(7, [(0, 5)])
        if tell == "came":
            known.came(7, [(0, place)])
        else:
            known.has_read(1_000_000, {7: (0, place)}, TIMES, 11.0)

        assert known.parts(11.0) == (
            {7: (LanePart(LEAST, LEAST, 0), LanePart(0, 5))} if is_known else {7: WHOLE}
        )


def test_who_came_last_and_was_served_first_leaves_nothing_known() -> None:
    known = after_many()
    known.emptied(7, [(0, -9), (0, -8)])

    assert known.parts(11.0) == {7: WHOLE}


def test_only_so_many_priorities_are_known() -> None:
    known = after_many()
    known.emptied(7, [(priority, 1) for priority in range(100)])

    assert len(known.parts(11.0)[7]) == scan_position.PRIORITIES + 1


# What claims find.


@dataclass
class Held:
    """A store whose dead rows nobody can clean away, and that knows where its claims have been."""

    store: PostgresStore
    clock: FakeClock
    db: psycopg.Connection[Any]
    holder: psycopg.Connection[Any]

    @property
    def trail(self) -> ScanPositions:
        assert self.store._open is not None
        return self.store._open.trail

    @property
    def parts(self) -> Parts:
        return self.trail.parts(0.0)

    def read_all(self) -> None:
        """Have the next claim read everything."""
        self.trail._until = 0.0


def job(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


async def run(store: Store, count: int, worker: str = "worker") -> None:
    """Claim and complete so many jobs, ten at a time."""
    for _ in range(count // 10):
        found = await requests.claim(store, worker=worker, limit=10)
        assert len(found) == 10
        for one in found:
            await requests.settle(store, one, CompleteOutcome("1"))


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(scan_position, "MANY", 80)
    monkeypatch.setattr(scan_position, "REST", 1e9)
    monkeypatch.setattr(scan_position, "EVERY", 0.0)
    clock = FakeClock()
    with server().lent() as url, psycopg.connect(server().url()) as holder:
        async with opened(url, clock) as store:
            await requests.insert(store, *[job(f"first-{n}") for n in range(200)])
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            await run(store, 100)
            with psycopg.connect(server().url(), autocommit=True) as db:
                held = Held(store, clock, db, holder)
                assert held.parts
                yield held
            holder.rollback()


async def test_claims_find_what_comes_next(held: Held) -> None:
    assert await requests.order(held.store, limit=3) == ["first-100", "first-101", "first-102"]


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -1},
        {"priority": -1, "order": JobOrder.LIFO},
        {"order": JobOrder.LIFO},
        {"task": "other", "priority": -1},
    ],
    ids=["priority", "priority and order", "order", "task"],
)
async def test_what_is_more_urgent_is_claimed_first(held: Held, fields: dict[str, Any]) -> None:
    await requests.insert(held.store, job("urgent", **fields))

    assert await requests.order(held.store, limit=2) == ["urgent", "first-100"]


async def test_one_that_came_last_and_is_alone_is_found(held: Held) -> None:
    await run(held.store, 100)
    await requests.insert(held.store, job("alone", order=JobOrder.LIFO))

    assert await requests.order(held.store) == ["alone"]


async def test_a_queue_is_not_drained_though_its_lane_has_to_be_read_as_a_whole_after_all(held: Held) -> None:
    """Because of one that stands in front; and just then the first group has come."""
    store = held.store
    await requests.insert(
        store, job("alone", order=JobOrder.LIFO), *[job(f"more-{number}") for number in range(3)]
    )
    await requests.claim(store)
    await requests.insert(store, job("again", order=JobOrder.LIFO))
    lane = (
        "INSERT INTO errandry.lanes (queue, task, grp, ready, used_at) VALUES ('else', 'task', 'g', true, 0)"
    )
    held.db.execute(store.address.text(lane))
    left = (await store.counts())["default"]["waiting"]

    assert len(await requests.order(store, limit=60)) == 60 < left
    told = (await store.events(None, 10_000)).entries
    assert not [one for one in told if one.event.kind is EventKind.DRAINED]


async def test_a_job_that_is_edited_into_what_was_empty_is_found(held: Held) -> None:
    await requests.insert(held.store, job("later", priority=5))
    await requests.insert(held.store, *[job(f"more-{n}") for n in range(10)])
    await run(held.store, 110)
    await requests.operate(held.store, EditJobs(ids=("later",), priority=0))

    assert await requests.order(held.store) == ["later"]


async def test_what_another_process_puts_before_the_end_is_found_when_everything_is_read(held: Held) -> None:
    before = "UPDATE errandry.live SET place = 1 WHERE id = 'first-150'"
    held.db.execute(held.store.address.text(before))
    assert "first-150" not in await requests.order(held.store, limit=10)

    held.read_all()

    assert (await requests.order(held.store, limit=10))[0] == "first-150"


async def test_more_than_a_claim_takes_are_found_before_the_end(held: Held) -> None:
    back = "UPDATE errandry.live SET place = place - 100 WHERE state = 'waiting' AND place <= 151"
    held.db.execute(held.store.address.text(back))
    held.read_all()
    found = [await requests.order(held.store, limit=20) for _ in range(3)]

    assert [name for names in found for name in names] == [f"first-{n}" for n in range(100, 160)]


async def test_leases_that_are_over_are_found(held: Held) -> None:
    [lost] = await requests.claim(held.store, worker="lost", limit=1, lease=10.0)
    await run(held.store, 50)
    held.clock.advance(10.0)
    await run(held.store, 40)

    assert (await requests.current(held.store, lost)).crashes == 1
    assert await requests.order(held.store, suspects=None) == [
        *(f"first-{n}" for n in range(191, 200)),
        lost.id,
    ]


async def test_what_becomes_due_is_found(held: Held) -> None:
    await requests.insert(held.store, job("due", delay=10.0, priority=-1))
    await run(held.store, 10)
    assert (await requests.claims(held.store, limit=1)).due_in == pytest.approx(10.0)
    held.clock.advance(10.0)

    assert (await requests.order(held.store, limit=1)) == ["due"]


async def test_upkeep_leaves_lanes_alone_while_it_takes_long_to_see_that_they_are_empty(held: Held) -> None:
    await run(held.store, 100)
    await requests.upkeep(held.store)
    ready = held.db.execute(held.store.address.text("SELECT ready FROM errandry.lanes")).fetchall()
    assert ready == [(True,)]

    held.read_all()
    await requests.upkeep(held.store)
    ready = held.db.execute(held.store.address.text("SELECT ready FROM errandry.lanes")).fetchall()
    assert ready == [(False,)]


async def test_a_pass_that_failed_has_emptied_nothing(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise psycopg.errors.DiskFull("no space left on device")

    known = held.parts
    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "commit", fail)
        with pytest.raises(StoreFull):
            await requests.claim(held.store, limit=1)

    assert held.parts == known
    assert await requests.order(held.store, limit=1) == ["first-100"]


async def test_when_the_snapshot_is_gone_everything_is_read_again(held: Held) -> None:
    held.holder.rollback()
    done: list[str] = []

    async def is_clean() -> bool:
        """Who reads cleans up, unless the server itself holds a snapshot just then."""
        held.read_all()
        [one] = await requests.claim(held.store, limit=1)
        await requests.settle(held.store, one, CompleteOutcome("1"))
        done.append(one.id)
        return not held.parts

    await until_said(is_clean)
    assert done == [f"first-{number}" for number in range(100, 100 + len(done))]


async def test_a_claim_touches_few_pages_however_much_has_died(held: Held) -> None:
    """The least of three: after an ANALYZE of the server's own, who comes next reads catalogs, too."""
    await requests.insert(held.store, *[job(f"more-{n}") for n in range(3_000)])
    marks = []
    for part in (100, 1_500, 100):
        await run(held.store, part)
        seen = []
        for _ in range(3):
            start = pages(held.store)
            await run(held.store, 100)
            seen.append(pages(held.store) - start)
        marks.append(min(seen))

    assert marks[-1] < 1.5 * marks[0]


# Everything else.


@pytest.fixture
async def make_store() -> AsyncIterator[MakeStore]:
    """Of stores that never read everything again."""
    opened: list[Store] = []
    with pytest.MonkeyPatch.context() as patch, kept_sessions(), ExitStack() as stack:
        patch.setattr(scan_position, "MANY", 0)
        patch.setattr(scan_position, "REST", 1e9)
        patch.setattr(scan_position, "EVERY", 0.0)

        async def make(clock: Clock, bounds: StoreLimits) -> Store:
            store = store_at(stack.enter_context(server().lent()), clock, bounds)
            await store.open()
            opened.append(store)
            return store

        yield make
        for store in opened:
            await store.close()


@pytest.mark.prove
class TestConformance(Conformance):
    """The whole suite, on these."""
