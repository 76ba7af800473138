"""What a store says of itself to whoever looks after it, in plain words."""

from enum import StrEnum
from typing import NamedTuple


class Grade(StrEnum):
    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do about it."""

    grade: Grade
    topic: str
    text: str
    todo: str = ""
