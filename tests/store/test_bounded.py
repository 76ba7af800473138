"""Everything in a store has a bounded lifetime: after years without a job, almost nothing is left."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from errandry.core.answer import UpkeepResult
from errandry.core.command import (
    Beat,
    CancelJobs,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Note,
    Ref,
    RetryOutcome,
    Settle,
    Upkeep,
)
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, PutRule
from errandry.core.job import Failure, LogLine, NewJob
from errandry.core.rule import NO_RULE, Rate, Rule
from errandry.core.unique import UniqueKey, UniqueScope
from errandry.store.contract import Store
from errandry.store.postgres.driver import PostgresStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from tests.store.server import server

YEAR = 365 * 86_400.0
PERMANENT_TABLES = {"store", "totals", "migrations", "sqlite_sequence"}
"""Tables with one row, or one per queue, task and counter, or one per version of the schema."""

RowCounts = Callable[[], dict[str, int]]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_upkeep_deletes_everything_in_time(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else server().new_url()
    store = store_at(url, clock)
    await store.open()
    try:
        rows = row_counter(store, url)
        await use_every_table(store, clock)
        before = rows()
        for _ in range(6):
            clock.advance(YEAR)
            await run_upkeep_to_the_end(store)
        after = rows()
    finally:
        await store.close()

    used = {
        "live",
        "history",
        "keys",
        "lanes",
        "edges",
        "closing_flows",
        "events",
        "workers",
        "claims",
        "gates",
    }
    assert used <= {table for table, count in before.items() if count}, before
    assert {table: count for table, count in after.items() if count and table not in PERMANENT_TABLES} == {}


async def use_every_table(store: Store, clock: FakeClock) -> None:
    """Run jobs of every kind, so that every table gets rows."""
    rate = Rule(rate=Rate(5, 60.0, 5), group_limit=2)
    await store.commit([PutRule(GateKind.QUEUE, "limited", rate), Beat(worker="w")])
    plain = [NewJob(id=f"plain-{n}", task="t", payload="{}", deadline=clock.time() + 60) for n in range(9)]
    grouped = [
        NewJob(id=f"grouped-{n}", task="t", payload="{}", queue="limited", group=f"g{n}") for n in range(3)
    ]
    keys = [
        UniqueKey(scope.value, scope, 60.0 if scope is UniqueScope.WINDOW else None) for scope in UniqueScope
    ]
    unique = [NewJob(id=f"unique-{key.key}", task="t", payload="{}", unique=key) for key in keys]
    await store.commit([Insert((*plain, *grouped, *unique))])
    for name in ("done", "canceled"):
        family = tuple(NewJob(id=f"{name}-{n}", task="flow", payload="{}") for n in range(3))
        edges = tuple(Edge(family[0].id, child.id) for child in family[1:])
        await store.commit([Insert(family, edges)])
    for _ in range(4):
        for job in await requests.claim(store, worker="w", limit=6):
            ref = Ref(job.id, job.fence)
            await store.commit([Note(ref, None, (LogLine(0.0, "begun"),))])
            outcome = RetryOutcome(Failure(), 10.0, pause_group=True) if job.group else CompleteOutcome("1")
            await store.commit([Settle(ref, outcome if job.id != "plain-1" else FailOutcome())])
    await store.commit([CancelJobs(ids=("canceled-0",)), PutRule(GateKind.QUEUE, "limited", NO_RULE)])


async def run_upkeep_to_the_end(store: Store) -> None:
    """Run upkeep, and the jobs that become due, until nothing is left to do."""
    for _ in range(200):
        for job in await requests.claim(store, worker="w", limit=6):
            await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome())])
        [result] = await store.commit([Upkeep()])
        assert isinstance(result, UpkeepResult)
        if not (result.more or result.trimmed or result.pruned or result.promoted or result.expired):
            return
    raise AssertionError("upkeep does not end")


def row_counter(store: Store, url: str) -> RowCounts:
    """Return a function that counts the rows of each table."""
    if isinstance(store, SqliteStore):
        return lambda: _sqlite_rows(url.removeprefix("sqlite:///"))
    assert isinstance(store, PostgresStore)
    schema = store.address.schema
    return lambda: _postgres_rows(schema)


def _sqlite_rows(path: str) -> dict[str, int]:
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: len(db.execute(f'SELECT 1 FROM "{name}"').fetchall()) for name in names}
    finally:
        db.close()


def _postgres_rows(schema: str) -> dict[str, int]:
    tables = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')"
    with psycopg.connect(server().url(), autocommit=True) as db:
        names: list[Any] = [name for (name,) in db.execute(tables, (schema,))]
        counts = {name: db.execute(f'SELECT count(*) FROM "{schema}"."{name}"'.encode()) for name in names}
        return {name: int(row[0]) for name, cursor in counts.items() if (row := cursor.fetchone())}
