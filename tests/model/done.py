"""A pass as it looked from outside: what was sent, what came back, what was there before and after."""

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
from errandry.core.step import Step
from errandry.store.contract import EventEntry

Jobs = Mapping[str, JobRecord]

IN_HAND = (State.CLAIMED, State.RUNNING)
GOING = (State.WAITING, State.SCHEDULED, *IN_HAND)
"""What has nothing to wait for but its time and a worker."""


@dataclass
class Pass:
    """`closed` holds what is paused: queues, tasks, groups and workers.

    `links` are the edges of each parent after it, `steps` those of each job that has some.
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
    links: Mapping[str, Sequence[EdgeRecord]]
    steps: Mapping[str, Sequence[Step]]

    @property
    def sole(self) -> tuple[Command, Answer] | tuple[None, None]:
        """The command and its answer, of a pass of one."""
        return (self.commands[0], self.answers[0]) if len(self.commands) == 1 else (None, None)

    @property
    def pairs(self) -> Iterator[tuple[Command, Answer]]:
        return zip(self.commands, self.answers, strict=True)

    def has(self, *kinds: type) -> bool:
        return any(isinstance(command, kinds) for command in self.commands)

    def moved(self, kind: type[JobSelection]) -> set[str]:
        """What operators have moved so."""
        found = [one for command, one in self.pairs if isinstance(command, kind) and isinstance(one, Moved)]
        return {job for one in found for job in one.moved}

    def earlier(self, job: JobRecord) -> JobRecord | None:
        """The same job before the pass, and not another one of its id."""
        before = self.before.get(job.id)
        return before if before is not None and before.seq == job.seq else None

    def stands(self, ref: Ref) -> bool:
        """Whether the claim held when the pass began: held, this fence, not expired."""
        job = self.before.get(ref.job)
        return (
            job is not None
            and job.state in IN_HAND
            and job.fence == ref.fence
            and job.lease_until is not None
            and job.lease_until > self.now
        )
