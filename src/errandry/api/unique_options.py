"""`UniqueOptions`: the unique key of a job, how long it is held, and what a second job with it does."""

import hashlib
from collections.abc import Collection, Sequence
from datetime import timedelta
from difflib import get_close_matches
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from errandry.codec.json_codec import from_json
from errandry.core import check
from errandry.core.duration import positive_seconds
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.errors import InvalidValue

KEY_TASK_MAX = 120
"""Maximum number of characters of the task's name in a key."""
KEY_HASH_LENGTH = 32
"""Number of hex digits of the arguments' hash in a key."""
_SCOPE_WORDS = tuple(scope for scope in UniqueScope if scope is not UniqueScope.WINDOW)


class UniqueOptions(Struct, frozen=True):
    """Allow only one job at a time with a key.

        @jobs.task(unique=UniqueOptions(by=["customer"], scope="1 hour"))

    key          the key, across all tasks; without one it is made from the task and its arguments
    by           the names of the arguments it is made from; default: all; empty: none
    per          queue: each queue has its own keys
    scope        how long it is held: alive, ever, "1 hour" from the insert, or the UTC second, minute, hour,
                 day, week or month in which the job is due
    on_conflict  for a second job: return the first, raise DuplicateJob, or replace the first one's arguments
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
            check_word("per", self.per, ("queue",))
        check_word("on_conflict", self.on_conflict, tuple(Conflict))
        _read_scope(self.scope)

    def fields(self, task: str, arguments: str) -> dict[str, Any]:
        """The fields `unique` and `on_conflict` of a job with these arguments (JSON text)."""
        scope, window = _read_scope(self.scope)
        key = _hash_arguments(task, arguments, self.by) if self.key is None else self.key
        return {
            "unique": UniqueKey(key, scope, window, self.per is not None),
            "on_conflict": Conflict(self.on_conflict),
        }


def read_unique(name: str, value: Any) -> UniqueOptions | None:
    """The value of a `unique` option: None, True, a key, or UniqueOptions."""
    if value is None or value is False:
        return None
    if value is True:
        return UniqueOptions()
    if isinstance(value, str):
        return UniqueOptions(value)
    if not isinstance(value, UniqueOptions):
        raise InvalidValue(name, value, "must be True, a key, or UniqueOptions(…)")
    return value


def _read_scope(value: Any) -> tuple[UniqueScope, float | None]:
    """The scope, and for a rolling window its length in seconds."""
    if isinstance(value, str) and value.isalpha():
        return UniqueScope(check_word("scope", value, _SCOPE_WORDS)), None
    return UniqueScope.WINDOW, positive_seconds(value, "scope")


def check_word(name: str, value: Any, choice: Collection[str]) -> str:
    """Return `value` if it is one of the choices; otherwise raise InvalidValue with the nearest one."""
    if value in choice:
        return str(value)
    close = get_close_matches(str(value), choice, 1)
    hint = f"did you mean {close[0]}?" if close else f"must be {check.one_of(choice)}"
    also = ' or a length of time: "1 hour"' if name == "scope" and not close else ""
    raise InvalidValue(name, value, hint + also)


def _hash_arguments(task: str, arguments: str, by: Sequence[str] | None) -> str:
    """The unique key made from these arguments; their order does not matter."""
    values = from_json(arguments)
    if by is not None:
        values = {name: values[name] for name in by if name in values}
    text = msgspec.json.encode([task, values], order="sorted")
    return f"{task[:KEY_TASK_MAX]}:{hashlib.sha256(text).hexdigest()[:KEY_HASH_LENGTH]}"
