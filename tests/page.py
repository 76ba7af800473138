"""A page of the documentation as a program: its blocks in order, in one interpreter and one folder.

```python   is run where it stands, and may await; what a block names, later ones know.
            With `# shop.py` as its first line it is a file of that name instead, which later blocks use.
```sh       is run line by line. `&` at the end of a line leaves it at work until the page ends: it is then
            told to stop, and a worker must end well. A program of the page's own first says that it is there.
```text     after one of these is what it prints; `…` stands for what is different each time.

`# not run here: …` as the first line of a block says why it is only read.
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

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w[\w/]*\.\w+)\n")
_NOT_RUN = re.compile(r"# not run here: (.+)\n")
_MARK = "\x1e"

_PROGRAM = """
import asyncio, os, signal, subprocess, time

left = []

def run(line):
    print(end="", flush=True)
    subprocess.run(line, shell=True, check=True)

def leave(line):
    path = f"left-{len(left)}.log"
    with open(path, "wb") as log:
        process = subprocess.Popen(f"exec {line}", shell=True, stdout=log, stderr=log)
    left.append((line, process))
    until = time.monotonic() + 60
    while line.startswith("python") and not os.path.getsize(path):
        assert process.poll() is None and time.monotonic() < until, f"{line} has not said that it is there"
        time.sleep(0.01)

def end():
    for _, process in left:
        process.send_signal(signal.SIGTERM)
    for line, process in left:
        code = process.wait(60)
        well = (0,) if line.startswith("errandry") else (0, -signal.SIGTERM)
        assert code in well, f"{line} ended with {code}"

async def main():
"""


class Block(Struct, frozen=True):
    """One fenced block of a page."""

    kind: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file it is."""
        return found[1] if (found := _FILE.match(self.text)) else None

    @property
    def why_not(self) -> str | None:
        """Why it is not run."""
        return found[1] if (found := _NOT_RUN.match(self.text)) else None


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [
        Block(found[2], re.sub(f"^{found[1]}", "", found[3], flags=re.M)) for found in _FENCE.finditer(page)
    ]


def faults(page: list[Block]) -> list[str]:
    """What can be said without running it: blocks that are no Python, and files that no later block uses."""
    found = []
    for number, block in enumerate(page):
        later = "".join(one.text for one in page[number + 1 :])
        if block.file and not re.search(rf"\b{Path(block.file).stem}\b", later):
            found.append(f"nothing uses {block.file}")
        if block.kind == "python":
            try:
                compile(block.text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
            except SyntaxError as error:
                found.append(f"no Python: {error}: {block.text[:60]!r}")
    return found


def differences(page: list[Block], folder: Path, python: str = sys.executable) -> list[str]:
    """Run the page in an empty folder; what it printed other than it says. Raises if anything goes wrong."""
    done = subprocess.run(
        [
            python,
            "-W",
            "error",
            "-c",
            _PROGRAM + indent(_body(page), "    ") + "\nasyncio.run(main())\n",
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
        logs = "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("left-*.log")))
        raise AssertionError(f"{done.stdout}\n{done.stderr}\n{logs}")
    printed = [part.strip() for part in done.stdout.split(_MARK)]
    return [
        f"{said!r} is said to be printed, but it is {printed[number]!r}"
        for number, said in _said(page).items()
        if not _matches(said, printed[number])
    ]


def _body(page: list[Block]) -> str:
    parts = ["try:"]
    for block in runnable(page):
        parts.append(indent(_as_python(block), "    "))
        parts.append(f"    print({_MARK!r}, end='', flush=True)")
    return "\n".join([*parts, "finally:", "    end()"])


def runnable(page: list[Block]) -> list[Block]:
    """The blocks that are run."""
    return [block for block in page if (block.kind in ("python", "sh") or block.file) and not block.why_not]


def _as_python(block: Block) -> str:
    if block.file:
        return f"with open({block.file!r}, 'w') as file: file.write({block.text!r})"
    if block.kind == "python":
        return block.text
    lines = [line for line in re.sub(r"\\\n\s*", "", block.text).splitlines() if line.strip()]
    return "\n".join(
        f"leave({line[:-1].strip()!r})" if line.endswith("&") else f"run({line!r})" for line in lines
    )


def _said(page: list[Block]) -> dict[int, str]:
    """What blocks are said to print, by their number among those that are run."""
    said, run = {}, runnable(page)
    for number, (one, after) in enumerate(pairwise(page)):
        if after.kind == "text" and one in run:
            said[len(runnable(page[:number]))] = after.text
    return said


def _matches(said: str, printed: str) -> bool:
    lines = "\n".join(line.rstrip() for line in said.strip().splitlines())
    shown = "\n".join(line.rstrip() for line in printed.splitlines())
    return re.fullmatch(re.escape(lines).replace("…", ".*?"), shown, re.DOTALL) is not None
