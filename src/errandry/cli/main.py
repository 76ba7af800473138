"""The entry point: finds the command, and turns whatever goes wrong into one line and an exit code.

0    done
1    refused, not found, or something is wrong: the line says what
2    the command line itself is wrong, or a query in it
75   the store cannot be reached just now: try again
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
from errandry.cli.config import configured
from errandry.cli.text import clean
from errandry.errors import ErrandryError, QueryError, StoreUnavailable

COMMANDS: Mapping[str, str] = {
    "demo": "See it all happen, with nothing to configure.",
    "worker": "Run the handlers of an app.",
    "enqueue": "Enqueue a job.",
    "jobs": "Look at jobs, and do something to them.",
    "flows": "See which jobs wait for which, and how far they are.",
    "why": "Say why a job is not running.",
    "schedules": "See what runs again and again; add, change, pause and run it.",
    "queues": "See how full queues are; pause and limit them.",
    "groups": "See the groups of queues, and what limits them.",
    "workers": "See who works; pause and resume workers.",
    "dlq": "See to the jobs that failed for good.",
    "prune": "Delete finished jobs whose time is over.",
    "events": "Print what happened, and what happens.",
    "top": "Watch queues, workers and jobs, live.",
    "doctor": "Look whether everything is all right.",
    "bench": "Measure this machine: enqueueing, running, latency, crashes.",
    "migrate": "Make the store, or bring it up to date.",
    "completion": "Make a shell complete commands and options.",
}
"""Every command with what it does; `errandry.cli.<name>` has it, and is imported only when it is called."""

CODES: Mapping[type[ErrandryError], int] = {QueryError: 2, StoreUnavailable: 75}
INTERRUPTED = 130


class Root(CliGroup):
    """`errandry` itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"errandry.cli.{cmd_name}"), cmd_name)
        return found

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
        extra.setdefault("default_map", configured(os.getcwd()))
        return super().make_context(info_name, args, parent, **extra)


@click.group(cls=Root, context_settings={"auto_envvar_prefix": "ERRANDRY"})
@click.version_option(__version__, message="%(prog)s %(version)s")
def errandry() -> None:
    """Background jobs: enqueue them, run workers, see what happens and why.

    Every option can also be set in the environment (ERRANDRY_URL, ERRANDRY_WORKER_CONCURRENCY, …) or in
    pyproject.toml under [tool.errandry], with a table for each command.
    """


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """The exit code; what went wrong is on stderr, in one line where it is no mistake of ours."""
    try:
        code = errandry.main(args, prog_name="errandry", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except ErrandryError as error:
        click.echo(f"Error: {clean(str(error))}", err=True)
        return next((code for kind, code in CODES.items() if isinstance(error, kind)), 1)
    except BrokenPipeError:  # whoever read has had enough
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
