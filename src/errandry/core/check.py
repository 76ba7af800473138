"""Bounds and checks of single values, the same at every door.

Each check returns its value or raises `InvalidValue`, naming the field, the value and what
would be right.
"""

import re
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
INT_MAX = 2**63 - 1

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_DOUBTFUL = re.compile(r"\\u0000|[0-9]{19}|[0-9][eE]\+?[0-9]{3}")
_raw = msgspec.json.Decoder(Raw)


def name(field: str, value: Any) -> str:
    """A queue, task, worker, group, tag or job id: short, visible, not empty."""
    if type(value) is str and value.isprintable() and 0 < len(value) <= NAME_MAX and not value.isspace():
        return value
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(field, value, "must be a name, not empty")
    if len(value) > NAME_MAX:
        raise InvalidValue(field, value, f"a name has at most {NAME_MAX} characters, this has {len(value):,}")
    raise InvalidValue(field, value, "a name has no control characters, NUL or lone surrogates")


def path(field: str, value: Any) -> str:
    """Where a file is, on some host."""
    if type(value) is str and 0 < len(value) <= PATH_MAX and not _UNSTORABLE.search(value):
        return value
    raise InvalidValue(field, value, f"must be a path of at most {PATH_MAX:,} characters, without NUL")


def capped(value: str, bound: int = TEXT_MAX) -> str:
    """Free text for a log or an error: made storable and cut, never refused."""
    if len(value) > bound:
        value = f"{value[: bound - 20]}… {len(value) - bound + 20:,} more"
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)


def whole(field: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidValue(field, value, f"must be a whole number from {low:,} to {high:,}")
    return value


def span(field: str, value: Any) -> float:
    """A length of time in seconds: zero or more, a century at most."""
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
    for field, values in (("queue", queues), ("task", tasks)):
        for one in values or ():
            name(field, one)


def when(run_at: float | None, delay: float | None) -> None:
    """At most one of an instant and a delay."""
    if run_at is not None and delay is not None:
        raise InvalidValue("run_at", run_at, f"give either run_at or delay ({delay})")
    if run_at is not None:
        instant("run_at", run_at)
    if delay is not None:
        span("delay", delay)


def document(field: str, text: Any) -> str:
    """JSON that every store keeps unchanged: no NaN, NUL, lone surrogates, deep nesting or huge integers."""
    if type(text) is not str:
        raise InvalidValue(field, text, "must be JSON text")
    _shallow(field, text)
    try:
        _raw.decode(text)
    except (DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidValue(field, text, f"must be JSON: {error}") from None
    _numbers_and_text(field, text)
    return text


def encoded(field: str, text: str) -> str:
    """The same of what an encoder has just made: it is JSON, but may be what not every store keeps."""
    _shallow(field, text)
    _numbers_and_text(field, text)
    return text


def sized(field: str, text: str, bound: int) -> str:
    """`text` of at most `bound` bytes in UTF-8."""
    if not fits(text, bound):
        raise TooLarge(field, len(text.encode()), bound)
    return text


def fits(text: str, bound: int) -> bool:
    """Whether `text` has at most `bound` bytes in UTF-8."""
    return len(text) * 4 <= bound or (len(text) if text.isascii() else len(text.encode())) <= bound


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def _shallow(field: str, text: str) -> None:
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


def _numbers_and_text(field: str, text: str) -> None:
    if not _DOUBTFUL.search(text):
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
