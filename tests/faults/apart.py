"""An app for the command line in fault tests: `errandry worker tests.faults.apart:jobs`.

Its handlers write their process ids into files of a folder, so that a test can see who runs where.
"""

import asyncio
import os
import time
from pathlib import Path

from errandry import Errandry, JobContext

if os.environ.get("APART_BROKEN"):
    raise RuntimeError("this app is broken")

jobs = Errandry(os.environ.get("ERRANDRY_URL", "memory:"))


@jobs.task(run="process", max_crashes=9, max_attempts=9)
def hold(ctx: JobContext, folder: str) -> int:
    """Goes on until it is let through, and does not look whether it should stop."""
    place = _written(ctx, folder)
    while not (place / "open").exists():
        time.sleep(0.01)
    return os.getpid()


@jobs.task(max_crashes=9, max_attempts=9)
async def hold_here(ctx: JobContext, folder: str) -> int:
    """The same in the worker itself."""
    place = _written(ctx, folder)
    while not (place / "open").exists():  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(0.01)
    return os.getpid()


@jobs.task
async def version() -> str:
    return os.environ.get("APART_VERSION", "")


def _written(ctx: JobContext, folder: str) -> Path:
    (Path(folder) / f"{ctx.id}-{ctx.attempt}").write_text(f"{os.getpid()} {os.getppid()}")
    return Path(folder)
