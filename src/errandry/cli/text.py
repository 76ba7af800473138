"""Turn stored values into text for a terminal; control characters in them are escaped."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from unicodedata import east_asian_width

from msgspec import Struct, to_builtins

from errandry.core.duration import rough_duration
from errandry.core.printable import one_line

BARS = "▁▂▃▄▅▆▇█"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-([0-9a-f]{12})")


Time = float | datetime
"""A time of a stored record, in seconds since 1970, or of a result of the API."""


def to_json(value: Any, indent: int | None = None) -> str:
    """Encode as JSON, with times as ISO text in UTC and control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_json_value)
    return text if text.isprintable() else "".join(map(_escape_json_char, text))


def short_id(job_id: str) -> str:
    """The last part of an id made by Errandry, which is random and identifies the job; other ids whole.

    The ids begin with the time, so ids of jobs that were enqueued together have the same beginning.
    """
    match = _UUID.fullmatch(job_id)
    return match[1] if match else one_line(job_id)


def ago(at: Time | None, now: Time) -> str:
    """The time relative to now: "just now", "10 s ago" or "in 5 min"."""
    if at is None:
        return ""
    ahead = _timestamp(at) - _timestamp(now)
    if abs(ahead) < 1:
        return "just now"
    return f"in {rough_duration(ahead)}" if ahead > 0 else f"{rough_duration(-ahead)} ago"


def local_time(at: Time) -> str:
    """The time in the local time zone."""
    return datetime.fromtimestamp(_timestamp(at)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def pluralize(count: int, one: str, many: str = "") -> str:
    """The count with its noun: "1 job", "2,000 jobs"."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def sparkline(values: Sequence[float]) -> str:
    """The values as a row of bars, the maximum at full height; empty if all are zero."""
    maximum = max(values, default=0.0)
    return "".join(BARS[round(value / maximum * (len(BARS) - 1))] for value in values) if maximum else ""


def width(text: str) -> int:
    """The number of columns of a text on a terminal."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(char) in "WF") for char in text)


def truncate(text: str, room: int) -> str:
    """Cut the text to at most `room` columns, with an ellipsis."""
    if width(text) <= room:
        return text
    while text and width(text) > max(0, room - 1):
        text = text[:-1]
    return f"{text}…" if room > 0 else ""


def wrap(text: str, room: int) -> list[str]:
    """The text as lines of at most `room` columns, broken at spaces, or within words that are longer."""
    lines, line = list[str](), ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if width(joined) <= room:
            line = joined
        else:
            lines += [line] if line else []
            *pieces, line = _break(word, max(room, 2))  # a wide character takes two columns
            lines += pieces
    return [*lines, line]


def _break(word: str, room: int) -> list[str]:
    """The word in pieces of at most `room` columns."""
    pieces = [""]
    for char in word:
        if width(pieces[-1] + char) > room:
            pieces.append("")
        pieces[-1] += char
    return pieces


def _timestamp(at: Time) -> float:
    return at.timestamp() if isinstance(at, datetime) else at


def _json_value(value: object) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return to_builtins(value, builtin_types=(datetime,)) if isinstance(value, Struct) else str(value)


def _escape_json_char(char: str) -> str:
    return char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1]
