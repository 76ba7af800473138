"""Health checks of a PostgreSQL store: its server, clock, connections, transactions and tables."""

import time
from collections.abc import Iterator
from typing import Any

import psycopg

from errandry.core.duration import rough_duration
from errandry.core.size import format_size
from errandry.store.health import Finding, Grade
from errandry.store.postgres.address import Address
from errandry.store.tables import sql

NEWEST_TESTED_SERVER = 18
"""The newest major version of the server that the tests run against."""
CLOCK_SKEW_MAX = 1.0
"""Seconds by which the clocks of host and server may differ."""
LONG_TRANSACTION = 300.0
"""Seconds after which an open transaction keeps too many dead rows from being removed."""
DEAD_ROWS_MAX = 50_000
"""Number of dead rows of unfinished jobs above which the check reports them."""
CONNECTIONS_FULL = 0.9
"""Share of the connections of the server above which the check reports that few are left."""

SURVIVES_POWER_CUT = "acknowledged writes survive a power cut"
DURABILITY_BY_COMMIT = {
    "off": "acknowledged writes survive a crash of the program, but a crash of the server may lose the last "
    "passes, each as a whole: their jobs can be lost, or run again",
    "local": SURVIVES_POWER_CUT,
    "on": SURVIVES_POWER_CUT,
    "remote_write": SURVIVES_POWER_CUT,
    "remote_apply": SURVIVES_POWER_CUT,
}


def findings(connection: psycopg.Connection[Any], address: Address) -> Iterator[Finding]:
    """Run the checks one by one, on the thread of the connection."""
    queries = _HealthQueries(connection, address)
    yield from _server(queries, connection.info.backend_pid)
    yield from _clock(queries)
    yield from _connections(queries)
    yield from _transactions(queries)
    yield from _tables(queries)


class _HealthQueries:
    def __init__(self, connection: psycopg.Connection[Any], address: Address) -> None:
        self._connection = connection
        texts = sql.statements("errandry.store.postgres", "health.sql")
        self._sql = {name: address.qualify(text) for name, text in texts.items()}

    def __call__(self, name: str) -> Any:
        """The first row of a statement of health.sql, or None."""
        return self._connection.execute(self._sql[name], prepare=False).fetchone()


def _server(queries: _HealthQueries, pid: int) -> Iterator[Finding]:
    version, number, is_standby, fsync, whole_pages, commit, has_standby, vacuums, true_pid = queries(
        "server"
    )
    text = f"PostgreSQL {version}"
    if number // 10_000 > NEWEST_TESTED_SERVER:
        todo = f"Errandry was tested with 15 to {NEWEST_TESTED_SERVER}: check for a newer Errandry"
        yield Finding(Grade.NOTE, "postgres", text, todo)
    else:
        yield Finding(Grade.GOOD, "postgres", text)
    if is_standby:
        yield Finding(
            Grade.WRONG,
            "standby",
            "the server is a standby, which cannot be written",
            "use the address of the primary",
        )
    yield _durability(fsync, whole_pages, commit, has_standby)
    if not vacuums:
        text = "autovacuum is off: tables keep growing, and claims get slower"
        yield Finding(Grade.WRONG, "vacuum", text, "set autovacuum = on")
    if pid == true_pid:
        yield Finding(Grade.GOOD, "pooler", "none: the connection goes to the server itself")
    else:
        text = "there is one: if it pools transactions, workers get no notifications and have to poll"
        todo = (
            "give workers the server's own address, not the pooler's; programs that only enqueue may use "
            "the pooler"
        )
        yield Finding(Grade.NOTE, "pooler", text, todo)


def _durability(fsync: bool, whole_pages: bool, commit: str, has_standby: bool) -> Finding:
    if not fsync:
        text = "fsync is off: a crash of the host may lose or damage everything"
        return Finding(
            Grade.WRONG, "durability", text, "set fsync = on, unless you can afford to lose all jobs"
        )
    if not whole_pages:
        text = "full_page_writes is off: a crash of the host may damage pages that are partly written"
        return Finding(
            Grade.NOTE,
            "durability",
            text,
            "set full_page_writes = on, unless the disk prevents partial writes",
        )
    text = f"synchronous_commit is {commit}: {DURABILITY_BY_COMMIT.get(commit, SURVIVES_POWER_CUT)}"
    if commit == "off":
        return Finding(Grade.NOTE, "durability", text, "ALTER ROLE … SET synchronous_commit = on")
    if has_standby and commit != "local":
        text += ", and the loss of the server, because a standby has a copy"
    return Finding(Grade.GOOD, "durability", text)


def _clock(queries: _HealthQueries) -> Iterator[Finding]:
    before = time.time()
    [servers] = queries("time")
    after = time.time()
    ahead = (before + after) / 2 - servers
    if abs(ahead) <= CLOCK_SKEW_MAX + (after - before) / 2:
        yield Finding(Grade.GOOD, "clock", "the clocks of this host and of the server agree")
    else:
        where = "ahead of" if ahead > 0 else "behind"
        text = (
            f"the clock of this host is {rough_duration(abs(ahead))} {where} the server's; Errandry uses "
            "the server's"
        )
        todo = "synchronize both with NTP; until then, run_at and deadline from here are off, delays are not"
        yield Finding(Grade.NOTE, "clock", text, todo)


def _connections(queries: _HealthQueries) -> Iterator[Finding]:
    used, most = queries("connections")
    text = f"{used} of {most} connections are in use"
    if used > CONNECTIONS_FULL * most:
        todo = "raise max_connections, or run fewer processes: each worker needs up to five"
        yield Finding(Grade.NOTE, "connections", text, todo)
    else:
        yield Finding(Grade.GOOD, "connections", text)


def _transactions(queries: _HealthQueries) -> Iterator[Finding]:
    oldest, prepared, [sees_all] = (
        queries("oldest_transaction"),
        queries("oldest_prepared"),
        queries("sees_all"),
    )
    is_good = True
    if prepared is not None and prepared[1] > LONG_TRANSACTION:
        is_good = False
        name, age = prepared
        text = f"{name} was prepared {rough_duration(age)} ago: vacuum can remove no row that died since"
        yield Finding(Grade.WRONG, "transaction", text, f"ROLLBACK PREPARED '{name}', or commit it")
    if oldest is not None and oldest[3] > LONG_TRANSACTION:
        is_good = False
        pid, user, state, age = oldest
        text = (
            f"one of {user} ({state}) has been open for {rough_duration(age)}: "
            "vacuum can remove no row that died since"
        )
        todo = f"end it: SELECT pg_terminate_backend({pid}), or set idle_in_transaction_session_timeout"
        yield Finding(Grade.NOTE, "transaction", text, todo)
    if not sees_all:
        text = "this user cannot see the transactions of other users"
        yield Finding(
            Grade.NOTE,
            "transaction",
            text,
            "GRANT pg_read_all_stats TO this user, so that they are checked too",
        )
    elif is_good:
        text = f"the oldest has been open for {rough_duration(oldest[3])}" if oldest else "none is open"
        yield Finding(Grade.GOOD, "transaction", text)


def _tables(queries: _HealthQueries) -> Iterator[Finding]:
    rows, dead, since = queries("dead_rows") or (0, 0, None)
    vacuumed = "never vacuumed" if since is None else f"last vacuumed {rough_duration(since)} ago"
    text = f"{dead:,} beside {rows:,} rows of unfinished jobs, {vacuumed}"
    if dead > max(DEAD_ROWS_MAX, rows):
        todo = "end long transactions, which keep dead rows (see above), or let autovacuum run more often"
        yield Finding(Grade.NOTE, "dead rows", text, todo)
    else:
        yield Finding(Grade.GOOD, "dead rows", text)
    yield _partitions(*queries("partitions"))
    whole, live, events = queries("size")
    yield Finding(
        Grade.GOOD,
        "size",
        f"{format_size(whole)}: {format_size(live)} for unfinished jobs, {format_size(events)} for events",
    )


def _partitions(count: int, over: int, detached: int, missing: int) -> Finding:
    text = f"finished jobs are in {count}, one for each day on which jobs expire"
    if over or detached:
        text += f"; {over} of past days and {detached} detached ones still exist"
        todo = "run `errandry migrate` or a worker as the owner of the tables: both drop them"
        return Finding(Grade.NOTE, "partitions", text, todo)
    if missing:
        text += ", and the one for tomorrow does not exist yet"
        return Finding(Grade.NOTE, "partitions", text, "run a worker: its upkeep creates it")
    return Finding(Grade.GOOD, "partitions", text)
