"""Cursors of listings and of the event log, as text. They carry the id of their store: others refuse them."""

from hashlib import blake2b
from typing import Any

from errandry.core.check import INT_MAX
from errandry.core.query import Query
from errandry.errors import InvalidCursor


def for_jobs(identity: str, query: Query, below: int) -> str:
    return f"jobs-{identity}-{_digest(query)}-{below}"


def below(cursor: str, identity: str, query: Query) -> int:
    """Return the `seq` below which the listing continues."""
    digest, number = _parts(cursor, "jobs", identity, 2)
    if digest != _digest(query):
        raise InvalidCursor(cursor, "it belongs to another query")
    return _number(cursor, number)


def for_events(identity: str, row: int, index: int) -> str:
    return f"events-{identity}-{row}-{index}"


def in_row(identity: str, row: int, index: int, count: int) -> str:
    """The cursor after one event of a row of `count` events: after the last one, the next row."""
    return for_events(identity, row, index + 1) if index + 1 < count else for_events(identity, row + 1, 0)


def after(cursor: str, identity: str) -> tuple[int, int]:
    """Return the row of the event log to continue with, and how many of its events to skip."""
    row, index = _parts(cursor, "events", identity, 2)
    return _number(cursor, row), _number(cursor, index)


def _parts(cursor: Any, kind: str, identity: str, count: int) -> list[str]:
    parts = cursor.split("-") if isinstance(cursor, str) else []
    if len(parts) != 2 + count or parts[0] != kind:
        raise InvalidCursor(cursor, f"not a cursor of {kind}")
    if parts[1] != identity:
        raise InvalidCursor(cursor, "it comes from another store")
    return parts[2:]


def _number(cursor: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= INT_MAX):
        raise InvalidCursor(cursor, "its numbers are damaged")
    return int(text)


def _digest(query: Query) -> str:
    return blake2b(str(query).encode(), digest_size=4).hexdigest()
