"""How much work SQLite does: the plan of every statement, and pages touched with few jobs and with many."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import pytest

from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, Settle
from errandry.core.gate import GateKind, Pause
from errandry.core.job import NewJob
from errandry.core.query import parse
from errandry.core.state import State
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.gates import SQL
from errandry.store.sqlite.tables import SqliteTables
from errandry.testing.conformance import requests
from errandry.testing.given import Given

SCANS = {
    "canceling": "closing USING INDEX closing_canceling: only those with children left to cancel",
    "head": "store: one row; gates: stops at the first; lanes USING INDEX lanes_grouped: stops at the first",
    "pairs": "pair: a row for each queue and task; lanes USING INDEX lanes_ready: stops at the first",
    "waiting_pairs": "pair: a row for each queue and task; lanes USING INDEX lanes_ready: stops at the first",
    "shelves": "shelf: a row for a task and a state; history USING INDEX history_shelves: stops at the first",
    "drop_rounds": "rounds: a row for each queue with groups",
    "end_rounds": "rounds: a row for each queue with groups",
    "priorities": "kind: a row for each lane and priority",
    "drop_gates": "gates: a row for each that is paused, has a rule or a rate in use",
    "leave": "store: one row",
    "folded": "store: one row",
    "unfolded": "store: one row",
    "log_span": "store: one row",
    "open_lanes": "lanes USING INDEX lanes_ready: only lanes that may have waiting jobs",
    "ready_since": "lanes USING INDEX lanes_ready: only lanes that may have waiting jobs",
    "ids_live": "live USING COVERING INDEX sqlite_autoindex_live_1: only ids, for a person who waits",
    "ids_history": "history USING COVERING INDEX sqlite_autoindex_history_1: as ids_live",
    "held_by": "live USING INDEX live_leased: only jobs that workers hold, when one of them has died",
    "holding": "live USING COVERING INDEX live_leased: only jobs that workers hold",
    "crowds": "lanes USING INDEX sqlite_autoindex_lanes_1: a row for each lane; (subquery-1): up to a bound",
    "old_events": "events: in the order of the table, and it stops at its limit",
    "workers": "workers: a row for each worker",
    "drop_workers": "workers: a row for each worker",
    "drop_claims": "claims: a row for each worker",
    "totals": "totals: a row for each queue, task and counter",
}
"""Statements that read a table from end to end: which one, and why that is little."""

SORTS = {
    "open_lanes": "ORDER BY: a row for each lane, not for each job",
    "holding": "GROUP BY: a row for each job that workers hold",
    "totals": "GROUP BY: a row for each queue, task and counter",
    "roll_stats": "GROUP BY: the figures of an hour, or of a day",
    "steps": "ORDER BY: the steps of one job, a thousand at most",
}
"""Statements that sort what they have found: for what, and why that is little."""

CONTROL = {"begin", "commit", "rollback"}
FEW = 1_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path / "jobs.db") as store:
        yield store


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, durability="process")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def job(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


class TestPlans:
    @pytest.mark.parametrize("name", sorted(SQL.keys() - CONTROL))
    async def test_no_statement_reads_or_sorts_more_than_it_must(self, store: SqliteStore, name: str) -> None:
        steps = list(plan(store.writer, SQL[name]))

        scans = {step.removeprefix("SCAN ") for step in steps if is_scan(step)}
        sorts = {step.partition(" FOR ")[2] for step in steps if "TEMP B-TREE" in step}

        assert scans == {reason.partition(":")[0] for reason in SCANS.get(name, "").split("; ") if reason}
        assert sorts == {reason.partition(":")[0] for reason in [SORTS.get(name)] if reason}

    def test_every_exception_is_still_one(self) -> None:
        assert SCANS.keys() | SORTS.keys() <= SQL.keys()

    @pytest.mark.parametrize(
        ("name", "row", "seq"),
        [("matching", "rowid>? AND rowid<?", "seq>? AND seq<?"), ("floor", "rowid<?", "seq<?")],
    )
    async def test_a_search_merges_its_parts_in_the_order_they_are_stored(
        self, store: SqliteStore, name: str, row: str, seq: str
    ) -> None:
        steps = list(plan(store.writer, SQL[name]))

        assert [step.replace("COVERING ", "") for step in steps if step.startswith(("MERGE", "SEARCH"))] == [
            "MERGE (UNION ALL)",
            "MERGE (UNION ALL)",
            f"SEARCH live USING INTEGER PRIMARY KEY ({row})",
            f"SEARCH history USING INTEGER PRIMARY KEY ({row})",
            f"SEARCH history USING INDEX history_troubled ({seq})",
        ]

    async def test_the_next_in_line_come_from_the_index_in_their_order(self, store: SqliteStore) -> None:
        assert list(plan(store.writer, SQL["line"])) == ["SEARCH live USING INDEX live_ready (lane=?)"]

    async def test_a_scan_would_be_noticed(self, store: SqliteStore) -> None:
        steps = list(plan(store.writer, "SELECT * FROM live WHERE worker = 'w' ORDER BY payload"))

        assert [step for step in steps if is_scan(step)] == ["SCAN live"]
        assert [step for step in steps if "TEMP B-TREE" in step] == ["USE TEMP B-TREE FOR ORDER BY"]


class TestSearch:
    """Beside 20,000 completed jobs, few failed and few waiting."""

    @pytest.mark.slow("writes 20,000 rows")
    async def test_parts_that_are_not_wanted_are_not_read(self, store: SqliteStore) -> None:
        given = Given(store)
        await given.completed()
        multiply(store.writer, "history", 20_000)
        await given.failed()
        await given.canceled()
        await given.waiting()
        await given.running()
        everything = pages_of_search(store.writer, "state:completed task:none")

        for text in (
            "state:waiting",
            "state:running",
            "state:failed",
            "state:failed,canceled,waiting task:none",
        ):
            assert pages_of_search(store.writer, text) < 40, text
        for text in ("", "state:completed", "task~task"):
            assert pages_of_search(store.writer, text) < 150, text
        for text in ("", "state:completed"):
            assert pages_of_search(store.writer, text, below=100) < 150, text
        assert everything > 500


class TestWork:
    """Pages SQLite touches for a pass: the same whatever else the file holds, but for a level of a tree."""

    @pytest.mark.slow("writes 100,000 rows twice")
    @pytest.mark.parametrize("limit", [1, 20])
    async def test_a_claim_costs_the_same_with_many_jobs(self, tmp_path: Path, limit: int) -> None:
        few = await work(tmp_path / "few.db", limit, waiting=FEW)
        many = await work(tmp_path / "many.db", limit, waiting=100 * FEW)
        finished = await work(tmp_path / "finished.db", limit, waiting=FEW, finished=100 * FEW)

        assert_bounded(few, many, finished)

    @pytest.mark.prove
    @pytest.mark.parametrize("limit", [1, 20])
    async def test_a_claim_costs_the_same_with_a_million_jobs(self, tmp_path: Path, limit: int) -> None:
        few = await work(tmp_path / "few.db", limit, waiting=FEW)
        many = await work(tmp_path / "many.db", limit, waiting=1_000 * FEW)
        finished = await work(tmp_path / "finished.db", limit, waiting=FEW, finished=1_000 * FEW)

        assert_bounded(few, many, finished)

    @pytest.mark.slow("writes 100,000 rows")
    async def test_jobs_that_may_not_be_claimed_cost_a_claim_nothing(self, tmp_path: Path) -> None:
        few = await work(tmp_path / "few.db", 1, waiting=FEW)
        async with opened(tmp_path / "others.db") as store:
            await fill(store, waiting=FEW)
            await requests.one(store, Pause(GateKind.QUEUE, "paused"))
            await requests.insert(store, job("paused", queue="paused"))
            multiply(store.writer, "live", 50 * FEW)
            await requests.insert(store, job("of others", task="another"))
            multiply(store.writer, "live", 50 * FEW)
            others = await measured(store, 1)

        assert_bounded(few, others)

    async def test_lanes_that_ran_empty_cost_a_claim_nothing(self, tmp_path: Path) -> None:
        few = await work(tmp_path / "few.db", 1, waiting=FEW)
        async with opened(tmp_path / "lanes.db") as store:
            await requests.insert(
                store, *(job(f"urgent-{n}", group=f"group-{n}", priority=-1) for n in range(200))
            )
            await fill(store, waiting=FEW)
            assert len(await requests.claim(store, limit=200)) == 200
            many = await measured(store, 1)

        assert_bounded(few, many)


async def work(path: Path, limit: int, waiting: int, finished: int = 0) -> dict[str, float]:
    """Pages touched for each job, by kind of pass, in a store that holds so many."""
    async with opened(path) as store:
        await fill(store, waiting, finished)
        return await measured(store, limit)


async def fill(store: SqliteStore, waiting: int, finished: int = 0) -> None:
    given = Given(store)
    if finished:
        await given.completed()
        multiply(store.writer, "history", finished)
    await given.waiting(task="task")
    multiply(store.writer, "live", waiting)


async def measured(store: SqliteStore, limit: int) -> dict[str, float]:
    pages: dict[str, float] = {"claim": 0, "settle": 0, "insert": 0}
    rounds = 20
    for n in range(-3, rounds):  # the first few are not counted: they prepare statements
        start = touched(store.writer)
        jobs = await requests.claim(store, limit=limit, tasks=("task",))
        claimed = touched(store.writer)
        await store.commit([Settle(Ref(held.id, held.fence), CompleteOutcome('"done"')) for held in jobs])
        settled = touched(store.writer)
        await requests.insert(store, *(job(f"new-{n}-{k}") for k in range(limit)))
        assert len(jobs) == limit
        if n >= 0:
            pages["claim"] += (claimed - start) / rounds / limit
            pages["settle"] += (settled - claimed) / rounds / limit
            pages["insert"] += (touched(store.writer) - settled) / rounds / limit
    return pages


def assert_bounded(few: dict[str, float], *others: dict[str, float]) -> None:
    """At most half as much again for a claim; twice for writes, which go down every index."""
    bounds = {"claim": 1.5, "settle": 2.0, "insert": 2.0}
    for other in others:
        for kind, pages in other.items():
            assert pages <= few[kind] * bounds[kind], (kind, few, others)


def touched(db: apsw.Connection) -> int:
    """How many pages this connection has asked for, from its cache or from the file."""
    hits, misses = (
        db.status(op)[0] for op in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    )
    return hits + misses


def pages_of_search(db: apsw.Connection, text: str, below: int | None = None) -> int:
    tables = SqliteTables(db)
    before = touched(db)
    tables.matching(parse(text), State, below, 0.0, 50)
    return touched(db) - before


def multiply(db: apsw.Connection, table: str, rows: int) -> None:
    """So many copies of the newest row of a table, each with a number, an id and a place of its own."""
    own = {"seq": "seq + i", "id": "id || '-' || i", "place": "place + i"}
    columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(own.get(column, column) for column in columns)
    db.execute(
        f"""
        INSERT INTO {table}
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows - 1})
            SELECT {values} FROM n, (SELECT * FROM {table} ORDER BY seq DESC LIMIT 1)
        """
    )
    db.execute("UPDATE store SET number = number + ?", (rows,))


def plan(db: apsw.Connection, statement: str) -> Iterator[str]:
    """What SQLite would do, step by step."""

    def steps(part: Any) -> Iterator[str]:
        for one in part.sub or ():
            yield one.detail
            yield from steps(one)

    yield from steps(apsw.ext.query_info(db, statement, explain_query_plan=True).query_plan)


def is_scan(step: str) -> bool:
    return step.startswith("SCAN") and "VIRTUAL TABLE" not in step and step != "SCAN CONSTANT ROW"


async def test_a_pass_compiles_nothing_anew(store: SqliteStore) -> None:
    misses = []
    for turn in range(4):
        jobs = tuple(job(f"{turn}-{number}") for number in range(100))
        claim = Claim(worker="w", nonce=str(turn), limit=len(jobs))
        _, claims = await store.commit([Insert(jobs), claim])
        assert isinstance(claims, Claims)
        await store.commit([Settle(Ref(one.id, one.fence), CompleteOutcome()) for one in claims.jobs])
        misses.append(store.writer.cache_stats()["misses"])

    assert misses[1] == misses[3]
