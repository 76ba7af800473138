"""What a worker does with jobs of tasks that it does not declare."""

import pytest

from errandry import Errandry, State
from errandry.core.job import NewJob
from errandry.core.state import Reason
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import run_burst, running_worker, wait_for_job


async def test_a_job_of_an_unknown_task_is_released_for_another_worker(live: Errandry) -> None:
    await live.client.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await run_burst(live, release_delay=60.0)
    record = await live.client.record("new")

    assert (record.state, record.attempts, record.releases) == (State.SCHEDULED, 0, 1)


async def test_a_job_of_an_unknown_task_fails_after_too_many_releases(live: Errandry) -> None:
    await live.client.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await run_burst(live, release_delay=0.0)
    record = await live.client.record("new")

    assert (record.state, record.reason) == (State.FAILED, Reason.NO_HANDLER)


async def test_after_a_job_of_an_unknown_task_the_worker_claims_no_more_of_them_for_a_while(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may share the store: without this, the worker would claim each of its jobs in turn."""

    @live.task
    async def known() -> None: ...

    async with running_worker(live):
        await live.client.insert([NewJob(id="first", task="of_tomorrow", payload="{}")])
        await wait_for_job(live, "first", lambda record: record.releases == 1)
        await live.client.insert([NewJob(id="second", task="of_tomorrow", payload="{}")])
        job = await known.enqueue()
        await job.result(WAIT_TIMEOUT)
        second = await live.client.record("second")

    assert (second.state, second.fence) == (State.WAITING, 0)
    assert caplog.text.count("task of_tomorrow is not declared in this worker") == 1


async def test_a_job_of_an_unknown_task_fails_at_once_with_on_unknown_fail(live: Errandry) -> None:
    await live.client.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await run_burst(live, on_unknown="fail")
    record = await live.client.record("new")

    assert (record.state, record.reason, record.attempts) == (State.FAILED, Reason.NO_HANDLER, 1)
    assert "no task 'of_tomorrow' is declared" in record.errors[0].message


async def test_a_worker_with_a_list_of_tasks_never_claims_others(live: Errandry) -> None:
    @live.task
    async def known() -> None: ...

    await live.client.insert([NewJob(id="new", task="of_tomorrow", payload="{}")])
    await run_burst(live, tasks=("known",), on_unknown="fail")

    assert (await live.client.record("new")).fence == 0
