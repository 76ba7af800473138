"""Stores by address: `memory:`, `sqlite:///jobs.db` (relative), `sqlite:////var/lib/jobs.db` (absolute),
`postgresql://user@host/database`.

Drivers are imported only when they are asked for.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from errandry.clock import Clock
from errandry.errors import InvalidValue
from errandry.store.contract import Store, StoreLimits

DEFAULT = "sqlite:///errandry.db"


def store_at(url: str, clock: Clock | None = None, bounds: StoreLimits | None = None) -> Store:
    """The store `url` names, not opened yet."""
    parts = urlsplit(url)
    make = _DRIVERS.get(parts.scheme)
    if make is None:
        raise InvalidValue(
            "url", without_password(url), f"begins with none of {', '.join(f'{name}:' for name in _DRIVERS)}"
        )
    return make(parts, clock, bounds)


def without_password(url: str) -> str:
    """`url` as it may be shown and logged."""
    return _PARAMETER.sub(r"\1=…", _PASSWORD.sub(r"\1@", url))


_PASSWORD = re.compile(r"(://[^:/?@]*):[^/?@]*@")
_PARAMETER = re.compile(r"([?&](?:ssl)?password)=[^&]*")


def _memory(parts: SplitResult, clock: Clock | None, bounds: StoreLimits | None) -> Store:
    from errandry.store.memory.driver import MemoryStore

    _options(parts)
    if parts.netloc or parts.path:
        raise InvalidValue("url", parts.geturl(), "a store in memory has no name: write memory:")
    return MemoryStore(clock, bounds)


def _sqlite(parts: SplitResult, clock: Clock | None, bounds: StoreLimits | None) -> Store:
    from errandry.store.sqlite.driver import SqliteStore

    options = _options(parts, "durability")
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        right = "write sqlite:///jobs.db, or sqlite:////var/lib/jobs.db for an absolute path"
        raise InvalidValue("url", parts.geturl(), f"names no file: {right}")
    return SqliteStore(path, clock, bounds, **options)


def _postgres(parts: SplitResult, clock: Clock | None, bounds: StoreLimits | None) -> Store:
    try:
        from errandry.store.postgres.driver import PostgresStore
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        right = "install the extra postgres: pip install 'errandry[postgres]'"
        raise InvalidValue("url", f"{parts.scheme}:…", f"needs psycopg, which is not here: {right}") from None
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = {name: value for name, value in given if name in _OURS}
    rest = urlencode([pair for pair in given if pair[0] not in _OURS], quote_via=quote)
    url = f"postgresql://{parts.netloc}{parts.path}?{rest}"
    return PostgresStore(url, clock, bounds, **options)


_OURS = ("schema",)
"""Options of a PostgreSQL address that are not libpq's."""


def _options(parts: SplitResult, *known: str) -> dict[str, str]:
    """What follows the question mark; nothing that is not known."""
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(known) or 'none'}"
            raise InvalidValue("url", parts.geturl(), f"has an unknown option {name!r}: {hint}")
    return given


_DRIVERS: dict[str, Callable[[SplitResult, Clock | None, StoreLimits | None], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
