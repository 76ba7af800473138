"""Stores by URL: `memory:`, `sqlite:///jobs.db` (relative), `sqlite:////var/lib/jobs.db` (absolute),
`postgresql://user@host/database`.

A driver is imported only when a URL names it.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from os import PathLike, fspath
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from errandry.clock import Clock
from errandry.errors import InvalidValue
from errandry.store.contract import Store, StoreLimits

DEFAULT_URL = "sqlite:///errandry.db"


def store_at(url: str, clock: Clock | None = None, limits: StoreLimits | None = None) -> Store:
    """Return the store with this URL, not opened yet."""
    if not isinstance(url, str):
        path = fspath(url) if isinstance(url, PathLike) else "jobs.db"
        raise InvalidValue("url", url, f"must be a URL as text: write sqlite:///{path}")
    parts = urlsplit(url)
    make = _DRIVERS.get(parts.scheme)
    if make is None:
        raise InvalidValue(
            "url", without_password(url), "unknown scheme: use memory:, sqlite: or postgresql:"
        )
    return make(url, parts, clock, limits)


def without_password(url: str) -> str:
    """Return `url` without its passwords, to be shown and logged."""
    return _PARAMETER.sub(r"\1=…", _PASSWORD.sub(r"\1@", url))


_PASSWORD = re.compile(r"(://[^:/?@]*):[^/?@]*@")
_PARAMETER = re.compile(r"([?&](?:ssl)?password)=[^&]*")


def _memory(url: str, parts: SplitResult, clock: Clock | None, limits: StoreLimits | None) -> Store:
    from errandry.store.memory.driver import MemoryStore

    _options(url, parts)
    if parts.netloc or parts.path:
        raise InvalidValue("url", without_password(url), "a store in memory has no name: write memory:")
    return MemoryStore(clock, limits)


def _sqlite(url: str, parts: SplitResult, clock: Clock | None, limits: StoreLimits | None) -> Store:
    from errandry.store.sqlite.driver import SqliteStore

    options = _options(url, parts, "durability")
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        right = "write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db for an absolute path"
        raise InvalidValue("url", without_password(url), f"names no file: {right}")
    return SqliteStore(path, clock, limits, **options)


def _postgres(url: str, parts: SplitResult, clock: Clock | None, limits: StoreLimits | None) -> Store:
    try:
        from errandry.store.postgres.driver import PostgresStore
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        right = "install the extra postgres: pip install 'errandry[postgres]'"
        raise InvalidValue(
            "url", without_password(url), f"needs psycopg, which is not installed: {right}"
        ) from None
    parameters = parse_qsl(parts.query, keep_blank_values=True)
    options = {name: value for name, value in parameters if name in _OWN_OPTIONS}
    others = urlencode([pair for pair in parameters if pair[0] not in _OWN_OPTIONS], quote_via=quote)
    libpq_url = f"postgresql://{parts.netloc}{parts.path}?{others}"
    return PostgresStore(libpq_url, clock, limits, **options)


_OWN_OPTIONS = ("schema",)
"""Query parameters of a PostgreSQL URL that are for Errandry. The others are passed to libpq."""


def _options(url: str, parts: SplitResult, *known_options: str) -> dict[str, str]:
    """Return the query parameters of a URL; refuse unknown ones."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in known_options:
            similar = get_close_matches(name, known_options, 1)
            names = ", ".join(known_options) or "none"
            hint = f"did you mean {similar[0]}?" if similar else f"valid options: {names}"
            raise InvalidValue("url", without_password(url), f"has an unknown option {name!r}: {hint}")
    return options


_DRIVERS: dict[str, Callable[[str, SplitResult, Clock | None, StoreLimits | None], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
