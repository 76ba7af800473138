"""Where a PostgreSQL store is: what libpq connects to, and the schema its tables are in."""

import re
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from errandry.errors import InvalidValue
from errandry.store.tables import sql

SCHEMA = "errandry"
_MARK = f"{SCHEMA}."
_DEFAULTS = {
    "application_name": "errandry",
    "connect_timeout": "10",
    # A connection to a server that is gone without a word is found to be dead within ten seconds.
    "keepalives_idle": "4",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Address(Struct, frozen=True):
    """`name` is for messages: it has no password."""

    conninfo: str
    schema: str
    name: str

    def text(self, text: str) -> str:
        """A statement, or a whole migration, as it is in this schema."""
        return text.replace(_MARK, f'"{self.schema}".')

    def statements(self) -> dict[str, str]:
        found = sql.statements("errandry.store.postgres")
        return {name: self.text(text) for name, text in found.items()}


def address_of(url: str, schema: str = SCHEMA) -> Address:
    """The address `url` means, as libpq reads it: with its environment variables, files and many hosts."""
    if not re.fullmatch("[a-z_][a-z0-9_]{0,40}", schema):
        right = "must be small letters, digits and _, at most 41, and begin with no digit"
        raise InvalidValue("schema", schema, right)
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
        conninfo = make_conninfo("", **{**_defaults(given), **given})
    except psycopg.ProgrammingError as error:
        # Not the url: it may hold a password.
        raise InvalidValue("url", "postgresql:…", f"libpq cannot read it: {str(error).strip()}") from None
    host, name = given.get("host") or given.get("hostaddr") or "", given.get("dbname") or ""
    return Address(conninfo, schema, f"postgresql://{host}/{name}")


def _defaults(given: dict[str, Any]) -> dict[str, str]:
    several = "," in str(given.get("host") or given.get("hostaddr") or "")
    return {**_DEFAULTS, **({"target_session_attrs": "read-write"} if several else {})}
