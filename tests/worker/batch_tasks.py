"""An app whose batch handlers run in processes of their own, which import it from here."""

import asyncio
import os
import time
from pathlib import Path

from errandry import Cancel, Errandry, Fail, JobContext, Retry, Snooze
from errandry.errors import ProcessDied

jobs = Errandry("memory:")

Said = int | Exception


def said(n: int) -> Said:
    """What a handler says of an item: its double, or what a word of it stands for."""
    match n:
        case -1:
            return Retry("not yet", after=60)
        case -2:
            return Snooze(60)
        case -3:
            return Fail("never")
        case -4:
            return Cancel("not wanted")
        case -5:
            return ValueError("no such number")
    return 2 * n


@jobs.task(batch=10, run="process")
def doubled(ctx: JobContext, numbers: list[int]) -> list[Said]:
    for one, number in zip(ctx.jobs, numbers, strict=True):
        one.progress(0.5, f"number {number}")
    ctx.log(f"{len(numbers)} numbers")
    return [said(number) for number in numbers]


@jobs.task(batch=10, run="process")
async def doubled_async(numbers: list[int]) -> list[Said]:
    await asyncio.sleep(0)
    return [said(number) for number in numbers]


@jobs.task(batch=10, run="process", max_attempts=1)
def short(numbers: list[int]) -> list[int]:
    return numbers[1:]


@jobs.task(batch=10, run="process", max_attempts=2, backoff=0.01, fail_on=ProcessDied)
def dies(numbers: list[int]) -> None:
    os._exit(3)


@jobs.task(batch=10, run="process", max_attempts=1, timeout=0.3)
def stuck(numbers: list[int]) -> None:
    time.sleep(600)


@jobs.task(batch=10, run="process", max_attempts=1)
def held(ctx: JobContext, places: list[str]) -> list[str]:
    """Until there is a file `open` or the call should stop; says which of its jobs should."""
    place = Path(places[0])
    (place / "pid").write_text(str(os.getpid()))
    while not ((place / "open").exists() or ctx.canceled):
        stopped = [str(number) for number, one in enumerate(ctx.jobs) if one.canceled]
        (place / "stopped").write_text(" ".join(stopped))
        time.sleep(0.005)
    return [f"{number} of {len(places)}" for number in range(len(places))]
