"""`result_of` as an argument is checked like a value of its type."""

from typing import assert_type

from errandry import Errandry, Flow, Job, JobContext, SyncJob, chain, child, chord, flow, parallel, result_of
from errandry.api.task import Call

jobs = Errandry("memory:")


@jobs.task
async def part(n: int) -> int:
    return n


@jobs.task
def name(n: int) -> str:
    return str(n)


@jobs.task
async def total(ctx: JobContext, parts: list[int], unit: str = "") -> float:
    return sum(parts)


async def right() -> None:
    assert_type(part.new(result_of(part.new(1))), Call[int])
    assert_type(result_of(parallel(part.new(1), part.new(2))), list[int])
    assert_type(child(part.new(1), "ignore"), Flow[int])
    assert_type(result_of(child(parallel(part.new(1), part.new(2)), "ignore")), list[int])
    assert_type(result_of(chain(part.new(1), name.new(2))), str)
    three = total.new(result_of(parallel(part.new(1), part.new(2))), unit=result_of(name.new(3)))
    assert_type(await jobs.enqueue_flow(three), Job[float])
    assert_type(jobs.sync.enqueue_flow(three), SyncJob[float])
    assert_type(flow(three, policy="ignore"), Flow[float])
    assert_type(chord([part.new(1)], three), Flow[float])
    assert_type(chain(name.new(1), parallel(part.new(1), part.new(2)), three), Flow[float])


async def wrong() -> None:
    part.new(result_of(name.new(1)))  # E: Argument 1 to "new" of "Task" has incompatible type "str"
    part.new(n=result_of(name.new(1)))  # E: Argument "n" to "new" of "Task" has incompatible type "str"
    total.new(result_of(part.new(1)))  # E: Argument 1 to "result_of" has incompatible type "Call[int]"
    names = name.new(1)
    total.new(result_of(parallel(names)))  # E: Argument 1 to "parallel" has incompatible type "Call[str]"
    total.new([], result_of(part.new(1)))  # E: Argument 2 to "new" of "Task" has incompatible type "int"
    part.new(result_of(chain(part.new(1), name.new(2))))  # E: Argument 1 to "new" of "Task" has incompatible
    result_of(part)  # E: No overload variant of "result_of" matches argument type "Task[[int], int]"
    name.new(result_of(part.new("1")))  # E: Argument 1 to "new" of "Task" has incompatible type "str"
