"""The tasks of a run: quick ones to count, ones that say when they began, and those of the stress test."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from errandry.api.app import Errandry
from errandry.api.context import JobContext
from errandry.api.outcome import Fail
from errandry.core.retry import Backoff, Curve
from errandry.core.state import Reason

SOON = Backoff(Curve.FIXED, 0.05)
SPAWNED = 2
"""How many jobs each spawning one makes."""


async def noop(i: int) -> int:
    return i


async def seen(sent: float) -> float:
    """How long ago that was, on the handler's first line."""
    return time.time() - sent


async def linger(ctx: JobContext) -> float:
    """There to be killed with its worker; the next time, the moment it began."""
    began = time.time()
    if not ctx.job.crashes:
        await asyncio.sleep(3_600)
    return began


async def idle(canceled_at: str) -> None:
    """There to be canceled; writes down when that reached it."""
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        with open(canceled_at, "w", encoding="ascii") as file:  # noqa: ASYNC230 - a few bytes
            file.write(str(time.time()))
        raise


async def work(i: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return i


async def stumble(ctx: JobContext, i: int, times: int) -> int:
    """Fails so many times, crashes of workers not counted."""
    if sum(error.kind is Reason.ERROR for error in ctx.job.errors) < times:
        raise ConnectionError(f"stumbled over {i}")
    return i


async def give_up(i: int) -> int:
    raise Fail(f"{i} cannot be done")


HANDLERS: tuple[Callable[..., Any], ...] = (noop, seen, linger, idle, work, stumble, give_up)


def declared(url: str | None = None) -> Errandry:
    """The app of a run, in whichever of its processes. In a worker, the environment says where."""
    app = Errandry(url)

    async def spawn(ctx: JobContext, i: int) -> int:
        """Enqueues others. Their ids come from its own: run again after a crash, it makes no more of them."""
        for number in range(SPAWNED):
            child = app.tasks["noop"].using(id=f"{ctx.id}-{number}", queue=ctx.job.queue)
            await child.enqueue(i=i)
        return i

    for handler in (*HANDLERS, spawn):
        app.task(backoff=SOON)(handler)
    return app
