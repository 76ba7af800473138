"""What the other processes of the SQLite tests do: `python -m tests.store.sqlite.programs NAME …`.

They answer in lines of JSON; a line from the test tells them to go on.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import apsw

from errandry.cli import main
from errandry.core.answer import Inserted
from errandry.core.command import (
    CompleteOutcome,
    Insert,
)
from errandry.errors import (
    ErrandryError,
    StoreUnavailable,
)
from errandry.store.sqlite import driver, file, fork
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.tables import SqliteTables
from errandry.testing.conformance import requests
from tests.store.sqlite.stores import (
    big_job,
    new_job,
    open_store,
)

NOBODY = 65_534


def report(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def make(name: str) -> None:
    """For each path in the input: open a store there and insert a job."""
    report("ready")
    for path in sys.stdin:
        async with open_store(path.strip(), durability="process") as store:
            await requests.insert(store, new_job(name))
        report("made")


async def insert(path: str, name: str) -> None:
    """For each line of input: insert a job, and report the time when it was visible."""
    async with open_store(path, durability="process") as store:
        for n, _ in enumerate(sys.stdin):
            await requests.insert(store, new_job(f"{name}-{n}"))
            report(time.monotonic())


async def work(path: str, name: str, rounds: str) -> None:
    """Insert, claim and complete jobs; report the ids of the inserted and of the claimed ones."""
    inserted: list[str] = []
    claimed: list[str] = []
    async with open_store(path, durability="process") as store:
        report("ready")
        sys.stdin.readline()
        for n in range(int(rounds)):
            answer = await requests.insert(store, *(new_job(f"{name}-{n}-{k}") for k in range(3)))
            inserted += answer.ids
            for held in await requests.claim(store, worker=name, limit=2 + n % 3, lease=600):
                claimed.append(held.id)
                await requests.settle(store, held, CompleteOutcome())
    report({"inserted": inserted, "claimed": claimed})


async def churn(path: str, name: str, durability: str) -> None:
    """Insert, claim and complete jobs until killed; report each acknowledged insert."""
    async with open_store(path, durability=durability) as store:
        for n in range(1_000_000):
            answer = await requests.insert(store, *(new_job(f"{name}-{n}-{k}") for k in range(1 + n % 4)))
            report(answer.ids)
            held = await requests.claim(store, worker=name, limit=2)
            for job in held[:1]:
                await requests.settle(store, job, CompleteOutcome('"done"'))
            if n % 10 == 0:
                await requests.run_upkeep(store)


async def saturate(path: str) -> None:
    """Insert jobs without a pause."""
    async with open_store(path, durability="process") as store:
        for n in range(1_000_000):
            await store.commit([Insert((new_job(f"busy-{n}-{k}"),)) for k in range(100)])
            if n == 3:
                report("busy")


async def die(path: str, point: str) -> None:
    """Be killed at a point of a pass."""

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def killing_after(method: Callable[..., Any]) -> Callable[..., None]:
        return lambda *args: kill(method(*args))

    async with open_store(path, durability="process") as store:
        await requests.insert(store, new_job("before"))
        report(["before"])
        if point == "committed":
            setattr(driver._OpenFile, "note_pass", kill)  # noqa: B010  # mypy rejects the plain assignment
        else:
            setattr(SqliteTables, point, killing_after(getattr(SqliteTables, point)))
        await store.commit([Insert((new_job("in-1"),)), Insert((new_job("in-2"),))])


async def lock(path: str, seconds: str) -> None:
    """Hold the write lock of the file for some seconds, and report when it was released."""
    db = apsw.Connection(path)
    db.execute("BEGIN IMMEDIATE")
    report("locked")
    time.sleep(float(seconds))
    released = time.monotonic()
    db.execute("COMMIT")
    report(released)


# The following programs fork outside of an event loop, as real programs do.


def fork_once(path: str, use: str, way: str) -> None:
    """Fork once; child and parent go on using the store."""
    store = SqliteStore(path)
    asyncio.run(open_and_insert(store, "before"))
    store.changes._lock.acquire()  # as if another thread were counting a change
    if (child := os.fork()) == 0:
        if use == "used":
            asyncio.run(insert_and_read(store, "child"))
        exit_child(way)
    store.changes._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    report("child has ended")
    sys.stdin.readline()
    asyncio.run(insert_and_read(store, "after"))
    report("parent has written")
    asyncio.run(store.close())


def fork_and_close(path: str) -> None:
    """The parent closes the store while the child uses it."""
    store = SqliteStore(path)
    asyncio.run(open_and_insert(store, "parent"))
    to_child, to_parent = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        asyncio.run(insert_and_read(store, "child-1"))
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        asyncio.run(insert_and_read(store, "child-2"))
        report("child has written")
        os._exit(0)
    os.read(to_parent[0], 1)
    asyncio.run(store.close())
    report("parent has closed")
    sys.stdin.readline()
    os.write(to_child[1], b"1")
    assert os.waitpid(child, 0)[1] == 0


def fork_often(path: str, times: str, way: str) -> None:
    """Fork while a thread writes and reads without a pause."""
    store, stop, passes = SqliteStore(path, durability="process"), threading.Event(), [0]

    async def write() -> None:
        await store.open()
        while not stop.is_set():
            await requests.insert(store, *(new_job(f"parent-{passes[0]}-{k}") for k in range(20)))
            passes[0] += 1
            await store.counts()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(write()))
    thread.start()
    wait_until(lambda: passes[0] > 2)
    for n in range(int(times)):
        if (child := os.fork()) == 0:
            asyncio.run(insert_and_read(store, f"child-{n}"))
            exit_child(way)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    report(passes[0])


def fork_and_die(path: str) -> None:
    """The parent is killed in a pass; the child, which never uses the store, lives until a line of input."""
    store = SqliteStore(path)
    asyncio.run(open_and_insert(store, "before"))
    if os.fork() == 0:
        report("child lives")
        sys.stdin.readline()
        report("child ends")
        os._exit(0)
    SqliteTables.save_state = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    asyncio.run(insert_and_read(store, "never"))


def fork_inside(path: str) -> None:
    """Fork in the middle of a pass, on the thread that writes it: the fork cannot wait for the pass."""
    fork.FORK_TIMEOUT = 0.05
    store, save_state = SqliteStore(path), SqliteTables.save_state

    def use_in_child() -> None:
        try:
            asyncio.run(insert_and_read(SqliteStore(path), "child"))
        except StoreUnavailable as error:
            report(f"StoreUnavailable: {error}")

    def save_state_forking(self: SqliteTables, now: float) -> None:
        if (child := os.fork()) == 0:
            thread = threading.Thread(target=use_in_child)  # this thread runs the parent's event loop
            thread.start()
            thread.join()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        save_state(self, now)

    SqliteTables.save_state = save_state_forking  # type: ignore[method-assign]
    asyncio.run(open_and_insert(store, "a"))
    report("parent has written")
    asyncio.run(store.close())


async def open_and_insert(store: SqliteStore, name: str) -> None:
    await store.open()
    await requests.insert(store, new_job(name))
    assert await store.get([name])


async def insert_and_read(store: SqliteStore, name: str) -> None:
    """Use the store that the parent opened."""
    if store._open is None:
        await store.open()
    assert await requests.insert(store, new_job(name)) == Inserted((name,))
    assert await store.get([name])


def exit_child(way: str) -> None:
    if way == "exit":
        sys.exit()
    os._exit(0)


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def open_as_other_user(path: str) -> None:
    """Open a store as a user without rights, and report the result."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        asyncio.run(SqliteStore(path).open())
        report(("opened", ""))
    except ErrandryError as error:
        report((type(error).__name__, str(error)))


def list_as_other_user(path: str) -> None:
    """List jobs by the command line as a user without rights, then try to pause a queue."""

    def run_commands(url: str) -> tuple[list[int], str, str]:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            codes = [main.run([*words, "--url", url]) for words in (["jobs", "ls"], ["queues", "pause", "q"])]
        return codes, out.getvalue(), err.getvalue()

    run_commands("memory:")  # imports what that user may not be allowed to read
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    report(run_commands(f"sqlite:///{path}"))


def die_migrating(path: str, rows: str) -> None:
    """Be killed in the last statement of a migration that has written this number of rows."""
    connect = file._connect

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def connect_deadly(path: str, durability: file.Durability, flags: int = 0) -> apsw.Connection:
        db = connect(path, durability, flags)
        db.create_scalar_function("die", die)
        db.pragma("cache_size", 10)
        return db

    text = f"""
        CREATE TABLE big (x);
        INSERT INTO big
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})
            SELECT randomblob(1000) FROM n;
        SELECT die();
    """
    file._connect = connect_deadly
    file._MIGRATIONS.append((file._MIGRATIONS[-1][0] + 1, "deadly", text))
    asyncio.run(SqliteStore(path).open())
    report("survived")


async def fill(path: str, size: str = "400000") -> None:
    """Insert until the system refuses to let a file grow; lift the limit and insert once more."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), hard))
    acked = []
    error: object = None
    async with open_store(path, durability="process") as store:
        try:
            for n in range(1_000):
                await requests.insert(store, big_job(n))
                acked.append(f"big-{n}")
        except ErrandryError as raised:
            error = type(raised).__name__, str(raised)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        answer = await requests.insert(store, big_job(1_000))
    report((acked, error, answer.ids))


PROGRAMS: Sequence[Callable[..., Coroutine[Any, Any, None] | None]] = (
    *(
        make,
        insert,
        work,
        churn,
        saturate,
        die,
        lock,
        open_as_other_user,
        list_as_other_user,
        die_migrating,
        fill,
    ),
    *(fork_once, fork_and_close, fork_often, fork_and_die, fork_inside),
)

if __name__ == "__main__":
    [program] = [program for program in PROGRAMS if program.__name__ == sys.argv[1]]
    if (running := program(*sys.argv[2:])) is not None:
        asyncio.run(running)
