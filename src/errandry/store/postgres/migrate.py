"""Migrates the schema. Many processes may try at once: one does it, in one transaction."""

from typing import Any

import psycopg

from errandry.errors import ForeignDatabase, SchemaTooNew, StoreRefused
from errandry.store.contract import SchemaChange
from errandry.store.postgres.address import Address
from errandry.store.tables import sql

OLDEST_SERVER = 150_000
_MIGRATIONS = list(sql.migrations("errandry.store.postgres.schema"))


def migrate(connection: psycopg.Connection[Any], address: Address) -> tuple[str, SchemaChange]:
    """Migrate the schema to the newest version. Returns the identity of the store, and what was done."""
    change = _bring_up_to_date(connection, address)
    row = connection.execute(address.qualify("SELECT identity FROM errandry.store")).fetchone()
    return str(row[0]) if row else "", change


def _bring_up_to_date(connection: psycopg.Connection[Any], address: Address) -> SchemaChange:
    server = connection.info.server_version
    if server < OLDEST_SERVER:
        why = f"PostgreSQL {server // 10_000} is too old: Errandry needs 15 or newer"
        raise StoreRefused(address.name, why)
    newest = _MIGRATIONS[-1][0]
    if _schema_version(connection, address) == newest:
        return SchemaChange(newest, newest)
    with connection.transaction():
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"errandry migrate {address.schema}",)
        )
        version = _schema_version(connection, address)
        if version == 0:
            _create_schema(connection, address)
        for number, name, text in _MIGRATIONS:
            if number > version:
                connection.execute(address.qualify(text))
                record = "INSERT INTO errandry.migrations (number, name) VALUES (%s, %s)"
                connection.execute(address.qualify(record), (number, name))
    return SchemaChange(version, newest)


def schema_exists(connection: psycopg.Connection[Any], address: Address) -> bool:
    """Whether the schema of the store has any tables."""
    return bool(_relation_names(connection, address))


def _create_schema(connection: psycopg.Connection[Any], address: Address) -> None:
    """Create the schema unless it exists: a user with an empty schema may lack the right to create one."""
    schema = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,))
    if schema.fetchone() is None:
        connection.execute(address.qualify("CREATE SCHEMA errandry.").removesuffix("."))


def _schema_version(connection: psycopg.Connection[Any], address: Address) -> int:
    """The version of the schema, 0 if it is empty or missing.

    Raises ForeignDatabase if another program owns it, SchemaTooNew if a newer Errandry has migrated it.
    """
    names = _relation_names(connection, address)
    if not names:
        return 0
    if not {"migrations", "live", "lanes"} <= names:
        why = f"the schema {address.schema} holds another program's data: name one of its own (?schema=…)"
        raise ForeignDatabase(address.name, why)
    numbers = connection.execute(address.qualify("SELECT max(number) FROM errandry.migrations")).fetchone()
    version, newest = (numbers[0] if numbers and numbers[0] else 0), _MIGRATIONS[-1][0]
    if version > newest:
        why = f"has schema {version}, this Errandry knows {newest}: upgrade Errandry"
        raise SchemaTooNew(address.name, why)
    return int(version)


def _relation_names(connection: psycopg.Connection[Any], address: Address) -> set[str]:
    relations = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace AS s ON s.oid = relnamespace WHERE nspname = %s",
        (address.schema,),
    )
    return {name for (name,) in relations}
