"""Options of jobs and tasks, and how they are read into the fields of a job."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, Required, TypedDict

from msgspec.structs import replace

from errandry.api.schedule_options import ScheduleOptions
from errandry.api.unique_options import UniqueOptions, read_unique
from errandry.codec import json_codec
from errandry.core import check
from errandry.core.duration import moment, positive_seconds, seconds
from errandry.core.job import Keep, NewJob, check_tags
from errandry.core.retry import Backoff, Curve
from errandry.core.rule import Rate
from errandry.core.size import format_size, size
from errandry.errors import InvalidValue

MEMORY_MIN = 64_000_000
"""Minimum memory limit of a process, in bytes: the interpreter itself needs that."""
LINGER_MAX = 60.0
"""Maximum seconds a partial batch waits for more jobs."""

Duration = float | timedelta | str
"""A length of time: seconds, a timedelta, or words such as "5 minutes"."""
Moment = float | datetime | str
"""A point in time: seconds since 1970, an aware datetime, or ISO text."""
BackoffOption = Backoff | Duration | Literal["exponential", "linear", "fixed"]
"""The wait before a retry: a Backoff, the name of a curve or of a registered function, or a fixed time."""
KeepOption = Keep | Duration | Mapping[str, Duration | int | Mapping[str, int]]
"""How long a finished job is kept: one time, or one by state; `last` limits the number of jobs of a task."""


class DefaultOptions(TypedDict, total=False):
    """Options that an app can set for all its jobs: `Errandry(defaults={"queue": "mail"})`.

    The options of a task replace those of its app, and the options of `using` replace both. None as `timeout`
    means no timeout; as `backoff` or `keep` it means `Backoff()` or `Keep()`.
    """

    queue: str
    max_attempts: int
    timeout: Duration | None
    backoff: BackoffOption | None
    keep: KeepOption | None


class JobOptions(DefaultOptions, total=False):
    """Options of a job, for `@jobs.task(…)` and `task.using(…)`.

        await send.using(queue="mail", priority=-1, group="acme").enqueue("ada")

    queue         the queue it waits in; a worker may serve some queues only
    max_attempts  maximum number of runs of its handler, the first included
    timeout       how long one attempt may take
    backoff       how long to wait before a retry
    keep          how long the finished job is kept; {"last": 100} also limits the number of jobs of its task
    priority      lower goes first
    lifo          run it before the other jobs of its priority, newest first
    max_crashes   maximum number of worker deaths while it was running; then it fails
    tags          words to find it by
    group         the fairness, limit and order key of jobs in a queue: a customer, a tenant, an account
    unique        allow only one such job at a time: True, a key, or UniqueOptions(…)
    """

    priority: int
    lifo: bool
    max_crashes: int
    tags: tuple[str, ...] | list[str]
    group: str
    unique: bool | str | UniqueOptions | None


class UseOptions(JobOptions, total=False):
    """Options of a job for `task.using(…)` only, in addition to `JobOptions`.

    id        its id; enqueueing the same id again changes nothing
    delay     how long to wait before it may run
    run_at    the time from which it may run
    deadline  the time at which it fails if no worker has claimed it
    metadata  a mapping stored with the job, for hooks and other programs
    """

    id: str
    delay: Duration | None
    run_at: Moment | None
    deadline: Moment | None
    metadata: Mapping[str, Any] | None


class EnqueueOptions(UseOptions, total=False):
    """Options of a job for `jobs.enqueue(name, …)`, in addition to `UseOptions`.

    version  the version of its arguments, for a task that only another program declares
    """

    version: int


class TaskOptions(JobOptions, total=False):
    """Options of a task, for `@jobs.task(…)`, in addition to `JobOptions`.

    name        the name of the task in the store; default: the name of the function
    retry_on    exceptions to retry after; any other fails the job at once
    fail_on     exceptions that fail the job at once; a timeout is a TimeoutError for both
    on_invalid  for a job whose stored arguments the handler does not accept: fail it, or discard it
    runner      async (the event loop), thread or process (a child); default: async for async def, else thread
    memory      maximum memory of a child process while it runs the handler: "512 MB"
    version     the version of its arguments; increase it when you change them, see `Task.upgrade`
    schedule    when to run it, with its default arguments: cron, "every 5 minutes", or ScheduleOptions(…)
    limit       maximum number of its jobs claimed or running at once, across all workers
    rate        maximum number of its jobs started in a span of time, across all workers: "100/minute"
    burst       maximum number of those started at once; default: a tenth of the rate
    redact      arguments that are never shown: on the command line, in logs, in errors
    """

    name: str
    retry_on: tuple[type[Exception], ...] | type[Exception]
    fail_on: tuple[type[Exception], ...] | type[Exception]
    on_invalid: Literal["fail", "discard"]
    runner: Literal["async", "thread", "process"]
    memory: int | str
    version: int
    schedule: str | timedelta | ScheduleOptions | None
    limit: int | None
    rate: str | Rate | None
    burst: int
    redact: tuple[str, ...] | list[str] | str


class BatchOptions(TaskOptions, total=False):
    """Options of a task whose handler is called for many jobs at once, in addition to `TaskOptions`.

    batch   maximum number of jobs for one call; the handler takes a list of their arguments
    linger  how long the first job waits for others before the handler is called with fewer
    """

    batch: Required[int]
    linger: Duration


class EditOptions(TypedDict, total=False):
    """Changes of a job that no worker has claimed, for `jobs.edit`.

    arguments     the new arguments; they replace all old ones
    priority      lower goes first
    run_at        the time from which it may run
    max_attempts  maximum number of runs of its handler, the first included
    tags          the new tags; they replace all old ones
    queue         the queue to move it to; it keeps its priority and, by its age, its place
    """

    arguments: Mapping[str, Any] | None
    priority: int | None
    run_at: Moment | None
    max_attempts: int | None
    tags: Sequence[str] | None
    queue: str | None


def job_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the fields of a job; InvalidValue for unknown or wrong ones."""
    check_names(options, UseOptions)
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise InvalidValue("run_at", options["run_at"], f"give either run_at or delay ({options['delay']})")
    fields: dict[str, Any] = {**options}
    for name, read in _READERS.items():
        if name in fields and (fields[name] is not None or name not in _NONE_ALLOWED):
            fields[name] = read(name, fields[name])
    if fields.get("delay") is not None:
        fields["run_at"] = None
    elif fields.get("run_at") is not None:
        fields["delay"] = None
    return fields


def read_defaults(options: DefaultOptions | None) -> dict[str, Any]:
    """The options of an app as the fields of a job; the errors for wrong ones begin with `defaults`."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidValue("defaults", options, 'must be a mapping: defaults={"queue": "mail"}')
    try:
        check_names(options, DefaultOptions)
        fields = job_fields(options)
        NewJob(id="-", task="-", payload="{}", **fields)
    except InvalidValue as error:
        raise InvalidValue(f"defaults.{error.name}", error.value, error.why) from None
    return fields


def check_names(options: Mapping[str, Any], kind: type) -> None:
    """Raise InvalidValue if a name is not an option of `kind`, a TypedDict or a struct."""
    names = tuple(kind.__annotations__)
    for name, value in options.items():
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"valid options: {', '.join(names)}"
            raise InvalidValue(name, value, f"unknown option; {hint}")


def read_backoff(name: str, value: BackoffOption) -> Backoff:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str) and value in tuple(Curve):
        return Backoff(Curve(value))
    if isinstance(value, str) and value.isidentifier():
        return Backoff(function=value)
    try:
        return Backoff(Curve.FIXED, seconds(value, name), jitter=0.0)
    except InvalidValue as error:
        curves = ", ".join(sorted(Curve))
        right = f"must be {curves}, a duration, or a function declared with @jobs.backoff"
        raise InvalidValue(name, value, f"{right}: {error.why}") from None


def read_keep(name: str, value: KeepOption) -> Keep:
    if isinstance(value, Keep):
        return value
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {}
        for key, part in value.items():
            if check_choice(name, key, (*_FINISHED_STATES, "last")) == "last":
                numbers = part if isinstance(part, Mapping) else dict.fromkeys(_FINISHED_STATES, part)
                for state, number in numbers.items():
                    fields[f"last_{check_choice(f'{name}.last', state, _FINISHED_STATES)}"] = number
            elif not isinstance(part, Mapping):
                fields[key] = seconds(part, f"{name}.{key}")
            else:
                raise InvalidValue(f"{name}.{key}", part, 'must be a length of time, such as "7 days"')
        return replace(Keep(), **fields)
    span = seconds(value, name)
    return Keep(span, span, span)


def read_delay(name: str, value: Duration) -> float:
    if isinstance(value, datetime):
        raise InvalidValue(name, value, "is a point in time, not a length: use run_at")
    return seconds(value, name)


def read_memory(name: str, value: int | str) -> int:
    count = size(value, name)
    if count < MEMORY_MIN:
        raise InvalidValue(
            name, value, f"must be at least {format_size(MEMORY_MIN)}: Python itself needs that"
        )
    return count


def read_linger(name: str, value: Duration) -> float:
    span = seconds(value, name)
    if span > LINGER_MAX:
        raise InvalidValue(
            name, value, f"must be at most {LINGER_MAX:g} s: a batch that waits keeps its slot"
        )
    return span


def read_tags(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidValue(name, value, 'must be a list of names: tags=["nightly"]')
    return check_tags(tuple(value))


def read_metadata(name: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        raise InvalidValue(name, value, 'must be a mapping: metadata={"tenant": 7}')
    return json_codec.to_json(name, dict(value))


_FINISHED_STATES = ("completed", "failed", "canceled")
_NONE_ALLOWED = ("unique", "delay", "timeout", "run_at", "deadline", "backoff", "keep", "metadata")
"""Options that may be None: the value of a job for which neither app nor task nor `using` sets one."""
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "delay": read_delay,
    "timeout": lambda name, value: positive_seconds(value, name, ", or None for no timeout"),
    "run_at": moment,
    "deadline": moment,
    "backoff": read_backoff,
    "keep": read_keep,
    "group": lambda name, value: value if value == "" else check.name(name, value),
    "tags": read_tags,
    "metadata": read_metadata,
    "id": check.name,
    "unique": read_unique,
}


def check_choice(name: str, value: Any, choice: tuple[str, ...]) -> Any:
    if value not in choice:
        raise InvalidValue(name, value, f"must be {check.one_of(choice)}")
    return value


def read_exceptions(name: str, value: Any) -> tuple[type[Exception], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidValue(name, kind, "must be exception classes")
    return kinds
