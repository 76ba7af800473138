"""Says which right a refused user lacks: the server's message names a table, but no privilege."""

import re
from contextlib import suppress

import psycopg

from errandry.store.postgres.address import Address
from errandry.store.postgres.connection import connect
from errandry.store.tables import sql

_ADVICE = "grant it, or use another user (see Roles in the guide for PostgreSQL)"


def missing_right(address: Address, message: str) -> str | None:
    """What the user lacks on the table, function or schema that the message names; None if that is unknown.

    Asks the server over a new connection: that of the refused statement is in a failed transaction.
    """
    statement = sql.statements("errandry.store.postgres", "rights.sql")["missing_rights"]
    rows: list[tuple[str, str, list[str], str, bool]] = []
    with suppress(psycopg.Error), connect(address) as connection:
        rows = connection.execute(statement.encode(), {"schema": address.schema}).fetchall()
    words = re.findall(r"\w+", message)
    named = [row for row in rows if row[1] in words]
    named = [row for row in named if row[0] in words] or named  # the kind is not in a translated message
    if not named:
        return None
    kind, name, rights, user, may_insert = named[0]
    full_name = name if kind in ("database", "schema") else f"{address.schema}.{name}"
    only_inserts = may_insert and kind == "table" and "SELECT" in rights
    advice = "it may only enqueue with jobs.bind(connection); for more, " if only_inserts else ""
    return f"the user {user} lacks {', '.join(rights)} on {kind} {full_name}: {advice}{_ADVICE}"
