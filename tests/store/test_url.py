"""Stores by URL."""

from pathlib import Path

import pytest

from errandry.errors import InvalidValue
from errandry.store.memory.driver import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.file import Durability
from errandry.store.url import store_at, without_password


def test_a_memory_url_gives_a_memory_store() -> None:
    assert isinstance(store_at("memory:"), MemoryStore)


def test_a_path_after_three_slashes_is_relative_and_after_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    relative, absolute = store_at("sqlite:///a%20b.db"), store_at("sqlite:////var/lib/jobs.db")

    assert isinstance(relative, SqliteStore)
    assert isinstance(absolute, SqliteStore)
    assert (relative.path, absolute.path) == (str(tmp_path / "a b.db"), "/var/lib/jobs.db")


def test_writes_survive_a_power_cut_by_default() -> None:
    default, weaker = store_at("sqlite:///a.db"), store_at("sqlite:///a.db?durability=process")

    assert isinstance(default, SqliteStore)
    assert isinstance(weaker, SqliteStore)
    assert (default.durability, weaker.durability) == (Durability.POWER, Durability.PROCESS)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("postgresql://u:s:cret@h:1/db?sslmode=require", "postgresql://u@h:1/db?sslmode=require"),
        ("postgresql://h/db?user=u&password=secret&schema=x", "postgresql://h/db?user=u&password=…&schema=x"),
        ("postgresql://:secret@h/db", "postgresql://@h/db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize("url", ["sqlite:///x.db?foo=1", "sqlite://", "memory://x", "sqlite:"])
def test_an_error_shows_the_url_as_it_was_given(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        store_at(url)

    assert caught.value.value == url


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "memory:, sqlite:"),
        ("oracle://x", "memory:, sqlite:"),
        ("sqlite:", "sqlite:///jobs.db"),
        ("sqlite://jobs.db", "sqlite:///jobs.db"),
        ("sqlite:///", "sqlite:///jobs.db"),
        ("sqlite:///a.db?durabilty=process", "did you mean durability?"),
        ("sqlite:///a.db?durability=paper", "one of power, process"),
        ("memory://x", "write memory:"),
        ("memory:?durability=process", "valid options: none"),
    ],
)
def test_a_wrong_url_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        store_at(url)

    assert hint in str(caught.value)
