"""The engine, with real threads and event loops. Events and barriers decide the order, never a sleep."""

import asyncio
import copy
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errandry.core.answer import WRITTEN, Answer, Inserted
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    Insert,
    Note,
    Ref,
    Renew,
    Settle,
    Upkeep,
)
from errandry.errors import ReplyLost, SchemaTooNew, StoreClosed, UnknownJob
from errandry.store.contract import RANK
from errandry.store.engine.engine import Engine
from errandry.store.memory.driver import MemoryStore
from tests.new_jobs import insert
from tests.store.engine.committer_kit import command_keys, outcomes

T = TypeVar("T")


async def test_a_dropped_engine_does_not_close_a_store_that_another_one_uses() -> None:
    store = MemoryStore()
    async with Engine(store) as engine:
        dropped = Engine(store)
        await dropped.start()
        session = dropped._session
        assert session is not None
        with pytest.warns(
            ResourceWarning, match="an app with a MemoryStore was dropped without being closed"
        ):
            del dropped
        await asyncio.wrap_future(session.ended)
        assert await engine.call(store.counts) == {}


class BlockingStore(MemoryStore):
    """A memory store that can block its thread, and records its passes and the threads that call it."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[list[Command]] = []
        self.threads: set[int] = set()
        self.thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    async def open(self) -> None:
        self.threads.add(threading.get_ident())
        self.thread, self.loop = threading.current_thread(), asyncio.get_running_loop()
        await super().open()

    async def close(self) -> None:
        self.threads.add(threading.get_ident())
        await super().close()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.threads.add(threading.get_ident())
        self.passes.append(list(commands))
        self.entered.set()
        self.gate.wait()  # a store may block its thread
        return await super().commit(commands)


class StuckStore(BlockingStore):
    """A store whose commits never return, but can be canceled."""

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.entered.set()
        await asyncio.Event().wait()
        raise AssertionError


def in_threads(*targets: Callable[[], T]) -> list[T | BaseException]:
    """Run each target in its own thread, all at once; return what they returned or raised."""
    results: list[T | BaseException] = [AssertionError("the thread did not end")] * len(targets)
    barrier = threading.Barrier(len(targets))

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = targets[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Let threads take turns a thousand times more often, to provoke races."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


# One thread.


async def test_the_store_is_used_on_one_thread_only_and_that_thread_ends() -> None:
    store = BlockingStore()
    async with Engine(store) as engine:
        await engine.submit(insert("a"))
        await asyncio.to_thread(engine.submit_sync, insert("b"))
        engine_thread = await engine.call(thread_of_the_caller)

    assert store.threads == {engine_thread}
    assert engine_thread != threading.get_ident()
    assert engine_thread not in {thread.ident for thread in threading.enumerate()}


async def thread_of_the_caller() -> int:
    return threading.get_ident()


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def test_the_first_use_starts_the_engine() -> None:
    store = BlockingStore()
    engine = Engine(store)

    assert await engine.submit(insert("a")) == Inserted(("a",))
    [job] = await engine.call(store.get, ["a"])
    assert job is not None
    await engine.stop()


def test_an_engine_serves_one_loop_after_another_on_the_same_thread() -> None:
    engine = Engine(BlockingStore())

    assert asyncio.run(engine.submit(insert("a"))) == Inserted(("a",))
    assert asyncio.run(engine.submit(insert("b"))) == Inserted(("b",))
    engine.stop_sync()


def test_a_first_use_from_many_threads_starts_the_engine_once() -> None:
    store = BlockingStore()
    engine = Engine(store)

    answers = in_threads(*[lambda n=n: engine.submit_sync(insert(str(n))) for n in range(8)])

    assert answers == [Inserted((str(n),)) for n in range(8)]
    assert len(store.threads) == 1
    engine.stop_sync()


class SlowToOpenStore(BlockingStore):
    """A store that opens only when released, and then raises the next of `errors`."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.opening, self.go = threading.Event(), asyncio.Event()
        self.opened = False

    async def open(self) -> None:
        await super().open()
        self.opening.set()
        await self.go.wait()
        if self.errors:
            raise self.errors.pop()
        self.opened = True

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        assert self.opened
        return await super().commit(commands)

    def release(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.go.set)


async def test_nothing_is_written_before_the_store_is_open() -> None:
    engine = Engine(store := SlowToOpenStore())
    tasks = [asyncio.create_task(engine.submit(insert(job_id))) for job_id in "ab"]
    await asyncio.to_thread(store.opening.wait)
    tasks[0].cancel()
    await outcomes(tasks[0])

    assert engine.stats().waiting + engine.stats().pending_rows > 0
    store.release()

    assert await tasks[1] == Inserted(("b",))
    assert store.passes == [[insert("b")]]
    await engine.stop()


async def test_if_the_store_does_not_open_every_caller_gets_the_error_and_the_next_use_tries_again() -> None:
    engine = Engine(store := SlowToOpenStore(SchemaTooNew("file", "version 9")))
    calls = [engine.submit(insert("a")), engine.start(), engine.start(), engine.call(thread_of_the_caller)]
    tasks = [asyncio.create_task(call) for call in calls]
    tasks += [asyncio.create_task(asyncio.to_thread(engine.submit_sync, insert("b")))]
    await asyncio.to_thread(store.opening.wait)
    await handed_in(engine, 2)
    store.release()

    errors = await outcomes(*tasks)

    assert [type(error) for error in errors] == [SchemaTooNew] * 5
    assert len({id(error) for error in errors}) == 5
    assert await engine.submit(insert("c")) == Inserted(("c",))
    await engine.stop()


async def test_a_caller_canceled_while_the_engine_starts_does_not_affect_others() -> None:
    engine = Engine(store := SlowToOpenStore())
    canceled_start, other_start = (asyncio.create_task(engine.start()) for _ in range(2))
    await asyncio.to_thread(store.opening.wait)

    canceled_start.cancel()
    await outcomes(canceled_start)
    store.release()

    assert await outcomes(other_start) == [None]
    await engine.stop()


# Hand-over.


def record_hops(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record every hop to `loop` from now on."""
    hops: list[str] = []
    hop = loop.call_soon_threadsafe

    def counting(callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        hops.append(getattr(callback, "__name__", ""))
        return hop(callback, *args, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    return hops


async def test_a_pass_of_a_hundred_takes_one_hop_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlockingStore()
    async with Engine(store) as engine:
        assert store.loop is not None
        hops_to_engine = record_hops(store.loop, monkeypatch)
        hops_back = record_hops(asyncio.get_running_loop(), monkeypatch)

        await asyncio.gather(*[engine.submit(insert(str(n))) for n in range(100)])

        assert len(hops_to_engine) <= 1
        assert len(hops_back) == 1
        assert [len(commands) for commands in store.passes] == [100]


async def test_a_busy_engine_is_not_woken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlockingStore()
    async with Engine(store) as engine:
        assert store.loop is not None
        store.gate.clear()
        tasks = [asyncio.create_task(engine.submit(insert("first")))]
        await asyncio.to_thread(store.entered.wait)
        hops_to_engine = record_hops(store.loop, monkeypatch)

        tasks += [asyncio.create_task(engine.submit(insert(str(n)))) for n in range(10)]
        await handed_in(engine, 10)
        await asyncio.to_thread(store.gate.set)
        await asyncio.gather(*tasks)

        assert hops_to_engine == []
        assert [len(commands) for commands in store.passes] == [1, 10]


async def handed_in(engine: Engine, commands: int) -> None:
    """Wait until this number of commands waits for an engine whose store blocks."""
    while engine.stats().waiting < commands:  # noqa: ASYNC110 - each round hands in what was submitted
        await asyncio.sleep(0)


async def test_a_closed_loop_of_one_caller_does_not_affect_other_callers() -> None:
    store = BlockingStore()
    async with Engine(store) as engine:
        store.gate.clear()
        first = asyncio.create_task(engine.submit(insert("first")))
        await asyncio.to_thread(store.entered.wait)

        def submit_and_close_loop() -> None:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(submit_and_leave(engine))
            loop.close()

        [gone] = await asyncio.to_thread(in_threads, submit_and_close_loop)
        second = asyncio.create_task(engine.submit(insert("second")))
        await handed_in(engine, 2)
        store.gate.set()

        assert gone is None
        assert await outcomes(first, second) == [Inserted(("first",)), Inserted(("second",))]
        assert store.passes[1] == [insert("gone"), insert("second")]
    SUSPENDED.pop().close()


async def submit_and_leave(engine: Engine) -> None:
    submit = engine.submit(insert("gone"))
    submit.send(None)  # runs until it waits for its answer, and never further
    SUSPENDED.append(submit)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


SUSPENDED: list[Coroutine[Any, Any, Answer]] = []
"""Kept from garbage collection, which would end its wait."""


# Threads without a loop.


def test_a_thread_submits_commands_and_gets_their_errors_raised() -> None:
    class Refusing(BlockingStore):
        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            return [UnknownJob("x") if isinstance(command, CancelJobs) else WRITTEN for command in commands]

    engine = Engine(Refusing())

    assert engine.submit_sync(insert("a")) is WRITTEN
    with pytest.raises(UnknownJob):
        engine.submit_sync(CancelJobs(ids=("x",)))
    engine.stop_sync()


def test_a_command_is_written_even_if_its_thread_times_out() -> None:
    store = BlockingStore()
    engine = Engine(store)
    engine.start_sync()
    store.gate.clear()

    with pytest.raises(TimeoutError):
        engine.submit_sync(insert("a"), timeout=0.01)
    store.entered.wait()  # otherwise both would share a pass
    store.gate.set()

    assert engine.submit_sync(insert("b")) == Inserted(("b",))
    assert store.passes == [[insert("a")], [insert("b")]]
    engine.stop_sync()


async def test_blocking_calls_on_the_engines_own_thread_are_refused() -> None:
    store = BlockingStore()
    async with Engine(store) as engine:

        async def submit() -> None:
            engine.submit_sync(insert("a"))

        async def read() -> None:
            engine.call_sync(store.counts)

        errors = await outcomes(engine.call(submit), engine.call(read))

    assert [type(error) for error in errors] == [RuntimeError, RuntimeError]


# Calls.


async def test_calls_run_on_the_engines_thread_and_raise_the_functions_errors() -> None:
    store = BlockingStore()
    async with Engine(store) as engine:

        async def nested() -> int:
            return await engine.call(thread_of_the_caller)

        async def fails(what: str) -> None:
            raise UnknownJob(what)

        assert {await engine.call(nested)} == store.threads
        assert await asyncio.to_thread(engine.call_sync, thread_of_the_caller) in store.threads
        with pytest.raises(UnknownJob, match="nothing"):
            await engine.call(fails, "nothing")
        with pytest.raises(UnknownJob, match="nothing"):
            await asyncio.to_thread(engine.call_sync, fails, "nothing")


async def test_a_call_is_canceled_with_its_caller() -> None:
    running, canceled = threading.Event(), threading.Event()

    async def wait() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            canceled.set()

    async with Engine(BlockingStore()) as engine:
        task = asyncio.create_task(engine.call(wait))
        await asyncio.to_thread(running.wait)
        task.cancel()
        [outcome] = await outcomes(task)
        assert isinstance(outcome, asyncio.CancelledError)
        assert await asyncio.to_thread(canceled.wait, 60)

        running.clear()
        canceled.clear()
        while not running.is_set():  # a call that times out before it began is not canceled
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(engine.call_sync, wait, timeout=0.01)
        assert await asyncio.to_thread(canceled.wait, 60)


async def test_an_endless_sequence_of_passes_does_not_block_reads() -> None:
    class Endless(MemoryStore):
        """A store whose passes end only when more commands are waiting."""

        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            while not enough.is_set() and engine.stats().waiting + engine.stats().pending_rows < 2:
                pass
            return [WRITTEN] * len(commands)

    def feed() -> None:
        while not enough.is_set():
            engine.submit_sync(Upkeep())

    enough = threading.Event()
    async with Engine(Endless()) as engine:
        feeders = [asyncio.create_task(asyncio.to_thread(feed)) for _ in range(2)]
        try:
            assert await asyncio.wait_for(engine.call(thread_of_the_caller), 60) != threading.get_ident()
        finally:
            enough.set()
        await asyncio.gather(*feeders)


# Stopping.


async def test_stopping_writes_all_commands_of_loops_and_threads() -> None:
    store = BlockingStore()
    engine = Engine(store)
    await engine.start()
    store.gate.clear()
    tasks = [asyncio.create_task(engine.submit(insert("first")))]
    await asyncio.to_thread(store.entered.wait)
    tasks += [asyncio.create_task(engine.submit(insert(str(n)))) for n in range(5)]
    tasks += [asyncio.create_task(asyncio.to_thread(engine.submit_sync, insert("thread")))]
    await handed_in(engine, 6)

    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    store.gate.set()
    await stopping

    assert {type(answer) for answer in await outcomes(*tasks)} == {Inserted}
    for late in (engine.submit(insert("late")), engine.call(store.counts), engine.start()):
        with pytest.raises(StoreClosed):
            await late
    with pytest.raises(StoreClosed):
        engine.submit_sync(insert("late"))
    await engine.stop()


async def test_stopping_an_engine_that_never_started_does_nothing() -> None:
    store = BlockingStore()
    engine = Engine(store)

    await engine.stop()
    engine.stop_sync()

    assert store.threads == set()
    with pytest.raises(StoreClosed):
        await engine.submit(insert("a"))


async def test_a_stop_that_times_out_refuses_unwritten_commands_and_running_calls() -> None:
    store = StuckStore()
    engine = Engine(store)
    await engine.start()
    writing = asyncio.create_task(engine.submit(insert("a")))
    await asyncio.to_thread(store.entered.wait)
    thread = asyncio.create_task(asyncio.to_thread(engine.submit_sync, insert("b")))
    await handed_in(engine, 1)
    calling = asyncio.create_task(engine.call(wait_forever))
    called = asyncio.create_task(asyncio.to_thread(engine.call_sync, wait_forever))

    await engine.stop(timeout=0)

    answers = await outcomes(writing, thread, calling, called)
    assert [type(answer) for answer in answers] == [ReplyLost, StoreClosed, StoreClosed, StoreClosed]


async def test_a_second_stop_may_have_a_shorter_timeout() -> None:
    store = StuckStore()
    engine = Engine(store)
    writing = asyncio.create_task(engine.submit(insert("a")))
    await asyncio.to_thread(store.entered.wait)
    first_stop = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)

    await asyncio.to_thread(engine.stop_sync, 0)
    await first_stop

    assert [type(answer) for answer in await outcomes(writing)] == [ReplyLost]


async def test_if_the_store_ends_the_engines_thread_every_caller_gets_an_error() -> None:
    class Exiting(BlockingStore):
        async def commit(self, commands: Sequence[Command]) -> list[Answer]:
            raise SystemExit(3)

    engine = Engine(store := Exiting())

    first = await outcomes(engine.submit(insert("a")))
    assert store.thread is not None
    await asyncio.to_thread(store.thread.join)
    second = await outcomes(engine.submit(insert("b")), engine.call(thread_of_the_caller))

    assert [type(answer) for answer in first + second] == [ReplyLost, StoreClosed, StoreClosed]
    with pytest.raises(SystemExit):
        await engine.stop()


@pytest.mark.usefixtures("frequent_thread_switches")
@pytest.mark.parametrize("seed", range(10))
def test_a_stop_at_any_moment_answers_every_caller_and_loses_no_acknowledged_command(seed: int) -> None:
    engine = Engine(store := BlockingStore())
    engine.start_sync()
    delay = random.Random(seed).randrange(400)

    def stop() -> list[Answer]:
        for _ in range(delay):
            engine.stats()
        engine.stop_sync()
        return []

    def submit_all(name: str) -> list[Answer]:
        answers: list[Answer] = []
        for number in range(10_000):
            try:
                answers.append(engine.submit_sync(insert(f"{name}-{number}")))
            except StoreClosed:
                break
        return answers

    def loop_submit_all() -> list[Answer]:
        async def chain(name: str) -> list[Answer]:
            answers: list[Answer] = []
            for number in range(10_000):
                try:
                    answers.append(await engine.submit(insert(f"{name}-{number}")))
                except StoreClosed:
                    break
            return answers

        async def all_chains() -> list[Answer]:
            chains = await asyncio.gather(*map(chain, "abcde"))
            return [answer for answers in chains for answer in answers]

        return asyncio.run(all_chains())

    results = in_threads(stop, lambda: submit_all("x"), lambda: submit_all("y"), loop_submit_all)

    answers = [answer for result in results if isinstance(result, list) for answer in result]
    assert [result for result in results if isinstance(result, BaseException)] == []
    commands = [command for written in store.passes for command in written]
    written_ids = {command.jobs[0].id for command in commands if isinstance(command, Insert)}
    assert {
        job_id for answer in answers if isinstance(answer, Inserted) for job_id in answer.ids
    } <= written_ids


# Fork.

FORKING = """
import asyncio, os, sys, threading
from errandry.core.command import Insert
from errandry.core.job import NewJob
from errandry.store.engine.engine import Engine
from errandry.store.memory.driver import MemoryStore

class Held(MemoryStore):
    passes, entered, gate = [], threading.Event(), threading.Event()
    async def commit(self, commands):
        self.passes.append([job.id for command in commands for job in command.jobs])
        self.entered.set()
        if os.getpid() == PARENT:
            self.gate.wait()
        return await super().commit(commands)

def insert(job_id):
    return Insert((NewJob(id=job_id, task="task", payload="{}"),))

PARENT = os.getpid()
store = Held()
engine = Engine(store)
engine.start_sync()
threads = [threading.Thread(target=engine.submit_sync, args=(insert("parent"),))]
threads[0].start()
store.entered.wait()
threads.append(threading.Thread(target=engine.submit_sync, args=(insert("behind"),)))
threads[1].start()
while engine.stats().waiting < 1:
    pass
engine._lock.acquire()  # as if another thread were starting the engine
child = os.fork()
if not child:
    store.passes.clear()
    assert engine.stats().passes == 0
    engine.submit_sync(insert("child"), timeout=60)
    asyncio.run(engine.submit(insert("again")))
    assert engine.call_sync(store.counts, timeout=60)["default"]["waiting"] == 2
    engine.stop_sync(timeout=60)
    assert store.passes == [["child"], ["again"]], store.passes
    os._exit(0)
engine._lock.release()
_, status = os.waitpid(child, 0)
store.gate.set()
for thread in threads:
    thread.join()
engine.stop_sync()
assert store.passes == [["parent"], ["behind"]], store.passes
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_the_child_of_a_fork_starts_a_new_engine_with_nothing_pending() -> None:
    python = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
    ]  # Python warns about forks in programs with threads

    run = subprocess.run([*python, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False)

    assert (run.returncode, run.stderr) == (0, "")


# Everything at once.

names = st.sampled_from("abc")
commands = st.one_of(
    st.builds(insert, names),
    st.builds(lambda job_id: Settle(Ref(job_id, 1), CompleteOutcome()), names),
    st.builds(lambda job_id: Note(Ref(job_id, 1)), names),
    st.lists(names, min_size=1, max_size=3, unique=True).map(
        lambda ids: Renew(tuple(Ref(job_id, 1) for job_id in ids))
    ),
    st.lists(names, min_size=1, max_size=3, unique=True).map(lambda ids: CancelJobs(ids=tuple(ids))),
    st.builds(lambda worker: Claim(worker=worker, nonce="n"), names),
)
programs = st.lists(commands, max_size=15)


class EchoStore(MemoryStore):
    """A store that answers each command with its object id."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[list[Command]] = []

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.passes.append(list(commands))
        return [id_answer(command) for command in commands]


def id_answer(command: Command) -> Answer:
    return Inserted((str(id(command)),))


@settings(deadline=None, max_examples=25)
@given(loops=st.lists(programs, min_size=2, max_size=2), threads=st.lists(programs, min_size=2, max_size=2))
def test_random_commands_of_loops_and_threads_are_each_answered_and_written_once_in_order(
    loops: list[list[Command]], threads: list[list[Command]]
) -> None:
    store = EchoStore()
    engine = Engine(store)
    # Copies, so that equal commands are different objects.
    programs = [[copy.copy(command) for command in program] for program in (*loops, *threads)]

    def on_a_loop(program: list[Command]) -> list[Answer]:
        async def all_together() -> list[Answer]:
            return await asyncio.gather(*[engine.submit(command) for command in program])

        return asyncio.run(all_together())

    def on_a_thread(program: list[Command]) -> list[Answer]:
        return [engine.submit_sync(command) for command in program]

    answers = in_threads(
        *[lambda program=program: on_a_loop(program) for program in programs[:2]],
        *[lambda program=program: on_a_thread(program) for program in programs[2:]],
    )
    engine.stop_sync()

    assert answers == [[id_answer(command) for command in program] for program in programs]
    submitted = [id(command) for program in programs for command in program]
    assert Counter(id(command) for written in store.passes for command in written) == Counter(submitted)
    place = {id(command): number for number, written in enumerate(store.passes) for command in written}
    for written in store.passes:
        all_keys = [key for command in written for key in command_keys(command)]
        assert len(all_keys) == len(set(all_keys))
        ranks = [RANK[type(command)] for command in written]
        assert ranks == sorted(ranks)
    for program in programs:
        for key in {key for command in program for key in command_keys(command)}:
            places = [place[id(command)] for command in program if key in command_keys(command)]
            assert places == sorted(set(places))


@pytest.mark.usefixtures("frequent_thread_switches")
def test_no_wake_up_is_lost() -> None:
    """In each round the engine becomes idle while threads submit. After a lost wake-up this would hang."""
    engine = Engine(EchoStore())

    def rounds() -> int:
        return sum(engine.submit_sync(Upkeep()) is not None for _ in range(300))

    def loop_rounds() -> int:
        async def run() -> int:
            return sum([await engine.submit(Upkeep()) is not None for _ in range(300)])

        return asyncio.run(run())

    counts = in_threads(rounds, rounds, loop_rounds, loop_rounds)
    engine.stop_sync()

    assert counts == [300] * 4


@pytest.mark.parametrize("store", [EchoStore, MemoryStore])
async def test_throughput_of_a_hundred_coroutines(store: type[MemoryStore]) -> None:
    """Prints the throughput (`pytest -s`). Asserts only that commands share passes."""
    jobs = iter([insert(f"{n:032}") for n in range(5_000)])

    async def insert_some(engine: Engine) -> None:
        for job in jobs:
            await engine.submit(job)

    async with Engine(store()) as engine:
        began = time.perf_counter()
        await asyncio.gather(*[insert_some(engine) for _ in range(100)])
        took = time.perf_counter() - began

    print(f"100 coroutines, single inserts, {store.__name__}: {5_000 / took:,.0f}/s")  # noqa: T201
    assert engine.stats().commands == 5_000
    assert engine.stats().passes <= 100
