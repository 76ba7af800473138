"""Versions of a task's arguments: which one a job was enqueued with, and how older ones become the newest.

A job says its version in its metadata; without a word, it is the first.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from errandry.codec import json_codec
from errandry.core import check
from errandry.errors import InvalidArguments, InvalidValue

FIRST = 1
KEY = "errandry.codec.argument_version"
VERSION_MAX = 10_000

ArgumentValues = dict[str, Any]
Upgrade = Callable[[ArgumentValues], Mapping[str, Any]]
"""Makes the arguments of the next version from those of one, all as plain JSON values."""


def version(name: str, value: Any) -> int:
    return check.whole(name, value, FIRST, VERSION_MAX)


def version_of(metadata: str | None) -> int:
    """The version a job with this metadata was enqueued with."""
    if metadata is None or KEY not in metadata:
        return FIRST
    said = msgspec.json.decode(metadata).get(KEY, FIRST)
    return said if type(said) is int else FIRST


def versioned(metadata: str | None, number: int) -> str | None:
    """The metadata of a job with arguments of this version."""
    if version_of(metadata) == number:
        return metadata
    known = {} if metadata is None else msgspec.json.decode(metadata)
    return msgspec.json.encode({**known, KEY: number}).decode()


class Upgrades:
    """The steps from older versions of a task's arguments to the one its handler takes."""

    def __init__(self, task: str, newest: int) -> None:
        self._task, self.newest = task, newest
        self._steps: dict[int, Upgrade] = {}

    def add(self, number: int, step: Upgrade) -> None:
        """`step` leads from this version to the next."""
        version("version", number)
        if number >= self.newest:
            why = (
                f"the task is at version {self.newest}: an upgrade is from an older one, version=… says which"
            )
            raise InvalidValue("version", number, why)
        self._steps[number] = step

    def apply(self, text: str, number: int) -> str:
        """Arguments of an older version as the newest; a step nobody has written leaves them as they are."""
        value = json_codec.from_json(text)
        for older in range(number, self.newest):
            if older in self._steps:
                value = self._applied(older, value)
        return json_codec.to_json("arguments", value)

    def _applied(self, older: int, value: Any) -> ArgumentValues:
        where = f"its upgrade from version {older}"
        try:
            made = self._steps[older](value)
        except Exception as error:
            raise InvalidArguments(self._task, f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(made, Mapping):
            raise InvalidArguments(self._task, f"{where} returned {made!r}, not arguments by name")
        return dict(made)
