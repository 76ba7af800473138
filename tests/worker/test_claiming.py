"""Which jobs a worker claims, when it claims them, and how many at once."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC

import pytest

from errandry import Errandry, State
from errandry.core.answer import Answer, Claims
from errandry.core.command import Claim, Command, Insert, Renew, Settle, Upkeep
from errandry.errors import InvalidValue, ReplyLost, StoreUnavailable
from tests.machine_load import WAIT_TIMEOUT, MachineLoad
from tests.run_worker import run_burst, running_worker
from tests.worker.gate import Gate
from tests.worker.recording_store import RecordingStore


class ForgetfulStore(RecordingStore):
    """Loses the replies to its first claims that bring jobs."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.lost: list[Command] = []

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        for n, answer in enumerate(answers):
            if isinstance(answer, Claims) and answer.jobs and len(self.lost) < self.times:
                self.lost.append(commands[n])
                answers[n] = ReplyLost("memory", "the line went dead")
        return answers


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_enqueued_before", [True, False], ids=["own claim", "piggyback claim"])
async def test_jobs_of_a_claim_are_run_although_its_reply_was_lost(
    is_enqueued_before: bool, times: int
) -> None:
    store = ForgetfulStore(times)
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        job = await work.enqueue() if is_enqueued_before else None
        async with running_worker(jobs, lease=3_600.0):
            job = job or await work.enqueue()
            assert await job.result(30) == "done"
            await work.enqueue()

        assert (await job.refresh()).record.attempts == 1
        assert store.lost == [store.lost[0]] * times


async def test_an_idle_worker_claims_a_job_in_the_pass_that_inserts_it() -> None:
    store = RecordingStore()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        async with running_worker(jobs):
            for _ in range(20):  # sometimes the worker's own claim comes first
                job = await work.enqueue()
                assert await job.result(30) == "done"

        assert [Insert, Claim] in store.passes
        assert [Settle, Claim] in store.passes


async def test_a_piggyback_claim_in_flight_holds_its_slots(gate: Gate) -> None:
    """The worker's own claims must not claim for the same slots."""
    store = RecordingStore()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> None:
            await gate.pass_through()

        @jobs.task
        async def first() -> None: ...

        async with running_worker(jobs, concurrency=1) as worker:
            await (await first.enqueue()).result(30)
            store.latency, before = 0.1, len(store.passes)
            insert = asyncio.create_task(jobs.enqueue_many([work.new(), work.new()]))
            async with asyncio.timeout(30):
                while True:
                    if any(Insert in commands for commands in store.passes[before:]):
                        break
                    await asyncio.sleep(0.001)
            worker._claimer.wake()
            await insert
            await gate.begun.wait()
            await jobs.engine.submit(Upkeep())  # is written after any claim

            assert (await jobs.counts())["default"].get("running") == 1
            gate.opened.set()


async def test_no_more_handlers_run_at_once_than_there_are_slots(live: Errandry) -> None:
    running = {"async": 0, "thread": 0}
    most = dict(running)
    lock, full, full_of_threads = threading.Lock(), asyncio.Event(), threading.Event()

    def enter(kind: str, by: int) -> int:
        with lock:
            running[kind] += by
            most[kind] = max(most[kind], running[kind])
            return running[kind]

    @live.task
    async def on_loop() -> None:
        if enter("async", 1) == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.002)
        enter("async", -1)

    @live.task
    def in_thread() -> None:
        if enter("thread", 1) == 2:
            full_of_threads.set()
        full_of_threads.wait(WAIT_TIMEOUT)
        time.sleep(0.002)
        enter("thread", -1)

    await live.enqueue_many([task.new() for task in (on_loop, in_thread) for _ in range(20)])
    await run_burst(live, concurrency=3, thread_slots=2)

    assert most == {"async": 3, "thread": 2}
    assert await live.counts() == {"default": {"completed": 40}}


async def test_a_worker_claims_only_its_queues_and_tasks(live: Errandry) -> None:
    @live.task
    async def mail() -> None: ...

    @live.task
    def sums() -> None: ...

    jobs = [await task.using(queue=queue).enqueue() for task in (mail, sums) for queue in ("a", "b")]
    await run_burst(live, queues=("a",), tasks=("sums",))

    assert [(await job.refresh()).state for job in jobs] == ["waiting", "waiting", "completed", "waiting"]


async def test_a_scheduled_job_runs_when_it_is_due(live: Errandry) -> None:
    @live.task
    async def work() -> None: ...

    async with running_worker(live):
        with MachineLoad() as load:
            jobs = [await work.using(delay=0.05 * number).enqueue() for number in range(1, 9)]
            ends = [(await job.wait(30)).record for job in jobs]

    delays = sorted((end.started_at or 0.0) - (end.run_at or 0.0) for end in ends)
    assert delays[0] >= 0
    assert delays[2] < load.scaled(0.05), f"even on a busy machine, some are in time: {delays}"
    assert delays[-1] < load.scaled(0.9), f"no job had to wait for a poll: {delays}"


async def test_a_paused_worker_claims_nothing_until_it_is_resumed(live: Errandry, gate: Gate) -> None:
    @live.task
    async def first() -> None:
        await gate.pass_through()

    @live.task
    async def second() -> None: ...

    async with running_worker(live) as worker:
        running = await first.enqueue()
        await gate.begun.wait()
        worker.pause()
        gate.opened.set()
        await running.wait(30)
        held = await second.enqueue()
        with pytest.raises(TimeoutError):
            await held.wait(0.05)
        worker.resume()
        assert (await held.wait(30)).state is State.COMPLETED


async def test_a_worker_can_be_paused_through_the_store(live: Errandry) -> None:
    @live.task
    async def work() -> None: ...

    async with running_worker(live, concurrency=3) as worker:
        await (await work.enqueue()).wait(30)
        assert await live.workers.pause(worker.id, by="ops")
        [info] = await live.workers.list()
        assert (info.id, info.pid, info.queues, info.slots) == (worker.id, os.getpid(), None, 3)
        assert info.paused is not None
        assert info.paused.by == "ops"
        assert info.started_at <= info.seen_at <= info.paused.at <= await live.now()
        assert info.seen_at.tzinfo is UTC
        held = await work.enqueue()
        with pytest.raises(TimeoutError):
            await held.wait(0.05)
        assert await live.workers.resume(worker.id)
        assert (await held.wait(30)).state is State.COMPLETED


async def test_urgent_jobs_run_first_and_equally_urgent_ones_in_their_order(live: Errandry) -> None:
    order: list[int] = []

    @live.task
    async def work(n: int) -> None:
        order.append(n)

    await live.enqueue_many(
        [work.using(priority=priority).new(n) for n, priority in enumerate((0, 5, 0, -5))]
    )
    await run_burst(live, concurrency=1)

    assert order == [3, 0, 2, 1]


class SlowStore(RecordingStore):
    """Delays the first claim that brings jobs; refuses the first renewal."""

    is_slow = refuses = True

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self.refuses and any(isinstance(command, Renew) for command in commands):
            self.refuses = False
            return [StoreUnavailable("memory", "the row is locked") for _ in commands]
        answers = await super().commit(commands)
        if self.is_slow and any(isinstance(answer, Claims) and answer.jobs for answer in answers):
            self.is_slow = False
            await asyncio.sleep(0.6)
        return answers


@pytest.mark.parametrize("is_enqueued_before", [True, False], ids=["own claim", "piggyback claim"])
async def test_a_slow_claim_is_run_although_its_first_renewal_is_refused(is_enqueued_before: bool) -> None:
    async with Errandry(store=SlowStore()) as jobs:

        @jobs.task
        async def work() -> str:
            return "done"

        job = await work.enqueue() if is_enqueued_before else None
        async with running_worker(jobs, lease=5.0, renew_every=0.5):
            job = job or await work.enqueue()
            assert await job.result(WAIT_TIMEOUT) == "done"
        record = (await job.refresh()).record

    assert (record.attempts, record.crashes) == (1, 0)


async def test_shared_suspects_take_a_quarter_of_the_slots_of_their_runner(live: Errandry) -> None:
    pair, running, most = asyncio.Barrier(2), Counter[str](), Counter[str]()

    def enter(runner: str) -> None:
        running[runner] += 1
        most[runner] = max(most[runner], running[runner])

    @live.task
    async def on_loop() -> None:
        enter("async")
        await pair.wait()
        running["async"] -= 1

    @live.task
    def in_thread() -> None:
        enter("thread")
        running["thread"] -= 1

    jobs = await live.enqueue_many([task.new() for task in (on_loop, in_thread) for _ in range(4)])
    claims = await live.engine.submit(Claim(worker="dead", nonce="1", limit=10))
    assert isinstance(claims, Claims)
    assert len(claims.jobs) == 8
    await live.engine.submit(Upkeep(dead=("dead",)))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await run_burst(live, concurrency=8, thread_slots=4)

    assert [(await job.refresh()).record.crashes for job in jobs] == [1] * 8
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert most == {"async": 2, "thread": 1}


async def test_an_isolated_suspect_runs_with_no_other_suspect_on_its_host(live: Errandry) -> None:
    """Two workers, as two processes of a host; each job's next loss would fail it."""
    running, most = 0, 0

    @live.task(max_attempts=2)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    jobs = await live.enqueue_many([work.new() for _ in range(6)])
    await live.engine.submit(Claim(worker="dead", nonce="1", limit=10))
    await live.engine.submit(Upkeep(dead=("dead",)))
    async with asyncio.timeout(WAIT_TIMEOUT):
        await asyncio.gather(run_burst(live), run_burst(live))

    assert {(await job.refresh()).state for job in jobs} == {State.COMPLETED}
    assert most == 1


async def test_a_suspect_is_settled_before_the_next_suspect_is_claimed() -> None:
    """The next suspect may end the process, and with it outcomes that are not written yet."""
    store = RecordingStore()
    async with Errandry(store=store) as jobs:

        @jobs.task
        async def work() -> None: ...

        await jobs.enqueue_many([work.new() for _ in range(3)])
        await jobs.engine.submit(Claim(worker="dead", nonce="1", limit=10))
        await jobs.engine.submit(Upkeep(dead=("dead",)))
        began = len(store.commands)
        await run_burst(jobs, concurrency=4)

        assert (await jobs.counts())["default"] == {"completed": 3}
    settling = [
        commands for commands in store.commands[began:] if any(isinstance(c, Settle) for c in commands)
    ]
    assert len(settling) == 3
    assert not [c for commands in settling for c in commands if isinstance(c, Claim) and c.suspects]


async def test_run_worker_runs_a_worker_with_these_options(live: Errandry) -> None:
    @live.task
    async def work() -> None: ...

    mail, other = await work.using(queue="mail").enqueue(), await work.enqueue()
    await live.run_worker(queues=("mail",), burst=True)

    assert (await mail.refresh()).state is State.COMPLETED
    assert (await other.refresh()).state is State.WAITING


async def test_run_worker_refuses_wrong_options(live: Errandry) -> None:
    with pytest.raises(InvalidValue, match="concurrency=0"):
        await live.run_worker(concurrency=0)
    with pytest.raises(InvalidValue, match=r"concurency=3: unknown option; did you mean concurrency\?"):
        await live.run_worker(concurency=3)  # type: ignore[call-arg]


async def test_run_worker_stops_on_a_signal(live: Errandry) -> None:
    running = asyncio.create_task(live.run_worker(signals=True))
    while not await live.workers.list():  # noqa: ASYNC110 - no event for a beat
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

    await asyncio.wait_for(running, 30)

    assert await live.workers.list() == []
