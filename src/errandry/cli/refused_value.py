"""Say of a refused value where the user wrote it: in an option, the environment or pyproject.toml."""

import os
from collections.abc import Iterator
from shlex import quote
from typing import Any

import click
from click.core import ParameterSource

from errandry.cli.config import nearest_pyproject
from errandry.cli.session import Session
from errandry.core.printable import clean
from errandry.errors import InvalidValue
from errandry.store.url import without_password

CONFIGURED = (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)
"""The places besides the command line from which an option gets its value."""
TEXT_SHOWN_MAX = 60


class FieldOption(click.Option):
    """An option whose value an error of the library names otherwise: `--unique-for` is the field `scope`."""

    def __init__(self, *args: Any, field: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.field = field


class RefusedValue(click.ClickException):
    """The library has refused a value. The message names it as the user wrote it."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(clean(message))


def refused_value(ctx: click.Context, error: InvalidValue) -> InvalidValue | RefusedValue:
    """The error with the option, variable or file of the value; unchanged if it came from elsewhere."""
    if not str(error).startswith(f"{error.name}="):
        return error
    for owner, param in _given(ctx, error.name):
        text = _written(owner, param, error)
        if param.is_flag or text is not None:
            return RefusedValue(f"{_place(owner, param, None if param.is_flag else text)}: {error.why}")
    return error


def name_place(ctx: click.Context, error: click.BadParameter) -> None:
    """Let an error of click name the variable or the file if the value is not from the command line."""
    if error.param is not None and ctx.get_parameter_source(error.param.name or "") in CONFIGURED:
        error.param_hint = _place(ctx, error.param)


def _given(ctx: click.Context, name: str) -> Iterator[tuple[click.Context, click.Option]]:
    """The options that were given a value of this name, the best match first."""
    owner: click.Context | None = ctx
    while owner is not None:
        options = [param for param in owner.command.params if isinstance(param, click.Option)]
        for option in sorted(options, key=lambda option: isinstance(option, FieldOption), reverse=True):
            source = owner.get_parameter_source(option.name or "")
            if _matches(option, name) and (source is ParameterSource.COMMANDLINE or source in CONFIGURED):
                yield owner, option
        owner = owner.parent


def _matches(option: click.Option, name: str) -> bool:
    if isinstance(option, FieldOption) and name.startswith(option.field):
        return True
    return name.partition(".")[0] == option.name or f"--{name.replace('_', '-')}" in option.opts


def _written(ctx: click.Context, option: click.Option, error: InvalidValue) -> str | None:
    """The value as the user wrote it; None if the error is about another value."""
    if option.name == "url":
        session, refused = ctx.ensure_object(Session), str(error.value)
        urls = session.url, session.configured_url
        return refused if refused in [without_password(url) for url in urls if url] else None
    value = error.value if option.multiple else ctx.params.get(option.name or "")
    return ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value)


def _text(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= TEXT_SHOWN_MAX else f"{text[: TEXT_SHOWN_MAX - 1]}…"


def _place(ctx: click.Context, param: click.Parameter, value: str | None = None) -> str:
    """`--lease 0`, `ERRANDRY_WORKER_LEASE=0 in the environment`, or the key and file of pyproject.toml."""
    match ctx.get_parameter_source(param.name or ""):
        case ParameterSource.ENVIRONMENT:
            variable = f"{ctx.auto_envvar_prefix}_{(param.name or '').upper()}"
            return f"{variable}{'' if value is None else f'={value}'} in the environment"
        case ParameterSource.DEFAULT_MAP:
            key = ".".join(["tool", *ctx.command_path.split(), (param.name or "").replace("_", "-")])
            text = "" if value is None else f" = {value}"
            return f"{key}{text} in {nearest_pyproject(os.getcwd())}"
        case _:
            return param.opts[0] if value is None else f"{param.opts[0]} {quote(value)}"
