"""The schedules of a store in memory. No rules."""

from collections.abc import Sequence

from errandry.core.schedule import ScheduleRecord
from errandry.store.memory.steps import MemorySteps


class MemorySchedules(MemorySteps):
    """A part of the tables: schedules by their names."""

    is_dirty = False

    def __init__(self) -> None:
        super().__init__()
        self._schedules: dict[str, ScheduleRecord] = {}

    def lock_schedule(self, name: str) -> ScheduleRecord | None:
        return self._schedules.get(name)

    def schedules(self, names: Sequence[str]) -> list[ScheduleRecord]:
        return [self._schedules[name] for name in names if name in self._schedules]

    def schedules_after(self, after: str, limit: int) -> list[ScheduleRecord]:
        return [self._schedules[name] for name in sorted(self._schedules) if name > after][:limit]

    def due_schedules(self, now: float, limit: int) -> list[ScheduleRecord]:
        due = [(one.due_at, one.name) for one in self._schedules.values() if one.due_at is not None]
        return [self._schedules[name] for at, name in sorted(due) if at <= now][:limit]

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        self._schedules |= {one.name: one for one in schedules}
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        del self._schedules[name]
        self.is_dirty = True

    def _next_tick(self) -> float | None:
        return min((one.due_at for one in self._schedules.values() if one.due_at is not None), default=None)
