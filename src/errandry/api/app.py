"""The app: declare tasks, enqueue jobs, read and operate on them."""

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeAlias, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.archive import (
    ARCHIVE_SLICE,
    PRUNABLE_QUERY,
    Archive,
    ArchiveFunction,
    archive_and_remove,
    only_finished,
)
from errandry.api.claimer import Claimer
from errandry.api.client import Client, as_tuple
from errandry.api.context import JobContext
from errandry.api.declarations import DEFAULT_OWNER, Declarations
from errandry.api.events import Event
from errandry.api.flow import Flow, FlowPart, Parallel, as_flows, calls_of, final_jobs
from errandry.api.gates import GateHandle, RuleOptions, read_rule_fields
from errandry.api.job import Job
from errandry.api.job_view import Enqueued
from errandry.api.operations import merge_answers
from errandry.api.options import (
    BatchOptions,
    DefaultOptions,
    Duration,
    EnqueueOptions,
    TaskOptions,
    UseOptions,
    check_names,
    read_defaults,
)
from errandry.api.outcome import Cancel, Fail, Retry, Snooze
from errandry.api.queue import Queue
from errandry.api.run_options import RunWorkerOptions
from errandry.api.schedule_options import TimingOptions
from errandry.api.schedules import Schedulable, Schedules, ScheduleTiming
from errandry.api.signature import read_arguments
from errandry.api.store_client import StoreClient
from errandry.api.sync import SyncErrandry
from errandry.api.task import Call, NewJobs, Task, declare_task, new_job_by_name
from errandry.api.transaction import BoundApp
from errandry.clock import Clock
from errandry.codec.json_codec import Codec, document_info
from errandry.core.answer import Inserted, Moved
from errandry.core.argument_version import with_version
from errandry.core.command import DEFAULT_LEASE
from errandry.core.event import EventFilter, EventKind, EventName
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord, NewJob
from errandry.core.move import created
from errandry.core.rule import Rule
from errandry.errors import InvalidValue, ObjectOf, StoreError
from errandry.store.contract import Store, StoreLimits
from errandry.store.engine.backlog import WriteLimits
from errandry.store.url import DEFAULT_URL, store_at

log = logging.getLogger("errandry.store")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

ResultOrOutcome: TypeAlias = R | Retry | Snooze | Fail | Cancel | type[Retry] | type[Fail] | type[Cancel]
"""What a handler returns: a result or an outcome. `job.result()` has the type of the result only."""
BatchResults = Sequence[R | Retry | Snooze | Fail | Cancel | BaseException]
"""What a batch handler returns: for each job its result, or the exception it failed with."""
CallNext = Callable[[JobContext], Awaitable[Any]]
Middleware = Callable[[JobContext, CallNext], Awaitable[Any]]
"""Wraps every handler: `async def timed(ctx, call_next): …; return await call_next(ctx)`."""
EnqueueHook = Callable[[NewJob], NewJob]
"""Gets every job before it is inserted and returns it, or another in its place. Raises to refuse it."""
ObserverFunction = TypeVar("ObserverFunction", bound=Callable[[Event], object])
BackoffFunction = Callable[[int], float]
"""Seconds to wait after attempt n."""


class Observer(Struct, frozen=True):
    """A function that is called with events, and the filter that selects them."""

    function: Callable[[Event], object]
    event_filter: EventFilter


class NotAContext:
    """A first parameter accepts this type only if it is not annotated, or annotated as `Any`.

    Without an overload for such handlers, pyright takes their first parameter for a `JobContext`.
    """


class TaskDecorator(Protocol):
    """The type of `@jobs.task(…)`: async or plain handlers, with or without a `JobContext`."""

    @overload
    def __call__(self, function: Callable[Concatenate[NotAContext, ...], object], /) -> Task[..., Any]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Awaitable[ResultOrOutcome[R]]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[ResultOrOutcome[R]]], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], ResultOrOutcome[R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, ResultOrOutcome[R]], /) -> Task[P, R]: ...


class BatchTaskDecorator(Protocol):
    """The type of `@jobs.task(batch=…)`: the handler takes a list, each job is enqueued with one item."""

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
    """An app: tasks, and a store for their jobs.

    The store is given by `url` or `store`, else by `$ERRANDRY_URL`; the default is a SQLite file
    `errandry.db` in the current folder. Declaring tasks needs no connection: the store is opened on first
    use, or with `async with`. `defaults` are the options of its jobs that no task sets, see `DefaultOptions`.
    `owner` names the program whose code declares schedules and rules: programs that share a store and remove
    what they no longer declare need different owners.

        jobs = Errandry("sqlite:///jobs.db", defaults={"timeout": "5 minutes"})

        @jobs.task
        async def send(to: str) -> None: ...
    """

    def __init__(  # noqa: PLR0913 - an app has as many options
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        codec: Codec | None = None,
        store_limits: StoreLimits | None = None,
        write_limits: WriteLimits | None = None,
        defaults: DefaultOptions | None = None,
        owner: str = DEFAULT_OWNER,
    ) -> None:
        self._default_fields = read_defaults(defaults)
        _check_types(store, clock, codec, store_limits, write_limits)
        if store is not None and (url is not None or store_limits is not None):
            raise InvalidValue(
                "store",
                ObjectOf(type(store).__name__),
                "is given, so a url or store_limits would have no effect",
            )
        if store is None:
            url = (os.environ.get("ERRANDRY_URL") or DEFAULT_URL) if url is None else url
            store = store_at(url, clock, store_limits)
        self.url = url
        super().__init__(StoreClient(store, clock, codec, write_limits))
        self.backoffs: dict[str, BackoffFunction] = {}
        self.middlewares: list[Middleware] = []
        self.observers: list[Observer] = []
        self.archiver: Archive | None = None
        self._enqueue_hooks: list[EnqueueHook] = []
        self.schedules = Schedules(self)
        """The schedules in the store, and those declared in code."""
        self._declarations = Declarations(self, owner)
        self.sync = SyncErrandry(self)
        """Blocking methods, for code without an event loop."""

    @overload
    def task(self, function: Callable[Concatenate[NotAContext, ...], object], /) -> Task[..., Any]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[JobContext, P], Awaitable[ResultOrOutcome[R]]], /
    ) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[ResultOrOutcome[R]]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], ResultOrOutcome[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, ResultOrOutcome[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[BatchOptions]) -> BatchTaskDecorator: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a function as a task: `@jobs.task` or `@jobs.task(queue="mail", timeout="30s")`.

        See `TaskOptions` and `BatchOptions` for the options.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            task = declare_task(self, function, cast("TaskOptions", options), self._default_fields)
            existing = self.tasks.get(task.name)
            if existing is not None and not _is_redefinition(existing, task):
                place = _place_in_code(existing.function)
                raise InvalidValue("task", task.name, f"is declared already, by {place}: pass name=")
            self.schedules._declare_option(task)
            self.tasks[task.name] = task
            if task.declared_rule is None:
                self._declarations.forget_rule(GateKind.TASK, task.name)
            else:
                self._declarations.add_rule(GateKind.TASK, task.name, task.declared_rule)
            return task

        return declare if function is None else declare(function)

    def schedule(
        self, name: str, call: Schedulable, when: ScheduleTiming, **timing: Unpack[TimingOptions]
    ) -> None:
        """Declare a schedule for a call: `jobs.schedule("nightly", report.new(), "0 3 * * *")`.

        Each worker writes the declared schedules to the store when it starts; `jobs.schedules.put` writes one
        at once, as an operator. `timing` takes the fields of `ScheduleOptions`.
        """
        self.schedules.declare(name, call, when, **timing)

    def declare_queue(self, name: str, **rules: Unpack[RuleOptions]) -> Queue:
        """Declare the rules of a queue: `mail = jobs.declare_queue("mail", limit=20, rate="100/minute")`.

        Each worker writes the declared rules to the store when it starts. A rule that an operator has set
        stays in force until it is reset: `mail.reset_rules()`. Raises `InvalidValue` if the queue is declared
        already with other rules.
        """
        self._declarations.add_rule(GateKind.QUEUE, name, Rule(**read_rule_fields(rules)))
        return self.queue(name)

    async def put_declared(self, *, prune: bool = False) -> list[str]:
        """Write the declared schedules and rules to the store, as workers do when they start.

        Plans and rules that an operator has set stay in force, which is logged. With `prune`, what this app's
        `owner` no longer declares is removed. Returns what changed, such as `schedule nightly`, `queue mail`,
        `task send`.
        """
        return await self._declarations.put(prune)

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every handler in `function`; the first one registered is the outermost.

            @jobs.middleware
            async def timed(ctx, call_next):
                begun = time.perf_counter()
                try:
                    return await call_next(ctx)
                finally:
                    log.info("%s took %.3f s", ctx.job.task, time.perf_counter() - begun)

        `call_next` runs the next middleware or, after the last one, the handler.
        """
        self.middlewares.append(function)
        return function

    def on(
        self, *kinds: EventKind | EventName, queue: str | Sequence[str] = (), task: str | Sequence[str] = ()
    ) -> Callable[[ObserverFunction], ObserverFunction]:
        """Call a function for events while a worker runs: `@jobs.on("failed", task="charge")`.

        `@jobs.on()` without kinds selects events of all kinds.

        Every worker process calls its own observers, for events of all jobs in the store. Async functions run
        on the worker's loop, others in a thread. A function that raises or hangs affects no other.

        `error` events, trouble of a worker or a store, come at once in the process of that worker. A claimer
        calls the observers too, but only with its own `error` events.
        """
        for kind in kinds:
            if inspect.isroutine(kind):
                why = 'has no parentheses: write @jobs.on("failed"), or @jobs.on() for events of all kinds'
                raise InvalidValue("@jobs.on", kind.__name__, why)
        event_filter = EventFilter(kinds, as_tuple("queue", queue), as_tuple("task", task))

        def register(function: ObserverFunction) -> ObserverFunction:
            _check_observer(function)
            self.observers.append(Observer(function, event_filter))
            return function

        return register

    def archive(self, function: ArchiveFunction) -> ArchiveFunction:
        """Hand finished jobs to `function`, in slices, before they are pruned.

        If it raises, the slice is kept and handed over again later. Declare it in every program that runs
        workers or prunes: a program without it deletes the jobs unarchived. Async functions run on the
        worker's loop, others in a thread.
        """
        if self.archiver is not None and self.archiver is not function:
            raise InvalidValue("archive", function, f"there is one already: {self.archiver!r}")
        self.archiver = function
        return function

    async def prune(self, *ids: str, query: str | None = None, dry_run: bool = False) -> Moved:
        """Delete finished jobs by id or query; without both, those whose `keep` time is over.

        The archive function, if one is declared, gets them first.
        """
        if query is None:
            query = "" if ids else PRUNABLE_QUERY
        finished_query = only_finished(query)
        if dry_run or self.archiver is None:
            return await self.remove(*ids, query=finished_query, dry_run=dry_run)
        prunable = (await self.remove(*ids, query=finished_query, dry_run=True)).moved
        parts = []
        for start in range(0, len(prunable), ARCHIVE_SLICE):
            records = await self.engine.call(self.store.get, prunable[start : start + ARCHIVE_SLICE])
            jobs = self._jobs(record for record in records if record is not None)
            parts.append(await archive_and_remove(self, self.archiver, jobs))
        return merge_answers(parts)

    def on_enqueue(self, function: EnqueueHook) -> EnqueueHook:
        """Pass every job through `function` before it is inserted.

        It returns the job, or a changed one, or raises to refuse it.
        """
        self._enqueue_hooks.append(function)
        return function

    def backoff(self, function: BackoffFunction) -> BackoffFunction:
        """Register a function as a backoff, to be named in `@jobs.task(backoff=…)`.

        It takes the number of the failed attempt and returns the seconds to wait. Jobs store its name, so
        every worker has to register it.

            @jobs.backoff
            def patient(attempt: int) -> float:
                return 60.0 * attempt
        """
        self.backoffs[function.__name__] = function
        return function

    async def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        """Enqueue a task by its name: `jobs.enqueue("send", {"to": "ada"}, queue="mail")`.

        A task that another program declares can be enqueued too; then the worker is the first to check its
        name and arguments. See `UseOptions` and `EnqueueOptions` for the options.
        """
        [job] = await self._insert_jobs(self._named_job(task, arguments, options))
        return job

    async def enqueue_many(self, calls: list[Call[Any]]) -> list[Job[Any]]:
        """Enqueue all calls or none, in one write: `jobs.enqueue_many([send.new(to=a), send.new(to=b)])`."""
        return await self._insert_jobs(self._single_jobs(calls))

    @overload
    async def enqueue_flow(self, flow: Call[R] | Flow[R]) -> Job[R]: ...
    @overload
    async def enqueue_flow(self, flow: Parallel[R]) -> list[Job[R]]: ...
    async def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> Job[R] | list[Job[R]]:
        """Enqueue all jobs of a flow or none, in one write.

        Returns the job that runs last; for `parallel(…)`, the job of each of its calls.
        """
        return self._final_jobs(flow, await self._insert_jobs(self._flow_jobs(flow)))

    def _final_jobs(
        self, flow: Call[R] | Flow[R] | Parallel[R], jobs: list[Job[Any]]
    ) -> Job[R] | list[Job[R]]:
        """What `enqueue_flow` returns, of all jobs of the flow."""
        return final_jobs(flow, jobs) if isinstance(flow, Parallel) else jobs[0]

    def _named_job(
        self, task: str, arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> NewJobs:
        """The job of a task that is given by its name."""
        return self._new_jobs([self._job_by_name(task, arguments, options)], "id" not in options)

    def _single_jobs(self, calls: list[Call[Any]], bound: BoundApp | None = None) -> NewJobs:
        """The jobs of calls that wait for no others."""
        calls = self._check_own_calls(calls, bound)
        has_new_ids = all(call._has_new_id for call in calls)
        return self._new_jobs([call.single_job for call in calls], has_new_ids)

    def _flow_jobs(self, flow: FlowPart, bound: BoundApp | None = None) -> NewJobs:
        """The jobs of a flow, final ones first, and its edges. Hooks may have changed the ids of the jobs."""
        parts = as_flows(flow)
        calls = calls_of(parts)
        has_new_ids = all(call._has_new_id for call in calls.values())
        new = self._new_jobs(
            [call.job for call in self._check_own_calls(list(calls.values()), bound)], has_new_ids
        )
        ids = {call_id: job.id for call_id, job in zip(calls, new.jobs, strict=True)}
        edges = {(edge.parent, edge.child): edge for part in parts for edge in part.edges()}
        return new._replace(
            edges=tuple(
                [replace(edge, parent=ids[edge.parent], child=ids[edge.child]) for edge in edges.values()]
            )
        )

    def _new_jobs(self, jobs: list[NewJob], has_new_ids: bool) -> NewJobs:
        """The jobs as the hooks have changed them."""
        if not self._enqueue_hooks:
            return NewJobs(jobs, has_new_ids=has_new_ids)
        hooked = self._apply_hooks(jobs)
        has_same_ids = [job.id for job in hooked] == [job.id for job in jobs]
        return NewJobs(hooked, has_new_ids=has_new_ids and has_same_ids)

    def bind(self, connection: object) -> BoundApp:
        """Enqueue over your own connection, in its transaction: `jobs.bind(connection).enqueue_many(…)`.

        For PostgreSQL a connection of psycopg, asyncpg, SQLAlchemy or Django; for SQLite one of apsw.
        """
        return BoundApp(self, connection)

    def remote_task(self, name: str) -> GateHandle:
        """A task that only other programs declare, to pause it or set its rules.

            await jobs.remote_task("send").set_rules(limit=5)

        A declared task has these methods itself: `send.set_rules(limit=5)`.
        """
        return GateHandle(self, GateKind.TASK, name)

    def claimer(
        self,
        *,
        queues: Sequence[str] | str | None = None,
        tasks: Sequence[str] | str | None = None,
        lease: Duration = DEFAULT_LEASE,
        renew: bool = True,
        worker: str | None = None,
        upkeep: bool = True,
    ) -> Claimer:
        """Claim jobs by hand, for a program that runs them itself instead of a worker.

            async with jobs.claimer(queues=["mail"]) as claimer:
                for job in await claimer.claim(limit=10, wait="20s"):
                    async with job:
                        await job.complete(send(**job.arguments))

        Without `queues` or `tasks` it claims from all. `lease` is how long a claim lasts; with `renew` it is
        renewed until the job is settled, otherwise call `job.renew()`. `worker` is the first part of its id.
        With `upkeep` it also expires, promotes and prunes jobs, as every worker does.
        """
        return Claimer(
            self, queues=queues, tasks=tasks, lease=lease, renew=renew, worker=worker, upkeep=upkeep
        )

    async def run_worker(self, *, signals: bool = False, **options: Unpack[RunWorkerOptions]) -> None:
        """Run a worker in this program until it is stopped.

            await jobs.run_worker(concurrency=20)

        `options` are those of `WorkerOptions`. With `signals`, SIGTERM, SIGINT and SIGHUP stop it once the
        handlers have finished. If it is canceled, it releases its jobs without waiting for their handlers.
        """
        worker = import_module("errandry.worker")  # by name: the worker imports the app, so it is above it
        check_names(options, RunWorkerOptions)
        await worker.Worker(self, worker.WorkerOptions(**options)).run(signals=signals)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _job_by_name(
        self, task: str, arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> NewJob:
        declared = self.tasks.get(task)
        if declared is None:
            return new_job_by_name(self, task, arguments, options, self._default_fields)
        return declared.using(**cast("UseOptions", options)).new(**read_arguments(task, arguments)).single_job

    def _check_own_calls(self, calls: list[Call[Any]], bound: BoundApp | None = None) -> list[Call[Any]]:
        """Return the calls if all tasks belong to this app or to `bound`; InvalidValue otherwise."""
        calls = _read_calls(calls)
        for call in calls:
            if call.task.app is not self and call.task.app != bound:
                why = "is declared by another app, or bound to another connection: enqueue it there"
                raise InvalidValue("task", call.task.name, why)
        return calls

    def _apply_hooks(self, jobs: list[NewJob]) -> list[NewJob]:
        for hook in self._enqueue_hooks:
            jobs = [_check_hook_result(hook, hook(job)) for job in jobs]
        return jobs

    def _metadata_change(self, record: JobRecord, field: str) -> dict[str, Any]:
        task = self.tasks.get(record.task)
        if task is None or field != "payload":
            return {}
        metadata = with_version(record.metadata, task.run_rules.version)
        return {} if metadata == record.metadata else {"metadata": metadata}

    def _seal_value(self, record: JobRecord, field: str, value: Any) -> str:
        task = self.tasks.get(record.task)
        if task is None or field != "payload":
            return super()._seal_value(record, field, value)
        text = task.signature.write(read_arguments(task.name, value))
        return self.codec.seal(text, document_info(record, field))

    async def _insert_jobs(self, new: NewJobs) -> list[Job[Any]]:
        if not new.jobs:
            return []
        answer = await self.client.insert(new.jobs, new.edges, has_new_ids=new.has_new_ids)
        existing_ids = list(answer.existed | answer.replaced)
        existing: list[JobRecord | None] = []
        try:
            existing = await self.engine.call(self.store.get, existing_ids) if existing_ids else []
        except StoreError as error:  # the jobs are enqueued: an error would say that they are not
            log.warning("cannot read enqueued jobs that existed, only their ids are known: %s", error)
        return self._job_handles(new.jobs, answer, existing)

    def _job_handles(
        self, jobs: Sequence[NewJob], answer: Inserted, existing: Iterable[JobRecord | None]
    ) -> list[Job[Any]]:
        """A handle for each job. If an existing job was removed since, only the id of its handle is right."""
        now = self.clock.time()
        if not answer.existed and [*answer.ids] == [job.id for job in jobs]:
            return [Job(self, Enqueued(job, now)) for job in jobs]
        new_jobs = {job.id: job for job in jobs}
        records = {record.id: record for record in existing if record is not None}
        handles: list[Job[Any]] = []
        for job, job_id in zip(jobs, answer.ids, strict=True):
            record = records.get(job_id) or created(new_jobs.get(job_id, job), 0, now)
            if record.id != job_id:
                record = replace(record, id=job_id)
            existed = job_id != job.id or job_id in answer.existed
            is_replaced = existed and job_id in answer.replaced
            handles.append(Job(self, record, existed, is_replaced))
        return handles


def _read_calls(calls: Iterable[Any]) -> list[Call[Any]]:
    """The calls as a list; InvalidValue if a value is none. Python reports coroutines that are not closed."""
    if not isinstance(calls, Iterable):
        raise InvalidValue(
            "calls",
            ObjectOf(type(calls).__name__),
            "must be a list of calls: enqueue_many([send.new(…), send.new(…)])",
        )
    calls = list(calls)
    wrong = [call for call in calls if not isinstance(call, Call)]
    for value in wrong:
        if inspect.iscoroutine(value):
            value.close()
    if not wrong:
        return calls
    if isinstance(wrong[0], Task):
        why = f"is a task without arguments: write {wrong[0].name}.new(…)"
    elif inspect.iscoroutine(wrong[0]):
        why = "is a coroutine, as of task.enqueue(…), which enqueues one job: write task.new(…)"
    elif isinstance(wrong[0], Flow | Parallel):
        why = "is a flow: enqueue it with enqueue_flow"
    else:
        why = "must be a call of a task, task.new(…)"
    raise InvalidValue("call", wrong[0], why)


def _check_types(store: object, clock: object, codec: object, *limits: object) -> None:
    """Refuse options that would only fail at the first use."""
    for option, value, methods in (
        ("store", store, ("open", "commit", "get", "wait_for_change")),
        ("clock", clock, ("time", "monotonic")),
        ("codec", codec, ("seal", "unseal")),
    ):
        if value is not None and (
            isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods)
        ):
            raise InvalidValue(option, value, f"must be an object with the methods {', '.join(methods)}")
    for option, value, kind in zip(
        ("store_limits", "write_limits"), limits, (StoreLimits, WriteLimits), strict=True
    ):
        if value is not None and not isinstance(value, kind):
            raise InvalidValue(option, value, f"must be of type {kind.__name__}")


def _check_observer(function: object) -> None:
    """Refuse a function that cannot be called with an event."""
    if not callable(function):
        raise InvalidValue("observer", function, "must be a function that takes the event")
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # a function of C without a signature
        return
    except TypeError:
        name = getattr(function, "__name__", ObjectOf(type(function).__name__))
        why = "is called with the event alone: write def observer(event)"
        raise InvalidValue("observer", name, why) from None


def _check_hook_result(hook: EnqueueHook, job: NewJob) -> NewJob:
    if not isinstance(job, NewJob):
        raise InvalidValue("on_enqueue", job, f"{hook!r} must return the job it got, or another")
    return job


def _place_in_code(function: Callable[..., Any]) -> str:
    """The name, module and line of a function."""
    place = f"{function.__qualname__} in module {function.__module__}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return place if code is None else f"{place}, line {code.co_firstlineno}"


def _is_redefinition(existing: Task[..., Any], task: Task[..., Any]) -> bool:
    """True if the same function is declared again: a notebook cell run twice, a module reloaded."""
    old, new = existing.function, task.function
    return (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)
