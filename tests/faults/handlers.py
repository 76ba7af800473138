"""The handlers of the fault tests. Each writes into the journal that it starts and how it ends."""

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import IO, Any

from errandry import Fail, JobContext
from tests.faults.history import Ended, Journal, Started

BEAT = 0.01
"""How often a handler that waits for a file looks."""

Result = dict[str, Any]


@cache
def journal() -> Journal:
    return Journal(os.environ["JOURNAL"])


@contextmanager
def told(ctx: JobContext) -> Iterator[Result]:
    """Write that a handler starts and how it ends; what is yielded makes a fine result."""
    pid = os.getpid()
    journal().write(Started(ctx.id, ctx.fence, ctx.attempt, pid, time.time()))
    how = "raised"
    try:
        yield {"fence": ctx.fence, "pid": pid}
        how = "returned"
    except asyncio.CancelledError:
        how = "canceled"
        raise
    finally:
        journal().write(Ended(ctx.id, ctx.fence, pid, how, time.time()))


async def quick(ctx: JobContext) -> Result:
    with told(ctx) as result:
        return result


async def rest(ctx: JobContext, seconds: float) -> Result:
    with told(ctx) as result:
        await asyncio.sleep(seconds)
        return result


def rest_in_thread(ctx: JobContext, seconds: float) -> Result:
    with told(ctx) as result:
        ctx.wait(seconds)
        return result


async def stumble(ctx: JobContext) -> Result:
    """Does not succeed at once, and has something to say about it."""
    with told(ctx) as result:
        ctx.progress(0.5, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return result


async def hold(ctx: JobContext, gate: str, size: int = 0) -> Result:
    """Goes on until there is a file `gate` with the number of the attempt behind it."""
    with told(ctx) as result:
        await _opened(ctx, gate)
        return {**result, "ballast": "x" * size}


def hold_in_thread(ctx: JobContext, gate: str) -> Result:
    """Like `hold`; does not even look whether it should stop."""
    with told(ctx) as result:
        while not _is_open(ctx, gate):
            time.sleep(BEAT)
        return result


async def insist(ctx: JobContext, gate: str) -> Result:
    """Like `hold`, but told to stop it reports, and returns a result all the same."""
    with told(ctx) as result:
        try:
            await _opened(ctx, gate)
        except asyncio.CancelledError:
            ctx.progress(0.9, "from a zombie")
            ctx.log("from a zombie")
        return result


async def block(ctx: JobContext, seconds: float) -> Result:
    with told(ctx) as result:
        time.sleep(seconds)
        return result


async def burn(ctx: JobContext, seconds: float) -> Result:
    """Lets others run, but never rests."""
    with told(ctx) as result:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pause = time.perf_counter() + 0.001
            while time.perf_counter() < pause:
                pass
            await asyncio.sleep(0)
        return result


async def kill(ctx: JobContext) -> Result:
    """Kills its process the first time."""
    with told(ctx) as result:
        return _killed_once(ctx, result)


def kill_in_thread(ctx: JobContext) -> Result:
    with told(ctx) as result:
        return _killed_once(ctx, result)


async def poison(ctx: JobContext) -> Result:
    """Ends its process whenever it runs."""
    with told(ctx):
        os._exit(1)


async def hold_many(ctx: JobContext, gates: list[str]) -> list[Result]:
    """A batch that goes on until there is the file for its attempt."""
    with ExitStack() as stack:
        results = [stack.enter_context(told(one)) for one in ctx.jobs]
        await _opened(ctx, gates[0])
        return results


async def poison_many(ctx: JobContext, poisoned: list[bool]) -> list[Result]:
    """A batch that ends its process whenever one of its jobs is poisoned."""
    with ExitStack() as stack:
        results = [stack.enter_context(told(one)) for one in ctx.jobs]
        if any(poisoned):
            os._exit(1)
        return results


BATCHED: tuple[Callable[..., Any], ...] = (hold_many, poison_many)
"""Called for up to ten jobs."""


async def permitted(ctx: JobContext, permits: int, seconds: float) -> Result:
    """Takes one of so many locks, which the system drops when the process dies; fails if there is none."""
    with told(ctx) as result, ExitStack() as stack:
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
    *(block, burn, kill, kill_in_thread, poison),
)


async def _opened(ctx: JobContext, gate: str) -> None:
    while not _is_open(ctx, gate):  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(BEAT)


def _is_open(ctx: JobContext, gate: str) -> bool:
    return os.path.exists(f"{gate}{ctx.attempt}")


def _killed_once(ctx: JobContext, result: Result) -> Result:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
