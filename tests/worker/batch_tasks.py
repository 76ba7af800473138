"""An app with batch handlers in child processes, which import it from here."""

import asyncio
import os
import time
from pathlib import Path

from errandry import Cancel, Errandry, Fail, JobContext, Retry, Snooze
from errandry.errors import ProcessDied

jobs = Errandry("memory:")

ItemResult = int | Exception


def item_result(n: int) -> ItemResult:
    """What a handler returns for an item: its double, or for a negative number an outcome or an error."""
    match n:
        case -1:
            return Retry("not yet", after=60)
        case -2:
            return Snooze(60)
        case -3:
            return Fail("never")
        case -4:
            return Cancel("not needed")
        case -5:
            return ValueError("no such number")
    return 2 * n


@jobs.task(batch=10, runner="process")
def doubled(ctx: JobContext, numbers: list[int]) -> list[ItemResult]:
    for context, number in zip(ctx.jobs, numbers, strict=True):
        context.progress(0.5, f"number {number}")
    ctx.log(f"{len(numbers)} numbers")
    return [item_result(number) for number in numbers]


@jobs.task(batch=10, runner="process")
async def doubled_async(numbers: list[int]) -> list[ItemResult]:
    await asyncio.sleep(0)
    return [item_result(number) for number in numbers]


@jobs.task(batch=10, runner="process", max_attempts=1)
def short(numbers: list[int]) -> list[int]:
    return numbers[1:]


@jobs.task(batch=10, runner="process", max_attempts=2, backoff=0.01, fail_on=ProcessDied)
def dies(numbers: list[int]) -> None:
    os._exit(3)


@jobs.task(batch=10, runner="process", max_attempts=1, timeout=0.3)
def stuck(numbers: list[int]) -> None:
    time.sleep(600)


@jobs.task(batch=10, runner="process", max_attempts=1)
def held(ctx: JobContext, folders: list[str]) -> list[str]:
    """Run until the file `open` exists or the call should stop; write down which of its jobs should stop."""
    folder = Path(folders[0])
    (folder / "pid").write_text(str(os.getpid()))
    while not ((folder / "open").exists() or ctx.should_stop):
        stopped = [str(number) for number, context in enumerate(ctx.jobs) if context.should_stop]
        (folder / "stopped").write_text(" ".join(stopped))
        time.sleep(0.005)
    return [f"{number} of {len(folders)}" for number in range(len(folders))]
