"""The command line as a whole: help, hints, configuration, exit codes, signals, colours."""

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
from tests.cli.conftest import Cli, Place
from tests.cli.shell import COMMAND, Terminal, process


def test_help_names_every_command(cli: Cli) -> None:
    done = cli("--help")

    assert done.code == 0
    for name, what in COMMANDS.items():
        assert name in done.out
        assert what in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(cli: Cli, name: str) -> None:
    done = cli(name, "--help")

    assert (done.code, done.err) == (0, "")
    assert f"Usage: errandry {name}" in done.out


def test_help_imports_neither_a_driver_nor_what_draws() -> None:
    """What makes it start within a quarter of a second."""
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
        (["jobs", "xyzzy"], "There are ls, show, logs,"),
        (["jobs", "ls", "--limmit", "3"], "Did you mean '--limit'?"),
        (["--ulr", "x", "jobs"], "Did you mean '--url'?"),
        (["jobs", "ls", "--limit", "many"], "'many' is not a valid integer"),
        (["jobs", "postpone", "a", "--delay", "5x"], "'x' is not a unit"),
        (["jobs", "postpone", "a", "--run-at", "soon"], "write 2026-01-31 or 2026-01-31T08:00Z"),
        (["why"], "Missing argument 'ID'"),
        (["enqueue", "send", "--json", "{"], "--json takes JSON"),
        (["enqueue", "send", "--json", "[1]"], "--json takes an object"),
        (["--app", "nix:jobs", "enqueue", "send"], "there is no module nix"),
        (["--app", "shop:job", "enqueue", "send"], "there is no job in it; write shop:jobs"),
        (["--app", "shop:Errandry", "enqueue", "send"], "Errandry is no Errandry app but a type"),
        (["--app", "os:path", "enqueue", "send"], "os has no Errandry app"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_hint(cli: Cli, args: list[str], hint: str) -> None:
    done = cli(*args)

    assert (done.code, done.out) == (2, "")
    assert hint in done.err
    assert "Traceback" not in done.err


def test_a_program_that_cannot_be_imported_is_told_where_it_broke(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("import os\n\nos.nothing\n")

    done = cli("--app", "broken:jobs", "enqueue", "send")

    assert done.code == 2
    assert "AttributeError: module 'os' has no attribute 'nothing'" in done.err
    assert "broken.py, line 3" in done.err


def test_an_error_is_one_line_and_exit_code_1(cli: Cli, place: Place) -> None:
    place.enqueue()

    done = cli("jobs", "show", "nobody")

    assert (done.code, done.out, done.err) == (1, "", "Error: there is no job 'nobody'\n")


def test_a_query_that_cannot_be_read_is_a_wrong_command_line(cli: Cli, place: Place) -> None:
    place.enqueue()

    done = cli("jobs", "ls", "stat:failed")

    assert done.code == 2
    assert "did you mean state?" in done.err


def test_a_store_that_is_away_is_exit_code_75(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("jobs.db", "the disk did not obey")

    monkeypatch.setattr(main.errandry, "main", away)

    done = cli("jobs", "ls")

    assert (done.code, done.err) == (75, "Error: jobs.db: the disk did not obey\n")


def test_who_only_looks_makes_no_store(cli: Cli, folder: Path) -> None:
    done = cli("jobs", "ls")

    assert done.code == 1
    assert "there is no store at" in done.err
    assert not (folder / "errandry.db").exists()


def test_flags_go_before_the_environment_and_that_before_pyproject(
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


def test_a_flag_goes_before_what_the_app_says(cli: Cli, folder: Path) -> None:
    done = cli(
        "--app", "shop:jobs", "--url", "sqlite:///other.db", "enqueue", "send", "--json", '{"to": "ada"}'
    )

    assert done.code == 0
    assert ((folder / "other.db").exists(), (folder / "errandry.db").exists()) == (True, False)


def test_options_of_a_command_have_a_table_in_pyproject(cli: Cli, folder: Path, place: Place) -> None:
    (folder / "pyproject.toml").write_text("[tool.errandry.jobs.ls]\nlimit = 1\n")
    for _ in range(2):
        place.enqueue()

    assert len(cli("jobs", "ls", "--json").data) == 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[tool.errandry]\nulr = "x"\n', "tool.errandry has no 'ulr'; did you mean url?"),
        (
            "[tool.errandry.jobs.ls]\nlimits = 1\n",
            "tool.errandry.jobs.ls has no 'limits'; did you mean limit?",
        ),
        ("[tool.errandry\n", "pyproject.toml cannot be read"),
        ("[tool]\nerrandry = 3\n", "tool.errandry must be a table"),
    ],
)
def test_a_mistake_in_pyproject_is_told(cli: Cli, folder: Path, text: str, hint: str) -> None:
    (folder / "pyproject.toml").write_text(text)

    done = cli("jobs", "ls")

    assert done.code == 2
    assert hint in done.err


def test_data_goes_to_stdout_and_talk_to_stderr(place: Place) -> None:
    done = process("enqueue", "send", "--json", '{"to": "ada"}')

    [job] = place.ask(place.jobs.list).jobs
    assert (done.code, done.out) == (0, f"{job.id}\n")
    assert done.err == "send is waiting in queue default.\n"


def test_colours_are_for_terminals_and_can_be_forbidden(
    place: Place, terminal: Callable[..., Terminal]
) -> None:
    place.enqueue()
    color = "\x1b[33m"

    seen = terminal("jobs", "ls")
    assert (seen.over(), color in seen.raw) == (0, True)
    for plain in (terminal("jobs", "ls", env={"NO_COLOR": "1"}), terminal("--no-color", "jobs", "ls")):
        assert (plain.over(), "\x1b[" in plain.raw) == (0, False)
    assert "\x1b[" not in process("jobs", "ls").out


def test_nobody_who_reads_any_more_is_no_error(place: Place) -> None:
    payload = '{"text": "' + "x" * 1_000 + '"}'
    place.ask(place.jobs.insert, [NewJob(id=f"job-{n}", task="send", payload=payload) for n in range(500)])

    listing = subprocess.Popen(
        [*COMMAND, "jobs", "ls", "--all", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    with listing:
        listing.stdout.readline()
        listing.stdout.close()

        assert listing.stderr.read() == b""


def test_ctrl_c_ends_it_without_a_traceback(place: Place) -> None:
    place.enqueue()
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
def test_shells_are_taught_to_complete(cli: Cli, shell: str) -> None:
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
