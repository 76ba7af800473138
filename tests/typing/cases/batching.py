"""A batch handler takes a list; its jobs are enqueued with one item of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from errandry import Errandry, Fail, Job, JobContext, Retry, Task
from errandry.api.task import Call

jobs = Errandry("memory:")


@dataclass
class Row:
    name: str


@jobs.task(batch=50, linger="100ms")
async def store(rows: list[Row]) -> list[int]:
    return [len(row.name) for row in rows]


@jobs.task(batch=50, runner="process", memory="512 MB", max_attempts=2)
def threaded(rows: list[Row]) -> list[int]:
    return [len(row.name) for row in rows]


@jobs.task(batch=50)
async def with_context(ctx: JobContext, rows: list[Row]) -> list[str]:
    return [f"{row_ctx.attempt} {row.name}" for row_ctx, row in zip(ctx.jobs, rows, strict=True)]


@jobs.task(batch=50)
def threaded_with_context(ctx: JobContext, rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(row.name for row in rows)


@jobs.task(batch=50)
async def without_results(names: list[str]) -> None: ...


@jobs.task(batch=50)
def threaded_without_results(names: list[str]) -> None: ...


@jobs.task(batch=50)
async def perhaps(names: list[str]) -> list[int] | None:
    return None if names else [1]


@jobs.task(batch=50)
async def in_parts(names: list[str]) -> list[int | Retry | Fail]:
    return [len(name) if name else Retry("later") for name in names]


@jobs.task(batch=50)
async def at_once(names: list[str]) -> list[str | BaseException]:
    return await asyncio.gather(*(asyncio.sleep(0, name) for name in names), return_exceptions=True)


async def right() -> None:
    assert_type(store, Task[[Row], int])
    assert_type(await store.enqueue(Row("ada")), Job[int])
    assert_type(await threaded.enqueue(Row("ada")), Job[int])
    assert_type(await with_context.enqueue(Row("ada")), Job[str])
    assert_type(await threaded_with_context.enqueue(Row("ada")), Job[str])
    assert_type(await without_results.enqueue("ada"), Job[None])
    assert_type(await threaded_without_results.enqueue("ada"), Job[None])
    assert_type(await perhaps.enqueue("ada"), Job[int | None])
    assert_type(await in_parts.enqueue("ada"), Job[int])
    assert_type(await at_once.enqueue("ada"), Job[str])
    assert_type(store.using(delay=5).new(Row("ada")), Call[int])
    assert_type(await (await store.enqueue(Row("ada"))).result(), int)
    anything: Task[..., Any] = store
    await anything.enqueue(rows=Row("ada"))


async def wrong() -> None:
    await store.enqueue([Row("ada")])  # E: Argument 1 to "enqueue" of "Task" has incompatible type
    await store.enqueue()  # E: Too few arguments for "enqueue" of "Task"
    await without_results.enqueue(5)  # E: Argument 1 to "enqueue" of "Task" has incompatible type "int"
    jobs.task(batch="50")  # E: No overload variant of "task" of "Errandry" matches argument type "str"
    jobs.task(batch=50, runner="fork")  # E: No overload variant of "task" of "Errandry"
    jobs.task(linger="1s")  # E: No overload variant of "task" of "Errandry" matches argument type "str"


@jobs.task(batch=50)  # E: Argument 1 to "__call__" of "BatchTaskDecorator" has incompatible type
async def no_list(row: Row) -> None: ...


@jobs.task(batch=50)  # E: Argument 1 to "__call__" of "BatchTaskDecorator" has incompatible type
async def no_results(rows: list[Row]) -> int:
    return 1
