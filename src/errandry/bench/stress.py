"""The stress test: jobs of every kind, workers killed with -9 meanwhile, and every job accounted for.

What a job must have come to follows from its number alone, so nothing has to be remembered beside the store.
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
from errandry.bench.tasks import SPAWNED
from errandry.bench.worker_processes import WorkerProcesses
from errandry.core.job import JobRecord
from errandry.core.query import quoted
from errandry.core.state import TERMINAL, Reason, State
from errandry.worker import WorkerOptions

JOBS = 120_000
QUEUES = 16
WORKERS = 4
KILLS = 6
"""How many workers are killed, spread evenly over the work."""
ATTEMPTS = 3
OFTEN = 1_000
"""Attempts and crashes of jobs that must not fail because their workers are killed."""
LATER = 4.0
LOOK = 0.1
STUCK = 60.0
"""So long without a job finished, and the test gives up."""
PAGE = 2_000
CHUNK = 1_000
FAULTS_MAX = 20
POINTS = 300
"""So many of the moments that were looked at are kept, to draw."""


class StressJobKind(Struct, frozen=True):
    """So many of a hundred jobs, the task they are, what they are given, and what must become of them."""

    rule: str
    share: int
    task: str
    state: State
    arguments: Callable[[int], dict[str, Any]]
    options: Callable[[int], dict[str, Any]] = lambda _n: {"max_attempts": OFTEN}
    fault: Callable[[JobRecord, int], str | None] = lambda _job, _n: None


def _failed_times(job: JobRecord) -> int:
    return sum(error.kind is Reason.ERROR for error in job.errors)


def _result(job: JobRecord, number: int) -> str | None:
    return None if job.result == str(number) else f"its result is {job.result}, not {number}"


def _stumbled(job: JobRecord, number: int) -> str | None:
    times = 1 + number % 2
    if _failed_times(job) != times:
        return f"it failed {_failed_times(job)} times before, not {times}"
    return _result(job, number)


def _exhausted(job: JobRecord, _number: int) -> str | None:
    return None if job.attempts == ATTEMPTS else f"it was tried {job.attempts} times, not {ATTEMPTS}"


def _given_up(job: JobRecord, number: int) -> str | None:
    said = job.errors[-1].message if job.errors else ""
    return None if said == f"{number} cannot be done" else f"it failed with {said!r}"


# fmt: off
KINDS: Mapping[str, StressJobKind] = {
    "plain": StressJobKind(
        "completes", 54, "work", State.COMPLETED,
        lambda n: {"i": n, "seconds": 0.0}, fault=_result,
    ),
    "slow": StressJobKind(
        "completes after half a second", 1, "work", State.COMPLETED,
        lambda n: {"i": n, "seconds": 0.5}, fault=_result,
    ),
    "flaky": StressJobKind(
        "completes after one or two failures", 20, "stumble", State.COMPLETED,
        lambda n: {"i": n, "times": 1 + n % 2}, fault=_stumbled,
    ),
    "failing": StressJobKind(
        f"fails after {ATTEMPTS} attempts", 5, "stumble", State.FAILED,
        lambda n: {"i": n, "times": ATTEMPTS}, lambda _n: {"max_attempts": ATTEMPTS}, fault=_exhausted,
    ),
    "hopeless": StressJobKind(
        "fails at once", 5, "give_up", State.FAILED,
        lambda n: {"i": n}, fault=_given_up,
    ),
    "scheduled": StressJobKind(
        f"completes, at most {LATER:g} s later", 10, "work", State.COMPLETED,
        lambda n: {"i": n, "seconds": 0.0},
        lambda n: {"max_attempts": OFTEN, "delay": 0.5 + n % 100 / 100 * (LATER - 0.5)}, fault=_result,
    ),
    "spawning": StressJobKind(
        f"completes, and enqueues {SPAWNED} more", 3, "spawn", State.COMPLETED,
        lambda n: {"i": n}, fault=_result,
    ),
    "canceled": StressJobKind(
        "is canceled before its hour has come", 2, "work", State.CANCELED,
        lambda n: {"i": n, "seconds": 0.0}, lambda _n: {"delay": 3_600.0},
    ),
}
SPAWN = StressJobKind("completes", 0, "noop", State.COMPLETED, lambda n: {"i": n}, fault=_result)
# fmt: on
MIX = [name for name, kind in KINDS.items() for _ in range(kind.share)]


def kind_of(number: int) -> str:
    """37 has no divisor in common with 100: the kinds take turns, and each has its share of every hundred."""
    return MIX[number * 37 % len(MIX)]


def expected(jobs: int) -> dict[str, str]:
    """The kind of every job there must be, by its id."""
    found = {}
    for number in range(jobs):
        found[_id(number)] = name = kind_of(number)
        if name == "spawning":
            found |= {f"{_id(number)}-{child}": "spawned" for child in range(SPAWNED)}
    return found


async def stress(place: BenchStore, jobs: int, tell: Callable[[str], None]) -> Stress:
    """Enqueue them all while workers work and are killed; then look at every one."""
    wanted, course = expected(jobs), _StressRun()
    async with WorkerProcesses(place) as crew:
        await crew.at_work(WORKERS, _options())
        enqueueing = asyncio.create_task(enqueue(place, jobs))
        watching = asyncio.create_task(course.watch(place, crew, len(wanted), tell))
        try:
            await asyncio.gather(enqueueing, watching)
        finally:
            enqueueing.cancel()
            watching.cancel()
    seconds = course.seconds
    tell("looking at every job")
    totals = await _totals(place)
    accounts, faults = await accounted(place, wanted)
    return Stress(
        jobs=len(wanted),
        queues=QUEUES,
        workers=WORKERS,
        killed=course.killed,
        seconds=seconds,
        totals=totals,
        accounts=accounts,
        faults=[*conserved(totals, len(wanted)), *faults][:FAULTS_MAX],
        timeline=[*course.timeline[:: 1 + len(course.timeline) // POINTS], *course.timeline[-1:]],
    )


class _StressRun:
    """How it goes: what is in which state when, and the workers that were killed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.killed = 0
        self.timeline: list[tuple[float, Mapping[str, int]]] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    async def watch(
        self, place: BenchStore, crew: WorkerProcesses, jobs: int, tell: Callable[[str], None]
    ) -> None:
        """Until all have finished, or nothing happens any more. Kill a worker now and then."""
        finished, last = -1, self.seconds
        while finished < jobs and self.seconds - last < STUCK:
            states = await _states(place)
            before, finished = finished, sum(states.get(state, 0) for state in TERMINAL)
            self.timeline.append((round(self.seconds, 2), states))
            tell(f"{finished:,} of {jobs:,} jobs finished, {self.killed} workers killed")
            if finished != before:
                last = self.seconds
            if self.killed < KILLS and jobs * self.killed / KILLS < finished < jobs:
                await crew.kill(crew.hands[0])
                self.killed += 1
                await crew.at_work(1, _options())
            await asyncio.sleep(LOOK)


def _options() -> WorkerOptions:
    return WorkerOptions(id="bench", queues=tuple(_queues()), grace=1.0)


async def enqueue(place: BenchStore, jobs: int) -> None:
    for start in range(0, jobs, CHUNK):
        numbers = range(start, min(jobs, start + CHUNK))
        await place.app.enqueue_many([_request(place, number) for number in numbers])
    for queue in _queues():
        await place.app.cancel(query=f"queue:{quoted(queue)} state:scheduled due>+10m")


def _request(place: BenchStore, number: int) -> Call[Any]:
    kind = KINDS[kind_of(number)]
    options = {"id": _id(number), "queue": _queue(number), "max_crashes": OFTEN, **kind.options(number)}
    return place.app.tasks[kind.task].using(**options).new(**kind.arguments(number))


async def _states(place: BenchStore) -> dict[str, int]:
    states = Counter[str]()
    for queue, found in (await place.app.counts()).items():
        if queue.startswith(f"{PREFIX}stress-"):
            states.update(found)
    return dict(states)


async def _totals(place: BenchStore) -> dict[str, int]:
    totals = Counter[str]()
    for queue, found in (await place.app.totals()).items():
        if queue.startswith(f"{PREFIX}stress-"):
            totals.update(found)
    return dict(totals)


def conserved(totals: Mapping[str, int], jobs: int) -> Iterator[str]:
    """Inserted = completed + failed + canceled, by what the store itself has counted."""
    ended = {state: totals.get(state, 0) for state in sorted(TERMINAL)}
    if not totals.get("inserted") == sum(ended.values()) == jobs:
        found = ", ".join(f"{count:,} {state}" for state, count in ended.items())
        yield f"{totals.get('inserted', 0):,} inserted, {found}: all should be {jobs:,}"


async def accounted(place: BenchStore, wanted: Mapping[str, str]) -> tuple[list[KindResult], list[str]]:
    """What became of each kind, and what is not as it should be."""
    left, faults = dict(wanted), []
    states = {name: Counter[str]() for name in (*KINDS, "spawned")}
    wrong = Counter[str]()
    async for job in _all(place):
        name = left.pop(job.id, None)
        if name is None:
            faults.append(f"job {job.id} should not be there")
            continue
        states[name][job.state] += 1
        if fault := _fault(job, KINDS.get(name, SPAWN)):
            wrong[name] += 1
            faults.append(f"{name} job {job.id} should be one that {KINDS.get(name, SPAWN).rule}: {fault}")
    faults += [f"{name} job {job_id} is gone" for job_id, name in left.items()]
    wrong.update(left.values())
    counts = Counter(wanted.values())
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
    return kind.fault(job, _number(job.id))


async def _all(place: BenchStore) -> AsyncIterator[JobRecord]:
    for queue in _queues():
        cursor = None
        while True:
            page = await place.app.list(f"queue:{quoted(queue)}", cursor=cursor, limit=PAGE)
            for job in page.jobs:
                yield job
            cursor = page.cursor
            if cursor is None:
                break


def _queues() -> list[str]:
    return [_queue(number) for number in range(QUEUES)]


def _queue(number: int) -> str:
    return f"{PREFIX}stress-{number % QUEUES}"


def _id(number: int) -> str:
    return f"stress-{number:07}"


def _number(job_id: str) -> int:
    return int(job_id.split("-")[1])
