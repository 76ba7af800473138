"""Flows over the caller's connection: all jobs exist after its commit, none after a rollback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from psycopg.types.json import Jsonb

from errandry import Errandry, Fail, State, UniqueOptions, flow, parallel, result_of
from errandry.api.task import Task
from errandry.core.command import Insert, Upkeep
from errandry.core.event import EventKind
from errandry.core.flow import Edge, EdgeRecord, Policy
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import JobRecord, NewJob
from errandry.core.rule import Rule
from errandry.core.unique import UniqueKey
from errandry.errors import DuplicateJob, InvalidValue, QueueFull, UnknownJob
from errandry.store.postgres.driver import PostgresStore
from errandry.testing import FakeClock
from tests.api.callers import CALLERS, Caller, psycopg_async
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import event_kinds, run_burst
from tests.store.server import server

Part = Task[[int], int]
Total = Task[[list[int]], int]


@pytest.fixture
def part(shop: Errandry) -> Part:
    @shop.task(max_attempts=1)
    async def part(n: int) -> int:
        if n < 0:
            raise Fail("negative")
        return n

    return part


@pytest.fixture
def total(shop: Errandry) -> Total:
    @shop.task
    async def total(parts: list[int]) -> int:
        return sum(parts)

    return total


@pytest.fixture
async def caller(shop: Errandry) -> AsyncIterator[Caller]:
    async with psycopg_async(server()) as caller:
        yield caller


async def run_upkeep(shop: Errandry) -> None:
    await shop.engine.submit(Upkeep())


@pytest.mark.parametrize("library", CALLERS)
async def test_a_flow_exists_after_the_commit_and_never_after_a_rollback(
    shop: Errandry, part: Part, total: Total, library: str
) -> None:
    async with CALLERS[library](server()) as caller:
        call = flow(total.new(result_of(parallel(part.new(1), part.new(2)))), part.new(3))
        job = await caller.flow(shop, call)
        with pytest.raises(UnknownJob):
            await shop.client.record(job.id)
        await caller.commit()
        record = await shop.client.record(job.id)
        assert (record.state, record.open_children) == (State.BLOCKED, 3)

    async with CALLERS[library](server()) as caller:
        lost = await caller.flow(shop, flow(total.new(result_of(parallel(part.new(1))))))
        await caller.rollback()

    await run_burst(shop)
    assert await (await shop.get(job.id)).result(timeout=WAIT_TIMEOUT) == 3
    with pytest.raises(UnknownJob):
        await shop.client.record(lost.id)
    assert await shop.children(lost.id) == []
    assert await shop.totals() == {"default": {"completed": 4, "inserted": 4}}
    assert await event_kinds(shop, job.id) == [
        *(EventKind.BLOCKED, EventKind.WAITING, EventKind.CLAIMED, EventKind.STARTED, EventKind.COMPLETED)
    ]


async def test_parallel_calls_of_bound_tasks(
    shop: Errandry, part: Part, total: Total, caller: Caller
) -> None:
    bound = total.bind(caller.connection)
    first, second = await shop.bind(caller.connection).enqueue_flow(
        parallel(bound.new(result_of(parallel(part.new(1)))), part.new(5))
    )
    await caller.commit()
    await run_burst(shop)

    assert (await first.result(timeout=WAIT_TIMEOUT), await second.result(timeout=WAIT_TIMEOUT)) == (1, 5)


def jobs_of(*names: str, **more: Any) -> tuple[NewJob, ...]:
    return tuple(NewJob(id=name, task="t", payload="{}", **more.get(name, {})) for name in names)


KEY = {"unique": UniqueKey("one")}
FLOWS = {
    "tree": (
        jobs_of("a", "b", "c", "d", "e", d={"delay": 60.0}, a={"delay": 60.0}),
        (Edge("a", "b"), Edge("a", "c", Policy.IGNORE), Edge("b", "d", Policy.REMOVE), Edge("b", "e")),
    ),
    "children first": (jobs_of("d", "c", "b", "a"), (Edge("a", "b"), Edge("a", "c"), Edge("b", "d"))),
    "shared": (jobs_of("a", "b", "c", "x"), (Edge("a", "c"), Edge("b", "c", feeds=("n", "all[0]")))),
    "one key": (
        jobs_of("a", "b", "c", "d", b=KEY, c=KEY),
        (Edge("a", "b", feeds=("p[0]",)), Edge("a", "c", Policy.IGNORE, ("p[1]",)), Edge("a", "d")),
    ),
    "held": (jobs_of("a", "b", "c", b=KEY), (Edge("a", "b", feeds=("n",)), Edge("a", "c"))),
    "existing": (jobs_of("a", "before", "c"), (Edge("a", "before"), Edge("a", "c"))),
    "ended": (jobs_of("a", "ended", "c"), (Edge("a", "ended", Policy.IGNORE), Edge("a", "c"))),
    "repeat": (jobs_of("p", "q"), (Edge("p", "q"),)),
    "key of a parent": (
        jobs_of("a", "b", "c", a={"unique": UniqueKey("own")}),
        (Edge("a", "b"), Edge("b", "c")),
    ),
}


@pytest.mark.parametrize("name", FLOWS)
async def test_a_bound_insert_stores_the_same_flow_as_an_insert(clock: FakeClock, name: str) -> None:
    new, edges = FLOWS[name]

    async def stored(bind: bool) -> tuple[Any, list[JobRecord], list[list[EdgeRecord]], Any]:
        with server().lend_url() as url:
            async with Errandry(url, clock=clock) as jobs, psycopg_async(server()) as caller:
                await jobs.client.insert(list(jobs_of("before", before=KEY)))
                await jobs.client.insert(list(jobs_of("ended")))
                await jobs.resolve("ended", result=7)
                await jobs.client.insert(list(jobs_of("p", "q")), (Edge("p", "q"),))
                command = Insert(new, edges)
                if bind:
                    answer = await jobs.store.bind(caller.connection).insert(command)
                    await caller.commit()
                else:
                    answer = await jobs.client.insert(list(new), edges)
                await run_upkeep(jobs)
                names = sorted({job.id for job in new} | {"before", "ended"})
                records = await jobs.engine.call(jobs.store.get, names)
                edges_of = [await jobs.client.edges(job_id) for job_id in names]
                ids_by_seq = {record.seq: record.id for record in records if record is not None}
                return (
                    answer,
                    [_unnumbered(record) for record in records if record is not None],
                    [[_without_number(edge, ids_by_seq) for edge in edges] for edges in edges_of],
                    (await jobs.counts(), await jobs.totals()),
                )

    assert await stored(bind=True) == await stored(bind=False)


def _unnumbered(record: JobRecord) -> Any:
    """The record without its numbers, which the two inserts assign in different order."""
    return {**{name: getattr(record, name) for name in record.__struct_fields__}, "seq": 0, "place": 0}


def _without_number(edge: EdgeRecord, ids_by_seq: dict[int, str]) -> Any:
    assert ids_by_seq[edge.seq] == edge.child
    return {**{name: getattr(edge, name) for name in edge.__struct_fields__}, "seq": 0}


@pytest.mark.parametrize("end", ["before", "between", "after", "gone"])
async def test_a_flow_waits_for_a_child_that_existed_before(
    shop: Errandry, part: Part, total: Total, caller: Caller, end: str
) -> None:
    holder = await part.using(unique="k", queue="other").enqueue(4)
    if end == "before":
        await run_burst(shop)
    job = await caller.flow(
        shop,
        flow(
            total.new(
                result_of(parallel(part.using(unique=UniqueOptions("k", scope="ever")).new(9), part.new(1)))
            )
        ),
    )
    if end == "between":
        await run_burst(shop)
    await caller.commit()
    if end == "gone":
        await shop.remove(holder.id)
    await run_upkeep(shop)
    await run_burst(shop)
    await run_upkeep(shop)
    await run_burst(shop)

    expected = {"before": 10, "gone": None}.get(end, 5)  # a key held while alive is free after that
    if expected is None:
        assert (await shop.client.record(job.id)).state is State.FAILED
    else:
        assert await job.result(timeout=WAIT_TIMEOUT) == expected


async def test_the_holder_of_a_key_can_finish_while_the_transaction_is_open(
    shop: Errandry, part: Part, total: Total, caller: Caller
) -> None:
    holder = await part.using(unique="k").enqueue(4)
    job = await caller.flow(shop, flow(total.new(result_of(parallel(part.using(unique="k").new(4))))))

    async with asyncio.timeout(WAIT_TIMEOUT):
        await run_burst(shop)
        assert await holder.result(timeout=WAIT_TIMEOUT) == 4
    await caller.commit()
    await run_upkeep(shop)
    await run_burst(shop)

    assert await job.result(timeout=WAIT_TIMEOUT) == 4


async def test_a_held_key_refuses_the_whole_flow(
    shop: Errandry, part: Part, total: Total, caller: Caller
) -> None:
    await part.using(unique="k").enqueue(4)
    once = part.using(unique=UniqueOptions("k", on_conflict="raise"))

    with pytest.raises(DuplicateJob):
        await caller.flow(shop, flow(total.new(result_of(parallel(part.new(1), once.new(2))))))
    await caller.commit()

    assert await shop.counts() == {"default": {"waiting": 1}}


async def test_only_jobs_that_would_wait_count_for_the_queue_size(
    shop: Errandry, part: Part, total: Total, caller: Caller
) -> None:
    await shop.engine.submit(PutRule(GateKind.QUEUE, "default", Rule(max_size=2)))
    await caller.flow(shop, flow(total.new([]), part.new(1), part.new(2)))
    with pytest.raises(QueueFull):
        await caller.flow(shop, flow(total.new([]), part.new(3)))


async def test_an_existing_parent_gets_no_new_children(
    shop: Errandry, part: Part, total: Total, caller: Caller
) -> None:
    await total.using(id="parent").enqueue([])

    with pytest.raises(InvalidValue, match="parent='parent': exists and does not wait for child"):
        await caller.flow(shop, flow(total.using(id="parent").new([]), part.using(id="child").new(1)))


async def test_unique_keys_that_make_a_cycle_are_refused(
    shop: Errandry, part: Part, total: Total, caller: Caller
) -> None:
    inner = flow(part.using(unique="k").new(1), part.using(id="leaf", unique="k").new(2))

    with pytest.raises(InvalidValue, match="circle"):
        await caller.flow(shop, inner)


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        ({}, "must be an array of objects"),
        ([1], "must be an array of objects"),
        ([{"parent": "a", "child": "x"}], "must be among the jobs inserted with it"),
        ([{"parent": "a"}], "must be among the jobs inserted with it"),
        ([{"parent": "b", "child": "a"}], "must come after its parents"),
        ([{"parent": "a", "child": "a"}], "must come after its parents"),
        ([{"parent": "a", "child": "b", "policy": "never"}], "must be fail, ignore, remove or after"),
        ([{"parent": "a", "child": "b", "feeds": "n"}], "must name arguments of the parent"),
        ([{"parent": "a", "child": "b", "feeds": ["a b"]}], "must name arguments of the parent"),
        ([{"parent": "a", "child": "b", "more": 1}], "its edge has an unknown field"),
        ([{"parent": "a", "child": "b"}] * 2, "twice"),
    ],
)
async def test_insert_jobs_called_by_hand_refuses_invalid_edges(shop: Errandry, edges: Any, why: str) -> None:
    assert isinstance(shop.store, PostgresStore)
    statement = f'SELECT "{shop.store.address.schema}".insert_jobs(%s, edges => %s)'
    given = [{"id": name, "task": "t", "payload": "{}"} for name in "ab"]
    with psycopg.connect(server().url()) as db, pytest.raises(psycopg.DataError, match=why):
        db.execute(statement.encode(), (Jsonb(given), Jsonb(edges)))


async def test_over_a_connection_to_an_sqlite_file(tmp_path: Path) -> None:
    async with Errandry(f"sqlite:///{tmp_path}/jobs.db") as jobs:

        @jobs.task(unique=True)
        async def part(n: int) -> int:
            return n

        @jobs.task
        async def total(parts: list[int]) -> int:
            return sum(parts)

        held = await part.enqueue(2)
        db = apsw.Connection(str(tmp_path / "jobs.db"))
        db.execute("BEGIN IMMEDIATE")
        lost = jobs.sync.bind(db).enqueue_flow(total.new(result_of(parallel(part.new(1)))))
        db.execute("ROLLBACK")
        db.execute("BEGIN IMMEDIATE")
        job = jobs.sync.bind(db).enqueue_flow(total.new(result_of(parallel(part.new(1), part.new(2)))))
        db.execute("COMMIT")

        assert [child.id for child in await jobs.children(job.id)][1] == held.id
        await run_burst(jobs)
        assert await (await jobs.get(job.id)).result(timeout=WAIT_TIMEOUT) == 3
        with pytest.raises(UnknownJob):
            await jobs.client.record(lost.id)
