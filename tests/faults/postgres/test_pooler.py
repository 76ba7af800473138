"""Behind a transaction pooler everything works. Features that need a session fall back, with one warning."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from errandry import Errandry, State
from errandry.core.command import Upkeep
from errandry.store.postgres.driver import PostgresStore
from errandry.store.url import store_at
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.pooler import Pooler
from tests.new_jobs import insert
from tests.run_worker import run_burst, running_worker

pytestmark = pytest.mark.slow("many transactions over few sessions")


@pytest.fixture
async def pooler(mortal: Mortal) -> AsyncIterator[Pooler]:
    folder = mortal.folder / "pooler"  # a short path: the path of a socket has at most 107 bytes
    folder.mkdir(exist_ok=True)
    async with Pooler(mortal.folder, folder, sessions=3).running() as pooler:
        yield pooler
    for file in folder.iterdir():
        file.unlink()


@pytest.fixture
def pooled(pooler: Pooler, mortal: Mortal) -> str:
    return mortal.new_url().replace(f"host={mortal.folder}", f"host={mortal.folder}/pooler")


async def test_jobs_are_enqueued_run_and_read(pooled: str, pooler: Pooler) -> None:
    async with Errandry(pooled) as jobs, Errandry(pooled) as others:

        @jobs.task(max_attempts=2, backoff=0)
        async def send(to: str) -> str:
            if to == "nobody":
                raise LookupError(to)
            return f"sent to {to}"

        enqueued = await asyncio.gather(*(send.enqueue(f"{number}") for number in range(200)))
        failing = await send.enqueue("nobody")
        await asyncio.gather(run_burst(jobs), *(others.counts() for _ in range(50)))
        await jobs.engine.submit(Upkeep())

        assert [await job.result(30) for job in enqueued[:5]] == [f"sent to {n}" for n in range(5)]
        assert (await others.client.record(failing.id)).state is State.FAILED
        assert await others.counts() == {"default": {"completed": 200, "failed": 1}}
        assert pooler.transactions > 50
        store = jobs.store
        assert isinstance(store, PostgresStore)
        findings = [
            finding for finding in await jobs.engine.call(store.diagnose) if finding.topic == "pooler"
        ]
        assert "there is one:" in findings[0].text


async def test_workers_find_jobs_by_polling_and_warn_once(
    pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "errandry.store")
    async with Errandry(pooled) as jobs, Errandry(pooled) as others:

        @jobs.task
        async def send(to: str) -> str:
            return f"sent to {to}"

        async with running_worker(jobs):
            for number in range(5):
                job = await others.enqueue("send", {"to": f"{number}"})
                assert await job.result(30) == f"sent to {number}"

    warnings = [record.message for record in caplog.records if "pooler" in record.message]
    assert len(warnings) <= 2  # each app warns once


async def test_stores_of_two_schemas_do_not_use_each_others_prepared_statements(mortal: Mortal) -> None:
    """With the same name in a shared session, a statement would silently use the other store's tables."""
    folder = mortal.folder / "two"
    folder.mkdir(exist_ok=True)
    async with Pooler(mortal.folder, folder, sessions=2).running():
        urls = [mortal.new_url().replace(f"host={mortal.folder}", f"host={folder}") for _ in "ab"]
        stores = [store_at(url) for url in urls]
        for store in stores:
            await store.open()
        for number in range(6):  # in parallel, so that each prepares in another session
            await asyncio.gather(*(store.commit([insert(f"{number}")]) for store in stores))
        for name, store in zip(("one", "two"), stores, strict=True):
            for number in range(6):
                await store.commit([insert(f"{name}-{number}")])
        ids = [{job.id for job in (await store.list()).jobs} for store in stores]
        for store in stores:
            await store.close()

    both = {f"{number}" for number in range(6)}
    assert ids == [both | {f"{name}-{number}" for number in range(6)} for name in ("one", "two")]
