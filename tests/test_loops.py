"""Which event loop is used: what the program uses, what is installed, what somebody says."""

import asyncio
import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from errandry import Errandry, Worker, WorkerOptions, event_loop
from errandry.errors import InvalidValue
from errandry.event_loop import ASYNCIO, UVLOOP, VARIABLE

SHOP = """
import asyncio
from errandry import Errandry

jobs = Errandry()


@jobs.task
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


loop.enqueue_sync()
"""
KINDS = [ASYNCIO, UVLOOP]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def kind(loop: asyncio.AbstractEventLoop) -> str:
    return UVLOOP if type(loop).__module__.startswith(UVLOOP) else ASYNCIO


def made() -> str:
    loop = event_loop.new_loop()
    loop.close()
    return kind(loop)


async def running() -> str:
    return kind(asyncio.get_running_loop())


def forget_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not imported it."""
    monkeypatch.delitem(sys.modules, UVLOOP, raising=False)


def remove_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    monkeypatch.setitem(sys.modules, UVLOOP, None)


def test_a_program_that_does_not_use_uvloop_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_uvloop(monkeypatch)

    assert made() == ASYNCIO
    assert UVLOOP not in sys.modules


def test_a_program_that_uses_uvloop_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, UVLOOP, importlib.import_module(UVLOOP))

    assert made() == UVLOOP


@pytest.mark.parametrize("wanted", KINDS)
def test_who_says_what_he_wants_gets_it(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv(VARIABLE, wanted)

    assert made() == wanted
    assert event_loop.run(running()) == wanted


def test_a_worker_uses_it_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_uvloop(monkeypatch)
    assert event_loop.run(running()) == UVLOOP

    remove_uvloop(monkeypatch)
    assert event_loop.run(running()) == ASYNCIO


def test_what_is_not_installed_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_uvloop(monkeypatch)
    monkeypatch.setenv(VARIABLE, UVLOOP)

    with pytest.raises(InvalidValue, match=r"ERRANDRY_LOOP='uvloop'.*errandry\[fast\]"):
        event_loop.new_loop()


def test_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "trio")

    for run in (event_loop.new_loop, lambda: event_loop.run(running())):
        with pytest.raises(InvalidValue, match="ERRANDRY_LOOP='trio': must be asyncio or uvloop"):
            run()


def test_what_is_loaded_is_not_searched_for_garbage_while_a_program_of_ours_runs() -> None:
    async def frozen() -> int:
        return gc.get_freeze_count()

    assert event_loop.run(frozen()) > 10_000
    assert gc.get_freeze_count() == 0


def test_garbage_is_searched_for_less_often_while_a_program_of_ours_runs() -> None:
    async def bounds() -> tuple[int, ...]:
        return gc.get_threshold()

    before = gc.get_threshold()

    assert event_loop.run(bounds()) == (event_loop.GARBAGE, *before[1:])
    assert gc.get_threshold() == before


@pytest.mark.slow("starts a worker")
def test_the_worker_of_the_command_line_runs_on_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    command = [sys.executable, "-m", "errandry", "worker", "shop:jobs", "--burst"]

    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=45)

    async def results() -> list[str | None]:
        async with Errandry(f"sqlite:///{tmp_path}/errandry.db") as jobs:
            return [job.result for job in (await jobs.list()).jobs]

    assert asyncio.run(results()) == ['"uvloop"']


@pytest.mark.parametrize("wanted", KINDS)
def test_an_app_and_its_worker_do_everything_on_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv(VARIABLE, wanted)
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
            assert await jobs.engine.call(running) == wanted
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
