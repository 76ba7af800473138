"""Stores by URL: `memory:`, `sqlite:///jobs.db` (relative), `sqlite:////var/lib/jobs.db` (absolute),
`postgresql://user@host/database`.

A driver is imported only when a URL names it.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from os import PathLike, fspath
from urllib.parse import SplitResult, unquote, urlsplit

from errandry.clock import Clock
from errandry.errors import InvalidValue
from errandry.store.contract import Store, StoreLimits

DEFAULT_URL = "sqlite:///errandry.db"
PORT_MAX = 65_535


def store_at(url: str, clock: Clock | None = None, limits: StoreLimits | None = None) -> Store:
    """Return the store with this URL, not opened yet."""
    if not isinstance(url, str):
        path = fspath(url) if isinstance(url, PathLike) else "jobs.db"
        raise InvalidValue("url", url, f"must be a URL as text: write sqlite:///{path}")
    parts = _split(url)
    make = _DRIVERS.get(parts.scheme)
    if make is None:
        raise _refusal(url, "unknown scheme: use memory:, sqlite: or postgresql:")
    return make(url, parts, clock, limits)


def without_password(url: str) -> str:
    """Return `url` without its passwords, to be shown and logged."""
    url = _CUT_PASSWORD.sub(r"\1@", url)
    return _PARAMETER.sub(r"\1=…", _PASSWORD.sub(r"\1@", url))


_PASSWORD = re.compile(r"(://[^:/?@]*):[^/?]*@")
_CUT_PASSWORD = re.compile(r"(://(?!\[)[^:/?@]*):(?!\d*(?:[/?,:]|$))[^@/?]*[/?].*@")
"""A password with a `/` or `?`, which ends the host of a URL: no port is before it."""
_PARAMETER = re.compile(r"([?&](?:ssl)?password)=[^&]*")
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SLASHES = "write sqlite:///jobs.db for a file in the current folder, sqlite:////var/lib/jobs.db for another"


def _split(url: str) -> SplitResult:
    """Split a URL; refuse what `urlsplit` or the drivers would drop or misread without an error."""
    if not url.isprintable() or url != url.strip():
        raise _refusal(
            url, "has a space at one end, or a line break: leave it out, or write it as %20 or %0A"
        )
    if "#" in url:
        raise _refusal(url, "has a '#', after which nothing is read: write %23 for a # in a name or password")
    if _BARE_PERCENT.search(url):
        raise _refusal(url, "has a '%' without two hexadecimal digits after it: write %25 for a %")
    try:
        return urlsplit(url)
    except ValueError:  # its text may show a password
        raise _refusal(url, "has no valid host: write an IPv6 address in brackets, as [::1]") from None


def _memory(url: str, parts: SplitResult, clock: Clock | None, limits: StoreLimits | None) -> Store:
    from errandry.store.memory.driver import MemoryStore

    _check_options(url, _parameters(url, parts), ())
    if parts.netloc or parts.path:
        raise _refusal(url, "a store in memory has no name: write memory:")
    return MemoryStore(clock, limits)


def _sqlite(url: str, parts: SplitResult, clock: Clock | None, limits: StoreLimits | None) -> Store:
    from errandry.store.sqlite.driver import SqliteStore

    options = _parameters(url, parts)
    _check_options(url, options, ("durability",))
    path = unquote(parts.path).removeprefix("/")
    if path == ":memory:":
        raise _refusal(url, "names no file: write memory: for a store in memory")
    if parts.netloc:
        raise _refusal(url, f"names a host, {parts.netloc.rpartition('@')[2]!r}, but no file: {_SLASHES}")
    if not path:
        raise _refusal(url, f"names no file: {_SLASHES}")
    if not url[len(parts.scheme) :].startswith("://"):
        raise _refusal(url, f"has too few slashes before the path: {_SLASHES}")
    return SqliteStore(path, clock, limits, **options)


def _postgres(url: str, parts: SplitResult, clock: Clock | None, limits: StoreLimits | None) -> Store:
    try:
        from errandry.store.postgres.address import address_options
        from errandry.store.postgres.driver import PostgresStore
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("psycopg"):
            raise
        right = "install the extra postgres: pip install 'errandry[postgres]'"
        raise _refusal(url, f"needs psycopg, which is not installed: {right}") from None
    if _CUT_PASSWORD.search(url):
        raise _refusal(url, "has a '/' or '?' in the password: write %2F or %3F for it")
    parameters = _parameters(url, parts)
    _check_options(url, parameters, (*_OWN_OPTIONS, *address_options()), shown=_OWN_OPTIONS)
    if "/" in parts.path[1:]:
        raise _refusal(url, "has a '/' in the name of the database: write %2F for it, or leave it out")
    named = _named_before_query(parts)
    for name, value in named.items():
        if value and name in parameters:
            raise _refusal(url, f"gives {name} twice, before and after the '?': give it once")
    for port in filter(None, (named["port"] or parameters.get("port", "")).split(",")):
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX):
            right = f"must be a number from 1 to {PORT_MAX}, as in postgresql://host:5432/database"
            raise _refusal(url, f"the port {port!r} {right}")
    options = {name: value for name, value in parameters.items() if name in _OWN_OPTIONS}
    texts = filter(None, parts.query.split("&"))
    others = [text for text in texts if unquote(text.partition("=")[0]) not in _OWN_OPTIONS]
    query = f"?{'&'.join(others)}" if others else ""
    return PostgresStore(f"{url.partition('?')[0]}{query}", clock, limits, **options)


_OWN_OPTIONS = ("schema",)
"""Query parameters of a PostgreSQL URL that are for Errandry. The others are passed to libpq."""


def _named_before_query(parts: SplitResult) -> dict[str, str]:
    """The options of libpq that have a place before the query of a URL, with their values there."""
    user, _, hosts = parts.netloc.rpartition("@")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    name, _, password = user.partition(":")
    values = (name, password, hosts, ",".join(filter(None, ports)), parts.path[1:])
    return dict(zip(("user", "password", "host", "port", "dbname"), values, strict=True))


def _parameters(url: str, parts: SplitResult) -> dict[str, str]:
    """The query parameters of a URL; InvalidValue if one is given twice. A + is a plus, as in libpq."""
    parameters: dict[str, str] = {}
    for text in filter(None, parts.query.split("&")):
        name, _, value = (unquote(part) for part in text.partition("="))
        if name in parameters:
            raise _refusal(url, f"gives the option {name!r} twice: give it once")
        parameters[name] = value
    return parameters


def _check_options(
    url: str, given: Iterable[str], known: Sequence[str], shown: Sequence[str] | None = None
) -> None:
    """Refuse unknown query parameters. The message lists those in `shown`, by default all known ones."""
    for name in given:
        if name not in known:
            similar = get_close_matches(name, known, 1)
            names = ", ".join(known if shown is None else shown) or "none"
            more = "" if shown is None else ", and those of libpq such as sslmode"
            hint = f"did you mean {similar[0]}?" if similar else f"valid options: {names}{more}"
            raise _refusal(url, f"has an unknown option {name!r}: {hint}")


def _refusal(url: str, why: str) -> InvalidValue:
    return InvalidValue("url", without_password(url), why)


_DRIVERS: dict[str, Callable[[str, SplitResult, Clock | None, StoreLimits | None], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
