"""A pass as seen from outside: the commands, the answers, and the jobs before and after."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from errandry.core.answer import Answer, Moved
from errandry.core.command import Command, Ref
from errandry.core.flow import EdgeRecord
from errandry.core.gate import GateRecord
from errandry.core.job import JobRecord
from errandry.core.schedule import ScheduleRecord
from errandry.core.selection import JobSelection
from errandry.core.state import State
from errandry.core.step import StepRecord
from errandry.store.contract import EventEntry

Jobs = Mapping[str, JobRecord]

HELD_STATES = (State.CLAIMED, State.RUNNING)
READY_OR_HELD = (State.WAITING, State.SCHEDULED, *HELD_STATES)
"""The states of a job that waits for no other job."""


@dataclass
class Pass:
    """`closed` are the paused queues, tasks, groups and workers.

    `edges` are the edges of each parent after the pass, `steps` the steps of each job that has some.
    """

    commands: Sequence[Command]
    answers: Sequence[Answer]
    now: float
    before: Jobs
    after: Jobs
    events: Sequence[EventEntry]
    closed: frozenset[tuple[str, ...]]
    rules: Sequence[GateRecord]
    schedules: Sequence[ScheduleRecord]
    edges: Mapping[str, Sequence[EdgeRecord]]
    steps: Mapping[str, Sequence[StepRecord]]

    @property
    def single(self) -> tuple[Command, Answer] | tuple[None, None]:
        """The command and its answer, if the pass has only one."""
        return (self.commands[0], self.answers[0]) if len(self.commands) == 1 else (None, None)

    @property
    def pairs(self) -> Iterator[tuple[Command, Answer]]:
        return zip(self.commands, self.answers, strict=True)

    def has(self, *kinds: type) -> bool:
        return any(isinstance(command, kinds) for command in self.commands)

    def moved(self, kind: type[JobSelection]) -> set[str]:
        """The ids of the jobs that commands of this kind moved."""
        answers = [answer for command, answer in self.pairs if isinstance(command, kind)]
        return {job_id for answer in answers if isinstance(answer, Moved) for job_id in answer.moved}

    def earlier(self, job: JobRecord) -> JobRecord | None:
        """The same job before the pass; None if another job had its id then."""
        before = self.before.get(job.id)
        return before if before is not None and before.seq == job.seq else None

    def stands(self, ref: Ref) -> bool:
        """Whether the claim was valid when the pass began: job held, same fence, lease not expired."""
        job = self.before.get(ref.job)
        return (
            job is not None
            and job.state in HELD_STATES
            and job.fence == ref.fence
            and job.lease_until is not None
            and job.lease_until > self.now
        )
