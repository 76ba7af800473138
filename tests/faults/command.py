"""The command line in fault tests, and the processes below it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from errandry import Errandry
from tests.faults.process import ROOT, Process, wait_until


class Command(Process):
    """A running `errandry …` command. Its output goes to a file."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / f"command-{len(list(folder.glob('command-*.log')))}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=environment.get("PWD", ROOT),
                env={**os.environ, **environment},
            )


ERRANDRY = (sys.executable, "-m", "errandry")
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--map-root-user", "--mount-proc", *ERRANDRY)
"""Runs it as the first process of a process namespace, as in a container."""


class CommandScene:
    """A store, an app on it, and commands that end with the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.app = Errandry(url)
        self._commands: list[Command] = []

    def worker(
        self,
        *options: str,
        app: str = "tests.faults.cli_app:jobs",
        cwd: Path = ROOT,
        program: tuple[str, ...] = ERRANDRY,
        **environment: str,
    ) -> Command:
        variables = {
            "ERRANDRY_URL": self.url,
            "TMPDIR": str(self.folder),  # for lock files, which killed processes leave behind
            "PWD": str(cwd),
            **environment,
        }
        command = Command([*program, "worker", app, *options], self.folder, variables)
        self._commands.append(command)
        return command

    async def enqueue(self, task: str, **options: Any) -> str:
        """The id of a new job of a task that runs until `release_handlers`."""
        job = await self.app.enqueue(
            task, {"folder": str(self.folder)}, max_attempts=9, max_crashes=9, **options
        )
        return job.id

    async def wait_for_handler(self, job: str, attempt: int = 1) -> tuple[int, int]:
        """The process ids of the handler of an attempt and of its parent, as soon as the handler runs."""
        file = self.folder / f"{job}-{attempt}"
        pid, parent = (await wait_until(lambda: file.read_text() if file.exists() else None)).split()
        return int(pid), int(parent)

    def release_handlers(self) -> None:
        """Let all handlers finish."""
        (self.folder / "open").touch()

    def close(self) -> None:
        for command in self._commands:
            pids = descendants(command.pid)
            command.kill()
            for pid in pids:
                if is_alive(pid):
                    os.kill(pid, 9)

    def logs(self) -> str:
        return "\n".join(command.log() for command in self._commands)


@asynccontextmanager
async def open_command_scene(url: str, folder: Path) -> AsyncIterator[CommandScene]:
    stage = CommandScene(url, folder)
    async with stage.app:
        try:
            yield stage
        except BaseException:
            print(stage.logs())  # noqa: T201 - shown if the test fails
            raise
        finally:
            stage.close()


def descendants(pid: int) -> list[int]:
    """The processes below a process, at any depth."""
    try:
        direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or ends meanwhile
        return []
    return [*direct, *(descendant for child in direct for descendant in descendants(child))]


def is_alive(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
