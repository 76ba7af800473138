"""The tasks of a run: no-ops, tasks that report when they started, and the tasks of the stress test."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from errandry.api.app import Errandry
from errandry.api.context import JobContext
from errandry.api.outcome import Fail
from errandry.core.retry import Backoff, Curve
from errandry.core.state import Reason

RETRY_DELAY = Backoff(Curve.FIXED, 0.05)
SPAWNED_JOBS = 2
"""Number of jobs that each spawning job enqueues."""


async def noop(i: int) -> int:
    return i


async def report_delay(sent: float) -> float:
    """Return the seconds from `sent` to the handler's first line."""
    return time.time() - sent


async def wait_for_kill(ctx: JobContext) -> float:
    """Wait until the worker is killed; the next attempt returns the time when it started."""
    began = time.time()
    if not ctx.job.crashes:
        await asyncio.sleep(3_600)
    return began


async def wait_for_cancel(canceled_at: str) -> None:
    """Wait until canceled, and write the time of the CancelledError to a file."""
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        with open(canceled_at, "w", encoding="ascii") as file:  # noqa: ASYNC230 - a few bytes
            file.write(str(time.time()))
        raise


async def work(i: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return i


async def fail_first(ctx: JobContext, i: int, times: int) -> int:
    """Fail this number of times, crashes of workers not counted."""
    if sum(error.kind is Reason.ERROR for error in ctx.job.errors) < times:
        raise ConnectionError(f"failed with {i}")
    return i


async def give_up(i: int) -> int:
    raise Fail(f"{i} cannot be done")


HANDLERS: tuple[Callable[..., Any], ...] = (
    noop,
    report_delay,
    wait_for_kill,
    wait_for_cancel,
    work,
    fail_first,
    give_up,
)


def declare_app(url: str | None = None) -> Errandry:
    """The app of a run, in the main process and in workers. Workers take the store from the environment."""
    app = Errandry(url)

    async def spawn(ctx: JobContext, i: int) -> int:
        """Enqueue other jobs. Their ids derive from this job's, so that a retry after a crash adds none."""
        for number in range(SPAWNED_JOBS):
            child = app.tasks["noop"].using(id=f"{ctx.id}-{number}", queue=ctx.job.queue)
            await child.enqueue(i=i)
        return i

    for handler in (*HANDLERS, spawn):
        app.task(backoff=RETRY_DELAY)(handler)
    return app
