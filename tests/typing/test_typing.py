"""mypy reports exactly the errors that the snippets expect.

In a snippet, a comment `# E: …` after a line expects an error there whose message begins with that text.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CASES = sorted((ROOT / "tests" / "typing" / "cases").glob("*.py"))
_ERROR_LINE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*?)  \[[a-z-]+\]$")

pytestmark = pytest.mark.slow(reason="runs mypy")


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


def test_every_kind_of_call_has_its_cases() -> None:
    assert [path.stem for path in CASES] == [
        "batching",
        "declaring",
        "enqueueing",
        "extending",
        "flowing",
        "reading",
    ]
    assert sum(len(expected(path)) for path in CASES) > 40
