"""Stored values as text a person reads; whatever is in them, the terminal only ever shows it."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from unicodedata import east_asian_width

from errandry.core.duration import rough

BARS = "▁▂▃▄▅▆▇█"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-([0-9a-f]{12})")


def clean(text: str) -> str:
    """`text` with every character that would not be seen, or would move the cursor, in its escaped form."""
    return text if text.isprintable() else "".join(_shown(char) for char in text)


def one_line(text: str) -> str:
    """`clean`, with line breaks and tabs escaped as well."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that does nothing to a terminal either."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return text if text.isprintable() else "".join(map(_escaped, text))


def short_id(job_id: str) -> str:
    """The last part of an id made by Errandry, which is random and enough to name the job; others whole.

    Ids begin with their time: those of jobs made together begin alike.
    """
    found = _UUID.fullmatch(job_id)
    return found[1] if found else one_line(job_id)


def ago(at: float | None, now: float) -> str:
    """When that was, or will be, as one says it."""
    if at is None:
        return ""
    if abs(now - at) < 1:
        return "just now"
    return f"in {rough(at - now)}" if at > now else f"{rough(now - at)} ago"


def local(at: float) -> str:
    """The moment by the clock on the wall here."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def number(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def curve(values: Sequence[float]) -> str:
    """Values as bars beside each other, the largest the full height; nothing where all are zero."""
    most = max(values, default=0.0)
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in values) if most else ""


def width(text: str) -> int:
    """How many columns it takes."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(char) in "WF") for char in text)


def fitted(text: str, room: int) -> str:
    """`text` in at most `room` columns, cut with an ellipsis."""
    if width(text) <= room:
        return text
    while text and width(text) > max(0, room - 1):
        text = text[:-1]
    return f"{text}…" if room > 0 else ""


def _shown(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def _escaped(char: str) -> str:
    return char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1]
