"""The program the fault tests start, stop and kill: a worker, a claimer or a producer that keeps a journal.

    python -m tests.faults.program work '{"lease": 1.5}'
    python -m tests.faults.program claim '{"lease": 1.5}'
    python -m tests.faults.program produce '{"seed": 1}'
    python -m tests.faults.program order '{"seed": 1}'
    python -m tests.faults.program embed '{"ending": "return"}'

`ERRANDRY_URL` is the address of the store, `JOURNAL` the path of the journal. `CLOCK_STEP`, if set, is a file
with the number of seconds by which the wall clock is wrong; the file may change at any time.
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
from contextlib import suppress
from typing import Any, cast

from errandry import Errandry, Worker, WorkerOptions, event_loop
from errandry.clock import SystemClock
from errandry.core.answer import Ack, Answer, Claims, Lost, Renewed
from errandry.core.command import Claim, Command, Renew, Settle
from errandry.core.job import uuid7
from errandry.errors import LeaseLost, ReplyLost
from errandry.store.contract import Store
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from tests.faults.handlers import BATCHED, HANDLERS, LINGERING, hold_by_hand, journal
from tests.faults.history import Claimed, EnqueueAcked, EnqueueSent, Fact, Journal, LeaseRenewed, Settled
from tests.faults.orders import Clerk

log = logging.getLogger("program")

PRODUCED_TASKS: Sequence[tuple[str, float]] = (
    *(("quick", 0.0), ("quick", 0.0), ("stumble", 0.0)),
    *(("rest", 0.3), ("rest_in_thread", 0.1)),
    *(("collect", 0.2), ("stumble_together", 0.1)),
)
"""What producers enqueue: tasks, and the maximum number of seconds each may take."""
LINGER = 0.2
"""Seconds for which the call of a lingering batch waits for more jobs."""


class StepClock(SystemClock):
    """This host's clock, wrong by the number of seconds in a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def time(self) -> float:
        with open(self._path, encoding="ascii") as step:
            return super().time() + float(step.read() or 0)


class JournaledStore:
    """A store that writes its answers to workers to the journal."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self.store, self._journal = store, journal
        self._first_sent: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        sent = time.time()
        for command in commands:
            if isinstance(command, Claim):
                self._first_sent.setdefault(command.nonce, sent)
        try:
            answers = await self.store.commit(commands)
        except ReplyLost:
            self._journal.write(*_unknown_settles(commands, sent))
            raise
        for command, answer in zip(commands, answers, strict=True):
            self._journal.write(
                *_facts(command, answer, self._sent_first(command, answer, sent), time.time())
            )
        return answers

    def _sent_first(self, command: Command, answer: Answer, sent: float) -> float:
        """When a command was first sent. The leases of a claim whose reply was lost began then."""
        if isinstance(command, Claim) and isinstance(answer, Claims):
            return self._first_sent.pop(command.nonce)
        return sent


def _facts(command: Command, answer: Answer, sent: float, at: float) -> Iterator[Fact]:
    pid = os.getpid()
    match command, answer:
        case Claim(lease=lease), Claims(jobs=jobs):
            for job in jobs:
                yield Claimed(job.id, job.fence, pid, lease, sent, at)
        case Renew(refs=refs, lease=lease), Renewed(acks=acks):
            for ref, ack in zip(refs, acks, strict=True):
                yield LeaseRenewed(ref.job, ref.fence, pid, _answer_name(ack), lease, sent, at)
        case Settle(ref=ref, outcome=outcome), Ack() | Lost():
            yield Settled(ref.job, ref.fence, pid, outcome.move, _answer_name(answer), sent, at)
        case Settle(), ReplyLost():
            yield from _unknown_settles([command], sent)


def _unknown_settles(commands: Sequence[Command], sent: float) -> Iterator[Fact]:
    """Settles whose reply was lost. They may be written, and so may have ended the claim of their worker."""
    for command in commands:
        if isinstance(command, Settle):
            ref, move = command.ref, command.outcome.move
            yield Settled(ref.job, ref.fence, os.getpid(), move, "unknown", sent, time.time())


def _answer_name(answer: Ack | Lost) -> str:
    return str(answer) if isinstance(answer, Ack) else "lost"


def with_tasks(app: Errandry) -> Errandry:
    """`app` with the tasks of the fault tests."""
    for handler in HANDLERS:
        app.task(backoff=0.05)(handler)
    for handler in BATCHED:
        app.task(backoff=0.05, batch=10)(handler)
    for handler in LINGERING:
        app.task(backoff=0.05, batch=10, linger=LINGER)(handler)
    return app


def journaled_app() -> Errandry:
    """The app of a worker or a producer, on a store that keeps a journal."""
    clock = StepClock(path) if (path := os.environ.get("CLOCK_STEP")) else None
    store = JournaledStore(store_at(os.environ["ERRANDRY_URL"], clock), journal())
    return with_tasks(Errandry(store=cast("Store", store), clock=clock))


async def work(options: dict[str, Any]) -> None:
    """Run a worker until SIGTERM. SIGUSR1 makes its disk full, SIGUSR2 frees space again."""
    async with journaled_app() as app:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: app.engine.call_sync(_limit_pages, app.store, 1))
        loop.add_signal_handler(signal.SIGUSR2, lambda: app.engine.call_sync(_limit_pages, app.store, 2**30))
        await Worker(app, WorkerOptions(**options)).run(signals=True)


async def embed(options: dict[str, Any]) -> None:
    """Run a worker beside a main program, which ends at SIGTERM without stopping it."""
    end, ending = asyncio.Event(), options.pop("ending")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    if ending == "open":  # the app is never closed
        app = journaled_app()
        await app.open()
        tasks = [asyncio.create_task(app.run_worker(**options))]
        await end.wait()
        return
    async with journaled_app() as app:
        tasks = [asyncio.create_task(app.run_worker(**options))]
        if ending == "background":
            tasks.append(asyncio.create_task(_exit_at(end)))
            await asyncio.Event().wait()
        await end.wait()
        if ending == "exit":
            sys.exit(3)
        if ending == "error":
            raise RuntimeError("the main program has failed")


async def _exit_at(end: asyncio.Event) -> None:
    await end.wait()
    sys.exit(3)


ENDINGS = ("return", "open", "exit", "error", "background")
"""How `embed` may end."""


async def claim(options: dict[str, Any]) -> None:
    """Claim jobs and settle them by hand until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with journaled_app() as app, app.claimer(**options) as claimer:
        while not stop.is_set():
            for job in await claimer.claim(limit=10, wait=0.1):
                try:
                    await hold_by_hand(job)
                except LeaseLost as error:
                    log.warning("%s", error)


async def claim_until_canceled(options: dict[str, Any]) -> None:
    """Claim jobs and hold them. SIGTERM cancels the task, as the page about claiming by hand shows."""

    async def hold() -> None:
        async with journaled_app() as app, app.claimer(**options) as claimer:
            for job in await claimer.claim(limit=10, wait="1 minute"):
                await hold_by_hand(job)

    task = asyncio.create_task(hold())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _limit_pages(store: JournaledStore, pages: int) -> None:
    """Limit the file to a number of pages, at least those it has. Only for SQLite."""
    if isinstance(store.store, SqliteStore):
        log.info("the store may have %s pages", store.store.writer.pragma("max_page_count", pages))


async def produce(options: dict[str, Any]) -> None:
    """Enqueue jobs until SIGTERM."""
    dice, stop, pid = random.Random(options["seed"]), asyncio.Event(), os.getpid()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with journaled_app() as app:
        while not stop.is_set():
            task, longest = dice.choice(PRODUCED_TASKS)
            job_id = uuid7(time.time(), secrets.token_bytes(10))
            arguments = {"seconds": dice.uniform(0, longest)} if longest else {}
            journal().write(EnqueueSent(job_id, pid, time.time()))
            await app.enqueue(task, arguments, id=job_id, queue=dice.choice(("default", "other")))
            journal().write(EnqueueAcked(job_id, pid, time.time()))
            await asyncio.sleep(dice.uniform(0, 0.015))


async def order(options: dict[str, Any]) -> None:
    """Enqueue jobs with `bind`, in transactions that also write orders, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with journaled_app() as app:
        await Clerk(app, **options).run(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    programs = {"work": work, "claim": claim, "cancelable": claim_until_canceled, "produce": produce}
    programs |= {"embed": embed, "order": order}
    event_loop.run(programs[sys.argv[1]](json.loads(sys.argv[2])))
