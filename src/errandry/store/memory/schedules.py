"""Schedules of the memory store."""

from collections.abc import Sequence

from errandry.core.schedule import ScheduleRecord
from errandry.store.memory.steps import MemorySteps


class MemorySchedules(MemorySteps):
    """The part of the tables with the schedules, by name."""

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
        due = [
            (schedule.due_at, schedule.name)
            for schedule in self._schedules.values()
            if schedule.due_at is not None
        ]
        return [self._schedules[name] for at, name in sorted(due) if at <= now][:limit]

    def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        self._schedules |= {schedule.name: schedule for schedule in schedules}
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        del self._schedules[name]
        self.is_dirty = True

    def _next_tick(self) -> float | None:
        return min(
            (schedule.due_at for schedule in self._schedules.values() if schedule.due_at is not None),
            default=None,
        )
