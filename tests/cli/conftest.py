"""Fixtures: an empty folder for each test with a program in it, and functions that call the command line."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, Job, Worker, WorkerOptions
from errandry.cli.app_import import import_app
from errandry.cli.main import run
from tests.cli.shell import CliResult, Terminal, write_app

Cli = Callable[..., CliResult]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that every test of the command line runs in."""
    monkeypatch.chdir(tmp_path)
    for name in ("ERRANDRY_URL", "ERRANDRY_APP", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    write_app(tmp_path)
    path = sys.path[:]
    yield tmp_path
    sys.path[:] = path
    for name in ("shop", "broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls `errandry …` in this process, which is faster than a new process."""

    def call(*args: str) -> CliResult:
        capsys.readouterr()
        code = run(args)
        printed = capsys.readouterr()
        return CliResult(code, printed.out, printed.err)

    return call


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts `errandry …` on a terminal, and kills at the end what still runs."""
    started: list[Terminal] = []

    def start(*args: str, **options: Any) -> Terminal:
        started.append(Terminal(*args, **options))
        return started[-1]

    yield start
    for process in started:
        process.close()


class Shop:
    """The store of the folder: enqueues jobs, runs them with a worker in this process, calls the API."""

    def __init__(self) -> None:
        self.jobs = Errandry("sqlite:///errandry.db")

    def enqueue(
        self, task: str = "send", arguments: dict[str, Any] | None = None, **options: Any
    ) -> Job[Any]:
        job: Job[Any] = self.call(self.jobs.enqueue, task, arguments or {"to": "ada"}, **options)
        return job

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the app and return its result."""
        return self.jobs.engine.call_sync(partial(function, **options), *args)

    def work(self) -> None:
        """Run all jobs that are due."""
        jobs = import_app("shop:jobs")

        async def burst() -> None:
            async with jobs:
                await Worker(jobs, WorkerOptions(burst=True)).run()

        asyncio.run(burst())


@pytest.fixture
def shop(folder: Path) -> Iterator[Shop]:
    opened = Shop()
    sys.path.insert(0, str(folder))
    yield opened
    opened.jobs.sync.close()
