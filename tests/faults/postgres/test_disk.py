"""A full disk of the server: callers get the reason, workers wait, and no acknowledged job is lost."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from errandry.core.state import State
from errandry.errors import StoreFull
from tests.faults.history import EnqueueAcked
from tests.faults.postgres.small_disk import NAMESPACES, ServerOnSmallDisk
from tests.faults.process import wait_until
from tests.faults.scene import Scene

pytestmark = [pytest.mark.slow("creates a server and fills its disk"), pytest.mark.timeout(300)]

BIG = 1_000_000


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ServerOnSmallDisk]:
    if subprocess.run([*NAMESPACES, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets an ordinary user make no mount namespace")
    server = ServerOnSmallDisk(request.param)
    yield server
    server.remove()


@pytest.fixture
def url(server: ServerOnSmallDisk) -> str:
    return server.new_url()


@pytest.mark.parametrize("server", ["data"], indirect=True)
async def test_tables_that_cannot_grow(scene: Scene, server: ServerOnSmallDisk) -> None:
    held = await scene.enqueue("hold", gate=scene.gate, size=BIG)
    worker = await scene.worker(lease=60.0, renew_every=0.5)
    await scene.started(held)
    server.fill_disk()

    with pytest.raises(StoreFull, match=r"the server has no space left \(could not extend file"):
        await enqueue_for_ever(scene)
    scene.open_gate(attempt=1)
    log = await worker.wait_for_log("cannot write the outcome of")
    assert "no space left" in log
    server.free_disk()

    record = await scene.finished(held)
    assert (record.state, record.attempts, record.crashes) == (State.COMPLETED, 1, 0)
    assert record.result is not None
    assert len(json.loads(record.result)["ballast"]) == BIG
    assert len(scene.journal.started(held)) == 1
    later = await scene.finished(await scene.enqueue("quick"))
    assert later.state is State.COMPLETED
    await scene.check()


@pytest.mark.parametrize("server", ["wal"], indirect=True)
async def test_a_server_that_cannot_write_its_log(scene: Scene, server: ServerOnSmallDisk) -> None:
    """It crashes, and an operator starts it again when there is space."""
    workers = [await scene.worker(lease=60.0, concurrency=20) for _ in range(2)]
    producing = asyncio.create_task(enqueue_for_ever(scene))
    await wait_until(lambda: acked_count(scene) > 50)

    server.fill_disk()
    await wait_until(lambda: server.has_ended)
    assert re.search("PANIC:.*No space left on device", server.log())
    server.free_disk()
    server.start()
    before = acked_count(scene)
    await wait_until(lambda: acked_count(scene) > before + 50)
    producing.cancel()
    with suppress(asyncio.CancelledError):
        await producing

    await scene.check()
    assert not any(worker.has_ended for worker in workers)


async def enqueue_for_ever(scene: Scene) -> None:
    while True:
        await scene.enqueue("quick", {"metadata": {"ballast": "x" * 2_000}})


def acked_count(scene: Scene) -> int:
    return sum(isinstance(fact, EnqueueAcked) for fact in scene.journal.read())
