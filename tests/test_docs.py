"""The documentation says what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs import DOCS, PAGES

README = DOCS.parent / "README.md"


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run `make generate` and commit what it wrote"


def test_the_readme_example_runs_as_printed(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "completed" in done.stdout
