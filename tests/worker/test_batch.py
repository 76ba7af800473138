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
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import outlast_lease, run_burst, running_worker, wait_for_job, wait_for_state
from tests.store.server import server
from tests.worker import batch_tasks

Calls = list[list[int]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    """An app on each store."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:////{tmp_path}/errandry.db"}
    with ExitStack() as stack:
        url = urls.get(request.param) or stack.enter_context(server().lend_url())
        async with Errandry(url) as jobs:
            yield jobs


@pytest.fixture
async def process_app() -> AsyncIterator[Errandry]:
    """An app with handlers in child processes."""
    with in_memory(batch_tasks.jobs):
        yield batch_tasks.jobs
        await batch_tasks.jobs.engine.stop()


def numbers(jobs: Errandry, kind: str, calls: Calls, **options: Any) -> Task[[int], int]:
    """A task that records its calls and returns what `batch_tasks.item_result` returns."""

    async def async_handler(numbers: list[int]) -> list[batch_tasks.ItemResult]:
        calls.append(numbers)
        return [batch_tasks.item_result(number) for number in numbers]

    def handler(numbers: list[int]) -> list[batch_tasks.ItemResult]:
        calls.append(numbers)
        return [batch_tasks.item_result(number) for number in numbers]

    all_options: dict[str, Any] = {"name": "numbers", "batch": 10, **options}
    task: Task[[int], int] = jobs.task(**all_options)(async_handler if kind == "async" else handler)
    return task


async def enqueue_all(task: Task[[int], Any], *values: int) -> list[Job[Any]]:
    app = task.app
    assert isinstance(app, Errandry)
    return await app.enqueue_many([task.new(value) for value in values])


async def results(jobs: list[Job[Any]]) -> list[Any]:
    return [await job.result(30) for job in jobs]


# One call for many jobs.


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_one_call_takes_as_many_jobs_as_are_waiting(any_store: Errandry, kind: str) -> None:
    calls: Calls = []
    jobs = await enqueue_all(numbers(any_store, kind, calls), *range(25))

    await run_burst(any_store)

    assert await results(jobs) == [2 * n for n in range(25)]
    assert sorted(calls) == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


@pytest.mark.parametrize("task", [batch_tasks.doubled, batch_tasks.doubled_async], ids=["plain", "async"])
async def test_batches_run_in_processes(process_app: Errandry, task: Task[[int], int]) -> None:
    jobs = await enqueue_all(task, *range(25))

    await run_burst(process_app, process_slots=1)

    assert await results(jobs) == [2 * n for n in range(25)]


@pytest.mark.parametrize("concurrency", [1, 2, 7])
async def test_a_batch_takes_one_slot_and_is_filled_if_enough_jobs_wait(
    live: Errandry, concurrency: int
) -> None:
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

    await enqueue_all(work, *range(200))
    await run_burst(live, concurrency=concurrency)

    assert most == concurrency
    assert calls == [10] * 20


async def test_the_most_urgent_job_decides_which_task_runs_next(live: Errandry) -> None:
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
    await run_burst(live, concurrency=1)

    assert order == ["abd", "c", "eg", "f"]


async def test_items_are_checked_when_they_are_enqueued_and_read_as_their_type(live: Errandry) -> None:
    @dataclass
    class Row:
        name: str

    @dataclass
    class Stored:
        length: int

    @live.task(batch=5)
    async def store(ctx: JobContext, rows: list[Row]) -> list[Stored | Retry]:
        return [Stored(len(row.name)) for row in rows]

    jobs = [await store.enqueue(Row("ada")), await store.enqueue(Row("grace"))]
    with pytest.raises(InvalidArguments, match=r"argument rows\.name=5: must be str, not int"):
        await store.enqueue(Row(5))  # type: ignore[arg-type]
    await run_burst(live)

    assert await results(jobs) == [Stored(3), Stored(5)]
    assert await store(JobContext(jobs[0].record, lambda _: jobs[0], lambda *_: None), [Row("a")]) == [
        Stored(1)
    ]


async def test_an_untyped_list_accepts_any_items(live: Errandry) -> None:
    @live.task(batch=5)
    async def untyped(values):  # type: ignore[no-untyped-def]
        return values

    @live.task(batch=5)
    async def bare(values: list) -> list:  # type: ignore[type-arg]
        return values

    jobs = [await task.enqueue(value) for task in (untyped, bare) for value in ([1], {"a": None})]
    await run_burst(live)

    assert await results(jobs) == [[1], {"a": None}] * 2


# Outcomes.


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_each_job_has_the_outcome_returned_for_it(
    live: Errandry, process_app: Errandry, kind: str
) -> None:
    app = process_app if kind == "process" else live
    task = batch_tasks.doubled if kind == "process" else numbers(live, kind, [])
    jobs = await enqueue_all(task, 1, -1, -2, -3, -4, -5, 7)

    await run_burst(app)

    records = [(await app.client.record(job.id)) for job in jobs]
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
        *([], ["not yet"], [], ["never"], ["not needed"], ["no such number"], []),
    ]


async def test_none_completes_all_jobs_without_results(live: Errandry) -> None:
    @live.task(batch=5)
    async def work(numbers: list[int]) -> None: ...

    jobs = await enqueue_all(work, 1, 2, 3)
    await run_burst(live)

    assert await results(jobs) == [None] * 3


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
async def test_a_return_value_that_does_not_match_the_jobs_fails_them_all(
    live: Errandry, value: Any, message: str
) -> None:
    @live.task(batch=5)
    async def work(numbers: list[int]) -> Any:
        return value

    jobs = await enqueue_all(work, 1, 2, 3)
    await run_burst(live)

    for job in jobs:
        record = await live.client.record(job.id)
        assert (record.state, record.reason) == (State.FAILED, Reason.UNRECOVERABLE)
        assert [error.message for error in record.errors] == [message]


async def test_a_list_of_another_length_from_a_process_fails_them_all(process_app: Errandry) -> None:
    jobs = await enqueue_all(batch_tasks.short, 1, 2, 3)
    await run_burst(process_app)

    for job in jobs:
        with pytest.raises(JobFailed, match="results=2: task short was called for 3 jobs"):
            await job.result(30)


async def test_a_result_that_cannot_be_stored_fails_only_its_own_job(live: Errandry) -> None:
    @live.task(batch=5)
    async def work(numbers: list[int]) -> list[Any]:
        return [object() if number == 2 else number for number in numbers]

    jobs = await enqueue_all(work, 1, 2, 3)
    await run_burst(live)

    states = [(await job.refresh()).state for job in jobs]
    assert states == [State.COMPLETED, State.FAILED, State.COMPLETED]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_an_exception_is_recorded_for_all_jobs_and_logged_with_one_traceback(
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
    jobs = await enqueue_all(work, 1, 2, 3)
    async with running_worker(live):
        assert await results(jobs) == [1, 2, 3]

    assert [len(call) for call in calls] == [3, 3]
    for job in jobs:
        [error] = job.record.errors
        assert (error.type, error.message) == ("ValueError", "no luck")
        assert "raise ValueError" in error.traceback
    logged = [record for record in caplog.records if "ValueError: no luck" in record.getMessage()]
    assert {vars(record)["job"] for record in logged} == {job.id for job in jobs}
    assert [bool(record.exc_text) for record in logged] == [True, False, False]


async def test_a_process_that_dies_is_an_error_of_all_its_jobs(process_app: Errandry) -> None:
    jobs = await enqueue_all(batch_tasks.dies, 1, 2, 3)
    await run_burst(process_app, process_slots=1)

    for job in jobs:
        record = await process_app.client.record(job.id)
        assert (record.state, record.reason, record.crashes) == (State.FAILED, Reason.UNRECOVERABLE, 0)
        assert [error.message for error in record.errors] == ["the process exited with code 3"]


async def test_arguments_that_no_longer_fit_fail_their_job_and_the_others_run(live: Errandry) -> None:
    calls: Calls = []
    task = numbers(live, "async", calls)
    jobs = await enqueue_all(task, 1)
    await live.client.insert([NewJob(id="bad", task="numbers", payload='{"numbers":"x"}')])
    jobs += await enqueue_all(task, 2)

    await run_burst(live)

    assert calls == [[1, 2]]
    assert await results(jobs) == [2, 4]
    record = await live.client.record("bad")
    assert (record.state, record.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)


# Context and middleware.


async def test_every_job_has_a_context_and_log_lines_of_the_call_go_to_all(live: Errandry) -> None:
    seen: list[Any] = []

    @live.task(batch=5)
    async def work(ctx: JobContext, numbers: list[int]) -> None:
        seen.append([(context.id, context.attempt, context.fence) for context in ctx.jobs])
        seen.append((ctx.id, ctx.attempt, ctx.should_stop, current() is ctx))
        with pytest.raises(TypeError, match=r"use|ctx\.jobs\[n\]\.fence"):
            _ = ctx.fence
        for context, number in zip(ctx.jobs, numbers, strict=True):
            context.progress(number / 10)
            context.log(f"number {number}")
        logging.getLogger("any").warning("for all")

    jobs = await enqueue_all(work, 1, 2)
    await run_burst(live)

    records = [await live.client.record(job.id) for job in jobs]
    assert seen == [
        [(record.id, 1, record.fence) for record in records],
        (records[0].id, 1, False, True),
    ]
    assert [record.progress and record.progress.share for record in records] == [0.1, 0.2]
    lines = [[line.text for line in record.logs] for record in records]
    assert lines == [["number 1", "for all"], ["number 2", "for all"]]


async def test_notes_in_a_child_process_go_to_their_job(process_app: Errandry) -> None:
    jobs = await enqueue_all(batch_tasks.doubled, 3, 4)
    await run_burst(process_app)

    records = [await process_app.client.record(job.id) for job in jobs]
    assert [record.progress and record.progress.text for record in records] == ["number 3", "number 4"]
    assert [[line.text for line in record.logs] for record in records] == [["2 numbers"]] * 2


async def test_the_context_of_a_single_job_lists_only_itself(live: Errandry) -> None:
    @live.task
    async def work(ctx: JobContext) -> bool:
        return ctx.jobs == (ctx,)

    job = await work.enqueue()
    await run_burst(live)

    assert await job.result(30)


async def test_middleware_wraps_the_call(live: Errandry) -> None:
    seen: list[int] = []

    @live.middleware
    async def plus_one(ctx: JobContext, call_next: CallNext) -> Any:
        seen.append(len(ctx.jobs))
        return [value + 1 for value in await call_next(ctx)]

    jobs = await enqueue_all(numbers(live, "async", []), 1, 2, 3)
    await run_burst(live)

    assert seen == [3]
    assert await results(jobs) == [3, 5, 7]


# Stopping.


class Held:
    """A task that runs until `open` is set, and keeps the contexts of its jobs."""

    def __init__(self, jobs: Errandry, kind: str, **options: Any) -> None:
        self.begun, self.open, self.stopped = threading.Event(), threading.Event(), threading.Event()
        self.contexts: tuple[JobContext, ...] = ()
        handler = self._handle_async if kind == "async" else self._handle
        all_options: dict[str, Any] = {"name": "held", "batch": 5, **options}
        self.task: Task[[int], int] = jobs.task(**all_options)(handler)

    async def _handle_async(self, ctx: JobContext, numbers: list[int]) -> list[int]:
        self._note_begin(ctx)
        try:
            while not self.open.is_set():  # noqa: ASYNC110 - a thread may set it
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return numbers

    def _handle(self, ctx: JobContext, numbers: list[int]) -> list[int]:
        self._note_begin(ctx)
        while not self.open.is_set():
            if ctx.sleep_or_stop(0.002):
                self.stopped.set()
                break
        return numbers

    def _note_begin(self, ctx: JobContext) -> None:
        self.contexts = ctx.jobs
        self.begun.set()

    async def wait_until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, WAIT_TIMEOUT)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_job_of_a_running_batch_can_be_canceled_and_the_others_go_on(
    any_store: Errandry, kind: str
) -> None:
    held = Held(any_store, kind)
    jobs = await enqueue_all(held.task, 1, 2, 3)
    async with running_worker(any_store):
        await held.wait_until_begun()
        await jobs[1].cancel()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not held.contexts[1].should_stop:  # noqa: ASYNC110 - the worker's other thread sets it
                await asyncio.sleep(0.005)
        assert [context.should_stop for context in held.contexts] == [False, True, False]
        held.open.set()
        ends = [(await job.wait(WAIT_TIMEOUT)).state for job in jobs]

    assert ends == [State.COMPLETED, State.CANCELED, State.COMPLETED]
    assert not held.stopped.is_set()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_call_whose_jobs_are_all_canceled_is_stopped(any_store: Errandry, kind: str) -> None:
    held = Held(any_store, kind)
    jobs = await enqueue_all(held.task, 1, 2, 3)
    async with running_worker(any_store):
        await held.wait_until_begun()
        for job in jobs:
            await job.cancel()
        ends = [(await job.wait(WAIT_TIMEOUT)).state for job in jobs]

    assert ends == [State.CANCELED] * 3
    assert held.stopped.is_set()


async def test_a_job_of_a_batch_in_a_process_can_be_canceled_and_the_others_go_on(
    process_app: Errandry, tmp_path: Path
) -> None:
    jobs = [await batch_tasks.held.enqueue(str(tmp_path)) for _ in range(3)]
    async with running_worker(process_app, process_slots=1):
        await wait_for_file(tmp_path / "pid")
        await jobs[1].cancel()
        await wait_for_file(tmp_path / "stopped", "1")
        (tmp_path / "open").touch()
        ends = [await job.wait(WAIT_TIMEOUT) for job in jobs]

    assert [job.state for job in ends] == [State.COMPLETED, State.CANCELED, State.COMPLETED]
    assert await jobs[2].result(30) == "2 of 3"


async def test_a_batch_in_a_process_stops_when_all_its_jobs_are_canceled(
    process_app: Errandry, tmp_path: Path
) -> None:
    jobs = [await batch_tasks.held.enqueue(str(tmp_path)) for _ in range(3)]
    async with running_worker(process_app, process_slots=1):
        await wait_for_file(tmp_path / "pid")
        await process_app.engine.submit(CancelJobs(ids=tuple(job.id for job in jobs)))
        ends = [(await job.wait(WAIT_TIMEOUT)).state for job in jobs]

    assert ends == [State.CANCELED] * 3


async def wait_for_file(file: Path, text: str | None = None) -> None:
    """Return when the file has text; if `text` is given, exactly this."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not file.exists() or not file.read_text() or text not in (None, file.read_text()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_shortest_timeout_of_its_jobs_stops_the_call(live: Errandry, kind: str) -> None:
    held = Held(live, kind, max_attempts=1, timeout="1 minute")
    jobs = await live.enqueue_many([held.task.new(1), held.task.using(timeout=0.2).new(2)])
    async with running_worker(live, grace=WAIT_TIMEOUT):
        ends = [await job.wait(WAIT_TIMEOUT) for job in jobs]

    assert [(job.state, job.record.reason) for job in ends] == [(State.FAILED, Reason.TIMEOUT)] * 2
    assert {job.record.errors[-1].message for job in ends} == {"the attempt took longer than 0.2 s"}
    assert held.stopped.is_set()


async def test_a_timeout_kills_the_process_of_a_batch(process_app: Errandry) -> None:
    jobs = await enqueue_all(batch_tasks.stuck, 1, 2)
    async with running_worker(process_app, process_slots=1):
        ends = [await job.wait(WAIT_TIMEOUT) for job in jobs]

    assert [(job.state, job.record.reason) for job in ends] == [(State.FAILED, Reason.TIMEOUT)] * 2


async def test_a_lost_lease_of_one_job_does_not_affect_the_other_outcomes(live: Errandry) -> None:
    held = Held(live, "async")
    jobs = await enqueue_all(held.task, 1, 2, 3)
    async with running_worker(live, renew_every=0.1):
        await held.wait_until_begun()
        await live.remove(jobs[0].id, force=True)
        async with asyncio.timeout(WAIT_TIMEOUT):
            while not held.contexts[0].should_stop:  # noqa: ASYNC110 - the worker's other thread sets it
                await asyncio.sleep(0.005)
        held.open.set()
        ends = [(await job.wait(WAIT_TIMEOUT)).state for job in jobs[1:]]

    assert ends == [State.COMPLETED] * 2
    assert not held.stopped.is_set()


async def test_a_stop_releases_all_jobs_of_a_running_batch(live: Errandry) -> None:
    held = Held(live, "async")
    jobs = await enqueue_all(held.task, 1, 2, 3)
    async with running_worker(live, grace=0.0):
        await held.wait_until_begun()

    records = [await live.client.record(job.id) for job in jobs]
    assert [(record.state, record.attempts) for record in records] == [(State.WAITING, 0)] * 3


# Lingering.


class Lingering:
    """A task with batches of three jobs that linger for a minute."""

    def __init__(self, jobs: Errandry, **options: Any) -> None:
        self.app, self.calls = jobs, list[list[int]]()
        all_options: dict[str, Any] = {"name": "lingering", "batch": 3, "linger": "1 minute", **options}
        self.task: Task[[int], int] = jobs.task(**all_options)(self._call)

    async def _call(self, numbers: list[int]) -> list[int]:
        self.calls.append(numbers)
        return numbers

    async def wait_until_claimed(self, *jobs: Job[Any]) -> None:
        for job in jobs:
            await wait_for_state(self.app, job.id, State.CLAIMED)


async def test_a_batch_that_lingers_is_called_when_it_is_full(any_store: Errandry) -> None:
    lingering = Lingering(any_store)
    async with running_worker(any_store):
        first = await enqueue_all(lingering.task, 1)
        await lingering.wait_until_claimed(*first)
        second = await enqueue_all(lingering.task, 2)
        await lingering.wait_until_claimed(*second)
        assert lingering.calls == []
        third = await enqueue_all(lingering.task, 3, 4)
        assert await results(first + second + third[:1]) == [1, 2, 3]
        await lingering.wait_until_claimed(third[1])

    assert lingering.calls == [[1, 2, 3]]
    record = await any_store.client.record(third[1].id)
    assert (record.state, record.attempts) == (State.WAITING, 0)  # a stop does not wait for linger


async def test_a_batch_that_lingers_is_called_after_its_linger_time(live: Errandry) -> None:
    lingering = Lingering(live, linger="50ms")
    async with running_worker(live):
        jobs = await enqueue_all(lingering.task, 1, 2)
        assert await results(jobs) == [1, 2]

    assert lingering.calls == [[1, 2]]
    records = [(await live.client.record(job.id)) for job in jobs]
    assert all((record.started_at or 0.0) - (records[0].claimed_at or 0.0) >= 0.045 for record in records)


async def test_a_lingering_batch_fills_while_no_other_slot_is_free(live: Errandry) -> None:
    lingering = Lingering(live)
    async with running_worker(live, concurrency=1):
        jobs = await enqueue_all(lingering.task, 1)
        await lingering.wait_until_claimed(*jobs)
        jobs += await enqueue_all(lingering.task, 2, 3)
        assert await results(jobs) == [1, 2, 3]

    assert lingering.calls == [[1, 2, 3]]


async def test_a_job_canceled_while_its_batch_lingers_never_begins(live: Errandry) -> None:
    lingering = Lingering(live)
    async with running_worker(live):
        jobs = await enqueue_all(lingering.task, 1)
        await lingering.wait_until_claimed(*jobs)
        await jobs[0].cancel()
        await wait_for_state(live, jobs[0].id, State.CANCELED)
        jobs += await enqueue_all(lingering.task, 2, 3)
        assert await results(jobs[1:]) == [2, 3]

    assert lingering.calls == [[2, 3]]
    assert (await live.client.record(jobs[0].id)).state is State.CANCELED


async def test_leases_are_renewed_while_a_batch_lingers(jobs: Errandry, clock: FakeClock) -> None:
    lingering = Lingering(jobs)
    async with running_worker(jobs, lease=0.3):
        [first] = await enqueue_all(lingering.task, 1)
        await lingering.wait_until_claimed(first)
        await outlast_lease(jobs, clock, first.id, lease=0.3)
        assert lingering.calls == []
        await enqueue_all(lingering.task, 2, 3)
        assert await first.result(WAIT_TIMEOUT) == 1

    assert ((await jobs.client.record(first.id)).attempts, lingering.calls) == (1, [[1, 2, 3]])


async def test_a_burst_waits_for_lingering_batches(live: Errandry) -> None:
    lingering = Lingering(live, linger="20ms")
    jobs = await enqueue_all(lingering.task, 1, 2, 3, 4)

    await run_burst(live)

    assert lingering.calls == [[1, 2, 3], [4]]
    assert await results(jobs) == [1, 2, 3, 4]


# Suspects, prefetch, heartbeats, drains.


async def test_suspects_share_no_call(live: Errandry) -> None:
    calls: Calls = []
    task = numbers(live, "async", calls, max_crashes=5)
    jobs = await enqueue_all(task, 1, 2, 3)
    claims = await live.engine.submit(Claim(worker="dead", nonce="n", limit=2, lease=0.001))
    assert isinstance(claims, Claims)
    await asyncio.sleep(0.002)
    await live.engine.submit(Upkeep())
    jobs += await enqueue_all(task, 4)

    await run_burst(live)

    assert await results(jobs) == [2, 4, 6, 8]
    assert sorted(map(tuple, calls)) == [(1,), (2,), (3, 4)]


async def test_prefetched_jobs_share_a_call(live: Errandry) -> None:
    held = Held(live, "async", batch=2)
    jobs = await enqueue_all(held.task, *range(6))
    async with running_worker(live, concurrency=1, prefetch=3):
        await held.wait_until_begun()
        await wait_for_job(live, jobs[4].id, lambda record: record.state is State.CLAIMED)
        assert (await live.counts())["default"] == {"running": 2, "claimed": 3, "waiting": 1}
        held.open.set()
        assert await results(jobs) == list(range(6))


async def test_a_beat_counts_a_batch_as_one_slot_and_why_uses_that(live: Errandry) -> None:
    held = Held(live, "async")
    await enqueue_all(held.task, *range(5))
    async with running_worker(live, concurrency=2, beat_every=0.01):
        await held.wait_until_begun()
        async with asyncio.timeout(WAIT_TIMEOUT):
            while (await live.workers.list())[0].running != 1:  # noqa: ASYNC110 - no event for a beat
                await asyncio.sleep(0.005)
        [worker] = await live.engine.call(live.store.workers)
        await live.queue("other").pause()
        [other] = await enqueue_all(held.task.using(queue="other"), 1)
        why = await live.why(other.id)
        held.open.set()

    assert [(batch.task, batch.size, batch.start) for batch in worker.beat.batches] == [("held", 5, True)]
    assert [str(reason.code) for reason in why.reasons] == ["queue_paused"]  # not the worker's slots


async def test_drain_runs_batches_without_lingering(jobs: Errandry, clock: FakeClock) -> None:
    calls: Calls = []
    batch_jobs = await enqueue_all(numbers(jobs, "async", calls, batch=3, linger="1 minute"), 1, 2, -2, 4)

    finished = await drain(jobs, until_idle=False)

    assert calls == [[1, 2, -2], [4]]
    assert [job.id for job in finished] == [batch_jobs[0].id, batch_jobs[1].id, batch_jobs[3].id]


async def test_drain_runs_process_batches_in_this_process(process_app: Errandry) -> None:
    jobs = await enqueue_all(batch_tasks.doubled, 1, 2)

    await drain(process_app)

    assert await results(jobs) == [2, 4]


# What is refused.


def invalid_tasks() -> Iterator[tuple[dict[str, Any], Any, str]]:
    async def valid(rows: list[int]) -> None: ...

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
        yield {"batch": batch}, valid, r"batch=.*: must be a whole number from 1 to 1,000"
    yield {"linger": "1s"}, valid, r"linger='1s': is for tasks that take batches: add batch="
    yield {"batch": 5, "linger": -1}, valid, "linger=-1"
    yield {"batch": 5, "linger": "2 minutes"}, valid, r"linger='2 minutes': must be at most 60 s"
    for handler in (none, two, only_context):
        yield {"batch": 5}, handler, "a batch handler takes one list, with an item for each job"
    yield {"batch": 5}, no_list, "task no_list='row': is not a list"
    yield {"batch": 5}, a_default, "task a_default='rows': has a default"
    yield {"batch": 5}, yields, "is a generator"
    yield {}, generates, "is a generator"


@pytest.mark.parametrize(("options", "handler", "message"), list(invalid_tasks()))
def test_invalid_batch_tasks_are_refused_when_they_are_declared(
    live: Errandry, options: dict[str, Any], handler: Any, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        live.task(**options)(handler)


async def test_a_type_declared_after_the_handler_is_found(live: Errandry) -> None:
    @live.task(batch=5)
    async def work(rows: "list[DeclaredLater]") -> None: ...

    job = await work.enqueue(DeclaredLater("x"))
    await run_burst(live)

    assert (await job.refresh()).state is State.COMPLETED


@dataclass
class DeclaredLater:
    name: str
