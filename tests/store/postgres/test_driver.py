"""The PostgreSQL store beyond the conformance suite: opening, locks, concurrency, notifications, forks.

Run as a program, this file is one of the processes of some tests.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from errandry.core.answer import Claims, Inserted, Moved
from errandry.core.command import Beat, CancelJobs, Claim, Upkeep
from errandry.errors import (
    CommandFailed,
    ForeignDatabase,
    InvalidValue,
    SchemaTooNew,
    StoreClosed,
    StoreRefused,
)
from errandry.store.postgres import listener
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at
from errandry.testing.clock import FakeClock
from tests.machine_load import WAIT_TIMEOUT
from tests.new_jobs import insert
from tests.store.postgres.given import opened, schema_of
from tests.store.server import server, wheel_programs

ROOT = Path(__file__).parents[3]

others = pytest.mark.slow("starts other programs")


@pytest.fixture
def url() -> Iterator[str]:
    with server().lend_url() as url:
        yield url


@pytest.fixture
def db() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server().url(), autocommit=True) as db:
        yield db


# Opening.


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("postgresql:///x?schema=Upper", "small letters"),
        ("postgresql:///x?schema=a;drop", "small letters"),
        ("postgresql:///x?shema=a", "shema"),
        ("postgres://u:secret@ho st/x", "libpq cannot read it"),
    ],
)
def test_a_wrong_address_is_refused_and_no_password_shown(url: str, hint: str) -> None:
    with pytest.raises(InvalidValue, match=hint) as caught:
        store_at(url)

    assert "secret" not in str(caught.value)


def test_an_address_may_have_every_option_of_libpq() -> None:
    store = store_at("postgres://u:secret@a,b:5433/jobs?sslmode=require&schema=mine")

    assert isinstance(store, PostgresStore)
    assert store.address.schema == "mine"
    assert store.address.name == "postgresql://a,b/jobs"
    assert "target_session_attrs=read-write" in store.address.conninfo
    assert "sslmode=require" in store.address.conninfo


@others
def test_without_psycopg_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from errandry.store.url import store_at\n"
        "try: store_at('postgresql:///x')\n"
        "except ValueError as error: print(error)"
    )

    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout

    assert "pip install 'errandry[postgres]'" in output


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"user": "stranger"}, "the user was refused"),
        ({"dbname": "nowhere", "user": "errandry"}, "create it first"),
    ],
)
async def test_the_error_of_a_failed_open_says_what_to_do(options: dict[str, str], hint: str) -> None:
    given = {"dbname": "postgres", "host": server().folder, **options}
    with pytest.raises(StoreRefused, match=hint):
        async with opened(f"postgresql://?{urlencode(given)}"):
            pass


async def test_a_schema_of_another_program_is_refused(db: psycopg.Connection[Any]) -> None:
    url = server().new_url()
    db.execute(f"CREATE SCHEMA {schema_of(url)}")
    db.execute(f"CREATE TABLE {schema_of(url)}.live (n int)")

    with pytest.raises(ForeignDatabase, match="another program's data"):
        async with opened(url):
            pass


async def test_a_newer_schema_is_refused(db: psycopg.Connection[Any]) -> None:
    url = server().new_url()
    async with opened(url):
        pass
    db.execute(f"INSERT INTO {schema_of(url)}.migrations (number, name) VALUES (9999, 'later')")

    with pytest.raises(SchemaTooNew, match="upgrade Errandry"):
        async with opened(url):
            pass


async def test_many_stores_may_open_a_new_schema_at_once() -> None:
    url = server().new_url()
    stores = [store_at(url) for _ in range(8)]

    await asyncio.gather(*(store.open() for store in stores))

    for number, store in enumerate(stores):
        await store.commit([insert(f"job-{number}")])
        await store.close()
    async with opened(url) as store:
        assert await store.counts() == {"default": {"waiting": 8}}


async def test_a_user_without_the_right_to_create_schemas_can_use_an_existing_one(
    db: psycopg.Connection[Any],
) -> None:
    url = server().new_url()
    user = schema_of(url)
    db.execute(f"CREATE ROLE {user} LOGIN")
    db.execute(f"CREATE SCHEMA {user} AUTHORIZATION {user}")

    async with opened(url.replace("user=errandry", f"user={user}")) as store:
        await store.commit([insert("a")])
        assert await store.counts() == {"default": {"waiting": 1}}


@pytest.mark.prove
@pytest.mark.timeout(1_800)
def test_the_newest_server_passes_the_suite_too() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "tests/store",
            "-k",
            "postgres and not newest and not plans",
        ],
        cwd=ROOT,
        env={**os.environ, "ERRANDRY_POSTGRES": str(wheel_programs())},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout


# Passes.


async def test_the_time_does_not_go_back_when_the_store_is_opened_again(url: str) -> None:
    clock = FakeClock()
    async with opened(url, clock) as store:
        await store.commit([Beat(worker="w")])
        clock.jump(-3_600)
        clock.advance(10)
        await store.commit([Beat(worker="w")])  # a beat makes no event
        [info] = await store.workers()
    async with opened(url, clock) as store:
        await store.commit([insert("a")])
        [job] = await store.get(["a"])

    assert job is not None
    assert job.created_at >= info.seen_at


async def test_a_program_that_only_enqueues_has_one_connection(url: str, db: psycopg.Connection[Any]) -> None:
    async with opened(f"{url}&application_name=enqueues_only") as store:
        await store.commit([insert("a")])
        await store.commit([insert("b")])

        own = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'enqueues_only'"
        assert db.execute(own).fetchall() == [(1,)]


async def test_one_bad_command_fails_alone(url: str, db: psycopg.Connection[Any]) -> None:
    async with opened(url) as store:
        db.execute(f"ALTER TABLE {schema_of(url)}.live ADD CONSTRAINT odd CHECK (id <> 'bad')")
        try:
            answers = await store.commit([insert("a"), insert("bad"), insert("b")])
        finally:
            db.execute(f"ALTER TABLE {schema_of(url)}.live DROP CONSTRAINT odd")

        assert [type(answer) for answer in answers] == [Inserted, CommandFailed, Inserted]
        assert "odd" in str(answers[1])
        assert await store.counts() == {"default": {"waiting": 2}}


async def test_an_open_store_survives_a_new_column(url: str, db: psycopg.Connection[Any]) -> None:
    """Like an old worker while a newer program migrates."""
    async with opened(url) as store:
        await store.commit([insert("a", "b", "c")])
        await store.commit([Claim(worker="w", nonce="1")])
        await store.commit([CancelJobs(ids=("b",))])
        db.execute(f"ALTER TABLE {schema_of(url)}.live ADD COLUMN later text")

        [moved] = await store.commit([CancelJobs(ids=("c",))])
        [claims] = await store.commit([Claim(worker="w", nonce="2")])
        jobs = await store.get(["a", "b", "c"])

    assert isinstance(moved, Moved)
    assert isinstance(claims, Claims)
    assert [job.state for job in jobs if job is not None] == ["running", "canceled", "canceled"]


async def test_a_running_upkeep_is_answered_when_the_store_closes(url: str) -> None:
    async with opened(url) as store:
        upkeep = asyncio.create_task(store.commit([Upkeep()]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await store.close()
        done, _ = await asyncio.wait([upkeep], timeout=WAIT_TIMEOUT)

    assert done
    assert isinstance(upkeep.exception(), StoreClosed | None)


async def test_a_lane_keeps_its_mark_while_a_transaction_holds_it(
    url: str, db: psycopg.Connection[Any]
) -> None:
    async with opened(url) as store:
        await store.commit([insert("a")])
        [claims] = await store.commit([Claim(worker="w", nonce="n")])
        assert isinstance(claims, Claims)
        lanes = f"{schema_of(url)}.lanes"
        with db.transaction():
            db.execute(f"SELECT 1 FROM {lanes} WHERE ready FOR SHARE")
            await store.commit([Upkeep()])
            assert db.execute(f"SELECT ready FROM {lanes}").fetchall() == [(True,)]

        await store.commit([Upkeep()])
        assert db.execute(f"SELECT ready FROM {lanes}").fetchall() == [(False,)]
        await store.commit([insert("b")])
        [claims] = await store.commit([Claim(worker="w", nonce="m")])
        assert isinstance(claims, Claims)
        assert [job.id for job in claims.jobs] == ["b"]


# Waking.


async def test_a_commit_wakes_other_stores_and_not_its_own(url: str) -> None:
    async with opened(url) as writer, opened(url) as waiter:
        version = waiter.version()
        await waiter.wait_for_change(version, 0.0)
        async with asyncio.timeout(30):
            await waiter.wait_for_change(version, 30.0)  # from now on it listens
            version = waiter.version()
            await writer.commit([insert("a")])
            assert await waiter.wait_for_change(version, 30.0)

        version = waiter.version()
        await waiter.commit([insert("b")])
        await asyncio.sleep(0.1)
        assert waiter.version() == version + 1


async def test_without_notifications_the_listener_polls_and_warns_once(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "POLL_INTERVAL", 0.02)
    monkeypatch.setattr(listener, "POLL_INTERVAL_WITHOUT_NOTIFY", 0.01)
    monkeypatch.setattr(listener.Listener, "_notifications", no_notifications)
    caplog.set_level(logging.WARNING, "errandry.store")
    async with opened(url) as writer, opened(url) as waiter:
        await waiter.wait_for_change(waiter.version(), 1.0)
        for number in range(5):
            version = waiter.version()
            await writer.commit([insert(f"job-{number}")])
            async with asyncio.timeout(30):
                assert await waiter.wait_for_change(version, 30.0)

    assert [record.message.count("transaction pooler") for record in caplog.records] == [1]


def no_notifications(_: listener.Listener, seconds: float) -> list[psycopg.Notify]:
    time.sleep(seconds)
    return []


# Forks.


@others
def test_after_a_fork_parent_and_child_each_have_connections_of_their_own(url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.store.postgres.test_driver", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"child": 0, "jobs": ["after", "before", "child", "parent"]}


def use_store_across_a_fork(url: str) -> None:
    async def use(*names: str) -> None:
        for name in names:
            [answer] = await store.commit([insert(name)])
            assert isinstance(answer, Inserted), answer

    store = store_at(url)
    asyncio.run(store.open())
    asyncio.run(use("before"))
    if not (child := os.fork()):
        asyncio.run(use("child"))
        asyncio.run(store.close())
        os._exit(0)
    asyncio.run(use("parent"))
    _, status = os.waitpid(child, 0)
    asyncio.run(use("after"))

    async def names() -> list[str]:
        return sorted(job.id for job in (await store.list()).jobs)

    job_ids = asyncio.run(names())
    asyncio.run(store.close())
    sys.stdout.write(json.dumps({"child": status, "jobs": job_ids}))


if __name__ == "__main__":
    use_store_across_a_fork(sys.argv[1])
