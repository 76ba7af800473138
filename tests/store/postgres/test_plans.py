"""What a pass costs does not depend on how much waits or is kept: plans, and the pages that are touched."""

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
from errandry.store.postgres.tables import ALIKE, _params, _parts
from errandry.store.url import store_at
from tests.store.server import server

PART = {"lanes": "{1}", "priorities": "{0}", "places": "{10}", "below": "{9}"}
PLANS: dict[str, tuple[Any, set[str]]] = {
    "lock_live": (["{a,b}"], {"live_id"}),
    "lock_known": (["{a,b}"], {"live_id"}),
    "any_ended": (["{a,b}"], {"ended_pkey"}),
    "lock_history": (["{a,b}"], {"ended_pkey", "history_pkey"}),
    "line": ({"suspects": True, "limit": 10} | PART, {"live_ready"}),
    "fronts": (PART, {"live_ready"}),
    "due": ([0.0, 1.0, 10], {"live_due"}),
    "expired": ([0.0, 1.0, 10], {"live_leased"}),
    "lapsed": ([0.0, 1.0, 10], {"live_deadline"}),
    "outlived": ([1.0, 10], {"history_expires_at_idx"}),
    "cancels": (["w"], {"live_canceling"}),
    "marks": (
        {"run_at": 0.0, "lease_until": 0.0, "deadline": 0.0, "until": 1.0},
        {"live_due", "live_leased", "live_deadline", "schedules_due"},
    ),
    "ticking": ([0.0, 1.0, 10], {"schedules_due"}),
    "timetable": (["a", 10], {"schedules_pkey"}),
    "lock_schedule": (["{a}"], {"schedules_pkey"}),
    "backlog": ({"queue": "q", "bound": 10, "parted": "{1}"} | PART, {"live_ready"}),
    "recall": (["w"], {"claims_pkey"}),
    "numbers_for_new": (
        {"ids": "{a,b}", "least": "a", "most": "b", "count": 2},
        {"live_id", "ended_pkey"},
    ),
    "over": (["{1,2}"], {"edges_child"}),
    "under": (["a"], {"edges_pkey"}),
    "fatal": (["a"], {"edges_pkey"}),
    "unended": (["a", "{waiting}", 10], {"edges_pkey", "live_pkey"}),
    "mark": (["{a}", "{1}", "{completed}", "{null}"], {"edges_pkey"}),
    "steps": (["a"], {"steps_pkey"}),
    "step": (["a", "step", "b"], {"steps_pkey"}),
    "drop_steps": (["{a}"], {"steps_pkey"}),
    "canceling": ([10], {"closing_canceling"}),
    "outlived_flows": ([1.0, 10], {"closing_expiry"}),
    "events": ([1, 10], {"events_pkey"}),
    "last_event": (None, {"events_pkey"}),
    "renew": ({"seqs": "{1,2}", "lease_until": 1.0, "at": 1.0}, {"live_pkey"}),
    "delete_live": (["{1,2}"], {"live_pkey"}),
    "delete_history": (["{1,2}"], {"ended_pkey", "history_pkey"}),
    "find_history": (["{a,b}"], {"ended_pkey", "history_pkey"}),
    "day_has_jobs": ([20_000], set()),
}
"""For each statement its parameters, and the indexes it must use."""
IN_ORDER = {"line", "due", "expired", "lapsed", "outlived"}
"""Those that must read no more than they give."""

PAGES = """
SELECT (SELECT sum(heap_blks_read + heap_blks_hit) FROM pg_statio_user_tables WHERE schemaname = %(schema)s)
       + (SELECT sum(idx_blks_read + idx_blks_hit) FROM pg_statio_user_indexes WHERE schemaname = %(schema)s)
"""
LANE = """
INSERT INTO errandry.lanes (queue, task, grp, ready, used_at) VALUES ('default', 'task', '', true, 0)
"""
LIVE = """
INSERT INTO errandry.live
       (seq, id, task, queue, grp, state, ordering, payload, priority, place, attempts, max_attempts,
        releases, crashes, max_crashes, open_children, children, parents, fence, cancel_requested, created_at,
        updated_at, lane)
SELECT n, 'job-' || n, 'task', 'default', '', 'waiting', 'fifo', '{}', 0, n, 0, 5, 0, 0, 3, 0, 0, 0, 0, false,
       0, 0, (SELECT lane FROM errandry.lanes)
  FROM generate_series(%s::bigint, %s::bigint) AS n
"""
HISTORY = """
WITH ended AS (INSERT INTO errandry.history
       (seq, id, task, queue, grp, state, ordering, payload, priority, attempts, max_attempts, releases,
        crashes, max_crashes, open_children, children, parents, fence,
        cancel_requested, created_at, updated_at, finished_at, expires_at, day)
SELECT n, 'job-' || n, 'task', 'default', '', CASE n %% 1000 WHEN 0 THEN 'failed' ELSE 'completed' END,
       'fifo', '{}', 0, 1, 5, 0, 0, 3, 0, 0, 0, 0, false, 0, 0, 0, 86400.0 * day, day
  FROM generate_series(%s::bigint, %s::bigint) AS n, LATERAL (SELECT 40000 + n %% 30) AS of (day)
RETURNING id, seq, day)
INSERT INTO errandry.ended SELECT * FROM ended
"""
DAYS = "SELECT errandry.make_day(day) FROM generate_series(40000, 40029) AS day"


@asynccontextmanager
async def filled(waiting: int, finished: int) -> AsyncIterator[PostgresStore]:
    """A store with so many jobs in one lane, and so many in history."""
    store = store_at(server().fresh())
    assert isinstance(store, PostgresStore)
    await store.open()
    with psycopg.connect(server().url(), autocommit=True) as db:
        text = store.address.text
        db.execute(text(LANE))
        db.execute(text(LIVE), (1, waiting))
        db.execute(text(DAYS))
        db.execute(text(HISTORY), (waiting + 1, waiting + finished))
        db.execute(text("SELECT setval('errandry.number', %s)"), (waiting + finished + 1,))
        for table in ("live", "history", "ended", "lanes"):
            db.execute(text(f"VACUUM ANALYZE errandry.{table}"))
        try:
            yield store
        finally:
            await store.close()
            db.execute(text("DROP SCHEMA errandry. CASCADE").replace(". CASCADE", " CASCADE"))


async def pages_per_pass(store: PostgresStore) -> float:
    """How many pages of tables and indexes a pass touches that settles ten jobs and claims ten."""
    held: tuple[Any, ...] = ()
    marks: list[float] = []
    for number in range(36):
        if number % 10 == 6:  # statements have their plans by now
            marks.append(pages(store))
        commands = [Settle(Ref(job.id, job.fence), CompleteOutcome("1")) for job in held]
        *_, claims = await store.commit([*commands, Claim(worker="w", nonce=str(number), limit=10)])
        assert isinstance(claims, Claims)
        held = claims.jobs
        assert len(held) == 10
    return least([*marks, pages(store)]) / 10


def least(marks: Sequence[float]) -> float:
    """From one mark to the next, at least: meanwhile PostgreSQL may have read the tables for itself."""
    return min(after - before for before, after in pairwise(marks))


def pages(store: PostgresStore) -> float:
    assert store._open is not None
    for track in store._open.tracks:
        if track.link.is_up:
            track.link.connection.execute("SELECT pg_stat_force_next_flush()")
            track.link.connection.execute("SELECT 1")
    with psycopg.connect(server().url(), autocommit=True) as db:
        found = db.execute(PAGES, {"schema": store.address.schema}).fetchone()
    assert found is not None
    return float(found[0])


async def compare(few: int, many: int) -> None:
    async with filled(few, 0) as store:
        base = await pages_per_pass(store)
    async with filled(many, 0) as store:
        waiting = await pages_per_pass(store)
    async with filled(few, many) as store:
        finished = await pages_per_pass(store)
    assert base > 0
    assert waiting / base <= 1.5, f"{waiting:.0f} pages a pass with {many:,} waiting, {base:.0f} with {few:,}"
    assert finished / base <= 1.5, f"{finished:.0f} pages a pass with {many:,} finished, {base:.0f} without"


@pytest.mark.slow("fills tables")
async def test_a_pass_touches_as_many_pages_however_much_waits_or_is_kept() -> None:
    await compare(1_000, 50_000)


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_a_pass_touches_as_many_pages_with_a_million_jobs() -> None:
    await compare(1_000, 1_000_000)


SIZES = [
    pytest.param(1_000, marks=pytest.mark.slow("fills tables")),
    pytest.param(20_000, marks=pytest.mark.slow("fills tables")),
    pytest.param(1_000_000, marks=[pytest.mark.prove, pytest.mark.timeout(900)]),
]


@pytest.mark.parametrize("size", SIZES)
async def test_statements_use_their_indexes(size: int) -> None:
    async with filled(size, size) as store:
        statements = store.address.statements()
        with psycopg.connect(server().url(), autocommit=True) as db, db.transaction():
            db.execute(statements["head"], ("1s", "{}"))
            for name, (params, indexes) in PLANS.items():
                plan = explained(db, statements[name], params)
                assert indexes <= set(used(plan)), f"{name}:\n{plan}"
                assert "Seq Scan" not in plan, f"{name}:\n{plan}"
                assert name not in IN_ORDER or "->  Sort" not in plan, f"{name}:\n{plan}"


@pytest.mark.slow("fills tables")
async def test_rows_are_looked_up_even_if_the_table_was_last_seen_empty() -> None:
    async with filled(1_000, 0) as store:
        statements, text = store.address.statements(), store.address.text
        with psycopg.connect(server().url(), autocommit=True) as db, db.transaction(force_rollback=True):
            db.execute(text("UPDATE pg_class SET reltuples = 0 WHERE oid = 'errandry.live'::regclass"))
            db.execute(statements["head"], ("1s", "{}"))
            for size in (1, 100, 5_000):
                seqs = array(range(size))
                for name in ("update", "line_up"):
                    others = statements[name].count("%s") - 1
                    plan = explained(db, statements[name], [seqs, *[array([None] * size)] * others])
                    assert "Join Filter" not in plan, f"{name}:\n{plan}"
                    assert "live_pkey" in used(plan), f"{name}:\n{plan}"
                    assert "Tid Scan on live" in plan, f"{name}:\n{plan}"
                for name, (own, shared) in ALIKE.items():
                    params = dict.fromkeys((*own, *shared)) | {"seqs": seqs}
                    plan = explained(db, statements[name], params)
                    assert "live_pkey" in used(plan), f"{name}:\n{plan}"


GROWN = """
INSERT INTO errandry.lanes (queue, task, grp, ready, used_at)
SELECT 'default', 'task', 'group-' || n, true, 0 FROM generate_series(1, 2000) AS n;
INSERT INTO errandry.gates (kind, name, grp, paused_at)
SELECT 'group', 'default', 'group-' || n, 0 FROM generate_series(1, 2000) AS n;
INSERT INTO errandry.keys (key, job) SELECT 'key-' || n, 'job-' || n FROM generate_series(1, 2000) AS n;
INSERT INTO errandry.edges (parent, n, child, task, seq, policy)
SELECT 'job-1', n, 'job-' || n, 'task', n, 'fail' FROM generate_series(1, 2000) AS n;
"""
SEEN = {
    "as they are": "ANALYZE errandry.lanes, errandry.gates, errandry.keys, errandry.edges",
    "when there was one lane": "",
    "empty": """
UPDATE pg_class SET reltuples = 0
 WHERE relname IN ('live', 'lanes', 'gates', 'keys', 'edges')
   AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'errandry.live'::regclass)
""",
}
"""How the server may have seen the tables last, while plans are made."""
WHOLE = {
    "head": "bound, live, gates, lanes: is there one at all",
    "head_read": "gates: is there one at all",
    "numbers_for_new": "gates: is there one at all",
    "unseen": "gates: is there one at all",
    "open_lanes": "lanes: a row for each queue and task, while there are no groups",
    "end_rounds": "rounds: a row for each queue",
    "drop_rounds": "rounds: a row for each queue",
    "shelves": "history: the first task and state of each day",
    "group_size": "live: only those without a lane",
    "held_by": "live: only what workers hold, when one of them has died",
    "holding": "live: only what workers hold",
    "ids_live": "live: only ids, for a person who waits",
    "ids_history": "ended: as ids_live",
    "unnumbered": "bound: all that is there",
    "idle_lanes": "lanes: by upkeep",
    "drop_workers": "workers: a row for each worker",
    "drop_claims": "claims: a row for each worker",
    "workers": "workers: a row for each worker",
    "crowds": "lanes: for a person who waits",
    "ready_since": "lanes: for a person who waits",
    "totals": "bound, totals: a row for each queue, task and counter",
}
"""Statements that read a table or an index from end to end: which one, and why that is little."""
UNPLANNED = {"begin", "begin_read", "commit", "rollback", "detach_day", "finish_detaching", "drop_day"}
PLANNED_ANEW = {"matching", "floor", "left_day_has_jobs"}


@pytest.mark.slow("fills tables")
@pytest.mark.parametrize("seen", SEEN)
async def test_rows_are_looked_up_however_the_server_has_seen_the_tables_last(seen: str) -> None:
    async with filled(2_000, 2_000) as store:
        statements, text = store.address.statements(), store.address.text
        with psycopg.connect(server().url(), autocommit=True) as db, db.transaction(force_rollback=True):
            db.execute(text(GROWN + SEEN[seen]).encode())
            db.execute(statements["head"], ("1s", "{}"))
            for name in statements.keys() - UNPLANNED - PLANNED_ANEW:
                plan = generic(db, name, statements[name])
                known = WHOLE.get(name, "").partition(":")[0].split(", ")
                assert read_whole(plan) <= {*known, "store"}, f"{name}:\n{plan}"
                assert "Join Filter" not in plan, f"{name}:\n{plan}"


def generic(db: psycopg.Connection[Any], name: str, statement: str) -> str:
    """The plan a statement has whatever it is given."""
    made = _statement(name, statement)
    given = f"({', '.join(['NULL'] * len(made.names))})" if made.names else ""
    db.execute(b"PREPARE " + made.name + b" AS " + made.text)
    explain = b"EXPLAIN EXECUTE " + made.name + given.encode()
    return "\n".join(line for (line,) in db.execute(explain))


def read_whole(plan: str) -> set[str]:
    """The tables that a plan neither looks rows up in nor reads up to a limit."""
    whole: set[str] = set()
    lines = [*plan.splitlines(), ""]
    for number, (line, below) in enumerate(pairwise(lines)):
        found = re.search(r"(?:Seq Scan|Index(?: Only)? Scan.* using \w+|Bitmap Index Scan) on (\w+)", line)
        above = " ".join(lines[max(0, number - 2) : number])
        if (
            found
            and "Index Cond" not in below
            and not re.search(r"Limit  \S+ rows=\S+ \S+( *->  LockRows.*)?$", above)
        ):
            whole.add(found[1].partition("_")[0])
    return whole


LISTS = {
    "": {"history_pkey", "live_pkey"},
    "state:completed": {"history_pkey"},
    "state:failed,canceled": {"history_seq_idx"},
    "state:waiting": {"live_pkey"},
    "id:job-7": {"live_id", "ended_pkey", "live_pkey", "history_pkey"},
}
"""For each query the indexes that its listing must use."""
FEW = ("id:job-7", "state:failed,canceled")
"""Those that find so little here that it may be sorted."""


@pytest.mark.parametrize("size", SIZES[1:])
async def test_listing_reads_only_what_it_shows(size: int) -> None:
    async with filled(size, size) as store:
        for query, indexes in LISTS.items():
            parsed = parse(query)
            states = set(State) & set(dict(parsed.within).get("state", State))
            params = _params(parsed, 0.0) | _parts(states) | {"above": 0, "below": 2**63 - 1, "limit": 50}
            with psycopg.connect(server().url()) as db:
                db.execute(store.address.statements()["head_read"])
                plan = explained(db, store.address.statements()["matching"], params)

            assert indexes <= set(used(plan)), f"{query}:\n{plan}"
            assert "->  Sort" not in plan or query in FEW, f"{query}:\n{plan}"


def explained(db: psycopg.Connection[Any], statement: str, params: Any) -> str:
    return "\n".join(line for (line,) in db.execute(f"EXPLAIN {statement}", params, prepare=False))


def used(plan: str) -> list[str]:
    """The indexes of a plan; that of a partition counts as the one it is part of."""
    names = [
        line.split(" on ")[-1].split()[0] if "Bitmap" in line else line.split("using ")[-1].split()[0]
        for line in plan.splitlines()
        if "using " in line or "Bitmap Index Scan on " in line
    ]
    return [re.sub(r"^history_(\d{8}|later)_", "history_", name) for name in names]


def test_arrays_hold_what_they_are_given() -> None:
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
            [(found,)] = db.execute(f"SELECT %s::{kind}[]", (array(values),)).fetchall()
            assert found == values
    assert "\0" in array(["no text of\0PostgreSQL", "plain"])  # which is refused, not taken for two
