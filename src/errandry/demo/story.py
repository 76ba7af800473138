"""The story of the demo: chapters that each show one thing and check that it happened."""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from errandry.api.job import Job
from errandry.core.state import State
from errandry.demo import shop
from errandry.errors import ErrandryError, UnknownJob

WORKERS = 2
CHAPTER_TIMEOUT = 60.0
"""Seconds after which a chapter fails."""
JOB_INTERVAL = 0.15
"""Seconds between everyday jobs."""
DISPLAY_PAUSE = 1.5
"""Seconds that something stays on the screen for viewers to see it."""
NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Radia", "Tony", "Frances", "Dennis", "Lynn")


class ChapterFailed(Exception):
    """Something else happened than the chapter expects."""


class Chapter:
    """One thing that the demo shows.

    title       what should happen
    fact        what has happened, in words
    has_passed  whether that is as expected; None while the chapter is not over
    """

    def __init__(self, title: str) -> None:
        self.title, self.fact = title, ""
        self.has_passed: bool | None = None

    def succeed(self, fact: str) -> None:
        self.fact, self.has_passed = fact, True

    def fail(self, fact: str) -> None:
        self.fact, self.has_passed = fact, False


class Story:
    """Plays all chapters at once and calls `report` with each chapter that has ended."""

    def __init__(self, report: Callable[[Chapter], None]) -> None:
        self._report = report
        self._jobs: list[Job[Any]] = []
        self._actions: dict[Chapter, Callable[[Chapter], Awaitable[None]]] = {
            Chapter("Jobs run in worker processes"): self._traffic,
            Chapter("A job that raises is retried"): self._retry,
            Chapter("A failed job is kept and can be rerun"): self._failure,
            Chapter("A job that has to wait snoozes"): self._snooze,
            Chapter("A delayed job runs when it is due"): self._schedule,
            Chapter("A running job can be canceled"): self._cancel,
            Chapter("A crash in a child process is retried"): self._crash,
            Chapter("The job of a killed worker runs again"): self._rescue,
        }
        self._final_chapter = Chapter("No job is lost")

    @property
    def chapters(self) -> list[Chapter]:
        return [*self._actions, self._final_chapter]

    @property
    def is_over(self) -> bool:
        """Whether every chapter but the last has ended."""
        return all(chapter.has_passed is not None for chapter in self._actions)

    async def play(self) -> None:
        """Play all chapters, and enqueue everyday jobs until canceled."""
        traffic = asyncio.create_task(self._enqueue_regularly())
        try:
            await asyncio.gather(*(self._run_chapter(chapter, act) for chapter, act in self._actions.items()))
            await traffic
        finally:
            traffic.cancel()

    async def end(self) -> None:
        """Check, after the workers have stopped, that the store has every job that was enqueued."""
        states = Counter[str]()
        for job in self._jobs:
            try:
                states[(await job.refresh()).state] += 1
            except UnknownJob:
                states["lost"] += 1
        counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        end = self._final_chapter.fail if states["lost"] else self._final_chapter.succeed
        end(f"{len(self._jobs):,} jobs enqueued: {counts}")
        self._report(self._final_chapter)

    async def _run_chapter(self, chapter: Chapter, act: Callable[[Chapter], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(CHAPTER_TIMEOUT):
                await act(chapter)
        except TimeoutError:
            chapter.fail(f"not finished after {CHAPTER_TIMEOUT:g} s; {chapter.fact or 'nothing happened'}")
        except (ErrandryError, ChapterFailed) as error:
            chapter.fail(str(error))
        self._report(chapter)

    async def _enqueue_regularly(self) -> None:
        """Enqueue ordinary jobs all the time, so that queues and workers have something to show."""
        for number in itertools.count(1):
            await self._enqueue(shop.welcome.enqueue(name=NAMES[number % len(NAMES)]))
            if number % 10 == 1:
                await self._enqueue(shop.report.enqueue(month=f"2026-{number // 10 % 12 + 1:02}"))
            if number % 7 == 1:
                await self._enqueue(shop.thumbnail.enqueue(picture=f"IMG_{number:04}.jpg"))
            if number % 25 == 0:
                await self._enqueue(shop.invoice.enqueue(order=number))
            await asyncio.sleep(JOB_INTERVAL)

    async def _traffic(self, chapter: Chapter) -> None:
        began = time.monotonic()
        done = 0
        for number in range(20):
            job = await self._enqueue(shop.welcome.enqueue(name=NAMES[number % len(NAMES)]))
            await job.result()
            done += 1
            chapter.fact = f"{done} jobs completed"
        seconds = (time.monotonic() - began) / done
        chapter.succeed(f"{done} jobs one by one, {seconds * 1e3:,.0f} ms each from enqueue to result")

    async def _retry(self, chapter: Chapter) -> None:
        job = await self._enqueue(shop.invoice.enqueue(order=1001))
        await _wait_for_state(job, State.COMPLETED)
        errors = job.errors
        chapter.succeed(f"attempt {job.attempts} succeeded after {len(errors)} × {errors[-1].type}")

    async def _failure(self, chapter: Chapter) -> None:
        job = await self._enqueue(shop.charge.enqueue(card="4000 … 0002"))
        await _wait_for_state(job, State.FAILED)
        chapter.fact = job.errors[-1].message
        await asyncio.sleep(DISPLAY_PAUSE)  # the live view lists it among the failed jobs
        await job.rerun()
        await _wait_for_state(job, State.COMPLETED)
        chapter.succeed(f"{chapter.fact}; it completed after a rerun")

    async def _snooze(self, chapter: Chapter) -> None:
        job = await self._enqueue(shop.track.enqueue(parcel="1Z-404"))
        await _wait_for_state(job, State.COMPLETED)
        took = job.updated_at - job.created_at
        chapter.succeed(f"completed after {took.total_seconds():.1f} s, still in attempt {job.attempts}")

    async def _schedule(self, chapter: Chapter) -> None:
        job = await self._enqueue(shop.remind.using(delay="2 seconds").enqueue(name="Ada"))
        chapter.fact = "due in 2 s"
        await job.wait()
        if job.started_at is None or job.run_at is None:
            raise ChapterFailed(f"job {job.id} ({job.task}) has not run")
        late = job.started_at - job.run_at
        chapter.succeed(f"started {late.total_seconds() * 1e3:,.0f} ms after its due time")

    async def _cancel(self, chapter: Chapter) -> None:
        job = await self._enqueue(shop.export.enqueue(what="all customers"))
        await self._wait_until(job, lambda job: job.state is State.RUNNING)
        canceled = time.monotonic()
        await job.cancel()
        await _wait_for_state(job, State.CANCELED)
        chapter.succeed(
            f"its handler stopped {(time.monotonic() - canceled) * 1e3:,.0f} ms after the request"
        )

    async def _crash(self, chapter: Chapter) -> None:
        job = await self._enqueue(shop.thumbnail.enqueue(picture="broken.jpg"))
        await _wait_for_state(job, State.COMPLETED)
        chapter.succeed(f"{job.errors[-1].message}; attempt {job.attempts} succeeded")

    async def _rescue(self, chapter: Chapter) -> None:
        await _wait_for_workers()
        await asyncio.sleep(DISPLAY_PAUSE)  # show normal work before the crash
        job = await self._enqueue(shop.crawl.enqueue(site="example.org"))
        await self._wait_until(job, lambda job: job.state is State.RUNNING)
        victim = next(worker for worker in await shop.jobs.workers.list() if worker.id == job.worker)
        chapter.fact = f"worker process {victim.pid} runs the job and will be killed"
        await asyncio.sleep(DISPLAY_PAUSE)
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        chapter.fact = f"worker process {victim.pid} was killed"
        await self._wait_until(job, lambda job: job.attempts > 1)
        took = time.monotonic() - killed
        chapter.fact += f"; its job ran again on another worker after {took:.1f} s"
        await _wait_for_state(job, State.COMPLETED)
        chapter.succeed(chapter.fact)

    async def _enqueue(self, enqueued: Awaitable[Job[Any]]) -> Job[Any]:
        job = await enqueued
        self._jobs.append(job)
        return job

    async def _wait_until(self, job: Job[Any], holds: Callable[[Job[Any]], bool]) -> None:
        """Read the job again at each of its events, until `holds` is true of it."""
        cursor = await shop.jobs.latest_cursor()
        if holds(await job.refresh()):
            return
        async for event in shop.jobs.events(after=cursor):
            if event.job == job.id and holds(await job.refresh()):
                return
        raise ChapterFailed("the stream of events has ended")


async def _wait_for_state(job: Job[Any], state: State) -> None:
    await job.wait()
    if job.state is not state:
        raise ChapterFailed(f"job {job.id} ({job.task}) is {job.state}, not {state}")


async def _wait_for_workers() -> None:
    while True:
        if len(await shop.jobs.workers.list()) >= WORKERS:
            return
        await asyncio.sleep(0.1)
