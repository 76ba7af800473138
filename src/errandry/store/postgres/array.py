"""Arrays as PostgreSQL reads them: one text per column of a batch, instead of a value per row and column."""

from collections.abc import Iterable, Sequence
from typing import Any


def columns(rows: Iterable[Sequence[Any]]) -> list[str]:
    """The columns of some rows, for `unnest`; the first has no None."""
    return [_column(values) for values in zip(*rows, strict=True)]


def _column(values: tuple[Any, ...]) -> str:
    """Many a column holds one value, or nothing: `unnest` fills up with NULL what is too short."""
    first = values[0]
    if values.count(first) < len(values):
        return array(values)
    if first is None:
        return "{}"
    text = _quoted(first) if isinstance(first, str) else str(first)
    return "{" + ",".join([text] * len(values)) + "}"


def array(values: Iterable[Any]) -> str:
    """Texts, or numbers and truth values, or None, as one array literal; the statement says of what."""
    values = list(values)
    first = next((value for value in values if value is not None), None)
    if first is None:
        return "{" + ",".join(["NULL"] * len(values)) + "}"
    if isinstance(first, str):
        return _texts(values)
    return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"


def _texts(values: list[str | None]) -> str:
    """Escaped all at once: none has U+0000 in it, which no text of PostgreSQL may have."""
    whole = [value for value in values if value is not None]
    text = "\0".join(whole)
    if len(whole) < len(values) or text.count("\0") >= len(whole):
        return "{" + ",".join(map(_quoted, values)) + "}"
    return '{"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","') + '"}'


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
