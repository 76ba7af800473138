"""What a PostgreSQL store says of itself: its server, the clocks, and what is in its way."""

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
    store = store_at(server().fresh())
    assert isinstance(store, PostgresStore)
    await store.open()
    yield store
    await store.close()


async def found(store: PostgresStore, topic: str) -> Finding:
    [finding] = [finding for finding in await store.diagnose() if finding.topic == topic]
    return finding


async def test_everything_is_looked_at(store: PostgresStore) -> None:
    findings = {finding.topic: finding for finding in await store.diagnose()}

    assert list(findings) == [
        *("postgres", "durability", "pooler", "clock", "connections", "transaction", "dead rows"),
        *("partitions", "size"),
    ]
    wrong = {topic for topic, finding in findings.items() if finding.grade is not Grade.GOOD}
    assert wrong == {"durability"}  # as the server of the tests is set
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
            "synchronous_commit is on: what is acknowledged survives a power cut",
        ),
        (True, True, "on", True, "good", "a standby has it too"),
        (True, True, "local", True, "good", "is local: what is acknowledged survives a power cut"),
        (True, True, "off", False, "note", "a crash of the server may take back the last moments"),
        (True, False, "on", False, "note", "may damage pages half written"),
        (False, True, "on", False, "wrong", "a crash of the host may lose or damage everything"),
    ],
)
def test_what_an_acknowledged_write_survives(
    fsync: bool, whole_pages: bool, commit: str, has_standby: bool, grade: str, text: str
) -> None:
    finding = health._durability(fsync, whole_pages, commit, has_standby)

    assert (finding.grade, finding.todo == "") == (grade, grade == "good")
    assert text in finding.text


async def test_the_setting_of_this_user_counts() -> None:
    with psycopg.connect(server().url(), options="-csynchronous_commit=remote_apply") as db:
        row = health._Look(db, store_at(server().fresh()).address)("server")  # type: ignore[attr-defined]

    assert row[5] == "remote_apply"


@pytest.mark.parametrize(
    ("row", "topic", "grade", "text"),
    [
        (("19.1", 190_001, False, True, True, "on", False, True, 7), "postgres", "note", "PostgreSQL 19.1"),
        (("16.2", 160_002, True, True, True, "on", False, True, 7), "standby", "wrong", "it is a standby"),
        (("16.2", 160_002, False, True, True, "on", False, False, 7), "vacuum", "wrong", "autovacuum is off"),
        (("16.2", 160_002, False, True, True, "on", False, True, 8), "pooler", "note", "one in between"),
    ],
)
def test_servers_that_are_not_as_they_should_be(
    row: tuple[object, ...], topic: str, grade: str, text: str
) -> None:
    findings = list(health._server(lambda _name: row, pid=7))  # type: ignore[arg-type]

    [finding] = [one for one in findings if one.grade is not Grade.GOOD]
    assert (finding.topic, finding.grade) == (topic, grade)
    assert text in finding.text
    assert finding.todo


@pytest.mark.parametrize(("off", "text"), [(600.0, "10 min ahead of"), (-11_000.0, "3 h behind")])
async def test_clocks_that_differ(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, off: float, text: str
) -> None:
    true = time.time
    monkeypatch.setattr(health, "time", SimpleNamespace(time=lambda: true() + off))

    clock = await found(store, "clock")

    assert (clock.grade, text in clock.text) == (Grade.NOTE, True)


async def test_a_transaction_that_is_open_for_long_is_named(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "OPEN_LONG", 0.0)
    with psycopg.connect(server().url(), application_name="a report") as db:
        db.execute("SELECT 1")

        finding = await found(store, "transaction")

        assert finding.grade is Grade.NOTE
        assert "that of a report (idle in transaction) has been open for" in finding.text
        assert f"pg_terminate_backend({db.info.backend_pid})" in finding.todo


def test_one_that_was_prepared_and_forgotten_is_wrong() -> None:
    rows = {"oldest": None, "prepared": ("transfer", 9_000.0), "sees_all": (True,)}

    [finding] = health._transactions(rows.__getitem__)  # type: ignore[arg-type]

    assert (finding.grade, finding.todo) == (Grade.WRONG, "ROLLBACK PREPARED 'transfer', or commit it")


async def test_too_many_connections_are_noted(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FULL", 0.0)

    assert (await found(store, "connections")).grade is Grade.NOTE


async def test_dead_rows_are_counted(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DEAD_MANY", 0)
    new = tuple(NewJob(id=str(number), task="task", payload="{}") for number in range(50))
    with psycopg.connect(server().url()) as reader:  # nobody can clean up behind it
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        await store.commit([Insert(new)])
        await store.commit([RemoveJobs(ids=tuple(job.id for job in new))])
        await store.close()  # its connections tell what they did when the server ends them, a little later
        await store.open()

        while int((finding := await found(store, "dead rows")).text.split(" beside ")[0]) < 50:
            pass  # every look asks the server anew

    assert finding.grade is Grade.NOTE


async def test_partitions_that_are_left_or_missing_are_noted(store: PostgresStore) -> None:
    assert (
        await found(store, "partitions")
    ).text == "finished jobs are in 1, one for each day some expire on"
    today = int(time.time() // 86_400)
    with psycopg.connect(server().url(), autocommit=True) as db:
        text = store.address.text
        for day in (today - 40, today - 39, today + 3):
            db.execute(text("SELECT errandry.make_day(%s)"), (day,))
        [(name,)] = db.execute("SELECT to_char(date '1970-01-01' + %s::integer, 'YYYYMMDD')", (today - 40,))
        db.execute(text(f"ALTER TABLE errandry.history DETACH PARTITION errandry.history_{name}").encode())

    left = await found(store, "partitions")

    assert left.grade is Grade.NOTE
    assert left.text.endswith(
        "in 3, one for each day some expire on; 1 of days long over and 1 detached ones are still there"
    )
    assert "errandry migrate" in left.todo
    await store.commit([Upkeep()])
    assert (await found(store, "partitions")).grade is Grade.GOOD


async def test_that_tomorrows_partition_is_not_made_yet_is_noted(store: PostgresStore) -> None:
    await store.commit([Insert((NewJob(id="a", task="task", payload="{}"),))])
    await store.commit([CancelJobs(ids=("a",))])

    assert "tomorrow" in (await found(store, "partitions")).text
    await store.commit([Upkeep()])
    assert (await found(store, "partitions")).grade is Grade.GOOD
