"""The blocking facade: from threads, thread pools, WSGI, forks and plain scripts."""

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from msgspec.structs import replace

from errandry import Encrypted, Errandry, Job, State, SyncJob, chain, new_key
from errandry.api import sync
from errandry.api.task import Task
from errandry.codec.json_codec import PlainCodec
from errandry.core.job import NewJob
from errandry.errors import InvalidArguments, InvalidMove, JobCanceled, StoreClosed, StoreError, UnknownJob
from errandry.testing import drain
from tests.machine_load import WAIT_TIMEOUT, MachineLoad
from tools.sync import MIRRORS, TARGET, Mirror, source


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Errandry]:
    jobs = Errandry(f"sqlite:///{tmp_path}/jobs.db")
    yield jobs
    jobs.sync.close()


@pytest.fixture
def add(app: Errandry) -> Task[[int, int], int]:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    return add


def test_schedules_and_queues_are_declared(app: Errandry, add: Task[[int, int], int]) -> None:
    app.sync.declare_queue("mail", limit=5)
    app.sync.schedule("nightly", add.new(1, 2), "@daily", limit=3)

    assert app.sync.put_declared() == ["schedule nightly", "queue mail"]
    assert app.sync.schedules.get("nightly").limit == 3


def test_everything_works_without_a_loop(app: Errandry, add: Task[[int, int], int]) -> None:
    job = add.sync.enqueue(1, 2)
    other, third = app.sync.enqueue_many([add.new(3, 4), add.using(delay=60).new(5, 6)])
    asyncio.run(drain(app))

    assert job.result(timeout=30) == 3
    assert other.wait(timeout=30).state is State.COMPLETED
    assert app.sync.get(third.id).state is State.SCHEDULED
    assert app.sync.counts() == {"default": {"completed": 2, "scheduled": 1}}
    assert [record.id for record in app.sync.list("state:scheduled").jobs] == [third.id]
    app.sync.cancel(third.id)
    with pytest.raises(JobCanceled):
        third.result(timeout=30)
    app.sync.rerun(third.id)
    app.sync.edit(third.id, priority=5)
    assert app.sync.get(third.id).record.priority == 5
    app.sync.remove(third.id)
    with pytest.raises(UnknownJob):
        app.sync.get(third.id)


@pytest.mark.parametrize("mirror", MIRRORS, ids=lambda mirror: mirror.name)
def test_every_async_method_has_a_blocking_twin(mirror: Mirror) -> None:
    async_class = getattr(import_module(f"errandry.api.{[*mirror.sources][-1]}"), mirror.name)
    sync_class = getattr(sync, f"Sync{mirror.name}")

    for name, method in inspect.getmembers(async_class, inspect.isfunction):
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if is_async and not name.startswith("_") and name not in mirror.skip:
            twin = getattr(sync_class, name)
            assert not inspect.iscoroutinefunction(twin)
            given, expected = (
                set(inspect.signature(twin).parameters),
                set(inspect.signature(method).parameters),
            )
            assert given == expected - ({"until"} if name == "events" else set())


def test_the_module_is_what_the_async_classes_give() -> None:
    assert TARGET.read_text(encoding="utf-8") == source(), (
        "run `python -m tools.sync` and commit what it wrote"
    )


def test_queues_tasks_workers_and_schedules_without_a_loop(app: Errandry, add: Task[[int, int], int]) -> None:
    queue = app.sync.queue("default")
    assert (queue.name, str(queue), queue.pause(by="ada"), queue.pause()) == (
        "default",
        "queue default",
        True,
        False,
    )
    assert queue.set_rules(limit=3).limit == queue.rules().limit == 3
    assert queue.group("acme").set_rules(weight=2.0).weight == 2.0
    assert queue.resume()
    assert add.sync.set_rules(limit=2) == add.sync.rules() == app.sync.remote_task("add").rules()

    app.sync.schedules.put("nightly", add.new(1, 2), "0 3 * * *")
    assert [schedule.name for schedule in app.sync.schedules.list()] == ["nightly"]
    job = app.sync.schedules.run("nightly")
    assert (job.arguments, job.state) == ({"a": 1, "b": 2}, State.WAITING)
    assert app.sync.workers.list() == []

    assert queue.purge("waiting").moved == (job.id,)
    with pytest.raises(UnknownJob):
        job.refresh()


def test_jobs_are_claimed_and_settled_without_a_loop(app: Errandry, add: Task[[int, int], int]) -> None:
    enqueued = [add.sync.enqueue(n, n) for n in range(3)]
    with app.sync.claimer(worker="by-hand") as claimer:
        done, snoozed, left = claimer.claim(limit=10)
        with done:
            done.progress(0.5, "half")
            done.complete(sum(done.arguments.values()))
        with pytest.raises(ZeroDivisionError), snoozed:
            raise ZeroDivisionError("by hand")
        assert (left.job.id, left.settled, claimer.claim()) == (enqueued[2].id, False, [])
        assert [worker.id for worker in app.sync.workers.list()] == [claimer.id]

    assert enqueued[0].result(timeout=WAIT_TIMEOUT) == 0
    assert [job.refresh().state for job in enqueued[1:]] == [State.SCHEDULED, State.WAITING]
    assert enqueued[1].errors[0].type == "ZeroDivisionError"


def test_a_claimer_whose_app_is_closed_inside_of_its_block_ends_without_an_error(
    app: Errandry, add: Task[[int, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    add.sync.enqueue(1, 2)
    with app.sync.claimer() as claimer:
        [job] = claimer.claim()
        app.sync.close()

    assert not job.settled
    assert "its jobs stay claimed until their leases expire" in caplog.text


def test_a_worker_runs_without_a_loop(app: Errandry, add: Task[[int, int], int]) -> None:
    job = add.sync.enqueue(2, 3)

    app.sync.run_worker(burst=True)

    assert job.refresh().state is State.COMPLETED


def test_events_are_iterated_without_a_loop(app: Errandry, add: Task[[int, int], int]) -> None:
    cursor = app.sync.latest_cursor()
    job = add.sync.enqueue(1, 2)
    events = app.sync.events(after=cursor, job=job.id)
    assert next(events).kind == "waiting"
    job.cancel()
    assert next(events).kind == "canceled"
    del events

    assert [event.kind for event in job.observe()] == ["canceled"]


def test_a_sync_app_is_a_context_manager(tmp_path: Path) -> None:
    jobs = Errandry(f"sqlite:///{tmp_path}/other.db")
    with jobs.sync as blocking:
        assert blocking.enqueue("send", {"to": "ada"}).arguments == {"to": "ada"}
    with pytest.raises(StoreClosed):
        jobs.sync.counts()


def test_a_job_has_a_blocking_twin(app: Errandry, add: Task[[int, int], int]) -> None:
    job = asyncio.run(add.enqueue(1, 2))
    twin = job.sync
    twin.cancel()

    assert (twin.refresh().state, twin.id, repr(twin)) == (
        State.CANCELED,
        job.id,
        f"<job {job.id} add canceled>",
    )
    assert twin.as_dict() == job.as_dict()
    assert job.state is State.CANCELED


def test_enqueue_hooks_run_in_the_thread_of_the_caller(app: Errandry, add: Task[[int, int], int]) -> None:
    threads = []

    @app.on_enqueue
    def note(job: NewJob) -> NewJob:
        threads.append(threading.current_thread())
        return job

    add.sync.enqueue(1, 2)
    app.sync.enqueue("add", {"a": 1, "b": 2})
    app.sync.enqueue_flow(chain(add.new(1, 2), add.new(3, 4)))

    assert threads == [threading.current_thread()] * 4


def test_a_store_that_cannot_be_opened_leaves_no_coroutine_behind(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    jobs = Errandry(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(StoreError):
        jobs.sync.counts()
    gc.collect()  # an un-awaited coroutine would warn here


def test_errors_are_those_of_the_async_api(app: Errandry, add: Task[[int, int], int]) -> None:
    with pytest.raises(InvalidArguments):
        add.sync.enqueue(1, "2")  # type: ignore[arg-type]
    job = add.sync.enqueue(1, 2)
    with pytest.raises(InvalidMove):
        app.sync.rerun(job.id)
    with pytest.raises(TimeoutError, match="has not finished within"):
        job.result(timeout=0.01)


def test_many_threads_enqueue_at_once(app: Errandry, add: Task[[int, int], int]) -> None:
    start = threading.Barrier(16)

    def enqueue(number: int) -> list[str]:
        start.wait()
        return [add.sync.enqueue(number, other).id for other in range(10)]

    with ThreadPoolExecutor(16) as pool:
        ids = [job_id for of_thread in pool.map(enqueue, range(16)) for job_id in of_thread]

    assert len(set(ids)) == 160
    assert app.sync.counts() == {"default": {"waiting": 160}}


async def test_calls_from_the_thread_pool_of_a_running_loop(
    app: Errandry, add: Task[[int, int], int]
) -> None:
    handles = await asyncio.gather(*[asyncio.to_thread(add.sync.enqueue, n, 1) for n in range(10)])
    results = asyncio.gather(*[asyncio.to_thread(job.result, WAIT_TIMEOUT) for job in handles])
    await drain(app)

    assert await results == list(range(1, 11))


async def test_calls_inside_a_running_loop_block_but_work(app: Errandry, add: Task[[int, int], int]) -> None:
    """As in a plain Django view under ASGI: it blocks the loop, but does not deadlock."""
    job = add.sync.enqueue(1, 2)
    await drain(app)

    assert job.result(WAIT_TIMEOUT) == 3


def test_calls_in_the_threads_of_a_wsgi_server(app: Errandry, add: Task[[int, int], int]) -> None:
    """As in Flask and Django: each request runs in a server thread without a loop."""

    def view(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        job = add.sync.enqueue(int(environ["QUERY_STRING"]), 1)
        start_response("202 Accepted", [("Location", f"/jobs/{job.id}")])
        return [job.id.encode()]

    def request(number: int) -> tuple[str, bytes]:
        answer: list[str] = []
        body = view({"QUERY_STRING": f"{number}"}, lambda status, headers: answer.append(status))
        return answer[0], b"".join(body)

    with ThreadPoolExecutor(4) as server:
        answers = list(server.map(request, range(20)))

    assert {status for status, _ in answers} == {"202 Accepted"}
    assert {record.id for record in app.sync.list().jobs} == {body.decode() for _, body in answers}


def test_calls_in_a_plain_handler(app: Errandry, add: Task[[int, int], int]) -> None:
    @app.task
    def outer(n: int) -> str:
        return add.sync.enqueue(n, n).id

    job = outer.sync.enqueue(4)
    asyncio.run(drain(app, strict=True))

    assert app.sync.get(job.result(WAIT_TIMEOUT)).result(WAIT_TIMEOUT) == 8


async def test_calls_in_an_async_handler(app: Errandry, add: Task[[int, int], int]) -> None:
    @app.task
    async def outer(n: int) -> str:
        return add.sync.enqueue(n, n).id

    job = await outer.enqueue(4)
    await drain(app, strict=True)

    assert (await app.get(await job.result(30))).state is State.COMPLETED


async def test_calls_on_the_engines_own_loop_are_refused(app: Errandry, add: Task[[int, int], int]) -> None:
    async def misplaced() -> None:
        add.sync.enqueue(1, 2)

    with pytest.raises(RuntimeError, match="would wait for its own thread"):
        await app.engine.call(misplaced)


async def test_a_blocking_worker_is_refused_where_an_event_loop_runs(app: Errandry) -> None:
    with pytest.raises(RuntimeError, match=r"event loop is running .* write await jobs\.run_worker\(…\) in"):
        app.sync.run_worker(burst=True)


def test_calls_after_close_are_refused(app: Errandry, add: Task[[int, int], int]) -> None:
    add.sync.enqueue(1, 2)
    app.sync.close()

    with pytest.raises(StoreClosed):
        add.sync.enqueue(1, 2)


# Scripts in their own process.


def run(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(dedent(program))
    return subprocess.run(
        [sys.executable, *options, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT,
        check=False,
    )


@pytest.mark.slow(reason="starts an interpreter")
def test_a_script_that_does_not_close_ends_promptly_and_its_job_is_stored(tmp_path: Path) -> None:
    program = """
        import time
        from errandry import Errandry

        jobs = Errandry()

        @jobs.task
        def send(to: str) -> None: ...

        print(send.sync.enqueue("ada").id, time.time())
        """
    with MachineLoad() as load:
        done = run(tmp_path, program, "-Werror")
        ended = time.time()

    assert (done.returncode, done.stderr) == (0, "")
    job_id, printed_at = done.stdout.split()
    assert ended - float(printed_at) < load.scaled(5.0)
    jobs = Errandry(f"sqlite:///{tmp_path}/errandry.db")
    assert jobs.sync.get(job_id).state is State.WAITING
    jobs.sync.close()


@pytest.mark.slow(reason="starts an interpreter")
def test_a_script_with_its_tasks_in_main_enqueues_and_runs_jobs(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import asyncio
        from errandry import Errandry, Worker, WorkerOptions

        jobs = Errandry()

        @jobs.task
        async def greet(name: str) -> str:
            return f"hello {name}"

        @jobs.task
        def add(a: int, b: int) -> int:
            return a + b

        async def main() -> None:
            async with jobs:
                handles = await greet.enqueue("ada"), await add.enqueue(1, 2)
                await Worker(jobs, WorkerOptions(burst=True)).run()
                print([await job.result(30) for job in handles])

        asyncio.run(main())
        asyncio.run(main())
        """,
        "-Werror",
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["['hello ada', 3]"] * 2


@pytest.mark.slow(reason="starts an interpreter")
def test_child_and_parent_both_work_after_a_fork(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import asyncio, os, sys
        from errandry import Errandry
        from errandry.testing import drain

        jobs = Errandry()

        @jobs.task
        def add(a: int, b: int) -> int:
            return a + b

        first = add.sync.enqueue(1, 1)
        try:
            first.wait(0.01)  # a wait before the fork
        except TimeoutError:
            pass
        child = os.fork()
        if child == 0:
            made = add.sync.enqueue(2, 2)
            asyncio.run(drain(jobs))
            ok = made.result(60) == 4 and first.result(60) == 2
            os._exit(0 if ok else 1)
        mine = add.sync.enqueue(3, 3)
        assert os.waitpid(child, 0)[1] == 0
        asyncio.run(drain(jobs))
        assert [job.result(60) for job in (first, mine)] == [2, 6]
        assert jobs.sync.counts() == {"default": {"completed": 3}}, jobs.sync.counts()
        print("both")
        """,
        "-Wignore::DeprecationWarning",  # a fork of a process with threads; that is what this tests
    )

    assert (done.stdout.strip(), done.stderr, done.returncode) == ("both", "", 0)


@pytest.mark.slow(reason="starts an interpreter")
def test_a_child_that_leaves_the_claimers_block_does_not_touch_the_parents_jobs(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import os, sys
        from errandry import Errandry
        from errandry.errors import InvalidValue

        jobs = Errandry()
        enqueued = jobs.sync.enqueue("send")
        with jobs.sync.claimer() as claimer:
            [job] = claimer.claim()
            with job:
                child = os.fork()
                if child == 0:
                    for use in (claimer.claim, job.renew, job.complete):
                        try:
                            use()
                        except InvalidValue as error:
                            print(str(error).partition(": ")[2], flush=True)
                    sys.exit(0)  # leaves both blocks
                assert os.waitpid(child, 0)[1] == 0
                assert enqueued.refresh().state == "running"
                assert [worker.id for worker in jobs.sync.workers.list()] == [claimer.id]
                job.complete("done")
        print(enqueued.result(60), jobs.sync.workers.list())
        """,
        "-Wignore::DeprecationWarning",  # a fork of a process with threads; that is what this tests
    )

    assert (done.stderr, done.returncode) == ("", 0)
    *refusals, parent = done.stdout.splitlines()
    assert parent == "done []"
    assert len(refusals) == 3
    assert all("from which this one was forked: open a claimer here" in text for text in refusals)


def test_a_closed_app_can_be_opened_again(app: Errandry, add: Task[[int, int], int]) -> None:
    job = add.sync.enqueue(1, 2)
    app.sync.close()
    with pytest.raises(StoreClosed):
        app.sync.counts()

    app.sync.open()
    assert app.sync.get(job.id).state is State.WAITING
    app.sync.close()

    with app.sync as reopened:
        assert reopened.get(job.id).state is State.WAITING


def test_a_job_that_is_read_again_has_readable_arguments(tmp_path: Path) -> None:
    """In a process, a handler's own job has plain arguments; those in the store are sealed."""
    jobs = Errandry(f"sqlite:///{tmp_path}/jobs.db", codec=Encrypted({"k": new_key()}))
    record = jobs.sync.enqueue("send", {"to": "ada"}).record
    plain: SyncJob[Any] = Job(jobs, replace(record, payload='{"to":"ada"}'), codec=PlainCodec()).sync

    assert plain.refresh().arguments == {"to": "ada"}
    jobs.sync.close()


def test_leaving_a_loop_over_events_of_a_closed_app_raises_nothing(app: Errandry) -> None:
    events = app.sync.events(app.sync.latest_cursor())
    app.sync.enqueue("send")
    next(events)
    app.sync.close()

    events.close()  # type: ignore[attr-defined]
