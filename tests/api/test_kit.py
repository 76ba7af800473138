"""The test kit, used as in tests of a program."""

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from errandry import Backoff, Errandry, JobContext, Retry, Snooze, State
from errandry.core.job import NewJob
from errandry.core.retry import Curve
from errandry.core.state import Reason
from errandry.errors import JobFailed, ReplyLost, StoreUnavailable
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing import FakeClock, MemoryStore, assert_enqueued, assert_not_enqueued, drain, in_memory
from tests.machine_load import WAIT_TIMEOUT


@pytest.fixture
def order(jobs: Errandry) -> list[str]:
    """The runs in their order; the fixture declares the tasks that add to it."""
    ran: list[str] = []

    @jobs.task(max_attempts=3, backoff=Backoff(Curve.FIXED, 60.0, jitter=0.0))
    async def mail(ctx: JobContext, to: str, fails: int = 0) -> str:
        ran.append(f"mail {to} {ctx.attempt}")
        if ctx.attempt <= fails:
            raise ConnectionError("the server is down")
        return to

    @jobs.task
    def bill(to: str) -> None:
        ran.append(f"bill {to}")
        jobs.tasks["mail"].sync.enqueue(to=to)

    return ran


# drain


async def test_drain_runs_due_jobs_in_order_and_returns_those_that_finished(
    jobs: Errandry, order: list[str]
) -> None:
    await jobs.enqueue("mail", {"to": "ada"})
    await jobs.enqueue("bill", {"to": "grace"})
    await jobs.enqueue("mail", {"to": "joan"}, priority=-1)
    await jobs.enqueue("mail", {"to": "later"}, delay=60)

    finished = await drain(jobs)

    assert order == ["mail joan 1", "mail ada 1", "bill grace", "mail grace 1"]
    assert [(job.task, job.state, job.stored_result) for job in finished] == [
        ("mail", State.COMPLETED, "joan"),
        ("mail", State.COMPLETED, "ada"),
        ("bill", State.COMPLETED, None),
        ("mail", State.COMPLETED, "grace"),
    ]
    assert await drain(jobs) == []


async def test_drain_until_idle_skips_delays_and_retries(
    jobs: Errandry, order: list[str], clock: FakeClock
) -> None:
    start, real = clock.time(), time.monotonic()
    await jobs.enqueue("mail", {"to": "ada", "fails": 2})
    await jobs.enqueue("mail", {"to": "grace"}, delay="1 hour")

    finished = await drain(jobs, until_idle=True)

    assert order == ["mail ada 1", "mail ada 2", "mail ada 3", "mail grace 1"]
    assert [job.attempts for job in finished] == [3, 1]
    assert clock.time() - start == pytest.approx(3_600)
    assert time.monotonic() - real < WAIT_TIMEOUT


async def test_drain_without_until_idle_does_not_move_the_clock(
    jobs: Errandry, order: list[str], clock: FakeClock
) -> None:
    start = clock.time()
    await jobs.enqueue("mail", {"to": "ada", "fails": 1})

    assert await drain(jobs) == []
    assert await drain(jobs) == []
    clock.advance(60)
    assert [job.attempts for job in await drain(jobs)] == [2]
    assert clock.time() == start + 60


async def test_drain_until_idle_needs_a_fake_clock(live: Errandry) -> None:
    with pytest.raises(TypeError, match="moves a FakeClock on; the app has a SystemClock"):
        await drain(live, until_idle=True)


async def test_a_strict_drain_raises_the_first_error_with_its_traceback(
    jobs: Errandry, order: list[str]
) -> None:
    await jobs.enqueue("mail", {"to": "ada", "fails": 1})

    with pytest.raises(JobFailed, match="ConnectionError: the server is down") as error:
        await drain(jobs, strict=True)

    assert 'raise ConnectionError("the server is down")' in error.value.__notes__[0]


async def test_drain_raises_after_its_limit_of_attempts(jobs: Errandry) -> None:
    @jobs.task
    async def again() -> None:
        await again.enqueue()

    await again.enqueue()

    with pytest.raises(AssertionError, match=r"50 attempts, .* does a job enqueue itself for ever\?"):
        await drain(jobs, limit=50)


async def test_drain_can_run_one_queue_only(jobs: Errandry, order: list[str]) -> None:
    await jobs.enqueue("mail", {"to": "ada"}, queue="mail")
    await jobs.enqueue("mail", {"to": "grace"})
    await jobs.enqueue("mail", {"to": "joan"}, queue="mail", delay=60)

    await drain(jobs, queue="mail", until_idle=True)

    assert order == ["mail ada 1", "mail joan 1"]


async def test_drain_fails_jobs_of_unknown_tasks(jobs: Errandry) -> None:
    await jobs.client.insert([NewJob(id="lost", task="unknown", payload="{}")])

    [job] = await drain(jobs)

    assert (job.state, job.reason) == (State.FAILED, Reason.NO_HANDLER)


async def test_drain_stores_what_handlers_log(jobs: Errandry) -> None:
    @jobs.task
    def work(ctx: JobContext) -> None:
        logging.getLogger("shop").warning("careful")
        ctx.progress(0.5)

    await work.enqueue()
    [job] = await drain(jobs)

    assert [line.text for line in job.logs] == ["careful"]
    assert job.progress is not None


async def test_drain_obeys_outcomes_timeouts_and_cancels(jobs: Errandry, clock: FakeClock) -> None:
    snoozes = iter([True, True, False])

    @jobs.task(max_attempts=1)
    async def sleepy() -> str:
        if next(snoozes):
            raise Snooze("1 day")
        return "awake"

    @jobs.task(max_attempts=1, timeout=0.01)
    async def stuck() -> None:
        await asyncio.Event().wait()

    @jobs.task
    async def suicidal(ctx: JobContext) -> None:
        await jobs.cancel(ctx.id)

    handles = [await task.enqueue() for task in (sleepy, stuck, suicidal)]
    ends = {job.id: job.state for job in await drain(jobs, until_idle=True)}

    assert [ends[job.id] for job in handles] == [State.COMPLETED, State.FAILED, State.CANCELED]


def test_drain_works_in_tests_without_a_loop() -> None:
    jobs = Errandry("memory:")

    @jobs.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.sync.enqueue(1, 2)
    asyncio.run(drain(jobs))

    assert job.result(5) == 3
    jobs.sync.close()


# in_memory


async def test_in_memory_does_not_touch_the_store_of_the_app(tmp_path: Path) -> None:
    jobs = Errandry(f"sqlite:///{tmp_path}/jobs.db")

    @jobs.task
    async def mail(to: str) -> None: ...

    clock = FakeClock()
    with in_memory(jobs, clock) as store:
        await mail.using(delay=60).enqueue("ada")
        assert jobs.store is store
        assert jobs.clock is clock
        assert await store.due_in() == 60
    with in_memory(jobs):
        assert await jobs.counts() == {}

    assert isinstance(jobs.store, SqliteStore)
    assert list(tmp_path.iterdir()) == []


async def test_an_open_app_continues_with_its_own_store_after_in_memory(
    jobs: Errandry, order: list[str]
) -> None:
    await jobs.enqueue("mail", {"to": "ada"})
    with in_memory(jobs):
        assert await jobs.counts() == {}

    assert await jobs.counts() == {"default": {"waiting": 1}}


# Assertions


async def test_assert_enqueued_finds_a_job_by_task_and_some_arguments(
    jobs: Errandry, order: list[str]
) -> None:
    await jobs.enqueue("mail", {"to": "ada"}, queue="vip", delay=60)

    job = await assert_enqueued(jobs, jobs.tasks["mail"], to="ada")

    assert (job.queue, job.state) == ("vip", State.SCHEDULED)
    await assert_enqueued(jobs, "mail")
    await assert_enqueued(jobs, "mail", to="ada", fails=0)  # defaults count


async def test_a_failed_assert_enqueued_lists_the_jobs_of_the_task(jobs: Errandry, order: list[str]) -> None:
    for to in ("ada", "grace"):
        await jobs.enqueue("mail", {"to": to})
    await drain(jobs)
    await jobs.enqueue("mail", {"to": "joan"})

    with pytest.raises(AssertionError) as error:
        await assert_enqueued(jobs, "mail", to="grace")

    assert str(error.value).splitlines() == [
        "no job of task mail with to='grace' is enqueued; of this task there are:",
        "  waiting   mail(to='joan', fails=0)",
        "  completed mail(to='grace', fails=0)",
        "  completed mail(to='ada', fails=0)",
    ]


async def test_a_failed_assert_enqueued_names_the_tasks_that_have_jobs(
    jobs: Errandry, order: list[str]
) -> None:
    with pytest.raises(AssertionError, match=r"^no job of task mail is enqueued; there are no jobs at all$"):
        await assert_enqueued(jobs, "mail")
    await jobs.enqueue("bill", {"to": "ada"})
    with pytest.raises(AssertionError, match=r"there are only jobs of bill$"):
        await assert_enqueued(jobs, "mail")


async def test_assert_not_enqueued(jobs: Errandry, order: list[str]) -> None:
    await assert_not_enqueued(jobs)
    await jobs.enqueue("mail", {"to": "ada"})
    await assert_not_enqueued(jobs, "bill")
    await assert_not_enqueued(jobs, "mail", to="grace")

    with pytest.raises(AssertionError) as error:
        await assert_not_enqueued(jobs, "mail", to="ada")
    with pytest.raises(AssertionError, match="any task should not be enqueued"):
        await assert_not_enqueued(jobs)

    assert str(error.value).splitlines() == [
        "task mail with to='ada' should not be enqueued, but is:",
        "  waiting   mail(to='ada', fails=0)",
    ]
    await drain(jobs)
    await assert_not_enqueued(jobs)


async def test_long_lists_in_messages_are_shortened(jobs: Errandry, order: list[str]) -> None:
    await jobs.enqueue_many([jobs.tasks["mail"].new(to=f"{n}") for n in range(30)])

    with pytest.raises(AssertionError, match=r"and 10 more$"):
        await assert_enqueued(jobs, "mail", to="unknown")


# Faults


async def test_an_unavailable_store_is_retried(jobs: Errandry, order: list[str]) -> None:
    assert isinstance(jobs.store, MemoryStore)
    jobs.store.fail_before.append(StoreUnavailable("memory", "away"))
    jobs.store.fail_after.append(ReplyLost("memory", "the reply was lost"))

    await jobs.enqueue("mail", {"to": "ada"})

    assert jobs.store.fail_before == jobs.store.fail_after == []
    assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_latency_slows_every_commit(jobs: Errandry, order: list[str]) -> None:
    assert isinstance(jobs.store, MemoryStore)
    jobs.store.latency = 0.02

    start = time.monotonic()
    await jobs.enqueue("mail", {"to": "ada"})

    assert time.monotonic() - start >= 0.02


async def test_drain_runs_retries_in_the_order_of_their_times(jobs: Errandry, clock: FakeClock) -> None:
    ran: list[tuple[str, float]] = []
    start = clock.time()

    @jobs.task
    async def work(ctx: JobContext, name: str, every: float) -> None:
        ran.append((name, round(clock.time() - start, 3)))
        if ctx.attempt < 3:
            raise Retry(after=every)

    await work.enqueue("fast", 2)
    await work.enqueue("slow", 3)
    await drain(jobs, until_idle=True)

    assert ran == [("fast", 0), ("slow", 0), ("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6)]


# The plugin


async def test_the_fixtures_work_without_any_import(
    errandry_jobs: Errandry, errandry_clock: FakeClock, errandry_store: MemoryStore
) -> None:
    @errandry_jobs.task
    async def work() -> str:
        return "done"

    job = await work.using(delay=60).enqueue()
    assert await drain(errandry_jobs) == []
    errandry_clock.advance(60)
    await drain(errandry_jobs)

    assert await job.result(30) == "done"
    assert errandry_jobs.store is errandry_store


def test_every_test_starts_with_an_empty_store(errandry_jobs: Errandry) -> None:
    assert errandry_jobs.sync.counts() == {}


@pytest.mark.slow(reason="starts an interpreter")
def test_the_plugin_is_loaded_without_importing_errandry(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('errandry')\n"
        "    assert 'errandry' not in sys.modules\n"
    )

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout
