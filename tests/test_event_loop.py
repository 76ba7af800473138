"""The choice of the event loop: by what the program uses, what is installed, and ERRANDRY_LOOP."""

import asyncio
import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from errandry import Errandry, Worker, WorkerOptions, event_loop
from errandry.errors import InvalidValue
from errandry.event_loop import ASYNCIO, LOOP_VARIABLE, UVLOOP

SHOP = """
import asyncio
from errandry import Errandry

jobs = Errandry()


@jobs.task
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


loop.sync.enqueue()
"""
KINDS = [ASYNCIO, UVLOOP]


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOOP_VARIABLE, raising=False)


def kind(loop: asyncio.AbstractEventLoop) -> str:
    return UVLOOP if type(loop).__module__.startswith(UVLOOP) else ASYNCIO


def kind_of_new_loop() -> str:
    loop = event_loop.new_loop()
    loop.close()
    return kind(loop)


async def kind_of_running_loop() -> str:
    return kind(asyncio.get_running_loop())


def forget_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a program that has not imported uvloop."""
    monkeypatch.delitem(sys.modules, UVLOOP, raising=False)


def remove_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an installation without uvloop."""
    monkeypatch.setitem(sys.modules, UVLOOP, None)


def test_a_program_without_uvloop_gets_an_asyncio_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_uvloop(monkeypatch)

    assert kind_of_new_loop() == ASYNCIO
    assert UVLOOP not in sys.modules


def test_a_program_that_uses_uvloop_gets_a_uvloop_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, UVLOOP, importlib.import_module(UVLOOP))

    assert kind_of_new_loop() == UVLOOP


@pytest.mark.parametrize("wanted", KINDS)
def test_the_variable_selects_the_loop(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, wanted)

    assert kind_of_new_loop() == wanted
    assert event_loop.run(kind_of_running_loop()) == wanted


def test_a_long_running_program_uses_uvloop_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_uvloop(monkeypatch)
    assert event_loop.run(kind_of_running_loop()) == UVLOOP

    remove_uvloop(monkeypatch)
    assert event_loop.run(kind_of_running_loop()) == ASYNCIO


def test_uvloop_cannot_be_selected_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_uvloop(monkeypatch)
    monkeypatch.setenv(LOOP_VARIABLE, UVLOOP)

    with pytest.raises(InvalidValue, match=r"ERRANDRY_LOOP='uvloop'.*errandry\[fast\]"):
        event_loop.new_loop()


def test_an_unknown_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, "trio")

    for run in (event_loop.new_loop, lambda: event_loop.run(kind_of_running_loop())):
        with pytest.raises(InvalidValue, match="ERRANDRY_LOOP='trio': must be asyncio or uvloop"):
            run()


def test_loaded_objects_are_excluded_from_garbage_collection_while_a_program_runs() -> None:
    async def frozen() -> int:
        return gc.get_freeze_count()

    assert event_loop.run(frozen()) > 10_000
    assert gc.get_freeze_count() == 0


def test_garbage_collection_runs_less_often_while_a_program_runs() -> None:
    async def bounds() -> tuple[int, ...]:
        return gc.get_threshold()

    before = gc.get_threshold()

    assert event_loop.run(bounds()) == (event_loop.GC_THRESHOLD, *before[1:])
    assert gc.get_threshold() == before


@pytest.mark.slow("starts a worker")
def test_the_worker_of_the_command_line_runs_on_uvloop_if_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    command = [sys.executable, "-m", "errandry", "worker", "shop:jobs", "--burst"]

    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=45)

    async def results() -> list[str | None]:
        async with Errandry(f"sqlite:///{tmp_path}/errandry.db") as jobs:
            return [job.record.result for job in (await jobs.list()).jobs]

    assert asyncio.run(results()) == ['"uvloop"']


@pytest.mark.parametrize("wanted", KINDS)
def test_an_app_and_its_worker_run_on_either_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, wanted)
    jobs = Errandry(f"sqlite:///{tmp_path}/jobs.db")

    @jobs.task
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    @jobs.task
    def add_in_thread(a: int, b: int) -> int:
        return a + b

    @jobs.task(timeout=0.1, max_attempts=1)
    async def rest() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with jobs:
            assert await jobs.engine.call(kind_of_running_loop) == wanted
            worker = Worker(jobs, WorkerOptions(grace=1.0))
            working = asyncio.create_task(worker.run())
            many = await jobs.enqueue_many([add.new(1, n) for n in range(50)])
            threaded = await add_in_thread.enqueue(2, 3)
            late = await rest.enqueue()
            canceled = await rest.using(timeout=60).enqueue()
            assert [await job.result(45) for job in many] == [1 + n for n in range(50)]
            assert await threaded.result(45) == 5
            await jobs.cancel(canceled.id)
            assert (await late.wait(45)).state == "failed"
            assert (await canceled.wait(45)).state == "canceled"
            worker.stop()
            await working

    event_loop.run(main())
