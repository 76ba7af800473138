"""What is wrong with the arguments of a task, in the words of Python: the argument, its value, what is right.

msgspec and pydantic describe faults in their own words: "Expected `str`, got `int` - at `$.name`".
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from inspect import formatannotation
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from msgspec import Struct

from errandry.codec import json_codec
from errandry.codec.redaction import REDACTED, Redactor
from errandry.core import check
from errandry.errors import short_repr

_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_PATH_PART = re.compile(r"\[(\d+)\]|\[(\.\.\.)\]|\.?([^.\[]+)")
_QUALIFIED_NAME = re.compile(r"'[^']*'|[\w.<>]+\.(\w+)")
_PLAIN_TYPES = (str, int, float, bool, NoneType)
_WORDS = {"null": "None", "uuid": "UUID", "decimal": "Decimal", "duration": "timedelta"}
_KEY_PREFIX = "key` in `"
_NO_VALUE = object()

Path = tuple[str | int, ...]
"""The name of an argument, then fields and places in it; `...` is a value in a mapping, under any key."""


class Parameter(NamedTuple):
    """A parameter of a handler that is an argument of its task."""

    name: str
    kind: Any
    default: str | None
    """The default value as Python code; None if there is none."""

    def __str__(self) -> str:
        return f"{self.name}: {type_text(self.kind)}{'' if self.default is None else f' = {self.default}'}"


class ArgumentFaults:
    """Describes faults in the arguments of a task with these parameters, without the values of `redact`."""

    def __init__(self, parameters: tuple[Parameter, ...], redact: tuple[str, ...]) -> None:
        self._kinds = {parameter.name: parameter.kind for parameter in parameters}
        self._redact = redact
        self.takes = f"it takes {', '.join(map(str, parameters)) or 'no arguments'}"

    def unknown(self, name: str) -> str:
        close = get_close_matches(name, self._kinds, 1)
        return f"there is no argument {name!r}: " + (f"did you mean '{close[0]}'?" if close else self.takes)

    def unwritable(self, name: str | None, why: str, given: Mapping[str, Any]) -> str:
        """Why an argument, or if `name` is None all of them together, cannot be written as JSON."""
        what = "the arguments" if name is None else f"argument {name}"
        return self._redacted(f"{what}: {why}", given)

    def unreadable(self, error: Exception, text: str) -> str:
        """Why the arguments in this JSON text cannot be read as the types of the parameters."""
        try:
            arguments = json_codec.from_json(text)
        except Exception as cause:  # such as RecursionError, for arguments that are nested too deeply
            return f"the arguments cannot be read as JSON: {cause}"
        if not isinstance(arguments, dict):
            return f"the arguments must be a mapping by name, not {type(arguments).__name__}"
        return self._redacted("; ".join(self._reasons(error, arguments)), arguments)

    def _reasons(self, error: Exception, arguments: dict[str, Any]) -> Iterator[str]:
        if not isinstance(error, msgspec.MsgspecError):  # raised by a check of the types themselves
            yield f"a check of the arguments raised {type(error).__name__}: {error}"
            return
        what, path, is_key = _split_message(str(error))
        if callable(errors := getattr(error.__cause__, "errors", None)):
            for found in errors(include_url=False, include_context=False, include_input=False):
                yield self._pydantic_reason(path, found, arguments)
        elif error.__cause__ is not None:  # raised by a `__post_init__`
            yield f"argument {_path_text(path)}: {what}"
        elif missing := _MISSING.fullmatch(what):
            yield self._missing(path, missing[1])
        elif (unknown := _UNKNOWN.fullmatch(what)) and not path:
            yield self.unknown(unknown[1])
        elif unknown:
            yield f"argument {_path_text(path)}: there is no '{unknown[1]}' in it"
        elif is_key:
            yield f"a key of argument {_path_text(path)}: {_translate(what, Any)}"
        else:
            kind = _kind_at(self._kinds.get(str(path[0]), Any), path[1:])
            yield f"argument {self._value_text(path, arguments)}: {_translate(what, kind)}"

    def _missing(self, path: Path, name: str) -> str:
        if not path:
            return f"argument '{name}' is missing; {self.takes}"
        return f"argument {_path_text(path)}: '{name}' is missing"

    def _pydantic_reason(self, path: Path, fault: Mapping[str, Any], arguments: dict[str, Any]) -> str:
        """A fault that a pydantic model at the path has found."""
        path += fault["loc"]
        if fault["type"] == "missing":
            return self._missing(path[:-1], str(path[-1]))
        message = fault["msg"].partition("error, ")[2] or fault["msg"]
        return f"argument {self._value_text(path, arguments)}: {message[:1].lower()}{message[1:]}"

    def _redacted(self, text: str, arguments: Mapping[str, Any]) -> str:
        try:
            return Redactor(self._redact, [arguments]).text(text)
        except Exception:  # a secret that cannot be written as text
            return REDACTED

    def _value_text(self, path: Path, arguments: dict[str, Any]) -> str:
        """The path with its value, if the value is short and no secret."""
        if path[0] in self._redact:
            return f"{_path_text(path)}={REDACTED}"
        value = _value_at(arguments, path)
        is_plain = isinstance(value, _PLAIN_TYPES)
        return f"{_path_text(path)}={short_repr(value)}" if is_plain else _path_text(path)


def type_text(kind: Any) -> str:
    """A type as in an annotation, without the modules of its names."""
    if get_origin(kind) is Annotated:
        return type_text(get_args(kind)[0])
    return _QUALIFIED_NAME.sub(lambda match: match[1] or match[0], formatannotation(kind))


def _translate(what: str, kind: Any) -> str:
    """A message of msgspec about a value that should be of this type."""
    if what.startswith(("Invalid enum value", "Invalid value")):  # it shows the value
        choices = [repr(choice) for member in _members(kind) for choice in _choices(member)]
        return f"must be {check.one_of(choices)}" if choices else "is none of the allowed values"
    if what.startswith("Invalid "):
        return f"is not a valid {what.removeprefix('Invalid ')}"
    if not what.startswith("Expected "):
        return what
    expected, _, got = what.removeprefix("Expected ").partition(", got ")
    text = f"must be {_quoted_words(expected, kind)}"
    return f"{text}, not {_quoted_words(got, Any)}" if got else text


def _quoted_words(text: str, kind: Any) -> str:
    """The text with types in the names of Python, in place of the quoted names of msgspec."""
    return re.sub(
        "`([^`]*)`", lambda match: " or ".join(_word(name, kind) for name in match[1].split(" | ")), text
    )


def _word(name: str, kind: Any) -> str:
    if name == "object":
        classes = [member.__name__ for member in _members(kind) if _has_fields(member)]
        return " or ".join(classes) or "dict"
    if name == "array":
        origins = [get_origin(member) or member for member in _members(kind)]
        return next((origin.__name__ for origin in origins if origin in (tuple, set, frozenset)), "list")
    return _WORDS.get(name, name)


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple([member.value for member in kind]) if _is_class(kind, Enum) else ()


def _members(kind: Any) -> Iterator[Any]:
    """The members of a union, or the type itself."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind


def _has_fields(kind: Any) -> bool:
    return (
        _is_class(kind, Struct)
        or is_typeddict(kind)
        or (isinstance(kind, type) and dataclasses.is_dataclass(kind))
    )


def _is_class(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _kind_at(kind: Any, path: Path) -> Any:
    """The type of the value at a path in a value of this type; Any if it is not known."""
    for part in path:
        kind = next(
            (inner for member in _members(kind) if (inner := _inner_kind(member, part)) is not None), Any
        )
    return kind


def _inner_kind(kind: Any, part: str | int) -> Any:
    inner = [argument for argument in get_args(kind) if argument is not Ellipsis]
    if part == "...":
        return inner[1] if len(inner) == 2 else None
    if isinstance(part, int):
        return (inner[part] if part < len(inner) else inner[0]) if inner else None
    try:
        return get_type_hints(kind, include_extras=True).get(part)
    except Exception:  # a type without fields, or with annotations that cannot be read
        return None


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return _NO_VALUE
    return value


def _split_message(message: str) -> tuple[str, Path, bool]:
    """A message of msgspec as the fault, the path to it, and whether it is in a key there."""
    what, separator, place = message.rpartition(" - at `")
    if not separator:
        return message, (), False
    path = place.removeprefix(_KEY_PREFIX).removeprefix("$").removesuffix("`")
    return what, _parse_path(path), place.startswith(_KEY_PREFIX)


def _parse_path(text: str) -> Path:
    """The parts of a path of msgspec: `.order.lines[0]`."""
    return tuple([int(place) if place else key or field for place, key, field in _PATH_PART.findall(text)])


def _path_text(path: Path) -> str:
    parts = [
        f"[{part}]" if isinstance(part, int) else "[…]" if part == "..." else f".{part}" for part in path
    ]
    return "".join(parts).removeprefix(".")
