"""Array literals for PostgreSQL: a batch is sent as one text per column, not one value per row and column."""

from collections.abc import Iterable, Sequence
from typing import Any


def columns(rows: Iterable[Sequence[Any]]) -> list[str]:
    """The columns of some rows as array literals, for `unnest`. The first column has no None."""
    return [_column(values) for values in zip(*rows, strict=True)]


def _column(values: tuple[Any, ...]) -> str:
    """Many columns hold one value in all rows, or None. `unnest` pads a short array with NULL."""
    first = values[0]
    if values.count(first) < len(values):
        return array(values)
    if first is None:
        return "{}"
    text = _quote(first) if isinstance(first, str) else str(first)
    return "{" + ",".join([text] * len(values)) + "}"


def array(values: Iterable[Any]) -> str:
    """An array literal of texts, numbers, booleans or None. The statement casts it to its type."""
    values = list(values)
    first = next((value for value in values if value is not None), None)
    if first is None:
        return "{" + ",".join(["NULL"] * len(values)) + "}"
    if isinstance(first, str):
        return _texts(values)
    return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"


def _texts(values: list[str | None]) -> str:
    """Join the texts with U+0000, which PostgreSQL allows in no text, to escape all of them at once."""
    texts = [value for value in values if value is not None]
    text = "\0".join(texts)
    if len(texts) < len(values) or text.count("\0") >= len(texts):
        return "{" + ",".join(map(_quote, values)) + "}"
    return '{"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


def _quote(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
