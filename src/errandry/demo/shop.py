"""The background jobs of a shop, declared as in any program. The store is `$ERRANDRY_URL`."""

import asyncio
import logging
import os
import signal
from datetime import UTC, datetime, timedelta

from errandry import Backoff, Errandry, Fail, JobContext, Snooze

jobs = Errandry()
log = logging.getLogger("shop")

RETRY_SOON = Backoff(start=0.4, jitter=0.0)


@jobs.task(queue="mail")
async def welcome(name: str) -> str:
    """A quick job; the demo enqueues one all the time."""
    await asyncio.sleep(0.05)
    return f"Welcome, {name}!"


@jobs.task(queue="billing", backoff=RETRY_SOON)
async def invoice(ctx: JobContext, order: int) -> str:
    """Fail twice, as if a service did not respond for a moment."""
    if ctx.attempt < 3:
        raise ConnectionError(f"billing does not answer (order {order})")
    return f"invoice for order {order}"


@jobs.task(queue="billing")
async def charge(ctx: JobContext, card: str) -> str:
    """Fail for good, and succeed only after an operator's rerun."""
    if not ctx.job.errors:
        raise Fail(f"card {card} has expired")
    return f"charged {card}"


@jobs.task(queue="parcels")
async def track(ctx: JobContext, parcel: str) -> str:
    """Poll for a parcel: snooze until it has arrived. A snooze uses neither a slot nor an attempt."""
    if datetime.now(UTC) < ctx.job.created_at + timedelta(seconds=1.5):
        raise Snooze(0.5)
    return f"{parcel} has arrived"


@jobs.task(queue="mail")
async def remind(name: str) -> str:
    """A job that is enqueued with a delay."""
    return f"{name}, your basket is waiting"


@jobs.task(queue="reports")
async def report(ctx: JobContext, month: str) -> str:
    """Long work that reports its progress."""
    for part in range(1, 31):
        await asyncio.sleep(0.1)
        ctx.progress(part / 30, f"{part * 100:,} of 3,000 rows")
    log.info("%s is ready", month)
    return f"{month}.pdf"


@jobs.task(queue="reports")
async def export(ctx: JobContext, what: str) -> str:
    """Long work that the demo cancels."""
    for part in range(600):
        await asyncio.sleep(0.1)
        ctx.progress(part / 600, what)
    return what


@jobs.task(queue="pictures", runner="process", backoff=RETRY_SOON)
def thumbnail(ctx: JobContext, picture: str) -> int:
    """CPU work in a child process; a broken picture kills that process and no other."""
    if "broken" in picture and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return sum(len(picture) * pixel % 255 for pixel in range(300_000)) % 255


@jobs.task(queue="import", backoff=RETRY_SOON)
async def crawl(ctx: JobContext, site: str) -> str:
    """Long enough for its worker to be killed; the second attempt is quick."""
    if ctx.attempt == 1:
        await asyncio.sleep(60)
    await asyncio.sleep(0.5)
    return f"{site}: 1,204 pages"
