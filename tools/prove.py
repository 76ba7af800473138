"""Run all tests, with the long proofs, and write the result to docs/proof.md: `make prove`.

    python -m tools.prove --jobs 3 [options for pytest]

If it is interrupted, the next run at the same commit runs only what has not passed yet. The record is the
file build/prove/<commit>. With uncommitted changes every run starts from zero, and does not change
docs/proof.md.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from tests.store.server import program_path
from tools.resume import RecordedTest, last_outcomes, read_record

PAGE = Path("docs/proof.md")
RECORDS = Path("build/prove")
UNCOMMITTED = "uncommitted"
HEADING = "## The last run"
TEST_TIMEOUT = 3600


def tree() -> str:
    """The commit of the working tree, or `uncommitted` if it has changes."""
    if _output("git", "status", "--porcelain"):
        return UNCOMMITTED
    return _output("git", "rev-parse", "HEAD")


def run_tests(record: Path, jobs: str, options: Sequence[str]) -> int:
    """Run what the record does not show as passed; return the exit code of pytest."""
    return pytest.main(
        [
            *("-p", "tools.resume", "--record", str(record)),
            *("-m", "prove or not prove", "--timeout", str(TEST_TIMEOUT)),
            *("-n", jobs, "--dist", "worksteal", *options),
        ]
    )


def summary(ends: Sequence[RecordedTest]) -> dict[str, str]:
    """The tests and the minutes of all sessions."""
    outcomes = Counter(last_outcomes(ends).values())
    sessions: dict[str, float] = {}
    for end in ends:
        sessions[end.session] = max(end.seconds, sessions.get(end.session, 0.0))
    repeated = {end.test for end in ends if end.outcome == "failed"}
    count = len(sessions)
    return {
        "tests": ", ".join(f"{outcomes[name]:,} {name}" for name in ("passed", "failed", "skipped")),
        "failed in any session": f"{len(repeated):,}",
        "minutes": f"{sum(sessions.values()) / 60:.0f} in {count} session{'s' if count != 1 else ''}",
    }


def environment() -> dict[str, str]:
    """The versions and the machine."""
    return {
        "Python": platform.python_version(),
        "PostgreSQL": _output(program_path("postgres"), "--version").split()[2],
        "SQLite": apsw.sqlite_lib_version(),
        "cores": str(len(os.sched_getaffinity(0))),
    }


def write_page(commit: str, result: dict[str, str]) -> None:
    """Replace the section about the last run."""
    facts = {
        "command": "`make prove`",
        "commit": f"`{commit}`",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **result,
        **environment(),
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    section = f"{HEADING}\n\n| | |\n| --- | --- |\n{rows}\n"
    text = PAGE.read_text("utf-8")
    pattern = rf"^{HEADING}\n.*?(?=^## |\Z)"
    if not re.search(pattern, text, re.MULTILINE | re.DOTALL):
        raise LookupError(f"{PAGE} has no section {HEADING!r}")
    PAGE.write_text(re.sub(pattern, lambda _: section, text, flags=re.MULTILINE | re.DOTALL), "utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument("--jobs", default="0", help="number of processes")
    given, options = parser.parse_known_args(arguments)
    commit = tree()
    record = RECORDS / commit
    if commit == UNCOMMITTED:
        print("there are uncommitted changes: all tests run, also those that passed before")
        record.unlink(missing_ok=True)
    elif before := read_record(record):
        print(f"at this commit there were before: {_text(summary(before))}; what passed does not run again")

    code = run_tests(record, given.jobs, options)

    ends = read_record(record)
    print(f"proof of {commit}: {_text(summary(ends))}")
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and ends:
        code = pytest.ExitCode.OK  # all have passed before
    is_proof = code == pytest.ExitCode.OK and not options and commit != UNCOMMITTED
    if is_proof and tree() == commit:  # nothing was changed meanwhile
        write_page(commit, summary(ends))
        print(f"{PAGE} names this run: commit it")
    return code


def _text(result: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in result.items())


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
