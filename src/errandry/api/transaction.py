"""Enqueue over the caller's own connection: the jobs exist once it commits, and never after a rollback."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from errandry.api.flow import Flow, Parallel, final_jobs
from errandry.api.job import Job
from errandry.api.task import Call
from errandry.clock import Clock
from errandry.codec.json_codec import Codec
from errandry.core.command import Insert
from errandry.core.flow import Edge
from errandry.core.job import NewJob
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.app import Errandry


R = TypeVar("R")


class BoundApp:
    """`jobs.bind(connection)`: enqueue in the transaction of that connection.

        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("INSERT INTO orders …")
            await jobs.bind(connection).enqueue("pack", {"order": 7})

    Await the methods with an async connection; use those that end in `_sync` with a blocking one.
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

    def bind(self, connection: object) -> "BoundApp":
        """The app, bound to another connection."""
        return self._app.bind(connection)

    def remote_task(self, name: str) -> NoReturn:
        """Raise InvalidValue: pauses and rules are not written over a connection of the caller."""
        why = "is bound to a connection, which only enqueues: pause it and set its rules unbound"
        raise InvalidValue("task", name, why)

    async def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Job[Any]:
        """Enqueue a task by its name."""
        new_job = self._app._job_by_name(task, arguments or {}, options)
        [job] = await self._insert_jobs(self._app._apply_hooks([new_job]))
        return job

    def enqueue_sync(self, task: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Job[Any]:
        """`enqueue` over a blocking connection."""
        new_job = self._app._job_by_name(task, arguments or {}, options)
        [job] = self._insert_jobs_sync(self._app._apply_hooks([new_job]))
        return job

    async def enqueue_many(self, requests: list[Call[Any]]) -> list[Job[Any]]:
        """Enqueue all calls or none: `jobs.bind(connection).enqueue_many([send.new("ada"), pack.new(7)])`."""
        jobs = self._app._apply_hooks(self._app._single_jobs(requests, self))
        return await self._insert_jobs(jobs) if jobs else []

    def enqueue_many_sync(self, requests: list[Call[Any]]) -> list[Job[Any]]:
        """`enqueue_many` over a blocking connection."""
        jobs = self._app._apply_hooks(self._app._single_jobs(requests, self))
        return self._insert_jobs_sync(jobs) if jobs else []

    @overload
    async def enqueue_flow(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    async def enqueue_flow(self, flow: Parallel[R]) -> list[Job[R]]: ...
    async def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """Enqueue all jobs of a flow or none; returns the job that runs last, for `parallel(…)` a list."""
        jobs = final_jobs(flow, await self._insert_jobs(*self._app._flow_jobs(flow, self)))
        return jobs if isinstance(flow, Parallel) else jobs[0]

    @overload
    def enqueue_flow_sync(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    def enqueue_flow_sync(self, flow: Parallel[R]) -> list[Job[R]]: ...
    def enqueue_flow_sync(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """`enqueue_flow` over a blocking connection."""
        jobs = final_jobs(flow, self._insert_jobs_sync(*self._app._flow_jobs(flow, self)))
        return jobs if isinstance(flow, Parallel) else jobs[0]

    async def _insert_jobs(self, jobs: list[NewJob], edges: tuple[Edge, ...] = ()) -> list[Job[Any]]:
        if not self._binding.is_async:
            raise self._connection_error("blocks: call the method that ends in _sync")
        command, engine = Insert(tuple(jobs), edges), self._app.engine
        await engine.start()
        answer = await self._binding.insert(command)
        existing_ids = list(answer.existed | answer.replaced)
        records = await engine.call(self._app.store.get, existing_ids) if existing_ids else []
        return self._app._job_handles(command.jobs, answer, records)

    def _insert_jobs_sync(self, jobs: list[NewJob], edges: tuple[Edge, ...] = ()) -> list[Job[Any]]:
        if self._binding.is_async:
            raise self._connection_error("is async: await the method without _sync")
        command, engine = Insert(tuple(jobs), edges), self._app.engine
        if self._binding.is_alone:
            return self._app._job_handles(command.jobs, self._binding.insert_sync(command), [])
        engine.start_sync()
        answer = self._binding.insert_sync(command)
        existing_ids = list(answer.existed | answer.replaced)
        records = engine.call_sync(self._app.store.get, existing_ids) if existing_ids else []
        return self._app._job_handles(command.jobs, answer, records)

    def _connection_error(self, why: str) -> InvalidValue:
        return InvalidValue("connection", type(self._connection).__qualname__, why)
