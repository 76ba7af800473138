"""The schedules of an SQLite store. No rules."""

from collections.abc import Sequence
from typing import Any

from errandry.core.schedule import Schedule
from errandry.store import row as rows
from errandry.store.sqlite.gates import SQL, Gates


class Timetable(Gates):
    """A part of the tables."""

    def schedule(self, name: str) -> Schedule | None:
        return next(iter(self.schedules([name])), None)

    def schedules(self, names: Sequence[str]) -> list[Schedule]:
        return self._schedules("schedules", (rows.text(names),))

    def timetable(self, after: str, limit: int) -> list[Schedule]:
        return self._schedules("timetable", (after, limit))

    def ticking(self, now: float, limit: int) -> list[Schedule]:
        return self._schedules("ticking", (now, limit))

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        self._db.executemany(SQL["put_schedule"], [rows.from_schedule(one) for one in schedules])
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        self._run("drop_schedule", (name,))
        self.is_dirty = True

    def _schedules(self, name: str, bindings: Any) -> list[Schedule]:
        return [rows.to_schedule(record) for (record,) in self._all(name, bindings)]
