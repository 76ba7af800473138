"""The command classes: they accept common options anywhere and suggest a name for an unknown one."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import click
from click.core import ParameterSource

from errandry.cli.refused_value import name_place, refused_value
from errandry.cli.session import Session
from errandry.core.query import OPERATORS
from errandry.errors import InvalidValue

QUERY_TERM = re.compile(rf"-?(?:{'|'.join(OPERATORS)})(?:[:~<>]|!?=)")
"""The beginning of a query term. An argument that does not match is a job id."""
MINUS_MARK = "\0"
"""Prefix of a query term or number that begins with a minus, so that click does not parse it as an option.

No command-line argument can contain this character.
"""


class CliCommand(click.Command):
    """A command that also takes the common options after its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {name for parameter in self.params for name in parameter.opts}
        self.common = [option for option in _common_options() if not own & set(option.opts)]
        self.params += self.common

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _check_defaults(ctx, (parameter.name for parameter in self.params))
        try:
            rest = super().parse_args(ctx, self._mark_values(args))
        except click.BadParameter as error:
            name_place(ctx, error)
            raise
        except click.NoSuchOption as error:
            self._explain_query(ctx, error)
            raise
        for name, value in ctx.params.items():
            ctx.params[name] = _without_mark(value)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error about a refused value names the option that has it."""
        try:
            return super().invoke(ctx)
        except InvalidValue as error:
            raise refused_value(ctx, error) from None

    def _explain_query(self, ctx: click.Context, error: click.NoSuchOption) -> None:
        """Refuse `--query` with the right form, where the query is an argument."""
        metavars = [param.metavar or "" for param in self.params if isinstance(param, click.Argument)]
        if error.option_name == "--query" and any("QUERY" in metavar for metavar in metavars):
            example = f"{ctx.command_path} state:failed"
            raise click.UsageError(f"Write the query as an argument, without --query: {example}", ctx)

    def _mark_values(self, args: list[str]) -> list[str]:
        """Mark negative query terms and numbers, unless they are the value of an option."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        return [
            f"{MINUS_MARK}{arg}" if _is_negative(arg) and before not in with_value else arg
            for before, arg in pairwise(["", *args])
        ]

    def get_short_help_str(self, limit: int = 45) -> str:
        """The summary for the list of commands, without its period."""
        text = super().get_short_help_str(limit)
        return text if text.endswith("...") else text.removesuffix(".")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the own options and the common ones; the arguments are in the usage line."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        own = [option for option in options if option not in self.common]
        for title, section in (("Options", own), ("Global options", self.common)):
            if records := [record for option in section if (record := option.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)


class CliGroup(click.Group):
    """A group of commands; it also takes the common options."""

    command_class = CliCommand
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _common_options()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)  # in the order of declaration, not of the alphabet

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _check_defaults(ctx, (*(parameter.name for parameter in self.params), *self.list_commands(ctx)))
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            name_place(ctx, error)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(name, known, 1)
            hint = f"Did you mean {close[0]}?" if close else f"The commands are {', '.join(known)}."
            raise click.UsageError(f"There is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def _common_options() -> list[click.Option]:
    """Options that every command takes, before or after its name."""
    return [
        _common_option("--url", metavar="URL", help="URL of the store, such as sqlite:///errandry.db"),
        _common_option("--app", metavar="MODULE:NAME", help="App that declares the tasks, such as shop:jobs"),
        _common_option("--json", is_flag=True, help="Print JSON, one line for each item"),
        _common_option("--no-color", is_flag=True, help="Print without colors, as with NO_COLOR"),
    ]


def _common_option(name: str, **attributes: Any) -> click.Option:
    return click.Option([name], expose_value=False, callback=_store_in_session, default=None, **attributes)


def _store_in_session(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value in the session: the last flag wins; a configured value applies to the root only."""
    source = ctx.get_parameter_source(param.name or "")
    is_given = source is ParameterSource.COMMANDLINE
    if value and (is_given or ctx.parent is None):
        session = ctx.ensure_object(Session)
        setattr(session, "configured_url" if param.name == "url" and not is_given else str(param.name), value)


def _check_defaults(ctx: click.Context, names: Iterable[str | None]) -> None:
    """Refuse unknown keys in pyproject.toml: click would ignore a misspelled one."""
    known = [name for name in names if name]
    for key in ctx.default_map or ():
        if key not in known:
            close = get_close_matches(key, known, 1) or known
            table = ".".join(["tool", *ctx.command_path.split()])
            raise click.UsageError(f"pyproject.toml: {table} has no {key!r}; did you mean {close[0]}?", ctx)


def _is_negative(argument: str) -> bool:
    """Whether this is a query term or a number that begins with a minus."""
    return argument.startswith("-") and (argument[1:2].isdigit() or QUERY_TERM.match(argument) is not None)


def _without_mark(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_without_mark, value))
    return value.removeprefix(MINUS_MARK) if isinstance(value, str) else value
