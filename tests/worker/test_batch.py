"""Batch handlers: one call for many jobs, an outcome for each. Real time, but little of it."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, Job, JobContext, Retry, State, Task, current
from errandry.api.app import CallNext
from errandry.core.answer import Claims
from errandry.core.command import CancelJobs, Claim, Upkeep
from errandry.core.job import NewJob
from errandry.core.state import Reason
from errandry.errors import InvalidArguments, InvalidValue, JobFailed
from errandry.testing import FakeClock, drain, in_memory
from tests.pace import PATIENCE
from tests.store.server import server
from tests.worker import batch_tasks
from tests.working import burst, outlive, reached, until, working

Calls = list[list[int]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    """On every store."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:////{tmp_path}/errandry.db"}
    with ExitStack() as stack:
        url = urls.get(request.param) or stack.enter_context(server().lent())
        async with Errandry(url) as jobs:
            yield jobs


@pytest.fixture
async def apart() -> AsyncIterator[Errandry]:
    """Handlers in processes."""
    with in_memory(batch_tasks.jobs):
        yield batch_tasks.jobs
        await batch_tasks.jobs.engine.stop()


def numbers(jobs: Errandry, kind: str, calls: Calls, **options: Any) -> Task[[int], int]:
    """A task that notes its calls and says what `batch_tasks.said` says."""

    async def later(numbers: list[int]) -> list[batch_tasks.Said]:
        calls.append(numbers)
        return [batch_tasks.said(number) for number in numbers]

    def now(numbers: list[int]) -> list[batch_tasks.Said]:
        calls.append(numbers)
        return [batch_tasks.said(number) for number in numbers]

    given: dict[str, Any] = {"name": "numbers", "batch": 10, **options}
    task: Task[[int], int] = jobs.task(**given)(later if kind == "async" else now)
    return task


async def enqueued(task: Task[[int], Any], *values: int) -> list[Job[Any]]:
    app = task.app
    assert isinstance(app, Errandry)
    return await app.enqueue_many([task.new(value) for value in values])


async def results(jobs: list[Job[Any]]) -> list[Any]:
    return [await job.result(30) for job in jobs]


# One call.


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_one_call_is_for_as_many_jobs_as_there_are(stored: Errandry, kind: str) -> None:
    calls: Calls = []
    made = await enqueued(numbers(stored, kind, calls), *range(25))

    await burst(stored)

    assert await results(made) == [2 * n for n in range(25)]
    assert sorted(calls) == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


@pytest.mark.parametrize("task", [batch_tasks.doubled, batch_tasks.doubled_async], ids=["plain", "async"])
async def test_batches_run_in_processes(apart: Errandry, task: Task[[int], int]) -> None:
    made = await enqueued(task, *range(25))

    await burst(apart, children=1)

    assert await results(made) == [2 * n for n in range(25)]


@pytest.mark.parametrize("concurrency", [1, 2, 7])
async def test_a_batch_takes_one_slot_and_is_full_if_it_can_be(live: Errandry, concurrency: int) -> None:
    running, most, calls, full = 0, 0, list[int](), asyncio.Event()

    @live.task(batch=10)
    async def work(numbers: list[int]) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        calls.append(len(numbers))
        if running == concurrency:
            full.set()
        await full.wait()
        await asyncio.sleep(0.002)
        running -= 1

    await enqueued(work, *range(200))
    await burst(live, concurrency=concurrency)

    assert most == concurrency
    assert calls == [10] * 20


async def test_the_most_urgent_job_decides_which_task_is_next(live: Errandry) -> None:
    order: list[str] = []

    @live.task(batch=3)
    async def many(names: list[str]) -> None:
        order.append("".join(names))

    @live.task
    async def one(name: str) -> None:
        order.append(name)

    requests = [many.using(priority=1).new("b"), one.using(priority=2).new("c")]
    requests += [many.using(priority=p).new(n) for n, p in (("e", 4), ("a", 0), ("d", 3), ("g", 9))]
    requests += [one.using(priority=5).new("f")]
    await live.enqueue_many(requests)
    await burst(live, concurrency=1)

    assert order == ["abd", "c", "eg", "f"]


async def test_items_are_checked_when_they_are_enqueued_and_read_as_their_type(live: Errandry) -> None:
    @dataclass
    class Row:
        name: str

    @dataclass
    class Kept:
        length: int

    @live.task(batch=5)
    async def store(ctx: JobContext, rows: list[Row]) -> list[Kept | Retry]:
        return [Kept(len(row.name)) for row in rows]

    made = [await store.enqueue(Row("ada")), await store.enqueue(Row("grace"))]
    with pytest.raises(InvalidArguments, match=r"Expected `str`, got `int` - at `\$.rows.name`"):
        await store.enqueue(Row(5))  # type: ignore[arg-type]
    await burst(live)

    assert await results(made) == [Kept(3), Kept(5)]
    assert await store(JobContext(made[0].record, lambda *_: None), [Row("a")]) == [Kept(1)]


async def test_a_list_of_anything_takes_anything(live: Errandry) -> None:
    @live.task(batch=5)
    async def untyped(values):  # type: ignore[no-untyped-def]
        return values

    @live.task(batch=5)
    async def bare(values: list) -> list:  # type: ignore[type-arg]
        return values

    made = [await task.enqueue(value) for task in (untyped, bare) for value in ([1], {"a": None})]
    await burst(live)

    assert await results(made) == [[1], {"a": None}] * 2


# Outcomes.


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_each_job_has_the_outcome_that_stands_for_it(
    live: Errandry, apart: Errandry, kind: str
) -> None:
    app = apart if kind == "process" else live
    task = batch_tasks.doubled if kind == "process" else numbers(live, kind, [])
    made = await enqueued(task, 1, -1, -2, -3, -4, -5, 7)

    await burst(app)

    records = [(await app.record(job.id)) for job in made]
    assert [(record.state, record.attempts, record.reason) for record in records] == [
        (State.COMPLETED, 1, None),
        (State.SCHEDULED, 1, None),
        (State.SCHEDULED, 0, None),
        (State.FAILED, 1, Reason.UNRECOVERABLE),
        (State.CANCELED, 1, Reason.CANCELED),
        (State.SCHEDULED, 1, None),
        (State.COMPLETED, 1, None),
    ]
    assert [[error.message for error in record.errors] for record in records] == [
        *([], ["not yet"], [], ["never"], ["not wanted"], ["no such number"], []),
    ]


async def test_none_completes_all_without_results(live: Errandry) -> None:
    @live.task(batch=5)
    async def work(numbers: list[int]) -> None: ...

    made = await enqueued(work, 1, 2, 3)
    await burst(live)

    assert await results(made) == [None] * 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "results=2: task work was called for 3 jobs: return one for each"),
        ([1, 2, 3, 4], "results=4: task work was called for 3 jobs: return one for each"),
        (
            {1: 2},
            "results='dict': task work takes batches: return a list with a result for each job, or None",
        ),
        ("abc", "results='str': task work takes batches: return a list with a result for each job, or None"),
    ],
)
async def test_what_does_not_fit_the_jobs_fails_them_all(live: Errandry, value: Any, message: str) -> None:
    @live.task(batch=5)
    async def work(numbers: list[int]) -> Any:
        return value

    made = await enqueued(work, 1, 2, 3)
    await burst(live)

    for job in made:
        record = await live.record(job.id)
        assert (record.state, record.reason) == (State.FAILED, Reason.UNRECOVERABLE)
        assert [error.message for error in record.errors] == [message]


async def test_a_list_of_another_length_from_a_process_fails_them_all(apart: Errandry) -> None:
    made = await enqueued(batch_tasks.short, 1, 2, 3)
    await burst(apart)

    for job in made:
        with pytest.raises(JobFailed, match="results=2: task short was called for 3 jobs"):
            await job.result(30)


async def test_a_result_that_cannot_be_kept_fails_only_its_own_job(live: Errandry) -> None:
    @live.task(batch=5)
    async def work(numbers: list[int]) -> list[Any]:
        return [object() if number == 2 else number for number in numbers]

    made = await enqueued(work, 1, 2, 3)
    await burst(live)

    states = [(await job.refresh()).state for job in made]
    assert states == [State.COMPLETED, State.FAILED, State.COMPLETED]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_exception_is_that_of_all_and_logged_once(
    live: Errandry, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: Calls = []

    def fails(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        if len(calls) == 1:
            raise ValueError("no luck")
        return numbers

    async def fails_async(numbers: list[int]) -> list[int]:
        return fails(numbers)

    work = live.task(name="work", batch=5, backoff=0.01)(fails_async if kind == "async" else fails)
    made = await enqueued(work, 1, 2, 3)
    async with working(live):
        assert await results(made) == [1, 2, 3]

    assert [len(call) for call in calls] == [3, 3]
    for job in made:
        [error] = job.record.errors
        assert (error.type, error.message) == ("ValueError", "no luck")
        assert "raise ValueError" in error.traceback
    [logged] = [one for one in caplog.records if "raised ValueError" in one.getMessage()]
    assert logged.getMessage() == f"job {made[0].id} and 2 more (work), attempt 1 of 5 raised ValueError"


async def test_a_process_that_dies_is_an_error_of_all_its_jobs(apart: Errandry) -> None:
    made = await enqueued(batch_tasks.dies, 1, 2, 3)
    await burst(apart, children=1)

    for job in made:
        record = await apart.record(job.id)
        assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.UNRECOVERABLE, 0)
        assert [error.message for error in record.errors] == ["the process exited with code 3"]


async def test_arguments_that_no_longer_fit_fail_their_job_and_the_others_run(live: Errandry) -> None:
    calls: Calls = []
    task = numbers(live, "async", calls)
    made = await enqueued(task, 1)
    await live.insert([NewJob(id="bad", task="numbers", payload='{"numbers":"x"}')])
    made += await enqueued(task, 2)

    await burst(live)

    assert calls == [[1, 2]]
    assert await results(made) == [2, 4]
    record = await live.record("bad")
    assert (record.state, record.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)


# Context and middleware.


async def test_every_job_has_a_context_and_what_the_call_says_goes_to_all(live: Errandry) -> None:
    seen: list[Any] = []

    @live.task(batch=5)
    async def work(ctx: JobContext, numbers: list[int]) -> None:
        seen.append([(one.id, one.attempt, one.fence) for one in ctx.jobs])
        seen.append((ctx.id, ctx.attempt, ctx.canceled, current() is ctx))
        with pytest.raises(TypeError, match=r"use|ctx\.jobs\[n\]\.fence"):
            _ = ctx.fence
        for one, number in zip(ctx.jobs, numbers, strict=True):
            one.progress(number / 10)
            one.log(f"number {number}")
        logging.getLogger("any").warning("for all")

    made = await enqueued(work, 1, 2)
    await burst(live)

    records = [await live.record(job.id) for job in made]
    assert seen == [
        [(record.id, 1, record.fence) for record in records],
        (records[0].id, 1, False, True),
    ]
    assert [record.progress and record.progress.share for record in records] == [0.1, 0.2]
    lines = [[line.text for line in record.logs] for record in records]
    assert lines == [["number 1", "for all"], ["number 2", "for all"]]


async def test_what_is_noted_in_a_process_goes_to_its_job(apart: Errandry) -> None:
    made = await enqueued(batch_tasks.doubled, 3, 4)
    await burst(apart)

    records = [await apart.record(job.id) for job in made]
    assert [record.progress and record.progress.text for record in records] == ["number 3", "number 4"]
    assert [[line.text for line in record.logs] for record in records] == [["2 numbers"]] * 2


async def test_a_job_without_others_has_itself_for_jobs(live: Errandry) -> None:
    @live.task
    async def work(ctx: JobContext) -> bool:
        return ctx.jobs == (ctx,)

    job = await work.enqueue()
    await burst(live)

    assert await job.result(30)


async def test_middleware_wraps_the_call(live: Errandry) -> None:
    seen: list[int] = []

    @live.middleware
    async def plus_one(ctx: JobContext, call_next: CallNext) -> Any:
        seen.append(len(ctx.jobs))
        return [value + 1 for value in await call_next(ctx)]

    made = await enqueued(numbers(live, "async", []), 1, 2, 3)
    await burst(live)

    assert seen == [3]
    assert await results(made) == [3, 5, 7]


# Stopping.


class Held:
    """A task that goes on until it is let go, and notes what it saw of its jobs."""

    def __init__(self, jobs: Errandry, kind: str, **options: Any) -> None:
        self.begun, self.open, self.left = threading.Event(), threading.Event(), threading.Event()
        self.contexts: tuple[JobContext, ...] = ()
        handler = self._later if kind == "async" else self._now
        given: dict[str, Any] = {"name": "held", "batch": 5, **options}
        self.task: Task[[int], int] = jobs.task(**given)(handler)

    async def _later(self, ctx: JobContext, numbers: list[int]) -> list[int]:
        self._begin(ctx)
        try:
            while not self.open.is_set():  # noqa: ASYNC110 - a thread may open it
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return numbers

    def _now(self, ctx: JobContext, numbers: list[int]) -> list[int]:
        self._begin(ctx)
        while not self.open.is_set():
            if ctx.wait(0.002):
                self.left.set()
                break
        return numbers

    def _begin(self, ctx: JobContext) -> None:
        self.contexts = ctx.jobs
        self.begun.set()

    async def begin(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_one_canceled_in_a_running_batch_is_canceled_and_the_others_go_on(
    stored: Errandry, kind: str
) -> None:
    held = Held(stored, kind)
    made = await enqueued(held.task, 1, 2, 3)
    async with working(stored):
        await held.begin()
        await made[1].cancel()
        async with asyncio.timeout(PATIENCE):
            while not held.contexts[1].canceled:  # noqa: ASYNC110 - the worker's other thread tells
                await asyncio.sleep(0.005)
        assert [one.canceled for one in held.contexts] == [False, True, False]
        held.open.set()
        ends = [(await job.wait(PATIENCE)).state for job in made]

    assert ends == [State.COMPLETED, State.CANCELED, State.COMPLETED]
    assert not held.left.is_set()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_call_whose_jobs_are_all_canceled_is_stopped(stored: Errandry, kind: str) -> None:
    held = Held(stored, kind)
    made = await enqueued(held.task, 1, 2, 3)
    async with working(stored):
        await held.begin()
        for job in made:
            await job.cancel()
        ends = [(await job.wait(PATIENCE)).state for job in made]

    assert ends == [State.CANCELED] * 3
    assert held.left.is_set()


async def test_one_canceled_in_a_process_is_told_and_the_others_go_on(
    apart: Errandry, tmp_path: Path
) -> None:
    made = [await batch_tasks.held.enqueue(str(tmp_path)) for _ in range(3)]
    async with working(apart, children=1):
        await seen(tmp_path / "pid")
        await made[1].cancel()
        await seen(tmp_path / "stopped", "1")
        (tmp_path / "open").touch()
        ends = [await job.wait(PATIENCE) for job in made]

    assert [job.state for job in ends] == [State.COMPLETED, State.CANCELED, State.COMPLETED]
    assert await made[2].result(30) == "2 of 3"


async def test_all_canceled_in_a_process_stop_it(apart: Errandry, tmp_path: Path) -> None:
    made = [await batch_tasks.held.enqueue(str(tmp_path)) for _ in range(3)]
    async with working(apart, children=1):
        await seen(tmp_path / "pid")
        await apart.engine.submit(CancelJobs(ids=tuple(job.id for job in made)))
        ends = [(await job.wait(PATIENCE)).state for job in made]

    assert ends == [State.CANCELED] * 3


async def seen(file: Path, text: str | None = None) -> None:
    """Return when there is such a file, with this text in it."""
    async with asyncio.timeout(PATIENCE):
        while not file.exists() or not file.read_text() or text not in (None, file.read_text()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_shortest_timeout_of_its_jobs_stops_the_call(live: Errandry, kind: str) -> None:
    held = Held(live, kind, max_attempts=1, timeout="1 minute")
    made = await live.enqueue_many([held.task.new(1), held.task.using(timeout=0.05).new(2)])
    async with working(live, grace=PATIENCE):
        ends = [await job.wait(PATIENCE) for job in made]

    assert [(job.state, job.record.reason) for job in ends] == [(State.FAILED, Reason.TIMEOUT)] * 2
    assert {job.record.errors[-1].message for job in ends} == {"the handler ran longer than 0.05 s"}
    assert held.left.is_set()


async def test_a_timeout_kills_the_process_of_a_batch(apart: Errandry) -> None:
    made = await enqueued(batch_tasks.stuck, 1, 2)
    async with working(apart, children=1):
        ends = [await job.wait(PATIENCE) for job in made]

    assert [(job.state, job.record.reason) for job in ends] == [(State.FAILED, Reason.TIMEOUT)] * 2


async def test_a_lost_lease_drops_one_outcome_and_the_others_are_written(live: Errandry) -> None:
    held = Held(live, "async")
    made = await enqueued(held.task, 1, 2, 3)
    async with working(live, renew_every=0.1):
        await held.begin()
        await live.remove(made[0].id, force=True)
        async with asyncio.timeout(PATIENCE):
            while not held.contexts[0].canceled:  # noqa: ASYNC110 - the worker's other thread tells
                await asyncio.sleep(0.005)
        held.open.set()
        ends = [(await job.wait(PATIENCE)).state for job in made[1:]]

    assert ends == [State.COMPLETED] * 2
    assert not held.left.is_set()


async def test_a_stop_gives_all_of_a_running_batch_back(live: Errandry) -> None:
    held = Held(live, "async")
    made = await enqueued(held.task, 1, 2, 3)
    async with working(live, grace=0.0):
        await held.begin()

    records = [await live.record(job.id) for job in made]
    assert [(record.state, record.attempts) for record in records] == [(State.WAITING, 0)] * 3


# Lingering.


class Lingering:
    """A task whose batches of three wait for a minute for others."""

    def __init__(self, jobs: Errandry, **options: Any) -> None:
        self.jobs, self.calls = jobs, list[list[int]]()
        given: dict[str, Any] = {"name": "lingering", "batch": 3, "linger": "1 minute", **options}
        self.task: Task[[int], int] = jobs.task(**given)(self._call)

    async def _call(self, numbers: list[int]) -> list[int]:
        self.calls.append(numbers)
        return numbers

    async def claimed(self, *made: Job[Any]) -> None:
        for job in made:
            await reached(self.jobs, job.id, State.CLAIMED)


async def test_a_batch_that_lingers_is_called_when_it_is_full(stored: Errandry) -> None:
    lingering = Lingering(stored)
    async with working(stored):
        first = await enqueued(lingering.task, 1)
        await lingering.claimed(*first)
        second = await enqueued(lingering.task, 2)
        await lingering.claimed(*second)
        assert lingering.calls == []
        third = await enqueued(lingering.task, 3, 4)
        assert await results(first + second + third[:1]) == [1, 2, 3]
        await lingering.claimed(third[1])

    assert lingering.calls == [[1, 2, 3]]
    record = await stored.record(third[1].id)
    assert (record.state, record.attempts) == (State.WAITING, 0)  # a stop does not wait for linger


async def test_a_batch_that_lingers_is_called_when_its_time_is_up(live: Errandry) -> None:
    lingering = Lingering(live, linger="50ms")
    async with working(live):
        made = await enqueued(lingering.task, 1, 2)
        assert await results(made) == [1, 2]

    assert lingering.calls == [[1, 2]]
    began = [(await live.record(job.id)) for job in made]
    assert all((one.started_at or 0.0) - (began[0].claimed_at or 0.0) >= 0.045 for one in began)


async def test_a_lingering_batch_fills_while_no_other_slot_is_free(live: Errandry) -> None:
    lingering = Lingering(live)
    async with working(live, concurrency=1):
        made = await enqueued(lingering.task, 1)
        await lingering.claimed(*made)
        made += await enqueued(lingering.task, 2, 3)
        assert await results(made) == [1, 2, 3]

    assert lingering.calls == [[1, 2, 3]]


async def test_one_canceled_while_it_lingers_never_begins(live: Errandry) -> None:
    lingering = Lingering(live)
    async with working(live):
        made = await enqueued(lingering.task, 1)
        await lingering.claimed(*made)
        await made[0].cancel()
        await reached(live, made[0].id, State.CANCELED)
        made += await enqueued(lingering.task, 2, 3)
        assert await results(made[1:]) == [2, 3]

    assert lingering.calls == [[2, 3]]
    assert (await live.record(made[0].id)).state is State.CANCELED


async def test_leases_are_kept_while_a_batch_lingers(jobs: Errandry, clock: FakeClock) -> None:
    lingering = Lingering(jobs)
    async with working(jobs, lease=0.3):
        [made] = await enqueued(lingering.task, 1)
        await lingering.claimed(made)
        await outlive(jobs, clock, made.id, lease=0.3)
        assert lingering.calls == []
        await enqueued(lingering.task, 2, 3)
        assert await made.result(PATIENCE) == 1

    assert ((await jobs.record(made.id)).attempts, lingering.calls) == (1, [[1, 2, 3]])


async def test_a_burst_lingers_and_ends(live: Errandry) -> None:
    lingering = Lingering(live, linger="20ms")
    made = await enqueued(lingering.task, 1, 2, 3, 4)

    await burst(live)

    assert lingering.calls == [[1, 2, 3], [4]]
    assert await results(made) == [1, 2, 3, 4]


# Suspects, slots, drains.


async def test_suspects_run_alone(live: Errandry) -> None:
    calls: Calls = []
    task = numbers(live, "async", calls, max_crashes=5)
    made = await enqueued(task, 1, 2, 3)
    claims = await live.engine.submit(Claim(worker="dead", nonce="n", limit=2, lease=0.001))
    assert isinstance(claims, Claims)
    await asyncio.sleep(0.002)
    await live.engine.submit(Upkeep())
    made += await enqueued(task, 4)

    await burst(live)

    assert await results(made) == [2, 4, 6, 8]
    assert sorted(map(tuple, calls)) == [(1,), (2,), (3, 4)]


async def test_jobs_claimed_ahead_share_a_call(live: Errandry) -> None:
    held = Held(live, "async", batch=2)
    made = await enqueued(held.task, *range(6))
    async with working(live, concurrency=1, prefetch=3):
        await held.begin()
        await until(live, made[4].id, lambda record: record.state is State.CLAIMED)
        assert (await live.counts())["default"] == {"running": 2, "claimed": 3, "waiting": 1}
        held.open.set()
        assert await results(made) == list(range(6))


async def test_a_beat_counts_a_batch_as_one_slot_and_why_knows(live: Errandry) -> None:
    held = Held(live, "async")
    await enqueued(held.task, *range(5))
    async with working(live, concurrency=2, beat_every=0.01):
        await held.begin()
        async with asyncio.timeout(PATIENCE):
            while (await live.workers())[0].beat.running != 1:  # noqa: ASYNC110 - no event tells of a beat
                await asyncio.sleep(0.005)
        [info] = await live.workers()
        await live.queue("other").pause()
        [other] = await enqueued(held.task.using(queue="other"), 1)
        why = await live.why(other.id)
        held.open.set()

    assert [(batch.task, batch.size, batch.start) for batch in info.beat.batches] == [("held", 5, True)]
    assert [str(one.code) for one in why.reasons] == ["queue_paused"]  # one slot of two is taken, not five


async def test_drain_runs_batches_without_lingering(jobs: Errandry, clock: FakeClock) -> None:
    calls: Calls = []
    made = await enqueued(numbers(jobs, "async", calls, batch=3, linger="1 minute"), 1, 2, -2, 4)

    finished = await drain(jobs, until_idle=False)

    assert calls == [[1, 2, -2], [4]]
    assert [job.id for job in finished] == [made[0].id, made[1].id, made[3].id]


async def test_drain_runs_process_batches_here(apart: Errandry) -> None:
    made = await enqueued(batch_tasks.doubled, 1, 2)

    await drain(apart)

    assert await results(made) == [2, 4]


# What is refused.


def refused() -> Iterator[tuple[dict[str, Any], Any, str]]:
    async def fine(rows: list[int]) -> None: ...

    async def none() -> None: ...

    async def two(rows: list[int], others: list[int]) -> None: ...

    async def no_list(row: int) -> None: ...

    async def a_default(rows: list[int] = []) -> None: ...  # noqa: B006 - it is refused

    async def only_context(ctx: JobContext) -> None: ...

    async def yields(rows: list[int]) -> AsyncIterator[int]:
        yield 1

    def generates(rows: list[int]) -> Iterator[int]:
        yield 1

    for batch in (0, -1, 1_001, 2.5, "50", True, None):
        yield {"batch": batch}, fine, r"batch=.*: must be a whole number from 1 to 1,000"
    yield {"linger": "1s"}, fine, r"linger='1s': is for tasks that take batches: say batch= too"
    yield {"batch": 5, "linger": -1}, fine, "linger=-1"
    yield {"batch": 5, "linger": "2 minutes"}, fine, r"linger='2 minutes': must be at most 60 s"
    for handler in (none, two, only_context):
        yield {"batch": 5}, handler, "a batch handler takes a list of what its jobs were enqueued with"
    yield {"batch": 5}, no_list, "task no_list='row': is no list"
    yield {"batch": 5}, a_default, "task a_default='rows': has a default"
    yield {"batch": 5}, yields, "is a generator"
    yield {}, generates, "is a generator"


@pytest.mark.parametrize(("options", "handler", "message"), list(refused()))
def test_what_makes_no_sense_is_refused_where_it_is_declared(
    live: Errandry, options: dict[str, Any], handler: Any, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        live.task(**options)(handler)


async def test_a_type_declared_after_the_handler_is_found(live: Errandry) -> None:
    @live.task(batch=5)
    async def late(rows: "list[Late]") -> None: ...

    job = await late.enqueue(Late("x"))
    await burst(live)

    assert (await job.refresh()).state is State.COMPLETED


@dataclass
class Late:
    name: str
