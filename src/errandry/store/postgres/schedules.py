"""The schedules of a PostgreSQL store. A pass locks those about whose ticks it decides."""

from collections.abc import Sequence
from typing import Any

from errandry.core.schedule import ScheduleRecord
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.lanes import PostgresLanes
from errandry.store.postgres.scan_position import NEVER_BEFORE
from errandry.store.tables import rows


class PostgresSchedules(PostgresLanes):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    def lock_schedule(self, name: str) -> ScheduleRecord | None:
        if not self._writes:
            return next(iter(self.schedules([name])), None)
        schedules = self._schedule_records("lock_schedule", (array([name]),))
        if not schedules:
            self._send("lock_new_schedule", (name,))
            schedules = self._schedule_records("lock_schedule", (array([name]),))
        return schedules[0] if schedules else None

    def schedules(self, names: Sequence[str]) -> list[ScheduleRecord]:
        return self._schedule_records("schedules", (array(names),))

    def schedules_after(self, after: str, limit: int) -> list[ScheduleRecord]:
        return self._schedule_records("schedules_after", (after, limit))

    def due_schedules(self, now: float, limit: int) -> list[ScheduleRecord]:
        return self._schedule_records("due_schedules", (NEVER_BEFORE, now, limit))

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        self._send("put_schedules", columns(map(rows.from_schedule, schedules)))
        self._discard_due_times()
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        self._send("drop_schedule", (name,))
        self._discard_due_times()
        self.is_dirty = True

    def _schedule_records(self, name: str, bindings: Any) -> list[ScheduleRecord]:
        return [rows.to_schedule(record) for (record,) in self._rows(name, bindings)]
