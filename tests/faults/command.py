"""The command line in fault tests, and the processes below it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from errandry import Errandry
from tests.faults.process import ROOT, Process, until


class Command(Process):
    """`errandry …`; what it prints goes into a file."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / f"command-{len(list(folder.glob('command-*.log')))}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "errandry", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=environment.get("PWD", ROOT),
                env={**os.environ, **environment},
            )


class Stage:
    """A store, an app that looks at it, and commands that are gone when the test is over."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.app = Errandry(url)
        self._commands: list[Command] = []

    def worker(
        self, *options: str, app: str = "tests.faults.apart:jobs", cwd: Path = ROOT, **environment: str
    ) -> Command:
        surroundings = {
            "ERRANDRY_URL": self.url,
            "TMPDIR": str(self.folder),  # where lock files are; those of the killed would stay
            "PWD": str(cwd),
            **environment,
        }
        command = Command(["worker", app, *options], self.folder, surroundings)
        self._commands.append(command)
        return command

    async def enqueue(self, task: str, **options: object) -> str:
        """The id of a new job of a task that holds until it is let through."""
        job = await self.app.enqueue(
            task, {"folder": str(self.folder)}, max_attempts=9, max_crashes=9, **options
        )
        return job.id

    async def running(self, job: str, attempt: int = 1) -> tuple[int, int]:
        """The process of an attempt's handler and the parent of that, once it runs."""
        file = self.folder / f"{job}-{attempt}"
        pid, parent = (await until(lambda: file.read_text() if file.exists() else None)).split()
        return int(pid), int(parent)

    def open(self) -> None:
        """Let all handlers through."""
        (self.folder / "open").touch()

    def close(self) -> None:
        for command in self._commands:
            below = children(command.pid)
            command.kill()
            for pid in below:
                if is_alive(pid):
                    os.kill(pid, 9)

    def logs(self) -> str:
        return "\n".join(command.log() for command in self._commands)


@asynccontextmanager
async def staged(url: str, folder: Path) -> AsyncIterator[Stage]:
    stage = Stage(url, folder)
    async with stage.app:
        try:
            yield stage
        except BaseException:
            print(stage.logs())  # noqa: T201 - shown if the test fails
            raise
        finally:
            stage.close()


def children(pid: int) -> list[int]:
    """The processes below a process, at any depth."""
    try:
        direct = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or does while it is looked at
        return []
    return [*direct, *(below for one in direct for below in children(one))]


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
