"""The schema of the PostgreSQL store: its content, and its migrations.

Run as a program, this file prints the expected content of `schema.sql`. With an address, it starts to create
the tables there and stops midway, so that a test can kill it.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from errandry.cli.main import run
from errandry.core.answer import Inserted
from errandry.errors import SchemaTooNew
from errandry.store.contract import SchemaChange
from errandry.store.postgres import migrate
from errandry.store.url import store_at
from errandry.testing.conformance import requests
from tests.new_jobs import new_job
from tests.store.postgres.given import opened, schema_of
from tests.store.server import server

EXPECTED = Path(__file__).with_name("schema.sql")
NUMBER = migrate._MIGRATIONS[-1][0]


def fetch_all(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server().url(), autocommit=True) as db:
        return db.execute(query.replace("errandry.", f'"{schema_of(url)}".').encode()).fetchall()


def dump_schema(schema: str) -> str:
    """Everything in a schema, as text that is the same on every server."""
    with psycopg.connect(server().url(), autocommit=True) as db:
        text = "".join(f"{line}\n" for query in DUMP for (line,) in db.execute(query, (schema,)))
    return text.replace(f'"{schema}".', "errandry.").replace(f"{schema}.", "errandry.")


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


async def test_the_schema_matches_the_dump() -> None:
    async with opened(server().new_url()) as store:
        schema = dump_schema(store.address.schema)

    assert schema == EXPECTED.read_text("utf-8"), (
        "the schema has changed. If that is intended: "
        "python -m tests.store.postgres.test_schema > tests/store/postgres/schema.sql"
    )


async def test_two_stores_in_one_database_share_nothing() -> None:
    first, second = server().new_url(), server().new_url()
    async with opened(first) as one_store, opened(second) as other_store:
        await requests.insert(one_store, new_job("a"))

        assert await requests.list_jobs(other_store) == []
        assert one_store.identity != other_store.identity
        assert dump_schema(one_store.address.schema) == dump_schema(other_store.address.schema)


async def test_each_migration_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = server().new_url()
    async with opened(url) as store:
        await requests.insert(store, new_job("a"))
        before = await requests.snapshot(store)
    more = [
        (NUMBER + n, name, f"CREATE TABLE errandry.{name} (x text)") for n, name in ((1, "one"), (2, "two"))
    ]
    with monkeypatch.context() as newer:
        newer.setattr(migrate, "_MIGRATIONS", migrate._MIGRATIONS + more)
        for found in (NUMBER, NUMBER + 2):
            async with opened(url) as store:
                assert store.schema_change == SchemaChange(found, NUMBER + 2)
                assert await requests.snapshot(store) == before
            applied = fetch_all(url, "SELECT number, name FROM errandry.migrations ORDER BY number")
            assert applied[-2:] == [(NUMBER + 1, "one"), (NUMBER + 2, "two")]
            assert [number for number, _ in applied] == list(range(1, NUMBER + 3))

    with pytest.raises(SchemaTooNew, match=f"has schema {NUMBER + 2}, this Errandry knows {NUMBER}: upgrade"):
        await store_at(url).open()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    url = server().new_url()
    async with opened(url) as store:
        await requests.insert(store, new_job("a"))
    before = dump_schema(schema_of(url))
    bad = (NUMBER + 1, "bad", "CREATE TABLE errandry.one (x text); INSERT INTO errandry.nowhere VALUES (1)")
    with monkeypatch.context() as newer:
        newer.setattr(migrate, "_MIGRATIONS", [*migrate._MIGRATIONS, bad])
        with pytest.raises(Exception, match="nowhere"):
            await store_at(url).open()

    assert dump_schema(schema_of(url)) == before
    async with opened(url) as store:
        assert [job.id for job in await requests.list_jobs(store)] == ["a"]


@pytest.mark.slow(reason="starts another program")
@pytest.mark.parametrize("is_new", [True, False], ids=["of a new store", "of an old one"])
async def test_a_migration_killed_midway_changes_nothing_and_blocks_no_other(is_new: bool) -> None:
    url = server().new_url()
    if not is_new:
        async with opened(url) as store:
            await requests.insert(store, new_job("a"))
    before = dump_schema(schema_of(url)) if not is_new else ""

    with subprocess.Popen(
        [sys.executable, "-m", "tests.store.postgres.test_schema", url], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"midway\n"
        waiting = asyncio.create_task((waiting_store := store_at(url)).open())
        other.send_signal(signal.SIGKILL)

    await asyncio.wait_for(waiting, 30)
    await waiting_store.close()
    async with opened(url) as store:
        assert [job.id for job in await requests.list_jobs(store)] == ([] if is_new else ["a"])
        assert await requests.insert(store, new_job("b")) == Inserted(("b",))
    assert dump_schema(schema_of(url)) == (before or EXPECTED.read_text("utf-8"))


@pytest.mark.slow(reason="starts five programs")
def test_many_programs_may_migrate_at_once() -> None:
    url = server().new_url()
    command = [sys.executable, "-m", "errandry", "migrate", "--url", url]
    programs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(5)]

    outputs = [program.communicate()[1] for program in programs]

    created, up_to_date = (
        f"The store was created with schema {NUMBER}.\n",
        f"The store is up to date: schema {NUMBER}.\n",
    )
    assert sorted(outputs) == sorted([created, *[up_to_date] * 4])
    assert fetch_all(url, "SELECT number FROM errandry.migrations ORDER BY number") == [
        (number,) for number in range(1, NUMBER + 1)
    ]
    assert fetch_all(url, "SELECT count(*) FROM errandry.store") == [(1,)]


def test_the_migrate_command_creates_the_schema_and_reports_a_newer_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = server().new_url()

    assert run(["migrate", "--url", url]) == 0
    assert capsys.readouterr().err == f"The store was created with schema {NUMBER}.\n"
    assert run(["migrate", "--url", url]) == 0
    assert capsys.readouterr().err == f"The store is up to date: schema {NUMBER}.\n"
    assert dump_schema(schema_of(url)) == EXPECTED.read_text("utf-8")
    fetch_all(url, "INSERT INTO errandry.migrations (number, name) VALUES (9999, 'later') RETURNING 1")
    assert run(["migrate", "--url", url]) == 78
    assert f"has schema 9999, this Errandry knows {NUMBER}: upgrade Errandry" in capsys.readouterr().err


def test_reading_commands_create_no_schema(capsys: pytest.CaptureFixture[str]) -> None:
    url = server().new_url()

    for command in (["jobs", "ls"], ["doctor"], ["queues", "pause", "default"]):
        assert run([*command, "--url", url]) == 1
        output = capsys.readouterr().err
        assert (
            f"there is no store at postgresql://{server().folder}/postgres, schema {schema_of(url)} yet"
            in output
        )

    assert fetch_all(url, f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema_of(url)}'") == []


def test_reading_commands_report_that_the_server_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    away_url = f"postgresql:///postgres?host={server().folder}/nowhere"

    assert run(["jobs", "ls", "--url", away_url]) == 75
    assert "No such file or directory" in capsys.readouterr().err
    assert run(["doctor", "--url", away_url]) == 1
    assert "fix this first: all other checks need the store" in capsys.readouterr().out


class SlowMigrations(list[tuple[int, str, str]]):
    """Migrations that never end."""

    def __iter__(self) -> Iterator[tuple[int, str, str]]:
        yield from super().__iter__()
        sys.stdout.write("midway\n")
        sys.stdout.flush()
        time.sleep(60)


def main(url: str | None = None) -> None:
    if url is None:
        asyncio.run(store_at(fresh := server().new_url()).open())
        sys.stdout.write(dump_schema(schema_of(fresh)))
    else:
        migrate._MIGRATIONS = SlowMigrations(
            [*migrate._MIGRATIONS, (NUMBER + 1, "x", "CREATE TABLE errandry.x (x text)")]
        )
        asyncio.run(store_at(url).open())


if __name__ == "__main__":
    main(*sys.argv[1:])
