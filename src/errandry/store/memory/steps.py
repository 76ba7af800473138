"""Steps of jobs in the memory store."""

from collections.abc import Sequence

from errandry.core.step import StepKind, StepRecord
from errandry.store.memory.edges import MemoryEdges


class MemorySteps(MemoryEdges):
    """The part of the tables with the steps: for each job, by kind and name."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[str, dict[tuple[StepKind, str], StepRecord]] = {}

    def steps(self, job: str) -> list[StepRecord]:
        return sorted(self._steps.get(job, {}).values(), key=lambda step: step.n)

    def step(self, job: str, kind: StepKind, name: str) -> StepRecord | None:
        return self._steps.get(job, {}).get((kind, name))

    def put_step(self, step: StepRecord) -> None:
        self._steps.setdefault(step.job, {})[step.kind, step.name] = step

    def drop_steps(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._steps.pop(job, None)
