"""The address of a PostgreSQL store: the connection string for libpq, and the schema of its tables."""

import re
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from errandry.errors import InvalidValue
from errandry.store.tables import sql

SCHEMA = "errandry"
_PREFIX = f"{SCHEMA}."
_DEFAULTS = {
    "application_name": "errandry",
    "connect_timeout": "10",
    # libpq notices within ten seconds that a server has vanished.
    "keepalives_idle": "4",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Address(Struct, frozen=True):
    """`name` is for messages, so it contains no password."""

    conninfo: str
    schema: str
    name: str

    def qualify(self, text: str) -> str:
        """A statement, or a whole migration, with the name of this schema."""
        return text.replace(_PREFIX, f'"{self.schema}".')

    def statements(self) -> dict[str, str]:
        texts = sql.statements("errandry.store.postgres")
        return {name: self.qualify(text) for name, text in texts.items()}


def address_of(url: str, schema: str = SCHEMA) -> Address:
    """Parse `url` as libpq does, with its environment variables, service files and multiple hosts."""
    if not re.fullmatch("[a-z_][a-z0-9_]{0,40}", schema):
        right = "must have at most 41 small letters, digits and _, and must not begin with a digit"
        raise InvalidValue("schema", schema, right)
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
        conninfo = make_conninfo("", **{**_defaults(given), **given})
    except psycopg.ProgrammingError as error:
        # Do not show the URL: it may contain a password.
        raise InvalidValue("url", "postgresql:…", f"libpq cannot read it: {str(error).strip()}") from None
    host, name = given.get("host") or given.get("hostaddr") or "", given.get("dbname") or ""
    return Address(conninfo, schema, f"postgresql://{host}/{name}")


def address_options() -> tuple[str, ...]:
    """The names of the options that a connection string of libpq may contain."""
    return tuple([option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()])


def _defaults(given: dict[str, Any]) -> dict[str, str]:
    has_many_hosts = "," in str(given.get("host") or given.get("hostaddr") or "")
    return {**_DEFAULTS, **({"target_session_attrs": "read-write"} if has_many_hosts else {})}
