"""For tests of programs that enqueue jobs: a store in memory, `drain`, assertions about what is enqueued."""

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from msgspec.structs import replace

from errandry.api.app import Errandry
from errandry.api.task import Task
from errandry.clock import Clock
from errandry.codec.json_codec import about, from_json
from errandry.core import check
from errandry.core.answer import Claims
from errandry.core.command import Claim
from errandry.core.job import JobRecord
from errandry.core.query import Query
from errandry.errors import InvalidArguments, JobFailed
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from errandry.worker.dispatcher import batches, gathered
from errandry.worker.executor import Executor
from errandry.worker.handler_call import JobRun
from errandry.worker.log_capture import JobLogHandler
from errandry.worker.options import WorkerOptions

LEASE = 86_400.0
NEVER = check.SPAN_MAX / 2
"""What is due only then waits for a signal, and for as long as it takes."""
SHOWN = 20
_numbers = itertools.count(1)


@contextmanager
def in_memory(jobs: Errandry, clock: Clock | None = None) -> Iterator[MemoryStore]:
    """`jobs` with an empty store in memory while this lasts; nothing reaches the store it is made for."""
    store = MemoryStore(clock)
    with jobs.override_store(store, clock):
        yield store


async def drain(
    jobs: Errandry,
    *,
    until_idle: bool = False,
    queue: str | None = None,
    strict: bool = False,
    limit: int = 1_000,
) -> list[JobRecord]:
    """Run what is ready, in the order a worker would, one job after the other, on this loop; those of a task
    that takes batches together, without lingering.

    What the handlers enqueue is run too. With `until_idle`, the app's FakeClock goes on to whatever is due
    next, until nothing is: delays, retries and snoozes take no time. With `strict`, the first attempt that
    goes wrong is raised as JobFailed. After `limit` attempts it gives up with an AssertionError.

    Returns the jobs that finished, as stored, in that order.
    """
    hand = _TestWorker(jobs, queue)
    finished: list[JobRecord] = []
    attempts = 0
    with _captured(), closing(hand):
        while attempts < limit:
            claimed = await hand.claim()
            if not claimed and until_idle:
                claimed = await hand.claim_next()
            if not claimed:
                return finished
            for job, after in zip(claimed, await hand.run(claimed), strict=True):
                if strict and after is not None and len(after.errors) > len(job.errors):
                    raise _raised(after)
                if after is not None and after.finished:
                    finished.append(after)
            attempts += len(claimed)
    raise AssertionError(f"{limit:,} attempts, and there is more to do: does a job enqueue itself for ever?")


async def assert_enqueued(jobs: Errandry, task: Task[..., Any] | str, /, **arguments: Any) -> JobRecord:
    """A job of this task with at least these arguments is there and has not finished. Returns the newest."""
    known = await _known(jobs, task)
    for job, given in known:
        if not job.finished and _fits(given, arguments):
            return job
    raise AssertionError(f"no job of {_said(task, arguments)} is enqueued; {await _instead(jobs, known)}")


async def assert_not_enqueued(
    jobs: Errandry, task: Task[..., Any] | str | None = None, /, **arguments: Any
) -> None:
    """No such job is there that has not finished; without a task, none at all."""
    found = [
        (job, given)
        for job, given in await _known(jobs, task)
        if not job.finished and _fits(given, arguments)
    ]
    if found:
        raise AssertionError(f"{_said(task, arguments)} should not be enqueued, but is:{_lines(found)}")


class _TestWorker:
    """A worker in miniature: no slots, no leases to keep, nothing in the background."""

    def __init__(self, jobs: Errandry, queue: str | None) -> None:
        self._jobs, self._queues = jobs, None if queue is None else (queue,)
        self._executor = Executor(
            jobs, WorkerOptions(on_unknown="fail", grace=1.0), lambda _: None, lambda _: None
        )

    async def claim(self) -> tuple[JobRecord, ...]:
        """The job a worker would take next, and those that would share its call."""
        wanted = Claim(
            worker="drain",
            nonce=f"drain-{next(_numbers)}",
            queues=self._queues,
            batches=tuple(replace(batch, start=True) for batch in batches(self._jobs)),
            lease=LEASE,
        )
        claims = await self._jobs.engine.submit(wanted)
        return claims.jobs if isinstance(claims, Claims) else ()

    async def claim_next(self) -> tuple[JobRecord, ...]:
        """What is due next, at its time; the clock is moved there."""
        clock = self._jobs.clock
        if not isinstance(clock, FakeClock):
            raise TypeError(f"until_idle moves a FakeClock on; the app has a {type(clock).__name__}")
        while (due_in := await self._jobs.engine.call(self._jobs.store.due_in)) is not None:
            if due_in > NEVER:
                return ()
            clock.advance(max(due_in, 1e-6))  # less would be lost in the rounding of a float
            if claimed := await self.claim():
                return claimed
        return ()

    async def run(self, jobs: tuple[JobRecord, ...]) -> list[JobRecord | None]:
        """The jobs after an attempt; None for one that is gone."""
        loop = asyncio.get_running_loop()
        runs = [JobRun(job, float("inf"), self._executor, loop) for job in jobs]
        for batch in gathered(self._jobs, runs):
            self._executor.start(batch)
        while left := self._executor.work:
            await asyncio.wait(left)
        return await self._jobs.engine.call(self._jobs.store.get, [job.id for job in jobs])

    def close(self) -> None:
        self._executor.close()


@contextmanager
def _captured() -> Iterator[None]:
    """What handlers log goes to their jobs, as in a worker."""
    capture = JobLogHandler()
    logging.getLogger().addHandler(capture)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(capture)


def _raised(job: JobRecord) -> JobFailed:
    last = job.errors[-1]
    error = JobFailed(job.id, last.kind, f"{last.type}: {last.message}", last.traceback)
    error.add_note(last.traceback)
    return error


async def _known(jobs: Errandry, task: Task[..., Any] | str | None) -> list[tuple[JobRecord, dict[str, Any]]]:
    """The jobs of a task with their arguments, newest first."""
    query = Query() if task is None else Query(within=(("task", (_name(task),)),))
    page = await jobs.engine.call(jobs.store.list, query, None, 10_000)
    return [(job, _arguments(jobs, job)) for job in page.jobs]


def _arguments(jobs: Errandry, job: JobRecord) -> dict[str, Any]:
    text = jobs.codec.unseal(job.payload, about(job, "payload"))
    task = jobs.tasks.get(job.task)
    try:
        arguments: dict[str, Any] = from_json(text) if task is None else task.signature.read(text)
    except InvalidArguments:
        arguments = from_json(text)
    return arguments


def _fits(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in given and given[name] == value for name, value in wanted.items())


def _name(task: Task[..., Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _said(task: Task[..., Any] | str | None, arguments: Mapping[str, Any]) -> str:
    what = "any task" if task is None else f"task {_name(task)}"
    return f"{what} with {_shown(arguments)}" if arguments else what


async def _instead(jobs: Errandry, known: list[tuple[JobRecord, dict[str, Any]]]) -> str:
    """What there is where something else was expected."""
    if known:
        return f"of this task there are:{_lines(known)}"
    others = sorted({job.task for job, _ in await _known(jobs, None)})
    return f"there are only jobs of {', '.join(others)}" if others else "there are no jobs at all"


def _lines(known: list[tuple[JobRecord, dict[str, Any]]]) -> str:
    lines = [f"\n  {job.state:<9} {job.task}({_shown(given)})" for job, given in known[:SHOWN]]
    return "".join(lines) + (f"\n  and {len(known) - SHOWN:,} more" if len(known) > SHOWN else "")


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
