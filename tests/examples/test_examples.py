"""Run the examples with real workers, and check their output against their READMEs."""

import shutil
import socket
from pathlib import Path

import pytest

from tests.docs_page import blocks, output_differences, problems

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = {
    "mailer": ("sink.py", "SMTP", "127.0.0.1:{}"),
    "etl": ("source.py", "SOURCE", "http://127.0.0.1:{}"),
}
"""The server program of an example, and the environment variable with its address for the other programs."""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


def run_readme(name: str, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands of an example's README in a copy of its folder."""
    shutil.copytree(EXAMPLES / name, folder / name)
    readme = (EXAMPLES / name / "README.md").read_text("utf-8")
    if name in SERVERS:
        program, variable, address = SERVERS[name]
        readme = readme.replace(f"python {program}", f"python {program} {port}")
        monkeypatch.setenv(variable, address.format(port))
    assert (problems(blocks(readme)), output_differences(blocks(readme), folder / name)) == ([], [])
    return folder / name


@pytest.mark.slow(reason="starts a worker, a mail server and a program")
def test_the_mailer_sends_each_mail_once(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_readme("mailer", tmp_path, port, monkeypatch)

    inbox = (folder / "inbox.txt").read_text("utf-8")
    assert inbox.count("Message-ID: <") == 2
    assert inbox.count("To: ada@example.com") == inbox.count("To: busy@example.com") == 1


@pytest.mark.slow(reason="starts a worker, a service and a program")
def test_the_etl_loads_the_days_that_exist(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_readme("etl", tmp_path, port, monkeypatch)

    assert (folder / "warehouse.db").exists()


@pytest.mark.slow(reason="starts a worker with child processes and a program")
def test_the_thumbnailer_makes_small_pictures(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_readme("thumbnailer", tmp_path, port, monkeypatch)

    head, _, pixels = (folder / "wide.32.ppm").read_bytes().partition(b"\n")
    assert head == b"P6 32 16 255"
    assert len(pixels) == 3 * 32 * 16
    assert pixels[:3] == bytes((3, 6, 128))  # the mean of its corner
    assert sorted(path.name for path in folder.glob("*.ppm")) == [
        *("broken.ppm", "tall.32.ppm", "tall.ppm", "wide.32.ppm", "wide.ppm")
    ]


def test_no_example_is_left_out() -> None:
    this_file = Path(__file__).read_text("utf-8")

    assert [path.name for path in EXAMPLES.iterdir() if f'run_readme("{path.name}"' not in this_file] == []
