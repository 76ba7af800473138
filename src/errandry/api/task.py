"""Tasks: a task has a handler and options, and makes jobs from calls."""

import inspect
import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.gates import GateHandle, RuleOptions, read_rule_fields
from errandry.api.job import Job
from errandry.api.options import (
    BatchOptions,
    JobOptions,
    TaskOptions,
    UseOptions,
    check_choice,
    check_names,
    job_fields,
    read_exceptions,
    read_linger,
    read_memory,
)
from errandry.api.schedule_options import ScheduleOptions, read_schedule
from errandry.api.signature import Signature, read_arguments
from errandry.api.store_client import StoreClient
from errandry.api.sync import SyncJob, SyncTask
from errandry.api.unique_options import UniqueOptions, check_word
from errandry.clock import Clock
from errandry.codec.json_codec import Codec, DocumentInfo, PlainCodec, to_json
from errandry.codec.redaction import with_redacted_names
from errandry.codec.upgrades import Upgrade, Upgrades
from errandry.core import check
from errandry.core.argument_version import FIRST_VERSION, check_version, with_version
from errandry.core.batch import BATCH_MAX
from errandry.core.flow import Edge
from errandry.core.job import NewJob, copy_job, uuid7
from errandry.core.rule import Rule
from errandry.core.unique import Conflict
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.flow import Flow

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Runner(StrEnum):
    """Where a handler runs: on the worker's loop, in a thread of it, or in a child process."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


class RunRules(Struct, frozen=True):
    """The options of a task that its worker applies: see `TaskOptions` and `BatchOptions`.

    `memory` is in bytes, `linger` in seconds.
    """

    retry_on: tuple[type[Exception], ...] = (Exception,)
    fail_on: tuple[type[Exception], ...] = ()
    on_invalid: Literal["fail", "discard"] = "fail"
    memory: int | None = None
    redact: tuple[str, ...] = ()
    batch: int | None = None
    linger: float = 0.0
    version: int = FIRST_VERSION


class ResultOf:
    """A placeholder for an argument that other calls will return: see `result_of`."""

    def __init__(self, calls: "tuple[Flow[Any], ...]", is_list: bool) -> None:
        self.calls, self.is_list = calls, is_list

    def inputs(self, name: str) -> "list[tuple[Flow[Any], str]]":
        """The calls, each with the path that its result fills: `total`, or `parts[2]` in a list."""
        if not self.is_list:
            return [(self.calls[0], name)]
        return [(call, f"{name}[{place}]") for place, call in enumerate(self.calls)]


class Call(Struct, Generic[R_co], frozen=True):
    """A call of a task that is not enqueued yet: `task.new(…)`, for `enqueue_many` and flows.

    `inputs` are the flows whose results fill arguments of the call, each with the path of the argument.
    """

    job: NewJob
    task: "Task[..., R_co]"
    inputs: "tuple[tuple[Flow[Any], str], ...]" = ()

    @property
    def _has_new_id(self) -> bool:
        """Whether this program made the id of the job, not its caller."""
        return "id" not in self.task._job_fields

    @property
    def single_job(self) -> NewJob:
        """The job of the call; raises InvalidValue if it waits for results of other jobs."""
        if self.inputs:
            why = (
                f"its argument {self.inputs[0][1]} is the result of another job: enqueue it with enqueue_flow"
            )
            raise InvalidValue("task", self.task.name, why)
        return self.job


class NewJobs(NamedTuple):
    """Jobs to enqueue together. `has_new_ids`: this program has made the ids of all jobs, not its caller."""

    jobs: list[NewJob]
    edges: tuple[Edge, ...] = ()
    has_new_ids: bool = False


class TaskApp(Protocol):
    """The attributes and methods of the app that a task uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def backoffs(self) -> dict[str, Callable[[int], float]]: ...

    def bind(self, connection: object) -> "TaskApp": ...

    def remote_task(self, name: str) -> GateHandle: ...

    async def enqueue_many(self, calls: list[Call[Any]]) -> list[Job[Any]]: ...

    @property
    def client(self) -> StoreClient: ...

    @property
    def sync(self) -> "SyncTaskApp": ...


class SyncTaskApp(Protocol):
    """The method of the blocking app that a blocking task uses."""

    def enqueue_many(self, calls: list[Call[Any]]) -> list[SyncJob[Any]]: ...


class Task(Generic[P, R_co]):
    """A declared handler: call it as the plain function, or enqueue it as a job.

    await send("ada")                                     # runs the function here
    await send.enqueue("ada")                             # a worker runs it
    await send.using(delay="5 minutes").enqueue("ada")    # with other options
    """

    def __init__(
        self,
        app: TaskApp,
        function: Callable[..., Any],
        name: str,
        runner: Runner,
        rules: RunRules,
        fields: dict[str, Any],
    ) -> None:
        self.app, self.function, self.run_rules = app, function, rules
        self.name: str = check.name("task", name)
        """The name that its jobs are stored under, unique in the app."""
        self.signature = Signature(name, function, rules.batch is not None, rules.redact)
        self.is_async = inspect.iscoroutinefunction(function)
        self.runner = runner
        self._job_fields = _check_unique_arguments(self.signature, fields)
        self._template = _job_template(app, name, rules, fields)
        self.schedule: ScheduleOptions | None = None
        self.declared_rule: Rule | None = None
        self.upgrades = Upgrades(self.name, rules.version)
        update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def sync(self) -> SyncTask[P, R_co]:
        """The task with blocking methods, for code without an event loop: `send.sync.enqueue("ada")`."""
        return SyncTask(self)

    def using(self, **options: Unpack[UseOptions]) -> "Task[P, R_co]":
        """The task with other options for its jobs: `send.using(queue="mail").enqueue("ada")`.

        See `UseOptions` for the options.
        """
        other, fields = self._copy(), self._job_fields | job_fields(options)
        other._template = _job_template(self.app, self.name, self.run_rules, fields)
        other._job_fields = _check_unique_arguments(self.signature, fields)
        return other

    def bind(self, connection: object) -> "Task[P, R_co]":
        """The task, enqueued over your own connection, in its transaction: see `Errandry.bind`."""
        other = self._copy()
        other.app = self.app.bind(connection)
        return other

    def new(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call that is not enqueued yet, for `enqueue_many` and flows; its arguments are checked here."""
        given = self.signature.bind_arguments(args, kwargs)
        inputs: tuple[tuple[Flow[Any], str], ...] = ()
        later = [name for name, value in given.items() if isinstance(value, ResultOf)]
        if later:
            _refuse_unknown_key(self._job_fields.get("unique"), later)
            inputs = tuple([pair for name in later for pair in given[name].inputs(name)])
            given = {name: value for name, value in given.items() if name not in later}
        arguments = self.signature.write(given, frozenset(later))
        return Call(_new_job(self.app, self._template, self._job_fields, arguments), self, inputs)

    def _job_without_arguments(self) -> NewJob:
        """The job of a call without arguments, whose payload the codec has not sealed.

        Raises InvalidArguments if the handler needs arguments.
        """
        self.signature.check_defaults()
        unique: UniqueOptions | None = self._job_fields.get("unique")
        return (
            self._template if unique is None else copy_job(self._template, **unique.fields(self.name, "{}"))
        )

    def upgrade(self, version: int) -> Callable[[Upgrade], Upgrade]:
        """Register a function that turns arguments of a version into those of the next one.

            @jobs.task(version=2)
            async def send(to: str, subject: str) -> None: ...

            @send.upgrade(1)
            def add_subject(old: dict[str, Any]) -> dict[str, Any]:
                return {**old, "subject": "(none)"}

        It takes the old arguments by name, as plain JSON values, and returns the new ones.
        """

        def add(step: Upgrade) -> Upgrade:
            self.upgrades.add(version, step)
            return step

        return add

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Enqueue a call with these arguments, for a worker to run. Returns when the job is durable."""
        [job] = await self.app.enqueue_many([self.new(*args, **kwargs)])
        return job

    async def pause(self, *, by: str = "") -> bool:
        """Stop claims of its jobs in all queues until it is resumed; running jobs go on.

        `by` names the operator. Returns False if the task was paused already.
        """
        return await self.app.remote_task(self.name).pause(by=by)

    async def resume(self) -> bool:
        """Allow claims of its jobs again. False if it was not paused."""
        return await self.app.remote_task(self.name).resume()

    async def rules(self) -> Rule:
        """The rules in force for its jobs; `NO_RULE` if it has none."""
        return await self.app.remote_task(self.name).rules()

    async def set_rules(self, *, by: str = "", **changes: Unpack[RuleOptions]) -> Rule:
        """Change the given rules for all workers at once: `send.set_rules(limit=5, rate="100/minute")`.

        See `GateHandle.set_rules`.
        """
        return await self.app.remote_task(self.name).set_rules(by=by, **changes)

    async def reset_rules(self, *fields: str, declared: bool = False, by: str = "") -> Rule:
        """Return these rules, or all, to the values that `@jobs.task` declares.

        See `GateHandle.reset_rules`.
        """
        return await self.app.remote_task(self.name).reset_rules(*fields, declared=declared, by=by)

    def _copy(self) -> "Task[P, R_co]":
        other: Task[P, R_co] = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


def declare_task(
    app: TaskApp,
    function: Callable[..., Any],
    options: TaskOptions | BatchOptions,
    default_fields: Mapping[str, Any],
) -> Task[..., Any]:
    """Make a task of `function`. `default_fields` are the fields of its jobs that no option sets.

    Wrong options raise InvalidValue here, not when a job runs.
    """
    _refuse_method(function)
    if not inspect.isroutine(function):
        raise InvalidValue("task", function, "must be a function; options go by name: task(name=…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue("task", function, "is a generator: a handler returns its result, it cannot yield")
    if "name" not in options and function.__name__ == "<lambda>":
        raise InvalidValue("task", function, "a lambda has no name: write a def, or give name=")
    check_names(options, BatchOptions)
    name, runner = options.get("name", function.__name__), _handler_runner(function, options)
    rules = RunRules(
        retry_on=read_exceptions("retry_on", options.get("retry_on", Exception)),
        fail_on=read_exceptions("fail_on", options.get("fail_on", ())),
        on_invalid=check_choice("on_invalid", options.get("on_invalid", "fail"), ("fail", "discard")),
        memory=_memory_limit(runner, options),
        batch=_batch_size(options),
        linger=_linger_seconds(options),
        redact=_redacted_arguments(function, options),
        version=check_version("version", options.get("version", FIRST_VERSION)),
    )
    given = {name: value for name, value in options.items() if name in JobOptions.__annotations__}
    fields = {**default_fields, **job_fields(given)}
    task: Task[..., Any] = Task(app, function, name, runner, rules, fields)
    task.schedule = read_schedule("schedule", options.get("schedule"))
    given = {option: value for option, value in options.items() if option in ("limit", "rate", "burst")}
    task.declared_rule = Rule(**read_rule_fields(given)) if given else None
    return task


def _refuse_method(function: Any) -> None:
    """Raise InvalidValue for a function that must be called with an object or a class as first argument."""
    if isinstance(function, staticmethod):
        raise InvalidValue("task", function.__qualname__, "put @staticmethod above @task, not below it")
    plain = function.__func__ if isinstance(function, classmethod) else function
    if not inspect.isfunction(plain):
        return
    place = plain.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(plain).parameters), "")
    if place and not place.endswith("<locals>") and first in ("self", "cls"):
        why = (
            f"is a method, and a worker has no {first} to call it with: declare a function, "
            f"or the method of an object: task(an_object.{plain.__name__})"
        )
        raise InvalidValue("task", plain.__qualname__, why)


def _handler_runner(function: Callable[..., Any], options: TaskOptions | BatchOptions) -> Runner:
    """The runner given, or the one of the worker that fits `function`; InvalidValue if it cannot run it."""
    is_async = inspect.iscoroutinefunction(function)
    if "runner" not in options:
        return Runner.ASYNC if is_async else Runner.THREAD
    runner = Runner(check_choice("runner", options["runner"], tuple(Runner)))
    if runner is Runner.PROCESS:
        _check_importable(function)
    elif runner is Runner.ASYNC and not is_async:
        why = (
            f"{function.__qualname__} is a plain function and would block the worker's event loop: "
            'give "thread", the default for plain functions, or "process"'
        )
        raise InvalidValue("runner", runner.value, why)
    elif runner is Runner.THREAD and is_async:
        why = (
            f"{function.__qualname__} is a coroutine function, which runs on the worker's event loop: "
            'leave runner out, or give "process"'
        )
        raise InvalidValue("runner", runner.value, why)
    return runner


def _check_importable(function: Callable[..., Any]) -> None:
    """Raise InvalidValue if a child process could not import the handler."""
    if inspect.ismethod(function) and not inspect.isclass(function.__self__):
        why = f"another process has not the object of {function.__qualname__}: declare a function"
        raise InvalidValue("runner", Runner.PROCESS.value, why)
    if not function.__qualname__.replace(".", "").isidentifier():
        why = f"another process cannot find {function.__qualname__}: declare the task at the top of a module"
        raise InvalidValue("runner", Runner.PROCESS.value, why)
    file = vars(sys.modules["__main__"]).get("__file__") or ""
    if function.__module__ == "__main__" and not os.path.isfile(file):
        why = "another process cannot import what was typed into a notebook or a prompt: write it in a module"
        raise InvalidValue("runner", Runner.PROCESS.value, why)


def _redacted_arguments(function: Callable[..., Any], options: TaskOptions | BatchOptions) -> tuple[str, ...]:
    given = options.get("redact", ())
    names = (given,) if isinstance(given, str) else tuple(given)
    parameters = tuple(inspect.signature(function).parameters)
    for name in names:
        if name not in parameters:
            why = f"the handler has no such argument: it has {', '.join(parameters) or 'none'}"
            raise InvalidValue("redact", name, why)
    return names


def _memory_limit(runner: Runner, options: TaskOptions | BatchOptions) -> int | None:
    given = options.get("memory")
    if given is None:
        return None
    if runner is not Runner.PROCESS:
        raise InvalidValue("memory", given, 'limits a process: add runner="process"')
    return read_memory("memory", given)


def _batch_size(options: Mapping[str, Any]) -> int | None:
    return check.whole("batch", options["batch"], 1, BATCH_MAX) if "batch" in options else None


def _linger_seconds(options: Mapping[str, Any]) -> float:
    if "linger" not in options:
        return 0.0
    if "batch" not in options:
        raise InvalidValue("linger", options["linger"], "is for tasks that take batches: add batch=")
    return read_linger("linger", options["linger"])


def new_job_by_name(
    app: TaskApp,
    task: str,
    arguments: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    default_fields: Mapping[str, Any],
) -> NewJob:
    """A job of a task that another program declares; only its worker can check the arguments."""
    job_options = dict(options)
    rules = RunRules(version=check_version("version", job_options.pop("version", FIRST_VERSION)))
    fields = {**default_fields, **job_fields(job_options)}
    template = _job_template(app, task, rules, fields)
    return _new_job(app, template, fields, to_json("arguments", read_arguments(task, arguments)))


def _new_job(app: TaskApp, template: NewJob, fields: dict[str, Any], arguments: str) -> NewJob:
    """A copy of `template` with its own id, payload and unique key."""
    job_id = fields["id"] if "id" in fields else uuid7(app.clock.time(), secrets.token_bytes(10))
    payload, is_plain = arguments, type(app.codec) is PlainCodec
    if not is_plain:
        sealed = app.codec.seal(arguments, DocumentInfo(job_id, template.task, "payload"))
        payload = check.document("payload", sealed)
    unique: UniqueOptions | None = fields.get("unique")
    if unique is None:
        return copy_job(template, id=job_id, payload=payload)
    unique_fields = unique.fields(template.task, arguments)
    if unique_fields["on_conflict"] is Conflict.REPLACE and not is_plain:
        why = "does not work with a codec that seals arguments for one job: use return or raise"
        raise InvalidValue("on_conflict", "replace", why)
    return copy_job(template, id=job_id, payload=payload, **unique_fields)


def _job_template(app: TaskApp, task: str, rules: RunRules, fields: dict[str, Any]) -> NewJob:
    """A checked job with these fields, to be copied for each call: copying is cheaper than checking again."""
    job = NewJob(**({"id": "-"} | fields | {"task": task, "payload": "{}", "unique": None}))
    function = job.backoff.function if job.backoff is not None else None
    if function is not None and function not in app.backoffs:
        why = "is neither a curve nor a function declared with @jobs.backoff"
        raise InvalidValue("backoff", function, why)
    if rules.redact:
        job = replace(job, metadata=with_redacted_names(job.metadata, rules.redact))
    if rules.version != FIRST_VERSION:
        job = replace(job, metadata=with_version(job.metadata, rules.version))
    return job


def _refuse_unknown_key(unique: UniqueOptions | None, later: Collection[str]) -> None:
    """Raise InvalidValue if the unique key would be made from arguments that are not known at enqueue."""
    if unique is not None and unique.key is None:
        names = later if unique.by is None else [name for name in unique.by if name in later]
        for name in names:
            why = f"would be made of {name}, the result of another job: give a key, or other names with by="
            raise InvalidValue("unique", "key", why)


def _check_unique_arguments(signature: Signature, fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields`; InvalidValue if the unique key is made from arguments that the task does not have."""
    unique: UniqueOptions | None = fields.get("unique")
    if unique is not None and unique.by is not None:
        for name in unique.by:
            check_word("by", name, signature.parameters)
    return fields
