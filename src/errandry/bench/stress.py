"""The stress test: enqueue jobs of every kind, kill workers with -9, and check the end of every job.

The expected end of a job follows from its number alone, so the test needs no records outside the store.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from errandry.api.task import Call
from errandry.bench.bench_store import PREFIX, BenchStore
from errandry.bench.report import KindResult, Stress
from errandry.bench.tasks import SPAWNED_JOBS
from errandry.bench.worker_processes import WorkerProcesses
from errandry.core.job import JobRecord
from errandry.core.query import quote
from errandry.core.state import TERMINAL, Reason, State
from errandry.worker import WorkerOptions

JOBS = 120_000
QUEUES = 16
WORKERS = 4
KILLS = 6
"""Number of workers to kill, spread evenly over the test."""
ATTEMPTS = 3
MANY_ATTEMPTS = 1_000
"""Maximum attempts and crashes of jobs that must survive the kills of their workers."""
DELAY_MAX = 4.0
"""Maximum delay of scheduled jobs, in seconds."""
POLL_INTERVAL = 0.1
STALL_TIMEOUT = 60.0
"""Seconds without a finished job after which the test gives up."""
PAGE_SIZE = 2_000
CALL_SIZE = 1_000
FAULTS_MAX = 20
TIMELINE_MAX = 300
"""Maximum number of points of the timeline that are kept for the chart."""


class StressJobKind(Struct, frozen=True):
    """A kind of job.

    rule       its expected end, in words
    share      number of these jobs in every hundred
    task       name of its task
    state      expected final state
    arguments  arguments by the number of the job
    options    options by the number of the job
    fault      what is wrong with a finished job, None if nothing is
    """

    rule: str
    share: int
    task: str
    state: State
    arguments: Callable[[int], dict[str, Any]]
    options: Callable[[int], dict[str, Any]] = lambda _n: {"max_attempts": MANY_ATTEMPTS}
    fault: Callable[[JobRecord, int], str | None] = lambda _job, _n: None


def _failure_count(job: JobRecord) -> int:
    return sum(error.kind is Reason.ERROR for error in job.errors)


def _result_fault(job: JobRecord, number: int) -> str | None:
    return None if job.result == str(number) else f"its result is {job.result}, not {number}"


def _failures_fault(job: JobRecord, number: int) -> str | None:
    times = 1 + number % 2
    if _failure_count(job) != times:
        return f"it failed {_failure_count(job)} times before it completed, not {times}"
    return _result_fault(job, number)


def _attempts_fault(job: JobRecord, _number: int) -> str | None:
    return None if job.attempts == ATTEMPTS else f"it had {job.attempts} attempts, not {ATTEMPTS}"


def _message_fault(job: JobRecord, number: int) -> str | None:
    message = job.errors[-1].message if job.errors else ""
    return None if message == f"{number} cannot be done" else f"it failed with {message!r}"


# fmt: off
KINDS: Mapping[str, StressJobKind] = {
    "plain": StressJobKind(
        "completes", 54, "work", State.COMPLETED,
        lambda n: {"i": n, "seconds": 0.0}, fault=_result_fault,
    ),
    "slow": StressJobKind(
        "completes after half a second", 1, "work", State.COMPLETED,
        lambda n: {"i": n, "seconds": 0.5}, fault=_result_fault,
    ),
    "flaky": StressJobKind(
        "completes after one or two failures", 20, "fail_first", State.COMPLETED,
        lambda n: {"i": n, "times": 1 + n % 2}, fault=_failures_fault,
    ),
    "failing": StressJobKind(
        f"fails after {ATTEMPTS} attempts", 5, "fail_first", State.FAILED,
        lambda n: {"i": n, "times": ATTEMPTS}, lambda _n: {"max_attempts": ATTEMPTS}, fault=_attempts_fault,
    ),
    "hopeless": StressJobKind(
        "fails at once", 5, "give_up", State.FAILED,
        lambda n: {"i": n}, fault=_message_fault,
    ),
    "scheduled": StressJobKind(
        f"completes, delayed by up to {DELAY_MAX:g} s", 10, "work", State.COMPLETED,
        lambda n: {"i": n, "seconds": 0.0},
        lambda n: {"max_attempts": MANY_ATTEMPTS, "delay": 0.5 + n % 100 / 100 * (DELAY_MAX - 0.5)},
        fault=_result_fault,
    ),
    "spawning": StressJobKind(
        f"completes and enqueues {SPAWNED_JOBS} jobs", 3, "spawn", State.COMPLETED,
        lambda n: {"i": n}, fault=_result_fault,
    ),
    "canceled": StressJobKind(
        "is canceled before it is due", 2, "work", State.CANCELED,
        lambda n: {"i": n, "seconds": 0.0}, lambda _n: {"delay": 3_600.0},
    ),
}
SPAWN = StressJobKind("completes", 0, "noop", State.COMPLETED, lambda n: {"i": n}, fault=_result_fault)
# fmt: on
MIX = [name for name, kind in KINDS.items() for _ in range(kind.share)]


def kind_of(number: int) -> str:
    """The kind of a job. 37 and 100 are coprime, so every hundred jobs has each kind by its share, mixed."""
    return MIX[number * 37 % len(MIX)]


def expected_kinds(jobs: int) -> dict[str, str]:
    """The kind of every expected job, by id."""
    kinds = {}
    for number in range(jobs):
        kinds[_job_id(number)] = name = kind_of(number)
        if name == "spawning":
            kinds |= {f"{_job_id(number)}-{child}": "spawned" for child in range(SPAWNED_JOBS)}
    return kinds


async def run_stress(store: BenchStore, jobs: int, show_progress: Callable[[str], None]) -> Stress:
    """Enqueue all jobs while workers run and are killed, then check every job."""
    expected, progress = expected_kinds(jobs), _StressRun()
    async with WorkerProcesses(store) as workers:
        await workers.start_working(WORKERS, _options())
        enqueueing = asyncio.create_task(enqueue(store, jobs))
        watching = asyncio.create_task(progress.watch(store, workers, len(expected), show_progress))
        try:
            await asyncio.gather(enqueueing, watching)
        finally:
            enqueueing.cancel()
            watching.cancel()
    seconds = progress.seconds
    show_progress("checking every job")
    totals = await _totals(store)
    accounts, faults = await check_jobs(store, expected)
    return Stress(
        jobs=len(expected),
        queues=QUEUES,
        workers=WORKERS,
        killed=progress.killed,
        seconds=seconds,
        totals=totals,
        accounts=accounts,
        faults=[*count_faults(totals, len(expected)), *faults][:FAULTS_MAX],
        timeline=[*progress.timeline[:: 1 + len(progress.timeline) // TIMELINE_MAX], *progress.timeline[-1:]],
    )


class _StressRun:
    """The course of the test: jobs by state over time, and the number of killed workers."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.killed = 0
        self.timeline: list[tuple[float, Mapping[str, int]]] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    async def watch(
        self, store: BenchStore, workers: WorkerProcesses, jobs: int, show_progress: Callable[[str], None]
    ) -> None:
        """Watch until all jobs have finished or none finishes for `STALL_TIMEOUT`; kill workers meanwhile."""
        finished, last = -1, self.seconds
        while finished < jobs and self.seconds - last < STALL_TIMEOUT:
            states = await _state_counts(store)
            before, finished = finished, sum(states.get(state, 0) for state in TERMINAL)
            self.timeline.append((round(self.seconds, 2), states))
            show_progress(f"{finished:,} of {jobs:,} jobs finished, {self.killed} workers killed")
            if finished != before:
                last = self.seconds
            if self.killed < KILLS and jobs * self.killed / KILLS < finished < jobs:
                await workers.kill(workers.processes[0])
                self.killed += 1
                await workers.start_working(1, _options())
            await asyncio.sleep(POLL_INTERVAL)


def _options() -> WorkerOptions:
    return WorkerOptions(id="bench", queues=tuple(_queue_names()), grace=1.0)


async def enqueue(store: BenchStore, jobs: int) -> None:
    for start in range(0, jobs, CALL_SIZE):
        numbers = range(start, min(jobs, start + CALL_SIZE))
        await store.app.enqueue_many([_new_call(store, number) for number in numbers])
    for queue in _queue_names():
        await store.app.cancel(query=f"queue:{quote(queue)} state:scheduled due>+10m")


def _new_call(store: BenchStore, number: int) -> Call[Any]:
    kind = KINDS[kind_of(number)]
    options = {
        "id": _job_id(number),
        "queue": _queue_name(number),
        "max_crashes": MANY_ATTEMPTS,
        **kind.options(number),
    }
    return store.app.tasks[kind.task].using(**options).new(**kind.arguments(number))


async def _state_counts(store: BenchStore) -> dict[str, int]:
    total = Counter[str]()
    for queue, counts in (await store.app.counts()).items():
        if queue.startswith(f"{PREFIX}stress-"):
            total.update(counts)
    return dict(total)


async def _totals(store: BenchStore) -> dict[str, int]:
    totals = Counter[str]()
    for queue, counters in (await store.app.totals()).items():
        if queue.startswith(f"{PREFIX}stress-"):
            totals.update(counters)
    return dict(totals)


def count_faults(totals: Mapping[str, int], jobs: int) -> Iterator[str]:
    """Check the store's own counters: inserted = completed + failed + canceled."""
    counts_by_state = {state: totals.get(state, 0) for state in sorted(TERMINAL)}
    if not totals.get("inserted") == sum(counts_by_state.values()) == jobs:
        counts = ", ".join(f"{count:,} {state}" for state, count in counts_by_state.items())
        yield f"{totals.get('inserted', 0):,} inserted, {counts}: both sums should be {jobs:,}"


async def check_jobs(store: BenchStore, expected: Mapping[str, str]) -> tuple[list[KindResult], list[str]]:
    """Compare every job of the store with the expected ones; returns results by kind, and faults."""
    missing, faults = dict(expected), []
    states = {name: Counter[str]() for name in (*KINDS, "spawned")}
    wrong = Counter[str]()
    async for job in _read_jobs(store):
        name = missing.pop(job.id, None)
        if name is None:
            faults.append(f"job {job.id} was not expected")
            continue
        states[name][job.state] += 1
        if fault := _fault(job, KINDS.get(name, SPAWN)):
            wrong[name] += 1
            faults.append(f"{name} job {job.id}: {fault}; a {name} job {KINDS.get(name, SPAWN).rule}")
    faults += [f"{name} job {job_id} is missing" for job_id, name in missing.items()]
    wrong.update(missing.values())
    counts = Counter(expected.values())
    return [
        KindResult(
            kind=name,
            rule=KINDS.get(name, SPAWN).rule,
            expected=counts[name],
            states=dict(states[name]),
            wrong=wrong[name],
        )
        for name in states
    ], faults


def _fault(job: JobRecord, kind: StressJobKind) -> str | None:
    if job.state is not kind.state:
        return f"it is {job.state}"
    return kind.fault(job, _job_number(job.id))


async def _read_jobs(store: BenchStore) -> AsyncIterator[JobRecord]:
    for queue in _queue_names():
        cursor = None
        while True:
            page = await store.app.list(f"queue:{quote(queue)}", cursor=cursor, limit=PAGE_SIZE)
            for job in page.jobs:
                yield job.record
            cursor = page.cursor
            if cursor is None:
                break


def _queue_names() -> list[str]:
    return [_queue_name(number) for number in range(QUEUES)]


def _queue_name(number: int) -> str:
    return f"{PREFIX}stress-{number % QUEUES}"


def _job_id(number: int) -> str:
    return f"stress-{number:07}"


def _job_number(job_id: str) -> int:
    return int(job_id.split("-")[1])
