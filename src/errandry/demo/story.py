"""What happens in the demo, and whether it happened: chapters that each promise something and check it."""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from errandry.api.job import Job
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.demo import shop
from errandry.errors import ErrandryError, UnknownJob

WORKERS = 2
PATIENCE = 60.0
"""A chapter that takes longer than this has not kept its promise."""
EVERY = 0.15
SEEN = 1.5
"""How long something stands there for people to see it."""
NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Radia", "Tony", "Frances", "Dennis", "Lynn")


class ChapterFailed(Exception):
    """Something else happened than was promised."""


class Chapter:
    """A promise. `fact` is what was seen of it; it is kept when `is_kept` is True, broken when False."""

    def __init__(self, promise: str) -> None:
        self.promise, self.fact = promise, ""
        self.is_kept: bool | None = None

    def keep(self, fact: str) -> None:
        self.fact, self.is_kept = fact, True

    def fail(self, fact: str) -> None:
        self.fact, self.is_kept = fact, False


class Story:
    """Every chapter is played at once; `tell` is called with each that has ended."""

    def __init__(self, tell: Callable[[Chapter], None]) -> None:
        self._tell = tell
        self._jobs: list[Job[Any]] = []
        self._acts: dict[Chapter, Callable[[Chapter], Awaitable[None]]] = {
            Chapter("jobs run in other processes"): self._traffic,
            Chapter("a job that fails is tried again"): self._retry,
            Chapter("a hopeless job is kept, with its errors"): self._failure,
            Chapter("a job that must wait snoozes"): self._snooze,
            Chapter("a job for later runs when it is due"): self._schedule,
            Chapter("a running job can be canceled"): self._cancel,
            Chapter("a crash in a process hurts only its job"): self._crash,
            Chapter("a worker is killed with -9, its job rescued"): self._rescue,
        }
        self._ending = Chapter("nothing is lost")

    @property
    def chapters(self) -> list[Chapter]:
        return [*self._acts, self._ending]

    @property
    def is_over(self) -> bool:
        """Whether every chapter but the last has ended."""
        return all(chapter.is_kept is not None for chapter in self._acts)

    async def play(self) -> None:
        """Make everything happen, and go on with everyday work until canceled."""
        traffic = asyncio.create_task(self._everyday())
        try:
            await asyncio.gather(*(self._act(chapter, act) for chapter, act in self._acts.items()))
            await traffic
        finally:
            traffic.cancel()

    async def end(self) -> None:
        """When the workers are gone: is every job that was enqueued still known?"""
        found = Counter[str]()
        for job in self._jobs:
            try:
                found[(await job.refresh()).state] += 1
            except UnknownJob:
                found["lost"] += 1
        said = ", ".join(f"{count:,} {state}" for state, count in sorted(found.items()))
        end = self._ending.fail if found["lost"] else self._ending.keep
        end(f"{len(self._jobs):,} enqueued: {said}")
        self._tell(self._ending)

    async def _act(self, chapter: Chapter, act: Callable[[Chapter], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await act(chapter)
        except TimeoutError:
            chapter.fail(f"did not happen within {PATIENCE:g} s; {chapter.fact or 'nothing was seen of it'}")
        except (ErrandryError, ChapterFailed) as error:
            chapter.fail(str(error))
        self._tell(chapter)

    async def _everyday(self) -> None:
        """A stream of ordinary jobs, so that there is something to see."""
        for number in itertools.count(1):
            await self._new(shop.welcome.enqueue(name=NAMES[number % len(NAMES)]))
            if number % 10 == 1:
                await self._new(shop.report.enqueue(month=f"2026-{number // 10 % 12 + 1:02}"))
            if number % 7 == 1:
                await self._new(shop.thumbnail.enqueue(picture=f"IMG_{number:04}.jpg"))
            if number % 25 == 0:
                await self._new(shop.invoice.enqueue(order=number))
            await asyncio.sleep(EVERY)

    async def _traffic(self, chapter: Chapter) -> None:
        began = time.monotonic()
        done = 0
        for number in range(20):
            job = await self._new(shop.welcome.enqueue(name=NAMES[number % len(NAMES)]))
            await job.result()
            done += 1
            chapter.fact = f"{done} done"
        pace = (time.monotonic() - began) / done
        chapter.keep(f"{done} one after the other, {pace * 1e3:,.0f} ms each there and back")

    async def _retry(self, chapter: Chapter) -> None:
        job = await self._new(shop.invoice.enqueue(order=1001))
        await _reach(job, State.COMPLETED)
        errors = job.record.errors
        chapter.keep(f"attempt {job.record.attempts} succeeded, after {len(errors)} × {errors[-1].type}")

    async def _failure(self, chapter: Chapter) -> None:
        job = await self._new(shop.charge.enqueue(card="4000 … 0002"))
        await _reach(job, State.FAILED)
        chapter.fact = job.record.errors[-1].message
        await asyncio.sleep(SEEN)  # so that it can be seen among the failed
        await job.rerun()
        await _reach(job, State.COMPLETED)
        chapter.keep(f"{chapter.fact}; run again by hand, it succeeded")

    async def _snooze(self, chapter: Chapter) -> None:
        job = await self._new(shop.track.enqueue(parcel="1Z-404"))
        await _reach(job, State.COMPLETED)
        took = (job.record.finished_at or 0.0) - job.record.created_at
        chapter.keep(f"done after {took:.1f} s, still in attempt {job.record.attempts}")

    async def _schedule(self, chapter: Chapter) -> None:
        job = await self._new(shop.remind.using(delay="2 seconds").enqueue(name="Ada"))
        chapter.fact = "due in 2 s"
        await job.wait()
        late = (job.record.started_at or 0.0) - (job.record.run_at or 0.0)
        chapter.keep(f"began {late * 1e3:,.0f} ms after its time")

    async def _cancel(self, chapter: Chapter) -> None:
        job = await self._new(shop.export.enqueue(what="all customers"))
        await self._until(job, lambda record: record.state is State.RUNNING)
        asked = time.monotonic()
        await job.cancel()
        await _reach(job, State.CANCELED)
        chapter.keep(f"its handler had stopped {(time.monotonic() - asked) * 1e3:,.0f} ms later")

    async def _crash(self, chapter: Chapter) -> None:
        job = await self._new(shop.thumbnail.enqueue(picture="broken.jpg"))
        await _reach(job, State.COMPLETED)
        chapter.keep(f"{job.record.errors[-1].message}; attempt {job.record.attempts} succeeded")

    async def _rescue(self, chapter: Chapter) -> None:
        await _workers_are_there()
        await asyncio.sleep(SEEN)  # first comes what is usual
        job = await self._new(shop.crawl.enqueue(site="example.org"))
        record = await self._until(job, lambda record: record.state is State.RUNNING)
        victim = next(info.beat for info in await shop.jobs.workers() if info.beat.worker == record.worker)
        chapter.fact = f"worker process {victim.pid} is about to be killed"
        await asyncio.sleep(SEEN)
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        chapter.fact = f"process {victim.pid} was killed"
        await self._until(job, lambda record: record.attempts > 1)
        took = time.monotonic() - killed
        chapter.fact += f"; another worker took its job {took:.1f} s later"
        await _reach(job, State.COMPLETED)
        chapter.keep(chapter.fact)

    async def _new(self, enqueued: Awaitable[Job[Any]]) -> Job[Any]:
        job = await enqueued
        self._jobs.append(job)
        return job

    async def _until(self, job: Job[Any], holds: Callable[[JobRecord], bool]) -> JobRecord:
        """The record as soon as `holds` is true of it."""
        head = await shop.jobs.latest_cursor()
        if holds((await job.refresh()).record):
            return job.record
        async for happened in shop.jobs.events(after=head):
            if happened.event.job == job.id and holds((await job.refresh()).record):
                return job.record
        raise ChapterFailed("the events have ended")


async def _reach(job: Job[Any], state: State) -> None:
    await job.wait()
    if job.state is not state:
        raise ChapterFailed(f"job {job.id} ({job.task}) is {job.state}, not {state}")


async def _workers_are_there() -> None:
    while True:
        if len(await shop.jobs.workers()) >= WORKERS:
            return
        await asyncio.sleep(0.1)
