"""The schedules of a store in memory. No rules."""

from collections.abc import Sequence

from errandry.core.schedule import Schedule
from errandry.store.notebook import MemoryNotebook


class MemoryTimetable(MemoryNotebook):
    """A part of the tables: schedules by their names."""

    is_dirty = False

    def __init__(self) -> None:
        super().__init__()
        self._schedules: dict[str, Schedule] = {}

    def schedule(self, name: str) -> Schedule | None:
        return self._schedules.get(name)

    def schedules(self, names: Sequence[str]) -> list[Schedule]:
        return [self._schedules[name] for name in names if name in self._schedules]

    def timetable(self, after: str, limit: int) -> list[Schedule]:
        return [self._schedules[name] for name in sorted(self._schedules) if name > after][:limit]

    def ticking(self, now: float, limit: int) -> list[Schedule]:
        due = [(one.due_at, one.name) for one in self._schedules.values() if one.due_at is not None]
        return [self._schedules[name] for at, name in sorted(due) if at <= now][:limit]

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        self._schedules |= {one.name: one for one in schedules}
        self.is_dirty = True

    def drop_schedule(self, name: str) -> None:
        del self._schedules[name]
        self.is_dirty = True

    def _next_tick(self) -> float | None:
        return min((one.due_at for one in self._schedules.values() if one.due_at is not None), default=None)
