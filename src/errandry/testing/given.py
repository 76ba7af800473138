"""Jobs in any state for tests. They reach it by commands, as in a real program."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

from errandry.core.answer import WRITTEN, Claims, Inserted, Moved
from errandry.core.command import (
    DEFAULT_LEASE,
    Beat,
    CancelJobs,
    Claim,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Outcome,
    Ref,
    RemoveJobs,
    Settle,
    Upkeep,
)
from errandry.core.flow import Edge
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock

_nonces = count(1)


def ref(job: JobRecord) -> Ref:
    """The id and the fence of the claim that returned `job`."""
    return Ref(job.id, job.fence)


class Given:
    """Each method inserts a job, brings it into a state, and returns it as it is stored then.

    Keyword arguments are fields of `NewJob`. By default every job has an id and a task of its own,
    so that a claim for one job never takes another.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._numbers = count(1)

    def new_job(self, **fields: Any) -> NewJob:
        """A job to insert."""
        number = next(self._numbers)
        return NewJob(**({"id": f"job-{number}", "task": f"task-{number}", "payload": "{}"} | fields))

    async def inserted(self, *jobs: NewJob) -> tuple[JobRecord, ...]:
        """Insert the jobs in one command and return them in the order given."""
        await self.store.commit([Insert(jobs)])
        return tuple([await self.current_job(job.id) for job in jobs])

    async def waiting(self, **fields: Any) -> JobRecord:
        [job] = await self.inserted(self.new_job(**fields))
        return job

    async def scheduled(self, delay: float = 3_600.0, **fields: Any) -> JobRecord:
        return await self.waiting(delay=delay, **fields)

    async def blocked(self, **fields: Any) -> JobRecord:
        """A job that waits for a child, which runs under a long lease in the queue `children`."""
        parent = self.new_job(**fields)
        child = self.new_job(id=f"child of {parent.id}", task=f"child of {parent.id}", queue="children")
        await self.flow((parent, child), (Edge(parent.id, child.id),))
        await self.claim(await self.current_job(child.id), "elsewhere", lease=1e9)
        return await self.current_job(parent.id)

    async def flow(self, jobs: Sequence[NewJob], edges: Sequence[Edge]) -> tuple[JobRecord, ...]:
        """Insert the jobs of a flow and return them in the order given."""
        [answer] = await self.store.commit([Insert(tuple(jobs), tuple(edges))])
        assert isinstance(answer, Inserted), answer
        return tuple([await self.current_job(job.id) for job in jobs])

    async def claimed(
        self, worker: str = "worker", lease: float = DEFAULT_LEASE, start: bool = False, **fields: Any
    ) -> JobRecord:
        return await self.claim(await self.waiting(**fields), worker, lease, start)

    async def running(self, worker: str = "worker", lease: float = DEFAULT_LEASE, **fields: Any) -> JobRecord:
        return await self.claimed(worker, lease, start=True, **fields)

    async def completed(self, result: str | None = '"done"', **fields: Any) -> JobRecord:
        return await self.settled(CompleteOutcome(result), **fields)

    async def failed(self, **fields: Any) -> JobRecord:
        return await self.settled(FailOutcome(), **fields)

    async def canceled(self, **fields: Any) -> JobRecord:
        """A job that was canceled while a worker held its claim."""
        job = await self.claimed(**fields)
        [answer] = await self.store.commit([CancelJobs(ids=(job.id,))])
        assert answer == Moved((job.id,))
        return await self.current_job(job.id)

    async def removed(self, **fields: Any) -> JobRecord:
        """The last record of a job that was removed by force while it was claimed."""
        job = await self.claimed(**fields)
        [answer] = await self.store.commit([RemoveJobs(ids=(job.id,), force=True)])
        assert answer == Moved((job.id,))
        return job

    async def lost_at_the_cap(self, clock: FakeClock, **fields: Any) -> JobRecord:
        """A job whose crashes are at their cap, scheduled until the silence of its worker is final."""
        await self.store.commit([Beat(worker="silent")])
        job = await self.running("silent", max_crashes=1, **fields)
        clock.advance(DEFAULT_LEASE)
        await self.store.commit([Upkeep()])
        return await self.current_job(job.id)

    async def in_state(self, state: State | None, **fields: Any) -> JobRecord:
        """A job in `state`, or with None the last record of a removed job."""
        methods: Mapping[State | None, Callable[..., Awaitable[JobRecord]]] = {
            State.BLOCKED: self.blocked,
            State.SCHEDULED: self.scheduled,
            State.WAITING: self.waiting,
            State.CLAIMED: self.claimed,
            State.RUNNING: self.running,
            State.COMPLETED: self.completed,
            State.FAILED: self.failed,
            State.CANCELED: self.canceled,
            None: self.removed,
        }
        job = await methods[state](**fields)
        assert state is None or job.state is state, f"expected a {state} job, got {job}"
        return job

    async def claim(
        self, job: JobRecord, worker: str = "worker", lease: float = DEFAULT_LEASE, start: bool = True
    ) -> JobRecord:
        """Claim `job`, which must be waiting or due and first in its queue and task."""
        claim = Claim(
            worker=worker,
            nonce=f"given-{next(_nonces)}",
            queues=(job.queue,),
            tasks=(job.task,),
            start=start,
            lease=lease,
        )
        [answer] = await self.store.commit([claim])
        assert isinstance(answer, Claims), answer
        assert [claimed.id for claimed in answer.jobs] == [job.id], (
            f"the claim did not take {job.id}: {answer}"
        )
        return answer.jobs[0]

    async def settled(self, outcome: Outcome, **fields: Any) -> JobRecord:
        """A job whose running attempt ended with `outcome`."""
        job = await self.running(**fields)
        [answer] = await self.store.commit([Settle(ref(job), outcome)])
        assert answer is WRITTEN, answer
        return await self.current_job(job.id)

    async def current_job(self, job_id: str) -> JobRecord:
        """The job as it is stored now."""
        [job] = await self.store.get([job_id])
        assert job is not None, f"there is no job {job_id}"
        return job
