"""Flows through the API: enqueued in one write, run in their order, with the results of children."""

import pytest

from errandry import Child, Errandry, Fail, JobContext, State, chain, chord, flow
from errandry.core.flow import Ended
from errandry.errors import InvalidValue
from tests.api.working import burst


async def test_a_parent_runs_after_its_children_with_their_results(live: Errandry) -> None:
    ran: list[int] = []

    @live.task
    async def part(n: int) -> int:
        ran.append(n)
        return n * n

    @live.task
    async def total(ctx: JobContext) -> list[object]:
        return [child.result for child in ctx.children()]

    job = await live.enqueue_flow(flow(total.new(), part.new(1), part.new(2), part.new(3)))
    assert (await live.record(job.id)).state is State.BLOCKED
    [because] = (await live.why(job.id)).reasons
    assert "3 children to end: " in because.text
    await burst(live)

    assert await job.result(timeout=5) == [1, 4, 9]
    assert sorted(ran) == [1, 2, 3]


async def test_a_chain_hands_each_result_on(live: Errandry) -> None:
    @live.task
    async def step(ctx: JobContext, add: int) -> int:
        before = [int(child.result) for child in ctx.children()]
        return sum(before) + add

    job = await live.enqueue_flow(chain(step.new(1), step.new(2), step.new(3)))
    await burst(live)

    assert await job.result(timeout=5) == 6


async def test_a_callback_runs_whatever_became_of_the_rest(live: Errandry) -> None:
    seen: list[tuple[Child, ...]] = []

    @live.task
    async def part(n: int) -> int:
        if n == 2:
            raise Fail("two")
        return n

    @live.task
    async def after(ctx: JobContext) -> None:
        seen.append(ctx.children())

    await live.enqueue_flow(chord([part.new(n) for n in (1, 2)], after.new(), policy="ignore"))
    await burst(live)

    [children] = seen
    assert [(child.task, child.outcome, child.result) for child in children] == [
        ("part", Ended.COMPLETED, 1),
        ("part", Ended.FAILED, None),
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_spawns_children_and_runs_again_with_their_results(
    live: Errandry, is_async: bool
) -> None:
    runs: list[int] = []

    @live.task
    async def part(n: int) -> int:
        return n * 10

    def handle(ctx: JobContext, n: int) -> int:
        runs.append(ctx.attempt)
        if not ctx.children():
            ctx.spawn(*[part.new(i) for i in range(n)])
        return sum(int(child.result) for child in ctx.children())

    async def later(ctx: JobContext, n: int) -> int:
        return handle(ctx, n)

    parent = live.task(name="parent")(later if is_async else handle)

    job = await parent.enqueue(4)
    await burst(live)

    assert await job.result(timeout=5) == 60
    assert runs == [1, 1]


async def test_a_call_in_two_places_is_one_job(live: Errandry) -> None:
    ran: list[str] = []

    @live.task
    async def step(name: str) -> None:
        ran.append(name)

    shared = step.new("shared")
    await live.enqueue_flow(
        flow(step.new("end"), flow(step.new("left"), shared), flow(step.new("right"), shared))
    )
    await burst(live)

    assert ran.count("shared") == 1
    assert (ran[0], ran[-1]) == ("shared", "end")


async def test_what_is_no_call_is_refused(live: Errandry) -> None:
    @live.task
    async def step() -> None: ...

    with pytest.raises(InvalidValue, match=r"task\.new"):
        flow(step.new(), step)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="at least one"):
        flow(step.new())
