"""An app with a handler that ends its worker: `errandry worker tests.faults.ending_app:jobs`."""

import asyncio
import os
import sys

from errandry import Errandry

jobs = Errandry(os.environ.get("ERRANDRY_URL", "memory:"))


@jobs.task
async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


@jobs.task
async def end_worker(way: str) -> None:
    """End the worker in good order."""
    loop, tasks = asyncio.get_running_loop(), asyncio.all_tasks()
    match way:
        case "cancel all":
            for task in tasks:
                task.cancel()
        case "exit in a callback":
            loop.call_soon(sys.exit, 3)
        case "exit in a task":
            _TASKS.append(asyncio.create_task(_leave()))
        case "stop the loop":
            loop.stop()
    await asyncio.Event().wait()


async def _leave() -> None:
    sys.exit(3)


_TASKS: list[asyncio.Task[None]] = []
