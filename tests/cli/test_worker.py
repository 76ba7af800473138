"""`errandry worker`: its options, its messages and its end. For faults, see tests/faults."""

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from errandry.core.job import NewJob
from tests.cli.conftest import Cli, Shop
from tests.cli.shell import COMMAND, Terminal, run_process

SLOW = pytest.mark.slow(reason="starts a worker in a process of its own")


@SLOW
def test_a_burst_runs_all_jobs_and_logs_its_options(shop: Shop) -> None:
    job = shop.enqueue()

    done = run_process("worker", "shop:jobs", "--burst", "--queues", "mail,default", "--concurrency", "5")

    assert (done.code, done.out) == (0, "")
    assert "sqlite:///errandry.db; tasks " in done.err
    assert "queues mail, default; slots: 5 async, 8 thread" in done.err
    assert shop.call(job.refresh).state == "completed"


@SLOW
def test_options_come_from_the_environment_too(shop: Shop) -> None:
    job = shop.enqueue()
    settings = {"ERRANDRY_APP": "shop:jobs", "ERRANDRY_WORKER_BURST": "1", "ERRANDRY_WORKER_QUEUES": "other"}

    done = run_process("worker", "--log-level", "warning", env=settings)

    assert (done.code, done.err) == (0, "")
    assert shop.call(job.refresh).state == "waiting"


@SLOW
@pytest.mark.parametrize("given_by", ["option", "environment"])
def test_the_log_as_json_names_the_job_of_each_attempt(shop: Shop, given_by: str) -> None:
    completed, failed = shop.enqueue(), shop.enqueue(arguments={"to": "unknown"}, max_attempts=1)
    env = {"ERRANDRY_WORKER_LOG_FORMAT": "json"} if given_by == "environment" else {}
    options = ["--log-format", "json"] if given_by == "option" else []

    done = run_process("worker", "shop:jobs", "--burst", *options, env=env)

    assert done.code == 0
    lines = [json.loads(line) for line in done.err.splitlines()]
    ends = {line["job"]: line for line in lines if "outcome" in line}
    names = ("level", "task", "attempt", "outcome")
    assert [ends[completed.id][name] for name in names] == ["info", "send", 1, "completed"]
    assert [ends[failed.id][name] for name in names] == ["error", "send", 1, "failed"]
    assert ends[failed.id]["error"] == "no such address"
    assert ends[failed.id]["traceback"].endswith("\nLookupError: no such address")
    assert {line["logger"] for line in lines} == {"errandry.worker"}


@SLOW
def test_the_log_for_people_has_a_line_for_each_attempt(shop: Shop) -> None:
    completed, failed = shop.enqueue(), shop.enqueue(arguments={"to": "unknown"}, max_attempts=1)

    done = run_process("worker", "shop:jobs", "--burst")

    assert f"INFO    job {completed.id} (send): attempt 1 of 5 completed after 0." in done.err
    assert f"ERROR   job {failed.id} (send): attempt 1 of 1 failed for good after 0." in done.err
    assert "s: LookupError: no such address\n    Traceback (most recent call last):\n" in done.err


@SLOW
def test_a_store_given_by_a_flag_is_used_by_apps_that_name_none(folder: Path) -> None:
    assert run_process("worker", "shop:jobs", "--burst", "--url", "sqlite:///elsewhere.db").code == 0

    assert (folder / "elsewhere.db").exists()
    assert not (folder / "errandry.db").exists()


@SLOW
def test_a_flag_overrides_the_store_in_the_environment(folder: Path) -> None:
    env = {"ERRANDRY_URL": "sqlite:///other.db"}

    assert run_process("worker", "shop:jobs", "--burst", "--url", "sqlite:///elsewhere.db", env=env).code == 0

    assert ((folder / "elsewhere.db").exists(), (folder / "other.db").exists()) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No app given: write errandry worker shop:jobs"),
        (["nowhere:jobs"], "there is no module nowhere"),
        (["shop:job"], "it has no job; write shop:jobs"),
        (["shop:send"], "send is not an Errandry app but a Task"),
        (["shop:jobs", "--lease", "0"], "--lease 0: must be more than 0 seconds\n"),
        (["shop:jobs", "--lease", "soon"], "not a duration"),
        (["shop:jobs", "--concurrency", "0"], "--concurrency 0: must be a whole number from 1"),
        (["shop:jobs", "--recycle-memory", "a lot"], "not a size"),
        (
            ["shop:jobs", "--queues", "mail,,x"],
            "'mail,,x': write comma-separated names, such as mail,reports",
        ),
        (["shop:jobs", "--processes", "0"], "'0' is not a whole number from 1 to 1,000"),
        (["shop:jobs", "--thread-slots", "0"], "--thread-slots 0: must be a whole number from 1"),
        (["shop:jobs", "--process-slots", "0"], "--process-slots 0: must be a whole number from 1"),
        (["shop:jobs", "--proceses", "2"], "Did you mean"),
        (["shop:jobs", "--weights", "1,2.5"], "--weights 1,2.5: name the queues to order with --queues"),
        (
            ["shop:jobs", "--queues", "a,b", "--weights", "1"],
            "--weights 1: 2 weights are needed, one for each",
        ),
        (["shop:jobs", "--queues", "a,b", "--weights", "3,x"], "'3,x': write comma-separated numbers"),
        (["shop:jobs", "--queues", ""], "'': write comma-separated names"),
        (["shop:jobs", "--recycle-memory", "5 MB"], "--recycle-memory '5 MB': must be a whole number from"),
        (["shop.py:jobs"], "there is no module shop.py in "),
        (["shop.py:jobs"], "; write shop:jobs\n"),
        (["shop:jobs", "--queues", "a,b", "--weights", "0,1"], "--weights 0,1: must be from 0.001"),
        (["shop:jobs", "--strict"], "--strict: name the queues to order with --queues"),
    ],
)
def test_an_invalid_option_is_a_usage_error(cli: Cli, arguments: list[str], message: str) -> None:
    done = cli("worker", *arguments)

    assert done.code == 2
    assert message in done.err


def test_a_task_that_is_not_declared_is_a_usage_error(cli: Cli) -> None:
    done = cli("worker", "shop:jobs", "--burst", "--tasks", "nosuch")

    assert done.code == 2
    assert "--tasks nosuch: there is no task 'nosuch'; declared tasks: " in done.err


@SLOW
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_store_that_it_must_not_use_ends_the_worker_at_once(folder: Path, processes: str) -> None:
    (folder / "errandry.db").write_bytes(b"no database " * 100)

    done = run_process("worker", "shop:jobs", "--processes", processes)

    assert (done.code, "errandry.db: not a sound database" in done.err) == (78, True)
    assert "trying again" not in done.err
    assert "restarting it" not in done.err


@SLOW
def test_a_store_in_the_environment_that_the_app_ignores_is_logged(folder: Path) -> None:
    (folder / "own.py").write_text("from errandry import Errandry\njobs = Errandry('sqlite:///own.db')\n")

    done = run_process(
        "worker", "own:jobs", "--burst", env={"ERRANDRY_URL": "postgresql://me:secret@here/jobs"}
    )

    assert done.code == 0
    assert "$ERRANDRY_URL is postgresql://" in done.err
    assert "but the app has its own store" in done.err
    assert "secret" not in done.err


def test_a_flag_does_not_replace_the_store_that_an_app_names(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("from errandry import Errandry\njobs = Errandry('memory:')\n")
    before = os.environ.get("ERRANDRY_URL")
    try:
        done = cli("worker", "broken:jobs", "--url", "sqlite:///elsewhere.db")
    finally:
        os.environ.pop("ERRANDRY_URL", None)
        assert before is None

    assert done.code == 2
    assert "broken:jobs has its own store, memory:" in done.err


def test_an_invalid_url_is_reported_as_the_option(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "memory:")  # so that it is restored after the test

    assert cli("worker", "shop:jobs", "--url", "foo:").err.startswith("Error: --url foo:: unknown scheme")


def test_a_failed_import_names_the_file_and_line(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\n\n1 / 0\n")

    done = cli("worker", "broken:jobs")

    assert done.code == 2
    assert "ZeroDivisionError: division by zero" in done.err
    assert "broken.py, line 3" in done.err


def test_a_syntax_error_names_its_place_once(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\n\ndef (:\n")

    done = cli("worker", "broken:jobs")

    assert f"SyntaxError: invalid syntax ({folder}/broken.py, line 3)\n" in done.err


def test_an_invalid_variable_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDRY_WORKER_LEASE", "0")
    assert cli("worker", "shop:jobs").err == (
        "Error: ERRANDRY_WORKER_LEASE=0 in the environment: must be more than 0 seconds\n"
    )

    monkeypatch.setenv("ERRANDRY_WORKER_CONCURRENCY", "many")
    done = cli("worker", "shop:jobs")
    assert (done.code, "for ERRANDRY_WORKER_CONCURRENCY in the environment: 'many'" in done.err) == (2, True)


def test_an_invalid_value_in_pyproject_is_named_with_the_file(cli: Cli, folder: Path) -> None:
    path = folder / "pyproject.toml"
    path.write_text("[tool.errandry.worker]\nlease = 0\nthread-slots = 0\n")

    assert cli("worker", "shop:jobs", "--lease", "9").err == (
        f"Error: tool.errandry.worker.thread-slots = 0 in {path}: must be a whole number from 1 to 1,000\n"
    )
    assert cli("worker", "shop:jobs", "--thread-slots", "1").err == (
        f"Error: tool.errandry.worker.lease = 0 in {path}: must be more than 0 seconds\n"
    )
    path.write_text('[tool.errandry.worker]\nconcurrency = "many"\n')
    assert f"for tool.errandry.worker.concurrency in {path}: 'many'" in cli("worker", "shop:jobs").err


@SLOW
def test_a_terminal_gets_a_status_line(shop: Shop, terminal: Callable[..., Terminal], folder: Path) -> None:
    hold = "\n\n@jobs.task\nasync def hold() -> None:\n    import asyncio\n    await asyncio.sleep(600)\n"
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + hold)
    shop.call(shop.jobs.client.insert, [NewJob(id="held", task="hold", payload="{}")])
    screen = terminal("worker", "shop:jobs", columns=100)

    text = screen.wait_until(lambda text: "1 running here · 0 jobs waiting · 0 finished/s" in text)
    assert "lease 30 s" in text
    screen.type("\x03")
    screen.wait_until(lambda text: "handlers may finish for 25 s" in text)
    screen.type("\x03")

    assert screen.wait() == 0


@SLOW
def test_a_worker_whose_terminal_is_closed_drains(
    shop: Shop, terminal: Callable[..., Terminal], folder: Path
) -> None:
    """Its log and its status line have no place to go then."""
    hold = (
        "\n\n@jobs.task\nasync def hold() -> str:\n    import asyncio\n    from pathlib import Path\n"
        "    while not Path('open').exists():\n        await asyncio.sleep(0.01)\n    return 'finished'\n"
    )
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + hold)
    shop.call(shop.jobs.client.insert, [NewJob(id="held", task="hold", payload="{}")])
    screen = terminal("worker", "shop:jobs", columns=100)
    screen.wait_until(lambda text: "1 running here" in text)

    (folder / "open").touch()

    assert screen.hang_up() == 0
    assert shop.call(shop.jobs.get, "held").state == "completed"


@SLOW
def test_a_closed_output_pipe_does_not_stop_a_worker(shop: Shop) -> None:
    job = shop.enqueue()
    done = subprocess.run(
        f"{shlex.join(COMMAND)} worker shop:jobs --burst 2>&1 | head -c 1",
        shell=True,
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0
    assert shop.call(job.refresh).state == "completed"
