"""The app: where tasks are declared and from where jobs are enqueued and looked at."""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.archive import OVER, SLICE, A, Archive, archived, finished
from errandry.api.client import Client, as_tuple
from errandry.api.context import Child, JobContext
from errandry.api.flow import ChildResults, Flow, FlowPart, Parallel, ends, fed_by, flows
from errandry.api.gates import GateHandle
from errandry.api.job import Enqueued, Job
from errandry.api.operations import joined
from errandry.api.options import BatchOptions, TaskOptions, UseOptions
from errandry.api.schedules import Schedulable, Schedules, ScheduleTiming
from errandry.api.sync import Sync
from errandry.api.task import Call, Task, declared, named
from errandry.api.transaction import BoundApp
from errandry.clock import Clock
from errandry.codec.argument_version import versioned
from errandry.codec.json_codec import Codec, DocumentInfo, about, from_json
from errandry.core.answer import Inserted, Moved
from errandry.core.event import EventFilter
from errandry.core.flow import Edge, EdgeRecord, Policy
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord, NewJob
from errandry.core.move import created
from errandry.errors import InvalidValue
from errandry.store.contract import EventEntry, Store, StoreLimits
from errandry.store.engine.backlog import WriteLimits
from errandry.store.url import DEFAULT, store_at, without_password

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

BatchResults = Sequence[R | BaseException]
"""What a handler of batches returns: for each job its result, or what it would have raised."""
CallNext = Callable[[JobContext], Awaitable[Any]]
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]
"""Wraps every handler: `async def timed(ctx, call_next): …; return await call_next(ctx)`."""
EnqueueHook = Callable[[NewJob], NewJob]
"""Sees every job before it is inserted and returns it, or another in its place. May raise to refuse."""
ObserverFunction = TypeVar("ObserverFunction", bound=Callable[[EventEntry], object])
BackoffFunction = Callable[[int], float]
"""Seconds to wait after attempt n."""


class Observer(Struct, frozen=True):
    """A function that is told of events, and of which."""

    function: Callable[[EventEntry], object]
    wanted: EventFilter


class TaskDecorator(Protocol):
    """What `@jobs.task(...)` gives: the same decorator for handlers of all four shapes."""

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BatchTaskDecorator(Protocol):
    """What `@jobs.task(batch=…)` gives. A job is enqueued with one item of the list the handler takes."""

    @overload
    def __call__(self, function: Callable[[list[T]], Awaitable[None] | None], /) -> Task[[T], None]: ...
    @overload
    def __call__(
        self, function: Callable[[JobContext, list[T]], Awaitable[None] | None], /
    ) -> Task[[T], None]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Awaitable[BatchResults[R]] | BatchResults[R]], /
    ) -> Task[[T], R]: ...
    @overload
    def __call__(
        self, function: Callable[[JobContext, list[T]], Awaitable[BatchResults[R]] | BatchResults[R]], /
    ) -> Task[[T], R]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Awaitable[BatchResults[R] | None] | BatchResults[R] | None], /
    ) -> Task[[T], R | None]: ...
    @overload
    def __call__(
        self,
        function: Callable[[JobContext, list[T]], Awaitable[BatchResults[R] | None] | BatchResults[R] | None],
        /,
    ) -> Task[[T], R | None]: ...


class Errandry(Client):
    """Jobs in the store at `url`, `$ERRANDRY_URL`, or a SQLite file `errandry.db` in the current folder.

    Declaring tasks needs no connection; the store is opened on first use, or with `async with`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        codec: Codec | None = None,
        bounds: StoreLimits | None = None,
        limits: WriteLimits | None = None,
    ) -> None:
        if store is not None and (url is not None or bounds is not None):
            raise InvalidValue(
                "store", type(store).__name__, "is given, so a url or bounds would have no effect"
            )
        if store is None:
            url = (os.environ.get("ERRANDRY_URL") or DEFAULT) if url is None else url
            store = store_at(url, clock, bounds)
        self.url = url
        super().__init__(store, clock, codec, limits)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.backoffs: dict[str, BackoffFunction] = {}
        self.middlewares: list[Middleware] = []
        self.observers: list[Observer] = []
        self.archiver: Archive | None = None
        self._hooks: list[EnqueueHook] = []
        self.schedules = Schedules(self)
        self.sync = Sync(self)

    @property
    def display_url(self) -> str:
        """Where its jobs are, to be shown: the address, without a password."""
        return type(self.store).__name__ if self.url is None else without_password(self.url)

    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[BatchOptions]) -> BatchTaskDecorator: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a handler: `@jobs.task` or `@jobs.task(queue="mail", timeout="30s")`."""

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            task = declared(self, function, cast("TaskOptions", options))
            known = self.tasks.get(task.name)
            if known is not None and not _is_redefinition(known, task):
                raise InvalidValue(
                    "task", task.name, f"is declared already, by {known.function!r}: pass name="
                )
            self.tasks[task.name] = task
            if task.schedule is not None:
                self.schedules.declare(task.name, task, task.schedule)
            return task

        return declare if function is None else declare(function)

    def schedule(self, name: str, call: Schedulable, when: ScheduleTiming, **timing: Any) -> None:
        """Declare that a call runs again and again: `jobs.schedule("nightly", report.new(), "0 3 * * *")`.

        Workers put it when they start; `jobs.schedules.put` does at once. See `Schedule` for the timing.
        """
        self.schedules.declare(name, call, when, **timing)

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every handler in `function`; the first one registered is the outermost."""
        self.middlewares.append(function)
        return function

    def on(
        self, *kinds: str, queue: str | Sequence[str] = (), task: str | Sequence[str] = ()
    ) -> Callable[[ObserverFunction], ObserverFunction]:
        """Have a function told of events while a worker runs: `@jobs.on("failed", task="charge")`.

        Every worker process tells its own, of what happens anywhere. Async functions run on the worker's
        loop, others in a thread. One that raises or hangs disturbs nobody but itself.
        """
        wanted = EventFilter(kinds, as_tuple(queue), as_tuple(task))

        def register(function: ObserverFunction) -> ObserverFunction:
            self.observers.append(Observer(function, wanted))
            return function

        return register

    def archive(self, function: A) -> A:
        """Have `function` see finished jobs before they are deleted because their time is over, in slices.

        Where it raises they stay, and are handed to it again later. It is for every program that runs workers
        or prunes: one that does not declare it deletes them unseen. Async functions run on the worker's loop,
        others in a thread.
        """
        if self.archiver is not None and self.archiver is not function:
            raise InvalidValue("archive", function, f"there is one already: {self.archiver!r}")
        self.archiver = function
        return function

    async def prune(self, *ids: str, query: str | None = None, dry_run: bool = False) -> Moved:
        """Delete finished jobs that match or, without a query, whose time is over. Archived first."""
        meant = finished(OVER if query is None else query)
        if dry_run or self.archiver is None:
            return await self.remove(*ids, query=meant, dry_run=dry_run)
        found = (await self.remove(*ids, query=meant, dry_run=True)).moved
        parts = []
        for start in range(0, len(found), SLICE):
            records = await self.engine.call(self.store.get, found[start : start + SLICE])
            parts.append(await archived(self, self.archiver, [one for one in records if one is not None]))
        return joined(parts)

    def on_enqueue(self, function: EnqueueHook) -> EnqueueHook:
        """Have `function` see every job before it is inserted."""
        self._hooks.append(function)
        return function

    def backoff(self, function: BackoffFunction) -> BackoffFunction:
        """Register a function of the attempt as a backoff, to be named in `@jobs.task(backoff=…)`."""
        self.backoffs[function.__name__] = function
        return function

    async def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Job[Any]:
        """Enqueue a task by its name.

        One that is not declared here is enqueued all the same, for workers of another program: nobody
        checks its name and arguments before they do.
        """
        [job] = await self._kept(self._hooked([self._named(task, arguments or {}, options)]))
        return job

    async def enqueue_many(self, requests: list[Call[Any]]) -> list[Job[Any]]:
        """All of these, or none, in one write: `jobs.enqueue_many([send.new(to=a), send.new(to=b)])`."""
        return await self._kept(self._hooked(self._asked(requests))) if requests else []

    def enqueue_many_sync(self, requests: list[Call[Any]]) -> list[Job[Any]]:
        """`enqueue_many` for code without an event loop."""
        return self.sync.run(self._kept, self._hooked(self._asked(requests))) if requests else []

    @overload
    async def enqueue_flow(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    async def enqueue_flow(self, flow: Parallel[R]) -> list[Job[R]]: ...
    async def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """All jobs of a flow, or none, in one write; returns the one that all others lead to.

        Of a group, a list of them.
        """
        kept = await self._flowed(flow)
        return kept if isinstance(flow, Parallel) else kept[0]

    @overload
    def enqueue_flow_sync(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    def enqueue_flow_sync(self, flow: Parallel[R]) -> list[Job[R]]: ...
    def enqueue_flow_sync(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """`enqueue_flow` for code without an event loop."""
        kept = self.sync.run(self._flowed, flow)
        return kept if isinstance(flow, Parallel) else kept[0]

    async def _flowed(self, flow: Call[R] | Flow[R] | Parallel[R]) -> list[Job[R]]:
        """The jobs that all others of it lead to."""
        return ends(flow, await self._kept(*self._flowing(flow)))

    async def family(self, job_id: str) -> ChildResults:
        """The children of a job as its handler gets them."""
        links = [link for link in await self.children(job_id) if link.policy is not Policy.AFTER]
        texts = [self._result(link) for link in links]
        both = list(zip(links, texts, strict=True))
        return ChildResults(tuple([self._child(*one) for one in both]), fed_by(both))

    def _result(self, link: EdgeRecord) -> str:
        if link.result is None:
            return "null"
        return self.codec.unseal(link.result, DocumentInfo(link.child, link.task, "result"))

    def _child(self, link: EdgeRecord, text: str) -> Child:
        task = self.tasks.get(link.task)
        read = task.signature.read_result if task and link.result is not None else from_json
        return Child(link.child, link.task, link.outcome, read(text))

    def _flowing(
        self, flow: FlowPart, bound: BoundApp | None = None
    ) -> tuple[list[NewJob], tuple[Edge, ...]]:
        """The jobs, those that all others lead to first, and who waits for whom."""
        calls = flows(flow)
        last = {call.parent.job.id: call.parent for call in calls}
        asked = last | {one.job.id: one for call in calls for one in call.requests()}
        jobs = self._hooked([request.job for request in self._own(list(asked.values()), bound)])
        ids = {asked_id: job.id for asked_id, job in zip(asked, jobs, strict=True)}
        edges = {(one.parent, one.child): one for call in calls for one in call.edges()}
        return jobs, tuple(
            [replace(one, parent=ids[one.parent], child=ids[one.child]) for one in edges.values()]
        )

    def bind(self, connection: object) -> BoundApp:
        """Enqueue over a connection of yours, in its transaction: `jobs.bind(connection).enqueue_many(…)`.

        For PostgreSQL one of psycopg, asyncpg, SQLAlchemy or Django; for SQLite one of apsw.
        """
        return BoundApp(self, connection)

    async def get(self, job_id: str) -> Job[Any]:
        """The job with this id; UnknownJob if there is none."""
        record = await self.record(job_id)
        return self._handle(record, record.task)

    def task_gate(self, name: str) -> GateHandle:
        """A task, to pause it in all queues, or to give it a limit or a rate."""
        return GateHandle(self, GateKind.TASK, name)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _named(self, task: str, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> NewJob:
        found = self.tasks.get(task)
        if found is None:
            return named(self, task, arguments, options)
        return found.using(**cast("UseOptions", options)).new(**arguments).alone

    def _asked(self, requests: list[Call[Any]], bound: BoundApp | None = None) -> list[NewJob]:
        return [request.alone for request in self._own(requests, bound)]

    def _own(self, requests: list[Call[Any]], bound: BoundApp | None = None) -> list[Call[Any]]:
        """These calls, if they are to be enqueued here."""
        for request in requests:
            if request.task.app is not self and request.task.app != bound:
                why = "is declared by another app, or bound to another connection: enqueue it there"
                raise InvalidValue("task", request.task.name, why)
        return requests

    def _hooked(self, jobs: list[NewJob]) -> list[NewJob]:
        for hook in self._hooks:
            jobs = [_returned(hook, hook(job)) for job in jobs]
        return jobs

    def _beside(self, record: JobRecord, field: str) -> dict[str, Any]:
        task = self.tasks.get(record.task)
        if task is None or field != "payload":
            return {}
        metadata = versioned(record.metadata, task.rules.version)
        return {} if metadata == record.metadata else {"metadata": metadata}

    def _document(self, record: JobRecord, field: str, value: Any) -> str:
        task = self.tasks.get(record.task)
        if task is None or field != "payload":
            return super()._document(record, field, value)
        text = task.signature.write(dict(value))
        return self.codec.seal(text, about(record, field))

    async def _kept(self, jobs: list[NewJob], edges: tuple[Edge, ...] = ()) -> list[Job[Any]]:
        answer = await self.insert(jobs, edges)
        there = list(answer.existed | answer.replaced)
        return self._handles(jobs, answer, await self.engine.call(self.store.get, there) if there else [])

    def _handles(
        self, jobs: Sequence[NewJob], answer: Inserted, existing: Iterable[JobRecord | None]
    ) -> list[Job[Any]]:
        """A handle for each; of one that is there no more nothing but its id is known."""
        now = self.clock.time()
        if not answer.existed and [*answer.ids] == [job.id for job in jobs]:
            return [self._handle(Enqueued(job, now), job.task) for job in jobs]
        made = {job.id: job for job in jobs}
        found = {record.id: record for record in existing if record is not None}
        handles = []
        for job, job_id in zip(jobs, answer.ids, strict=True):
            record = found.get(job_id) or created(made.get(job_id, job), 0, now)
            if record.id != job_id:
                record = replace(record, id=job_id)
            existed = job_id != job.id or job_id in answer.existed
            is_replaced = existed and job_id in answer.replaced
            handles.append(self._handle(record, record.task, existed, is_replaced))
        return handles

    def _handle(
        self, known: JobRecord | Enqueued, task: str, existed: bool = False, replaced: bool = False
    ) -> Job[Any]:
        found = self.tasks.get(task)
        return Job(self, known, found.signature.read_result if found else from_json, existed, replaced)


def _returned(hook: EnqueueHook, job: NewJob) -> NewJob:
    if not isinstance(job, NewJob):
        raise InvalidValue("on_enqueue", job, f"{hook!r} must return the job it was given, or another")
    return job


def _is_redefinition(known: Task[..., Any], task: Task[..., Any]) -> bool:
    """The same function declared again: a notebook cell run twice, a module reloaded."""
    old, new = known.function, task.function
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)
