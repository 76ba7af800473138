"""`errandry demo`: with real workers, one of which it kills; with a terminal and without."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.shell import COMMAND, LIMIT, Terminal, process

PROMISES = (
    "jobs run in other processes",
    "a job that fails is tried again",
    "a hopeless job is kept, with its errors",
    "a job that must wait snoozes",
    "a job for later runs when it is due",
    "a running job can be canceled",
    "a crash in a process hurts only its job",
    "a worker is killed with -9, its job rescued",
    "nothing is lost",
)
ENTIRE = pytest.mark.slow(reason="the whole story, played by real workers")


@ENTIRE
def test_everything_that_was_promised_happens(folder: Path) -> None:
    done = process("demo", "--for", "4s", "--keep", "demo.db")

    assert (done.code, done.err.splitlines()) == (
        0,
        ["The jobs are in demo.db: errandry jobs ls --url sqlite:///demo.db"],
    ), done.out + done.err
    for promise in PROMISES:
        [line] = [line for line in done.out.splitlines() if promise in line]
        assert "✓" in line
    assert "Everything that was promised has happened." in done.out
    rescued = process("jobs", "ls", "task:crawl", "--json", "--url", "sqlite:///demo.db").data
    assert [(job["state"], job["attempts"], job["crashes"]) for job in rescued] == [("completed", 2, 1)]


@ENTIRE
def test_ended_too_early_it_says_what_is_missing(folder: Path) -> None:
    demo = subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert "✓" in demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=LIMIT)

    assert demo.returncode == 1
    assert "nothing is lost" in out
    assert "Ended before all of it had happened" in err


@ENTIRE
def test_on_a_terminal_it_is_a_picture(folder: Path, terminal: Callable[..., Terminal]) -> None:
    seen = terminal("demo", columns=100, rows=40)

    picture = seen.frame(lambda text: "✓" in text and "Workers" in text)
    for promise in PROMISES:
        assert promise in picture
    seen.frame(lambda text: "was killed" in text)
    seen.frame(lambda text: all(f"✓ {promise}" in text for promise in PROMISES[:-1]))
    seen.type("q")

    assert seen.over() == 0
    assert "Everything that was promised has happened." in seen.text


@ENTIRE
def test_killed_it_leaves_no_worker_behind(folder: Path) -> None:
    demo = subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert "✓" in demo.stdout.readline()
    workers = _children(demo.pid)
    demo.kill()
    demo.wait()

    give_up = time.monotonic() + LIMIT
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
        (("--keep", "shop.py"), "there is such a file already"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, args: tuple[str, ...], why: str) -> None:
    done = cli("demo", *args)

    assert done.code == 2
    assert why in done.err


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is looked at
        return False
