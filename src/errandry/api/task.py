"""Tasks: declared work. A task knows its handler, its options, and how to make a job of a call."""

import inspect
import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.job import Job
from errandry.api.options import (
    BatchOptions,
    JobOptions,
    TaskOptions,
    UseOptions,
    exceptions,
    job_fields,
    known,
    linger,
    memory,
    one_of,
)
from errandry.api.schedule_options import ScheduleOptions, schedule
from errandry.api.signature import Signature
from errandry.api.unique_options import UniqueOptions, word
from errandry.clock import Clock
from errandry.codec.argument_version import FIRST, Upgrade, Upgrades, version, versioned
from errandry.codec.json_codec import Codec, DocumentInfo, PlainCodec, to_json
from errandry.codec.redaction import with_redacted_names
from errandry.core import check
from errandry.core.batch import BATCH_MAX
from errandry.core.job import NewJob, like, uuid7
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
    """What a worker needs to know of a task beside its handler.

    With `retry_on`, other exceptions fail the job at once; those of `fail_on` always do. `memory` is what a
    process may have, in bytes. Arguments in `redact` are shown nowhere. With `batch`, one call is for up to
    so many jobs, and the first of them waits for `linger` seconds for the others. `version` is that of its
    arguments.
    """

    retry_on: tuple[type[Exception], ...] = (Exception,)
    fail_on: tuple[type[Exception], ...] = ()
    on_invalid: Literal["fail", "discard"] = "fail"
    in_process: bool = False
    memory: int | None = None
    redact: tuple[str, ...] = ()
    batch: int | None = None
    linger: float = 0.0
    version: int = FIRST


class ResultOf:
    """What stands for an argument until the calls that it is the result of have ended: see `result_of`."""

    def __init__(self, calls: "tuple[Flow[Any], ...]", is_list: bool) -> None:
        self.calls, self.is_list = calls, is_list

    def feeds(self, name: str) -> "list[tuple[Flow[Any], str]]":
        """The calls, and what each of them is given for in the argument of this name."""
        if not self.is_list:
            return [(self.calls[0], name)]
        return [(call, f"{name}[{place}]") for place, call in enumerate(self.calls)]


class Call(Struct, Generic[R_co], frozen=True):
    """A call of a task, ready to be enqueued with others; its children are those whose results it is given.

    Each of these stands there with the argument that it is given for.
    """

    job: NewJob
    task: "Task[..., R_co]"
    fed: "tuple[tuple[Flow[Any], str], ...]" = ()

    @property
    def alone(self) -> NewJob:
        """Its job, if it does not wait for others."""
        if self.fed:
            why = f"its argument {self.fed[0][1]} is the result of another job: enqueue it with enqueue_flow"
            raise InvalidValue("task", self.task.name, why)
        return self.job


class TaskBackend(Protocol):
    """What a task needs of its app."""

    @property
    def clock(self) -> Clock: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def backoffs(self) -> dict[str, Callable[[int], float]]: ...

    def bind(self, connection: object) -> "TaskBackend": ...

    async def enqueue_many(self, requests: list[Call[Any]]) -> list[Job[Any]]: ...

    def enqueue_many_sync(self, requests: list[Call[Any]]) -> list[Job[Any]]: ...


class Task(Generic[P, R_co]):
    """A declared handler. Called, it is the plain function; enqueued, it becomes a job."""

    def __init__(
        self, app: TaskBackend, function: Callable[..., Any], name: str, rules: RunRules, base: dict[str, Any]
    ) -> None:
        self.app, self.function, self.name, self.rules = app, function, check.name("task", name), rules
        self.signature = Signature(name, function, is_batch=rules.batch is not None)
        self.is_async = inspect.iscoroutinefunction(function)
        here = Runner.ASYNC if self.is_async else Runner.THREAD
        self.runner = Runner.PROCESS if rules.in_process else here
        self._base, self._model = _named_right(self.signature, base), _model(app, name, rules, base)
        self.schedule: ScheduleOptions | None = None
        self.upgrades = Upgrades(self.name, rules.version)
        update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def using(self, **options: Unpack[UseOptions]) -> "Task[P, R_co]":
        """The same task with other options for what is enqueued through it."""
        other, base = self._copy(), self._base | job_fields(options)
        other._model = _model(self.app, self.name, self.rules, base)
        other._base = _named_right(self.signature, base)
        return other

    def bind(self, connection: object) -> "Task[P, R_co]":
        """The same task, enqueued over a connection of yours, in its transaction: see `Errandry.bind`."""
        other = self._copy()
        other.app = self.app.bind(connection)
        return other

    def new(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """The job a call would make, for `enqueue_many` and for flows."""
        given = self.signature.named(args, kwargs)
        fed: tuple[tuple[Flow[Any], str], ...] = ()
        later = [name for name, value in given.items() if isinstance(value, ResultOf)]
        if later:
            _refuse_unknown_key(self._base.get("unique"), later)
            fed = tuple([one for name in later for one in given[name].feeds(name)])
            given = {name: value for name, value in given.items() if name not in later}
        arguments = self.signature.write(given, frozenset(later))
        return Call(_new_job(self.app, self._model, self._base, arguments), self, fed)

    def upgrade(self, version: int) -> Callable[[Upgrade], Upgrade]:
        """Say how arguments of an older version become those of the next: `@send.upgrade(1)`.

        The function takes them by name, as plain JSON values, and returns the others.
        """

        def add(step: Upgrade) -> Upgrade:
            self.upgrades.add(version, step)
            return step

        return add

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Have it run by a worker. Returns when the job is durable."""
        [job] = await self.app.enqueue_many([self.new(*args, **kwargs)])
        return job

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """`enqueue` for code without an event loop."""
        [job] = self.app.enqueue_many_sync([self.new(*args, **kwargs)])
        return job

    def _copy(self) -> "Task[P, R_co]":
        other: Task[P, R_co] = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


def declared(
    app: TaskBackend, function: Callable[..., Any], options: TaskOptions | BatchOptions
) -> Task[..., Any]:
    """A task for `function`; options that make no sense are refused here, not when a job runs."""
    if not inspect.isroutine(function):
        raise InvalidValue("task", function, "must be a function; options go by name: task(name=…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue("task", function, "is a generator: a handler returns its result, it cannot yield")
    known(options, BatchOptions)
    name = options.get("name", function.__name__)
    rules = RunRules(
        retry_on=exceptions("retry_on", options.get("retry_on", Exception)),
        fail_on=exceptions("fail_on", options.get("fail_on", ())),
        on_invalid=one_of("on_invalid", options.get("on_invalid", "fail"), ("fail", "discard")),
        in_process=_in_process(function, options),
        memory=_memory(options),
        batch=_batch(options),
        linger=_linger(options),
        redact=_redact(function, options),
        version=version("version", options.get("version", FIRST)),
    )
    base = job_fields({k: v for k, v in options.items() if k in JobOptions.__annotations__})
    task: Task[..., Any] = Task(app, function, name, rules, base)
    task.schedule = schedule("schedule", options.get("schedule"))
    return task


def _in_process(function: Callable[..., Any], options: TaskOptions | BatchOptions) -> bool:
    """Whether it runs in a process, which must be able to find it again: by its module and its name there."""
    run = options.get("run")
    if run is None:
        return False
    if run != "process":
        why = "must be process; without it, async handlers run on the loop and plain functions in threads"
        raise InvalidValue("run", run, why)
    if not function.__qualname__.replace(".", "").isidentifier():
        why = f"another process cannot find {function.__qualname__}: declare the task at the top of a module"
        raise InvalidValue("run", run, why)
    file = vars(sys.modules["__main__"]).get("__file__") or ""
    if function.__module__ == "__main__" and not os.path.isfile(file):
        why = "another process cannot import what was typed into a notebook or a prompt: write it in a module"
        raise InvalidValue("run", run, why)
    return True


def _redact(function: Callable[..., Any], options: TaskOptions | BatchOptions) -> tuple[str, ...]:
    given = options.get("redact", ())
    names = (given,) if isinstance(given, str) else tuple(given)
    parameters = tuple(inspect.signature(function).parameters)
    for name in names:
        if name not in parameters:
            why = f"the handler has no such argument: it has {', '.join(parameters) or 'none'}"
            raise InvalidValue("redact", name, why)
    return names


def _memory(options: TaskOptions | BatchOptions) -> int | None:
    given = options.get("memory")
    if given is None:
        return None
    if options.get("run") != "process":
        raise InvalidValue("memory", given, 'limits a process: say run="process" too')
    return memory("memory", given)


def _batch(options: Mapping[str, Any]) -> int | None:
    return check.whole("batch", options["batch"], 1, BATCH_MAX) if "batch" in options else None


def _linger(options: Mapping[str, Any]) -> float:
    if "linger" not in options:
        return 0.0
    if "batch" not in options:
        raise InvalidValue("linger", options["linger"], "is for tasks that take batches: say batch= too")
    return linger("linger", options["linger"])


def named(app: TaskBackend, task: str, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> NewJob:
    """A job of a task that is declared elsewhere: its worker checks the arguments."""
    given = dict(options)
    rules = RunRules(version=version("version", given.pop("version", FIRST)))
    fields = job_fields(given)
    return _new_job(app, _model(app, task, rules, fields), fields, to_json("arguments", dict(arguments)))


def _new_job(app: TaskBackend, model: NewJob, fields: dict[str, Any], arguments: str) -> NewJob:
    """A job like `model`, made of these fields, with arguments of its own."""
    job_id = fields["id"] if "id" in fields else uuid7(app.clock.time(), secrets.token_bytes(10))
    payload, is_plain = arguments, type(app.codec) is PlainCodec
    if not is_plain:
        sealed = app.codec.seal(arguments, DocumentInfo(job_id, model.task, "payload"))
        payload = check.document("payload", sealed)
    unique: UniqueOptions | None = fields.get("unique")
    if unique is None:
        return like(model, id=job_id, payload=payload)
    own = unique.fields(model.task, arguments)
    if own["on_conflict"] is Conflict.REPLACE and not is_plain:
        why = "would put arguments into another job that the codec has sealed for this one: return or raise"
        raise InvalidValue("on_conflict", "replace", why)
    return like(model, id=job_id, payload=payload, **own)


def _model(app: TaskBackend, task: str, rules: RunRules, fields: dict[str, Any]) -> NewJob:
    """A job with these fields, checked: those that are enqueued are like it but for what each call gives."""
    job = NewJob(**({"id": "-"} | fields | {"task": task, "payload": "{}", "unique": None}))
    function = job.backoff.function if job.backoff is not None else None
    if function is not None and function not in app.backoffs:
        raise InvalidValue("backoff", function, "is no curve, and no function declared with @jobs.backoff")
    if rules.redact:
        job = replace(job, metadata=with_redacted_names(job.metadata, rules.redact))
    if rules.version != FIRST:
        job = replace(job, metadata=versioned(job.metadata, rules.version))
    return job


def _refuse_unknown_key(unique: UniqueOptions | None, later: Collection[str]) -> None:
    """A unique key is made of what is known when the job is enqueued."""
    if unique is not None and unique.key is None:
        names = later if unique.by is None else [name for name in unique.by if name in later]
        for name in names:
            why = f"would be made of {name}, the result of another job: give a key, or other names with by="
            raise InvalidValue("unique", "key", why)


def _named_right(signature: Signature, fields: dict[str, Any]) -> dict[str, Any]:
    """`fields`, if the arguments that a unique key is made of are arguments of the task."""
    unique: UniqueOptions | None = fields.get("unique")
    if unique is not None and unique.by is not None:
        for name in unique.by:
            word("by", name, signature.parameters)
    return fields
