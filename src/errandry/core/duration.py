"""Time as people write it: `90`, `"90s"`, `"5 minutes"`, `"1h30m"`, a timedelta; `"2026-01-31T08:00Z"`.

`seconds` parses durations; `format_duration` and `rough_duration` write them. There are no months, whose
length varies, and no negative durations. `instant` and `format_time` parse and write points in time;
`as_datetime` makes the datetimes that users see. Nothing here reads a clock.
"""

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import overload

from errandry.core import check
from errandry.errors import InvalidValue


def seconds(value: str | float | timedelta, name: str = "duration") -> float:
    """`value` in seconds. `name` names the value in an error.

    A number is in seconds. A text is a number, or numbers with units, the largest unit first: ms, s, m, h,
    d, w or the whole words. The result is the nearest float: "0.1s" is 0.1.
    """
    number = _to_number(value, name)
    if not 0 <= number <= check.SPAN_MAX:  # false for NaN, too
        raise InvalidValue(name, value, f"must be from 0 to a century; {_USAGE}")
    return float(number) + 0.0  # -0.0 becomes 0.0


def positive_seconds(value: str | float | timedelta, name: str, none: str = "") -> float:
    """Like `seconds`, for a length of time that cannot be 0. `none` ends the error: ", or None for …"."""
    number = _to_number(value, name)
    if not number > 0:  # true for NaN, too
        raise InvalidValue(name, value, f"must be more than 0 seconds{none}")
    return seconds(value, name)


def format_duration(length: float) -> str:
    """The shortest usual spelling, to the microsecond: 5400 is `1h30m`. `seconds` parses it."""
    left, micros = divmod(round(length * 1_000_000), 1_000_000)
    parts = []
    for unit, size in _SHORT.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    rest = f"{left}.{micros:06}".rstrip("0").rstrip(".") if micros else str(left)
    if rest != "0" or not parts:
        parts.append(f"{rest}s")
    return "".join(parts)


def rough_duration(length: float) -> str:
    """A rounded duration for people: `40 s`, `3 min`, `2 h`, `5 days`. Nothing parses it."""
    for unit, size, limit in _ROUGH:
        if length < limit:
            return f"{round(length / size)} {unit}"
    return f"{round(length / 31_557_600)} years"


def instant(text: str, name: str = "time") -> int:
    """An ISO date or time in microseconds since 1970. It is UTC unless it names a zone."""
    try:
        moment = datetime.fromisoformat(text if _ISO.fullmatch(text) else "")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        moment = None
    if moment is None or not _EPOCH <= moment <= _LAST:
        raise InvalidValue(
            name, text, "must be a time from 1970 to 9999; write 2026-01-31 or 2026-01-31T08:00Z"
        )
    return (moment - _EPOCH) // _MICROSECOND


def moment(name: str, value: float | datetime | str) -> float:
    """A point in time in seconds since 1970, from a number of seconds, an aware datetime, or ISO text."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidValue(name, value, "needs a time zone: datetime(…, tzinfo=UTC)")
        return value.timestamp()
    return instant(value, name) / 1e6 if isinstance(value, str) else check.instant(name, value)


@overload
def as_datetime(at: float) -> datetime: ...
@overload
def as_datetime(at: float | None) -> datetime | None: ...
def as_datetime(at: float | None) -> datetime | None:
    """The point in time `at` seconds since 1970, in UTC, rounded to the microsecond; None stays None."""
    return None if at is None else _EPOCH + round(at * 1e6) * _MICROSECOND


def format_time(micros: int) -> str:
    """The instant in ISO format and UTC. `instant` parses it."""
    return (_EPOCH + micros * _MICROSECOND).isoformat().replace("+00:00", "Z")


_ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_EPOCH, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_ROUGH = (
    ("ms", 0.001, 0.9995),
    ("s", 1.0, 120.0),
    ("min", 60.0, 7_200.0),
    ("h", 3_600.0, 172_800.0),
    ("days", 86_400.0, 2 * 31_557_600.0),
)
_SHORT = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60}
_WORDS = {
    "w": "w week weeks",
    "d": "d day days",
    "h": "h hr hrs hour hours",
    "m": "m min mins minute minutes",
    "s": "s sec secs second seconds",
    "ms": "ms millisecond milliseconds",
}
_SIZES = {unit: Fraction(size) for unit, size in _SHORT.items()} | {"s": Fraction(1), "ms": Fraction(1, 1000)}
_UNITS = {word: _SIZES[unit] for unit, words in _WORDS.items() for word in words.split()}

_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PART = re.compile(rf"({_DIGITS.pattern}) ?([a-z]*) ?")
_USAGE = 'write seconds (90) or a text such as "90s", "5 minutes", "2h", "1h30m"'


def _to_number(value: object, name: str) -> float | Fraction:
    if isinstance(value, str):
        return _parse(value, name)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(name, value, f"not a duration; {_USAGE}")
    return value


def _parse(text: str, name: str) -> Fraction:
    low = text.strip().lower()
    if not 0 < len(low) <= 100 or _PART.sub("", low):
        raise InvalidValue(name, text, f"not a duration; {_USAGE}")
    if _DIGITS.fullmatch(low):
        return Fraction(low)
    parts = [(Fraction(number), _unit_size(unit, text, name)) for number, unit in _PART.findall(low)]
    sizes = [size for _, size in parts]
    if sizes != sorted(set(sizes), reverse=True):
        raise InvalidValue(name, text, f"each unit once, the largest first; {_USAGE}")
    return sum((number * size for number, size in parts), Fraction(0))


def _unit_size(unit: str, text: str, name: str) -> Fraction:
    if not unit:
        raise InvalidValue(name, text, f"a number lacks its unit; {_USAGE}")
    if unit not in _UNITS:
        raise InvalidValue(name, text, f"{unit!r} is not a unit; the units are {', '.join(_SIZES)}")
    return _UNITS[unit]
