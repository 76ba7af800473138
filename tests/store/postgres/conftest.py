"""A PostgreSQL store opened twice, as by two processes, with a fake clock; and the statements it sends."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.testing.clock import FakeClock
from tests.store.postgres.given import opened
from tests.store.server import reuse_sessions, server


@pytest.fixture
def url() -> Iterator[str]:
    with server().lend_url() as url, reuse_sessions():
        yield url


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(url: str, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    async with opened(url, clock) as store:
        yield store


@pytest.fixture
async def other(url: str, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    """The same store, opened a second time, as by another process."""
    async with opened(url, clock) as store:
        yield store


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    schema = url.rpartition("schema=")[2]
    with psycopg.connect(server().url(), autocommit=True) as db:
        db.execute(f"SET search_path = {schema}")
        yield db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that stores send, in their order."""
    names: list[str] = []
    send = Pipeline.send

    def sending(self: Pipeline, name: str, params: StatementParams = ()) -> PendingResult:
        names.append(name)
        return send(self, name, params)

    monkeypatch.setattr(Pipeline, "send", sending)
    return names
