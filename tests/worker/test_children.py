"""Handlers in child processes: what they see, how they end, and the outcomes of their jobs."""

import asyncio
import os
import signal
import struct
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
from errandry.worker.children.messages import ChildReady, encode_frame
from tests.machine_load import WAIT_TIMEOUT, MachineLoad
from tests.run_worker import run_burst, running_worker, wait_for_state
from tests.worker import child_tasks

PYTHON = sys.executable
HEADER_OF_TWO_BYTES = encode_frame(ChildReady())[:4] + struct.pack("!II", 2, 2**32 - 1 - 2)


@pytest.fixture
async def jobs() -> AsyncIterator[Errandry]:
    with in_memory(child_tasks.jobs):
        yield child_tasks.jobs
        await child_tasks.jobs.engine.stop()


async def run_to_result(job: Job[Any], **options: Any) -> Any:
    """Run a job in a child process; its result."""
    await run_burst(child_tasks.jobs, **{"process_slots": 1, **options})
    return await job.result(timeout=30)


def is_alive(pid: int) -> bool:
    """Whether this process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False


async def wait_until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not (value := condition()):  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.005)
        return value


async def wait_until_ended(*pids: int) -> None:
    """Return when these processes have ended; a killed process takes a moment."""
    await wait_until(lambda: not any(map(is_alive, pids)))


async def read_pids(folder: Path) -> list[int]:
    """The process ids that a handler has written down."""
    file = folder / "pids"
    text: str = await wait_until(lambda: file.exists() and file.read_text())
    return [int(pid) for pid in text.split()]


# What a handler sees.


async def test_a_plain_function_runs_on_the_main_thread_of_a_child(
    jobs: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "memory:")
    monkeypatch.setenv("ERRANDRY_WORKER_LEASE", "30s")
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        job = await child_tasks.process_info.enqueue()
        seen = await run_to_result(job)
    finally:
        os.close(inherited)

    record = await jobs.client.record(job.id)
    assert (seen["parent"], seen["is_main"]) == (os.getpid(), True)
    assert seen["job"] == [job.id, 1, record.fence]
    assert seen["environment"] == ["ERRANDRY_LOOP", "ERRANDRY_URL"]
    assert inherited not in seen["descriptors"]
    # stdin, stdout, stderr; two sockets, crash file, lock; three of its event loop; the listing itself; and
    # in some builds libffi, which keeps its own library open.
    assert len(seen["descriptors"]) <= 12
    assert not is_alive(seen["pid"])


async def test_a_child_runs_several_jobs_and_its_middleware_runs_in_the_child(jobs: Errandry) -> None:
    handles = [await child_tasks.process_info.enqueue() for _ in range(3)]
    await run_burst(jobs, process_slots=1)

    seen = [await job.result(timeout=30) for job in handles]

    assert len({info["pid"] for info in seen}) == 1
    assert [info["ran_before"] for info in seen] == [1, 2, 3]  # middleware runs where the handler does
    assert child_tasks.called_jobs == []


async def test_there_are_no_more_children_than_the_option_says(jobs: Errandry) -> None:
    handles = [await child_tasks.process_info.enqueue() for _ in range(20)]
    await run_burst(jobs, process_slots=2)

    seen = [await job.result(timeout=30) for job in handles]

    assert 1 <= len({info["pid"] for info in seen}) <= 2


async def test_async_handlers_run_in_processes_too(jobs: Errandry) -> None:
    assert await run_to_result(await child_tasks.add.enqueue(3, other=4)) == 7


async def test_a_plain_function_may_run_its_own_event_loop(jobs: Errandry) -> None:
    assert await run_to_result(await child_tasks.runs_a_loop.enqueue()) == 7


async def test_logs_and_progress_reach_the_job(jobs: Errandry) -> None:
    job = await child_tasks.writes_notes.enqueue(times=3)
    await run_to_result(job)

    record = await jobs.client.record(job.id)

    assert record.progress == Progress(0.5, "half \ufffd way")
    assert [line.text for line in record.logs] == ["at work", "line 0", "line 1", "line 2"]


async def test_invalid_arguments_never_reach_a_child(jobs: Errandry) -> None:
    payload = jobs.codec.seal('{"one":"x","other":2}', None)  # type: ignore[arg-type]
    await jobs.client.insert([NewJob(id="bad", task="add", payload=payload)])

    await run_burst(jobs)

    record = await jobs.client.record("bad")
    assert (record.state, record.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)


# How a handler ends.


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("segfault", "ProcessDied", "the process ended with SIGSEGV"),
        ("exit", "ProcessDied", "the process exited with code 7"),
        ("kill", "ProcessDied", "the process ended with SIGKILL (from outside: perhaps memory ran out)"),
        ("fork", "ProcessDied", "the process exited with code 5"),
        ("close all", "ProcessDied", "the process ended with SIGKILL (from outside: perhaps memory ran out)"),
        ("close event loop", "OSError", "[Errno 9] Bad file descriptor"),
        ("raise", "ValueError", "no \ufffd value"),
        ("leave", "SystemExit", "3"),
        ("retry", "Retry", "not yet"),
        (
            "no message",
            "_ErrorWithoutMessage",
            "an object of _ErrorWithoutMessage, whose str raises RuntimeError",
        ),
    ],
)
async def test_a_failed_attempt_is_retried(jobs: Errandry, how: str, kind: str, message: str) -> None:
    job = await child_tasks.ends.enqueue(how)
    async with running_worker(jobs, process_slots=1):
        record = await wait_for_state(jobs, job.id, State.COMPLETED)

    assert (record.attempts, record.crashes) == (2, 0)
    [error] = record.errors
    assert (error.kind, error.type, error.message) == (Reason.ERROR, kind, message)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"hello world", "no message begins with b'hello world"),
        (b"{}", "no message begins with b'{}"),
        (b"x", "no message begins with b'x"),
        (b"\0er", "no message begins with b'\\x00er"),
        (b"\0err\xff\xff\xff\xff", "no message begins with b'\\x00err\\xff"),
        (HEADER_OF_TWO_BYTES + b"{}", "Object missing required field `type`"),
        (HEADER_OF_TWO_BYTES + b"{", "JSON is malformed"),
    ],
)
async def test_a_process_that_writes_to_its_connection_is_replaced(
    jobs: Errandry, text: bytes, why: str
) -> None:
    """Its call ends with an error that says so. It does not wait for the rest of a message for ever."""
    job = await child_tasks.writes_to_sockets.enqueue(text)
    async with running_worker(jobs, process_slots=1):
        record = await wait_for_state(jobs, job.id, State.COMPLETED)

    assert (record.attempts, record.crashes) == (2, 0)
    [error] = record.errors
    assert error.type == "ProcessDied"
    assert error.message.startswith(f"the process sent a message that cannot be read: {why}")


async def test_a_process_that_cannot_read_an_interrupt_is_replaced(jobs: Errandry, tmp_path: Path) -> None:
    """Otherwise it would hear of no stop and no saved step any more, and its call might never end."""
    job = await child_tasks.waits.enqueue(str(tmp_path))
    async with running_worker(jobs, process_slots=1) as worker:
        await read_pids(tmp_path)
        [child] = worker._children._all
        child._interrupts.sendall(b"hello world")
        record = await wait_for_state(jobs, job.id, State.FAILED)
        assert await (await child_tasks.add.enqueue(1, 2)).result(WAIT_TIMEOUT) == 3

    [error] = record.errors
    assert (error.type, error.message) == ("ProcessDied", "the process exited with code 1")


async def test_a_number_as_a_level_of_a_log_line_costs_no_process(jobs: Errandry) -> None:
    job = await child_tasks.logs_at_a_number.enqueue()
    await run_to_result(job)

    assert (job.attempts, [line.level for line in job.logs]) == (1, ["warning"])


async def test_a_snooze_spends_no_attempt(jobs: Errandry) -> None:
    job, start = await child_tasks.ends.enqueue("snooze"), await jobs.latest_cursor()
    async with running_worker(jobs, process_slots=1), asyncio.timeout(WAIT_TIMEOUT):
        await anext(jobs.events(start, job=job.id, kind=EventKind.SCHEDULED))

    record = await jobs.client.record(job.id)
    assert (record.attempts, record.errors) == (0, ())


@pytest.mark.parametrize(
    ("how", "state", "reason"),
    [("fail", State.FAILED, Reason.UNRECOVERABLE), ("cancel", State.CANCELED, Reason.CANCELED)],
)
async def test_fail_and_cancel_are_final(jobs: Errandry, how: str, state: State, reason: Reason) -> None:
    job = await child_tasks.ends.enqueue(how)
    await run_burst(jobs)

    record = await jobs.client.record(job.id)

    assert (record.state, record.reason, record.attempts) == (state, reason, 1)


async def test_a_crash_has_a_traceback_and_keeps_the_lines_logged_before_it(jobs: Errandry) -> None:
    job = await child_tasks.ends_for_good.enqueue("segfault")
    await run_burst(jobs)

    record = await jobs.client.record(job.id)

    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert [line.text for line in record.logs] == ["just before the end"]
    assert "Segmentation fault" in record.errors[0].traceback
    assert "child_tasks.py" in record.errors[0].traceback
    assert "process.py" not in record.errors[0].traceback


async def test_a_traceback_begins_in_the_apps_code(jobs: Errandry) -> None:
    job = await child_tasks.ends_for_good.enqueue("raise")
    await run_burst(jobs)

    trace = (await jobs.client.record(job.id)).errors[0].traceback.splitlines()

    assert trace[0] == "Traceback (most recent call last):"
    assert "child_tasks.py" in trace[1]


async def test_a_timeout_of_a_process_is_a_timeout_error_for_the_rules_of_its_task(jobs: Errandry) -> None:
    job = await child_tasks.hangs.enqueue()
    await run_burst(jobs)
    record = await jobs.client.record(job.id)

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.TIMEOUT, 1)


async def test_a_process_that_cannot_be_started_is_an_error_of_the_attempt(
    jobs: Errandry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    job = await child_tasks.dies.using(max_attempts=1).enqueue()
    await run_burst(jobs)

    record = await jobs.client.record(job.id)

    assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
    assert record.errors[0].type == "FileNotFoundError"


async def test_a_handler_in_a_process_cannot_spawn_children(jobs: Errandry) -> None:
    job = await child_tasks.spawns_a_child.using(max_attempts=1).enqueue()
    await run_burst(jobs)

    record = await jobs.client.record(job.id)
    assert record.state is State.FAILED
    assert (
        record.errors[0].message == "a handler in a process cannot spawn children: leave out runner='process'"
    )
    assert len((await jobs.list()).jobs) == 1


async def test_the_death_of_a_process_is_an_error_of_the_worker_too(jobs: Errandry) -> None:
    cursor = await jobs.latest_cursor()
    await child_tasks.ends_for_good.enqueue("exit")
    await run_burst(jobs)

    async with asyncio.timeout(WAIT_TIMEOUT):
        event = await anext(jobs.events(cursor, kind="error"))
    assert event.text.partition(": ")[2].startswith(
        "a child process failed in task ends_for_good: ProcessDied: the process exited with code "
    )


async def test_an_idle_process_that_died_is_replaced_and_reported(jobs: Errandry) -> None:
    cursor = await jobs.latest_cursor()
    async with running_worker(jobs, process_slots=1) as worker:
        first = (await (await child_tasks.process_info.enqueue()).result(timeout=WAIT_TIMEOUT))["pid"]
        [child] = await wait_until(lambda: worker._children._idle)
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: child.death)
        second = (await (await child_tasks.process_info.enqueue()).result(timeout=WAIT_TIMEOUT))["pid"]

        async with asyncio.timeout(WAIT_TIMEOUT):
            event = await anext(jobs.events(cursor, kind="error"))

    assert second != first
    assert "an idle child process has died: ProcessDied: the process ended with SIGKILL" in event.text


async def test_fail_on_can_name_the_death_of_a_process(jobs: Errandry) -> None:
    job = await child_tasks.dies.enqueue()
    await run_burst(jobs)

    record = await jobs.client.record(job.id)

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.UNRECOVERABLE, 1)


async def test_a_crash_costs_only_the_job_that_crashed(jobs: Errandry) -> None:
    crashing = [await child_tasks.ends_for_good.enqueue(how) for how in ("segfault", "exit", "kill")]
    others = [await child_tasks.process_info.enqueue() for _ in range(10)]
    await run_burst(jobs, process_slots=2)

    assert {(await jobs.client.record(job.id)).state for job in crashing} == {State.FAILED}
    records = [await jobs.client.record(job.id) for job in others]
    assert {(record.state, record.attempts) for record in records} == {(State.COMPLETED, 1)}


async def test_exceeding_the_memory_limit_fails_the_attempt(jobs: Errandry) -> None:
    small, large = await child_tasks.allocates.enqueue(20), await child_tasks.allocates.enqueue(1_000)
    await run_burst(jobs, process_slots=1)

    record = await jobs.client.record(large.id)

    assert await small.result(timeout=30) == 20_000_000
    assert (record.errors[0].type, record.errors[0].message) == (
        "MemoryError",
        "the task may have 300 MB of memory",
    )


# Stopping.


@pytest.mark.parametrize("obeys", ["asked", "terminated", "nothing"])
async def test_a_cancel_ends_a_busy_handler_within_a_second(
    jobs: Errandry, tmp_path: Path, obeys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long time limits for a handler that obeys, so that a busy machine does not get it killed."""
    for name in {"asked": ["STOP_TIMEOUT"], "terminated": ["TERMINATE_TIMEOUT"]}.get(obeys, []):
        monkeypatch.setattr(process, name, WAIT_TIMEOUT)
    job = await child_tasks.busy.enqueue(str(tmp_path), obeys)
    async with running_worker(jobs, process_slots=1):
        child, helper = await read_pids(tmp_path)
        with MachineLoad() as load:
            began = time.monotonic()
            await job.cancel()
            record = await wait_for_state(jobs, job.id, State.CANCELED)
            took = time.monotonic() - began

        assert record.reason is Reason.CANCELED
        await wait_until_ended(helper)  # the handler's own child process is killed, too
        if obeys == "nothing":
            await wait_until_ended(child)
        else:
            assert (tmp_path / "left").exists() is (obeys == "terminated")

    assert took < load.scaled(1.0)


async def test_a_cancel_cancels_an_async_handler(
    jobs: Errandry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOP_TIMEOUT", WAIT_TIMEOUT)
    job = await child_tasks.waits.enqueue(str(tmp_path))
    async with running_worker(jobs, process_slots=1):
        [child] = await read_pids(tmp_path)
        await job.cancel()
        await wait_for_state(jobs, job.id, State.CANCELED)

        assert is_alive(child)
        assert (tmp_path / "left").read_text() == "CancelledError"


@pytest.mark.parametrize("obeys", ["asked", "nothing"])
async def test_a_timeout_ends_the_handler_and_counts_from_when_it_began(
    jobs: Errandry, tmp_path: Path, obeys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process takes longer than the timeout to start. A slow machine needs a longer one for the pids."""
    for timeout in (0.2, 2.0, 20.0):
        if not (tmp_path / "pids").exists():
            monkeypatch.setattr(sys, "executable", slow_to_start(tmp_path, timeout))
            job = await child_tasks.busy.using(timeout=timeout).enqueue(str(tmp_path), obeys)
            await run_burst(jobs, process_slots=1)

            record = await jobs.client.record(job.id)

            assert (record.state, record.reason) == (State.FAILED, Reason.TIMEOUT)
    await wait_until_ended(*await read_pids(tmp_path))


def slow_to_start(folder: Path, seconds: float) -> str:
    """A command that waits and then runs this interpreter."""
    path = folder / f"python-{seconds}"
    path.write_text(f'#!/bin/sh\nsleep {seconds}\nexec {PYTHON} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("obeys", ["asked", "terminated", "nothing"])
async def test_a_second_stop_releases_the_job(jobs: Errandry, tmp_path: Path, obeys: str) -> None:
    job = await child_tasks.busy.enqueue(str(tmp_path), obeys)
    async with running_worker(jobs, process_slots=1, grace=60.0):
        processes = await read_pids(tmp_path)

    record = await jobs.client.record(job.id)

    assert (record.state, record.attempts, record.releases, record.errors) == (State.WAITING, 0, 1, ())
    await wait_until_ended(*processes)


async def test_sigterm_to_the_child_alone_stops_nothing(jobs: Errandry, tmp_path: Path) -> None:
    """A service manager signals every process of a service; the worker drains, and its children go on."""
    job = await child_tasks.busy.enqueue(str(tmp_path), "asked")
    async with running_worker(jobs, process_slots=1):
        child, _ = await read_pids(tmp_path)
        os.kill(child, signal.SIGTERM)
        await job.cancel()
        record = await wait_for_state(jobs, job.id, State.CANCELED)

    assert record.errors == ()


# How children are reused and replaced.


async def test_a_child_is_replaced_after_recycle_jobs(jobs: Errandry) -> None:
    handles = [await child_tasks.process_info.enqueue() for _ in range(5)]
    await run_burst(jobs, process_slots=1, recycle_jobs=2)

    seen = [(await job.result(timeout=30))["pid"] for job in handles]

    assert len(set(seen)) == 3
    assert not [pid for pid in seen if is_alive(pid)]


async def test_a_child_above_recycle_memory_is_replaced(jobs: Errandry) -> None:
    handles = [await child_tasks.grows.enqueue(megabytes) for megabytes in (1, 200, 1)]
    await run_burst(jobs, process_slots=1, recycle_memory=150_000_000)

    first, second, third = [await job.result(timeout=30) for job in handles]

    assert first == second
    assert third != second


async def test_a_job_claimed_early_is_released_if_no_child_becomes_free(
    jobs: Errandry, tmp_path: Path
) -> None:
    """After quick handlers, the worker claims more jobs than it has children; then one handler is slow."""
    for _ in range(30):
        await child_tasks.add.enqueue(1, 2)
    slow = await child_tasks.busy.enqueue(str(tmp_path), "asked")
    waiting = [await child_tasks.add.enqueue(1, 2) for _ in range(4)]
    async with running_worker(jobs, process_slots=1):
        await read_pids(tmp_path)
        for job in waiting:
            await wait_for_state(jobs, job.id, State.WAITING)
        await slow.cancel()
        for job in waiting:
            assert await job.result(timeout=WAIT_TIMEOUT) == 3

    assert {(await jobs.client.record(job.id)).attempts for job in waiting} == {1}


# What is refused.


def test_another_process_must_be_able_to_import_the_handler(jobs: Errandry) -> None:
    def local() -> None: ...

    with pytest.raises(InvalidValue, match="declare the task at the top of a module"):
        jobs.task(runner="process")(local)


def test_a_task_typed_into_a_notebook_is_refused(jobs: Errandry, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = FunctionType(is_alive.__code__, {"__name__": "__main__"}, "typed")
    monkeypatch.delattr("__main__.__file__", raising=False)

    with pytest.raises(InvalidValue, match="typed into a notebook or a prompt: write it in a module"):
        jobs.task(runner="process")(typed)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"memory": "512 MB"}, "limits a process"),
        ({"runner": "process", "memory": "1 MB"}, "must be at least 64 MB"),
        ({"runner": "process", "memory": "a lot"}, "not a size"),
    ],
)
def test_invalid_options_of_a_task_are_refused(jobs: Errandry, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        jobs.task(name="never", **options)(is_alive)


@pytest.mark.parametrize(
    "options", [{"process_slots": 0}, {"recycle_jobs": 0}, {"recycle_memory": 1_000_000}]
)
def test_invalid_options_of_a_worker_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        WorkerOptions(**options)
