"""Stores by URL."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from errandry.errors import InvalidValue
from errandry.store.memory.driver import MemoryStore
from errandry.store.postgres.driver import PostgresStore
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
        ("postgresql://u:sec@ret@h/db", "postgresql://u@h/db"),
        ("postgresql://u:sec/ret@h/db", "postgresql://u@h/db"),
        ("postgresql://u:sec?ret@h/db", "postgresql://u@h/db"),
        ("postgresql://h:1/db?options=a@b", "postgresql://h:1/db?options=a@b"),
        ("postgresql://[2001:db8::1]:1/db?options=a@b", "postgresql://[2001:db8::1]:1/db?options=a@b"),
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
        ("memory:x", "write memory:"),
        ("sqlite:/a.db", "has too few slashes before the path: write sqlite:///jobs.db"),
        ("sqlite:a.db", "has too few slashes before the path: write sqlite:///jobs.db"),
        ("sqlite://localhost/a.db", "names a host, 'localhost', but no file"),
        ("sqlite:///:memory:", "write memory: for a store in memory"),
        ("sqlite:///a.db#b", "write %23 for a #"),
        ("sqlite:///a.db\n", "a line break: leave it out"),
        (" sqlite:///a.db", "a space at one end"),
        ("sqlite:///a%b.db", "write %25 for a %"),
        ("sqlite:///a.db?durability=power&durability=process", "gives the option 'durability' twice"),
        ("postgresql://h/db?schema=a&schema=b", "gives the option 'schema' twice"),
        ("postgresql://h/db?sslmode=require&sslmode=disable", "gives the option 'sslmode' twice"),
        ("postgresql://h/db?sslmod=require", "did you mean sslmode?"),
        ("postgresql://h/db?nothing=1", "valid options: schema, and those of libpq such as sslmode"),
        ("postgresql://h/db?host=other", "gives host twice, before and after the '?'"),
        ("postgresql://h:1/db?port=2", "gives port twice"),
        ("postgresql://u:x@h/db?user=v", "gives user twice"),
        ("postgresql://h/db/more", "has a '/' in the name of the database: write %2F"),
        ("postgresql://h:abc", "the port 'abc' must be a number from 1 to 65535"),
        ("postgresql://h:0/db", "the port '0' must be"),
        ("postgresql://a:1,b:65536/db?schema=x", "the port '65536' must be"),
        ("postgresql://h/db?port=x", "the port 'x' must be"),
        ("postgresql://[::1/db", "write an IPv6 address in brackets"),
    ],
)
def test_a_wrong_url_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        store_at(url)

    assert hint in str(caught.value)


@pytest.mark.parametrize("part", ["sec/ret", "sec?ret", "sec#ret", "sec%ret", "sec@ret[", "sec/ret?a=1&a=2"])
def test_a_refusal_does_not_show_a_password(part: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        store_at(f"postgresql://user:{part}@host/db")

    assert "sec" not in str(caught.value)
    assert "ret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql:///db?host=/run", {"host": "/run", "dbname": "db"}),
        ("postgresql://u:p%2Fw@h:1/d%2Fb", {"user": "u", "password": "p/w", "port": "1", "dbname": "d/b"}),
        ("postgres://h/db?password=a+b&schema=x", {"host": "h", "password": "a+b"}),
        ("postgresql://a,b:2/db", {"host": "a,b", "port": ",2"}),
        ("postgresql://[::1]:1/db", {"host": "::1", "port": "1"}),
    ],
)
def test_libpq_gets_the_other_parts_of_a_url_as_they_are(url: str, expected: dict[str, str]) -> None:
    store = store_at(url)

    assert isinstance(store, PostgresStore)
    assert conninfo_to_dict(store.address.conninfo).items() >= expected.items()
