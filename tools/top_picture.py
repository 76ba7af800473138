"""Draw `errandry top` for the landing page: its real view of a store in memory, on a clock that is moved."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import count
from math import sin
from random import Random

from errandry import Errandry
from errandry.cli.session import Session
from errandry.cli.top import TopView
from errandry.core.answer import Claims
from errandry.core.command import Beat, Claim, CompleteOutcome, FailOutcome, Note, Ref, RetryOutcome, Settle
from errandry.core.gate import GateKind, Pause
from errandry.core.job import Failure, JobRecord, NewJob, Progress
from errandry.core.state import Reason
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from tools import screen

COLUMNS, LINES = 104, 31
SECONDS = 14
"""Seconds of work before the picture, one snapshot each."""
START = datetime(2026, 11, 16, 9, 30).timestamp()  # noqa: DTZ001 - the view shows local time: 09:30 everywhere
WORKERS = ("web-1-4182-9c41d7e0", "web-2-977-51b0c2aa")
FAILURES = (
    (6_690.0, "invoice", Failure(Reason.TIMEOUT, "TimeoutError", "the handler ran longer than 30 s")),
    (520.0, "charge", Failure(Reason.UNRECOVERABLE, "Fail", "the card ending in 0002 has expired")),
    (90.0, "charge", Failure(Reason.ERROR, "ConnectionError", "the bank does not answer")),
)
"""Seconds until the next one, the task, and how its last attempt ended; the oldest first."""


def top() -> str:
    """The SVG document. It is the same on every machine and at any time."""
    return screen.drawing(
        "errandry top: queues, workers, running and failed jobs", asyncio.run(_lines()), COLUMNS
    )


class _ColorSession(Session):
    """A session with colors, whatever stdout is."""

    @property
    def has_color(self) -> bool:
        return True


async def _lines() -> Sequence[str]:
    clock = FakeClock(START - sum(delay for delay, *_ in FAILURES))
    async with Errandry(store=MemoryStore(clock), clock=clock) as jobs:
        shop, view = _Shop(jobs, clock), TopView(_ColorSession(), "sqlite:///shop.db")
        await shop.set_up()
        for second in range(SECONDS):
            await shop.work(second)
            await view.refresh(jobs)
        return view.lines(COLUMNS, LINES, is_paused=False)


class _Shop:
    """The jobs of a shop, moved by the commands that its programs and workers would send."""

    def __init__(self, jobs: Errandry, clock: FakeClock) -> None:
        self._jobs, self._clock = jobs, clock
        self._random, self._numbers = Random(19), count(1)

    async def set_up(self) -> None:
        """Jobs that stay as they are in the picture: running, scheduled, failed, behind a pause."""
        for delay, task, failure in FAILURES:
            await self._settle("orders", task, FailOutcome(failure))
            self._clock.advance(delay)
        await self._insert("imports", "sync_stock", 1_280)
        await self._jobs.engine.submit(Pause(GateKind.QUEUE, "imports", "ada"))
        await self._insert("mail", "remind", 212, delay=3_600.0)
        self._reports = await self._start("reports", "month_report", 2)
        self._videos = await self._start("media", "encode", 3)

    async def work(self, second: int) -> None:
        """One second: mails are sent, an invoice is retried, long jobs report progress, workers beat."""
        number = 90 + round(45 * sin(second / 3)) + self._random.randrange(20)
        begun = self._clock.monotonic()
        await self._insert("mail", "send_mail", number)
        self._clock.advance(self._random.uniform(0.001, 0.006))
        sent = await self._claim("mail", "send_mail", number)
        self._clock.advance(self._random.uniform(0.02, 0.09))
        await self._jobs.engine.submit_all([Settle(ref, CompleteOutcome()) for ref in map(_ref, sent)])
        if second % 4 == 0:
            refused = Failure(Reason.ERROR, "ConnectionError", "the bank does not answer")
            await self._settle("orders", "invoice", RetryOutcome(refused, 300.0))
        for place, job in enumerate([*self._reports, *self._videos]):
            share = (second + 1) / (SECONDS + 5 * (place + 1))
            unit = f"{share * 3_000:,.0f} of 3,000 rows" if job.task == "month_report" else ""
            await self._jobs.engine.submit(Note(_ref(job), Progress(share, unit)))
        self._clock.advance(1.0 - (self._clock.monotonic() - begun))
        if second == SECONDS - 1:
            await self._insert("mail", "send_mail", 37)
            await self._claim("mail", "send_mail", 24, WORKERS[1])
        await self._jobs.engine.submit_all([*self._beats()])

    def _beats(self) -> Iterator[Beat]:
        for number, worker in enumerate(WORKERS):
            yield Beat(worker=worker, host=f"web-{number + 1}", pid=977, concurrency=100, started_at=START)

    async def _settle(self, queue: str, task: str, outcome: FailOutcome | RetryOutcome) -> None:
        [job] = await self._start(queue, task, 1)
        await self._jobs.engine.submit(Settle(_ref(job), outcome))

    async def _start(self, queue: str, task: str, number: int) -> Sequence[JobRecord]:
        await self._insert(queue, task, number)
        return await self._claim(queue, task, number)

    async def _insert(self, queue: str, task: str, number: int, delay: float = 0.0) -> None:
        new = (
            NewJob(id=self._new_id(), task=task, queue=queue, payload="{}", delay=delay)
            for _ in range(number)
        )
        await self._jobs.client.insert([*new])

    async def _claim(
        self, queue: str, task: str, number: int, worker: str = WORKERS[0]
    ) -> Sequence[JobRecord]:
        nonce = f"claim-{next(self._numbers)}"
        claim = Claim(worker=worker, nonce=nonce, queues=(queue,), tasks=(task,), limit=number, lease=3_600.0)
        answer = await self._jobs.engine.submit(claim)
        if not isinstance(answer, Claims):
            raise TypeError(f"a claim was answered with {answer!r}")
        return answer.jobs

    def _new_id(self) -> str:
        return f"019e3a5c-7b20-7000-8000-{self._random.getrandbits(48):012x}"


def _ref(job: JobRecord) -> Ref:
    return Ref(job.id, job.fence)
