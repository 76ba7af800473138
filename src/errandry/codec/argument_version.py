"""Versions of a task's arguments: the version a job was enqueued with, and upgrades to the newest one.

The version is in the job's metadata; a job without one has the first version.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from errandry.codec import json_codec
from errandry.core import check
from errandry.errors import InvalidArguments, InvalidValue

FIRST_VERSION = 1
METADATA_KEY = "errandry.version"
VERSION_MAX = 10_000

ArgumentValues = dict[str, Any]
Upgrade = Callable[[ArgumentValues], Mapping[str, Any]]
"""Turns the arguments of a version into those of the next one, all as plain JSON values."""


def check_version(name: str, value: Any) -> int:
    return check.whole(name, value, FIRST_VERSION, VERSION_MAX)


def version_of(metadata: str | None) -> int:
    """The version a job with this metadata was enqueued with."""
    if metadata is None or METADATA_KEY not in metadata:
        return FIRST_VERSION
    number = msgspec.json.decode(metadata).get(METADATA_KEY, FIRST_VERSION)
    return number if type(number) is int else FIRST_VERSION


def with_version(metadata: str | None, number: int) -> str | None:
    """The metadata with this version of the arguments in it."""
    if version_of(metadata) == number:
        return metadata
    fields = {} if metadata is None else msgspec.json.decode(metadata)
    return msgspec.json.encode({**fields, METADATA_KEY: number}).decode()


class Upgrades:
    """The upgrade functions of a task, by the version they start from."""

    def __init__(self, task: str, newest: int) -> None:
        self._task, self.newest = task, newest
        self._steps: dict[int, Upgrade] = {}

    def add(self, number: int, step: Upgrade) -> None:
        """Add the upgrade from version `number` to the next one."""
        check_version("version", number)
        if number >= self.newest:
            why = f"the task is at version {self.newest}: an upgrade must start from an older one"
            raise InvalidValue("version", number, why)
        self._steps[number] = step

    def apply(self, text: str, number: int) -> str:
        """Upgrade arguments (JSON text) from version `number` to the newest; missing steps are skipped."""
        value = json_codec.from_json(text)
        for older in range(number, self.newest):
            if older in self._steps:
                value = self._apply_step(older, value)
        return json_codec.to_json("arguments", value)

    def _apply_step(self, older: int, value: Any) -> ArgumentValues:
        where = f"its upgrade from version {older}"
        try:
            upgraded = self._steps[older](value)
        except Exception as error:
            raise InvalidArguments(self._task, f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(upgraded, Mapping):
            raise InvalidArguments(self._task, f"{where} returned {upgraded!r}, not arguments by name")
        return dict(upgraded)
