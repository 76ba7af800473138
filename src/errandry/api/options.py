"""Options as people write them: durations in words, datetimes, curves by name; and as the fields of a job."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, Required, TypedDict

from msgspec.structs import replace

from errandry.api.schedule_options import ScheduleOptions
from errandry.api.unique_options import UniqueOptions, unique
from errandry.codec import json_codec
from errandry.core import check
from errandry.core.duration import moment, seconds
from errandry.core.job import JobOrder, Keep, check_tags
from errandry.core.retry import Backoff, Curve
from errandry.core.size import short, size
from errandry.errors import InvalidValue

MEMORY_MIN = 64_000_000
LINGER_MAX = 60.0

Duration = float | timedelta | str
"""A length of time: seconds, a timedelta, or words such as "5 minutes"."""
Moment = float | datetime | str
"""A point in time: seconds since 1970, an aware datetime, or ISO text."""
BackoffOption = Backoff | Duration | Literal["exponential", "linear", "fixed"]
"""How long to wait before a retry: a Backoff, a curve or registered function by name, or a fixed time."""
KeepOption = Keep | Duration | Mapping[str, Duration | int | Mapping[str, int]]
"""How long a finished job is kept: for all ends alike, or by state; `last`: how many of its task."""


class JobOptions(TypedDict, total=False):
    """What can be said of any one job, when its task is declared or with `using`.

    queue         where it waits; a worker may serve some queues only
    priority      lower goes first
    order         fifo, or lifo: before the fifo jobs of its priority, the newest first
    max_attempts  how often its handler may run, the first run included
    max_crashes   how often it may have been running when its worker died
    backoff       how long to wait before a retry
    timeout       how long one attempt may take
    keep          how long its record stays once it has finished; {"last": 100}: and how many of its task
    tags          words to find it by
    group         a name that jobs have in common, to find them by
    unique        that there is only one such job at a time: True, a key, or Unique(…)
    """

    queue: str
    priority: int
    order: Literal["fifo", "lifo"]
    max_attempts: int
    max_crashes: int
    backoff: BackoffOption | None
    timeout: Duration | None
    keep: KeepOption | None
    tags: tuple[str, ...] | list[str]
    group: str
    unique: bool | str | UniqueOptions | None


class UseOptions(JobOptions, total=False):
    """What can be said with `using`, beside the above.

    id        its id; enqueueing the same id again changes nothing
    delay     how long to wait before it may run
    run_at    when it may run
    deadline  when it fails if no worker has claimed it
    metadata  a mapping kept with the job, for programs around it
    """

    id: str
    delay: Duration | None
    run_at: Moment | None
    deadline: Moment | None
    metadata: Mapping[str, Any] | None


class TaskOptions(JobOptions, total=False):
    """What can be said when a task is declared, beside the above.

    name        what the task is called in the store; the function's name
    retry_on    exceptions to try again after; any other fails the job at once
    fail_on     exceptions that fail the job at once
    on_invalid  what becomes of a job whose arguments the handler no longer takes: fail, or discard it
    run         process: in a process of its own; without it, a plain function runs in a thread of the worker
    memory      how much memory such a process may have while it runs the handler: "512 MB"
    version     of its arguments: say the next number when you change them, see `upgrade`
    schedule    when to run it by itself: cron, "every 5 minutes", or Schedule(…); its arguments need defaults
    redact      arguments that are shown nowhere: not on the command line, in logs or in errors
    """

    name: str
    retry_on: tuple[type[Exception], ...] | type[Exception]
    fail_on: tuple[type[Exception], ...] | type[Exception]
    on_invalid: Literal["fail", "discard"]
    run: Literal["process"]
    memory: int | str
    version: int
    schedule: str | timedelta | ScheduleOptions | None
    redact: tuple[str, ...] | list[str] | str


class BatchOptions(TaskOptions, total=False):
    """What can be said of a task whose handler is called for many jobs at once, beside the above.

    batch   for how many at most: the handler takes a list of what they were enqueued with
    linger  how long the first of them waits for others before the handler is called with fewer
    """

    batch: Required[int]
    linger: Duration


class EditOptions(TypedDict, total=False):
    """What can be changed of a job that no worker has taken yet, with `jobs.edit`.

    arguments     all of them anew
    priority      lower goes first
    run_at        when it may run
    max_attempts  how often its handler may run, the first run included
    tags          all of them anew
    queue         another one; it keeps its priority and its place in line, by age
    """

    arguments: Mapping[str, Any] | None
    priority: int | None
    run_at: Moment | None
    max_attempts: int | None
    tags: Sequence[str] | None
    queue: str | None


def job_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as people write them, as the fields of a job."""
    known(options, UseOptions)
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise InvalidValue("run_at", options["run_at"], f"give either run_at or delay ({options['delay']})")
    fields: dict[str, Any] = {**options}
    for name, read in _READ.items():
        if name in fields and (fields[name] is not None or name not in _NONE):
            fields[name] = read(name, fields[name])
    if fields.get("delay") is not None:
        fields["run_at"] = None
    elif fields.get("run_at") is not None:
        fields["delay"] = None
    return fields


def known(options: Mapping[str, Any], kind: type) -> None:
    """Refuse what is not an option of this kind."""
    names = tuple(kind.__annotations__)
    for name, value in options.items():
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
            raise InvalidValue(name, value, f"is not an option here: {hint}")


def backoff(name: str, value: BackoffOption) -> Backoff:
    if isinstance(value, Backoff):
        return value
    if isinstance(value, str) and value in tuple(Curve):
        return Backoff(Curve(value))
    if isinstance(value, str) and value.isidentifier():
        return Backoff(function=value)
    return Backoff(Curve.FIXED, seconds(value, name), jitter=0.0)


def keep(name: str, value: KeepOption) -> Keep:
    if isinstance(value, Keep):
        return value
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {}
        for key, said in value.items():
            if one_of(name, key, (*_KEPT, "last")) == "last":
                numbers = said if isinstance(said, Mapping) else dict.fromkeys(_KEPT, said)
                fields |= {f"last_{one_of(f'{name}.last', one, _KEPT)}": numbers[one] for one in numbers}
            elif not isinstance(said, Mapping):
                fields[key] = seconds(said, f"{name}.{key}")
            else:
                raise InvalidValue(f"{name}.{key}", said, 'must be a length of time, such as "7 days"')
        return replace(Keep(), **fields)
    span = seconds(value, name)
    return Keep(span, span, span)


def delay(name: str, value: Duration) -> float:
    if isinstance(value, datetime):
        raise InvalidValue(name, value, "is a point in time, not a length: use run_at")
    return seconds(value, name)


def memory(name: str, value: int | str) -> int:
    count = size(value, name)
    if count < MEMORY_MIN:
        raise InvalidValue(name, value, f"must be at least {short(MEMORY_MIN)}: Python itself needs that")
    return count


def linger(name: str, value: Duration) -> float:
    span = seconds(value, name)
    if span > LINGER_MAX:
        raise InvalidValue(
            name, value, f"must be at most {LINGER_MAX:g} s: a batch that waits keeps its slot"
        )
    return span


def tags(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidValue(name, value, 'must be a list of names: tags=["nightly"]')
    return check_tags(tuple(value))


def metadata(name: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        raise InvalidValue(name, value, 'must be a mapping: metadata={"tenant": 7}')
    return json_codec.to_json(name, dict(value))


_KEPT = ("completed", "failed", "canceled")
_NONE = ("unique", "delay", "timeout", "run_at", "deadline", "backoff", "keep", "metadata")
"""Where None means what is so without the option."""
_READ: dict[str, Callable[[str, Any], Any]] = {
    "delay": delay,
    "timeout": lambda name, value: seconds(value, name),
    "run_at": moment,
    "deadline": moment,
    "backoff": backoff,
    "keep": keep,
    "order": lambda name, value: JobOrder(one_of(name, value, tuple(JobOrder))),
    "group": lambda name, value: value if value == "" else check.name(name, value),
    "tags": tags,
    "metadata": metadata,
    "id": check.name,
    "unique": unique,
}


def one_of(name: str, value: Any, choice: tuple[str, ...]) -> Any:
    if value not in choice:
        raise InvalidValue(name, value, f"must be {' or '.join(choice)}")
    return value


def exceptions(name: str, value: Any) -> tuple[type[Exception], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidValue(name, kind, "must be exception classes")
    return kinds
