"""The steps of jobs in PostgreSQL: whoever writes one has its job locked. No rules."""

from collections.abc import Sequence

from errandry.core.step import Step, StepKind
from errandry.store.postgres.array import array
from errandry.store.postgres.schedules import PostgresSchedules
from errandry.store.tables import rows


class PostgresSteps(PostgresSchedules):
    """Part of what `store.tables.Tables` asks for."""

    def steps(self, job: str) -> list[Step]:
        return [rows.to_step(row) for row in self._all("steps", (job,))]

    def step(self, job: str, kind: StepKind, name: str) -> Step | None:
        found = self._all("step", (job, kind.value, name))
        return rows.to_step(found[0]) if found else None

    def put_step(self, step: Step) -> None:
        self._run("put_step", rows.from_step(step))
        self.is_dirty = True

    def drop_steps(self, jobs: Sequence[str]) -> None:
        self._run("drop_steps", (array(jobs),))
        self.is_dirty = True
