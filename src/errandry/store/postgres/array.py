"""Arrays as PostgreSQL reads them: one text per column of a batch, instead of a value per row and column."""

from collections.abc import Iterable
from typing import Any


def array(values: Iterable[Any]) -> str:
    """Texts, numbers, truth values and None as one array literal; the statement says of what."""
    return (
        "{"
        + ",".join([_quoted(value) if isinstance(value, str) else _plain(value) for value in values])
        + "}"
    )


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def _plain(value: Any) -> str:
    return "NULL" if value is None else str(value)
