"""Queues, tasks and groups: paused, and with rules that change while everything runs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path
from typing import Literal

import apsw
import pytest

from errandry import Errandry, GateInfo, GroupInfo, Job, OperatorChangeInfo, PauseInfo, QueueInfo, Retry
from errandry.core.command import Beat
from errandry.core.duration import as_datetime
from errandry.core.gate import GateKind
from errandry.core.rule import NO_RULE, OnReturn, Overflow, Rate, Rule
from errandry.core.rule_info import Source
from errandry.errors import InvalidValue, QueueFull, UnknownWorker
from errandry.testing import FakeClock, drain
from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker
from tests.machine_load import WAIT_TIMEOUT


async def test_set_rules_changes_the_given_rules_and_leaves_the_rest(jobs: Errandry) -> None:
    queue = jobs.queue("mail")
    assert await queue.rules() == Rule()

    await queue.set_rules(limit=20, rate="100/minute", by="ada")
    await queue.set_rules(ageing="10 minutes", on_return="hold_group", overflow="drop_oldest", max_size=5)
    assert await queue.set_rules(rate="50/s", burst=7) == Rule(
        limit=20,
        rate=Rate(50, 1.0, 7),
        ageing=600.0,
        on_return=OnReturn.HOLD_GROUP,
        overflow=Overflow.DROP_OLDEST,
        max_size=5,
    )
    await queue.set_rules(limit=None, ageing=None, on_return=None, overflow=None, max_size=None)

    assert await queue.rules() == Rule(rate=Rate(50, 1.0, 7))
    assert [(gate.kind, gate.name, gate.group) for gate in await jobs.rules()] == [("queue", "mail", "")]


async def test_tasks_and_groups_have_their_own_rules(jobs: Errandry) -> None:
    await jobs.remote_task("send").set_rules(limit=3)
    await jobs.queue("mail").group("acme").set_rules(weight=2, rate=Rate(1, 1.0, 1))
    await jobs.queue("mail").set_rules(group_limit=1, group_rate="10/s", group_burst=2)

    assert await jobs.remote_task("send").rules() == Rule(limit=3)
    assert await jobs.queue("mail").group("acme").rules() == Rule(weight=2, rate=Rate(1, 1.0, 1))
    assert await jobs.queue("mail").rules() == Rule(group_limit=1, group_rate=Rate(10, 1.0, 2))
    assert await jobs.queue("mail").group("other").rules() == Rule()


async def test_a_task_has_the_same_rules_as_its_remote_task(jobs: Errandry) -> None:
    @jobs.task
    async def send() -> None: ...

    assert await send.set_rules(limit=5, rate="10/s", by="ada") == Rule(limit=5, rate=Rate(10, 1.0, 1))
    assert await send.using(queue="mail").set_rules(rate=None) == Rule(limit=5)

    assert await send.rules() == await jobs.remote_task("send").rules() == Rule(limit=5)
    [gate] = await jobs.rules()
    assert (gate.kind, gate.name, gate.group, gate.set_by) == ("task", "send", "", "")


async def test_rules_groups_and_pauses_are_read_with_utc_datetimes(jobs: Errandry, clock: FakeClock) -> None:
    at = as_datetime(clock.time())
    mail, acme = jobs.queue("mail"), jobs.queue("mail").group("acme")
    await mail.set_rules(group_limit=3, by="ada")
    await mail.pause(by="eve")
    await acme.set_rules(weight=2)
    await acme.pause(by="eve")
    await jobs.engine.submit(Beat(worker="w1"))
    await jobs.workers.pause("w1", by="eve")

    pause = PauseInfo(at, "eve")
    group, queue = sorted(await jobs.rules(), key=lambda gate: gate.kind)
    assert group == GateInfo(
        kind=GateKind.GROUP,
        name="mail",
        group="acme",
        rule=Rule(weight=2),
        set_at=at,
        set_by="",
        sources={"weight": Source.OPERATOR},
        operators={"weight": OperatorChangeInfo(at, "")},
        declared=NO_RULE,
        owners=(),
        paused=pause,
        closed_until=None,
    )
    assert (queue.name, queue.rule, queue.set_at, queue.set_by) == ("mail", Rule(group_limit=3), at, "ada")
    assert await jobs.groups() == [
        GroupInfo(
            queue="mail",
            group="acme",
            waiting=0,
            held=0,
            limit=3,
            rate=None,
            rule=Rule(weight=2),
            paused=pause,
            closed_until=None,
        )
    ]
    assert await jobs.queues() == [QueueInfo(name="mail", states={}, waited=None, paused=pause)]
    paused = await jobs.paused()
    assert (paused[GateKind.QUEUE], paused[GateKind.WORKER]) == ({"mail": pause}, {"w1": pause})
    assert at.tzinfo is UTC
    assert await jobs.now() == at


async def test_a_group_closed_by_a_retry_says_until_when(jobs: Errandry, clock: FakeClock) -> None:
    @jobs.task
    async def call() -> None:
        raise Retry("busy", after=60, pause_group=True)

    await call.using(group="acme").enqueue()
    await drain(jobs)

    [group] = await jobs.groups()
    assert group.closed_until == as_datetime(clock.time() + 60)
    assert [gate.closed_until for gate in await jobs.rules()] == [group.closed_until]


async def test_a_worker_that_does_not_exist_cannot_be_paused(jobs: Errandry) -> None:
    await jobs.engine.submit(Beat(worker="w1"))

    with pytest.raises(UnknownWorker, match="there is no worker 'ghost'; known workers: w1"):
        await jobs.workers.pause("ghost")

    assert not await jobs.workers.resume("ghost")
    assert (await jobs.paused())[GateKind.WORKER] == {}


async def test_a_group_closed_by_a_retry_can_be_resumed(jobs: Errandry) -> None:
    @jobs.task
    async def call() -> None:
        raise Retry("busy", after="1 day", pause_group=True)

    await call.using(group="acme").enqueue()
    await drain(jobs)
    acme = jobs.queue("default").group("acme")

    assert await acme.resume()
    assert not await acme.resume()
    assert await jobs.rules() == []


async def test_a_bound_task_can_neither_be_paused_nor_get_rules(tmp_path: Path) -> None:
    async with Errandry(f"sqlite:///{tmp_path}/jobs.db") as jobs:

        @jobs.task
        async def send() -> None: ...

        bound = send.bind(apsw.Connection(str(tmp_path / "jobs.db")))
        for refused in (bound.pause, bound.resume, bound.rules, bound.set_rules, bound.reset_rules):
            with pytest.raises(InvalidValue, match="task='send': is bound to a connection"):
                await refused()

        assert await jobs.rules() == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limits": 5}, "limits=5: unknown option; did you mean limit"),
        ({"limit": 0}, "limit=0: must be a whole number from 1"),
        ({"rate": "fast"}, "rate='fast': not a rate; write a count and a time"),
        ({"burst": 5}, "burst=5: says how many of the rate may begin at once: give rate too"),
        ({"group_rate": "fast"}, "^group_rate='fast': not a rate"),
        ({"group_rate": "1/s", "group_burst": 0}, "^group_burst=0: must be a whole number"),
        ({"rate": Rate(100, 60.0, 1), "burst": 50}, "^burst=50: a Rate has its own burst"),
        ({"overflow": "explode"}, "overflow='explode'"),
        ({"on_return": "chaos"}, "on_return='chaos'"),
        ({"ageing": "soon"}, "ageing='soon'"),
        ({"weight": 2}, "weight=2: a rule of a queue has limit"),
    ],
)
async def test_a_wrong_rule_is_refused_and_changes_nothing(
    jobs: Errandry, changes: dict[str, object], why: str
) -> None:
    await jobs.queue("mail").set_rules(limit=2)
    with pytest.raises(InvalidValue, match=why):
        await jobs.queue("mail").set_rules(**changes)  # type: ignore[arg-type]
    assert await jobs.queue("mail").rules() == Rule(limit=2)


async def test_a_paused_group_waits_and_why_explains_it(jobs: Errandry) -> None:
    seen: list[str] = []

    @jobs.task(queue="mail")
    async def send(to: str) -> None:
        seen.append(to)

    held = await send.using(group="acme").enqueue("ada")
    await send.using(group="other").enqueue("grace")
    group = jobs.queue("mail").group("acme")
    assert await group.pause(by="eve")
    assert not await group.pause()
    await drain(jobs)

    assert seen == ["grace"]
    [reason, *_] = (await jobs.why(held.id)).reasons
    assert reason.code == "group_paused"
    assert reason.text.startswith("The group acme of queue mail was paused")
    assert await group.resume()
    await drain(jobs)
    assert seen == ["grace", "ada"]


@pytest.fixture(params=["memory:", "sqlite"])
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs:
        yield jobs


async def run_until_finished(app: Errandry, *jobs: Job[None], concurrency: int = 100) -> None:
    """Run a worker until these jobs have finished. A burst would not wait for jobs that limits hold back."""
    worker = Worker(app, WorkerOptions(concurrency=concurrency))
    async with asyncio.timeout(WAIT_TIMEOUT), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        for job in jobs:
            await job.wait()
        worker.stop()


async def test_the_limit_bounds_the_jobs_that_run_at_once(live: Errandry) -> None:
    running, most = 0, 0

    @live.task(queue="mail")
    async def send() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    await live.queue("mail").set_rules(limit=3)
    await run_until_finished(live, *await live.enqueue_many([send.new() for _ in range(30)]))
    assert most == 3
    assert await live.counts() == {"mail": {"completed": 30}}


async def test_the_rate_bounds_the_jobs_that_start_in_a_span(live: Errandry) -> None:
    @live.task
    async def ask() -> None: ...

    await ask.set_rules(rate="50/second", burst=2)
    jobs = await live.enqueue_many([ask.new() for _ in range(12)])
    await run_until_finished(live, *jobs)
    begun = [job.record.started_at or 0.0 for job in jobs]
    assert max(begun) - min(begun) >= 10 / 50 - 0.02


async def test_a_retry_with_pause_group_pauses_the_group(live: Errandry) -> None:
    begun: list[str] = []

    @live.task(queue="crm")
    async def sync(account: str, first: bool = False) -> None:
        begun.append(account)
        if first and len(begun) == 1:
            raise Retry("slow down", after=0.4, pause_group=True)

    await live.queue("crm").set_rules(group_limit=1)
    jobs = [await sync.using(group="acme", priority=-1).enqueue("acme", first=True)]
    jobs += [await sync.using(group=account).enqueue(account) for account in ("acme", "other")]
    await run_until_finished(live, *jobs)

    assert begun == ["acme", "other", "acme", "acme"]
    asked_at = jobs[0].record.errors[0].ended
    acme, same, other = [(job.record.started_at or 0.0) - asked_at for job in jobs]
    assert other < 0.39 <= min(acme, same)


async def test_a_large_group_does_not_delay_another(live: Errandry) -> None:
    begun: list[str] = []

    @live.task(queue="mail")
    async def send(to: str) -> None:
        begun.append(to)

    await live.enqueue_many([send.using(group="flood").new("flood") for _ in range(100)])
    drops = await live.enqueue_many([send.using(group="drop").new("drop") for _ in range(5)])
    await run_until_finished(live, *drops, concurrency=2)
    assert begun[:12].count("drop") >= 5


async def test_a_full_queue_refuses_jobs(live: Errandry) -> None:
    await live.queue("thumbs").set_rules(max_size=2)
    for _ in range(2):
        await live.enqueue("shrink", queue="thumbs")
    with pytest.raises(QueueFull, match="the queue 'thumbs' is full: 2 waiting \\(maximum 2\\)"):
        await live.enqueue("shrink", queue="thumbs")
    assert await live.counts() == {"thumbs": {"waiting": 2}}


async def test_with_overflow_wait_an_enqueue_waits_for_space(live: Errandry) -> None:
    @live.task(queue="thumbs")
    async def shrink() -> None:
        await asyncio.sleep(0.001)

    await live.queue("thumbs").set_rules(max_size=2, overflow="wait")
    worker = Worker(live, WorkerOptions(concurrency=1))
    async with asyncio.timeout(WAIT_TIMEOUT), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        jobs = await asyncio.gather(*[shrink.enqueue() for _ in range(20)])
        for job in jobs:
            await job.wait()
        worker.stop()
    assert await live.counts() == {"thumbs": {"completed": 20}}


async def test_an_insert_larger_than_the_queue_does_not_wait(live: Errandry) -> None:
    await live.queue("thumbs").set_rules(max_size=2, overflow="wait")

    @live.task(queue="thumbs")
    async def shrink() -> None: ...

    with pytest.raises(QueueFull):
        await live.enqueue_many([shrink.new() for _ in range(3)])


async def test_with_drop_oldest_the_oldest_job_fails(live: Errandry) -> None:
    await live.queue("thumbs").set_rules(max_size=1, overflow="drop_oldest")
    first, _ = [await live.enqueue("shrink", queue="thumbs") for _ in range(2)]
    record = (await first.refresh()).record
    assert (record.state, record.reason) == ("failed", "dropped")


@pytest.mark.parametrize(
    ("order", "first"),
    [("strict", ["a", "a", "a", "b"]), (None, ["b", "a", "a", "a"])],
    ids=["strict", "none"],
)
async def test_a_worker_may_prefer_a_queue(
    live: Errandry, order: Literal["strict"] | None, first: list[str]
) -> None:
    begun: list[str] = []

    @live.task
    async def note(queue: str) -> None:
        begun.append(queue)

    await note.using(queue="b").enqueue("b")
    await live.enqueue_many([note.using(queue="a").new("a") for _ in range(3)])
    await Worker(live, WorkerOptions(burst=True, concurrency=1, queues=("a", "b"), queue_order=order)).run()
    assert begun == first
