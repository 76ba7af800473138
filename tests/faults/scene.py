"""A store with processes around it, and a test that watches."""

import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from errandry import Errandry
from errandry.core.job import JobRecord
from errandry.core.state import TERMINAL, State
from errandry.core.stats import WAIT
from errandry.event_loop import ASYNCIO, UVLOOP
from errandry.store.contract import EventEntry, Store
from errandry.testing.conformance import requests
from tests.faults.history import Acked, Asked, Ended, Found, Journal, Started, violations
from tests.faults.process import LIMIT, Process, until, until_said
from tests.faults.program import declared

BOTH_LOOPS = pytest.mark.parametrize("loop", [ASYNCIO, UVLOOP], indirect=True)


class Scene:
    """The test's own app on the store, its journal, and the processes it starts, which do not outlive it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.app = declared(Errandry(url))
        self.journal = Journal(folder / "journal")
        self.clock_step = folder / "step"
        self._processes: list[Process] = []

    async def __aenter__(self) -> Self:
        await self.app.engine.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            if error is not None:
                print(f"--- process {process.pid}\n{process.log()}")  # noqa: T201 - shown if the test fails
        await self.app.close(timeout=5)

    def start(self, role: str, options: dict[str, Any], **environment: str) -> Process:
        surroundings = {
            "ERRANDRY_URL": self.url,
            "JOURNAL": str(self.journal.path),
            "TMPDIR": str(self.folder),  # where lock files are; those of the killed would stay
            **environment,
        }
        process = Process(role, options, self.folder, surroundings)
        self._processes.append(process)
        return process

    async def worker(self, environment: dict[str, str] | None = None, **options: Any) -> Process:
        """A worker, once it is at work."""
        process = self.start("work", options, **(environment or {}))
        await until_said(partial(self._is_working, process))
        return process

    async def _is_working(self, process: Process) -> bool:
        assert not process.is_over, process.log()
        return any(info.beat.pid == process.pid for info in await self.app.workers())

    async def enqueue(self, task: str, options: dict[str, Any] | None = None, **arguments: Any) -> str:
        """The id of a new job."""
        request = self.app.tasks[task].using(**(options or {})).new(**arguments)
        self.journal.write(Asked(request.job.id, 0, time.time()))
        [job] = await self.app.enqueue_many([request])
        self.journal.write(Acked(job.id, 0, time.time()))
        return job.id

    @property
    def gate(self) -> str:
        """For `hold`: no attempt goes on before it is let through."""
        return str(self.folder / "gate-")

    def open_gate(self, attempt: int) -> None:
        Path(f"{self.gate}{attempt}").touch()

    async def started(self, job: str, times: int = 1) -> list[Started]:
        """The runs of a job, once there are so many."""
        runs = await until(lambda: runs if len(runs := self.journal.started(job)) >= times else None)
        assert len(runs) == times, runs
        return runs

    async def ended(self, job: str, times: int = 1) -> list[Ended]:
        ends = await until(lambda: ends if len(ends := self.journal.ended(job)) >= times else None)
        assert len(ends) == times, ends
        return ends

    async def finished(self, job: str, limit: float = LIMIT) -> JobRecord:
        """The job, once it has finished."""
        record = await self.app.finished(job, limit)
        assert record is not None
        return record

    async def all_in(self, jobs: list[str], state: State) -> None:
        """Return when these jobs are all in this state."""

        async def are_there() -> bool:
            return all([(await self.app.record(job)).state is state for job in jobs])

        await until_said(are_there)

    async def all_finished(self, limit: float = LIMIT) -> Found:
        """What the store holds, once all jobs have finished."""

        async def are_finished() -> bool:
            counts = await self.app.counts()
            return all(state in TERMINAL for states in counts.values() for state in states)

        await until_said(are_finished, limit)
        return await self.found()

    async def found(self) -> Found:
        return await self.app.engine.call(found, self.app.store)

    async def check(self) -> None:
        """P1 to P8, once all jobs have finished."""
        broken = violations(self.journal.read(), await self.all_finished())
        assert not broken, "\n".join(broken)


async def found(store: Store) -> Found:
    """What a store holds. Not with the facts: it needs pytest, which the programs must not wait for."""
    events: list[EventEntry] = []
    cursor = None
    while (page := await store.events(cursor, 10_000)).entries:
        events += page.entries
        cursor = page.cursor
    return Found(
        await requests.jobs(store),
        events,
        await store.counts(),
        await store.totals(),
        await requests.figures(store),
        await requests.figures(store, WAIT),
    )
