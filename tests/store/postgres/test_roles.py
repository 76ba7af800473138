"""The roles of the guide: each can do what the guide says, and nothing else."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from errandry import Errandry, State
from errandry.api.task import Task
from errandry.cli.main import run
from errandry.core.command import Upkeep
from errandry.errors import StoreRefused
from tests.docs_page import blocks
from tests.run_worker import run_burst
from tests.store.server import server

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "postgres.md"
GRANTS = [block.text for block in blocks(PAGE.read_text("utf-8")) if block.text.startswith("CREATE ROLE")]
ROLES = [re.findall(r"CREATE ROLE (\w+)", text)[0] for text in GRANTS]


@pytest.fixture
def url() -> Iterator[str]:
    """A store with the roles of the guide."""
    url = server().new_url()
    schema = url.rpartition("schema=")[2]
    assert run(["migrate", "--url", url]) == 0
    with psycopg.connect(server().url(), autocommit=True) as db:
        for text in GRANTS:
            db.execute(text.replace("errandry", schema).encode())
        yield url
        for role in ROLES:
            db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.fixture
async def app_of(url: str) -> AsyncIterator[Callable[[str], Errandry]]:
    """Creates an app with one task that connects as a role."""
    apps: list[Errandry] = []

    def app_of(role: str) -> Errandry:
        apps.append(Errandry(url.replace("user=errandry", f"user={role}")))

        @apps[-1].task(max_attempts=2, backoff=0)
        async def send(to: str) -> str:
            if to == "nobody":
                raise LookupError(to)
            return f"sent to {to}"

        return apps[-1]

    yield app_of
    for jobs in apps:
        await jobs.close()


def send_of(jobs: Errandry) -> Task[[str], Any]:
    return jobs.tasks["send"]


def test_the_guide_has_three_roles() -> None:
    assert ROLES == ["enqueuer", "worker", "viewer"]


async def test_an_enqueuer_can_insert_jobs_and_read_none(app_of: Callable[[str], Errandry]) -> None:
    owner, jobs = app_of("errandry"), app_of("enqueuer")
    async with await psycopg.AsyncConnection.connect(server().url(), user="enqueuer") as db:
        job = await send_of(jobs).bind(db).enqueue("ada")
        await db.commit()
        assert (await owner.client.record(job.id)).state is State.WAITING
        for table in ("live", "history", "events", "bind_inbox", "totals"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await db.execute(f'SELECT 1 FROM "{schema_of(owner)}".{table}'.encode())
            await db.rollback()

    for refused in (jobs.list(), jobs.get(job.id), jobs.cancel(job.id), send_of(jobs).enqueue("grace")):
        with pytest.raises(StoreRefused) as caught:
            await refused
        assert re.search(
            r"permission denied for table (\w+): the user enqueuer lacks SELECT, INSERT, UPDATE, DELETE "
            rf"on table {schema_of(owner)}\.\1: .* jobs.bind\(connection\); for more, grant it",
            str(caught.value),
        )
    assert await owner.totals() == {"default": {"inserted": 1}}


async def test_a_worker_can_do_everything_except_change_tables(app_of: Callable[[str], Errandry]) -> None:
    owner, jobs = app_of("errandry"), app_of("worker")
    done, failed = await send_of(jobs).enqueue("ada"), await send_of(jobs).enqueue("nobody")
    bound = await send_of(jobs).using(delay=3_600).enqueue("ida")
    async with await psycopg.AsyncConnection.connect(server().url(), user="worker") as db:
        other = await send_of(jobs).bind(db).enqueue("grace")

    await run_burst(jobs)
    await jobs.queue("default").pause(by="worker")
    await jobs.cancel(bound.id)
    await jobs.remove(bound.id)

    states = [(await owner.client.record(job.id)).state for job in (done, other, failed)]
    assert states == [State.COMPLETED, State.COMPLETED, State.FAILED]
    with psycopg.connect(server().url(), user="worker", autocommit=True) as blocking:
        for statement in (
            "DROP TABLE errandry.live",
            "ALTER TABLE errandry.live ADD x text",
            "CREATE TABLE errandry.mine (x text)",
            "INSERT INTO errandry.migrations (number, name) VALUES (99, 'x')",
            "TRUNCATE errandry.history",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                blocking.execute(statement.replace("errandry.", f'"{schema_of(owner)}".').encode())


async def test_a_worker_creates_partitions_and_the_owner_drops_them(
    url: str, app_of: Callable[[str], Errandry], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, schema = app_of("worker"), url.rpartition("schema=")[2]
    partitions = f"SELECT count(*) FROM pg_inherits WHERE inhparent = '{schema}.history'::regclass"
    with psycopg.connect(server().url(), user="worker", autocommit=True) as db:
        db.execute(f"SELECT {schema}.create_history_partition(20000)".encode())  # long ago
        await jobs.engine.submit(Upkeep())
        assert db.execute(partitions.encode()).fetchone() == (2,)

        assert await asyncio.to_thread(run, ["migrate", "--url", url]) == 0, capsys.readouterr().err
        assert db.execute(partitions.encode()).fetchone() == (1,)


async def test_a_viewer_can_only_read(app_of: Callable[[str], Errandry]) -> None:
    owner, jobs = app_of("errandry"), app_of("viewer")
    job = await send_of(owner).enqueue("ada")

    assert [record.id for record in (await jobs.list("task:send payload~ada")).jobs] == [job.id]
    assert await jobs.counts() == {"default": {"waiting": 1}}
    assert (await jobs.why(job.id)).reasons
    assert (await jobs.queues())[0].name == "default"
    assert {finding.topic for finding in await jobs.engine.call(jobs.store.diagnose)} >= {
        "durability",
        "size",
    }
    lacking = r"the user viewer lacks (INSERT, UPDATE, DELETE on table|USAGE on sequence) \S+: grant"
    for refused in (jobs.cancel(job.id), jobs.queue("default").pause(), send_of(jobs).enqueue("grace")):
        with pytest.raises(StoreRefused, match=lacking):
            await refused
    async with await psycopg.AsyncConnection.connect(server().url(), user="viewer") as db:
        with pytest.raises(StoreRefused, match="must not enqueue"):
            await send_of(jobs).bind(db).enqueue("grace")
    assert await owner.counts() == {"default": {"waiting": 1}}


async def test_a_burst_without_the_rights_fails_with_the_reason(app_of: Callable[[str], Errandry]) -> None:
    await send_of(app_of("errandry")).enqueue("ada")

    with pytest.raises(
        StoreRefused, match=r"permission denied .*: the user viewer lacks INSERT, UPDATE, DELETE on"
    ):
        await asyncio.wait_for(run_burst(app_of("viewer")), 30)


def test_a_viewer_can_use_the_reading_commands(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    viewer_url = url.replace("user=errandry", "user=viewer")
    for command in (["jobs", "ls"], ["queues", "ls"], ["workers", "ls"], ["dlq", "ls"]):
        assert run([*command, "--url", viewer_url]) == 0, capsys.readouterr().err

    assert run(["queues", "pause", "default", "--url", viewer_url]) == 78
    assert "the user viewer lacks INSERT, UPDATE, DELETE on table" in capsys.readouterr().err


def test_a_user_without_any_right_is_told_the_first_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = url.rpartition("schema=")[2]
    with psycopg.connect(server().url(), autocommit=True) as db:
        db.execute("CREATE ROLE guest LOGIN")
        try:
            for grant, missing in (
                ("SELECT 1", f"lacks USAGE, CREATE on schema {schema}: grant it"),
                (f"GRANT USAGE ON SCHEMA {schema} TO guest", f"on table {schema}.migrations: grant it"),
            ):
                db.execute(grant.encode())
                assert run(["jobs", "ls", "--url", url.replace("user=errandry", "user=guest")]) == 78
                assert missing in capsys.readouterr().err
        finally:
            db.execute("DROP OWNED BY guest; DROP ROLE guest")


def schema_of(jobs: Errandry) -> str:
    return str(jobs.url).rpartition("schema=")[2]
