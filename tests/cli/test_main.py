"""The command line as a whole: help, hints, configuration, exit codes, signals, colours."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import errandry
from errandry.cli import main
from errandry.cli.main import COMMANDS
from errandry.core.job import NewJob
from errandry.errors import StoreUnavailable
from errandry.store.sqlite import file
from tests.cli.conftest import Cli, Shop
from tests.cli.shell import COMMAND, COMMAND_TIMEOUT, CliResult, Terminal, run_process


def test_help_lists_every_command(cli: Cli) -> None:
    done = cli("--help")

    assert done.code == 0
    for name, summary in COMMANDS.items():
        assert name in done.out
        assert summary in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(cli: Cli, name: str) -> None:
    done = cli(name, "--help")

    assert (done.code, done.err) == (0, "")
    assert f"Usage: errandry {name}" in done.out


def test_help_shows_arguments_in_the_usage_line_and_only_options_below(cli: Cli) -> None:
    usage, _, below = cli("enqueue", "--help").out.partition("\nOptions:\n")
    options, _, common = below.partition("\nGlobal options:\n")

    assert usage.startswith("Usage: errandry enqueue [OPTIONS] TASK\n")
    for section, first in ((options, "--args"), (common, "--url")):
        names = [line.split()[0] for line in section.splitlines() if re.match(r" {2}\S", line)]
        assert names[0] == first
        assert [name for name in names if not name.startswith("--")] == []


def test_help_imports_neither_a_driver_nor_rich() -> None:
    """This keeps the start below a quarter of a second."""
    code = "import sys; from errandry.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.splitlines()[-1].split())
    assert "errandry.cli.main" in loaded
    assert not loaded & {"rich", "apsw", "errandry.store.sqlite.driver", "errandry.cli.jobs"}


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli("--version").out == f"errandry {errandry.__version__}\n"


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["job"], "There is no command 'job'. Did you mean jobs?"),
        (["jobs", "lst"], "There is no command 'lst'. Did you mean ls?"),
        (["jobs", "xyzzy"], "The commands are ls, show, logs,"),
        (["jobs", "ls", "--limmit", "3"], "Did you mean '--limit'?"),
        (["jobs", "ls", "--query", "state:nope"], "without --query: errandry jobs ls state:failed"),
        (["--ulr", "x", "jobs"], "Did you mean '--url'?"),
        (["jobs", "ls", "--limit", "many"], "'many' is not a whole number of at least 1"),
        (["jobs", "postpone", "a", "--delay", "5x"], "'x' is not a unit"),
        (["jobs", "postpone", "a", "--run-at", "soon"], "write 2026-01-31 or 2026-01-31T08:00Z"),
        (["why"], "Missing argument 'ID'"),
        (["events", "--kind", "shedule_changed"], "is no kind of event. Did you mean schedule_changed?"),
        (["events", "--kind", "xyzzy"], "is no kind of event. Write one of "),
        (["enqueue", "send", "--args", "{"], "--args needs valid JSON"),
        (["enqueue", "send", "--args", "[1]"], "--args needs a JSON object"),
        (["--app", "nix:jobs", "enqueue", "send"], "there is no module nix"),
        (["--app", "shop:job", "enqueue", "send"], "it has no job; write shop:jobs"),
        (["--app", "shop:Errandry", "enqueue", "send"], "Errandry is not an Errandry app but a type"),
        (["--app", "os:path", "enqueue", "send"], "os has no Errandry app"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_hint(cli: Cli, args: list[str], hint: str) -> None:
    done = cli(*args)

    assert (done.code, done.out) == (2, "")
    assert hint in done.err
    assert "Traceback" not in done.err


def test_a_failed_import_names_the_file_and_line(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\n\nos.nothing\n")

    done = cli("--app", "broken:jobs", "enqueue", "send")

    assert done.code == 2
    assert "AttributeError: module 'os' has no attribute 'nothing'" in done.err
    assert "broken.py, line 3" in done.err


def test_an_error_is_one_line_and_exit_code_1(cli: Cli, shop: Shop) -> None:
    shop.enqueue()

    done = cli("jobs", "show", "unknown")

    assert (done.code, done.out, done.err) == (1, "", "Error: there is no job 'unknown'\n")


def test_an_invalid_query_is_a_usage_error(cli: Cli, shop: Shop) -> None:
    shop.enqueue()

    done = cli("jobs", "ls", "stat:failed")

    assert done.code == 2
    assert "did you mean state?" in done.err


def test_an_error_in_a_query_shows_only_what_was_written(cli: Cli, shop: Shop) -> None:
    shop.enqueue()

    for command in (("dlq", "ls"), ("dlq", "rerun"), ("queues", "promote", "mail")):
        done = cli(*command, "state:x")
        assert (done.code, done.err.splitlines()[1:]) == (2, ["  state:x", "        ^"])


@pytest.mark.parametrize("words", [("jobs", "ls"), ("jobs", "cancel")])
def test_a_wrong_operator_of_a_query_is_refused_with_the_right_one(
    cli: Cli, shop: Shop, words: tuple[str, ...]
) -> None:
    shop.enqueue()

    done = cli(*words, "state!=completed")

    assert (done.code, "!= is not an operator; write -state:completed" in done.err) == (2, True)


def test_a_variable_with_a_wrong_url_is_named(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "mysql://me:secret@host/jobs")
    assert "ERRANDRY_URL=mysql://me@host/jobs in the environment: unknown scheme" in cli("jobs", "ls").err

    in_app = cli("enqueue", "--app", "shop", "send").err
    assert in_app.startswith("Error: ERRANDRY_URL=mysql://me@host/jobs in the environment: unknown scheme")

    monkeypatch.delenv("ERRANDRY_URL")
    (folder / "pyproject.toml").write_text('[tool.errandry]\nurl = "sqlite:///x.db?foo=1"\n')
    written = f"tool.errandry.url = sqlite:///x.db?foo=1 in {folder}/pyproject.toml: has an unknown option"
    assert written in cli("jobs", "ls").err


def test_migrate_says_what_it_did(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = file._MIGRATIONS[-1][0]
    url = "sqlite:///new.db"
    assert cli("migrate", "--url", url).err == f"The store was created with schema {newest}.\n"
    assert cli("migrate", "--url", url).err == f"The store is up to date: schema {newest}.\n"

    more = (newest + 1, "more", "CREATE TABLE more (x)")
    monkeypatch.setattr(file, "_MIGRATIONS", [*file._MIGRATIONS, more])
    done = cli("migrate", "--url", url)
    assert done.err == f"The store was upgraded from schema {newest} to schema {newest + 1}.\n"

    again, memory = cli("migrate", "--json", "--url", url), cli("migrate", "--json", "--url", "memory:")
    assert again.data == [{"store": url, "ready": True, "from": newest + 1, "to": newest + 1}]
    assert memory.data == [{"store": "memory:", "ready": True, "from": None, "to": None}]


def test_a_port_that_is_no_number_is_exit_code_2(cli: Cli) -> None:
    done = cli("jobs", "ls", "--url", "postgresql://host:abc")

    assert done.code == 2
    assert "--url postgresql://host:abc: the port 'abc' must be a number" in done.err


def test_an_unreachable_store_is_exit_code_75(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("jobs.db", "the disk did not obey")

    monkeypatch.setattr(main.errandry, "main", away)

    done = cli("jobs", "ls")

    assert (done.code, done.err) == (75, "Error: jobs.db: the disk did not obey\n")


def test_reading_commands_create_no_store(cli: Cli, folder: Path) -> None:
    done = cli("jobs", "ls")

    assert done.code == 1
    assert "there is no store at" in done.err
    assert not (folder / "errandry.db").exists()


def test_flags_override_the_environment_which_overrides_pyproject(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pyproject.toml").write_text('[tool.errandry]\nurl = "sqlite:///third.db"\n')
    inside = folder / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)

    assert cli("migrate").code == 0
    monkeypatch.setenv("ERRANDRY_URL", "sqlite:///second.db")
    assert cli("migrate").code == 0
    assert cli("--url", "sqlite:///first.db", "migrate").code == 0
    assert cli("migrate", "--url", "sqlite:///after.db").code == 0

    assert sorted(path.name for path in inside.glob("*.db")) == [
        "after.db",
        "first.db",
        "second.db",
        "third.db",
    ]


def test_a_flag_overrides_the_store_of_the_app(cli: Cli, folder: Path) -> None:
    done = cli(
        "--app", "shop:jobs", "--url", "sqlite:///other.db", "enqueue", "send", "--args", '{"to": "ada"}'
    )

    assert done.code == 0
    assert ((folder / "other.db").exists(), (folder / "errandry.db").exists()) == (True, False)


def test_options_of_a_command_have_a_table_in_pyproject(cli: Cli, folder: Path, shop: Shop) -> None:
    (folder / "pyproject.toml").write_text("[tool.errandry.jobs.ls]\nlimit = 1\n")
    for _ in range(2):
        shop.enqueue()

    assert len(cli("jobs", "ls", "--json").data) == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[tool.errandry]\nulr = "x"\n', "tool.errandry has no 'ulr'; did you mean url?"),
        (
            "[tool.errandry.jobs.ls]\nlimits = 1\n",
            "tool.errandry.jobs.ls has no 'limits'; did you mean limit?",
        ),
        ("[tool.errandry\n", "cannot read"),
        ("[tool]\nerrandry = 3\n", "tool.errandry must be a table"),
    ],
)
def test_a_mistake_in_pyproject_is_reported(cli: Cli, folder: Path, text: str, hint: str) -> None:
    (folder / "pyproject.toml").write_text(text)

    done = cli("jobs", "ls")

    assert done.code == 2
    assert hint in done.err


def test_data_goes_to_stdout_and_messages_to_stderr(shop: Shop) -> None:
    done = run_process("enqueue", "send", "--args", '{"to": "ada"}')

    [job] = shop.call(shop.jobs.list).jobs
    assert (done.code, done.out) == (0, f"{job.id}\n")
    assert done.err == "send is waiting in queue default.\n"


def test_colors_are_for_terminals_and_can_be_turned_off(
    shop: Shop, terminal: Callable[..., Terminal]
) -> None:
    shop.enqueue()
    color = "\x1b[33m"

    screen = terminal("jobs", "ls")
    assert (screen.wait(), color in screen.raw) == (0, True)
    for plain in (terminal("jobs", "ls", env={"NO_COLOR": "1"}), terminal("--no-color", "jobs", "ls")):
        assert (plain.wait(), "\x1b[" in plain.raw) == (0, False)
    assert "\x1b[" not in run_process("jobs", "ls").out


def test_a_closed_output_pipe_is_no_error(shop: Shop) -> None:
    payload = '{"text": "' + "x" * 1_000 + '"}'
    shop.call(
        shop.jobs.client.insert, [NewJob(id=f"job-{n}", task="send", payload=payload) for n in range(500)]
    )

    listing = subprocess.Popen(
        [*COMMAND, "jobs", "ls", "--all", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    with listing:
        listing.stdout.readline()
        listing.stdout.close()

        assert listing.stderr.read() == b""


def test_ctrl_c_ends_a_command_without_a_traceback(shop: Shop) -> None:
    shop.enqueue()
    following = subprocess.Popen(
        [*COMMAND, "events", "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    assert following.stderr is not None
    with following:
        assert "waiting" in following.stdout.readline()
        following.send_signal(signal.SIGINT)

        assert following.wait(45) == 130
        assert following.stderr.read().strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_shell_script(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)

    assert done.code == 0
    assert "_ERRANDRY_COMPLETE" in done.out


def test_commands_are_completed() -> None:
    env = {"_ERRANDRY_COMPLETE": "bash_complete", "COMP_WORDS": "errandry jobs c", "COMP_CWORD": "2"}

    done = subprocess.run(
        [sys.executable, "-c", "from errandry.cli.main import main; main()"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", **env},
    )

    assert done.stdout == "plain,cancel\n"


def run_in_shell(redirections: str, *args: str) -> CliResult:
    """Run the command from a shell, with these redirections."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", *COMMAND, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)
    return CliResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow(reason="starts a worker in a process of its own")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_worker_runs_with_closed_standard_streams(shop: Shop, closed: str) -> None:
    job = shop.enqueue()

    done = run_in_shell(closed, "worker", "shop:jobs", "--burst")

    assert (done.code, done.out) == (0, "")
    assert "Traceback" not in done.err
    assert shop.call(job.refresh).state == "completed"


def test_a_command_that_prints_refuses_a_closed_standard_output(folder: Path) -> None:
    done = run_in_shell(">&-", "enqueue", "send", "to=ada")

    text = "Error: standard output is closed: open it, or send it to /dev/null\n"
    assert (done.code, done.err) == (1, text)
    assert list(folder.glob("*.db")) == []


def test_a_command_needs_neither_standard_input_nor_the_error_stream(shop: Shop) -> None:
    job = shop.enqueue()

    done = run_in_shell("<&- 2>&-", "jobs", "ls")

    assert done.code == 0
    assert job.id in done.out


def test_a_current_folder_that_was_deleted_is_one_clear_line(cli: Cli, folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        done = cli("jobs", "ls")
    finally:
        os.chdir(folder)

    text = "Error: the current folder was deleted: change to another one\n"
    assert (done.code, done.out, done.err) == (1, "", text)
