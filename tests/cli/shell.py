"""The command line as tests call it: in this process, in one of its own, or on a terminal."""

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

LIMIT = 120.0
"""So long, on a machine with other things to do, may a command take that does end."""
COMMAND = [sys.executable, "-m", "errandry"]
ON_TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it
from errandry.cli.main import main
main()
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Done(NamedTuple):
    """How a command has ended, and what it has printed."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> list[Any]:
        """What it printed with --json."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


def process(*args: str, env: dict[str, str] | None = None, text: str = "") -> Done:
    """Run the command as a process of its own, with pipes."""
    done = subprocess.run(
        [*COMMAND, *args],
        check=False,
        capture_output=True,
        text=True,
        input=text,
        env=os.environ | (env or {}),
        timeout=LIMIT,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A command on a terminal of a given size, in a program that does something else `before`."""

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

    def until(self, holds: Callable[[str], bool]) -> str:
        """What the terminal has been sent, without colours, once `holds` is true of it."""
        give_up = time.monotonic() + LIMIT
        while not holds(self.text):
            if not self._read(give_up) or time.monotonic() > give_up:
                raise AssertionError(f"it never came to that: {self.text}")
        return self.text

    def frame(self, holds: Callable[[str], bool]) -> str:
        """The last picture of a live view, once `holds` is true of it. The seen ones are forgotten."""
        picture = self.until(lambda _: holds(self._picture()))
        picture, self._seen = self._picture(), b""
        return picture

    def over(self) -> int:
        """The exit code, once it has ended."""
        give_up = time.monotonic() + LIMIT
        while self._read(give_up):
            pass
        return self.process.wait(LIMIT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    @property
    def raw(self) -> str:
        return self._seen.decode("utf-8", "replace")

    def _picture(self) -> str:
        """A live view begins each of its pictures at the top left."""
        return _ESCAPES.sub("", self.raw.rpartition("\x1b[H")[2]).replace("\r", "")

    def _read(self, give_up: float) -> bool:
        """False when there is nothing more to come."""
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
    if to == "nobody":
        raise LookupError("no such address")
    return f"sent to {to}"


@jobs.task
async def sleep(ctx: JobContext) -> None:
    import asyncio

    ctx.log("begins")
    await asyncio.sleep(60)
"""


def write_app(folder: Path) -> None:
    """A program with two tasks: `shop:jobs`."""
    (folder / "shop.py").write_text(APP)
