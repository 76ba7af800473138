"""Declared with and without options, async or not, with a context or without: always the same task."""

from typing import Any, assert_type

from errandry import Cancel, Errandry, Job, JobContext, Snooze, Task, UniqueOptions

jobs = Errandry("memory:")


@jobs.task
async def plain(to: str, copies: int = 1) -> str:
    return to * copies


@jobs.task(queue="mail", timeout="30s", retry_on=(ConnectionError,), on_invalid="discard")
async def optioned(to: str) -> int:
    return len(to)


@jobs.task
def threaded(to: str) -> bytes:
    return to.encode()


@jobs.task(max_attempts=1, runner="thread")
def threaded_with_options(to: str) -> bytes:
    return to.encode()


@jobs.task
async def with_context(ctx: JobContext, to: str) -> str:
    return f"{ctx.attempt} {to}"


@jobs.task(priority=1)
def threaded_with_context(ctx: JobContext, to: str) -> list[str]:
    return [to] * ctx.attempt


@jobs.task
async def without_anything() -> None: ...


@jobs.task
async def loose(value: Any, rest: dict[str, Any]) -> str:
    """With Any in the signature, mypy cannot choose an overload: it checks and refuses nothing."""
    return f"{value} {rest}"


assert_type(optioned.name, str)
assert_type(without_anything, Task[[], None])
anything: Task[..., Any] = plain


@jobs.task
async def with_outcome(to: str) -> str | Snooze:
    return to or Snooze("1 hour")


@jobs.task(priority=1)
def with_outcome_class(ctx: JobContext, to: str) -> int | type[Cancel] | None:
    return len(to) or Cancel


async def results_without_outcomes() -> None:
    assert_type(await with_outcome.enqueue("a"), Job[str])
    assert_type(await with_outcome_class.enqueue("a"), Job[int | None])


@jobs.task(unique=UniqueOptions(by=["to"], per="queue", scope="1 hour", on_conflict="replace"))
async def only_one(to: str) -> str:
    return to


assert_type(only_one.name, str)

UniqueOptions(on_conflict="rise")  # E: Argument "on_conflict" to "UniqueOptions" has incompatible type
UniqueOptions(per="task")  # E: Argument "per" to "UniqueOptions" has incompatible type "Literal['task']"
jobs.task(unique=5)  # E: No overload variant of "task" of "Errandry" matches argument type "int"
jobs.task(queue=5)  # E: No overload variant of "task" of "Errandry" matches argument type "int"
jobs.task(timeot="30s")  # E: Unexpected keyword argument "timeot" for overloaded function "task"
jobs.task(delay=5)  # E: Unexpected keyword argument "delay" for overloaded function "task"
jobs.task(lifo="yes")  # E: No overload variant of "task" of "Errandry" matches argument type "str"
jobs.task(on_invalid="ignore")  # E: No overload variant of "task" of "Errandry" matches argument type "str"
jobs.task(retry_on=5)  # E: No overload variant of "task" of "Errandry" matches argument type "int"
jobs.task("send")  # E: No overload variant of "task" of "Errandry" matches argument type "str"
