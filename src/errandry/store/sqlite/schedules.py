"""The schedules of an SQLite store."""

from collections.abc import Sequence
from typing import Any

from errandry.core.schedule import ScheduleRecord
from errandry.store.sqlite.gates import SQL, SqliteGates
from errandry.store.tables import rows


class SqliteSchedules(SqliteGates):
    """The part of `SqliteTables` that reads and writes schedules."""

    def lock_schedule(self, name: str) -> ScheduleRecord | None:
        return next(iter(self.schedules([name])), None)

    def schedules(self, names: Sequence[str]) -> list[ScheduleRecord]:
        return self._schedules("schedules", (rows.text(names),))

    def schedules_after(self, after: str, limit: int) -> list[ScheduleRecord]:
        return self._schedules("schedules_after", (after, limit))

    def due_schedules(self, now: float, limit: int) -> list[ScheduleRecord]:
        return self._schedules("due_schedules", (now, limit))

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        self._db.executemany(SQL["put_schedules"], map(rows.from_schedule, schedules))
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        self._run("drop_schedule", (name,))
        self.is_dirty = True

    def _schedules(self, name: str, bindings: Any) -> list[ScheduleRecord]:
        return [rows.to_schedule(record) for (record,) in self._all(name, bindings)]
