"""The schedules of a PostgreSQL store: held by whoever decides about their ticks. No rules."""

from collections.abc import Sequence
from typing import Any

from errandry.core.schedule import Schedule
from errandry.store import row as rows
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.lanes import Lanes
from errandry.store.postgres.trail import ALWAYS


class Timetable(Lanes):
    """Part of what `store.tables.Tables` asks for."""

    def schedule(self, name: str) -> Schedule | None:
        found = self._schedules("lock_schedule" if self._writes else "schedules", (array([name]),))
        return found[0] if found else None

    def schedules(self, names: Sequence[str]) -> list[Schedule]:
        return self._schedules("schedules", (array(names),))

    def timetable(self, after: str, limit: int) -> list[Schedule]:
        return self._schedules("timetable", (after, limit))

    def ticking(self, now: float, limit: int) -> list[Schedule]:
        return self._schedules("ticking", (ALWAYS, now, limit))

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        self._run("put_schedules", columns(map(rows.from_schedule, schedules)))
        self._forget_marks()
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        self._run("drop_schedule", (name,))
        self._forget_marks()
        self.is_dirty = True

    def _schedules(self, name: str, bindings: Any) -> list[Schedule]:
        return [rows.to_schedule(record) for (record,) in self._all(name, bindings)]
