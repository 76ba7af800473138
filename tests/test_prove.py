"""`make prove` continues an interrupted run, and writes docs/proof.md at the end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIG = """
[tool.pytest]
addopts = ["-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not prove"]
markers = ["prove: long"]
"""
PAGE = """# Proof

Words.

## The last run

None.

## Afterwards

More words.
"""
TESTS = """
import os
import signal
import time
from pathlib import Path

import pytest

NOTES = Path(os.environ["NOTES"])


@pytest.fixture(autouse=True)
def note(request):
    with (NOTES / "ran").open("a") as file:
        file.write(request.node.name + "\\n")


def test_first():
    pass


@pytest.mark.prove
def test_long():
    pass


@pytest.fixture
def closed_late():
    yield
    assert not (NOTES / "fail").exists()


def test_that_may_fail(closed_late):
    pass


def test_that_may_be_skipped():
    if (NOTES / "skip").exists():
        pytest.skip("not here")


def test_last():
    if (NOTES / "interrupt").exists():
        (NOTES / "interrupt").unlink()
        while sum(len(p.read_text().splitlines()) for p in Path("build/prove").iterdir()) < 4:
            time.sleep(0.01)
        os.kill(int((NOTES / "pid").read_text()), signal.SIGKILL)
        time.sleep(60)
"""
ALL = ["test_first", "test_last", "test_long", "test_that_may_be_skipped", "test_that_may_fail"]

pytestmark = pytest.mark.slow(reason="starts pytest")


class Project:
    """A small project with a git repository, and the files by which its tests are told how to end."""

    def __init__(self, folder: Path, jobs: str) -> None:
        self.folder, self.notes, self.jobs = folder / "project", folder / "notes", jobs
        (self.folder / "docs").mkdir(parents=True)
        self.notes.mkdir()
        (self.folder / "pyproject.toml").write_text(CONFIG)
        (self.folder / "test_tiny.py").write_text(TESTS)
        (self.folder / ".gitignore").write_text("/build/\n__pycache__/\n")
        self.page = self.folder / "docs" / "proof.md"
        self.page.write_text(PAGE)
        self.git("init", "--quiet")
        self.commit()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git(
            "-c", "user.name=n", "-c", "user.email=n@localhost", "commit", "-qm", "Change", "--allow-empty"
        )
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def prove(self, *options: str) -> tuple[int, str, list[str]]:
        """The exit code, the output, and the tests that ran."""
        (self.notes / "ran").write_text("")
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.prove", "--jobs", self.jobs, *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(self.notes)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        (self.notes / "pid").write_text(str(process.pid))
        output, _ = process.communicate()
        return process.returncode, output, sorted((self.notes / "ran").read_text().split())


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return Project(tmp_path, getattr(request, "param", "0"))


BOTH_WAYS = pytest.mark.parametrize("project", ["0", "2"], ids=["alone", "with-xdist"], indirect=True)


@BOTH_WAYS
def test_an_interrupted_run_is_continued_and_its_end_is_written_to_the_page(project: Project) -> None:
    commit = project.git("rev-parse", "HEAD").strip()
    (project.notes / "interrupt").touch()

    code, output, ran = project.prove()

    assert (code, ran) == (-signal.SIGKILL, ALL), output
    assert project.page.read_text() == PAGE

    code, output, ran = project.prove()

    assert (code, ran) == (0, ["test_last"]), output
    assert re.search(r"tests: 5 passed, 0 failed, 0 skipped; .* minutes: 0 in 2 sessions", output)
    page = project.page.read_text()
    assert page.startswith(
        "# Proof\n\nWords.\n\n## The last run\n\n| | |\n| --- | --- |\n| command | `make prove` |"
    )
    assert page.endswith("## Afterwards\n\nMore words.\n")
    assert f"| commit | `{commit}` |" in page
    assert "| tests | 5 passed, 0 failed, 0 skipped |" in page
    assert "| minutes | 0 in 2 sessions |" in page
    assert re.search(r"^\| date \| \d{4}-\d\d-\d\d \|$", page, re.MULTILINE)
    for name in ("Python", "PostgreSQL", "SQLite"):
        assert re.search(rf"^\| {name} \| \d+\.\d+", page, re.MULTILINE)
    assert re.search(r"^\| cores \| \d+ \|$", page, re.MULTILINE)


@BOTH_WAYS
def test_tests_that_failed_or_were_skipped_run_again(project: Project) -> None:
    (project.notes / "fail").touch()
    (project.notes / "skip").touch()

    code, output, ran = project.prove()

    assert (code, ran) == (1, ALL), output
    assert "tests: 3 passed, 1 failed, 1 skipped" in output
    assert project.page.read_text() == PAGE
    (project.notes / "fail").unlink()
    (project.notes / "skip").unlink()

    code, output, ran = project.prove()

    assert (code, ran) == (0, ["test_that_may_be_skipped", "test_that_may_fail"]), output
    assert "| failed in any session | 1 |" in project.page.read_text()


def test_another_commit_starts_from_zero(project: Project) -> None:
    project.prove()
    project.commit()

    code, output, ran = project.prove()

    assert (code, ran) == (0, ALL), output


def test_uncommitted_changes_start_from_zero_and_leave_the_page_alone(project: Project) -> None:
    (project.folder / "new.py").touch()

    for _ in range(2):
        code, output, ran = project.prove()

        assert (code, ran) == (0, ALL), output
        assert "there are uncommitted changes" in output
        assert project.page.read_text() == PAGE


def test_a_part_is_recorded_but_is_no_proof(project: Project) -> None:
    code, output, ran = project.prove("-k", "first or last")

    assert (code, ran) == (0, ["test_first", "test_last"]), output
    assert project.page.read_text() == PAGE

    code, output, ran = project.prove()

    assert (code, ran) == (0, sorted({*ALL} - {"test_first", "test_last"})), output
    assert "| tests | 5 passed, 0 failed, 0 skipped |" in project.page.read_text()


def test_a_finished_run_that_is_repeated_runs_nothing(project: Project) -> None:
    project.prove()
    project.git("checkout", "--quiet", "docs")

    code, output, ran = project.prove()

    assert (code, ran) == (0, []), output
    assert "5 passed" in project.page.read_text()
