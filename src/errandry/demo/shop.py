"""A shop's background jobs, as any program would declare them. The store is the one of `$ERRANDRY_URL`."""

import asyncio
import logging
import os
import signal
import time

from errandry import Backoff, Errandry, Fail, JobContext, Snooze

jobs = Errandry()
log = logging.getLogger("shop")

SOON = Backoff(start=0.4, jitter=0.0)


@jobs.task(queue="mail")
async def welcome(name: str) -> str:
    """Quick work, all the time."""
    await asyncio.sleep(0.05)
    return f"Welcome, {name}!"


@jobs.task(queue="billing", backoff=SOON)
async def invoice(ctx: JobContext, order: int) -> str:
    """A service that is away for a moment."""
    if ctx.attempt < 3:
        raise ConnectionError(f"billing does not answer (order {order})")
    return f"invoice for order {order}"


@jobs.task(queue="billing")
async def charge(ctx: JobContext, card: str) -> str:
    """Hopeless until somebody has seen to it."""
    if not ctx.job.errors:
        raise Fail(f"card {card} has expired")
    return f"charged {card}"


@jobs.task(queue="parcels")
async def track(ctx: JobContext, parcel: str) -> str:
    """Not there yet: asks again later, without a slot or an attempt meanwhile."""
    if time.time() < ctx.job.created_at + 1.5:
        raise Snooze(0.5)
    return f"{parcel} has arrived"


@jobs.task(queue="mail")
async def remind(name: str) -> str:
    """Enqueued for later."""
    return f"{name}, your basket is waiting"


@jobs.task(queue="reports")
async def report(ctx: JobContext, month: str) -> str:
    """Long work that says how far it is."""
    for part in range(1, 31):
        await asyncio.sleep(0.1)
        ctx.progress(part / 30, f"{part * 100:,} of 3,000 rows")
    log.info("%s is ready", month)
    return f"{month}.pdf"


@jobs.task(queue="reports")
async def export(ctx: JobContext, what: str) -> str:
    """Work that somebody cancels."""
    for part in range(600):
        await asyncio.sleep(0.1)
        ctx.progress(part / 600, what)
    return what


@jobs.task(queue="pictures", run="process", backoff=SOON)
def thumbnail(ctx: JobContext, picture: str) -> int:
    """Heavy work in a process of its own; a broken picture takes down that process, and nothing else."""
    if "broken" in picture and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return sum(len(picture) * pixel % 255 for pixel in range(300_000)) % 255


@jobs.task(queue="import", backoff=SOON)
async def crawl(ctx: JobContext, site: str) -> str:
    """Under way when its worker is killed; begun again, it is quick."""
    if ctx.attempt == 1:
        await asyncio.sleep(60)
    await asyncio.sleep(0.5)
    return f"{site}: 1,204 pages"
