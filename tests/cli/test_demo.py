"""`errandry demo`: with real workers, of which it kills one; with and without a terminal."""

import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.shell import COMMAND, COMMAND_TIMEOUT, Terminal, run_process

CHAPTERS = (
    "Jobs run in worker processes",
    "A job that raises is retried",
    "A failed job is kept and can be rerun",
    "A job that has to wait snoozes",
    "A delayed job runs when it is due",
    "A running job can be canceled",
    "A crash in a child process is retried",
    "The job of a killed worker runs again",
    "No job is lost",
)
ENTIRE = pytest.mark.slow(reason="the whole story, played by real workers")


@ENTIRE
def test_every_chapter_ends_as_expected(folder: Path) -> None:
    done = run_process("demo", "--for", "4s", "--keep", "demo.db")

    assert (done.code, done.err.splitlines()) == (
        0,
        ["The jobs are kept in demo.db: errandry jobs ls --url sqlite:///demo.db"],
    ), done.out + done.err
    for chapter in CHAPTERS:
        [line] = [line for line in done.out.splitlines() if chapter in line]
        assert "✓" in line
    assert "Every chapter ended as expected." in done.out
    rescued = run_process("jobs", "ls", "task:crawl", "--json", "--url", "sqlite:///demo.db").data
    assert [(job["state"], job["attempts"], job["crashes"]) for job in rescued] == [("completed", 2, 1)]


@ENTIRE
def test_a_demo_stopped_early_says_what_is_missing(folder: Path) -> None:
    demo = subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert "✓" in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=COMMAND_TIMEOUT)

    assert demo.returncode == 1
    assert "No job is lost" in out
    assert re.search(
        r"^Stopped early: \d of 9 chapters had not ended: .*The job of a killed worker runs again",
        err,
        re.MULTILINE,
    )


@ENTIRE
def test_a_terminal_gets_a_live_view(folder: Path, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("demo", columns=100, rows=40)

    picture = screen.wait_for_frame(lambda text: "✓" in text and "Workers" in text)
    for chapter in CHAPTERS:
        assert chapter in picture
    screen.wait_for_frame(lambda text: "was killed" in text)
    screen.wait_for_frame(lambda text: all(f"✓ {chapter}" in text for chapter in CHAPTERS[:-1]))
    screen.type("q")

    assert screen.wait() == 0
    assert "Every chapter ended as expected." in screen.text


@ENTIRE
def test_a_killed_demo_leaves_no_worker(folder: Path) -> None:
    demo = subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert "✓" in demo.stdout.readline()
    workers = _children(demo.pid)
    demo.kill()
    demo.wait()

    give_up = time.monotonic() + COMMAND_TIMEOUT
    while workers and time.monotonic() < give_up:
        time.sleep(0.1)
        workers = [pid for pid in workers if _lives(pid)]
    assert workers == []
    demo.stdout.close()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--url", "sqlite:///x.db"), "leave out --url and --app"),
        (("--for", "long"), "long"),
        (("--keep", "shop.py"), "the file exists already"),
    ],
)
def test_invalid_options_are_refused(cli: Cli, args: tuple[str, ...], why: str) -> None:
    done = cli("demo", *args)

    assert done.code == 2
    assert why in done.err


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end during the check
        return False
