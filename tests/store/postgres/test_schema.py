"""The schema of the PostgreSQL store: what it is, and how it comes up to date.

Run as a program, this file prints what `postgres.sql` should hold; with an address, it begins to make the
tables there and stops midway, for a test to kill it.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from errandry.cli.main import run
from errandry.core.answer import Inserted
from errandry.core.job import NewJob
from errandry.errors import SchemaTooNew
from errandry.store.postgres import migrate
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at
from errandry.testing.conformance import requests
from tests.store.server import server

ON_RECORD = Path(__file__).with_name("schema.sql")
NUMBER = migrate._MIGRATIONS[-1][0]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = store_at(url)
    assert isinstance(store, PostgresStore)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]


def job(name: str) -> NewJob:
    return NewJob(id=name, task="task", payload="{}")


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server().url(), autocommit=True) as db:
        return db.execute(query.replace("errandry.", f'"{schema_of(url)}".').encode()).fetchall()


def dump(schema: str) -> str:
    """Everything in a schema as text that is the same on every server."""
    with psycopg.connect(server().url(), autocommit=True) as db:
        found = "".join(f"{line}\n" for query in DUMP for (line,) in db.execute(query, (schema,)))
    return found.replace(f'"{schema}".', "errandry.").replace(f"{schema}.", "errandry.")


DUMP = (
    """
    SELECT 'TABLE ' || relname || coalesce(' PARTITION BY ' || pg_get_partkeydef(c.oid), '')
           || coalesce(' WITH ' || reloptions::text, '') || E'\n    '
           || (SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod)
                      || CASE attcollation WHEN '"C"'::regcollation THEN ' COLLATE "C"' ELSE '' END
                      || CASE attstorage WHEN typstorage THEN '' ELSE ' STORAGE ' || attstorage::text END
                      || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
                      || CASE attidentity WHEN 'a' THEN ' IDENTITY' ELSE '' END
                      || coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), ''), E'\n    ' ORDER BY attnum)
                 FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
                 LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
                WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
      FROM pg_class AS c
     WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition
     ORDER BY relname COLLATE "C"
    """,
    """
    SELECT 'CONSTRAINT ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
      FROM pg_constraint WHERE connamespace = %s::regnamespace AND contype <> 'n' AND conparentid = 0
     ORDER BY conrelid::regclass::text COLLATE "C", conname COLLATE "C"
    """,
    """
    SELECT pg_get_indexdef(c.oid) FROM pg_class AS c
     WHERE relnamespace = %s::regnamespace AND relkind IN ('i', 'I') AND NOT relispartition
     ORDER BY relname COLLATE "C"
    """,
    """
    SELECT 'SEQUENCE ' || relname FROM pg_class AS c
     WHERE relnamespace = %s::regnamespace AND relkind = 'S' ORDER BY relname COLLATE "C"
    """,
    """
    SELECT 'FUNCTION ' || proname || '(' || pg_get_function_arguments(oid) || ') RETURNS '
           || pg_get_function_result(oid) || CASE provolatile WHEN 'i' THEN ' IMMUTABLE' ELSE '' END
           || CASE WHEN prosecdef THEN ' SECURITY DEFINER' ELSE '' END
           || coalesce(' SET ' || proconfig::text, '')
           || CASE WHEN proacl IS NULL THEN '' ELSE ' NOT FOR ALL' END || prosrc
      FROM pg_proc WHERE pronamespace = %s::regnamespace ORDER BY proname COLLATE "C"
    """,
)


async def test_the_schema_is_the_one_on_record() -> None:
    async with opened(server().fresh()) as store:
        found = dump(store.address.schema)

    assert found == ON_RECORD.read_text("utf-8"), (
        "the schema has changed. If that is meant: "
        "python -m tests.store.postgres.test_schema > tests/store/postgres.sql"
    )


async def test_two_stores_in_one_database_share_nothing() -> None:
    first, second = server().fresh(), server().fresh()
    async with opened(first) as one, opened(second) as other:
        await requests.insert(one, job("a"))

        assert await requests.jobs(other) == []
        assert one.identity != other.identity
        assert dump(one.address.schema) == dump(other.address.schema)


async def test_each_migration_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = server().fresh()
    async with opened(url) as store:
        await requests.insert(store, job("a"))
        before = await requests.everything(store)
    more = [
        (NUMBER + n, name, f"CREATE TABLE errandry.{name} (x text)") for n, name in ((1, "one"), (2, "two"))
    ]
    with monkeypatch.context() as newer:
        newer.setattr(migrate, "_MIGRATIONS", migrate._MIGRATIONS + more)
        for _ in range(2):
            async with opened(url) as store:
                assert await requests.everything(store) == before
            applied = rows(url, "SELECT number, name FROM errandry.migrations ORDER BY number")
            assert applied[-2:] == [(NUMBER + 1, "one"), (NUMBER + 2, "two")]
            assert [number for number, _ in applied] == list(range(1, NUMBER + 3))

    with pytest.raises(SchemaTooNew, match=f"has schema {NUMBER + 2}, this Errandry knows {NUMBER}: upgrade"):
        await store_at(url).open()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    url = server().fresh()
    async with opened(url) as store:
        await requests.insert(store, job("a"))
    before = dump(schema_of(url))
    bad = (NUMBER + 1, "bad", "CREATE TABLE errandry.one (x text); INSERT INTO errandry.nowhere VALUES (1)")
    with monkeypatch.context() as newer:
        newer.setattr(migrate, "_MIGRATIONS", [*migrate._MIGRATIONS, bad])
        with pytest.raises(Exception, match="nowhere"):
            await store_at(url).open()

    assert dump(schema_of(url)) == before
    async with opened(url) as store:
        assert [one.id for one in await requests.jobs(store)] == ["a"]


@pytest.mark.slow(reason="starts another program")
@pytest.mark.parametrize("is_new", [True, False], ids=["of a new store", "of an old one"])
async def test_one_killed_midway_leaves_the_schema_as_it_was_and_nobody_waiting(is_new: bool) -> None:
    url = server().fresh()
    if not is_new:
        async with opened(url) as store:
            await requests.insert(store, job("a"))
    before = dump(schema_of(url)) if not is_new else ""

    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.postgres.test_schema", url], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"midway\n"
        waiting = asyncio.create_task((late := store_at(url)).open())
        other.send_signal(signal.SIGKILL)

    await asyncio.wait_for(waiting, 30)
    await late.close()
    async with opened(url) as store:
        assert [one.id for one in await requests.jobs(store)] == ([] if is_new else ["a"])
        assert await requests.insert(store, job("b")) == Inserted(("b",))
    assert dump(schema_of(url)) == (before or ON_RECORD.read_text("utf-8"))


@pytest.mark.slow(reason="starts five programs")
def test_many_programs_may_make_it_at_once() -> None:
    url = server().fresh()
    command = [sys.executable, "-m", "errandry", "migrate", "--url", url]
    programs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(5)]

    said = [program.communicate()[1] for program in programs]

    assert said == ["The store is ready and up to date.\n"] * 5
    assert rows(url, "SELECT number FROM errandry.migrations ORDER BY number") == [
        (number,) for number in range(1, NUMBER + 1)
    ]
    assert rows(url, "SELECT count(*) FROM errandry.store") == [(1,)]


def test_the_command_line_makes_it_and_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    url = server().fresh()

    assert run(["migrate", "--url", url]) == 0
    assert dump(schema_of(url)) == ON_RECORD.read_text("utf-8")
    rows(url, "INSERT INTO errandry.migrations (number, name) VALUES (9999, 'later') RETURNING 1")
    assert run(["migrate", "--url", url]) == 1
    assert f"has schema 9999, this Errandry knows {NUMBER}: upgrade Errandry" in capsys.readouterr().err


def test_who_only_looks_makes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    url = server().fresh()

    for command in (["jobs", "ls"], ["doctor"], ["queues", "pause", "default"]):
        assert run([*command, "--url", url]) == 1
        said = capsys.readouterr().err
        assert (
            f"there is no store at postgresql://{server().folder}/postgres, schema {schema_of(url)} yet"
            in said
        )

    assert rows(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(url)}'") == []


def test_who_looks_at_a_server_that_is_away_is_told_that(capsys: pytest.CaptureFixture[str]) -> None:
    away = f"postgresql:///postgres?host={server().folder}/nowhere"

    assert run(["jobs", "ls", "--url", away]) == 75
    assert "No such file or directory" in capsys.readouterr().err
    assert run(["doctor", "--url", away]) == 1
    assert "nothing else can be looked at until it opens" in capsys.readouterr().out


class Midway(list[tuple[int, str, str]]):
    """Migrations that never come to an end."""

    def __iter__(self) -> Iterator[tuple[int, str, str]]:
        yield from super().__iter__()
        sys.stdout.write("midway\n")
        sys.stdout.flush()
        time.sleep(60)


def main(url: str | None = None) -> None:
    if url is None:
        asyncio.run(store_at(fresh := server().fresh()).open())
        sys.stdout.write(dump(schema_of(fresh)))
    else:
        migrate._MIGRATIONS = Midway(
            [*migrate._MIGRATIONS, (NUMBER + 1, "x", "CREATE TABLE errandry.x (x text)")]
        )
        asyncio.run(store_at(url).open())


if __name__ == "__main__":
    main(*sys.argv[1:])
