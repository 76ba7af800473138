"""Generate the reference page of the command line from the commands."""

from collections.abc import Iterable, Iterator
from html import escape
from inspect import cleandoc

import click

from errandry.cli.command import CliCommand, CliGroup
from errandry.cli.main import COMMANDS, EXIT_CODES, INTERRUPTED, errandry
from errandry.errors import StoreRefused, StoreUnavailable


def page() -> str:
    """The text of the page: every command with its options, and the global options once."""
    root = click.Context(errandry, info_name="errandry")
    sections = "\n".join(text for name in COMMANDS for text in _sections(root, name, 2))
    temporary, refused = EXIT_CODES[StoreUnavailable], EXIT_CODES[StoreRefused]
    return f"""# Command line

Written by `make generate` from `errandry.cli`. [The guide](../guide/cli.md) shows how the commands are used.

Data goes to stdout, messages to stderr. The exit code is 0 on success, 1 if a job was refused or not found or
a check failed, 2 if the command line or a value in it is wrong, {temporary} if the store cannot be reached at
the moment, {refused} if it must not be used (a wrong password, a newer schema, a damaged file), and
{INTERRUPTED} after Ctrl-C.

Every option can be given as a flag, in the environment (`ERRANDRY_URL`, `ERRANDRY_JOBS_LS_LIMIT`), or in the
nearest `pyproject.toml` (`url` in `[tool.errandry]`, `limit` in `[tool.errandry.jobs.ls]`), in this order of
precedence.

## Global options

{_options(root, [option for option in errandry.params if option.name != "version"])}
{sections}"""


def _sections(parent: click.Context, name: str, level: int) -> Iterator[str]:
    group = parent.command
    command = group.get_command(parent, name) if isinstance(group, click.Group) else None
    if command is None:
        raise LookupError(f"{parent.command_path} has no command {name}")
    ctx = click.Context(command, info_name=name, parent=parent)
    yield f"\n{'#' * level} `{ctx.command_path}`\n\n{_help(command)}\n"
    if isinstance(command, CliGroup):
        for subcommand in command.list_commands(ctx):
            yield from _sections(ctx, subcommand, level + 1)
        return
    yield f"    {command.get_usage(ctx).removeprefix('Usage: ')}\n"
    common = command.common if isinstance(command, CliCommand) else []
    own = [
        subcommand
        for subcommand in command.params
        if isinstance(subcommand, click.Option) and subcommand not in common
    ]
    if options := _options(ctx, own):
        yield f"{options}\n"


def _help(command: click.Command) -> str:
    """The help text of the command as Markdown; preformatted paragraphs become code blocks."""
    paragraphs = cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(_paragraph(text) for text in paragraphs)


def _paragraph(text: str) -> str:
    if not text.startswith("\b"):
        return text
    return "\n".join(f"    {line}".rstrip() for line in text.removeprefix("\b").strip("\n").splitlines())


def _options(ctx: click.Context, options: Iterable[click.Parameter]) -> str:
    records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if not records:
        return ""
    rows = "\n".join(f"| {_code(name)} | {text.replace('|', '&#124;')} |" for name, text in records)
    return f"| option | meaning |\n| --- | --- |\n{rows}"


def _code(text: str) -> str:
    """Code in a table. A bar ends the cell even in code, and some renderers show a backslash before it."""
    return (
        f'<code class="choice">{escape(text).replace("|", "&#124;")}</code>' if "|" in text else f"`{text}`"
    )
