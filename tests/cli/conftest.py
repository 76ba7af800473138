"""An empty folder for each test, with a program in it and the command line to call."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, Job, Worker, WorkerOptions
from errandry.cli.app_import import app_at
from errandry.cli.main import run
from tests.cli.shell import Done, Terminal, write_app

Cli = Callable[..., Done]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where every test of the command line runs."""
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
    """Calls `errandry …` in this process, which takes a fraction of the time."""

    def call(*args: str) -> Done:
        capsys.readouterr()
        code = run(args)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts `errandry …` on a terminal; what is left running is killed."""
    started: list[Terminal] = []

    def start(*args: str, **options: Any) -> Terminal:
        started.append(Terminal(*args, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


class Place:
    """The store of the folder, with a few jobs of known ends, made by a worker in this process."""

    def __init__(self) -> None:
        self.jobs = Errandry("sqlite:///errandry.db")

    def enqueue(
        self, task: str = "send", arguments: dict[str, Any] | None = None, **options: Any
    ) -> Job[Any]:
        return self.jobs.sync.run(self.jobs.enqueue, task, arguments or {"to": "ada"}, **options)

    def ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What a method of the app answers."""
        return self.jobs.sync.run(function, *args, **options)

    def work(self) -> None:
        """Run everything that is due."""
        jobs = app_at("shop:jobs")

        async def burst() -> None:
            async with jobs:
                await Worker(jobs, WorkerOptions(burst=True)).run()

        asyncio.run(burst())


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    made = Place()
    sys.path.insert(0, str(folder))
    yield made
    made.jobs.sync.close()
