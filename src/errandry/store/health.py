"""The findings of a store's self-check, for `errandry doctor`."""

from enum import StrEnum
from typing import NamedTuple


class Grade(StrEnum):
    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


class Finding(NamedTuple):
    """What was checked, the result, and what the operator should do about it."""

    grade: Grade
    topic: str
    text: str
    todo: str = ""
