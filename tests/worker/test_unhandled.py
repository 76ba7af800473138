"""What a worker does with jobs that seem to be of a newer program: release them, and at last fail them."""

import asyncio
from typing import Any

import pytest

from errandry import Errandry, State
from errandry.core.argument_version import with_version
from errandry.core.command import BEAT_TASKS_MAX, Beat, TaskVersion, WorkerRecord
from errandry.core.job import DAY, JobRecord, NewJob
from errandry.core.state import Reason
from errandry.errors import StoreUnavailable
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock
from errandry.worker.options import WorkerOptions
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import run_burst, running_worker, wait_for_job

UNKNOWN = NewJob(id="new", task="of_tomorrow", payload="{}")
NEWER = NewJob(id="new", task="known", payload="{}", metadata=with_version(None, 3))
OTHER_ARGUMENT = NewJob(id="new", task="known", payload='{"added": 1}')
IDS = ["task", "version", "argument"]


def declare_known(jobs: Errandry, **options: Any) -> None:
    async def known() -> None:
        raise AssertionError("it must not run")

    jobs.task(**options)(known)


async def claim_when_due(jobs: Errandry, clock: FakeClock, **options: Any) -> JobRecord:
    """The record of the job after another worker has claimed it as soon as it was due."""
    record = await jobs.client.record("new")
    clock.advance(max(0.0, (record.run_at or 0.0) - clock.time()))
    await run_burst(jobs, **options)
    return await jobs.client.record("new")


@pytest.mark.parametrize("new", [UNKNOWN, NEWER, OTHER_ARGUMENT], ids=IDS)
async def test_a_job_of_a_newer_program_is_given_back_with_growing_delays(
    jobs: Errandry, clock: FakeClock, new: NewJob
) -> None:
    declare_known(jobs)
    await jobs.client.insert([new])
    began = clock.time()
    delays = [((await claim_when_due(jobs, clock)).run_at or 0.0) - clock.time() for _ in range(8)]

    record = await jobs.client.record("new")
    assert delays == [5, 5, 10, 20, 40, 60, 60, 60]
    assert (record.state, record.attempts, record.releases) == (State.SCHEDULED, 0, 0)
    assert record.unhandled_since == began


@pytest.mark.parametrize(
    ("new", "reason", "message"),
    [
        (UNKNOWN, Reason.NO_HANDLER, "no task 'of_tomorrow' is declared in any live worker"),
        (NEWER, Reason.NO_HANDLER, "no version 3 of task 'known' is declared in any live worker"),
        (OTHER_ARGUMENT, Reason.INVALID_PAYLOAD, "there is no argument 'added'"),
    ],
    ids=IDS,
)
async def test_it_fails_when_that_has_lasted_for_the_unknown_timeout_whatever_the_number_of_claims(
    jobs: Errandry, clock: FakeClock, new: NewJob, reason: Reason, message: str
) -> None:
    declare_known(jobs)
    await jobs.client.insert([new])
    began = clock.time()
    record = await claim_when_due(jobs, clock, unknown_timeout=300.0)
    while record.state is State.SCHEDULED:
        assert clock.time() < began + 300
        record = await claim_when_due(jobs, clock, unknown_timeout=300.0)

    assert (record.state, record.reason) == (State.FAILED, reason)
    assert message in record.errors[-1].message
    assert began + 300 <= clock.time() <= began + 360


def test_the_unknown_timeout_is_24_hours() -> None:
    assert WorkerOptions().unknown_timeout == DAY


@pytest.mark.parametrize(
    ("new", "beat", "age", "state"),
    [
        (UNKNOWN, Beat(worker="w", tasks=("other", "of_tomorrow")), 0, State.SCHEDULED),
        (UNKNOWN, Beat(worker="w", tasks=None), 0, State.SCHEDULED),
        (UNKNOWN, Beat(worker="w", tasks=("of_tomorrow",)), 39, State.SCHEDULED),
        (UNKNOWN, Beat(worker="w", tasks=("of_tomorrow",)), 41, State.FAILED),
        (UNKNOWN, Beat(worker="w", tasks=("other",)), 0, State.FAILED),
        (NEWER, Beat(worker="w", tasks=("known",)), 0, State.FAILED),
        (NEWER, Beat(worker="w", tasks=("known",), versions=(TaskVersion("known", 2),)), 0, State.FAILED),
        (NEWER, Beat(worker="w", tasks=("known",), versions=(TaskVersion("known", 3),)), 0, State.SCHEDULED),
        (NEWER, Beat(worker="w", tasks=("known",), versions=(TaskVersion("known", 4),)), 0, State.SCHEDULED),
    ],
)
async def test_it_does_not_fail_while_a_live_worker_lists_its_task_and_version(
    jobs: Errandry, clock: FakeClock, new: NewJob, beat: Beat, age: float, state: State
) -> None:
    declare_known(jobs)
    await jobs.client.insert([new])
    await claim_when_due(jobs, clock)
    clock.advance(DAY - age)
    await jobs.engine.submit(beat)
    clock.advance(age)

    assert (await claim_when_due(jobs, clock)).state is state


async def test_it_is_given_back_if_the_beats_cannot_be_read(clock: FakeClock) -> None:
    class Unreadable(MemoryStore):
        async def workers(self) -> list[WorkerRecord]:
            raise StoreUnavailable("memory", "no answer")

    async with Errandry(store=Unreadable(clock), clock=clock) as jobs:
        await jobs.client.insert([UNKNOWN])
        await claim_when_due(jobs, clock, upkeep=False)
        clock.advance(DAY)

        assert (await claim_when_due(jobs, clock, upkeep=False)).state is State.SCHEDULED


@pytest.mark.parametrize(
    ("new", "reason", "message"),
    [
        (UNKNOWN, Reason.NO_HANDLER, "no task 'of_tomorrow' is declared in this worker"),
        (NEWER, Reason.NO_HANDLER, "no version 3 of task 'known' is declared in this worker"),
        (OTHER_ARGUMENT, Reason.INVALID_PAYLOAD, "there is no argument 'added'"),
    ],
    ids=IDS,
)
async def test_it_fails_at_once_with_on_unknown_fail(
    live: Errandry, new: NewJob, reason: Reason, message: str
) -> None:
    declare_known(live)
    await live.client.insert([new])
    await run_burst(live, on_unknown="fail")
    record = await live.client.record("new")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, reason, 1)
    assert message in record.errors[0].message


async def test_a_worker_of_the_newer_program_runs_it(jobs: Errandry, clock: FakeClock) -> None:
    ran: list[int] = []
    declare_known(jobs)
    await jobs.client.insert([OTHER_ARGUMENT])
    await claim_when_due(jobs, clock)
    async with Errandry(store=jobs.store, clock=clock) as newer:

        @newer.task
        async def known(added: int = 0) -> None:
            ran.append(added)

        record = await claim_when_due(newer, clock)

    assert (record.state, record.attempts, record.unhandled_since, ran) == (State.COMPLETED, 1, None, [1])


async def test_an_unknown_argument_is_discarded_only_after_the_unknown_timeout(
    jobs: Errandry, clock: FakeClock
) -> None:
    declare_known(jobs, on_invalid="discard")
    await jobs.client.insert([OTHER_ARGUMENT])

    assert (await claim_when_due(jobs, clock)).state is State.SCHEDULED
    clock.advance(DAY)
    await run_burst(jobs)
    assert await jobs.engine.call(jobs.store.get, ["new"]) == [None]


async def test_unknown_arguments_that_an_upgrade_has_made_are_invalid(jobs: Errandry) -> None:
    """The job is of an older program, so that no newer one would accept them."""
    declare_known(jobs, version=2)
    await jobs.client.insert([OTHER_ARGUMENT])
    await run_burst(jobs)
    record = await jobs.client.record("new")

    assert (record.state, record.reason) == (State.FAILED, Reason.INVALID_PAYLOAD)


async def test_after_a_job_of_an_unknown_task_the_worker_claims_no_more_of_them_for_a_while(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may share the store: without this, the worker would claim each of its jobs in turn."""

    @live.task
    async def known() -> None: ...

    async with running_worker(live):
        await live.client.insert([NewJob(id="first", task="of_tomorrow", payload="{}")])
        await wait_for_job(live, "first", lambda record: record.unhandled_since is not None)
        await live.client.insert([NewJob(id="second", task="of_tomorrow", payload="{}")])
        job = await known.enqueue()
        await job.result(WAIT_TIMEOUT)
        second = await live.client.record("second")

    assert (second.state, second.fence) == (State.WAITING, 0)
    assert caplog.text.count("task of_tomorrow is not declared in this worker") == 1


async def test_a_worker_with_a_list_of_tasks_never_claims_others_or_unknown_ones(live: Errandry) -> None:
    declare_known(live)
    await live.client.insert([UNKNOWN])
    await run_burst(live, tasks=("known",), on_unknown="fail")
    await run_burst(live, tasks=("of_tomorrow",), on_unknown="fail")

    assert (await live.client.record("new")).fence == 0


@pytest.mark.parametrize(("only", "tasks"), [(None, ("known", "send")), (("send", "of_tomorrow"), ("send",))])
async def test_the_beat_lists_the_declared_tasks_and_the_versions_of_changed_arguments(
    live: Errandry, only: tuple[str, ...] | None, tasks: tuple[str, ...]
) -> None:
    declare_known(live)

    @live.task(version=3)
    async def send() -> None: ...

    async with running_worker(live, tasks=only):
        beat = await first_beat(live)

    assert (beat.tasks, beat.versions) == (tasks, (TaskVersion("send", 3),))


async def test_a_beat_lists_at_most_1000_tasks(live: Errandry) -> None:
    async def work() -> None: ...

    for number in range(BEAT_TASKS_MAX + 1):
        live.task(name=f"task-{number}", version=2)(work)
    async with running_worker(live):
        beat = await first_beat(live)

    assert (beat.tasks, beat.versions) == (None, ())
    assert beat.lists("any", 9)


async def first_beat(jobs: Errandry) -> Beat:
    """The beat of the only worker as soon as it is written."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not (records := await jobs.engine.call(jobs.store.workers)):  # noqa: ASYNC110 - no event for a beat
            await asyncio.sleep(0.005)
    return records[0].beat
