"""Fixtures of the SQLite tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.sqlite.processes import Child, Start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program of programs.py. All of them end with the test."""
    children: list[Child] = []

    def start_program(name: str, *args: object) -> Child:
        children.append(Child(name, *args))
        return children[-1]

    yield start_program
    for child in children:
        child.clean_up()
