"""Values as they are given on the command line: JSON, times, lengths of time."""

import json
import sys
from typing import Any

import click

from errandry.cli.prompt import interruptible
from errandry.core.duration import instant, seconds
from errandry.core.size import size
from errandry.errors import InvalidValue


class _At(click.ParamType[str]):
    """A moment, as the library reads it."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            instant(str(value))
        except InvalidValue as error:
            self.fail(f"{value!r}: {error.why}", param, ctx)
        return str(value)


class _Length(click.ParamType[str]):
    """A length of time, as the library reads it."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            seconds(str(value))
        except InvalidValue as error:
            self.fail(f"{value!r}: {error.why}", param, ctx)
        return str(value)


class _Size(click.ParamType[int]):
    """An amount of memory, in bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return size(value)
        except InvalidValue as error:
            self.fail(f"{value!r}: {error.why}", param, ctx)


class _Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between them."""

    name = "NAME,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = value if isinstance(value, list) else str(value).split(",")
        found = tuple(str(name).strip() for name in names)
        if not all(found):
            self.fail("write names with commas between them: mail,reports", param, ctx)
        return found


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them."""

    name = "N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            return tuple(float(one) for one in (str(value).split(",") if isinstance(value, str) else value))
        except (TypeError, ValueError):
            self.fail("write numbers with commas between them: 3,1", param, ctx)


AT, LENGTH, NAMES, NUMBERS, SIZE = _At(), _Length(), _Names(), _Numbers(), _Size()


def arguments(text: str) -> dict[str, Any]:
    """The arguments of a task: a JSON object."""
    value = read_document("--json", text)
    if not isinstance(value, dict):
        raise click.UsageError(
            f'--json takes an object with the arguments by name, such as {{"to": "ada"}}, not {text}'
        )
    return value


def read_document(option: str, text: str) -> Any:
    """JSON from the command line; `-` stands for stdin."""
    if text == "-":
        with interruptible():
            text = sys.stdin.read()
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} takes JSON: {error}. It is {text!r}.") from None
