"""The schedules of a PostgreSQL store: held by whoever decides about their ticks. No rules."""

from collections.abc import Sequence
from typing import Any

from errandry.core.schedule import ScheduleRecord
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.lanes import PostgresLanes
from errandry.store.postgres.scan_position import ALWAYS
from errandry.store.tables import rows


class PostgresSchedules(PostgresLanes):
    """Part of what `store.tables.Tables` asks for."""

    def lock_schedule(self, name: str) -> ScheduleRecord | None:
        found = self._schedules("lock_schedule" if self._writes else "schedules", (array([name]),))
        return found[0] if found else None

    def schedules(self, names: Sequence[str]) -> list[ScheduleRecord]:
        return self._schedules("schedules", (array(names),))

    def schedules_after(self, after: str, limit: int) -> list[ScheduleRecord]:
        return self._schedules("timetable", (after, limit))

    def due_schedules(self, now: float, limit: int) -> list[ScheduleRecord]:
        return self._schedules("ticking", (ALWAYS, now, limit))

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        self._run("put_schedules", columns(map(rows.from_schedule, schedules)))
        self._forget_marks()
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        self._run("drop_schedule", (name,))
        self._forget_marks()
        self.is_dirty = True

    def _schedules(self, name: str, bindings: Any) -> list[ScheduleRecord]:
        return [rows.to_schedule(record) for (record,) in self._all(name, bindings)]
