"""`errandry worker`: what it takes, what it says, and how it ends. Its faults: tests/faults."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from errandry.core.job import NewJob
from tests.cli.conftest import Cli, Place
from tests.cli.shell import COMMAND, Terminal, process

SLOW = pytest.mark.slow(reason="starts a worker in a process of its own")


@SLOW
def test_a_burst_does_what_there_is_to_do_and_says_how_it_is_set_up(place: Place) -> None:
    job = place.enqueue()

    done = process("worker", "shop:jobs", "--burst", "--queues", "mail,default", "--concurrency", "5")

    assert (done.code, done.out) == (0, "")
    assert "sqlite:///errandry.db; tasks " in done.err
    assert "queues mail, default; at once 5 async, 8 in threads" in done.err
    assert place.ask(job.refresh).state == "completed"


@SLOW
def test_options_come_from_the_environment_too(place: Place) -> None:
    job = place.enqueue()
    settings = {"ERRANDRY_APP": "shop:jobs", "ERRANDRY_WORKER_BURST": "1", "ERRANDRY_WORKER_QUEUES": "other"}

    done = process("worker", "--log-level", "warning", env=settings)

    assert (done.code, done.err) == (0, "")
    assert place.ask(job.refresh).state == "waiting"


@SLOW
def test_a_store_named_by_a_flag_goes_to_apps_that_name_none(folder: Path) -> None:
    assert process("worker", "shop:jobs", "--burst", "--url", "sqlite:///elsewhere.db").code == 0

    assert (folder / "elsewhere.db").exists()
    assert not (folder / "errandry.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Which app? Write errandry worker shop:jobs"),
        (["nowhere:jobs"], "there is no module nowhere"),
        (["shop:job"], "there is no job in it; write shop:jobs"),
        (["shop:send"], "send is no Errandry app but a Task"),
        (["shop:jobs", "--lease", "0"], "--lease 0.0: must be more than 0 seconds."),
        (["shop:jobs", "--lease", "soon"], "not a duration"),
        (["shop:jobs", "--concurrency", "0"], "--concurrency 0: must be a whole number from 1"),
        (["shop:jobs", "--recycle-memory", "a lot"], "not a size"),
        (["shop:jobs", "--queues", "mail,,x"], "write names with commas between them"),
        (["shop:jobs", "--processes", "0"], "0 is not in the range"),
        (["shop:jobs", "--proceses", "2"], "Did you mean"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(cli: Cli, arguments: list[str], said: str) -> None:
    done = cli("worker", *arguments)

    assert done.code == 2
    assert said in done.err


def test_a_task_that_is_not_declared_is_a_usage_error(cli: Cli) -> None:
    done = cli("worker", "shop:jobs", "--burst", "--tasks", "nosuch")

    assert done.code == 2
    assert "--tasks nosuch: there is no task 'nosuch'; declared are " in done.err


@SLOW
def test_a_store_in_the_environment_that_the_app_does_not_take_is_named(folder: Path) -> None:
    (folder / "own.py").write_text("from errandry import Errandry\njobs = Errandry('sqlite:///own.db')\n")

    done = process("worker", "own:jobs", "--burst", env={"ERRANDRY_URL": "postgresql://me:secret@here/jobs"})

    assert done.code == 0
    assert "$ERRANDRY_URL is postgresql://" in done.err
    assert "but the app names a store of its own" in done.err
    assert "secret" not in done.err


def test_a_flag_does_not_overrule_the_store_an_app_names(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("from errandry import Errandry\njobs = Errandry('memory:')\n")
    before = os.environ.get("ERRANDRY_URL")
    try:
        done = cli("worker", "broken:jobs", "--url", "sqlite:///elsewhere.db")
    finally:
        os.environ.pop("ERRANDRY_URL", None)
        assert before is None

    assert done.code == 2
    assert "broken:jobs names its own store, memory:" in done.err


def test_an_app_that_cannot_be_imported_says_where(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\n\n1 / 0\n")

    done = cli("worker", "broken:jobs")

    assert done.code == 2
    assert "ZeroDivisionError: division by zero" in done.err
    assert "broken.py, line 3" in done.err


@SLOW
def test_a_terminal_has_a_line_that_says_how_things_stand(
    place: Place, terminal: Callable[..., Terminal], folder: Path
) -> None:
    hold = "\n\n@jobs.task\nasync def hold() -> None:\n    import asyncio\n    await asyncio.sleep(600)\n"
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + hold)
    place.ask(place.jobs.insert, [NewJob(id="held", task="hold", payload="{}")])
    screen = terminal("worker", "shop:jobs", columns=100)

    text = screen.until(lambda text: "1 running here · 0 jobs waiting · 0 finished/s" in text)
    assert "lease 30 s" in text
    screen.type("\x03")
    screen.until(lambda text: "handlers may finish for 25 s" in text)
    screen.type("\x03")

    assert screen.over() == 0


@SLOW
def test_a_pipe_that_nobody_reads_stops_no_worker(place: Place) -> None:
    job = place.enqueue()
    done = subprocess.run(
        f"{shlex.join(COMMAND)} worker shop:jobs --burst 2>&1 | head -c 1",
        shell=True,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0
    assert place.ask(job.refresh).state == "completed"
