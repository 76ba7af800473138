"""Enqueue over the caller's own connection: the jobs exist once it commits, and never after a rollback."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, overload

from errandry.api.flow import Flow, Parallel
from errandry.api.job import Job
from errandry.api.options import EnqueueOptions
from errandry.api.store_client import StoreClient
from errandry.api.sync import SyncJob
from errandry.api.task import Call, NewJobs
from errandry.clock import Clock
from errandry.codec.json_codec import Codec
from errandry.core.command import Insert
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.app import Errandry


R = TypeVar("R")


class BoundApp:
    """`jobs.bind(connection)`: enqueue in the transaction of that connection.

        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("INSERT INTO orders …")
            await jobs.bind(connection).enqueue("pack", {"order": 7})

    For an async connection; `jobs.sync.bind(connection)` takes a blocking one.
    """

    def __init__(self, app: "Errandry", connection: object) -> None:
        self._app, self._connection = app, connection
        self._binding = app.store.bind(connection)

    def __eq__(self, other: object) -> bool:
        """True for the same app and connection."""
        return (
            isinstance(other, BoundApp) and self._app is other._app and self._connection is other._connection
        )

    __hash__ = object.__hash__

    @property
    def clock(self) -> Clock:
        return self._app.clock

    @property
    def codec(self) -> Codec:
        return self._app.codec

    @property
    def backoffs(self) -> dict[str, Callable[[int], float]]:
        return self._app.backoffs

    @property
    def client(self) -> StoreClient:
        return self._app.client

    @property
    def sync(self) -> "SyncBoundApp":
        """The app, bound to the same connection, with blocking methods."""
        return SyncBoundApp(self)

    def bind(self, connection: object) -> "BoundApp":
        """The app, bound to another connection."""
        return self._app.bind(connection)

    def remote_task(self, name: str) -> NoReturn:
        """Raise InvalidValue: pauses and rules are not written over a connection of the caller."""
        why = "is bound to a connection, which only enqueues: pause it and set its rules unbound"
        raise InvalidValue("task", name, why)

    async def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        """Enqueue a task by its name."""
        [job] = await self._insert_jobs(self._app._named_job(task, arguments, options))
        return job

    async def enqueue_many(self, calls: list[Call[Any]]) -> list[Job[Any]]:
        """Enqueue all calls or none: `jobs.bind(connection).enqueue_many([send.new("ada"), pack.new(7)])`."""
        return await self._insert_jobs(self._app._single_jobs(calls, self))

    @overload
    async def enqueue_flow(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    async def enqueue_flow(self, flow: Parallel[R]) -> list[Job[R]]: ...
    async def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """Enqueue all jobs of a flow or none; returns the job that runs last, for `parallel(…)` a list."""
        return self._app._final_jobs(flow, await self._insert_jobs(self._app._flow_jobs(flow, self)))

    async def _insert_jobs(self, new: NewJobs) -> list[Job[Any]]:
        if not new.jobs:
            return []
        if not self._binding.is_async:
            raise self._connection_error("blocks: bind it with jobs.sync.bind(…) or task.sync.bind(…)")
        command, engine = Insert(tuple(new.jobs), new.edges), self._app.engine
        await engine.start()
        answer = await self._binding.insert(command)
        existing_ids = list(answer.existed | answer.replaced)
        records = await engine.call(self._app.store.get, existing_ids) if existing_ids else []
        return self._app._job_handles(command.jobs, answer, records)

    def _insert_jobs_sync(self, new: NewJobs) -> list[Job[Any]]:
        if not new.jobs:
            return []
        if self._binding.is_async:
            raise self._connection_error(
                "is async: bind it with jobs.bind(…) or task.bind(…), and await the method"
            )
        command, engine = Insert(tuple(new.jobs), new.edges), self._app.engine
        if self._binding.is_alone:
            return self._app._job_handles(command.jobs, self._binding.insert_sync(command), [])
        engine.start_sync()
        answer = self._binding.insert_sync(command)
        existing_ids = list(answer.existed | answer.replaced)
        records = engine.call_sync(self._app.store.get, existing_ids) if existing_ids else []
        return self._app._job_handles(command.jobs, answer, records)

    def _connection_error(self, why: str) -> InvalidValue:
        return InvalidValue("connection", type(self._connection).__qualname__, why)


class SyncBoundApp:
    """`jobs.sync.bind(connection)`: enqueue in the transaction of a blocking connection.

    with psycopg.connect(…) as connection:
        connection.execute("INSERT INTO orders …")
        jobs.sync.bind(connection).enqueue("pack", {"order": 7})
    """

    def __init__(self, bound: BoundApp) -> None:
        self._bound, self._app = bound, bound._app

    def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> SyncJob[Any]:
        """Enqueue a task by its name."""
        [job] = self._bound._insert_jobs_sync(self._app._named_job(task, arguments, options))
        return job.sync

    def enqueue_many(self, calls: list[Call[Any]]) -> list[SyncJob[Any]]:
        """Enqueue all calls or none."""
        jobs = self._bound._insert_jobs_sync(self._app._single_jobs(calls, self._bound))
        return [job.sync for job in jobs]

    @overload
    def enqueue_flow(self, flow: Call[R] | Flow[R]) -> SyncJob[R]: ...
    @overload
    def enqueue_flow(self, flow: Parallel[R]) -> list[SyncJob[R]]: ...
    def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> SyncJob[R] | list[SyncJob[R]]:
        """Enqueue all jobs of a flow or none; returns the job that runs last, for `parallel(…)` a list."""
        jobs = self._bound._insert_jobs_sync(self._app._flow_jobs(flow, self._bound))
        final = self._app._final_jobs(flow, jobs)
        return [job.sync for job in final] if isinstance(final, list) else final.sync
