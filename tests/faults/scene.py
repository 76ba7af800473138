"""A store with processes around it, for a test that watches them."""

import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from errandry import Errandry
from errandry.core.job import JobRecord
from errandry.core.state import TERMINAL, State
from errandry.core.stats import WAIT_PREFIX
from errandry.event_loop import ASYNCIO, UVLOOP
from errandry.store.contract import EventEntry, Store
from errandry.testing.conformance import requests
from tests.faults.history import Ended, EnqueueAcked, EnqueueSent, Journal, Started, StoreContents, violations
from tests.faults.process import WAIT_TIMEOUT, Process, wait_until, wait_until_async
from tests.faults.program import with_tasks

BOTH_LOOPS = pytest.mark.parametrize("loop", [ASYNCIO, UVLOOP], indirect=True)


class Scene:
    """The test's own app on the store, the journal, and processes that end with the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.app = with_tasks(Errandry(url))
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
        variables = {
            "ERRANDRY_URL": self.url,
            "JOURNAL": str(self.journal.path),
            "TMPDIR": str(self.folder),  # for lock files, which killed processes leave behind
            **environment,
        }
        process = Process(role, options, self.folder, variables)
        self._processes.append(process)
        return process

    async def worker(self, environment: dict[str, str] | None = None, **options: Any) -> Process:
        """Start a worker; return as soon as the store lists it."""
        process = self.start("work", options, **(environment or {}))
        await wait_until_async(partial(self._is_working, process))
        return process

    async def claimer(self, role: str = "claim", **options: Any) -> Process:
        """Start a program that claims jobs by hand; return as soon as the store lists it."""
        process = self.start(role, options)
        await wait_until_async(partial(self._is_working, process))
        return process

    async def _is_working(self, process: Process) -> bool:
        assert not process.has_ended, process.log()
        return any(worker.pid == process.pid for worker in await self.app.workers.list())

    async def enqueue(self, task: str, options: dict[str, Any] | None = None, **arguments: Any) -> str:
        """The id of a new job."""
        request = self.app.tasks[task].using(**(options or {})).new(**arguments)
        self.journal.write(EnqueueSent(request.job.id, 0, time.time()))
        [job] = await self.app.enqueue_many([request])
        self.journal.write(EnqueueAcked(job.id, 0, time.time()))
        return job.id

    @property
    def gate(self) -> str:
        """The `gate` argument of `hold`: an attempt ends only after `open_gate`."""
        return str(self.folder / "gate-")

    def open_gate(self, attempt: int) -> None:
        Path(f"{self.gate}{attempt}").touch()

    async def started(self, job: str, times: int = 1) -> list[Started]:
        """The runs of a job, as soon as there are `times`."""
        runs = await wait_until(lambda: runs if len(runs := self.journal.started(job)) >= times else None)
        assert len(runs) == times, runs
        return runs

    async def ended(self, job: str, times: int = 1) -> list[Ended]:
        ends = await wait_until(lambda: ends if len(ends := self.journal.ended(job)) >= times else None)
        assert len(ends) == times, ends
        return ends

    async def finished(self, job: str, limit: float = WAIT_TIMEOUT) -> JobRecord:
        """The job, as soon as it has finished."""
        record = await self.app.client.wait_finished(job, limit)
        assert record is not None
        return record

    async def wait_for_states(self, jobs: list[str], state: State) -> None:
        """Return when all of these jobs are in this state."""

        async def are_in_state() -> bool:
            return all([(await self.app.client.record(job)).state is state for job in jobs])

        await wait_until_async(are_in_state)

    async def crashes_taken_back(self, job: str) -> None:
        """Wait until a heartbeat of the worker that lost the job has taken its crash back."""

        async def has_no_crash() -> bool:
            return (await self.app.client.record(job)).crashes == 0

        await wait_until_async(has_no_crash)

    async def all_finished(self, limit: float = WAIT_TIMEOUT) -> StoreContents:
        """The contents of the store, as soon as all jobs have finished."""

        async def are_finished() -> bool:
            counts = await self.app.counts()
            return all(state in TERMINAL for states in counts.values() for state in states)

        await wait_until_async(are_finished, limit)
        return await self.contents()

    async def contents(self) -> StoreContents:
        return await self.app.engine.call(read_contents, self.app.store)

    async def check(self) -> None:
        """Check P1 to P8 as soon as all jobs have finished."""
        broken = violations(self.journal.read(), await self.all_finished())
        assert not broken, "\n".join(broken)


async def read_contents(store: Store) -> StoreContents:
    """The contents of a store. Not in history.py, because the programs should not import pytest."""
    events: list[EventEntry] = []
    cursor = None
    while (page := await store.events(cursor, 10_000)).entries:
        events += page.entries
        cursor = page.cursor
    return StoreContents(
        await requests.list_jobs(store),
        events,
        await store.counts(),
        await store.totals(),
        await requests.sum_stats(store),
        await requests.sum_stats(store, WAIT_PREFIX),
    )
