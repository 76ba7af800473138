"""The cost of SQLite statements: the plan of each, and the pages that a pass reads with few and many jobs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import pytest

from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, Settle
from errandry.core.gate import GateKind, Pause
from errandry.core.query import parse
from errandry.core.state import State
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.gates import SQL
from errandry.store.sqlite.tables import SqliteTables
from errandry.testing.conformance import requests
from errandry.testing.given import Given
from tests.store.sqlite.stores import new_job, open_store

SCANS = {
    "flows_to_cancel": "closing_flows USING INDEX closing_flows_canceling: few rows",
    "load_state": "store: one row; gates: the first; lanes USING INDEX lanes_grouped: the first",
    "queue_task_virtual_times": "pair: one row each; lanes USING INDEX lanes_ready: stops at the first",
    "queue_task_pairs": "pair: one row each; lanes USING INDEX lanes_ready: stops at the first",
    "keep_last_tasks": "pair: one row each; history USING INDEX history_kept_by_number: stops at the first",
    "drop_unused_virtual_times": "virtual_times: a row for each queue with groups",
    "reset_idle_virtual_times": "virtual_times: a row for each queue with groups",
    "lane_priorities": "level: a row for each lane and priority",
    "drop_empty_gates": "gates: a row for each that is paused, has a rule or a rate in use",
    "save_state": "store: one row",
    "save_folded": "store: one row",
    "unfolded_deltas": "store: one row",
    "event_log_span": "store: one row",
    "open_lanes": "lanes USING INDEX lanes_ready: only lanes that may have waiting jobs",
    "ready_since": "lanes USING INDEX lanes_ready: only lanes that may have waiting jobs",
    "ids_matching_live": "live USING COVERING INDEX sqlite_autoindex_live_1: only ids, in a search",
    "ids_matching_history": "history USING COVERING INDEX sqlite_autoindex_history_1: as ids_matching_live",
    "jobs_held_by": "live USING INDEX live_leased: only jobs that workers hold, when one of them has died",
    "held_counts": "live USING COVERING INDEX live_leased: only jobs that workers hold",
    "group_sizes": "lanes USING INDEX sqlite_autoindex_lanes_1: a row for each lane; (subquery-1): limited",
    "old_events": "events: in the order of the table, and it stops at its limit",
    "workers": "workers: a row for each worker",
    "drop_old_workers": "workers: a row for each worker",
    "drop_old_claims": "claims: a row for each worker",
    "totals": "totals: a row for each queue, task and counter",
}
"""Statements that scan a table: which table, and why that is cheap."""

SORTS = {
    "open_lanes": "ORDER BY: a row for each lane, not for each job",
    "held_counts": "GROUP BY: a row for each job that workers hold",
    "totals": "GROUP BY: a row for each queue, task and counter",
    "roll_stats": "GROUP BY: the figures of an hour, or of a day",
    "steps": "ORDER BY: the steps of one job, a thousand at most",
}
"""Statements that sort: for which clause, and why that is cheap."""

CONTROL = {"begin", "commit", "rollback"}
SMALL = 1_000
"""Number of jobs in a small store."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "jobs.db", durability="process") as store:
        yield store


class TestPlans:
    @pytest.mark.parametrize("name", sorted(SQL.keys() - CONTROL))
    async def test_no_statement_reads_or_sorts_more_than_it_must(self, store: SqliteStore, name: str) -> None:
        steps = list(plan(store.writer, SQL[name]))

        scans = {step.removeprefix("SCAN ") for step in steps if is_scan(step)}
        sorts = {step.partition(" FOR ")[2] for step in steps if "TEMP B-TREE" in step}

        assert scans == {reason.partition(":")[0] for reason in SCANS.get(name, "").split("; ") if reason}
        assert sorts == {reason.partition(":")[0] for reason in [SORTS.get(name)] if reason}

    def test_every_listed_exception_is_a_statement(self) -> None:
        assert SCANS.keys() | SORTS.keys() <= SQL.keys()

    @pytest.mark.parametrize(
        ("name", "row", "seq"),
        [("matching_jobs", "rowid>? AND rowid<?", "seq>? AND seq<?"), ("seq_floor", "rowid<?", "seq<?")],
    )
    async def test_a_search_merges_the_parts_of_the_view_in_stored_order(
        self, store: SqliteStore, name: str, row: str, seq: str
    ) -> None:
        steps = list(plan(store.writer, SQL[name]))

        assert [step.replace("COVERING ", "") for step in steps if step.startswith(("MERGE", "SEARCH"))] == [
            "MERGE (UNION ALL)",
            "MERGE (UNION ALL)",
            f"SEARCH live USING INTEGER PRIMARY KEY ({row})",
            f"SEARCH history USING INTEGER PRIMARY KEY ({row})",
            f"SEARCH history USING INDEX history_unsuccessful ({seq})",
        ]

    async def test_the_best_jobs_come_from_the_index_in_order(self, store: SqliteStore) -> None:
        assert list(plan(store.writer, SQL["best_jobs"])) == ["SEARCH live USING INDEX live_ready (lane=?)"]

    async def test_a_scan_would_be_noticed(self, store: SqliteStore) -> None:
        steps = list(plan(store.writer, "SELECT * FROM live WHERE worker = 'w' ORDER BY payload"))

        assert [step for step in steps if is_scan(step)] == ["SCAN live"]
        assert [step for step in steps if "TEMP B-TREE" in step] == ["USE TEMP B-TREE FOR ORDER BY"]


class TestSearch:
    """A search among 20,000 completed jobs, few failed and few waiting ones."""

    @pytest.mark.slow("writes 20,000 rows")
    async def test_parts_that_are_not_wanted_are_not_read(self, store: SqliteStore) -> None:
        given = Given(store)
        await given.completed()
        copy_newest_row(store.writer, "history", 20_000)
        await given.failed()
        await given.canceled()
        await given.waiting()
        await given.running()
        everything = search_pages(store.writer, "state:completed task:none")

        for text in (
            "state:waiting",
            "state:running",
            "state:failed",
            "state:failed,canceled,waiting task:none",
        ):
            assert search_pages(store.writer, text) < 40, text
        for text in ("", "state:completed", "task~task"):
            assert search_pages(store.writer, text) < 150, text
        for text in ("", "state:completed"):
            assert search_pages(store.writer, text, below=100) < 150, text
        assert everything > 500


class TestWork:
    """The pages that SQLite reads for a pass grow with the file only by one level of a tree."""

    @pytest.mark.slow("writes 100,000 rows twice")
    @pytest.mark.parametrize("limit", [1, 20])
    async def test_a_claim_costs_the_same_with_many_jobs(self, tmp_path: Path, limit: int) -> None:
        few = await pages_per_job(tmp_path / "few.db", limit, waiting=SMALL)
        many = await pages_per_job(tmp_path / "many.db", limit, waiting=100 * SMALL)
        finished = await pages_per_job(tmp_path / "finished.db", limit, waiting=SMALL, finished=100 * SMALL)

        check_growth(few, many, finished)

    @pytest.mark.prove
    @pytest.mark.parametrize("limit", [1, 20])
    async def test_a_claim_costs_the_same_with_a_million_jobs(self, tmp_path: Path, limit: int) -> None:
        few = await pages_per_job(tmp_path / "few.db", limit, waiting=SMALL)
        many = await pages_per_job(tmp_path / "many.db", limit, waiting=1_000 * SMALL)
        finished = await pages_per_job(tmp_path / "finished.db", limit, waiting=SMALL, finished=1_000 * SMALL)

        check_growth(few, many, finished)

    @pytest.mark.slow("writes 100,000 rows")
    async def test_jobs_that_may_not_be_claimed_do_not_slow_a_claim(self, tmp_path: Path) -> None:
        few = await pages_per_job(tmp_path / "few.db", 1, waiting=SMALL)
        async with open_store(tmp_path / "others.db", durability="process") as store:
            await fill(store, waiting=SMALL)
            await requests.send(store, Pause(GateKind.QUEUE, "paused"))
            await requests.insert(store, new_job("paused", queue="paused"))
            copy_newest_row(store.writer, "live", 50 * SMALL)
            await requests.insert(store, new_job("of others", task="another"))
            copy_newest_row(store.writer, "live", 50 * SMALL)
            others = await measure_passes(store, 1)

        check_growth(few, others)

    async def test_empty_lanes_do_not_slow_a_claim(self, tmp_path: Path) -> None:
        few = await pages_per_job(tmp_path / "few.db", 1, waiting=SMALL)
        async with open_store(tmp_path / "lanes.db", durability="process") as store:
            await requests.insert(
                store, *(new_job(f"urgent-{n}", group=f"group-{n}", priority=-1) for n in range(200))
            )
            await fill(store, waiting=SMALL)
            assert len(await requests.claim(store, limit=200)) == 200
            many = await measure_passes(store, 1)

        check_growth(few, many)


async def pages_per_job(path: Path, limit: int, waiting: int, finished: int = 0) -> dict[str, float]:
    """Pages read per job, by kind of pass, in a store with this number of jobs."""
    async with open_store(path, durability="process") as store:
        await fill(store, waiting, finished)
        return await measure_passes(store, limit)


async def fill(store: SqliteStore, waiting: int, finished: int = 0) -> None:
    given = Given(store)
    if finished:
        await given.completed()
        copy_newest_row(store.writer, "history", finished)
    await given.waiting(task="task")
    copy_newest_row(store.writer, "live", waiting)


async def measure_passes(store: SqliteStore, limit: int) -> dict[str, float]:
    pages: dict[str, float] = {"claim": 0, "settle": 0, "insert": 0}
    rounds = 20
    for n in range(-3, rounds):  # the first three are not counted: they compile statements
        start = pages_read(store.writer)
        jobs = await requests.claim(store, limit=limit, tasks=("task",))
        claimed = pages_read(store.writer)
        await store.commit([Settle(Ref(held.id, held.fence), CompleteOutcome('"done"')) for held in jobs])
        settled = pages_read(store.writer)
        await requests.insert(store, *(new_job(f"new-{n}-{k}") for k in range(limit)))
        assert len(jobs) == limit
        if n >= 0:
            pages["claim"] += (claimed - start) / rounds / limit
            pages["settle"] += (settled - claimed) / rounds / limit
            pages["insert"] += (pages_read(store.writer) - settled) / rounds / limit
    return pages


def check_growth(few: dict[str, float], *others: dict[str, float]) -> None:
    """A claim may read 1.5 times the pages; a write, which descends every index, twice."""
    factors = {"claim": 1.5, "settle": 2.0, "insert": 2.0}
    for other in others:
        for kind, pages in other.items():
            assert pages <= few[kind] * factors[kind], (kind, few, others)


def pages_read(db: apsw.Connection) -> int:
    """The number of pages that this connection has read, from its cache or from the file."""
    hits, misses = (
        db.status(op)[0] for op in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    )
    return hits + misses


def search_pages(db: apsw.Connection, text: str, below: int | None = None) -> int:
    tables = SqliteTables(db)
    before = pages_read(db)
    tables.matching_jobs(parse(text), State, below, 0.0, 50)
    return pages_read(db) - before


def copy_newest_row(db: apsw.Connection, table: str, rows: int) -> None:
    """Insert copies of the newest row of a table until there are `rows`, each with its own id and place."""
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
    """The steps of the query plan."""

    def steps(part: Any) -> Iterator[str]:
        for step in part.sub or ():
            yield step.detail
            yield from steps(step)

    yield from steps(apsw.ext.query_info(db, statement, explain_query_plan=True).query_plan)


def is_scan(step: str) -> bool:
    return step.startswith("SCAN") and "VIRTUAL TABLE" not in step and step != "SCAN CONSTANT ROW"


async def test_a_pass_compiles_no_statement_again(store: SqliteStore) -> None:
    misses = []
    for turn in range(4):
        jobs = tuple(new_job(f"{turn}-{number}") for number in range(100))
        claim = Claim(worker="w", nonce=str(turn), limit=len(jobs))
        _, claims = await store.commit([Insert(jobs), claim])
        assert isinstance(claims, Claims)
        await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome()) for job in claims.jobs])
        misses.append(store.writer.cache_stats()["misses"])

    assert misses[1] == misses[3]
