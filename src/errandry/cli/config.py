"""Defaults of options from `[tool.errandry]` in the nearest pyproject.toml."""

import os
import tomllib
from typing import Any

import click


def load_defaults(folder: str) -> dict[str, Any]:
    """Read the table as click's `default_map`, with a nested table for each command."""
    path = nearest_pyproject(folder)
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file).get("tool", {}).get("errandry", {})
    except (OSError, ValueError) as error:
        raise click.UsageError(f"cannot read {path}: {error}") from None
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: tool.errandry must be a table, not {table!r}")
    return _with_underscores(table)


def nearest_pyproject(folder: str) -> str | None:
    """The path of the pyproject.toml in this folder or the nearest folder above; None if there is none."""
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _with_underscores(table: dict[str, Any]) -> dict[str, Any]:
    """Convert keys to click's parameter names: `max-attempts` and `max_attempts` are the same."""
    return {
        key.replace("-", "_"): _with_underscores(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
