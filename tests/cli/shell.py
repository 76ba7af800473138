"""Call the command line from tests: as a process with pipes, or on a terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

COMMAND_TIMEOUT = 120.0
"""Maximum seconds for a command to end, on a busy machine."""
COMMAND = [sys.executable, "-m", "errandry"]
ON_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it
from errandry.cli.main import main
main()
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class CliResult(NamedTuple):
    """The exit code of a command and its output."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> list[Any]:
        """The output of --json, one item for each line."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


def run_process(*args: str, env: dict[str, str] | None = None, text: str = "") -> CliResult:
    """Run the command in a new process, with pipes."""
    done = subprocess.run(
        [*COMMAND, *args],
        check=False,
        capture_output=True,
        text=True,
        input=text,
        env=os.environ | (env or {}),
        timeout=COMMAND_TIMEOUT,
    )
    return CliResult(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A command on a terminal of a given size; `before` is Python code to run first."""

    def __init__(
        self,
        *args: str,
        columns: int = 80,
        rows: int = 24,
        env: dict[str, str] | None = None,
        before: str = "",
    ) -> None:
        master, slave = pty.openpty()
        self.master, self._seen = master, b""
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + ON_TERMINAL, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        )
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_until(self, holds: Callable[[str], bool]) -> str:
        """Wait until `holds` is true of the output without colors, and return it."""
        give_up = time.monotonic() + COMMAND_TIMEOUT
        while not holds(self.text):
            if not self._read(give_up) or time.monotonic() > give_up:
                raise AssertionError(f"the expected output did not come: {self.text}")
        return self.text

    def wait_for_frame(self, holds: Callable[[str], bool]) -> str:
        """Wait until `holds` is true of the last frame of a live view; return it and forget the output."""
        picture = self.wait_until(lambda _: holds(self._picture()))
        picture, self._seen = self._picture(), b""
        return picture

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        give_up = time.monotonic() + COMMAND_TIMEOUT
        while self._read(give_up):
            pass
        return self.process.wait(COMMAND_TIMEOUT)

    def hang_up(self) -> int:
        """Close the terminal, wait for the end of the process and return its exit code."""
        os.close(self.master)
        self.master = -1
        return self.process.wait(COMMAND_TIMEOUT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        if self.master >= 0:
            os.close(self.master)

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    @property
    def raw(self) -> str:
        return self._seen.decode("utf-8", "replace")

    def _picture(self) -> str:
        """The last frame: each begins at the top left."""
        return _ESCAPES.sub("", self.raw.rpartition("\x1b[H")[2]).replace("\r", "")

    def _read(self, give_up: float) -> bool:
        """Read some output; False at its end."""
        ready, _, _ = select.select([self.master], [], [], max(0.0, give_up - time.monotonic()))
        try:
            part = os.read(self.master, 65_536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self._seen += part
        return bool(part)


APP = """
from errandry import Errandry, JobContext

jobs = Errandry()


@jobs.task(queue="mail", max_attempts=1)
async def send(ctx: JobContext, to: str, times: int = 1) -> str:
    ctx.log(f"to {to}")
    ctx.progress(0.5, "half way")
    if to == "unknown":
        raise LookupError("no such address")
    return f"sent to {to}"


@jobs.task
async def sleep(ctx: JobContext) -> None:
    import asyncio

    ctx.log("begins")
    await asyncio.sleep(60)
"""


def write_app(folder: Path) -> None:
    """Write a program with two tasks, `shop:jobs`."""
    (folder / "shop.py").write_text(APP)
