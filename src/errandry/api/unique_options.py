"""`unique=…` as people write it: a key or of what to make one, how long it holds, what a second job does."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from errandry.codec.json_codec import from_json
from errandry.core import check
from errandry.core.duration import seconds
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.errors import InvalidValue

TASK_SHOWN, HASH = 120, 32
_WORDS = tuple(scope for scope in UniqueScope if scope is not UniqueScope.WINDOW)


class UniqueOptions(Struct, frozen=True):
    """There is only one job at a time with this key, whatever its task.

    key          the key; without one it is made of the task and the arguments
    by           of which arguments it is made, by their names; of all if not given, of none if empty
    per          queue: every queue has keys of its own
    scope        for how long: alive, ever, "1 hour" from the insert, or the UTC hour (day, …) it is due in
    on_conflict  what a second job does: return the first, raise DuplicateJob, or replace its arguments
    """

    key: str | None = None
    by: Sequence[str] | None = None
    per: Literal["queue"] | None = None
    scope: float | timedelta | str = "alive"
    on_conflict: Literal["return", "raise", "replace"] = "return"

    def __post_init__(self) -> None:
        if self.key is not None:
            check.name("unique", self.key)
            if self.by is not None:
                raise InvalidValue("by", self.by, f"give either by or a key ({self.key!r})")
        if not isinstance(self.by, list | tuple | NoneType):
            raise InvalidValue("by", self.by, 'must be names of arguments: by=["customer"]')
        if self.per is not None:
            word("per", self.per, ("queue",))
        word("on_conflict", self.on_conflict, tuple(Conflict))
        _scope(self.scope)

    def fields(self, task: str, arguments: str) -> dict[str, Any]:
        """What it makes of a job with these arguments (JSON text)."""
        scope, window = _scope(self.scope)
        key = _made(task, arguments, self.by) if self.key is None else self.key
        return {
            "unique": UniqueKey(key, scope, window, self.per is not None),
            "on_conflict": Conflict(self.on_conflict),
        }


def unique(name: str, value: Any) -> UniqueOptions | None:
    """What was given for `unique`: nothing, True, a key, or all of it."""
    if value is None or value is False:
        return None
    if value is True:
        return UniqueOptions()
    if isinstance(value, str):
        return UniqueOptions(value)
    if not isinstance(value, UniqueOptions):
        raise InvalidValue(name, value, "must be True, a key, or Unique(…)")
    return value


def _scope(value: Any) -> tuple[UniqueScope, float | None]:
    """A word, or how long the window is."""
    if isinstance(value, str) and value.isalpha():
        return UniqueScope(word("scope", value, _WORDS)), None
    window = seconds(value, "scope")
    if window == 0:
        raise InvalidValue("scope", value, "a window must be longer than 0 seconds")
    return UniqueScope.WINDOW, window


def word(name: str, value: Any, choice: Sequence[str]) -> str:
    """`value`, if it is one of these."""
    if value in choice:
        return str(value)
    close = get_close_matches(str(value), choice, 1)
    hint = f"did you mean {close[0]}?" if close else f"must be {' or '.join(choice)}"
    also = ' or a length of time: "1 hour"' if name == "scope" and not close else ""
    raise InvalidValue(name, value, hint + also)


def _made(task: str, arguments: str, by: Sequence[str] | None) -> str:
    """A key for these arguments, in whatever order they were given."""
    given = from_json(arguments)
    if by is not None:
        given = {name: given[name] for name in by if name in given}
    text = msgspec.json.encode([task, given], order="sorted")
    return f"{task[:TASK_SHOWN]}:{hashlib.sha256(text).hexdigest()[:HASH]}"
