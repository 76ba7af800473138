"""Process handlers declared in a script: a child imports the script, and its guarded code runs once."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(reason="starts an interpreter that starts another")

SCRIPT = """
import asyncio
from errandry import Errandry, Worker, WorkerOptions

jobs = Errandry("sqlite:///jobs.db")

@jobs.task(runner="process", max_attempts=2, backoff=0)
def square(number: int) -> int:
    return number * number

async def main() -> None:
    async with jobs:
        job = await square.enqueue(7)
        await Worker(jobs, WorkerOptions(burst=True)).run()
        await job.refresh()
        print(await jobs.counts(), job.record.result, [error.message for error in job.record.errors])
"""
GUARDED = f'{SCRIPT}\nif __name__ == "__main__":\n    asyncio.run(main())\n'


def run_python(folder: Path, *arguments: str) -> str:
    """The output of a Python program."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_script_may_declare_process_handlers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GUARDED)

    assert run_python(tmp_path, "script.py") == "{'default': {'completed': 1}} 49 []\n"


def test_a_module_run_as_a_program_may_import_its_package(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "settings.py").write_text("FACTOR = 2\n")
    text = GUARDED.replace("import asyncio", "import asyncio\nfrom .settings import FACTOR", 1)
    (tmp_path / "shop" / "program.py").write_text(text.replace("number * number", "number * FACTOR"))

    assert run_python(tmp_path, "-m", "shop.program") == "{'default': {'completed': 1}} 14 []\n"


def test_without_a_guard_the_job_fails_with_an_error_that_names_the_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"{SCRIPT}\nasyncio.run(main())\n")

    printed = run_python(tmp_path, "script.py")

    assert printed.startswith("{'default': {'failed': 1}} None")
    assert 'write `if __name__ == "__main__":`' in printed


def test_a_process_handler_typed_at_a_prompt_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "typed into a notebook or a prompt: write it in a module" in done.stderr
