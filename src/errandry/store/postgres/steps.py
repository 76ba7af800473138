"""The steps of jobs in PostgreSQL: a pass that writes one has locked its job."""

from collections.abc import Sequence

from errandry.core.step import StepKind, StepRecord
from errandry.store.postgres.array import array
from errandry.store.postgres.schedules import PostgresSchedules
from errandry.store.tables import rows


class PostgresSteps(PostgresSchedules):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    def steps(self, job: str) -> list[StepRecord]:
        return [rows.to_step(row) for row in self._rows("steps", (job,))]

    def step(self, job: str, kind: StepKind, name: str) -> StepRecord | None:
        step_rows = self._rows("step", (job, kind.value, name))
        return rows.to_step(step_rows[0]) if step_rows else None

    def put_step(self, step: StepRecord) -> None:
        self._send("put_step", rows.from_step(step))
        self.is_dirty = True

    def drop_steps(self, jobs: Sequence[str]) -> None:
        self._send("drop_steps", (array(jobs),))
        self.is_dirty = True
