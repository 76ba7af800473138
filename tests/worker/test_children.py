"""Handlers in processes of their own: what they see, how they end, and what becomes of their jobs."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from errandry import Errandry, Job, State, WorkerOptions
from errandry.core.event import EventKind
from errandry.core.job import NewJob, Progress
from errandry.core.state import Reason
from errandry.errors import InvalidValue
from errandry.testing import in_memory
from errandry.worker.children import process
from tests.pace import PATIENCE, Pace
from tests.worker import child_tasks
from tests.working import burst, reached, working

PYTHON = sys.executable


@pytest.fixture
async def jobs() -> AsyncIterator[Errandry]:
    with in_memory(child_tasks.jobs):
        yield child_tasks.jobs
        await child_tasks.jobs.engine.stop()


async def done(job: Job[Any], **options: Any) -> Any:
    """What a job's handler returns in a process."""
    await burst(child_tasks.jobs, **{"children": 1, **options})
    return await job.result(timeout=30)


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is looked at
        return False


async def eventually(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (said := condition()):  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.005)
        return said


async def gone(*pids: int) -> None:
    """Return when these processes have ended; being killed takes a moment."""
    await eventually(lambda: not any(map(is_alive, pids)))


async def pids(place: Path) -> list[int]:
    """The processes of a handler that writes them down."""
    file = place / "pids"
    text: str = await eventually(lambda: file.exists() and file.read_text())
    return [int(one) for one in text.split()]


# What a handler sees.


async def test_a_plain_function_runs_on_the_main_thread_of_a_child(
    jobs: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "memory:")
    monkeypatch.setenv("ERRANDRY_WORKER_LEASE", "30s")
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        job = await child_tasks.whereabouts.enqueue()
        seen = await done(job)
    finally:
        os.close(inherited)

    record = await jobs.record(job.id)
    assert (seen["parent"], seen["is_main"]) == (os.getpid(), True)
    assert seen["job"] == [job.id, 1, record.fence]
    assert seen["environment"] == ["ERRANDRY_LOOP", "ERRANDRY_URL"]
    assert inherited not in seen["descriptors"]
    # In, out, err; two lines, trace, lock; three of its loop, and that of the look itself.
    assert len(seen["descriptors"]) <= 11
    assert not is_alive(seen["pid"])


async def test_a_child_does_one_job_after_the_other_and_never_opens_the_store(jobs: Errandry) -> None:
    several = [await child_tasks.whereabouts.enqueue() for _ in range(3)]
    await burst(jobs, children=1)

    seen = [await job.result(timeout=30) for job in several]

    assert len({one["pid"] for one in seen}) == 1
    assert [one["ran_before"] for one in seen] == [1, 2, 3]  # middleware runs where the handler does
    assert child_tasks.before == []


async def test_no_more_children_than_there_may_be(jobs: Errandry) -> None:
    several = [await child_tasks.whereabouts.enqueue() for _ in range(20)]
    await burst(jobs, children=2)

    seen = [await job.result(timeout=30) for job in several]

    assert 1 <= len({one["pid"] for one in seen}) <= 2


async def test_async_handlers_run_in_processes_too(jobs: Errandry) -> None:
    assert await done(await child_tasks.add.enqueue(3, other=4)) == 7


async def test_a_plain_function_may_run_a_loop_of_its_own(jobs: Errandry) -> None:
    assert await done(await child_tasks.runs_a_loop.enqueue()) == 7


async def test_logs_and_progress_come_back(jobs: Errandry) -> None:
    job = await child_tasks.told.enqueue(times=3)
    await done(job)

    record = await jobs.record(job.id)

    assert record.progress == Progress(0.5, "half \ufffd way")
    assert [line.text for line in record.logs] == ["at work", "line 0", "line 1", "line 2"]


async def test_arguments_that_no_longer_fit_never_reach_a_child(jobs: Errandry) -> None:
    payload = jobs.codec.seal('{"one":"x","other":2}', None)  # type: ignore[arg-type]
    await jobs.insert([NewJob(id="bad", task="add", payload=payload)])

    await burst(jobs)

    record = await jobs.record("bad")
    assert (record.state, record.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)


# How a handler ends.


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("segfault", "ProcessDied", "the process ended with SIGSEGV"),
        ("exit", "ProcessDied", "the process exited with code 7"),
        ("kill", "ProcessDied", "the process ended with SIGKILL (from outside: perhaps memory ran out)"),
        ("fork", "ProcessDied", "the process exited with code 5"),
        ("close", "ProcessDied", "the process ended with SIGKILL (from outside: perhaps memory ran out)"),
        ("deafen", "OSError", "[Errno 9] Bad file descriptor"),
        ("raise", "ValueError", "no \ufffd value"),
        ("leave", "SystemExit", "3"),
        ("retry", "Retry", "not yet"),
        ("speechless", "_Speechless", "it has no message that could be read"),
    ],
)
async def test_an_attempt_that_ends_badly_is_followed_by_another(
    jobs: Errandry, how: str, kind: str, message: str
) -> None:
    job = await child_tasks.ends.enqueue(how)
    async with working(jobs, children=1):
        record = await reached(jobs, job.id, State.COMPLETED)

    assert (record.attempts, record.crashes) == (2, 0)
    [error] = record.errors
    assert (error.kind, error.type, error.message) == (Reason.ERROR, kind, message)


async def test_a_snooze_spends_no_attempt(jobs: Errandry) -> None:
    job, start = await child_tasks.ends.enqueue("snooze"), await jobs.latest_cursor()
    async with working(jobs, children=1), asyncio.timeout(PATIENCE):
        await anext(jobs.events(start, job=job.id, kind=EventKind.SCHEDULED))

    record = await jobs.record(job.id)
    assert (record.attempts, record.errors) == (0, ())


@pytest.mark.parametrize(
    ("how", "state", "reason"),
    [("fail", State.FAILED, Reason.UNRECOVERABLE), ("cancel", State.CANCELED, Reason.CANCELED)],
)
async def test_outcomes_that_are_for_good(jobs: Errandry, how: str, state: State, reason: Reason) -> None:
    job = await child_tasks.ends.enqueue(how)
    await burst(jobs)

    record = await jobs.record(job.id)

    assert (record.state, record.reason, record.attempts) == (state, reason, 1)


async def test_a_crash_says_where_it_was_and_keeps_what_was_logged_just_before(jobs: Errandry) -> None:
    job = await child_tasks.ends_for_good.enqueue("segfault")
    await burst(jobs)

    record = await jobs.record(job.id)

    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert [line.text for line in record.logs] == ["the last words"]
    assert "Segmentation fault" in record.errors[0].traceback
    assert "child_tasks.py" in record.errors[0].traceback
    assert "process.py" not in record.errors[0].traceback


async def test_a_traceback_begins_in_the_code_of_the_app(jobs: Errandry) -> None:
    job = await child_tasks.ends_for_good.enqueue("raise")
    await burst(jobs)

    trace = (await jobs.record(job.id)).errors[0].traceback.splitlines()

    assert trace[0] == "Traceback (most recent call last):"
    assert "child_tasks.py" in trace[1]


async def test_a_process_that_cannot_be_started_is_an_error_of_the_attempt(
    jobs: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    job = await child_tasks.must_not_die.using(max_attempts=1).enqueue()
    await burst(jobs)

    record = await jobs.record(job.id)

    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert record.errors[0].type == "FileNotFoundError"


async def test_the_death_of_a_process_is_an_error_that_rules_may_name(jobs: Errandry) -> None:
    job = await child_tasks.must_not_die.enqueue()
    await burst(jobs)

    record = await jobs.record(job.id)

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.UNRECOVERABLE, 1)


async def test_a_crash_costs_only_the_job_that_crashed(jobs: Errandry) -> None:
    crashing = [await child_tasks.ends_for_good.enqueue(how) for how in ("segfault", "exit", "kill")]
    others = [await child_tasks.whereabouts.enqueue() for _ in range(10)]
    await burst(jobs, children=2)

    assert {(await jobs.record(job.id)).state for job in crashing} == {State.FAILED}
    records = [await jobs.record(job.id) for job in others]
    assert {(record.state, record.attempts) for record in records} == {(State.COMPLETED, 1)}


async def test_more_memory_than_the_task_may_have_fails_the_attempt(jobs: Errandry) -> None:
    little, much = await child_tasks.takes.enqueue(20), await child_tasks.takes.enqueue(1_000)
    await burst(jobs, children=1)

    record = await jobs.record(much.id)

    assert await little.result(timeout=30) == 20_000_000
    assert (record.errors[0].type, record.errors[0].message) == (
        "MemoryError",
        "the task may have 300 MB of memory",
    )


# Stopping.


@pytest.mark.parametrize("obeys", ["asked", "terminated", "nothing"])
async def test_a_cancel_ends_a_busy_handler_within_a_second(
    jobs: Errandry, tmp_path: Path, obeys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that obeys may be slow to: it is not killed for what else goes on here."""
    for name in {"asked": ["ASK"], "terminated": ["TERMINATE"]}.get(obeys, []):
        monkeypatch.setattr(process, name, PATIENCE)
    job = await child_tasks.busy.enqueue(str(tmp_path), obeys)
    async with working(jobs, children=1):
        child, helper = await pids(tmp_path)
        with Pace() as pace:
            began = time.monotonic()
            await job.cancel()
            record = await reached(jobs, job.id, State.CANCELED)
            took = time.monotonic() - began

        assert record.reason is Reason.CANCELED
        await gone(helper)  # what the handler had started goes with it
        if obeys == "nothing":
            await gone(child)
        else:
            assert (tmp_path / "left").exists() is (obeys == "terminated")

    assert took < pace.allowed(1.0)


async def test_a_cancel_cancels_an_async_handler(
    jobs: Errandry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ASK", PATIENCE)
    job = await child_tasks.waits.enqueue(str(tmp_path))
    async with working(jobs, children=1):
        [child] = await pids(tmp_path)
        await job.cancel()
        await reached(jobs, job.id, State.CANCELED)

        assert is_alive(child)
        assert (tmp_path / "left").read_text() == "CancelledError"


@pytest.mark.parametrize("obeys", ["asked", "nothing"])
async def test_a_timeout_ends_the_handler_and_counts_from_when_it_began(
    jobs: Errandry, tmp_path: Path, obeys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process takes longer than that to start; and on a slow machine, it needs more to write its pids."""
    for timeout in (0.2, 2.0, 20.0):
        if not (tmp_path / "pids").exists():
            monkeypatch.setattr(sys, "executable", slow_to_start(tmp_path, timeout))
            job = await child_tasks.busy.using(timeout=timeout).enqueue(str(tmp_path), obeys)
            await burst(jobs, children=1)

            record = await jobs.record(job.id)

            assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    await gone(*await pids(tmp_path))


def slow_to_start(folder: Path, seconds: float) -> str:
    """This interpreter, if one has waited."""
    path = folder / f"python-{seconds}"
    path.write_text(f'#!/bin/sh\nsleep {seconds}\nexec {PYTHON} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("obeys", ["asked", "terminated", "nothing"])
async def test_a_stop_that_cannot_wait_gives_the_job_back(jobs: Errandry, tmp_path: Path, obeys: str) -> None:
    job = await child_tasks.busy.enqueue(str(tmp_path), obeys)
    async with working(jobs, children=1, grace=60.0):
        processes = await pids(tmp_path)

    record = await jobs.record(job.id)

    assert (record.state, record.attempts, record.releases, record.errors) == (State.WAITING, 0, 1, ())
    await gone(*processes)


async def test_a_signal_to_the_child_alone_stops_nothing(jobs: Errandry, tmp_path: Path) -> None:
    """A service manager signals every process of a service; the worker drains, and its children with it."""
    job = await child_tasks.busy.enqueue(str(tmp_path), "asked")
    async with working(jobs, children=1):
        child, _ = await pids(tmp_path)
        os.kill(child, signal.SIGTERM)
        await job.cancel()
        record = await reached(jobs, job.id, State.CANCELED)

    assert record.errors == ()


# Many jobs, and for how long a child is used.


async def test_a_child_is_replaced_after_so_many_jobs(jobs: Errandry) -> None:
    several = [await child_tasks.whereabouts.enqueue() for _ in range(5)]
    await burst(jobs, children=1, recycle_jobs=2)

    seen = [(await job.result(timeout=30))["pid"] for job in several]

    assert len(set(seen)) == 3
    assert not [pid for pid in seen if is_alive(pid)]


async def test_a_child_that_has_grown_too_large_is_replaced(jobs: Errandry) -> None:
    several = [await child_tasks.keeps.enqueue(megabytes) for megabytes in (1, 200, 1)]
    await burst(jobs, children=1, recycle_memory=150_000_000)

    first, second, third = [await job.result(timeout=30) for job in several]

    assert first == second
    assert third != second


async def test_a_job_claimed_for_a_turn_that_does_not_come_is_given_back(
    jobs: Errandry, tmp_path: Path
) -> None:
    """Quick handlers let more be claimed than there are children; then one is not quick."""
    for _ in range(30):
        await child_tasks.add.enqueue(1, 2)
    slow = await child_tasks.busy.enqueue(str(tmp_path), "asked")
    late = [await child_tasks.add.enqueue(1, 2) for _ in range(4)]
    async with working(jobs, children=1):
        await pids(tmp_path)
        for job in late:
            await reached(jobs, job.id, State.WAITING)
        await slow.cancel()
        for job in late:
            assert await job.result(timeout=PATIENCE) == 3

    assert {(await jobs.record(job.id)).attempts for job in late} == {1}


# What is refused.


def test_a_handler_must_be_found_by_another_process(jobs: Errandry) -> None:
    def local() -> None: ...

    with pytest.raises(InvalidValue, match="declare the task at the top of a module"):
        jobs.task(run="process")(local)
    with pytest.raises(InvalidValue, match="must be process; without it"):
        jobs.task(run="fork")(child_tasks.log.info)  # type: ignore[call-overload]


def test_a_notebook_has_no_file_to_import(jobs: Errandry, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = FunctionType(is_alive.__code__, {"__name__": "__main__"}, "typed")
    monkeypatch.delattr("__main__.__file__", raising=False)

    with pytest.raises(InvalidValue, match="typed into a notebook or a prompt: write it in a module"):
        jobs.task(run="process")(typed)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"memory": "512 MB"}, "limits a process"),
        ({"run": "process", "memory": "1 MB"}, "must be at least 64 MB"),
        ({"run": "process", "memory": "a lot"}, "not a size"),
    ],
)
def test_senseless_options_of_a_task_are_refused(jobs: Errandry, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        jobs.task(name="never", **options)(is_alive)


@pytest.mark.parametrize("options", [{"children": 0}, {"recycle_jobs": 0}, {"recycle_memory": 1_000_000}])
def test_senseless_options_of_a_worker_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        WorkerOptions(**options)
