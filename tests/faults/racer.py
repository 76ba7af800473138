"""A racer: it enqueues, works, reruns and rolls back jobs with a few unique keys beside other racers.

Run as a program: `python -m tests.faults.racer URL SEED ROUNDS`. Prints its results as JSON.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import apsw
import psycopg

from errandry import Errandry, UniqueOptions
from errandry.api.task import Task
from errandry.core.answer import Claims
from errandry.core.command import Claim, CompleteOutcome, FailOutcome, Outcome, Ref, RetryOutcome, Settle
from errandry.errors import DuplicateJob, ErrandryError, StoreUnavailable

KEYS = ("a", "b", "c")
CONFLICTS: tuple[Literal["return", "raise", "replace"], ...] = ("return", "raise", "replace")


class Racer:
    """`seed` determines its acts. The queue of a job is its key, so that events show the key."""

    def __init__(self, jobs: Errandry, seed: int) -> None:
        self.jobs, self.dice = jobs, Random(seed)
        self.name = f"racer-{seed}"
        self.inserted: list[str] = []
        self.existing: list[str] = []
        self.rolled_back: list[str] = []

    async def run(self, rounds: int) -> dict[str, list[str]]:
        acts = [self.enqueue, self.enqueue, self.work, self.work, self.rerun, self.enqueue_in_transaction]
        for _ in range(rounds):
            act = self.dice.choice(acts)
            while not await self.could_run(act):
                pass
        return {"inserted": self.inserted, "existing": self.existing, "rolled_back": self.rolled_back}

    async def could_run(self, act: Callable[[], Awaitable[None]]) -> bool:
        """Run an act. False if it waited too long for a lock of another racer, and has written nothing."""
        try:
            await act()
        except StoreUnavailable as error:
            if "lock timeout" not in str(error):
                raise
            return False
        return True

    def task(self) -> Task[[int], None]:
        key = self.dice.choice(KEYS)
        unique = UniqueOptions(key, on_conflict=self.dice.choice(CONFLICTS))
        return self.jobs.tasks["touch"].using(queue=key, unique=unique)

    async def enqueue(self) -> None:
        try:
            job = await self.task().enqueue(1)
        except DuplicateJob as error:
            self.existing.append(error.job_id)
        else:
            (self.existing if job.existed else self.inserted).append(job.id)

    async def work(self) -> None:
        nonce = f"{self.name}-{self.dice.random()}"
        claims = await self.jobs.engine.submit(Claim(worker=self.name, nonce=nonce, limit=2, lease=600.0))
        assert isinstance(claims, Claims)
        for job in claims.jobs:
            outcomes: tuple[Outcome, ...] = (CompleteOutcome(), FailOutcome(), RetryOutcome(delay=0))
            settle = Settle(Ref(job.id, job.fence), self.dice.choice(outcomes))
            while not await self.could_run(partial(self.settle, settle)):
                pass

    async def settle(self, settle: Settle) -> None:
        await self.jobs.engine.submit(settle)

    async def rerun(self) -> None:
        ended = (await self.jobs.list("state:failed,completed", limit=5)).jobs
        if ended:
            try:
                await self.jobs.rerun(self.dice.choice(ended).id)
            except ErrandryError as error:
                if isinstance(error, DuplicateJob):
                    self.existing.append(error.job_id)

    async def enqueue_in_transaction(self) -> None:
        """Enqueue in a transaction that stays open for a moment; every second one is rolled back."""
        is_kept = self.dice.random() < 0.5
        try:
            async with transaction(self.jobs, is_kept) as connection:
                bound = self.task().bind(connection)
                is_async = isinstance(connection, psycopg.AsyncConnection)
                job = await bound.enqueue(2) if is_async else bound.sync.enqueue(2)
                await asyncio.sleep(self.dice.random() / 100)
        except DuplicateJob as error:
            self.existing.append(error.job_id)
            return
        (self.existing if job.existed else self.inserted if is_kept else self.rolled_back).append(job.id)


@asynccontextmanager
async def transaction(jobs: Errandry, is_kept: bool) -> AsyncIterator[Any]:
    """A connection in a transaction that is committed or rolled back at the end."""
    url = jobs.url or ""
    if url.startswith("sqlite:"):
        db = apsw.Connection(url.removeprefix("sqlite:///"))
        db.set_busy_timeout(30_000)
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        finally:
            db.execute("COMMIT" if is_kept else "ROLLBACK")
            db.close()
        return
    server = (
        url.partition("?")[0]
        + "?"
        + "&".join(part for part in url.partition("?")[2].split("&") if not part.startswith("schema="))
    )
    async with await psycopg.AsyncConnection.connect(server) as connection:
        try:
            yield connection
        finally:
            await (connection.commit() if is_kept else connection.rollback())


def app(url: str) -> Errandry:
    jobs = Errandry(url)

    @jobs.task(max_attempts=3)
    async def touch(number: int) -> None: ...

    return jobs


async def main(url: str, seed: int, rounds: int) -> None:
    async with app(url) as jobs:
        report("ready")
        await asyncio.to_thread(sys.stdin.readline)
        report(json.dumps(await Racer(jobs, seed).run(rounds)))


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
