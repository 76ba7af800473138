"""Conveyor's flows and its removeOnComplete and removeOnFail, replayed on every store.

Its terms: `waiting-children` is `blocked`, `pendingChildrenCount` is `open_children`,
`failParentOnChildFailure` is the policy of an edge. Lines that begin with > are quoted from its page or
from the documentation of its options. Docstrings name the differences.
"""

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from errandry import Errandry, Fail, JobContext, State, flow
from errandry.api.job import Job
from errandry.api.task import Task
from errandry.core.command import Upkeep
from errandry.core.event import EventKind
from errandry.core.job import JobRecord
from errandry.core.state import Reason
from errandry.errors import ErrandryError, InvalidValue
from errandry.store.contract import Store
from errandry.testing import FakeClock, drain


@pytest.fixture
async def jobs(store: Store, clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry(store=store, clock=clock) as jobs:
        yield jobs


@pytest.fixture
def fetch_data(jobs: Errandry) -> Task[[str], str]:
    @jobs.task(name="fetch-data", queue="etl", max_attempts=1)
    async def fetch_data(source: str) -> str:
        if source == "broken":
            raise Fail("no such source")
        return f"rows of {source}"

    return fetch_data


@pytest.fixture
def send_report(jobs: Errandry) -> Task[[int], list[Any]]:
    @jobs.task(name="send-report", queue="reports")
    async def send_report(ctx: JobContext, report_id: int) -> list[Any]:
        return [report_id, *[child.result for child in ctx.children()]]

    return send_report


async def add(
    jobs: Errandry,
    report: Task[[int], list[Any]],
    fetch: Task[[str], str],
    *sources: str,
    policy: Literal["fail", "ignore", "remove"] = "fail",
) -> tuple[Job[list[Any]], list[str]]:
    """> const result = await flow.add({ name: 'send-report', …, children: [{ name: 'fetch-data', … }] })"""
    calls = [fetch.new(source) for source in sources]
    parent = await jobs.enqueue_flow(flow(report.new(42), *calls, policy=policy))
    return parent, [child.id for child in await jobs.children(parent.id)]


async def run_next_child(jobs: Errandry) -> list[JobRecord]:
    """Run one child and return the children that have ended."""
    with pytest.raises(AssertionError):
        await drain(jobs, queue="etl", limit=1)
    return [job.record for job in (await jobs.list("queue:etl state:completed,failed")).jobs]


class TestFlowStateTransitions:
    async def test_children_start_in_waiting_the_parent_in_waiting_children(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> Children start in waiting; the parent starts in waiting-children

        > The parent has a pendingChildrenCount equal to its number of direct children
        """
        parent, children = await add(jobs, send_report, fetch_data, "db", "api")

        record = await jobs.client.record(parent.id)
        assert (record.state, record.open_children, record.queue) == (State.BLOCKED, 2, "reports")
        for child in children:
            child_record = await jobs.client.record(child)
            assert (child_record.state, child_record.queue) == (State.WAITING, "etl")

    async def test_the_parent_counts_its_direct_children_only(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        nested = flow(fetch_data.new("all"), fetch_data.new("db"), fetch_data.new("api"))
        parent = await jobs.enqueue_flow(flow(send_report.new(42), nested, fetch_data.new("log")))

        assert (await jobs.client.record(parent.id)).open_children == 2
        assert (await jobs.counts())["etl"] == {"blocked": 1, "waiting": 3}

    async def test_each_completion_decrements_the_counter_and_the_last_unblocks_the_parent(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> As each child completes, notifyChildCompleted() decrements the counter

        > When pendingChildrenCount reaches 0, the parent transitions to waiting
        """
        parent, _ = await add(jobs, send_report, fetch_data, "db", "api", "log")

        progress = []
        for _ in range(2):
            await run_next_child(jobs)
            record = await jobs.client.record(parent.id)
            progress.append((record.state, record.open_children))
        await drain(jobs, queue="etl")

        assert progress == [(State.BLOCKED, 2), (State.BLOCKED, 1)]
        assert (await jobs.client.record(parent.id)).state is State.WAITING

    async def test_an_unblocked_parent_is_processed_like_any_normal_job(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> The parent is then processed like any normal job"""
        parent, _ = await add(jobs, send_report, fetch_data, "db", "api")

        ran = await drain(jobs)

        assert [record.task for record in ran] == ["fetch-data", "fetch-data", "send-report"]
        assert await parent.result(timeout=30) == [42, "rows of db", "rows of api"]

    async def test_the_whole_tree_is_saved_atomically(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> The FlowProducer saves the entire tree atomically."""
        large = fetch_data.using(unique="held", metadata={"text": "x" * 60_000})
        too_large = fetch_data.new("x" * 1_100_000)

        with pytest.raises(ErrandryError):
            await jobs.enqueue_flow(flow(send_report.new(42), large.new("db"), too_large))
        loop = fetch_data.new("loop")
        with pytest.raises(InvalidValue, match="circle"):
            await jobs.enqueue_flow(flow(loop, flow(fetch_data.new("middle"), loop)))

        assert (await jobs.list()).jobs == ()
        assert not (await large.enqueue("db")).existed  # its key is not taken either

    async def test_a_new_parent_is_reported_as_blocked(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> waiting-children | Parent job created in a flow"""
        cursor = await jobs.latest_cursor()
        parent, children = await add(jobs, send_report, fetch_data, "db")

        page = await jobs.engine.call(jobs.store.events, cursor, 100)

        kinds = {entry.event.job: entry.event.kind for entry in page.entries}
        assert kinds == {parent.id: EventKind.BLOCKED, children[0]: EventKind.WAITING}


class TestChildFailurePolicies:
    async def test_policy_fail_fails_the_parent_at_once(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> 'fail' | Parent immediately transitions to failed (default)

        Here the children that no worker has claimed are canceled as well: no parent needs their results.
        """
        parent, children = await add(jobs, send_report, fetch_data, "broken", "api")

        await run_next_child(jobs)

        record = await jobs.client.record(parent.id)
        assert (record.state, record.reason) == (State.FAILED, Reason.CHILD_FAILED)
        assert (await jobs.client.record(children[1])).state is State.CANCELED

    async def test_policy_ignore_lets_the_parent_run_without_the_failed_child(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> 'ignore' | Parent proceeds when remaining children finish"""
        parent, _ = await add(jobs, send_report, fetch_data, "broken", "api", policy="ignore")

        await run_next_child(jobs)
        waiting = await jobs.client.record(parent.id)
        await drain(jobs)

        assert (waiting.state, waiting.open_children) == (State.BLOCKED, 1)
        assert await parent.result(timeout=30) == [42, None, "rows of api"]

    async def test_policy_remove_removes_the_parent(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        """> 'remove' | Parent is removed if any child fails"""
        parent, children = await add(jobs, send_report, fetch_data, "broken", "api", policy="remove")

        await run_next_child(jobs)

        assert [record.id for record in (await jobs.list()).jobs] == [children[1], children[0]]
        assert (await jobs.totals())["reports"] == {"inserted": 1, "removed": 1}
        assert parent.id not in [record.id for record in (await jobs.list()).jobs]

    async def test_a_child_that_is_retried_has_not_failed(
        self, jobs: Errandry, send_report: Task[[int], list[Any]]
    ) -> None:
        """> yes ──→ [delayed] (with backoff) ──→ [waiting]"""
        attempts: list[int] = []

        @jobs.task(max_attempts=3, backoff=1)
        async def flaky(ctx: JobContext) -> str:
            attempts.append(ctx.attempt)
            if ctx.attempt < 3:
                raise ConnectionError
            return "at last"

        parent = await jobs.enqueue_flow(flow(send_report.new(42), flaky.new()))
        await drain(jobs, until_idle=True)

        assert attempts == [1, 2, 3]
        assert await parent.result(timeout=30) == [42, "at last"]


class TestRemoval:
    """> If removeOnComplete is set, the job is removed (or scheduled for removal after a grace period)"""

    @pytest.mark.parametrize("source", ["db", "broken"])
    async def test_keep_0_removes_the_job_when_it_ends(
        self, jobs: Errandry, fetch_data: Task[[str], str], source: str
    ) -> None:
        """> removeOnComplete: true, removeOnFail: true: the job is removed as soon as it has ended"""
        await fetch_data.using(keep={"completed": 0, "failed": 0}).enqueue(source)
        await drain(jobs)

        assert (await jobs.list()).jobs == ()
        assert (await jobs.totals())["etl"]["removed"] == 1

    async def test_keep_0_for_completed_jobs_keeps_failed_jobs(
        self, jobs: Errandry, fetch_data: Task[[str], str]
    ) -> None:
        task = fetch_data.using(keep={"completed": 0})
        await task.enqueue("db")
        failed = await task.enqueue("broken")
        await drain(jobs)

        assert [record.id for record in (await jobs.list()).jobs] == [failed.id]

    async def test_a_finished_job_is_removed_after_its_keep_time(
        self, jobs: Errandry, fetch_data: Task[[str], str], clock: FakeClock
    ) -> None:
        """> { age: 60 }

        The job is removed 60 seconds after it has ended.
        """
        await fetch_data.using(keep={"completed": 60}).enqueue("db")
        await drain(jobs)
        clock.advance(59)
        await jobs.engine.submit(Upkeep())
        assert len((await jobs.list()).jobs) == 1
        clock.advance(1)

        await jobs.engine.submit(Upkeep())

        assert (await jobs.list()).jobs == ()

    async def test_the_newest_finished_jobs_are_kept_by_count(
        self, jobs: Errandry, fetch_data: Task[[str], str]
    ) -> None:
        """> { count: 2 }

        The newest two jobs are kept. Here jobs are counted by task and state, there by queue and state.
        """
        task = fetch_data.using(keep={"last": 2})
        ids = [(await task.enqueue(source)).id for source in ("db", "api", "log", "broken")]
        await drain(jobs)

        await jobs.engine.submit(Upkeep())

        assert [record.id for record in (await jobs.list()).jobs] == ids[:0:-1]

    async def test_the_parent_gets_the_result_of_a_child_that_was_removed(
        self, jobs: Errandry, send_report: Task[[int], list[Any]], fetch_data: Task[[str], str]
    ) -> None:
        child = fetch_data.using(keep=0).new("db")
        parent = await jobs.enqueue_flow(flow(send_report.new(42), child))
        await drain(jobs)

        assert await parent.result(timeout=30) == [42, "rows of db"]
