"""The program the fault tests start, stop and kill: a worker or a producer that keeps a journal.

    python -m tests.faults.program work '{"lease": 1.5}'
    python -m tests.faults.program produce '{"seed": 1}'

`ERRANDRY_URL` says where the store is and `JOURNAL` where the journal is. `CLOCK_STEP`, if set, names a file
with the seconds by which the wall clock is wrong; it may change at any time.
"""

import asyncio
import json
import logging
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

from errandry import Errandry, Worker, WorkerOptions, event_loop
from errandry.clock import SystemClock
from errandry.core.answer import Ack, Answer, Claims, Lost, Renewed
from errandry.core.command import Claim, Command, Renew, Settle
from errandry.core.job import uuid7
from errandry.errors import ReplyLost
from errandry.store.contract import Store
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from tests.faults.handlers import BATCHED, HANDLERS, journal
from tests.faults.history import Acked, Asked, Claimed, Fact, Journal, LeaseRenewed, Settled

log = logging.getLogger("program")

MIX: Sequence[tuple[str, float]] = (
    *(("quick", 0.0), ("quick", 0.0), ("stumble", 0.0)),
    *(("rest", 0.3), ("rest_in_thread", 0.1)),
)
"""What producers enqueue: tasks, and how long they may take at most."""


class StepClock(SystemClock):
    """This host's clock, wrong by what the file says."""

    def __init__(self, path: str) -> None:
        self._path = path

    def time(self) -> float:
        with open(self._path, encoding="ascii") as step:
            return super().time() + float(step.read() or 0)


class Recorded:
    """A store that writes into the journal what it answered to workers."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self.store, self._journal = store, journal
        self._asked: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        sent = time.time()
        for command in commands:
            if isinstance(command, Claim):
                self._asked.setdefault(command.nonce, sent)
        try:
            answers = await self.store.commit(commands)
        except ReplyLost:
            self._journal.write(*_unknown(commands, sent))
            raise
        for command, answer in zip(commands, answers, strict=True):
            self._journal.write(*_facts(command, answer, self._first(command, answer, sent), time.time()))
        return answers

    def _first(self, command: Command, answer: Answer, sent: float) -> float:
        """When it was sent for the first time: leases of a claim whose reply was lost began then."""
        if isinstance(command, Claim) and isinstance(answer, Claims):
            return self._asked.pop(command.nonce)
        return sent


def _facts(command: Command, answer: Answer, sent: float, at: float) -> Iterator[Fact]:
    pid = os.getpid()
    match command, answer:
        case Claim(lease=lease), Claims(jobs=jobs):
            for job in jobs:
                yield Claimed(job.id, job.fence, pid, lease, sent, at)
        case Renew(refs=refs, lease=lease), Renewed(acks=marks):
            for ref, mark in zip(refs, marks, strict=True):
                yield LeaseRenewed(ref.job, ref.fence, pid, _said(mark), lease, sent, at)
        case Settle(ref=ref, outcome=outcome), Ack() | Lost():
            yield Settled(ref.job, ref.fence, pid, outcome.move, _said(answer), sent, at)
        case Settle(), ReplyLost():
            yield from _unknown([command], sent)


def _unknown(commands: Sequence[Command], sent: float) -> Iterator[Fact]:
    """Outcomes that may have been written: whoever sent them can have lost its claim by that."""
    for command in commands:
        if isinstance(command, Settle):
            ref, move = command.ref, command.outcome.move
            yield Settled(ref.job, ref.fence, os.getpid(), move, "unknown", sent, time.time())


def _said(answer: Ack | Lost) -> str:
    return str(answer) if isinstance(answer, Ack) else "lost"


def declared(app: Errandry) -> Errandry:
    """`app` with the tasks of the fault tests."""
    for handler in HANDLERS:
        app.task(backoff=0.05)(handler)
    for handler in BATCHED:
        app.task(backoff=0.05, batch=10)(handler)
    return app


def recorded() -> Errandry:
    """The app of a worker or a producer."""
    clock = StepClock(path) if (path := os.environ.get("CLOCK_STEP")) else None
    store = Recorded(store_at(os.environ["ERRANDRY_URL"], clock), journal())
    return declared(Errandry(store=cast("Store", store), clock=clock))


async def work(options: dict[str, Any]) -> None:
    """A worker, until SIGTERM. SIGUSR1 makes its disk full, SIGUSR2 gives it room again."""
    async with recorded() as app:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: app.engine.call_sync(_limit, app.store, 1))
        loop.add_signal_handler(signal.SIGUSR2, lambda: app.engine.call_sync(_limit, app.store, 2**30))
        await Worker(app, WorkerOptions(**options)).run(signals=True)


async def _limit(store: Recorded, pages: int) -> None:
    """Let the file grow to so many pages; never to less than it has. Only SQLite can."""
    if isinstance(store.store, SqliteStore):
        log.info("the store may have %s pages", store.store.writer.pragma("max_page_count", pages))


async def produce(options: dict[str, Any]) -> None:
    """Enqueue one job after the other, until SIGTERM."""
    dice, stop, pid = random.Random(options["seed"]), asyncio.Event(), os.getpid()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with recorded() as app:
        while not stop.is_set():
            task, most = dice.choice(MIX)
            job_id = uuid7(time.time(), secrets.token_bytes(10))
            arguments = {"seconds": dice.uniform(0, most)} if most else {}
            journal().write(Asked(job_id, pid, time.time()))
            await app.enqueue(task, arguments, id=job_id, queue=dice.choice(("default", "other")))
            journal().write(Acked(job_id, pid, time.time()))
            await asyncio.sleep(dice.uniform(0, 0.015))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    event_loop.run({"work": work, "produce": produce}[sys.argv[1]](json.loads(sys.argv[2])))
