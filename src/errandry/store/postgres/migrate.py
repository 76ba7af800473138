"""Bringing the schema up to date. Many may try at once, one does it; killed midway, it has done nothing."""

from typing import Any

import psycopg

from errandry.errors import ForeignDatabase, SchemaTooNew, StoreRefused
from errandry.store.postgres.address import Address
from errandry.store.tables import sql

OLDEST_SERVER = 150_000
_MIGRATIONS = list(sql.migrations("errandry.store.postgres.schema"))


def migrate(connection: psycopg.Connection[Any], address: Address) -> str:
    """Returns the identity of the store."""
    _bring_up_to_date(connection, address)
    found = connection.execute(address.text("SELECT identity FROM errandry.store")).fetchone()
    return str(found[0]) if found else ""


def _bring_up_to_date(connection: psycopg.Connection[Any], address: Address) -> None:
    server = connection.info.server_version
    if server < OLDEST_SERVER:
        why = f"PostgreSQL {server // 10_000} is too old: Errandry needs 15 or newer"
        raise StoreRefused(address.name, why)
    newest = _MIGRATIONS[-1][0]
    if _version(connection, address) == newest:
        return
    with connection.transaction():
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"errandry migrate {address.schema}",)
        )
        version = _version(connection, address)
        if version == 0:
            _make_schema(connection, address)
        for number, name, text in _MIGRATIONS:
            if number > version:
                connection.execute(address.text(text))
                done = "INSERT INTO errandry.migrations (number, name) VALUES (%s, %s)"
                connection.execute(address.text(done), (number, name))


def is_made(connection: psycopg.Connection[Any], address: Address) -> bool:
    """Whether there is anything in its schema."""
    return bool(_names(connection, address))


def _make_schema(connection: psycopg.Connection[Any], address: Address) -> None:
    """Only if it is not there: who was given an empty schema may lack the right to make one."""
    there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,))
    if there.fetchone() is None:
        connection.execute(address.text("CREATE SCHEMA errandry.").removesuffix("."))


def _version(connection: psycopg.Connection[Any], address: Address) -> int:
    """The schema's number; 0 if it is empty or not there. Raises for what is not ours, or too new."""
    names = _names(connection, address)
    if not names:
        return 0
    if not {"migrations", "live", "lanes"} <= names:
        why = f"the schema {address.schema} holds another program's data: name one of its own (?schema=…)"
        raise ForeignDatabase(address.name, why)
    numbers = connection.execute(address.text("SELECT max(number) FROM errandry.migrations")).fetchone()
    version, newest = (numbers[0] if numbers and numbers[0] else 0), _MIGRATIONS[-1][0]
    if version > newest:
        why = f"has schema {version}, this Errandry knows {newest}: upgrade Errandry"
        raise SchemaTooNew(address.name, why)
    return int(version)


def _names(connection: psycopg.Connection[Any], address: Address) -> set[str]:
    found = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace AS s ON s.oid = relnamespace WHERE nspname = %s",
        (address.schema,),
    )
    return {name for (name,) in found}
