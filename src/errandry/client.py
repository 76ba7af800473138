"""What can be asked of a store and done to its jobs, from any loop or thread."""

import builtins
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from errandry.clock import Clock, SystemClock
from errandry.codec import Codec, PlainCodec, to_json
from errandry.core.command import (
    Cancel,
    Command,
    Edit,
    GateKind,
    Insert,
    Inserted,
    Moved,
    OperatorCommand,
    Pause,
    Postpone,
    Promote,
    Remove,
    Rerun,
    Resolve,
    Resume,
)
from errandry.core.job import Job as Record
from errandry.core.job import NewJob
from errandry.core.query import Query, parse
from errandry.core.state import State
from errandry.errors import CommandFailed, UnknownJob
from errandry.options import job_fields
from errandry.store.contract import Happened, QueueInfo, Store, WorkerInfo
from errandry.store.engine import Engine
from errandry.waiting import PATIENCE, Waiting

A = TypeVar("A")


class Listed(Struct, frozen=True):
    """Records of jobs, newest first; `cursor` goes on below them, None at the end."""

    jobs: tuple[Record, ...]
    cursor: str | None


class Client:
    """Reads and operator commands. Opens its store on first use.

    An operator's command takes job ids, or a `query` for all that match; with a single id a refusal
    is raised, otherwise the answer lists what was refused.
    """

    def __init__(self, store: Store, clock: Clock | None = None, codec: Codec | None = None) -> None:
        self.clock, self.codec = clock or SystemClock(), codec or PlainCodec()
        self.engine = Engine(store, clock=clock)
        self._waiting: Waiting | None = None

    @property
    def store(self) -> Store:
        return self.engine.store

    async def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and let go of the store."""
        await self.engine.stop(timeout)

    async def insert(self, jobs: builtins.list[NewJob]) -> Inserted:
        """All of these, or none. Returns when they are durable."""
        return await self._submit(Insert(tuple(jobs)), Inserted)

    async def record(self, job_id: str) -> Record:
        """The job as stored; UnknownJob if there is none."""
        [record] = await self.engine.call(self.store.get, [job_id])
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def finished(self, job_id: str, timeout: float | None = None) -> Record | None:
        """The job once it has finished; None if it is gone."""
        return await self.engine.call(self._finished, job_id, timeout)

    async def _finished(self, job_id: str, timeout: float | None) -> Record | None:
        if self._waiting is None:
            self._waiting = Waiting(self.store)
        return await self._waiting.finished(job_id, timeout)

    async def list(self, query: str = "", *, cursor: str | None = None, limit: int = 50) -> Listed:
        """Jobs that match a query such as `state:failed task:send since:2h`, newest first."""
        page = await self.engine.call(self.store.list, parse(query), cursor, limit)
        return Listed(page.jobs, page.cursor)

    async def counts(self) -> dict[str, dict[str, int]]:
        """For each queue: how many jobs are in each state."""
        return await self.engine.call(self.store.counts)

    async def totals(self) -> dict[str, dict[str, int]]:
        """For each queue: what ever happened in it."""
        return await self.engine.call(self.store.totals)

    async def queues(self) -> builtins.list[QueueInfo]:
        return await self.engine.call(self.store.queues)

    async def workers(self) -> builtins.list[WorkerInfo]:
        return await self.engine.call(self.store.workers)

    def queue(self, name: str) -> "Gate":
        """A queue, to pause and resume it."""
        return Gate(self, GateKind.QUEUE, name)

    async def events(self, after: str | None = None) -> AsyncIterator[Happened]:
        """What happens, as it happens: from the cursor `after`, or from now on. Never ends by itself."""
        cursor = after or await self.engine.call(self.store.head)
        while True:
            pulse = self.store.pulse()
            page = await self.engine.call(self.store.events, cursor)
            for one in page.entries:
                yield one
            cursor = page.cursor
            if not page.entries:
                await self.engine.call(self.store.wake, pulse, PATIENCE)

    async def cancel(self, *ids: str, query: str | None = None, force: bool = False) -> Moved:
        """Stop: at once where no handler runs, by request where one does; with `force`, finished jobs too."""
        return await self._operate(Cancel, ids, query, force=force)

    async def rerun(
        self, *ids: str, query: str | None = None, reset_attempts: bool = False, **when: Any
    ) -> Moved:
        """Run finished jobs again, now or after `delay` or at `run_at`."""
        return await self._operate(Rerun, ids, query, reset_attempts=reset_attempts, **_when(when))

    async def edit(self, *ids: str, query: str | None = None, **changes: Any) -> Moved:
        """Change payload, priority, run_at, max_attempts or tags of jobs no worker has taken yet."""
        return await self._operate(Edit, ids, query, **_when(changes))

    async def postpone(self, *ids: str, query: str | None = None, **when: Any) -> Moved:
        """Run jobs later: after `delay` or at `run_at`."""
        return await self._operate(Postpone, ids, query, **_when(when))

    async def promote(self, *ids: str, query: str | None = None) -> Moved:
        """Run scheduled jobs now."""
        return await self._operate(Promote, ids, query)

    async def resolve(
        self,
        *ids: str,
        query: str | None = None,
        state: str = "completed",
        result: Any = None,
        message: str = "",
    ) -> Moved:
        """Settle by hand jobs no worker has taken yet: completed with a result, or failed with a message."""
        document = None if result is None else to_json("result", result)
        return await self._operate(Resolve, ids, query, state=State(state), result=document, message=message)

    async def remove(self, *ids: str, query: str | None = None, force: bool = False) -> Moved:
        """Delete the records; with `force`, of running jobs too."""
        return await self._operate(Remove, ids, query, force=force)

    async def _operate(
        self, kind: type[OperatorCommand], ids: tuple[str, ...], query: str | None, **options: Any
    ) -> Moved:
        if query is None:
            moved = await self._submit(kind(ids=ids, **options), Moved)
            if len(ids) == 1 and moved.refused:
                raise moved.refused[0][1]
            return moved
        return await self._sliced(kind, parse(query), options)

    async def _sliced(self, kind: type[OperatorCommand], query: Query, options: Mapping[str, Any]) -> Moved:
        """The command for everything that matches, slice by slice."""
        whole, below = Moved(), None
        while True:
            part = await self._submit(kind(query=query, below=below, **options), Moved)
            whole = Moved(
                whole.moved + part.moved, whole.already + part.already, whole.refused + part.refused
            )
            if part.below is None:
                return whole
            below = part.below

    async def _submit(self, command: Command, expected: type[A]) -> A:
        answer = await self.engine.submit(command)
        if not isinstance(answer, expected):
            raise CommandFailed(type(command).__name__, f"the store answered {answer!r}")
        return answer


class Gate:
    """A queue or a task that can be paused."""

    def __init__(self, client: Client, kind: GateKind, name: str) -> None:
        self._client, self._kind, self.name = client, kind, name

    async def pause(self, by: str = "") -> bool:
        """No job is claimed until it is resumed; False if it was paused already."""
        return bool(await self._client.engine.submit(Pause(self._kind, self.name, by)) == "written")

    async def resume(self) -> bool:
        """False if it was not paused."""
        return bool(await self._client.engine.submit(Resume(self._kind, self.name)) == "written")


def _when(options: Mapping[str, Any]) -> dict[str, Any]:
    """`delay` and `run_at` as people write them."""
    read = job_fields({name: value for name, value in options.items() if name in ("delay", "run_at", "tags")})
    chosen = {name: value for name, value in read.items() if name in options}
    return {**options, **chosen}
