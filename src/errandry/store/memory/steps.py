"""The steps of jobs in memory. No rules."""

from collections.abc import Sequence

from errandry.core.step import Step, StepKind
from errandry.store.memory.edges import MemoryEdges


class MemorySteps(MemoryEdges):
    """A part of the tables: for each job its steps, by kind and name."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[str, dict[tuple[StepKind, str], Step]] = {}

    def steps(self, job: str) -> list[Step]:
        return sorted(self._written.get(job, {}).values(), key=lambda step: step.n)

    def step(self, job: str, kind: StepKind, name: str) -> Step | None:
        return self._written.get(job, {}).get((kind, name))

    def put_step(self, step: Step) -> None:
        self._written.setdefault(step.job, {})[step.kind, step.name] = step

    def drop_steps(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._written.pop(job, None)
