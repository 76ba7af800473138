"""Test kit for programs that enqueue jobs: a store in memory, `drain`, assertions about enqueued jobs."""

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from msgspec.structs import replace

from errandry.api.app import Errandry
from errandry.api.job import Job
from errandry.api.task import Task
from errandry.clock import Clock
from errandry.codec.json_codec import document_info, from_json
from errandry.core import check
from errandry.core.answer import Claims
from errandry.core.command import Claim
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.errors import InvalidArguments, JobFailed
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from errandry.worker.dispatcher import batch_specs, group_calls
from errandry.worker.executor import Executor
from errandry.worker.handler_call import JobRun
from errandry.worker.log_capture import JobLogHandler
from errandry.worker.options import WorkerOptions

LEASE_TIME = 86_400.0
"""Seconds a claim of `drain` lasts; nothing renews it."""
SIGNAL_WAIT_MIN = check.SPAN_MAX / 2
"""Minimum seconds until a job is due that waits for a signal without a timeout."""
LISTED_JOBS_MAX = 20
"""Maximum number of jobs listed in a failed assertion."""
_numbers = itertools.count(1)


@contextmanager
def in_memory(jobs: Errandry, clock: Clock | None = None) -> Iterator[MemoryStore]:
    """Give `jobs` an empty store in memory inside a `with` block; its own store is not touched.

    with in_memory(jobs, FakeClock()):
        await send.enqueue("ada")
        await drain(jobs)
    """
    store = MemoryStore(clock)
    with jobs.client.override_store(store, clock):
        yield store


async def drain(
    jobs: Errandry,
    *,
    until_idle: bool = False,
    queue: str | None = None,
    strict: bool = False,
    limit: int = 1_000,
) -> list[Job[Any]]:
    """Run all due jobs on this loop, one after the other, in the order a worker would take them.

    Returns the jobs that finished, in that order. Jobs that handlers enqueue run too; jobs of
    a batch task run together, without lingering.

    `until_idle` moves the app's FakeClock to the next due job until none is left, so that delays, retries and
    snoozes take no time. `queue` runs one queue only. `strict` raises the first attempt that fails as
    JobFailed. After `limit` attempts an AssertionError is raised.
    """
    worker = _TestWorker(jobs, queue)
    finished: list[Job[Any]] = []
    attempts = 0
    with _capture_logs(), closing(worker):
        while attempts < limit:
            claimed = await worker.claim()
            if not claimed and until_idle:
                claimed = await worker.claim_next()
            if not claimed:
                return finished
            for job, after in zip(claimed, await worker.run(claimed), strict=True):
                if strict and after is not None and len(after.errors) > len(job.errors):
                    raise _attempt_error(after)
                if after is not None and after.finished:
                    finished.append(Job(jobs, after))
            attempts += len(claimed)
    raise AssertionError(f"{limit:,} attempts, and there is more to do: does a job enqueue itself for ever?")


async def assert_enqueued(jobs: Errandry, task: Task[..., Any] | str, /, **arguments: Any) -> Job[Any]:
    """Assert that an unfinished job of this task has at least these arguments; returns the newest one.

    await assert_enqueued(jobs, send, to="ada")
    """
    existing = await _jobs_of_task(jobs, task)
    for job, given in existing:
        if not job.finished and _has_arguments(given, arguments):
            return Job(jobs, job)
    raise AssertionError(
        f"no job of {_description(task, arguments)} is enqueued; {await _existing_jobs(jobs, existing)}"
    )


async def assert_not_enqueued(
    jobs: Errandry, task: Task[..., Any] | str | None = None, /, **arguments: Any
) -> None:
    """Assert that no unfinished job of this task, or of any, has these arguments."""
    unexpected = [
        (job, given)
        for job, given in await _jobs_of_task(jobs, task)
        if not job.finished and _has_arguments(given, arguments)
    ]
    if unexpected:
        lines = _job_lines(unexpected)
        raise AssertionError(f"{_description(task, arguments)} should not be enqueued, but is:{lines}")


class _TestWorker:
    """A minimal worker for `drain`: no slots, no renewal of leases, no background tasks."""

    def __init__(self, jobs: Errandry, queue: str | None) -> None:
        self._jobs, self._queues = jobs, None if queue is None else (queue,)
        self._executor = Executor(
            jobs, WorkerOptions(on_unknown="fail", grace=1.0), lambda _: None, lambda _: None
        )

    async def claim(self) -> tuple[JobRecord, ...]:
        """Claim the next due job, and those that run in the same batch call."""
        command = Claim(
            worker="drain",
            nonce=f"drain-{next(_numbers)}",
            queues=self._queues,
            batches=tuple(replace(batch, start=True) for batch in batch_specs(self._jobs)),
            lease=LEASE_TIME,
        )
        claims = await self._jobs.engine.submit(command)
        return claims.jobs if isinstance(claims, Claims) else ()

    async def claim_next(self) -> tuple[JobRecord, ...]:
        """Move the clock to the time the next job is due, and claim it."""
        clock = self._jobs.clock
        if not isinstance(clock, FakeClock):
            raise TypeError(f"until_idle moves a FakeClock on; the app has a {type(clock).__name__}")
        while (due_in := await self._jobs.engine.call(self._jobs.store.due_in)) is not None:
            if due_in > SIGNAL_WAIT_MIN:
                return ()
            clock.advance(max(due_in, 1e-6))  # a smaller step would vanish in float rounding
            if claimed := await self.claim():
                return claimed
        return ()

    async def run(self, jobs: tuple[JobRecord, ...]) -> list[JobRecord | None]:
        """Run one attempt of the jobs; returns their records after it, None for a job that is gone."""
        loop = asyncio.get_running_loop()
        runs = [JobRun(job, float("inf"), self._executor, loop) for job in jobs]
        for batch in group_calls(self._jobs, runs):
            self._executor.start(batch)
        while left := self._executor.pending:
            await asyncio.wait(left)
        return await self._jobs.engine.call(self._jobs.store.get, [job.id for job in jobs])

    def close(self) -> None:
        self._executor.close()


@contextmanager
def _capture_logs() -> Iterator[None]:
    """Write handlers' log records to their jobs, as a worker does."""
    capture = JobLogHandler()
    logging.getLogger().addHandler(capture)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(capture)


def _attempt_error(job: JobRecord) -> JobFailed:
    last = job.errors[-1]
    error = JobFailed(job.id, last.kind, f"{last.type}: {last.message}", last.traceback)
    error.add_note(last.traceback)
    return error


async def _jobs_of_task(
    jobs: Errandry, task: Task[..., Any] | str | None
) -> list[tuple[JobRecord, dict[str, Any]]]:
    """The jobs of a task with their arguments, newest first."""
    query = Query() if task is None else Query(within=(("task", (_task_name(task),)),))
    page = await jobs.engine.call(jobs.store.list, query, None, 10_000)
    return [(job, _arguments(jobs, job)) for job in page.jobs]


def _arguments(jobs: Errandry, job: JobRecord) -> dict[str, Any]:
    text = jobs.codec.unseal(job.payload, document_info(job, "payload"))
    task = jobs.tasks.get(job.task)
    try:
        arguments: dict[str, Any] = from_json(text) if task is None else task.signature.read(text)
    except InvalidArguments:
        arguments = from_json(text)
    return arguments


def _has_arguments(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in given and given[name] == value for name, value in wanted.items())


def _task_name(task: Task[..., Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _description(task: Task[..., Any] | str | None, arguments: Mapping[str, Any]) -> str:
    tasks = "any task" if task is None else f"task {_task_name(task)}"
    return f"{tasks} with {_format_arguments(arguments)}" if arguments else tasks


async def _existing_jobs(jobs: Errandry, of_task: list[tuple[JobRecord, dict[str, Any]]]) -> str:
    """The jobs of the task, or else the tasks that have jobs, for a failed assertion."""
    if of_task:
        return f"of this task there are:{_job_lines(of_task)}"
    others = sorted({job.task for job, _ in await _jobs_of_task(jobs, None)})
    return f"there are only jobs of {', '.join(others)}" if others else "there are no jobs at all"


def _job_lines(jobs: list[tuple[JobRecord, dict[str, Any]]]) -> str:
    lines = [
        f"\n  {job.state:<9} {job.task}({_format_arguments(given)})" for job, given in jobs[:LISTED_JOBS_MAX]
    ]
    more = f"\n  and {len(jobs) - LISTED_JOBS_MAX:,} more" if len(jobs) > LISTED_JOBS_MAX else ""
    return "".join(lines) + more


def _format_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
