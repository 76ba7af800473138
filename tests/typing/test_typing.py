"""mypy and pyright report exactly the errors that the snippets expect, and none in the examples.

In a snippet, a comment `# E: …` after a line expects an error there: of mypy one whose message begins with
that text, of pyright any. `make types` runs mypy on the examples.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CASES = sorted((ROOT / "tests" / "typing" / "cases").glob("*.py"))
EXAMPLES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py")]
_ERROR_LINE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*?)  \[[a-z-]+\]$")

pytestmark = pytest.mark.slow(reason="runs mypy and pyright")


def expected(path: Path) -> dict[int, str]:
    lines = path.read_text("utf-8").splitlines()
    return {number: line.split("# E: ")[1] for number, line in enumerate(lines, 1) if "# E: " in line}


@pytest.fixture(scope="module")
def reported() -> dict[str, dict[int, str]]:
    """The errors that mypy reports, by file and line."""
    paths = [str(path.relative_to(ROOT)) for path in CASES]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    errors: dict[str, dict[int, str]] = {}
    for line in run.stdout.splitlines():
        if match := _ERROR_LINE.match(line):
            errors.setdefault(Path(match["file"]).name, {})[int(match["line"])] = match["message"]
    return errors


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_mypy_says_what_is_expected(path: Path, reported: dict[str, dict[int, str]]) -> None:
    wanted, errors = expected(path), reported.get(path.name, {})

    unexpected = {number: message for number, message in errors.items() if number not in wanted}
    missing = {
        number: message
        for number, message in wanted.items()
        if not errors.get(number, "").startswith(message)
    }

    assert unexpected == {}
    assert {number: (message, errors.get(number)) for number, message in missing.items()} == {}


@pytest.fixture(scope="module")
def reported_by_pyright() -> dict[str, dict[int, str]]:
    """The errors that pyright reports for the examples and the snippets, by file and line."""
    pyright = Path(sys.executable).parent / "basedpyright"
    run = subprocess.run(
        [pyright, "--project", ROOT, "--pythonpath", sys.executable, "--outputjson"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(CASES) + len(EXAMPLES), run.stderr
    errors: dict[str, dict[int, str]] = {}
    for error in report["generalDiagnostics"]:
        file = Path(error["file"]).relative_to(ROOT).as_posix()
        errors.setdefault(file, {})[error["range"]["start"]["line"] + 1] = error["message"]
    return errors


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_pyright_flags_the_lines_that_mypy_flags(
    path: Path, reported_by_pyright: dict[str, dict[int, str]]
) -> None:
    errors = reported_by_pyright[path.relative_to(ROOT).as_posix()]

    assert {number: text for number, text in errors.items() if number not in expected(path)} == {}
    assert expected(path).keys() - errors.keys() == set()


def test_pyright_accepts_the_examples(reported_by_pyright: dict[str, dict[int, str]]) -> None:
    assert {file: errors for file, errors in reported_by_pyright.items() if file in EXAMPLES} == {}


def test_every_kind_of_call_has_its_cases() -> None:
    assert [path.stem for path in CASES] == [
        "batching",
        "declaring",
        "enqueueing",
        "extending",
        "flowing",
        "reading",
        "running",
    ]
    assert sum(len(expected(path)) for path in CASES) > 60
