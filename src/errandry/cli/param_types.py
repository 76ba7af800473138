"""Types of command-line values: times, durations, sizes, lists and JSON."""

import json
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import click

from errandry.cli.prompt import interruptible
from errandry.core.duration import instant, seconds
from errandry.core.size import size
from errandry.errors import InvalidValue

NONE = "none"
"""The word for None: no timeout."""


class _Time(click.ParamType[str]):
    """A time in the format of the library."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            instant(str(value))
        except InvalidValue as error:
            self.fail(f"{value!r}: {error.why}", param, ctx)
        return str(value)


class _Duration(click.ParamType[str]):
    """A duration in the format of the library."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            seconds(str(value))
        except InvalidValue as error:
            self.fail(f"{value!r}: {error.why}", param, ctx)
        return str(value)


class _DurationOrNone(_Duration):
    """A duration, or the word none, which is converted to `NONE`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return NONE if str(value).lower() == NONE else super().convert(value, param, ctx)


class _Size(click.ParamType[str]):
    """An amount of memory in the format of the library."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            size(value)
        except InvalidValue as error:
            self.fail(f"{value!r}: {error.why}", param, ctx)
        return str(value)


class WholeNumber(click.IntRange):
    """A whole number of at least `min` and at most `max`. An error says so, also for what is no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        low, high = self.min or 0, self.max
        if number is None or number < low or (high is not None and number > high):
            right = f"of at least {low:,}" if high is None else f"from {low:,} to {high:,}"
            self.fail(f"{value!r} is not a whole number {right}", param, ctx)
        return number


class _Names(click.ParamType[tuple[str, ...]]):
    """Comma-separated names."""

    name = "NAME,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = value if isinstance(value, list) else str(value).split(",")
        stripped = tuple(str(name).strip() for name in names)
        if not all(stripped):
            self.fail(f"{_joined(value)!r}: write comma-separated names, such as mail,reports", param, ctx)
        return stripped


class _Numbers(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers."""

    name = "N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            return tuple(float(part) for part in (str(value).split(",") if isinstance(value, str) else value))
        except (TypeError, ValueError):
            self.fail(f"{_joined(value)!r}: write comma-separated numbers, such as 3,1", param, ctx)


class Word(click.Choice[str]):
    """One of many words. An error suggests the one that is meant, or lists all."""

    def __init__(self, noun: str, words: Iterable[str]) -> None:
        super().__init__([str(word) for word in words])
        self._noun = noun

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            close = get_close_matches(str(value), self.choices, 1)
            hint = f"Did you mean {close[0]}?" if close else f"Write one of {', '.join(self.choices)}."
            self.fail(f"{value!r} is no {self._noun}. {hint}", param, ctx)
        return str(value)


def _joined(value: Any) -> str:
    """The value as written on the command line; pyproject.toml may have a list."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


TIME, DURATION, NAMES, NUMBERS, SIZE = _Time(), _Duration(), _Names(), _Numbers(), _Size()
DURATION_OR_NONE = _DurationOrNone()


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with None for the word none."""
    return {name: None if value == NONE else value for name, value in options.items()}


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a task, a JSON object."""
    value = parse_json("--args", text)
    if not isinstance(value, dict):
        raise click.UsageError(
            f'--args needs a JSON object with the arguments by name, such as {{"to": "ada"}}, not {text}'
        )
    return value


def parse_json(option: str, text: str) -> Any:
    """Parse JSON from the command line, or from stdin if the text is `-`."""
    if text == "-":
        with interruptible():
            text = sys.stdin.read()
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option} needs valid JSON, not {text!r}: {error}.") from None
