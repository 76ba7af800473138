"""Arrays as PostgreSQL reads them: one text per column of a batch, instead of a value per row and column."""

from collections.abc import Iterable
from typing import Any


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
    text = '","'.join(["\\" if value is None else value for value in values])
    if "\\" in text or text.count('"') != 2 * len(values) - 2:  # something is to be escaped, or None
        return "{" + ",".join(map(_quoted, values)) + "}"
    return '{"' + text + '"}'


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
