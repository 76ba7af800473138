"""Many clients at once on the same few jobs, with a server that checks for deadlocks after 10 ms."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from errandry.core.answer import Answer, Claims, UpkeepResult
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    Insert,
    Ref,
    Renew,
    RetryOutcome,
    Settle,
    Upkeep,
)
from errandry.core.job import Failure, Keep, NewJob
from errandry.core.query import parse
from errandry.core.retry import Backoff
from errandry.core.state import TERMINAL, Reason
from errandry.core.unique import UniqueKey
from errandry.errors import ErrandryError, StoreUnavailable
from errandry.store.contract import EventEntry, Store
from errandry.store.engine.engine import Engine
from errandry.store.url import store_at
from tests.faults.history import EnqueueSent, Journal, violations
from tests.faults.program import JournaledStore
from tests.faults.scene import read_contents
from tests.store.server import server

QUEUES, TASKS = ("a", "b", "c"), ("one", "two")
SHORT_DEADLOCK_TIMEOUT = "-c%20deadlock_timeout%3D10ms"


class Crowd:
    """Clients with an engine each on one schema. All claims and outcomes are written into a journal."""

    def __init__(self, journal: Journal, seed: int, jobs: int) -> None:
        self.dice, self.journal, self.jobs = random.Random(seed), journal, jobs
        self.errors: list[BaseException] = []
        self.url = f"{server().new_url()}&options={SHORT_DEADLOCK_TIMEOUT}"
        self.is_over = self.is_written = False

    def engine(self) -> Engine:
        return Engine(cast("Store", JournaledStore(store_at(self.url), self.journal)))

    async def submit(self, engine: Engine, command: Command) -> Answer | None:
        """Submit a command and return its answer. Every error is recorded: concurrency must not cause any."""
        while True:
            try:
                return await engine.submit(command)
            except ErrandryError as error:
                if not isinstance(error, StoreUnavailable) or not isinstance(command, Renew | Settle):
                    self.errors.append(error)
                    return None
            await asyncio.sleep(0.1)  # like a worker, which repeats its outcomes

    async def produce(self, engine: Engine) -> None:
        for start in range(0, self.jobs, 20):
            ids = [f"job-{number:05}" for number in range(start, start + 20)]
            self.dice.shuffle(ids)
            self.journal.write(*[EnqueueSent(one, 0, time.time()) for one in ids])
            await self.submit(engine, Insert(tuple(map(self.job, ids))))

    def job(self, job_id: str) -> NewJob:
        return NewJob(
            id=job_id,
            task=self.dice.choice(TASKS),
            queue=self.dice.choice(QUEUES),
            payload="{}",
            priority=self.dice.randrange(3),
            keep=Keep(completed=self.dice.choice((0.0, 0.1, 3_600.0))),
            backoff=Backoff(start=0.0, jitter=0.0),
            max_attempts=50,
            max_crashes=50,
            unique=UniqueKey(f"key of {job_id}") if self.dice.random() < 0.5 else None,
        )

    async def claim(self, worker: str, engine: Engine) -> None:
        """Claim and settle until the end of the test. Some leases are so short that they expire."""
        number = 0
        while not self.is_over:
            number += 1
            lease = self.dice.choice((0.05, 30.0, 30.0))
            claim = Claim(worker=worker, nonce=str(number), limit=self.dice.randrange(1, 20), lease=lease)
            answer = await self.submit(engine, claim)
            jobs = answer.jobs if isinstance(answer, Claims) else ()
            refs = [Ref(job.id, job.fence) for job in jobs]
            if not refs:
                await asyncio.sleep(0.01)
                continue
            self.dice.shuffle(refs)
            if self.dice.random() < 0.3:
                await self.submit(engine, Renew(tuple(refs), lease))
            for ref in refs:
                failure = Failure(Reason.ERROR, "Error", "again")
                again = self.dice.random() < 0.2
                done = CompleteOutcome(f'{{"fence": {ref.fence}}}')
                await self.submit(engine, Settle(ref, RetryOutcome(failure) if again else done))

    async def keep_up(self, engine: Engine) -> None:
        while not self.is_over:
            answer = await self.submit(engine, Upkeep(limit=self.dice.choice((5, 1_000))))
            await asyncio.sleep(0 if isinstance(answer, UpkeepResult) and answer.more else 0.01)

    async def cancel(self, engine: Engine) -> None:
        """Cancel by query, and by ids in any order."""
        while not self.is_over:
            ids = [f"job-{self.dice.randrange(self.jobs):05}" for _ in range(5)]
            commands = (
                CancelJobs(ids=tuple(dict.fromkeys(ids))),
                CancelJobs(query=parse(f"queue:{self.dice.choice(QUEUES)} priority:2"), limit=20),
            )
            await self.submit(engine, self.dice.choice(commands))
            await asyncio.sleep(self.dice.uniform(0, 0.05))

    async def read(self, seen: list[EventEntry], engine: Engine) -> None:
        """Follow the event log from its beginning until all clients have finished."""
        cursor = None
        while True:
            is_last = self.is_written
            page = await engine.call(engine.store.events, cursor, 50)
            seen += page.entries
            cursor = page.cursor
            if is_last and not page.entries:
                return
            await asyncio.sleep(self.dice.uniform(0, 0.005))

    async def wait_until_finished(self, engine: Engine) -> None:
        """Return when all jobs have ended."""
        while True:
            counts = await engine.call(engine.store.counts)
            if all(state in TERMINAL for states in counts.values() for state in states):
                return
            await asyncio.sleep(0.02)


async def run_crowd(crowd: Crowd, claimers: int, upkeepers: int) -> list[list[EventEntry]]:
    """Run all clients until all jobs have finished. Return the events that each reader saw."""
    seen: list[list[EventEntry]] = [[] for _ in range(2)]
    work: list[Callable[[Engine], Awaitable[None]]] = [
        *[partial(crowd.claim, f"w{number}") for number in range(claimers)],
        *[crowd.keep_up] * upkeepers,
        *[crowd.cancel] * 2,
    ]
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(crowd.engine()) for _ in (None, *work, *seen)]
        first, readers = engines[0], engines[-len(seen) :]
        tasks = [asyncio.ensure_future(do(engine)) for do, engine in zip(work, engines[1:], strict=False)]
        reading = [asyncio.ensure_future(crowd.read(*reader)) for reader in zip(seen, readers, strict=True)]
        try:
            await crowd.produce(first)
            await crowd.wait_until_finished(first)
        finally:
            crowd.is_over = True
            await asyncio.gather(*tasks)
            crowd.is_written = True
            await asyncio.gather(*reading)
    return seen


@pytest.mark.slow("two dozen connections compete for locks")
async def test_many_clients_on_the_same_jobs_get_no_error_and_no_job_twice(tmp_path: Path) -> None:
    crowd = Crowd(Journal(tmp_path / "journal"), seed=1, jobs=400)

    async with asyncio.timeout(110):
        seen = await run_crowd(crowd, claimers=16, upkeepers=4)

    async with crowd.engine() as engine:
        log = await engine.call(read_contents, engine.store)
    assert crowd.errors == []
    assert violations(crowd.journal.read(), log) == []
    for entries in seen:
        assert [entry.cursor for entry in entries] == [entry.cursor for entry in log.events]
        assert [entry.event for entry in entries] == [entry.event for entry in log.events]
