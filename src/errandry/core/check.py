"""Limits and checks of single values, used wherever a value comes in.

Each check returns its value or raises `InvalidValue`, naming the field, the value and what
would be right.
"""

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import DecodeError, Raw

from errandry.errors import InvalidValue, TooLarge

NAME_MAX = 200
TEXT_MAX = 16_384
PATH_MAX = 4_096
TAGS_MAX = 20
DEPTH_MAX = 100
SPAN_MAX = 100 * 365 * 86_400.0
"""Maximum length of time, in seconds: a century."""
INT_MAX = 2**63 - 1

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_SUSPICIOUS = re.compile(r"\\u0000|[0-9]{19}|[0-9][eE]\+?[0-9]{3}")
"""JSON text without any of these holds no NUL character and no number beyond 64 bit."""
_raw = msgspec.json.Decoder(Raw)


def name(field: str, value: Any) -> str:
    """A queue, task, worker, group, tag or job id: 1 to `NAME_MAX` characters, all of them printable."""
    if type(value) is str and value.isprintable() and 0 < len(value) <= NAME_MAX and not value.isspace():
        return value
    if not isinstance(value, str):
        raise InvalidValue(field, value, "must be a name, as text")
    if not value.strip():
        raise InvalidValue(field, value, "must be a name, not empty")
    if len(value) > NAME_MAX:
        raise InvalidValue(field, value, f"a name has at most {NAME_MAX} characters, this has {len(value):,}")
    raise InvalidValue(field, value, "a name has no control characters, NUL or lone surrogates")


def one_of(choice: Collection[str]) -> str:
    """The words that are allowed, for a message: `one of a, b`, or `a` if there is only one."""
    words = ", ".join(choice)
    return words if len(choice) == 1 else f"one of {words}"


def path(field: str, value: Any) -> str:
    """The path of a file on any host."""
    if type(value) is str and 0 < len(value) <= PATH_MAX and not _UNSTORABLE.search(value):
        return value
    raise InvalidValue(field, value, f"must be a path of at most {PATH_MAX:,} characters, without NUL")


def text(field: str, value: Any) -> str:
    """Free text, of any length. A store cuts and cleans it with `storable_text`."""
    if not isinstance(value, str):
        raise InvalidValue(field, value, "must be text")
    return value


def readable_text(value: Any) -> str:
    """`str(value)`; what is wrong with it if that raises."""
    try:
        return str(value)
    except BaseException as error:  # also SystemExit, which would end the worker
        return f"an object of {type(value).__name__}, whose str raises {type(error).__name__}"


def storable_text(value: str, limit: int = TEXT_MAX) -> str:
    """Free text of a log or an error: truncated, with characters replaced that a store cannot keep."""
    if len(value) > limit:
        value = f"{value[: limit - 20]}… {len(value) - limit + 20:,} more"
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def whole(field: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidValue(field, value, f"must be a whole number from {low:,} to {high:,}")
    return value


def flag(field: str, value: Any) -> bool:
    """True or False."""
    if type(value) is not bool:
        raise InvalidValue(field, value, "must be True or False")
    return value


def span(field: str, value: Any) -> float:
    """A length of time in seconds: from 0 to a century."""
    if type(value) not in (int, float) or not 0 <= value <= SPAN_MAX:
        raise InvalidValue(field, value, "must be a number of seconds from 0 to a century")
    return float(value)


def instant(field: str, value: Any) -> float:
    """A point in time in seconds since 1970."""
    if type(value) not in (int, float) or not 0 <= value <= 1e11:
        raise InvalidValue(field, value, "must be seconds since 1970, as a number")
    return float(value)


def lease(value: float) -> None:
    if span("lease", value) <= 0:
        raise InvalidValue("lease", value, "must be more than 0 seconds")


def names(queues: tuple[str, ...] | None, tasks: tuple[str, ...] | None) -> None:
    """Names of queues and of tasks; None for all."""
    for field, values in (("queue", queues), ("task", tasks)):
        if values is not None:
            for value in tuple_of(f"{field}s", values, object):
                name(field, value)


def tuple_of(field: str, values: Any, kind: type) -> tuple[Any, ...]:
    """A tuple whose items are of this type. Not a str, which would be taken for one name per character."""
    if type(values) is not tuple or not all(isinstance(value, kind) for value in values):
        of = "" if kind is object else f" of {kind.__name__}"
        raise InvalidValue(field, values, f"must be a tuple{of}")
    return values


def run_at_or_delay(run_at: float | None, delay: float | None) -> None:
    """Not both of an instant and a delay."""
    if run_at is not None and delay is not None:
        raise InvalidValue("run_at", run_at, f"give either run_at or delay ({delay})")
    if run_at is not None:
        instant("run_at", run_at)
    if delay is not None:
        span("delay", delay)


def document(field: str, text: Any) -> str:
    """JSON text that every store keeps unchanged: no NaN, NUL, lone surrogate, deep nesting, huge integer."""
    if type(text) is not str:
        raise InvalidValue(field, text, "must be JSON text")
    _check_depth(field, text)
    try:
        _raw.decode(text)
    except (DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidValue(field, text, f"must be JSON: {error}") from None
    _check_values(field, text)
    return text


def encoded_document(field: str, text: str) -> str:
    """Like `document`, for text from an encoder. It is known to be JSON, so it is not parsed again."""
    _check_depth(field, text)
    _check_values(field, text)
    return text


def size(field: str, text: str, limit: int) -> str:
    """Text of at most `limit` bytes in UTF-8."""
    if not fits(text, limit):
        raise TooLarge(field, len(text.encode()), limit)
    return text


def fits(text: str, limit: int) -> bool:
    """Whether `text` has at most `limit` bytes in UTF-8."""
    return len(text) * 4 <= limit or (len(text) if text.isascii() else len(text.encode())) <= limit


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def _check_depth(field: str, text: str) -> None:
    if len(text) <= DEPTH_MAX or text.count("[") + text.count("{") <= DEPTH_MAX:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        match token.group():
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
        if depth > DEPTH_MAX:
            raise InvalidValue(field, text, f"is nested deeper than {DEPTH_MAX} levels")


def _check_values(field: str, text: str) -> None:
    if not _SUSPICIOUS.search(text):
        return
    try:
        open_values = [msgspec.json.decode(text)]
    except DecodeError as error:
        raise InvalidValue(field, text, f"must be JSON: {error}") from None
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            open_values += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            open_values += value
        elif isinstance(value, str) and "\0" in value:
            raise InvalidValue(field, text, "holds a NUL character, which not every store can keep")
        elif isinstance(value, int) and not -INT_MAX - 1 <= value <= INT_MAX:
            raise InvalidValue(field, value, "is beyond 64 bit: pass it as text")
