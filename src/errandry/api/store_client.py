"""`StoreClient`: the access of Errandry's own modules to the store of an app."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from errandry.api.completion import RECHECK_INTERVAL, CompletionWatcher
from errandry.clock import Clock, SystemClock
from errandry.codec.json_codec import Codec, DocumentInfo, PlainCodec
from errandry.core.answer import WRITTEN, Ack, Inserted
from errandry.core.command import Command, Insert
from errandry.core.flow import Edge, EdgeRecord
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord, NewJob
from errandry.core.once import OnceCommand, with_nonce
from errandry.core.rule import Overflow
from errandry.core.schedule import ScheduleRecord
from errandry.core.step import StepKind, StepRecord
from errandry.core.unique import Conflict
from errandry.errors import CommandFailed, InvalidValue, QueueFull, UnknownJob, UnknownSchedule
from errandry.store.contract import Store
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.engine import Engine

A = TypeVar("A")

QUEUE_FULL_BACKOFF = (0.005, 0.03)
"""Random back-off, in seconds, for clients waiting for queue space, so that they do not all retry at once."""


class StoreClient:
    """Reads and writes records as they are stored. The store is opened on first use."""

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        codec: Codec | None = None,
        write_limits: WriteLimits | None = None,
    ) -> None:
        self.codec = codec or PlainCodec()
        self.clock = clock or SystemClock()
        self._write_limits = write_limits
        self.engine = Engine(store, write_limits, self.clock)
        self._closed = False
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        self._completion_watcher: CompletionWatcher | None = None

    @property
    def store(self) -> Store:
        return self.engine.store

    async def open(self) -> None:
        """Open the store now rather than on first use; reopens it after `close`."""
        self._replace_closed_engine()
        await self.engine.start()

    def open_sync(self) -> None:
        """`open` for a thread without an event loop."""
        self._replace_closed_engine()
        self.engine.start_sync()

    async def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and close the store. Only `open` reopens it.

        `before_close` has what must end before, such as a worker.
        """
        for end in list(self.before_close):
            await end()
        self._closed = True
        await self.engine.stop(timeout)

    def close_sync(self, timeout: float | None = None) -> None:
        """`close` for a thread without an event loop."""
        self._closed = True
        self.engine.stop_sync(timeout)

    def _replace_closed_engine(self) -> None:
        if self._closed:
            self.engine, self._closed = Engine(self.store, self._write_limits, self.clock), False

    @contextmanager
    def override_store(self, store: Store, clock: Clock | None = None) -> Iterator[None]:
        """Work on another store inside a `with` block, as tests do. The store is closed at the end."""
        before = self.engine, self.clock, self._closed
        self.clock = clock or SystemClock()
        self.engine, self._closed = Engine(store, self._write_limits, self.clock), False
        try:
            yield
        finally:
            self.engine.stop_sync()
            self.engine, self.clock, self._closed = before

    def wrap_store(self, wrap: Callable[[Store], Store]) -> None:
        """Replace the store by `wrap(store)`, which delegates to it. Call it before the store is opened."""
        if self.engine.is_running:
            raise InvalidValue("wrap", wrap, "the store is open already: wrap it before its first use")
        self.engine = Engine(wrap(self.store), self._write_limits, self.clock)

    async def submit(self, command: Command, expected: type[A]) -> A:
        """Submit a command and return its answer, which is an `expected`.

        A command that must not be applied twice gets a nonce, because the engine may have to send it again.
        """
        if isinstance(command, OnceCommand) and command.nonce is None and type(command) is not Insert:
            command = with_nonce(command, _new_nonce())
        answer = await self.engine.submit(command)
        if not isinstance(answer, expected):
            raise CommandFailed(type(command).__name__, f"the store answered {answer!r}")
        return answer

    async def submit_change(self, command: Command) -> bool:
        """Submit a command; True if it changed something."""
        return await self.submit(command, Ack) is WRITTEN

    async def insert(
        self, jobs: Sequence[NewJob], edges: tuple[Edge, ...] = (), *, has_new_ids: bool = False
    ) -> Inserted:
        """Insert all jobs or none; returns when they are durable.

        `has_new_ids`: this program has made the ids of all jobs, not its caller. Waits for space if a queue
        is full and its rule is `overflow="wait"`.
        """
        needs_nonce = not has_new_ids or any(map(_may_leave_no_trace, jobs))
        command = Insert(tuple(jobs), edges, nonce=_new_nonce() if needs_nonce else None)
        while True:
            version = self.store.version()
            try:
                return await self.submit(command, Inserted)
            except QueueFull as full:
                if not await self._waits_for_space(full, jobs):
                    raise
            await self.engine.call(self.store.wait_for_change, version, RECHECK_INTERVAL)
            await asyncio.sleep(random.uniform(*QUEUE_FULL_BACKOFF))

    async def _waits_for_space(self, full: QueueFull, jobs: Sequence[NewJob]) -> bool:
        """True if the queue's rule is to wait, and the jobs fit into the queue once it has space."""
        gates = await self.engine.call(self.store.rules)
        rules = [gate.rule for gate in gates if gate.key == (GateKind.QUEUE, full.queue, "")]
        if not any(rule.overflow is Overflow.WAIT for rule in rules):
            return False
        new_jobs = [job for job in jobs if job.queue == full.queue and full.group in ("", job.group)]
        return len(new_jobs) <= full.bound

    async def record(self, job_id: str) -> JobRecord:
        """The job as stored; raises UnknownJob if there is none."""
        [record] = await self.engine.call(self.store.get, [job_id])
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def edges(self, job_id: str) -> list[EdgeRecord]:
        """The edges from a job to the jobs that it waits for or has waited for, in their order."""
        return await self.engine.call(self.store.children, job_id)

    async def schedule(self, name: str) -> ScheduleRecord:
        """The schedule as stored; raises UnknownSchedule if there is none."""
        record = await self.engine.call(self.store.schedule, name)
        if record is None:
            raise UnknownSchedule(name)
        return record

    async def steps(self, record: JobRecord) -> list[StepRecord]:
        """The steps, sleeps and signals of a job, with results that the codec has unsealed."""
        if record.steps is None:
            return []
        return [
            self._unseal_step(record, step) for step in await self.engine.call(self.store.steps, record.id)
        ]

    def _unseal_step(self, record: JobRecord, step: StepRecord) -> StepRecord:
        if step.result is None:
            return step
        return replace(
            step, result=self.codec.unseal(step.result, step_document(record, step.kind, step.name))
        )

    async def wait_finished(self, job_id: str, timeout: float | None = None) -> JobRecord | None:
        """Wait until a job has finished and return its record; None if the job is gone."""
        return await self.engine.call(self._wait_finished, job_id, timeout)

    async def _wait_finished(self, job_id: str, timeout: float | None) -> JobRecord | None:
        watcher = self._completion_watcher
        # The engine has another loop after a reopen or a fork.
        if watcher is None or watcher.loop is not asyncio.get_running_loop():
            watcher = self._completion_watcher = CompletionWatcher(self.store)
        return await watcher.wait_finished(job_id, timeout)


def _may_leave_no_trace(job: NewJob) -> bool:
    """Whether a repeat of the insert may not find this job by its id, although it was inserted."""
    keep = job.keep
    is_removed = keep is not None and not min(keep.completed, keep.failed, keep.canceled)
    return is_removed or job.on_conflict is Conflict.REPLACE


def _new_nonce() -> str:
    return secrets.token_hex(8)


def step_document(record: JobRecord, kind: StepKind, name: str) -> DocumentInfo:
    """The document that the result of a step, or the payload of a signal, is sealed as."""
    return DocumentInfo(record.id, record.task, f"{kind} {name}")
