"""The pytest plugin: fixtures for tests of programs that enqueue jobs.

It is a module outside the package, so that pytest can load it without importing Errandry: a test run that
uses no fixture of it costs nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from errandry import Errandry
    from errandry.testing import FakeClock, MemoryStore


@pytest.fixture
def errandry_clock() -> "FakeClock":
    """A clock that stands still until the test moves it."""
    from errandry.testing import FakeClock

    return FakeClock()


@pytest.fixture
def errandry_app() -> "Errandry":
    """The app under test. Override this fixture in your conftest.py to return your app."""
    from errandry import Errandry

    return Errandry("memory:")


@pytest.fixture
def errandry_store(errandry_app: "Errandry", errandry_clock: "FakeClock") -> "Iterator[MemoryStore]":
    """The empty store in memory that the app uses during the test."""
    from errandry.testing import in_memory

    with in_memory(errandry_app, errandry_clock) as store:
        yield store


@pytest.fixture
def errandry_jobs(errandry_app: "Errandry", errandry_store: "MemoryStore") -> "Errandry":
    """The app under test, on an empty store in memory and a clock that stands still."""
    assert errandry_app.store is errandry_store
    return errandry_app
