"""Start other processes for the SQLite tests. They run functions of programs.py."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.store.sqlite.programs"]
"""The command that runs a program. Python warns of forks in a process with threads."""

starts_programs = pytest.mark.slow("starts other programs")


class Child:
    """A process that runs a function of programs.py."""

    def __init__(self, name: str, *args: object) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, name, *map(str, args)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        """The next answer of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process has ended with {self.process.wait()}"
        return json.loads(line)

    def receive_rest(self) -> list[Any]:
        """All answers until the process ends, without a line that it was writing when it was killed."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines(keepends=True)
        self.process.wait()
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def finish(self) -> list[Any]:
        """Close the input, wait until the process ends, and return its last answers."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        answers = self.receive_rest()
        assert self.process.returncode == 0
        return answers

    def kill(self) -> None:
        self.process.kill()

    def clean_up(self) -> None:
        """Kill the process and its forked children."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait()


Start = Callable[..., Child]


def run_program(name: str, *args: object) -> Any:
    """The answer of a function of programs.py, from a process of its own."""
    command = [*PYTHON, name, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)
