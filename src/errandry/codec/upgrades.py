"""Upgrades: functions that turn the arguments of an older version of a task into those of the newest one."""

from collections.abc import Callable, Mapping
from typing import Any

from errandry.codec import json_codec
from errandry.core.argument_version import check_version
from errandry.errors import InvalidValue, UpgradeFailed

ArgumentValues = dict[str, Any]
Upgrade = Callable[[ArgumentValues], Mapping[str, Any]]
"""Turns the arguments of a version into those of the next one, all as plain JSON values."""


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
        try:
            upgraded = self._steps[older](value)
        except Exception as error:
            raise UpgradeFailed(self._task, older, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(upgraded, Mapping):
            raise UpgradeFailed(self._task, older, f"returned {upgraded!r}, not arguments by name")
        return dict(upgraded)
