"""Commands as they are everywhere here: common options at any place, a hint where a name is unknown."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from errandry.cli.session import Session
from errandry.core.query import OPERATORS

TERM = re.compile(rf"-?(?:{'|'.join(OPERATORS)})(?:[:~<>])")
"""How a term of a query begins. What does not begin like this is the id of a job."""
MINUS = "\0"
"""Stands before a term with a minus, which would be taken for an option. No argument can contain it."""


class CliCommand(click.Command):
    """A command that also takes the common options after its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {name for parameter in self.params for name in parameter.opts}
        self.common = [option for option in _common() if not own & set(option.opts)]
        self.params += self.common

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _check_defaults(ctx, (parameter.name for parameter in self.params))
        return super().parse_args(ctx, [f"{MINUS}{one}" if _is_negative(one) else one for one in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [option for option in self.get_params(ctx) if option not in self.common]
        for title, options in (("Options", own), ("Options of every command", self.common)):
            if records := [record for option in options if (record := option.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)


class CliGroup(click.Group):
    """Commands that belong together."""

    command_class = CliCommand
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _common()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)  # as they are declared, which is as they are used

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _check_defaults(ctx, (*(parameter.name for parameter in self.params), *self.list_commands(ctx)))
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(name, known, 1)
            hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
            raise click.UsageError(f"There is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def _common() -> list[click.Option]:
    """Options that may stand anywhere; in the environment and in pyproject.toml they have one name each."""
    return [
        _option("--url", metavar="URL", help="The store, such as sqlite:///errandry.db."),
        _option("--app", metavar="MODULE:NAME", help="The app whose tasks are meant, such as shop:jobs."),
        _option("--json", is_flag=True, help="Print data as JSON, a line for each thing in a list."),
        _option("--no-color", is_flag=True, help="Print without colours, as with NO_COLOR."),
    ]


def _option(name: str, **attributes: Any) -> click.Option:
    return click.Option([name], expose_value=False, callback=_keep, default=None, **attributes)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Whichever stands last, counts; what is configured, only for the whole program."""
    source = ctx.get_parameter_source(param.name or "")
    is_given = source is ParameterSource.COMMANDLINE
    if value and (is_given or ctx.parent is None):
        session = ctx.ensure_object(Session)
        setattr(session, "configured_url" if param.name == "url" and not is_given else str(param.name), value)


def _check_defaults(ctx: click.Context, names: Iterable[str | None]) -> None:
    """A misspelt key in pyproject.toml would have no effect, in silence."""
    known = [name for name in names if name]
    for key in ctx.default_map or ():
        if key not in known:
            close = get_close_matches(key, known, 1) or known
            where = ".".join(["tool", *ctx.command_path.split()])
            raise click.UsageError(f"pyproject.toml: {where} has no {key!r}; did you mean {close[0]}?", ctx)


def _is_negative(argument: str) -> bool:
    return argument.startswith("-") and TERM.match(argument) is not None
