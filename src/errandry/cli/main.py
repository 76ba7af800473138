"""The entry point: it finds the command and turns errors into one line on stderr and an exit code.

0    success
1    a job was refused or not found, or a check failed
2    the command line, or a value or a query in it, is wrong
75   the store cannot be reached at the moment: try again
78   the store must not be used: a wrong password, a newer schema, a file that was deleted or is damaged
130  interrupted
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from errandry import __version__
from errandry.cli.command import CliGroup
from errandry.cli.config import load_defaults
from errandry.cli.standard_streams import ClosedOutput, replace_closed_streams
from errandry.core.printable import clean
from errandry.errors import ErrandryError, InvalidValue, QueryError, StoreRefused, StoreUnavailable

COMMANDS: Mapping[str, str] = {
    "demo": "Run a demo: jobs, workers, failures and a crash",
    "worker": "Run a worker for an app",
    "enqueue": "Enqueue a job",
    "jobs": "List, inspect and change jobs",
    "flows": "List flows and show their jobs",
    "why": "Explain why a job is not running",
    "schedules": "List, add, change, pause and run schedules",
    "queues": "List, pause, limit and clear queues",
    "groups": "List the groups of queues and their limits",
    "workers": "List, pause and resume workers",
    "dlq": "List, rerun and delete failed jobs (the dead-letter queue)",
    "prune": "Delete finished jobs whose retention has expired",
    "events": "Print events, and follow new ones",
    "top": "Show queues, workers and jobs, live",
    "doctor": "Check the store, the clock, workers and schedules",
    "bench": "Measure throughput, latency and recovery on this machine",
    "migrate": "Create the store or upgrade its schema",
    "completion": "Print a shell completion script",
}
"""Every command with its summary. `errandry.cli.<name>` defines it and is imported only if it is called."""

USAGE_ERROR = 2
EXIT_CODES: Mapping[type[ErrandryError], int] = {
    InvalidValue: USAGE_ERROR,
    QueryError: USAGE_ERROR,
    StoreUnavailable: 75,
    StoreRefused: 78,
}
INTERRUPTED = 130


class Root(CliGroup):
    """`errandry` itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"errandry.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            raise click.ClickException("the current folder was deleted: change to another one") from None
        extra.setdefault("default_map", load_defaults(folder))
        return super().make_context(info_name, args, parent, **extra)


@click.group(cls=Root, context_settings={"auto_envvar_prefix": "ERRANDRY"})
@click.version_option(__version__, message="%(prog)s %(version)s")
def errandry() -> None:
    """Enqueue background jobs, run workers, and inspect jobs, queues and workers.

    Every option can also be set in the environment (ERRANDRY_URL, ERRANDRY_WORKER_CONCURRENCY, …) or in
    pyproject.toml under [tool.errandry], with a table for each command.
    """
    if isinstance(sys.stdout, ClosedOutput) and click.get_current_context().invoked_subcommand != "worker":
        raise click.ClickException("standard output is closed: open it, or send it to /dev/null")


def main() -> None:
    replace_closed_streams()
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit code. An expected error is printed on stderr as one line."""
    try:
        code = errandry.main(args, prog_name="errandry", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except ErrandryError as error:
        click.echo(f"Error: {clean(_error_text(error))}", err=True)
        return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
    except BrokenPipeError:  # the reader of the pipe has closed it, as `head` does
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _error_text(error: ErrandryError) -> str:
    """The message, with the name of a wrong value as the command line writes it: `group-limit`."""
    text = str(error)
    if isinstance(error, InvalidValue) and text.startswith(f"{error.name}="):
        return error.name.replace("_", "-") + text.removeprefix(error.name)
    return text
