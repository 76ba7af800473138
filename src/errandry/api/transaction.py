"""Enqueueing over a connection of the caller's: jobs come with its commit, never with its rollback."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from errandry.api.flow import Flow, Parallel, ends
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
    """`jobs.bind(connection)`: what `jobs` does to enqueue, over that connection.

    An async connection is for the methods that are awaited, a blocking one for those that end in `_sync`.
    """

    def __init__(self, app: "Errandry", connection: object) -> None:
        self._app, self._connection = app, connection
        self._binding = app.store.bind(connection)

    def __eq__(self, other: object) -> bool:
        """Over the same connection."""
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
        """Over another connection."""
        return self._app.bind(connection)

    async def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Job[Any]:
        """Enqueue a task by its name."""
        [job] = await self._kept(self._app._hooked([self._app._named(task, arguments or {}, options)]))
        return job

    def enqueue_sync(self, task: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Job[Any]:
        """`enqueue` over a blocking connection."""
        [job] = self._kept_sync(self._app._hooked([self._app._named(task, arguments or {}, options)]))
        return job

    async def enqueue_many(self, requests: list[Call[Any]]) -> list[Job[Any]]:
        """All of these, or none: `jobs.bind(connection).enqueue_many([send.new(to=a), send.new(to=b)])`."""
        return await self._kept(self._app._hooked(self._app._asked(requests, self))) if requests else []

    def enqueue_many_sync(self, requests: list[Call[Any]]) -> list[Job[Any]]:
        """`enqueue_many` over a blocking connection."""
        return self._kept_sync(self._app._hooked(self._app._asked(requests, self))) if requests else []

    @overload
    async def enqueue_flow(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    async def enqueue_flow(self, flow: Parallel[R]) -> list[Job[R]]: ...
    async def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """All jobs of a flow, or none; returns the one that all others lead to, of a group a list."""
        kept = ends(flow, await self._kept(*self._app._flowing(flow, self)))
        return kept if isinstance(flow, Parallel) else kept[0]

    @overload
    def enqueue_flow_sync(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    def enqueue_flow_sync(self, flow: Parallel[R]) -> list[Job[R]]: ...
    def enqueue_flow_sync(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """`enqueue_flow` over a blocking connection."""
        kept = ends(flow, self._kept_sync(*self._app._flowing(flow, self)))
        return kept if isinstance(flow, Parallel) else kept[0]

    async def _kept(self, jobs: list[NewJob], edges: tuple[Edge, ...] = ()) -> list[Job[Any]]:
        if not self._binding.is_async:
            raise self._wrong("blocks: call the method that ends in _sync")
        command, engine = Insert(tuple(jobs), edges), self._app.engine
        await engine.start()
        answer = await self._binding.insert(command)
        there = list(answer.existed | answer.replaced)
        records = await engine.call(self._app.store.get, there) if there else []
        return self._app._handles(command.jobs, answer, records)

    def _kept_sync(self, jobs: list[NewJob], edges: tuple[Edge, ...] = ()) -> list[Job[Any]]:
        if self._binding.is_async:
            raise self._wrong("is async: await the method without _sync")
        command, engine = Insert(tuple(jobs), edges), self._app.engine
        if self._binding.is_alone:
            return self._app._handles(command.jobs, self._binding.insert_sync(command), [])
        engine.start_sync()
        answer = self._binding.insert_sync(command)
        there = list(answer.existed | answer.replaced)
        records = engine.call_sync(self._app.store.get, there) if there else []
        return self._app._handles(command.jobs, answer, records)

    def _wrong(self, why: str) -> InvalidValue:
        return InvalidValue("connection", type(self._connection).__qualname__, why)
