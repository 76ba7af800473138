"""The examples of docs/testing.md run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.md"
_BLOCK = re.compile(r"```(?:python|toml)\n# (?P<name>[\w.]+)\n(?P<text>.*?)```", re.DOTALL)


@pytest.mark.slow(reason="starts an interpreter")
def test_the_examples_of_the_page_run_as_printed(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    files = {block["name"]: block["text"] for block in _BLOCK.finditer(page)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(files) == page.count("```python") + page.count("```toml")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{sum(text.count('def test_') for text in files.values())} passed" in run.stdout
    assert not (tmp_path / "errandry.db").exists()
