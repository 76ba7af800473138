"""Flows through the API: inserted in one write, run in order, with the results of children."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Struct

from errandry import (
    Call,
    Child,
    Errandry,
    Fail,
    Flow,
    JobContext,
    State,
    chain,
    child,
    chord,
    flow,
    parallel,
    result_of,
)
from errandry.core.flow import ChildEnd, Policy
from errandry.core.state import Reason
from errandry.errors import InvalidArguments, InvalidValue
from errandry.testing import drain
from tests.run_worker import run_burst


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
    assert (await live.client.record(job.id)).state is State.BLOCKED
    [because] = (await live.why(job.id)).reasons
    assert "3 children to end: " in because.text
    await run_burst(live)

    assert await job.result(timeout=30) == [1, 4, 9]
    assert sorted(ran) == [1, 2, 3]


async def test_a_program_reads_the_children_of_a_job_with_typed_results(jobs: Errandry) -> None:
    @jobs.task
    async def span(seconds: int) -> timedelta:
        return timedelta(seconds=seconds)

    @jobs.task
    async def total() -> None: ...

    done, open_ = span.new(5), span.using(delay="1 hour").new(7)
    job = await jobs.enqueue_flow(flow(total.new(), done, open_))
    await drain(jobs)

    assert await jobs.children(job.id) == [
        Child(done.job.id, "span", ChildEnd.COMPLETED, timedelta(seconds=5)),
        Child(open_.job.id, "span", None, None),
    ]


async def test_a_chain_passes_each_result_to_the_next_call(live: Errandry) -> None:
    @live.task
    async def step(ctx: JobContext, add: int) -> int:
        before = [int(child.result) for child in ctx.children()]
        return sum(before) + add

    job = await live.enqueue_flow(chain(step.new(1), step.new(2), step.new(3)))
    await run_burst(live)

    assert await job.result(timeout=30) == 6


async def test_with_policy_ignore_a_callback_runs_after_failures(live: Errandry) -> None:
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
    await run_burst(live)

    [children] = seen
    assert [(child.task, child.outcome, child.result) for child in children] == [
        ("part", ChildEnd.COMPLETED, 1),
        ("part", ChildEnd.FAILED, None),
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
    await run_burst(live)

    assert await job.result(timeout=30) == 60
    assert runs == [1, 1]


async def test_a_call_used_in_two_places_is_one_job(live: Errandry) -> None:
    ran: list[str] = []

    @live.task
    async def step(name: str) -> None:
        ran.append(name)

    shared = step.new("shared")
    await live.enqueue_flow(
        flow(step.new("end"), flow(step.new("left"), shared), flow(step.new("right"), shared))
    )
    await run_burst(live)

    assert ran.count("shared") == 1
    assert (ran[0], ran[-1]) == ("shared", "end")


async def test_parallel_in_a_chain_runs_its_calls_at_the_same_time(live: Errandry) -> None:
    @live.task
    async def step(ctx: JobContext, add: int) -> int:
        return sum(int(child.result) for child in ctx.children()) + add

    job = await live.enqueue_flow(chain(step.new(1), parallel(step.new(10), step.new(20)), step.new(100)))
    await run_burst(live)

    assert await job.result(timeout=30) == 100 + 11 + 21
    assert (await live.counts())["default"] == {"completed": 4}


async def test_parallel_alone_is_enqueued_in_one_write(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> int:
        return n

    jobs = await live.enqueue_flow(parallel(part.new(1), flow(part.new(2), part.new(3))))
    await run_burst(live)

    assert [await job.result(timeout=30) for job in jobs] == [1, 2]
    with pytest.raises(InvalidValue, match="a chain cannot end with parallel"):
        chain(part.new(1), parallel(part.new(2)))


async def test_parallel_in_a_flow_becomes_several_children(jobs: Errandry) -> None:
    @jobs.task
    async def part(n: int) -> int:
        return n

    parts = parallel(*[part.new(n) for n in range(3)])

    for whole_flow in (flow(part.new(9), parts), chord([parts], part.new(9))):
        assert len(whole_flow.children) == 3
    assert len(jobs.sync.enqueue_flow(parts)) == 3


async def test_rerun_with_flow_runs_the_children_first(live: Errandry) -> None:
    ran: list[str] = []

    @live.task
    async def step(name: str) -> None:
        ran.append(name)

    shared = step.new("shared")
    end = await live.enqueue_flow(
        flow(step.new("end"), flow(step.new("left"), shared), flow(step.new("right"), shared))
    )
    await run_burst(live)
    ran.clear()

    assert len((await live.rerun(end.id, flow=True)).moved) == 4
    assert (await live.counts())["default"] == {"blocked": 3, "waiting": 1}
    await run_burst(live)

    assert (ran[0], sorted(ran[1:3]), ran[3]) == ("shared", ["left", "right"], "end")
    ids = await live.subtree(end.id)
    assert (ids[0], len(ids)) == (end.id, 4)
    assert len((await live.remove(end.id, flow=True)).moved) == 4
    assert (await live.list()).jobs == ()


async def test_cancel_with_flow_leaves_finished_jobs_alone(jobs: Errandry) -> None:
    @jobs.task
    async def part(n: int) -> int:
        return n

    end = await jobs.enqueue_flow(flow(part.new(1), part.new(2), part.new(3)))
    *_, last = await jobs.subtree(end.id)
    await jobs.resolve(last)

    assert len((await jobs.cancel(end.id, flow=True, dry_run=True)).moved) == 2
    await jobs.cancel(end.id, flow=True)
    assert (await jobs.counts())["default"] == {"canceled": 2, "completed": 1}


async def test_a_flow_of_something_else_than_calls_is_refused(live: Errandry) -> None:
    @live.task
    async def step() -> None: ...

    with pytest.raises(InvalidValue, match=r"task\.new"):
        flow(step.new(), step)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="at least one"):
        flow(step.new())


async def test_results_become_arguments_of_other_calls(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> int:
        return n * n

    @live.task
    def total(parts: list[int], unit: str, times: int = 1) -> str:
        return f"{times * sum(parts)} {unit}"

    @live.task
    async def unit(ctx: JobContext, name: str) -> str:
        return f"{name} after {len(ctx.children())}"

    shared = part.new(2)
    parts = parallel(part.new(1), shared, part.new(3))
    call = total.new(result_of(parts), unit=result_of(unit.new("m")), times=result_of(shared))
    job = await live.enqueue_flow(call)
    assert (await live.client.record(job.id)).children == 4
    await run_burst(live)

    assert await job.result(timeout=30) == "56 m after 0"


async def test_results_are_passed_on_through_several_calls(live: Errandry) -> None:
    class Item(Struct):
        name: str
        at: datetime

    moment = datetime(2026, 1, 2, tzinfo=UTC)

    @live.task
    async def find(name: str) -> Item:
        return Item(name, moment)

    @live.task
    async def rename(item: Item | None, more: str) -> Item | None:
        assert item is None or item.at == moment
        return None if item is None else Item(item.name + more, item.at)

    @live.task(batch=10)
    async def names(items: list[Item | None]) -> list[str]:
        return ["nothing" if item is None else item.name for item in items]

    item = rename.new(result_of(find.new("a")), "b")
    nothing = rename.new(result_of(rename.new(None, "")), "c")
    ends = await live.enqueue_flow(parallel(names.new(result_of(item)), names.new(result_of(nothing))))
    await run_burst(live)

    assert [await job.result(timeout=30) for job in ends] == ["ab", "nothing"]


async def test_a_result_of_the_wrong_type_fails_the_child_that_returned_it(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> int:
        return "two" if n == 2 else n  # type: ignore[return-value]

    @live.task
    async def total(parts: list[int]) -> int:
        raise AssertionError("it must not run")

    job = await live.enqueue_flow(total.new(result_of(parallel(*[part.new(n) for n in range(4)]))))
    child = await live.get((await live.children(job.id))[2].id)
    await run_burst(live)

    record, parent = await live.client.record(child.id), await live.client.record(job.id)
    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.UNRECOVERABLE, 1)
    assert record.errors[-1].message == (
        "task total: argument parts[2]='two': must be int, not str; it is the result of task part"
    )
    assert (parent.state, parent.reason) == (State.FAILED, Reason.CHILD_FAILED)


async def test_a_child_fails_at_once_although_others_have_not_run(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> str:
        return "one" if n == 1 else "2"

    @live.task
    async def total(first: str, second: int | None) -> int:
        raise AssertionError("it must not run")

    late = part.using(delay="1 hour").new(1)
    job = await live.enqueue_flow(total.new(result_of(late), result_of(part.new(2))))  # type: ignore[arg-type]
    await run_burst(live)

    assert (await live.client.record(job.id)).reason is Reason.CHILD_FAILED
    assert (await live.client.record(late.job.id)).state is State.CANCELED


async def test_a_result_of_a_program_without_the_parent_fails_the_parent_with_its_path(
    live: Errandry,
) -> None:
    @live.task
    async def total(parts: list[int]) -> int:
        raise AssertionError("it must not run")

    @live.task
    async def part(n: int) -> int:
        return "two" if n == 2 else n  # type: ignore[return-value]

    job = await live.enqueue_flow(total.new(result_of(parallel(*[part.new(n) for n in range(4)]))))
    other = Errandry(store=live.store, clock=live.clock)
    other.task(part.function)
    await run_burst(other, tasks=("part",))
    await run_burst(live)

    record = await live.client.record(job.id)
    assert (record.state, record.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)
    assert "argument parts[2]='two': must be int, not str" in record.errors[-1].message
    await other.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_result_is_checked_only_against_the_version_it_was_enqueued_for(
    live: Errandry, version: int
) -> None:
    @live.task
    async def part() -> str:
        return "two"

    async def total(count: int) -> int:
        return count

    before = live.task(total)
    job = await live.enqueue_flow(before.new(result_of(part.new())))  # type: ignore[arg-type]
    live.task(version=version)(total)
    await run_burst(live)

    reasons = {1: Reason.CHILD_FAILED, 2: Reason.INVALID_PAYLOAD}
    assert (await live.client.record(job.id)).reason is reasons[version]


class Item(Struct):
    name: str


async def test_results_that_fit_the_types_of_their_arguments_are_accepted(live: Errandry) -> None:
    @live.task
    async def pair() -> tuple[int, str]:
        return 1, "one"

    @live.task
    async def many(
        ctx: JobContext, item: Item, pairs: tuple[tuple[int, str], ...], names: list[str] | None = None
    ) -> int:
        return len(pairs)

    @live.task
    async def item() -> Item:
        return Item("a")

    @live.task(batch=5)
    async def counted(counts: list[int]) -> list[int]:
        return counts

    calls = many.new(result_of(item.new()), result_of(parallel(pair.new(), pair.new())))  # type: ignore[arg-type]
    job = await live.enqueue_flow(counted.new(result_of(calls)))
    await run_burst(live)

    assert await job.result(timeout=30) == 2


async def test_a_result_that_a_claimer_gives_is_checked_too(live: Errandry) -> None:
    @live.task
    async def part() -> int:
        return 0

    @live.task
    async def total(count: int) -> int:
        return count

    await live.enqueue_flow(total.new(result_of(part.new())))
    async with live.claimer(tasks=("part",)) as claimer:
        [job] = await claimer.claim()
        with pytest.raises(InvalidArguments, match="argument count='two': must be int, not str"):
            await job.complete("two")
        await job.complete(2)


@pytest.mark.parametrize("place", ["flow", "parallel", "chain", "argument", "spawn"])
async def test_a_child_can_have_a_policy_of_its_own(live: Errandry, place: str) -> None:
    @live.task(max_attempts=1)
    async def card(n: int = 0) -> int:
        raise Fail("no card")

    @live.task
    async def pick(n: int) -> int:
        return n

    @live.task
    async def pack(ctx: JobContext, card: int = 0) -> list[str | None]:
        if place == "spawn" and not ctx.children():
            ctx.spawn(pick.new(1), child(one_card, "ignore"))
        return [one.outcome for one in ctx.children()]

    one_card = card.new()
    flows: dict[str, Call[list[str | None]] | Flow[list[str | None]]] = {
        "flow": flow(pack.new(), pick.new(1), child(one_card, "ignore")),
        "parallel": flow(pack.new(), pick.new(1), child(parallel(one_card), "ignore")),
        "chain": chain(parallel(pick.new(1), child(one_card, "ignore")), pack.new()),
        "argument": flow(pack.new(result_of(child(one_card, "ignore"))), pick.new(1)),
        "spawn": pack.new(),
    }
    job = await live.enqueue_flow(flows[place])
    await run_burst(live)

    assert await job.result(timeout=30) == ["completed", "failed"]


async def test_the_policies_of_the_children_of_a_flow_are_stored(jobs: Errandry) -> None:
    @jobs.task
    async def part(n: int = 0) -> int:
        return n

    shared = part.new(3)
    end = flow(
        part.new(result_of(shared)),
        part.new(1),
        child(flow(part.new(2), child(part.new(4), "remove")), "fail"),
        child(shared, "remove"),
        policy="ignore",
    )
    job = await jobs.enqueue_flow(end)

    edges = await jobs.client.edges(job.id)
    assert [edge.policy for edge in edges] == [Policy.IGNORE, Policy.FAIL, Policy.REMOVE]
    assert [edge.policy for edge in await jobs.client.edges(edges[1].child)] == [Policy.REMOVE]
    with pytest.raises(InvalidValue, match="policy='ignored'"):
        child(shared, "ignored")  # type: ignore[call-overload]


@pytest.mark.parametrize("named", ["by id", "by query", "by job"])
async def test_a_cancel_without_children_leaves_them_alone(live: Errandry, named: str) -> None:
    @live.task
    async def part(n: int) -> int:
        return n

    job = await live.enqueue_flow(flow(part.new(1), part.new(2)))
    match named:
        case "by id":
            await live.cancel(job.id, children=False)
        case "by query":
            await live.cancel(query="children>0", children=False)
        case _:
            await job.cancel(children=False)

    [only] = await live.children(job.id)
    states = [(await live.client.record(job_id)).state for job_id in (job.id, only.id)]
    assert states == [State.CANCELED, State.WAITING]
    with pytest.raises(InvalidValue, match="children=False: flow cancels the children too"):
        await live.cancel(job.id, flow=True, children=False)


async def test_a_failed_child_leaves_the_argument_at_its_default(live: Errandry) -> None:
    @live.task(max_attempts=1)
    async def part(n: int) -> int:
        if n == 2:
            raise Fail("two")
        return n

    @live.task
    async def total(parts: list[int], more: int = 10) -> int:
        return sum(parts) + more

    parts = parallel(*[part.new(n) for n in range(4)])
    job = await live.enqueue_flow(flow(total.new(result_of(parts), result_of(part.new(2))), policy="ignore"))
    await run_burst(live)

    assert await job.result(timeout=30) == 14


async def test_one_unique_job_can_fill_two_arguments(live: Errandry) -> None:
    @live.task(unique=True)
    async def part(n: int) -> int:
        return n

    @live.task
    async def total(parts: list[int], times: int) -> int:
        return sum(parts) * times

    parts = parallel(part.new(2), part.new(3), part.new(2))
    job = await live.enqueue_flow(total.new(result_of(parts), result_of(part.new(3))))
    assert (await live.client.record(job.id)).children == 2
    await run_burst(live)

    assert await job.result(timeout=30) == 21


async def test_spawned_calls_get_results_as_arguments(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> int:
        return n + 1

    @live.task
    async def parent(ctx: JobContext) -> list[object]:
        if not ctx.children():
            ctx.spawn(part.new(result_of(part.new(result_of(part.new(1))))))
        return [child.result for child in ctx.children()]

    job = await parent.enqueue()
    await run_burst(live)

    assert await job.result(timeout=30) == [4]


async def test_an_edit_overrides_the_result_of_a_child(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> int:
        return n + 1

    job = await live.enqueue_flow(part.new(result_of(part.new(1))))
    await live.edit(job.id, arguments={"n": 10})
    await run_burst(live)

    assert await job.result(timeout=30) == 11


async def test_result_of_is_refused_outside_of_flows(live: Errandry) -> None:
    @live.task
    async def part(n: int) -> int:
        return n

    only = r"argument n is the result of another job: enqueue it with enqueue_flow"
    with pytest.raises(InvalidValue, match=only):
        await part.enqueue(result_of(part.new(1)))
    with pytest.raises(InvalidValue, match=only):
        await live.enqueue_many([part.new(1), part.new(result_of(part.new(1)))])
    with pytest.raises(InvalidValue, match=only):
        await live.enqueue("part", {"n": result_of(part.new(1))})
    with pytest.raises(InvalidValue, match=only):
        await live.schedules.put("often", part.new(result_of(part.new(1))), "@hourly")
    with pytest.raises(InvalidArguments, match="no argument 'm': it takes n: int"):
        part.new(m=result_of(part.new(1)))  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match=r"argument n: .* of type ResultOf are not supported"):
        part.new([result_of(part.new(1))])  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="made of n, the result of another job: give a key"):
        part.using(unique=True).new(result_of(part.new(1)))
    assert (await live.list()).jobs == ()
