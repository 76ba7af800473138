"""The cost of a pass does not depend on the number of waiting and finished jobs: plans, and touched pages."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, Ref, Settle
from errandry.core.query import parse
from errandry.core.state import State
from errandry.store.postgres.array import array
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.pipeline import _statement
from errandry.store.postgres.tables import GROUPED_WRITES, _query_params, _state_params
from errandry.store.url import store_at
from tests.store.server import server

PART = {"lanes": "{1}", "priorities": "{0}", "places": "{10}", "below": "{9}"}
PLANS: dict[str, tuple[Any, set[str]]] = {
    "lock_live": (["{a,b}"], {"live_id"}),
    "lock_cached": (["{a,b}"], {"live_id"}),
    "any_finished": (["{a,b}"], {"finished_ids_pkey"}),
    "lock_history": (["{a,b}"], {"finished_ids_pkey", "history_pkey"}),
    "best_jobs_of_lane": ({"suspects": 3, "limit": 10} | PART, {"live_ready"}),
    "lanes_with_lifo_jobs": (PART, {"live_ready"}),
    "due_jobs": ([0.0, 1.0, 10], {"live_due"}),
    "expired_jobs": ([0.0, 1.0, 10], {"live_leased"}),
    "lapsed_jobs": ([0.0, 1.0, 10], {"live_deadline"}),
    "prunable_jobs": ([1.0, 10], {"history_expires_at_idx"}),
    "cancel_requests": (["w"], {"live_canceling"}),
    "due_times": (
        {"run_at": 0.0, "lease_until": 0.0, "deadline": 0.0, "until": 1.0},
        {"live_due", "live_leased", "live_deadline", "schedules_due"},
    ),
    "due_schedules": ([0.0, 1.0, 10], {"schedules_due"}),
    "schedules_after": (["a", 10], {"schedules_pkey"}),
    "lock_schedule": (["{a}"], {"schedules_pkey"}),
    "count_waiting": ({"queue": "q", "bound": 10, "parted": "{1}"} | PART, {"live_ready"}),
    "load_claims": (["w"], {"claims_pkey"}),
    "numbers_if_new": (
        {"ids": "{a,b}", "least": "a", "most": "b", "count": 2},
        {"live_id", "finished_ids_pkey"},
    ),
    "parent_edges": (["{1,2}"], {"edges_child"}),
    "child_edges": (["a"], {"edges_pkey"}),
    "fatal_edge": (["a"], {"edges_pkey"}),
    "open_children": (["a", "{waiting}", 10], {"edges_pkey", "live_pkey"}),
    "update_edges": (["{a}", "{1}", "{completed}", "{null}"], {"edges_pkey"}),
    "steps": (["a"], {"steps_pkey"}),
    "step": (["a", "step", "b"], {"steps_pkey"}),
    "drop_steps": (["{a}"], {"steps_pkey"}),
    "flows_to_cancel": ([10], {"closing_flows_canceling"}),
    "prunable_flows": ([1.0, 10], {"closing_flows_expiry"}),
    "read_events": ([1, 10], {"events_pkey"}),
    "last_event": (None, {"events_pkey"}),
    "renew": ({"seqs": "{1,2}", "lease_until": 1.0, "at": 1.0}, {"live_pkey"}),
    "delete_live": (["{1,2}"], {"live_pkey"}),
    "delete_history": (["{1,2}"], {"finished_ids_pkey", "history_pkey"}),
    "find_history": (["{a,b}"], {"finished_ids_pkey", "history_pkey"}),
    "partition_has_jobs": ([20_000], set()),
}
"""For each statement its parameters, and the indexes it must use."""
IN_ORDER = {"best_jobs_of_lane", "due_jobs", "expired_jobs", "lapsed_jobs", "prunable_jobs"}
"""The statements that must read no more rows than they return, so without a sort."""

COUNT_PAGES = """
SELECT (SELECT sum(heap_blks_read + heap_blks_hit) FROM pg_statio_user_tables WHERE schemaname = %(schema)s)
       + (SELECT sum(idx_blks_read + idx_blks_hit) FROM pg_statio_user_indexes WHERE schemaname = %(schema)s)
"""
INSERT_LANE = """
INSERT INTO errandry.lanes (queue, task, grp, ready, used_at) VALUES ('default', 'task', '', true, 0)
"""
INSERT_LIVE = """
INSERT INTO errandry.live
       (seq, id, task, queue, grp, state, lifo, payload, priority, place, attempts, max_attempts,
        releases, crashes, max_crashes, open_children, children, parents, fence, cancel_requested, created_at,
        updated_at, lane)
SELECT n, 'job-' || n, 'task', 'default', '', 'waiting', false, '{}', 0, n, 0, 5, 0, 0, 3, 0, 0, 0, 0, false,
       0, 0, (SELECT lane FROM errandry.lanes)
  FROM generate_series(%s::bigint, %s::bigint) AS n
"""
INSERT_HISTORY = """
WITH finished AS (INSERT INTO errandry.history
       (seq, id, task, queue, grp, state, lifo, payload, priority, attempts, max_attempts, releases,
        crashes, max_crashes, open_children, children, parents, fence,
        cancel_requested, created_at, updated_at, finished_at, expires_at, day)
SELECT n, 'job-' || n, 'task', 'default', '', CASE n %% 1000 WHEN 0 THEN 'failed' ELSE 'completed' END,
       false, '{}', 0, 1, 5, 0, 0, 3, 0, 0, 0, 0, false, 0, 0, 0, 86400.0 * day, day
  FROM generate_series(%s::bigint, %s::bigint) AS n, LATERAL (SELECT 40000 + n %% 30) AS of (day)
RETURNING id, seq, day)
INSERT INTO errandry.finished_ids SELECT * FROM finished
"""
CREATE_PARTITIONS = "SELECT errandry.create_history_partition(day) FROM generate_series(40000, 40029) AS day"


@asynccontextmanager
async def filled_store(waiting: int, finished: int) -> AsyncIterator[PostgresStore]:
    """A store with `waiting` jobs in one lane and `finished` jobs in history."""
    store = store_at(server().new_url())
    assert isinstance(store, PostgresStore)
    await store.open()
    with psycopg.connect(server().url(), autocommit=True) as db:
        text = store.address.qualify
        db.execute(text(INSERT_LANE))
        db.execute(text(INSERT_LIVE), (1, waiting))
        db.execute(text(CREATE_PARTITIONS))
        db.execute(text(INSERT_HISTORY), (waiting + 1, waiting + finished))
        db.execute(text("SELECT setval('errandry.job_numbers', %s)"), (waiting + finished + 1,))
        for table in ("live", "history", "finished_ids", "lanes"):
            db.execute(text(f"VACUUM ANALYZE errandry.{table}"))
        try:
            yield store
        finally:
            await store.close()
            db.execute(text("DROP SCHEMA errandry. CASCADE").replace(". CASCADE", " CASCADE"))


async def pages_per_pass(store: PostgresStore) -> float:
    """The number of pages of tables and indexes that a pass touches which settles ten jobs and claims ten."""
    held: tuple[Any, ...] = ()
    marks: list[float] = []
    for number in range(36):
        if number % 10 == 6:  # the first passes plan the statements
            marks.append(touched_pages(store))
        commands = [Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held]
        *_, claims = await store.commit([*commands, Claim(worker="w", nonce=str(number), limit=10)])
        assert isinstance(claims, Claims)
        held = claims.jobs
        assert len(held) == 10
    return least_difference([*marks, touched_pages(store)]) / 10


def least_difference(marks: Sequence[float]) -> float:
    """The least difference between neighbors: in between, autovacuum may have read the tables too."""
    return min(after - before for before, after in pairwise(marks))


def touched_pages(store: PostgresStore) -> float:
    assert store._open is not None
    for track in store._open.tracks:
        if track.connection.is_up:
            track.connection.raw.execute("SELECT pg_stat_force_next_flush()")
            track.connection.raw.execute("SELECT 1")
    with psycopg.connect(server().url(), autocommit=True) as db:
        row = db.execute(COUNT_PAGES, {"schema": store.address.schema}).fetchone()
    assert row is not None
    return float(row[0])


async def compare_pages(few: int, many: int) -> None:
    async with filled_store(few, 0) as store:
        base = await pages_per_pass(store)
    async with filled_store(many, 0) as store:
        waiting = await pages_per_pass(store)
    async with filled_store(few, many) as store:
        finished = await pages_per_pass(store)
    assert base > 0
    assert waiting / base <= 1.5, f"{waiting:.0f} pages a pass with {many:,} waiting, {base:.0f} with {few:,}"
    assert finished / base <= 1.5, f"{finished:.0f} pages a pass with {many:,} finished, {base:.0f} without"


@pytest.mark.slow("fills tables")
async def test_the_pages_of_a_pass_do_not_depend_on_the_number_of_jobs() -> None:
    await compare_pages(1_000, 50_000)


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_the_pages_of_a_pass_are_the_same_with_a_million_jobs() -> None:
    await compare_pages(1_000, 1_000_000)


SIZES = [
    pytest.param(1_000, marks=pytest.mark.slow("fills tables")),
    pytest.param(20_000, marks=pytest.mark.slow("fills tables")),
    pytest.param(1_000_000, marks=[pytest.mark.prove, pytest.mark.timeout(900)]),
]


@pytest.mark.parametrize("size", SIZES)
async def test_statements_use_their_indexes(size: int) -> None:
    async with filled_store(size, size) as store:
        statements = store.address.statements()
        with psycopg.connect(server().url(), autocommit=True) as db, db.transaction():
            db.execute(statements["start_pass"], ("1s", "{}"))
            for name, (params, indexes) in PLANS.items():
                plan = explain(db, statements[name], params)
                assert indexes <= set(used_indexes(plan)), f"{name}:\n{plan}"
                assert "Seq Scan" not in plan, f"{name}:\n{plan}"
                assert name not in IN_ORDER or "->  Sort" not in plan, f"{name}:\n{plan}"


@pytest.mark.slow("fills tables")
async def test_rows_are_looked_up_even_if_statistics_say_that_the_table_is_empty() -> None:
    async with filled_store(1_000, 0) as store:
        statements, text = store.address.statements(), store.address.qualify
        with psycopg.connect(server().url(), autocommit=True) as db, db.transaction(force_rollback=True):
            db.execute(text("UPDATE pg_class SET reltuples = 0 WHERE oid = 'errandry.live'::regclass"))
            db.execute(statements["start_pass"], ("1s", "{}"))
            for size in (1, 100, 5_000):
                seqs = array(range(size))
                for name in ("update", "set_lanes"):
                    others = statements[name].count("%s") - 1
                    plan = explain(db, statements[name], [seqs, *[array([None] * size)] * others])
                    assert "Join Filter" not in plan, f"{name}:\n{plan}"
                    assert "live_pkey" in used_indexes(plan), f"{name}:\n{plan}"
                    assert "Tid Scan on live" in plan, f"{name}:\n{plan}"
                for name, (own, shared) in GROUPED_WRITES.items():
                    params = dict.fromkeys((*own, *shared)) | {"seqs": seqs}
                    plan = explain(db, statements[name], params)
                    assert "live_pkey" in used_indexes(plan), f"{name}:\n{plan}"


GROW_TABLES = """
INSERT INTO errandry.lanes (queue, task, grp, ready, used_at)
SELECT 'default', 'task', 'group-' || n, true, 0 FROM generate_series(1, 2000) AS n;
INSERT INTO errandry.gates (kind, name, grp, paused_at)
SELECT 'group', 'default', 'group-' || n, 0 FROM generate_series(1, 2000) AS n;
INSERT INTO errandry.keys (key, job) SELECT 'key-' || n, 'job-' || n FROM generate_series(1, 2000) AS n;
INSERT INTO errandry.edges (parent, n, child, task, seq, policy)
SELECT 'job-1', n, 'job-' || n, 'task', n, 'fail' FROM generate_series(1, 2000) AS n;
"""
STATISTICS = {
    "up to date": "ANALYZE errandry.lanes, errandry.gates, errandry.keys, errandry.edges",
    "from one lane": "",
    "empty": """
UPDATE pg_class SET reltuples = 0
 WHERE relname IN ('live', 'lanes', 'gates', 'keys', 'edges')
   AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'errandry.live'::regclass)
""",
}
"""The statistics of the tables while statements are planned."""
MAY_READ_WHOLE = {
    "start_pass": "bind_inbox, live, gates, lanes: is there any row",
    "start_read": "gates: is there any row",
    "numbers_if_new": "gates: is there any row",
    "assert_guess": "gates: is there any row",
    "open_lanes": "lanes: a row for each queue and task, while there are no groups",
    "reset_idle_virtual_times": "virtual_times: a row for each queue",
    "drop_unused_virtual_times": "virtual_times: a row for each queue",
    "keep_last_tasks": "history: the first task and state of each day",
    "group_size": "live: only those without a lane",
    "jobs_held_by": "live: only what workers hold, when one of them has died",
    "held_counts": "live: only what workers hold",
    "ids_matching_live": "live: only ids, only for an operator",
    "ids_matching_history": "finished_ids: as ids_matching_live",
    "bind_inbox_deltas": "bind_inbox: all that is there",
    "idle_lanes": "lanes: by upkeep",
    "drop_old_workers": "workers: a row for each worker",
    "drop_old_claims": "claims: a row for each worker",
    "workers": "workers: a row for each worker",
    "group_sizes": "lanes: only for an operator",
    "ready_since": "lanes: only for an operator",
    "totals": "bind_inbox, totals: a row for each queue, task and counter",
}
"""Statements that may scan a whole table or index: which one, and why the scan is short."""
UNPLANNED = {
    "begin",
    "begin_read",
    "commit",
    "rollback",
    "detach_partition",
    "finish_detach",
    "drop_partition",
}
CUSTOM_PLANS = {"matching_jobs", "seq_floor", "detached_has_jobs"}


@pytest.mark.slow("fills tables")
@pytest.mark.parametrize("statistics", STATISTICS)
async def test_rows_are_looked_up_with_any_statistics(statistics: str) -> None:
    async with filled_store(2_000, 2_000) as store:
        statements, text = store.address.statements(), store.address.qualify
        with psycopg.connect(server().url(), autocommit=True) as db, db.transaction(force_rollback=True):
            db.execute(text(GROW_TABLES + STATISTICS[statistics]).encode())
            db.execute(statements["start_pass"], ("1s", "{}"))
            for name in statements.keys() - UNPLANNED - CUSTOM_PLANS:
                plan = generic_plan(db, name, statements[name])
                allowed = MAY_READ_WHOLE.get(name, "").partition(":")[0].split(", ")
                assert tables_read_whole(plan) <= {*allowed, "store"}, f"{name}:\n{plan}"
                assert "Join Filter" not in plan, f"{name}:\n{plan}"


def generic_plan(db: psycopg.Connection[Any], name: str, statement: str) -> str:
    """The generic plan of a statement."""
    prepared = _statement(name, statement)
    given = f"({', '.join(['NULL'] * len(prepared.names))})" if prepared.names else ""
    db.execute(b"PREPARE " + prepared.name + b" AS " + prepared.text)
    explain = b"EXPLAIN EXECUTE " + prepared.name + given.encode()
    return "\n".join(line for (line,) in db.execute(explain))


def tables_read_whole(plan: str) -> set[str]:
    """The tables that a plan reads as a whole: without an index condition and without a limit."""
    whole: set[str] = set()
    lines = [*plan.splitlines(), ""]
    for number, (line, below) in enumerate(pairwise(lines)):
        scan = re.search(r"(?:Seq Scan|Index(?: Only)? Scan.* using \w+|Bitmap Index Scan) on (\w+)", line)
        above = " ".join(lines[max(0, number - 2) : number])
        if (
            scan
            and "Index Cond" not in below
            and not re.search(r"Limit  \S+ rows=\S+ \S+( *->  LockRows.*)?$", above)
        ):
            whole.add(table_of(scan[1]))
    return whole


def table_of(name: str) -> str:
    """The table with this name, or the one to which this partition or index belongs."""
    two_words = re.match("finished_ids|bind_inbox|pending_edges|closing_flows|virtual_times", name)
    return two_words[0] if two_words else name.partition("_")[0]


LISTING_INDEXES = {
    "": {"history_pkey", "live_pkey"},
    "state:completed": {"history_pkey"},
    "state:failed,canceled": {"history_seq_idx"},
    "state:waiting": {"live_pkey"},
    "id:job-7": {"live_id", "finished_ids_pkey", "live_pkey", "history_pkey"},
}
"""For each query, the indexes that its listing must use."""
MAY_SORT = ("id:job-7", "state:failed,canceled")
"""The queries with few results here, which may be sorted."""


@pytest.mark.parametrize("size", SIZES[1:])
async def test_a_listing_reads_only_the_jobs_it_returns(size: int) -> None:
    async with filled_store(size, size) as store:
        for query, indexes in LISTING_INDEXES.items():
            parsed = parse(query)
            states = set(State) & set(dict(parsed.within).get("state", State))
            params = (
                _query_params(parsed, 0.0)
                | _state_params(states)
                | {"above": 0, "below": 2**63 - 1, "limit": 50}
            )
            with psycopg.connect(server().url()) as db:
                db.execute(store.address.statements()["start_read"])
                plan = explain(db, store.address.statements()["matching_jobs"], params)

            assert indexes <= set(used_indexes(plan)), f"{query}:\n{plan}"
            assert "->  Sort" not in plan or query in MAY_SORT, f"{query}:\n{plan}"


def explain(db: psycopg.Connection[Any], statement: str, params: Any) -> str:
    return "\n".join(line for (line,) in db.execute(f"EXPLAIN {statement}", params, prepare=False))


def used_indexes(plan: str) -> list[str]:
    """The indexes of a plan. The index of a partition counts as the partitioned one."""
    names = [
        line.split(" on ")[-1].split()[0] if "Bitmap" in line else line.split("using ")[-1].split()[0]
        for line in plan.splitlines()
        if "using " in line or "Bitmap Index Scan on " in line
    ]
    return [re.sub(r"^history_(\d{8}|long_term)_", "history_", name) for name in names]


def test_array_literals_keep_their_values() -> None:
    rows: list[list[Any]] = [
        ["plain", 'with "quotes"', "back\\slash", "", "NULL", "{a,b}", "comma, and\nline"],
        ["a", None, "None", 'a "quote"', "a \\"],
        [None, None],
        [1, None, -3],
        [0.1, float("inf"), None],
        [True, False],
        [],
    ]
    kinds = ["text", "text", "text", "bigint", "float8", "boolean", "text"]
    with psycopg.connect(server().url(), autocommit=True) as db:
        for values, kind in zip(rows, kinds, strict=True):
            [(result,)] = db.execute(f"SELECT %s::{kind}[]", (array(values),)).fetchall()
            assert result == values
    assert "\0" in array(
        ["no text of\0PostgreSQL", "plain"]
    )  # the server refuses it, instead of reading two texts
