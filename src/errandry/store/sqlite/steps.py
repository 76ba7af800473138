"""The steps of jobs in an SQLite store."""

from collections.abc import Sequence

from errandry.core.step import StepKind, StepRecord
from errandry.store.sqlite.schedules import SqliteSchedules
from errandry.store.tables import rows


class SqliteSteps(SqliteSchedules):
    """The part of `SqliteTables` that reads and writes steps."""

    def steps(self, job: str) -> list[StepRecord]:
        return [rows.to_step(row) for row in self._all("steps", (job,))]

    def step(self, job: str, kind: StepKind, name: str) -> StepRecord | None:
        stored = self._all("step", (job, kind, name))
        return rows.to_step(stored[0]) if stored else None

    def put_step(self, step: StepRecord) -> None:
        self._run("put_step", rows.from_step(step))
        self.is_dirty = True

    def drop_steps(self, jobs: Sequence[str]) -> None:
        self._run("drop_steps", (rows.text(jobs),))
        self.is_dirty = True
