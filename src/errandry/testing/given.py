"""Jobs in any state, brought there as a program would: by commands only."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

from errandry.core.answer import WRITTEN, Claims, Inserted, Moved
from errandry.core.command import (
    DEFAULT_LEASE,
    CancelJobs,
    Claim,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Outcome,
    Ref,
    RemoveJobs,
    Settle,
)
from errandry.core.flow import Edge
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import State
from errandry.store.contract import Store

_nonces = count(1)


def ref(job: JobRecord) -> Ref:
    """The identity of the claim `job` came from."""
    return Ref(job.id, job.fence)


class Given:
    """Each method inserts a new job and answers with it as it is stored then.

    Keyword arguments are fields of `NewJob`. Unless told otherwise every job has an id and a task
    of its own, so that claims for one never take another.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._numbers = count(1)

    def job(self, **fields: Any) -> NewJob:
        """A job to insert."""
        number = next(self._numbers)
        return NewJob(**({"id": f"job-{number}", "task": f"task-{number}", "payload": "{}"} | fields))

    async def inserted(self, *jobs: NewJob) -> tuple[JobRecord, ...]:
        await self.store.commit([Insert(jobs)])
        return tuple([await self.current(job.id) for job in jobs])

    async def waiting(self, **fields: Any) -> JobRecord:
        [job] = await self.inserted(self.job(**fields))
        return job

    async def scheduled(self, delay: float = 3_600.0, **fields: Any) -> JobRecord:
        return await self.waiting(delay=delay, **fields)

    async def blocked(self, **fields: Any) -> JobRecord:
        """It waits for a child that runs somewhere else, and for long."""
        parent = self.job(**fields)
        child = self.job(id=f"child of {parent.id}", task=f"child of {parent.id}", queue="children")
        await self.flow((parent, child), (Edge(parent.id, child.id),))
        await self.taken(await self.current(child.id), "elsewhere", lease=1e9)
        return await self.current(parent.id)

    async def flow(self, jobs: Sequence[NewJob], edges: Sequence[Edge]) -> tuple[JobRecord, ...]:
        """Jobs that wait for each other."""
        [answer] = await self.store.commit([Insert(tuple(jobs), tuple(edges))])
        assert isinstance(answer, Inserted), answer
        return tuple([await self.current(job.id) for job in jobs])

    async def claimed(
        self, worker: str = "worker", lease: float = DEFAULT_LEASE, start: bool = False, **fields: Any
    ) -> JobRecord:
        return await self.taken(await self.waiting(**fields), worker, lease, start)

    async def running(self, worker: str = "worker", lease: float = DEFAULT_LEASE, **fields: Any) -> JobRecord:
        return await self.claimed(worker, lease, start=True, **fields)

    async def completed(self, result: str | None = '"done"', **fields: Any) -> JobRecord:
        return await self.settled(CompleteOutcome(result), **fields)

    async def failed(self, **fields: Any) -> JobRecord:
        return await self.settled(FailOutcome(), **fields)

    async def canceled(self, **fields: Any) -> JobRecord:
        """Canceled while it was claimed, so that there is a claim to be told about it."""
        job = await self.claimed(**fields)
        [answer] = await self.store.commit([CancelJobs(ids=(job.id,))])
        assert answer == Moved((job.id,))
        return await self.current(job.id)

    async def gone(self, **fields: Any) -> JobRecord:
        """Removed by force while it was claimed; the record as it was last."""
        job = await self.claimed(**fields)
        [answer] = await self.store.commit([RemoveJobs(ids=(job.id,), force=True)])
        assert answer == Moved((job.id,))
        return job

    async def brought(self, state: State | None, **fields: Any) -> JobRecord:
        """A job in `state`; with None, one that is gone."""
        ways: Mapping[State | None, Callable[..., Awaitable[JobRecord]]] = {
            State.BLOCKED: self.blocked,
            State.SCHEDULED: self.scheduled,
            State.WAITING: self.waiting,
            State.CLAIMED: self.claimed,
            State.RUNNING: self.running,
            State.COMPLETED: self.completed,
            State.FAILED: self.failed,
            State.CANCELED: self.canceled,
            None: self.gone,
        }
        job = await ways[state](**fields)
        assert state is None or job.state is state, f"asked for a {state} job, got {job}"
        return job

    async def taken(
        self, job: JobRecord, worker: str = "worker", lease: float = DEFAULT_LEASE, start: bool = True
    ) -> JobRecord:
        """`job`, which is waiting or due, claimed."""
        wanted = Claim(
            worker=worker,
            nonce=f"given-{next(_nonces)}",
            queues=(job.queue,),
            tasks=(job.task,),
            start=start,
            lease=lease,
        )
        [answer] = await self.store.commit([wanted])
        assert isinstance(answer, Claims), answer
        assert [one.id for one in answer.jobs] == [job.id], f"{job.id} was not the first in line: {answer}"
        return answer.jobs[0]

    async def settled(self, outcome: Outcome, **fields: Any) -> JobRecord:
        """A job whose running attempt ended with `outcome`."""
        job = await self.running(**fields)
        [answer] = await self.store.commit([Settle(ref(job), outcome)])
        assert answer is WRITTEN, answer
        return await self.current(job.id)

    async def current(self, job_id: str) -> JobRecord:
        """The job as it is stored now."""
        [job] = await self.store.get([job_id])
        assert job is not None, f"there is no job {job_id}"
        return job
