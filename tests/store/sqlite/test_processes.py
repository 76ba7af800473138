"""Several processes on one SQLite file: working at once, killed, stopped, forked, waking each other.

Run as a program, this file is one of those processes: the functions at its end say what it does.
"""

import asyncio
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from errandry.core.answer import Inserted
from errandry.core.command import CompleteOutcome, Insert
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import StoreUnavailable
from errandry.store.sqlite import driver, fork, watch
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.tables import SqliteTables
from errandry.store.sqlite.turnstile import Turnstile
from errandry.testing.conformance import requests
from tests.pace import Pace

others = pytest.mark.slow("starts other programs")


class Child:
    """Another process: does what the function of this name below says."""

    def __init__(self, name: str, *args: object) -> None:
        python = [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.store.sqlite.test_processes",
        ]
        self.process = subprocess.Popen(
            [*python, name, *map(str, args)],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it has ended with {self.process.wait()}"
        return json.loads(line)

    def last(self) -> list[Any]:
        """Everything it says until it ends; what it was saying when it was killed does not count."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines(keepends=True)
        self.process.wait()
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self) -> list[Any]:
        """Let it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        said = self.last()
        assert self.process.returncode == 0
        return said

    def kill(self) -> None:
        self.process.kill()

    def gone(self) -> None:
        """End it, and what it has forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait()


Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def begin(name: str, *args: object) -> Child:
        children.append(Child(name, *args))
        return children[-1]

    yield begin
    for child in children:
        child.gone()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@asynccontextmanager
async def opened(path: Path | str, durability: str = "process") -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, durability=durability)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def job(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


async def ids(store: SqliteStore) -> set[str]:
    return {job.id for job in await requests.jobs(store)}


async def sound(store: SqliteStore) -> None:
    assert store.writer.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    await requests.conserved(store)


@others
class TestTogether:
    async def test_eight_make_one_new_store(self, tmp_path: Path, start: Start) -> None:
        children = [start("make", f"job-{n}") for n in range(8)]
        for child in children:
            assert child.hear() == "ready"
        for attempt in range(5):
            for child in children:
                child.say(f"{tmp_path}/{attempt}.db")

            assert [child.hear() for child in children] == ["made"] * 8

            async with opened(tmp_path / f"{attempt}.db") as store:
                assert await ids(store) == {f"job-{n}" for n in range(8)}
                assert store.writer.execute("SELECT count(*) FROM migrations").fetchall() == [(1,)]
                await sound(store)

    async def test_each_job_is_claimed_by_one_of_them(self, path: Path, start: Start) -> None:
        children = [start("work", path, f"worker-{n}", 150) for n in range(4)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say()
        done = [child.end()[0] for child in children]

        async with opened(path) as store:
            left = await requests.order(store, limit=10_000)
            await sound(store)
            finished = {job.id for job in await requests.jobs(store) if job.state is State.COMPLETED}

        inserted = [one for said in done for one in said["inserted"]]
        claimed = [one for said in done for one in said["claimed"]]
        assert len(inserted) == 4 * 150 * 3
        assert len(claimed) == len(set(claimed))
        assert sorted(claimed + left) == sorted(inserted)
        assert finished == set(claimed)
        assert all(said["claimed"] for said in done)

    async def test_a_program_that_locks_the_file_for_a_while_delays_a_pass(
        self, path: Path, start: Start
    ) -> None:
        async with opened(path) as store:
            child = start("lock", path, 0.3)
            assert child.hear() == "locked"

            assert await requests.insert(store, job("a")) == Inserted(("a",))

            assert time.monotonic() >= child.hear()

    async def test_a_stopped_process_stops_nobody_else(self, path: Path, start: Start) -> None:
        child = start("insert", path, "child")
        child.say()
        assert child.hear()
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)

        async with opened(path) as store:
            assert await requests.insert(store, job("mine")) == Inserted(("mine",))
            assert await requests.order(store) == ["child-0", "mine"]

            os.kill(child.pid, signal.SIGCONT)
            child.say()
            assert child.hear()
            assert await requests.order(store) == ["child-1"]


@others
class TestKilled:
    @pytest.mark.parametrize("durability", ["power", "process"])
    async def test_what_was_acknowledged_is_there(self, path: Path, start: Start, durability: str) -> None:
        dice = random.Random(durability)
        acked: set[str] = set()
        for attempt in range(2):
            children = [start("churn", path, f"{attempt}-{n}", durability) for n in range(2)]
            for child in children:
                for _ in range(dice.randrange(5, 60)):
                    acked |= set(child.hear())
            for child in children:
                child.kill()
                for said in child.last():
                    acked |= set(said)

            async with opened(path) as store:
                assert acked <= await ids(store)
                await sound(store)

    @pytest.mark.parametrize("point", ["begin", "write", "append", "leave", "committed"])
    async def test_a_pass_is_written_whole_or_not_at_all(self, path: Path, start: Start, point: str) -> None:
        async with opened(path) as store:
            child = start("die", path, point)
            assert child.hear() == ["before"]
            assert child.last() == []
            assert child.process.returncode == -signal.SIGKILL

            written = {"in-1", "in-2"} if point == "committed" else set()
            assert await ids(store) == {"before"} | written
            again = await requests.insert(store, job("in-1"), job("in-2"))
            assert again == Inserted(("in-1", "in-2"), frozenset(written))
            await sound(store)


class TestTurnstile:
    @others
    async def test_a_light_process_is_not_kept_waiting_by_a_busy_one(self, path: Path, start: Start) -> None:
        child = start("saturate", path)
        assert child.hear() == "busy"
        waits = []
        async with opened(path) as store:
            with Pace() as pace:
                for n in range(200):
                    began = time.perf_counter()
                    await requests.insert(store, job(f"light-{n}"))
                    waits.append(time.perf_counter() - began)
                    await asyncio.sleep(0.002)
            assert child.process.poll() is None
        child.kill()

        assert sorted(waits)[197] < pace.allowed(0.1)

    def test_who_waits_goes_before_who_comes_back(self, path: Path) -> None:
        path.touch()
        one, other = Turnstile(str(path)), Turnstile(str(path))
        order = []

        def wait() -> None:
            with other:
                order.append("other")

        with one:
            waiting = threading.Thread(target=wait)
            waiting.start()
            until(lambda: is_locked(f"{path}-next"))
            order.append("one")
        with one:
            order.append("one again")
        waiting.join()
        one.close()
        other.close()

        assert order == ["one", "other", "one again"]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@others
class TestFork:
    @pytest.mark.parametrize("way", ["_exit", "exit"])
    @pytest.mark.parametrize("use", ["used", "unused"])
    async def test_child_and_parent_both_go_on(self, path: Path, start: Start, way: str, use: str) -> None:
        family = start("fork_once", path, use, way)
        assert family.hear() == "child has ended"

        assert not can_have_it_alone(path), "the parent has lost its locks"
        family.say()

        assert family.hear() == "parent has written"
        assert family.end() == []
        assert can_have_it_alone(path)
        async with opened(path) as store:
            assert await ids(store) == {"before", "after"} | ({"child"} if use == "used" else set())
            await sound(store)

    async def test_a_child_leaves_alone_what_was_closed_before(self, path: Path) -> None:
        async with opened(path) as store:
            known = store._open  # as somebody may who is not collected yet
        pipes = [os.pipe() for _ in range(10)]  # which get the numbers of what was closed

        child = os.fork()
        if not child:
            try:
                os._exit(sum(not _is_open(end) for ends in pipes for end in ends))
            finally:
                os._exit(99)
        _, status = os.waitpid(child, 0)
        for ends in pipes:
            os.close(ends[0])
            os.close(ends[1])

        assert known is not None
        assert os.waitstatus_to_exitcode(status) == 0

    async def test_a_child_keeps_others_out_when_its_parent_has_closed(
        self, path: Path, start: Start
    ) -> None:
        family = start("fork_and_close", path)
        assert family.hear() == "parent has closed"

        assert not can_have_it_alone(path), "the child holds no locks"
        family.say()

        assert family.end() == ["child has written"]
        async with opened(path) as store:
            assert await ids(store) == {"parent", "child-1", "child-2"}
            await sound(store)

    @pytest.mark.parametrize(("way", "times"), [("_exit", 15), ("exit", 5)])
    async def test_it_may_come_in_the_middle_of_passes(
        self, path: Path, start: Start, way: str, times: int
    ) -> None:
        [passes] = start("fork_often", path, times, way).end()

        async with opened(path) as store:
            found = await ids(store)
            children = {one for one in found if one.startswith("child")}
            assert children == {f"child-{n}" for n in range(times)}
            assert len(found) == times + passes * 20
            await sound(store)

    async def test_a_child_that_lives_on_does_not_keep_the_turn_of_a_killed_parent(
        self, path: Path, start: Start
    ) -> None:
        family = start("fork_and_die", path)
        assert family.hear() == "child lives"
        assert family.process.wait() == -signal.SIGKILL

        other = start("insert", path, "other")
        other.say()

        assert other.hear()
        family.say()
        assert family.last() == ["child ends"]

    async def test_one_that_cannot_wait_for_a_pass_makes_a_child_without_store(
        self, path: Path, start: Start
    ) -> None:
        family = start("fork_inside", path)

        refused, written = family.end()

        assert refused.startswith(f"StoreUnavailable: {path}: this process was forked while its parent")
        assert written == "parent has written"
        async with opened(path) as store:
            assert await ids(store) == {"a"}
            await sound(store)


@pytest.fixture(params=["inotify", "polling"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a process learns of the writes of others."""
    if request.param == "polling":
        monkeypatch.setattr(watch, "_inotify", lambda *_: None)
    return str(request.param)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each look for the writes of others has found."""
    found: list[bool] = []
    look = driver._OpenFile._look

    def noted(self: driver._OpenFile) -> bool:
        found.append(look(self))
        return found[-1]

    monkeypatch.setattr(driver._OpenFile, "_look", noted)
    return found


class TestWake:
    async def test_a_commit_of_this_process_wakes_at_once(self, path: Path, means: str) -> None:
        async with opened(path) as store:
            waiting = asyncio.create_task(store.wait_for_change(store.version(), 60))
            await asyncio.sleep(0)
            await requests.insert(store, job("a"))
            began = time.perf_counter()

            with Pace() as pace:
                assert await waiting

            assert time.perf_counter() - began < pace.allowed(0.5)

    @others
    async def test_a_commit_of_another_process_wakes_soon(self, path: Path, start: Start, means: str) -> None:
        async with opened(path) as store:
            child = start("insert", path, "job")
            child.say()
            child.hear()
            await requests.order(store)
            late = []
            with Pace() as pace:
                for n in range(1, 31):
                    pulse = store.version()
                    assert await requests.order(store) == []
                    child.say()

                    woken = await store.wait_for_change(pulse, 30)

                    late.append(time.monotonic() - child.hear())
                    assert woken
                    assert await requests.order(store) == [f"job-{n}"]
            assert sorted(late)[15] < pace.allowed(0.05)

    @others
    @pytest.mark.parametrize("between", ["nothing", "a read", "a pass", "a claim in vain"])
    async def test_what_came_before_the_wait_is_not_missed(
        self, path: Path, start: Start, means: str, between: str
    ) -> None:
        async with opened(path) as store:
            child = start("insert", path, "job")
            for n in range(3):
                pulse = store.version()
                assert await requests.order(store) == []
                child.say()
                child.hear()
                if between == "a read":
                    assert await store.counts()
                elif between == "a pass":
                    await requests.insert(store, job(f"mine-{n}", queue="other"))
                    await requests.order(store, queues=("other",))
                elif between == "a claim in vain":
                    assert await requests.order(store, queues=("other",)) == []

                assert await store.wait_for_change(pulse, 30)

                assert await requests.order(store) == [f"job-{n}"]

    @others
    async def test_nobody_is_woken_by_what_was_seen(self, path: Path, start: Start, means: str) -> None:
        async with opened(path) as store:
            child = start("insert", path, "job")
            child.say()
            child.hear()
            pulse = store.version()
            assert await requests.order(store) == ["job-0"]
            assert await store.wait_for_change(pulse, 30)
            pulse = store.version()

            assert not await store.wait_for_change(pulse, 0.05)

    @others
    async def test_all_who_wait_are_woken(self, path: Path, start: Start, means: str) -> None:
        async with opened(path) as store:
            child = start("insert", path, "job")
            child.say()
            child.hear()
            await requests.order(store)
            pulse = store.version()
            waiting = [asyncio.create_task(store.wait_for_change(pulse, 30)) for _ in range(3)]
            gone = asyncio.create_task(store.wait_for_change(pulse, 30))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
            child.say()

            assert await asyncio.gather(*waiting) == [True] * 3

    async def test_silence_ends_with_the_timeout(self, path: Path, means: str) -> None:
        async with opened(path) as store:
            began = time.perf_counter()

            with Pace() as pace:
                assert not await store.wait_for_change(store.version(), 0.05)

            assert 0.04 < time.perf_counter() - began < pace.allowed(1.0)

    @pytest.mark.parametrize("end", ["canceled", "timed out", "closed"])
    async def test_who_no_longer_waits_leaves_nothing_behind(self, path: Path, end: str) -> None:
        loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
        async with opened(path) as store:
            signs = signs_of(store)
            waiting = asyncio.create_task(
                store.wait_for_change(store.version(), 0.5 if end == "timed out" else 30)
            )
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert is_read(loop, signs)
            if end == "canceled":
                waiting.cancel()
            elif end == "closed":
                await store.close()
            await asyncio.wait([waiting])

            assert waiting.cancelled() == (end == "canceled")
            assert is_read(loop, signs) == (end != "closed")  # who was woken mostly waits again
            if left := asyncio.all_tasks() - before:
                await asyncio.wait(left, timeout=30)
            assert not is_read(loop, signs)
            assert asyncio.all_tasks() == before

    async def test_who_waits_again_and_again_is_watched_for_by_one_task(self, path: Path) -> None:
        async with opened(path) as store:
            before = asyncio.all_tasks()
            watchers: set[asyncio.Task[Any]] = set()
            for _ in range(3):
                assert not await store.wait_for_change(store.version(), 0.01)
                watchers |= asyncio.all_tasks() - before
            waiting = asyncio.create_task(store.wait_for_change(store.version(), 30))
            await asyncio.sleep(2 * driver.LINGER)

            assert len(watchers) == 1
            assert asyncio.all_tasks() - before == {*watchers, waiting}
            waiting.cancel()

    async def test_who_waits_is_idle(self, path: Path, means: str, looks: list[bool]) -> None:
        async with opened(path) as store:
            assert not await store.wait_for_change(store.version(), 0.3)

        assert 1 <= len(looks) <= (3 if means == "inotify" else 0.3 / watch.POLL + 2)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are signs only on Linux")
    async def test_a_commit_that_can_be_seen_long_after_its_sign_is_noticed(self, path: Path) -> None:
        log = path.with_name(f"{path.name}-wal")
        log.touch()
        path.touch()
        turnstile = Turnstile(str(path))
        visible = False
        watched = watch.FileWatch(str(path), lambda: visible)
        waiting = asyncio.create_task(watched.wait())
        await asyncio.sleep(0.01)
        with log.open("ab") as file:
            file.write(b"frame")
        await asyncio.sleep(0.1)
        visible = True

        async with asyncio.timeout(30):
            await waiting
        watched.close()
        turnstile.close()

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are signs only on Linux")
    async def test_nobody_stirs_while_another_writes(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "_REST", 0.2)
        log = path.with_name(f"{path.name}-wal")
        log.touch()
        path.touch()
        turnstile = Turnstile(str(path))
        looks: list[float] = []

        def look() -> bool:
            looks.append(time.perf_counter())
            return len(looks) > 1

        watched = watch.FileWatch(str(path), look)
        waiting = asyncio.create_task(watched.wait())
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        with log.open("ab", buffering=0) as file:
            for _ in range(20):
                file.write(b"frame")
                await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            await waiting

        assert looks[0] < began
        assert looks[1] >= began + 0.2
        watched.close()
        turnstile.close()

    async def test_a_sign_that_cannot_be_given_takes_nothing_back(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(_file: int) -> None:
            raise PermissionError

        async with opened(path) as store:
            monkeypatch.setattr(os, "utime", refused)
            assert await requests.insert(store, job("a")) == Inserted(("a",))
            monkeypatch.undo()

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are signs only on Linux")
    async def test_who_takes_turns_tells_when_a_commit_can_be_seen(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "_PAUSES", (3_600.0,))
        path.touch()
        path.with_name(f"{path.name}-wal").touch()
        turnstile = Turnstile(str(path))
        looks = iter((False, True))
        watched = watch.FileWatch(str(path), lambda: next(looks))
        waiting = asyncio.create_task(watched.wait())
        await asyncio.sleep(0.01)
        assert not waiting.done()

        turnstile.tell()

        async with asyncio.timeout(30):
            await waiting
        watched.close()
        turnstile.close()

    async def test_a_write_that_is_taken_back_wakes_nobody(
        self, path: Path, means: str, looks: list[bool]
    ) -> None:
        async with opened(path) as store:
            waiting = asyncio.create_task(store.wait_for_change(store.version(), 0.3))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            db = apsw.Connection(str(path))
            db.pragma("cache_size", 5)
            db.execute("BEGIN IMMEDIATE; CREATE TABLE big (x)")
            for _ in range(50):
                db.execute("INSERT INTO big VALUES (randomblob(4000))")
            db.execute("ROLLBACK")
            db.close()

            assert not await waiting

        assert not any(looks)
        assert len(looks) <= 0.3 / watch.POLL + 12


# Small things.


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.001)


def is_locked(path: str) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def can_have_it_alone(path: Path) -> bool:
    """Whether nobody else has the file open: only then can its journal be changed."""
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "delete")
        db.pragma("journal_mode", "wal")
    except apsw.BusyError:
        return False
    finally:
        db.close()
    return True


def signs_of(store: SqliteStore) -> int:
    assert store._open is not None
    store._open.watch._set_up()
    signs = store._open.watch._told
    assert signs is not None
    return signs


def is_read(loop: asyncio.AbstractEventLoop, descriptor: int) -> bool:
    selector: Any = vars(loop)["_selector"]
    return descriptor in selector.get_map()


# What the other processes do. They answer in lines of JSON; a line from us tells them to go on.


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def make(name: str) -> None:
    """A store with a job at each path it is told."""
    tell("ready")
    for path in sys.stdin:
        async with opened(path.strip()) as store:
            await requests.insert(store, job(name))
        tell("made")


async def insert(path: str, name: str) -> None:
    """One job for each line; answers with the time when it could be seen."""
    async with opened(path) as store:
        for n, _ in enumerate(sys.stdin):
            await requests.insert(store, job(f"{name}-{n}"))
            tell(time.monotonic())


async def work(path: str, name: str, rounds: str) -> None:
    inserted: list[str] = []
    claimed: list[str] = []
    async with opened(path) as store:
        tell("ready")
        sys.stdin.readline()
        for n in range(int(rounds)):
            answer = await requests.insert(store, *(job(f"{name}-{n}-{k}") for k in range(3)))
            inserted += answer.ids
            for held in await requests.claim(store, worker=name, limit=2 + n % 3, lease=600):
                claimed.append(held.id)
                await requests.settle(store, held, CompleteOutcome())
    tell({"inserted": inserted, "claimed": claimed})


async def churn(path: str, name: str, durability: str) -> None:
    """Whole lives of jobs until killed; says which inserts were acknowledged."""
    async with opened(path, durability) as store:
        for n in range(1_000_000):
            answer = await requests.insert(store, *(job(f"{name}-{n}-{k}") for k in range(1 + n % 4)))
            tell(answer.ids)
            held = await requests.claim(store, worker=name, limit=2)
            for one in held[:1]:
                await requests.settle(store, one, CompleteOutcome('"done"'))
            if n % 10 == 0:
                await requests.upkeep(store)


async def saturate(path: str) -> None:
    async with opened(path) as store:
        for n in range(1_000_000):
            await store.commit([Insert((job(f"busy-{n}-{k}"),)) for k in range(100)])
            if n == 3:
                tell("busy")


async def die(path: str, point: str) -> None:
    """Killed at a point of a pass."""

    def now(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def after(method: Callable[..., Any]) -> Callable[..., None]:
        return lambda *args: now(method(*args))

    async with opened(path) as store:
        await requests.insert(store, job("before"))
        tell(["before"])
        if point == "committed":
            setattr(driver._OpenFile, "has_looked", now)  # noqa: B010  # mypy minds the plain assignment
        else:
            setattr(SqliteTables, point, after(getattr(SqliteTables, point)))
        await store.commit([Insert((job("in-1"),)), Insert((job("in-2"),))])


async def lock(path: str, seconds: str) -> None:
    db = apsw.Connection(path)
    db.execute("BEGIN IMMEDIATE")
    tell("locked")
    time.sleep(float(seconds))
    released = time.monotonic()
    db.execute("COMMIT")
    tell(released)


# Forks happen outside of any loop, as they do in programs.


def fork_once(path: str, use: str, way: str) -> None:
    store = SqliteStore(path)
    asyncio.run(begin(store, "before"))
    store.bell._lock.acquire()  # as if another thread were ringing it just now
    if (child := os.fork()) == 0:
        if use == "used":
            asyncio.run(add(store, "child"))
        leave(way)
    store.bell._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    tell("child has ended")
    sys.stdin.readline()
    asyncio.run(add(store, "after"))
    tell("parent has written")
    asyncio.run(store.close())


def fork_and_close(path: str) -> None:
    store = SqliteStore(path)
    asyncio.run(begin(store, "parent"))
    there, here = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        asyncio.run(add(store, "child-1"))
        os.write(here[1], b"1")
        os.read(there[0], 1)
        asyncio.run(add(store, "child-2"))
        tell("child has written")
        os._exit(0)
    os.read(here[0], 1)
    asyncio.run(store.close())
    tell("parent has closed")
    sys.stdin.readline()
    os.write(there[1], b"1")
    assert os.waitpid(child, 0)[1] == 0


def fork_often(path: str, times: str, way: str) -> None:
    """While a thread writes and reads without a pause."""
    store, stop, passes = SqliteStore(path, durability="process"), threading.Event(), [0]

    async def write() -> None:
        await store.open()
        while not stop.is_set():
            await requests.insert(store, *(job(f"parent-{passes[0]}-{k}") for k in range(20)))
            passes[0] += 1
            await store.counts()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    until(lambda: passes[0] > 2)
    for n in range(int(times)):
        if (child := os.fork()) == 0:
            asyncio.run(add(store, f"child-{n}"))
            leave(way)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    tell(passes[0])


def fork_and_die(path: str) -> None:
    """The parent is killed in a pass; the child, which never uses the store, lives until it is told."""
    store = SqliteStore(path)
    asyncio.run(begin(store, "before"))
    if os.fork() == 0:
        tell("child lives")
        sys.stdin.readline()
        tell("child ends")
        os._exit(0)
    SqliteTables.leave = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    asyncio.run(add(store, "never"))


def fork_inside(path: str) -> None:
    """In the middle of a pass, by the thread that writes it: nobody can wait for that."""
    fork.PATIENCE = 0.05
    store, leave_pass = SqliteStore(path), SqliteTables.leave

    def use() -> None:
        try:
            asyncio.run(add(SqliteStore(path), "child"))
        except StoreUnavailable as error:
            tell(f"StoreUnavailable: {error}")

    def leave_forking(self: SqliteTables, now: float) -> None:
        if (child := os.fork()) == 0:
            thread = threading.Thread(target=use)  # there is a loop in this one, the parent's
            thread.start()
            thread.join()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        leave_pass(self, now)

    SqliteTables.leave = leave_forking  # type: ignore[method-assign]
    asyncio.run(begin(store, "a"))
    tell("parent has written")
    asyncio.run(store.close())


async def begin(store: SqliteStore, name: str) -> None:
    await store.open()
    await requests.insert(store, job(name))
    assert await store.get([name])


async def add(store: SqliteStore, name: str) -> None:
    """What a process does that has the store from its parent: it just uses it."""
    if store._open is None:
        await store.open()
    assert await requests.insert(store, job(name)) == Inserted((name,))
    assert await store.get([name])


def leave(way: str) -> None:
    if way == "exit":
        sys.exit()
    os._exit(0)


ROLES: Sequence[Callable[..., Coroutine[Any, Any, None] | None]] = (
    *(make, insert, work, churn, saturate, die, lock),
    *(fork_once, fork_and_close, fork_often, fork_and_die, fork_inside),
)

if __name__ == "__main__":
    [role] = [role for role in ROLES if role.__name__ == sys.argv[1]]
    if (doing := role(*sys.argv[2:])) is not None:
        asyncio.run(doing)
