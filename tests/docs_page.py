"""Run a page of the documentation as a program: its blocks in order, in one interpreter and one folder.

```python   is run, and may await. Later blocks can use its names. If its first line is `# shop.py`, it is
written to a file of that name, which later blocks use. ```sh       is run line by line. A line that ends with
`&` runs in the background until the page ends. Then the process gets SIGTERM, and a worker must exit with 0.
A Python program in the background must first print a line, to show that it is running. ```text     after one
of these is its expected output; `…` matches any text.

A block after a comment `<!-- not run here: … -->` is not run. It says why; readers do not see it.
"""

import ast
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from textwrap import indent

from msgspec import Struct

_FENCE = re.compile(
    r"(?:^ *<!-- not run here: ([^\n]+) -->\n)?^( *)```(\w*)\n(.*?)^\2```$", re.DOTALL | re.MULTILINE
)
_FILE_NAME = re.compile(r"# (\w[\w/]*\.\w+)\n")
_SEPARATOR = "\x1e"

_PROGRAM = """
import asyncio, os, signal, subprocess, time

background = []

def run(line):
    print(end="", flush=True)
    subprocess.run(line, shell=True, check=True)

def run_in_background(line):
    path = f"background-{len(background)}.log"
    with open(path, "wb") as log:
        process = subprocess.Popen(f"exec {line}", shell=True, stdout=log, stderr=log)
    background.append((line, process))
    deadline = time.monotonic() + 60
    while line.startswith("python") and not os.path.getsize(path):
        assert process.poll() is None and time.monotonic() < deadline, f"{line} has not printed anything"
        time.sleep(0.01)

def stop_background():
    for _, process in background:
        process.send_signal(signal.SIGTERM)
    for line, process in background:
        code = process.wait(60)
        expected = (0,) if line.startswith("errandry") else (0, -signal.SIGTERM)
        assert code in expected, f"{line} ended with {code}"

async def main():
"""


class Block(Struct, frozen=True):
    """One fenced block of a page. `skip_reason` says why it is not run; None if it is."""

    kind: str
    text: str
    skip_reason: str | None = None

    @property
    def file(self) -> str | None:
        """The file that the block is written to; None if it is run."""
        return match[1] if (match := _FILE_NAME.match(self.text)) else None


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [
        Block(fence[3], re.sub(f"^{fence[2]}", "", fence[4], flags=re.M), fence[1])
        for fence in _FENCE.finditer(page)
    ]


def problems(page: list[Block]) -> list[str]:
    """Problems that show without running the page: invalid Python, and files that no later block uses."""
    problems = []
    for number, block in enumerate(page):
        later = "".join(after.text for after in page[number + 1 :])
        if block.file and not re.search(rf"\b{Path(block.file).stem}\b", later):
            problems.append(f"nothing uses {block.file}")
        if block.kind == "python":
            try:
                compile(block.text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
            except SyntaxError as error:
                problems.append(f"no Python: {error}: {block.text[:60]!r}")
    return problems


def output_differences(page: list[Block], folder: Path, python: str = sys.executable) -> list[str]:
    """Run the page in an empty folder; return the differences of its output. Raises if it fails."""
    done = subprocess.run(
        [
            python,
            "-W",
            "error",
            "-c",
            _PROGRAM + indent(_program_body(page), "    ") + "\nasyncio.run(main())\n",
        ],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("ERRANDRY_")},
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
            "TMPDIR": str(folder),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    if done.returncode:
        logs = "\n".join(
            f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("background-*.log"))
        )
        raise AssertionError(f"{done.stdout}\n{done.stderr}\n{logs}")
    printed = [part.strip() for part in done.stdout.split(_SEPARATOR)]
    return [
        f"the page shows the output {expected!r}, but it is {printed[number]!r}"
        for number, expected in _expected_outputs(page).items()
        if not _matches(expected, printed[number])
    ]


def _program_body(page: list[Block]) -> str:
    parts = ["try:"]
    for block in blocks_to_run(page):
        parts.append(indent(_as_python(block), "    "))
        parts.append(f"    print({_SEPARATOR!r}, end='', flush=True)")
    return "\n".join([*parts, "finally:", "    stop_background()"])


def blocks_to_run(page: list[Block]) -> list[Block]:
    """The blocks that are run or written to files."""
    return [
        block for block in page if (block.kind in ("python", "sh") or block.file) and not block.skip_reason
    ]


def _as_python(block: Block) -> str:
    if block.file:
        return f"with open({block.file!r}, 'w') as file: file.write({block.text!r})"
    if block.kind == "python":
        return block.text
    lines = [line for line in re.sub(r"\\\n\s*", "", block.text).splitlines() if line.strip()]
    return "\n".join(
        f"run_in_background({line[:-1].strip()!r})" if line.endswith("&") else f"run({line!r})"
        for line in lines
    )


def _expected_outputs(page: list[Block]) -> dict[int, str]:
    """The expected outputs on the page, by the number of the block among those that are run."""
    outputs, run = {}, blocks_to_run(page)
    for number, (block, after) in enumerate(pairwise(page)):
        if after.kind == "text" and block in run:
            outputs[len(blocks_to_run(page[:number]))] = after.text
    return outputs


def _matches(expected: str, printed: str) -> bool:
    lines = "\n".join(line.rstrip() for line in expected.strip().splitlines())
    shown = "\n".join(line.rstrip() for line in printed.splitlines())
    return re.fullmatch(re.escape(lines).replace("…", ".*?"), shown, re.DOTALL) is not None
