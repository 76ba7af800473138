"""The health checks of a PostgreSQL store: server, clocks, connections, transactions and tables."""

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import psycopg
import pytest

from errandry.core.command import CancelJobs, Insert, RemoveJobs, Upkeep
from errandry.core.job import NewJob
from errandry.store.health import Finding, Grade
from errandry.store.postgres import health
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at
from tests.store.server import server


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = store_at(server().new_url())
    assert isinstance(store, PostgresStore)
    await store.open()
    yield store
    await store.close()


async def finding_of(store: PostgresStore, topic: str) -> Finding:
    [finding] = [finding for finding in await store.diagnose() if finding.topic == topic]
    return finding


async def test_every_topic_is_checked(store: PostgresStore) -> None:
    findings = {finding.topic: finding for finding in await store.diagnose()}

    assert list(findings) == [
        *("postgres", "durability", "pooler", "clock", "connections", "transaction", "dead rows"),
        *("partitions", "size"),
    ]
    wrong = {topic for topic, finding in findings.items() if finding.grade is not Grade.GOOD}
    assert wrong == {"durability"}  # the server of the tests runs without fsync
    assert findings["postgres"].text.startswith("PostgreSQL 1")


@pytest.mark.parametrize(
    ("fsync", "whole_pages", "commit", "has_standby", "grade", "text"),
    [
        (
            True,
            True,
            "on",
            False,
            "good",
            "synchronous_commit is on: acknowledged writes survive a power cut",
        ),
        (True, True, "on", True, "good", "a standby has a copy"),
        (True, True, "local", True, "good", "is local: acknowledged writes survive a power cut"),
        (True, True, "off", False, "note", "a crash of the server may lose the last passes"),
        (True, False, "on", False, "note", "may damage pages that are partly written"),
        (False, True, "on", False, "wrong", "a crash of the host may lose or damage everything"),
    ],
)
def test_what_an_acknowledged_write_survives(
    fsync: bool, whole_pages: bool, commit: str, has_standby: bool, grade: str, text: str
) -> None:
    finding = health._durability(fsync, whole_pages, commit, has_standby)

    assert (finding.grade, finding.todo == "") == (grade, grade == "good")
    assert text in finding.text


async def test_the_setting_of_the_connection_counts() -> None:
    with psycopg.connect(server().url(), options="-csynchronous_commit=remote_apply") as db:
        row = health._HealthQueries(db, store_at(server().new_url()).address)("server")  # type: ignore[attr-defined]

    assert row[5] == "remote_apply"


@pytest.mark.parametrize(
    ("row", "topic", "grade", "text"),
    [
        (("19.1", 190_001, False, True, True, "on", False, True, 7), "postgres", "note", "PostgreSQL 19.1"),
        (
            ("16.2", 160_002, True, True, True, "on", False, True, 7),
            "standby",
            "wrong",
            "the server is a standby",
        ),
        (("16.2", 160_002, False, True, True, "on", False, False, 7), "vacuum", "wrong", "autovacuum is off"),
        (("16.2", 160_002, False, True, True, "on", False, True, 8), "pooler", "note", "there is one"),
    ],
)
def test_problems_of_the_server_are_reported(
    row: tuple[object, ...], topic: str, grade: str, text: str
) -> None:
    findings = list(health._server(lambda _name: row, pid=7))  # type: ignore[arg-type]

    [finding] = [finding for finding in findings if finding.grade is not Grade.GOOD]
    assert (finding.topic, finding.grade) == (topic, grade)
    assert text in finding.text
    assert finding.todo


@pytest.mark.parametrize(("skew", "text"), [(600.0, "10 min ahead of"), (-11_000.0, "3 h behind")])
async def test_a_clock_skew_is_reported(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, skew: float, text: str
) -> None:
    real_time = time.time
    monkeypatch.setattr(health, "time", SimpleNamespace(time=lambda: real_time() + skew))

    clock = await finding_of(store, "clock")

    assert (clock.grade, text in clock.text) == (Grade.NOTE, True)


async def test_a_long_transaction_is_reported(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LONG_TRANSACTION", 0.0)
    with psycopg.connect(server().url(), application_name="a report") as db:
        db.execute("SELECT 1")

        finding = await finding_of(store, "transaction")

        assert finding.grade is Grade.NOTE
        assert "one of a report (idle in transaction) has been open for" in finding.text
        assert f"pg_terminate_backend({db.info.backend_pid})" in finding.todo


def test_an_old_prepared_transaction_is_reported_as_wrong() -> None:
    rows = {"oldest_transaction": None, "oldest_prepared": ("transfer", 9_000.0), "sees_all": (True,)}

    [finding] = health._transactions(rows.__getitem__)  # type: ignore[arg-type]

    assert (finding.grade, finding.todo) == (Grade.WRONG, "ROLLBACK PREPARED 'transfer', or commit it")


async def test_too_many_connections_are_reported(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CONNECTIONS_FULL", 0.0)

    assert (await finding_of(store, "connections")).grade is Grade.NOTE


async def test_many_dead_rows_are_reported(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DEAD_ROWS_MAX", 0)
    new = tuple(NewJob(id=str(number), task="task", payload="{}") for number in range(50))
    with psycopg.connect(server().url()) as reader:  # vacuum cannot remove the rows it may see
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        await store.commit([Insert(new)])
        await store.commit([RemoveJobs(ids=tuple(job.id for job in new))])
        await store.close()  # a connection reports its statistics shortly after it ends
        await store.open()

        while int((finding := await finding_of(store, "dead rows")).text.split(" beside ")[0]) < 50:
            pass  # each check asks the server again

    assert finding.grade is Grade.NOTE


async def test_old_and_detached_partitions_are_reported(store: PostgresStore) -> None:
    assert (
        await finding_of(store, "partitions")
    ).text == "finished jobs are in 1, one for each day on which jobs expire"
    today = int(time.time() // 86_400)
    with psycopg.connect(server().url(), autocommit=True) as db:
        text = store.address.qualify
        for day in (today - 40, today - 39, today + 3):
            db.execute(text("SELECT errandry.create_history_partition(%s)"), (day,))
        [(name,)] = db.execute("SELECT to_char(date '1970-01-01' + %s::integer, 'YYYYMMDD')", (today - 40,))
        db.execute(text(f"ALTER TABLE errandry.history DETACH PARTITION errandry.history_{name}").encode())

    finding = await finding_of(store, "partitions")

    assert finding.grade is Grade.NOTE
    assert finding.text.endswith(
        "in 3, one for each day on which jobs expire; 1 of past days and 1 detached ones still exist"
    )
    assert "errandry migrate" in finding.todo
    await store.commit([Upkeep()])
    assert (await finding_of(store, "partitions")).grade is Grade.GOOD


async def test_a_missing_partition_for_tomorrow_is_reported(store: PostgresStore) -> None:
    await store.commit([Insert((NewJob(id="a", task="task", payload="{}"),))])
    await store.commit([CancelJobs(ids=("a",))])

    assert "tomorrow" in (await finding_of(store, "partitions")).text
    await store.commit([Upkeep()])
    assert (await finding_of(store, "partitions")).grade is Grade.GOOD
