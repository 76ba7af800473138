"""The health of a PostgreSQL store: its server, and what is in the way of its tables."""

import time
from collections.abc import Iterator
from typing import Any

import psycopg

from errandry.core.duration import rough
from errandry.core.size import short
from errandry.store.health import Finding, Grade
from errandry.store.postgres.address import Address
from errandry.store.tables import sql

NEWEST_SERVER = 18
"""The newest version the tests know."""
OFF = 1.0
"""Clocks that differ by more are mentioned."""
OPEN_LONG = 300.0
"""A transaction that has been open for so long keeps too much from being cleaned."""
DEAD_MANY = 50_000
FULL = 0.9

SAFE = "what is acknowledged survives a power cut"
COMMIT = {
    "off": "what is acknowledged survives a crash of the program, but a crash of the server may take back "
    "the last moments, never part of a pass: jobs of then can be lost, or run again",
    "local": SAFE,
    "on": SAFE,
    "remote_write": SAFE,
    "remote_apply": SAFE,
}


def examined(connection: psycopg.Connection[Any], address: Address) -> Iterator[Finding]:
    """One thing after the other. On the thread of the connection."""
    look = _Look(connection, address)
    yield from _server(look, connection.info.backend_pid)
    yield from _clock(look)
    yield from _connections(look)
    yield from _transactions(look)
    yield from _tables(look)


class _Look:
    def __init__(self, connection: psycopg.Connection[Any], address: Address) -> None:
        self._connection = connection
        found = sql.statements("errandry.store.postgres", "health.sql")
        self._sql = {name: address.text(text) for name, text in found.items()}

    def __call__(self, name: str) -> Any:
        """The one row, or None."""
        return self._connection.execute(self._sql[name], prepare=False).fetchone()


def _server(look: _Look, pid: int) -> Iterator[Finding]:
    version, number, is_standby, fsync, whole_pages, commit, has_standby, vacuums, true_pid = look("server")
    text = f"PostgreSQL {version}"
    if number // 10_000 > NEWEST_SERVER:
        todo = f"Errandry was tried with 15 to {NEWEST_SERVER}: look for a newer one"
        yield Finding(Grade.NOTE, "postgres", text, todo)
    else:
        yield Finding(Grade.GOOD, "postgres", text)
    if is_standby:
        yield Finding(Grade.WRONG, "standby", "nothing can be written: it is a standby", "name the primary")
    yield _durability(fsync, whole_pages, commit, has_standby)
    if not vacuums:
        text = "autovacuum is off: tables only ever grow, and claims get slower"
        yield Finding(Grade.WRONG, "vacuum", text, "set autovacuum = on")
    if pid == true_pid:
        yield Finding(Grade.GOOD, "pooler", "none: this is the server itself")
    else:
        text = (
            "there is one in between: if it pools transactions, workers are told of nothing and have to look"
        )
        todo = "name the server itself in the url of workers; programs that only enqueue need not"
        yield Finding(Grade.NOTE, "pooler", text, todo)


def _durability(fsync: bool, whole_pages: bool, commit: str, has_standby: bool) -> Finding:
    if not fsync:
        text = "fsync is off: a crash of the host may lose or damage everything"
        return Finding(Grade.WRONG, "durability", text, "set fsync = on, unless all of it may be lost")
    if not whole_pages:
        text = "full_page_writes is off: a crash of the host may damage pages half written"
        return Finding(
            Grade.NOTE, "durability", text, "set full_page_writes = on, unless the disk rules it out"
        )
    text = f"synchronous_commit is {commit}: {COMMIT.get(commit, SAFE)}"
    if commit == "off":
        return Finding(Grade.NOTE, "durability", text, "ALTER ROLE … SET synchronous_commit = on")
    if has_standby and commit != "local":
        text += ", and the loss of the server: a standby has it too"
    return Finding(Grade.GOOD, "durability", text)


def _clock(look: _Look) -> Iterator[Finding]:
    before = time.time()
    [servers] = look("time")
    after = time.time()
    ahead = (before + after) / 2 - servers
    if abs(ahead) <= OFF + (after - before) / 2:
        yield Finding(Grade.GOOD, "clock", "this host's and the server's agree")
    else:
        where = "ahead of" if ahead > 0 else "behind"
        text = f"this host's is {rough(abs(ahead))} {where} the server's, which is the one that counts"
        todo = "keep both with NTP; until then a run_at or deadline made here is off by that, a delay is not"
        yield Finding(Grade.NOTE, "clock", text, todo)


def _connections(look: _Look) -> Iterator[Finding]:
    used, most = look("connections")
    text = f"{used} of {most} connections are in use"
    if used > FULL * most:
        todo = "raise max_connections, or run fewer processes: each worker needs up to six"
        yield Finding(Grade.NOTE, "connections", text, todo)
    else:
        yield Finding(Grade.GOOD, "connections", text)


def _transactions(look: _Look) -> Iterator[Finding]:
    oldest, prepared, [sees_all] = look("oldest"), look("prepared"), look("sees_all")
    is_good = True
    if prepared is not None and prepared[1] > OPEN_LONG:
        is_good = False
        name, age = prepared
        text = f"{name} was prepared {rough(age)} ago: no dead row since could be cleaned away"
        yield Finding(Grade.WRONG, "transaction", text, f"ROLLBACK PREPARED '{name}', or commit it")
    if oldest is not None and oldest[3] > OPEN_LONG:
        is_good = False
        pid, who, state, age = oldest
        text = (
            f"that of {who} ({state}) has been open for {rough(age)}: no dead row since could be cleaned away"
        )
        todo = f"end it: SELECT pg_terminate_backend({pid}), or set idle_in_transaction_session_timeout"
        yield Finding(Grade.NOTE, "transaction", text, todo)
    if not sees_all:
        text = "those of other users are hidden from this one"
        yield Finding(
            Grade.NOTE, "transaction", text, "GRANT pg_read_all_stats TO it, to have them looked at"
        )
    elif is_good:
        text = f"the oldest has been open for {rough(oldest[3])}" if oldest else "none is open"
        yield Finding(Grade.GOOD, "transaction", text)


def _tables(look: _Look) -> Iterator[Finding]:
    rows, dead, since = look("dead") or (0, 0, None)
    cleaned = "never cleaned yet" if since is None else f"last cleaned {rough(since)} ago"
    text = f"{dead:,} beside {rows:,} of unfinished jobs, {cleaned}"
    if dead > max(DEAD_MANY, rows):
        todo = "a transaction that is open for long keeps them (see above), or autovacuum does not keep up"
        yield Finding(Grade.NOTE, "dead rows", text, todo)
    else:
        yield Finding(Grade.GOOD, "dead rows", text)
    yield _partitions(*look("partitions"))
    whole, live, events = look("size")
    yield Finding(
        Grade.GOOD,
        "size",
        f"{short(whole)}: {short(live)} for unfinished jobs, {short(events)} for events",
    )


def _partitions(count: int, over: int, detached: int, missing: int) -> Finding:
    text = f"finished jobs are in {count}, one for each day some expire on"
    if over or detached:
        text += f"; {over} of days long over and {detached} detached ones are still there"
        todo = "run `errandry migrate` as the owner of the tables, or a worker, whose upkeep removes them"
        return Finding(Grade.NOTE, "partitions", text, todo)
    if missing:
        text += ", and that of tomorrow's is not made yet"
        return Finding(Grade.NOTE, "partitions", text, "a worker's upkeep makes it; let one run")
    return Finding(Grade.GOOD, "partitions", text)
