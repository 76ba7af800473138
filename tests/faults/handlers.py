"""The handlers of the fault tests. Each writes its start and its end to the journal."""

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import IO, Any

from errandry import ClaimedJob, Fail, JobContext, Retry
from tests.faults.history import Ended, Journal, Started

POLL_INTERVAL = 0.01
"""Seconds between two looks of a handler that waits for a file."""

Result = dict[str, Any]


@cache
def journal() -> Journal:
    return Journal(os.environ["JOURNAL"])


@contextmanager
def journaled(ctx: JobContext) -> Iterator[Result]:
    """Write to the journal that a handler starts and how it ends. Yields a result for it."""
    pid = os.getpid()
    journal().write(Started(ctx.id, ctx.fence, ctx.attempt, pid, time.time()))
    ending = "raised"
    try:
        yield {"fence": ctx.fence, "pid": pid}
        ending = "returned"
    except asyncio.CancelledError:
        ending = "canceled"
        raise
    finally:
        journal().write(Ended(ctx.id, ctx.fence, pid, ending, time.time()))


async def quick(ctx: JobContext) -> Result:
    with journaled(ctx) as result:
        return result


async def rest(ctx: JobContext, seconds: float) -> Result:
    with journaled(ctx) as result:
        await asyncio.sleep(seconds)
        return result


def rest_in_thread(ctx: JobContext, seconds: float) -> Result:
    with journaled(ctx) as result:
        ctx.sleep_or_stop(seconds)
        return result


async def stumble(ctx: JobContext) -> Result:
    """Fails the first time, and reports progress."""
    with journaled(ctx) as result:
        ctx.progress(0.5, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return result


async def hold(ctx: JobContext, gate: str, size: int = 0) -> Result:
    """Run until a file exists whose name is `gate` and the number of the attempt."""
    with journaled(ctx) as result:
        await _wait_for_gate(ctx, gate)
        return {**result, "ballast": "x" * size}


async def hold_by_hand(job: ClaimedJob) -> None:
    """Like `hold`, but for a claimed job; ignores requests to stop."""
    pid = os.getpid()
    journal().write(Started(job.id, job.fence, job.attempt, pid, time.time()))
    async with job:
        while not os.path.exists(f"{job.arguments['gate']}{job.attempt}"):  # noqa: ASYNC110
            await asyncio.sleep(POLL_INTERVAL)
        try:
            await job.complete({"fence": job.fence, "pid": pid})
        finally:
            journal().write(Ended(job.id, job.fence, pid, "returned", time.time()))


def hold_in_thread(ctx: JobContext, gate: str) -> Result:
    """Like `hold`, but ignores requests to stop."""
    with journaled(ctx) as result:
        while not _is_open(ctx, gate):
            time.sleep(POLL_INTERVAL)
        return result


async def insist(ctx: JobContext, gate: str) -> Result:
    """Like `hold`, but when it is canceled, it reports progress and returns a result."""
    with journaled(ctx) as result:
        try:
            await _wait_for_gate(ctx, gate)
        except asyncio.CancelledError:
            ctx.progress(0.9, "from a zombie")
            ctx.log("from a zombie")
        return result


async def block(ctx: JobContext, seconds: float) -> Result:
    with journaled(ctx) as result:
        time.sleep(seconds)
        return result


async def burn(ctx: JobContext, seconds: float) -> Result:
    """Use the processor without a pause, but yield to the event loop."""
    with journaled(ctx) as result:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pause = time.perf_counter() + 0.001
            while time.perf_counter() < pause:
                pass
            await asyncio.sleep(0)
        return result


async def kill(ctx: JobContext) -> Result:
    """Kill the process in the first attempt."""
    with journaled(ctx) as result:
        return _killed_once(ctx, result)


def kill_in_thread(ctx: JobContext) -> Result:
    with journaled(ctx) as result:
        return _killed_once(ctx, result)


async def poison(ctx: JobContext) -> Result:
    """End the process in every attempt."""
    with journaled(ctx):
        os._exit(1)


async def poison_all(ctx: JobContext, pids: str) -> Result:
    """Kill the workers that have a file in the folder `pids`, this one last."""
    with journaled(ctx):
        for pid in sorted(map(int, os.listdir(pids)), key=lambda pid: pid == os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise RuntimeError(f"process {os.getpid()} has no file in {pids}")


async def hold_many(ctx: JobContext, gates: list[str]) -> list[Result]:
    """A batch that runs until the file for its attempt exists."""
    with ExitStack() as stack:
        results = [stack.enter_context(journaled(job)) for job in ctx.jobs]
        await _wait_for_gate(ctx, gates[0])
        return results


async def poison_many(ctx: JobContext, poisoned: list[bool]) -> list[Result]:
    """A batch that ends the process if one of its jobs is poisoned."""
    with ExitStack() as stack:
        results = [stack.enter_context(journaled(job)) for job in ctx.jobs]
        if any(poisoned):
            os._exit(1)
        return results


async def collect(ctx: JobContext, seconds: list[float]) -> list[Result]:
    """A batch that takes as long as its longest job."""
    with ExitStack() as stack:
        results = [stack.enter_context(journaled(job)) for job in ctx.jobs]
        await asyncio.sleep(max(seconds))
        return results


def stumble_together(ctx: JobContext, seconds: list[float]) -> list[Result | Retry]:
    """A batch in a thread. Each job fails the first time: by itself, or with all if none is older."""
    with ExitStack() as stack:
        results = [stack.enter_context(journaled(job)) for job in ctx.jobs]
        ctx.sleep_or_stop(max(seconds))
        if all(job.attempt == 1 for job in ctx.jobs):
            raise RuntimeError("not yet")
        return [
            Retry("not yet", after=0.05) if job.attempt == 1 else result
            for job, result in zip(ctx.jobs, results, strict=True)
        ]


BATCHED: tuple[Callable[..., Any], ...] = (hold_many, poison_many, collect)
"""Batch handlers, called for up to ten jobs."""
LINGERING: tuple[Callable[..., Any], ...] = (stumble_together,)
"""Batch handlers whose calls wait for more jobs."""


async def permitted(ctx: JobContext, permits: int, seconds: float) -> Result:
    """Take one of `permits` file locks, which the system releases at death; fail if none is free."""
    with journaled(ctx) as result, ExitStack() as stack:
        folder = os.environ["TMPDIR"]
        files = [stack.enter_context(open(f"{folder}/permit-{n}", "a")) for n in range(permits)]
        if not any(map(_is_locked, files)):
            raise Fail(f"more than {permits} run at once")
        await asyncio.sleep(seconds)
        return result


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


HANDLERS: tuple[Callable[..., Any], ...] = (
    *(quick, rest, rest_in_thread, stumble, hold, hold_in_thread, insist, permitted),
    *(block, burn, kill, kill_in_thread, poison, poison_all),
)


async def _wait_for_gate(ctx: JobContext, gate: str) -> None:
    while not _is_open(ctx, gate):  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(POLL_INTERVAL)


def _is_open(ctx: JobContext, gate: str) -> bool:
    return os.path.exists(f"{gate}{ctx.attempt}")


def _killed_once(ctx: JobContext, result: Result) -> Result:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
