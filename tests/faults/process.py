"""Processes of the fault tests. A test waits for what they do, never for a fixed time."""

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
WAIT_TIMEOUT = 45.0
"""Seconds after which a test gives up waiting. Less than the leases that must not expire in a test."""
POLL_INTERVAL = 0.01
"""Seconds between two checks of a condition."""


class Process:
    """A running worker or producer. Its log goes to a file."""

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
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def log(self) -> str:
        return self._log.read_text("utf-8")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process like `kill -9`, and return when it is dead."""
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Suspend the process like Ctrl-Z, and return when it is suspended."""
        self.signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    async def wait_for_end(self, limit: float = WAIT_TIMEOUT) -> int:
        """The exit code, as soon as the process has ended by itself."""
        await wait_until(lambda: self.has_ended, limit)
        return self._process.wait()

    async def wait_for_log(self, text: str) -> str:
        """The log, as soon as it contains `text`."""
        return await wait_until(lambda: self.log() if text in self.log() else None)

    def processor_time(self) -> float:
        """Seconds of processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def wait_until(condition: Callable[[], T | None], limit: float = WAIT_TIMEOUT) -> T:
    """The result of `condition` as soon as it is true; raises TimeoutError if it never is."""

    async def evaluate() -> T | None:
        return condition()

    return await wait_until_async(evaluate, limit)


async def wait_until_async(condition: Callable[[], Awaitable[T | None]], limit: float = WAIT_TIMEOUT) -> T:
    """`wait_until` for an async condition."""
    async with asyncio.timeout(limit):
        while not (result := await condition()):  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(POLL_INTERVAL)
        return result
