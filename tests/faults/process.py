"""Processes of the fault tests, and waiting for what they do: never for a time to pass."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
LIMIT = 45.0
"""So long, on a busy machine, may anything take that does happen; less than a lease that must not run out."""
LOOK = 0.01


class Process:
    """A worker or a producer; what it logs goes into a file."""

    def __init__(self, role: str, options: dict[str, Any], folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / f"{role}-{len(list(folder.glob(f'{role}-*.log')))}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.program", role, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def log(self) -> str:
        return self._log.read_text("utf-8")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """As `kill -9` does. Returns when it is dead."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Returns when it is stopped in its tracks, as after Ctrl-Z."""
        self.signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    async def over(self, limit: float = LIMIT) -> int:
        """Its exit code, once it has ended by itself."""
        await until(lambda: self.is_over, limit)
        return self._process.wait()

    async def logged(self, text: str) -> str:
        """What it has logged, once `text` is in it."""
        return await until(lambda: self.log() if text in self.log() else None)

    def used(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def until(condition: Callable[[], T | None], limit: float = LIMIT) -> T:
    """What `condition` says, once that is something; TimeoutError if it never is."""

    async def ask() -> T | None:
        return condition()

    return await until_said(ask, limit)


async def until_said(condition: Callable[[], Awaitable[T | None]], limit: float = LIMIT) -> T:
    """`until` for what must be awaited."""
    async with asyncio.timeout(limit):
        while not (said := await condition()):  # noqa: ASYNC110 - other processes decide
            await asyncio.sleep(LOOK)
        return said
