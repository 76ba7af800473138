"""Checks of the checkout: installable locks, a complete wheel, and no silent skips."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import errandry

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_by_hash_and_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    entries = re.split(r"\n(?=\S)", text.strip())

    assert "://" not in text
    assert [entry for entry in entries if not re.match(r"[\w.-]+==[\w.]+", entry)] == []
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_lock_holds_every_declared_dependency() -> None:
    declared = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    locked = (ROOT / "requirements" / "dev.lock").read_text()

    names = {re.split(r"[<>=~!\[; ]", requirement)[0] for requirement in declared}

    assert {name for name in names if not re.search(rf"^{name}==", locked, re.MULTILINE)} == set()


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())

    sources = (path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".sql", ".typed"})
    expected = {path.relative_to(ROOT / "src").as_posix() for path in sources}

    assert "errandry/py.typed" in expected
    assert expected - shipped == set()


def test_the_version_is_the_same_everywhere() -> None:
    assert errandry.__version__ == PROJECT["project"]["version"]


def test_the_public_names_are_sorted_and_exist() -> None:
    assert errandry.__all__ == sorted(errandry.__all__)
    assert [name for name in errandry.__all__ if not hasattr(errandry, name)] == []
    assert dir(errandry) == errandry.__all__
    assert not hasattr(errandry, "Typo")


def test_type_checkers_see_the_names_that_are_imported_on_access() -> None:
    tree = ast.parse(Path(errandry.__file__).read_text("utf-8"))
    seen = {
        node.module.removeprefix("errandry."): tuple(alias.name for alias in node.names)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("errandry.")
    }

    assert seen == errandry._NAMES


def test_help_is_printed_without_importing_what_runs_jobs() -> None:
    """A user who types a command waits for its imports."""
    script = (
        "import sys, errandry.cli.main; print(*sorted({'asyncio', 'errandry.api.app'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_changelog_has_a_place_for_the_next_release() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("environment", "code"),
    [({}, pytest.ExitCode.OK), ({"CI": "true"}, pytest.ExitCode.TESTS_FAILED)],
    ids=["here", "CI"],
)
def test_a_skip_is_printed_and_fails_in_ci(tmp_path: Path, environment: dict[str, str], code: int) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\ndef test_it():\n    pytest.skip('no such server')\n"
    )
    plain = {name: value for name, value in os.environ.items() if name not in {"CI", "ERRANDRY_NO_SKIP"}}

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        env=plain | environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # for a faster start
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "test_it.py::test_it: Skipped: no such server" in run.stdout
    assert run.returncode == code
