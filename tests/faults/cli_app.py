"""The app that fault tests run from the command line: `errandry worker tests.faults.cli_app:jobs`.

Its handlers write their process ids into files of a folder, so that a test knows which process runs them.
"""

import asyncio
import os
import time
from pathlib import Path

from errandry import Errandry, JobContext
from errandry.core.job import NewJob
from errandry.errors import InvalidValue

if os.environ.get("APP_BROKEN"):
    raise RuntimeError("this app is broken")
if os.environ.get("APP_CRASHES"):
    os._exit(3)

if folder := os.environ.get("APP_IMPORTS_IN"):
    (Path(folder) / "importing").touch()
    while not (Path(folder) / "open").exists():
        time.sleep(0.01)

jobs = Errandry(os.environ.get("ERRANDRY_URL", "memory:"))


@jobs.task(runner="process", max_crashes=9, max_attempts=9)
def hold(ctx: JobContext, folder: str) -> int:
    """Run in a child process until the file `open` exists. Ignores requests to stop."""
    path = _write_pids(ctx, folder)
    while not (path / "open").exists():
        time.sleep(0.01)
    return os.getpid()


@jobs.task(max_crashes=9, max_attempts=9)
async def hold_here(ctx: JobContext, folder: str) -> int:
    """The same in the worker process."""
    path = _write_pids(ctx, folder)
    while not (path / "open").exists():  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(0.01)
    return os.getpid()


@jobs.task
async def leave_orphan(folder: str) -> None:
    """Leave a process behind whose parent has ended, and return when it has been reaped."""
    shell = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 0.01 & echo $!", stdout=asyncio.subprocess.PIPE
    )
    orphan = Path("/proc", (await shell.communicate())[0].decode("ascii").strip())
    while orphan.exists():  # noqa: ASYNC110 - another process reaps it
        await asyncio.sleep(0.01)


@jobs.task
async def version() -> str:
    return os.environ.get("APP_VERSION", "")


def _write_pids(ctx: JobContext, folder: str) -> Path:
    (Path(folder) / f"{ctx.id}-{ctx.attempt}").write_text(f"{os.getpid()} {os.getppid()}")
    return Path(folder)


if os.environ.get("APP_DECLARES_WRONG"):

    @jobs.on_enqueue
    def refuse(job: NewJob) -> NewJob:
        raise InvalidValue("job", job.task, "refused by a hook")

    jobs.schedule("nightly", version, "@daily")
