"""`[tool.errandry]` of the nearest pyproject.toml: what an option is when nobody says."""

import os
import tomllib
from typing import Any

import click


def configured(folder: str) -> dict[str, Any]:
    """The table as click's defaults, with a table inside for each command; empty if there is none."""
    path = _nearest(folder)
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file).get("tool", {}).get("errandry", {})
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: tool.errandry must be a table, not {table!r}")
    return _with_underscores(table)


def _nearest(folder: str) -> str | None:
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            return path
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _with_underscores(table: dict[str, Any]) -> dict[str, Any]:
    """Keys as click has them: `max-attempts` and `max_attempts` are the same."""
    return {
        key.replace("-", "_"): _with_underscores(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
