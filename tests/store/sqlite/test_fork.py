"""Forked processes and their SQLite stores."""

import os
import signal
from pathlib import Path

import apsw
import pytest

from tests.store.sqlite.processes import Start, starts_programs
from tests.store.sqlite.stores import (
    check_integrity,
    job_ids,
    open_store,
)


@starts_programs
class TestFork:
    @pytest.mark.parametrize("way", ["_exit", "exit"])
    @pytest.mark.parametrize("use", ["used", "unused"])
    async def test_child_and_parent_both_go_on_using_the_store(
        self, path: Path, start: Start, way: str, use: str
    ) -> None:
        program = start("fork_once", path, use, way)
        assert program.receive() == "child has ended"

        assert not can_lock_exclusively(path), "the parent has lost its locks"
        program.send()

        assert program.receive() == "parent has written"
        assert program.finish() == []
        assert can_lock_exclusively(path)
        async with open_store(path, durability="process") as store:
            assert await job_ids(store) == {"before", "after"} | ({"child"} if use == "used" else set())
            await check_integrity(store)

    async def test_a_child_does_not_close_descriptors_of_a_store_that_the_parent_had_closed(
        self, path: Path
    ) -> None:
        async with open_store(path, durability="process") as store:
            closed = store._open  # keep the closed file alive, as if it were not garbage-collected yet
        pipes = [os.pipe() for _ in range(10)]  # they reuse the numbers of the closed descriptors

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

        assert closed is not None
        assert os.waitstatus_to_exitcode(status) == 0

    async def test_a_child_keeps_its_locks_when_its_parent_closes_the_store(
        self, path: Path, start: Start
    ) -> None:
        program = start("fork_and_close", path)
        assert program.receive() == "parent has closed"

        assert not can_lock_exclusively(path), "the child holds no locks"
        program.send()

        assert program.finish() == ["child has written"]
        async with open_store(path, durability="process") as store:
            assert await job_ids(store) == {"parent", "child-1", "child-2"}
            await check_integrity(store)

    @pytest.mark.parametrize(("way", "times"), [("_exit", 15), ("exit", 5)])
    async def test_a_process_may_fork_while_a_thread_writes_passes(
        self, path: Path, start: Start, way: str, times: int
    ) -> None:
        [passes] = start("fork_often", path, times, way).finish()

        async with open_store(path, durability="process") as store:
            ids = await job_ids(store)
            children = {job_id for job_id in ids if job_id.startswith("child")}
            assert children == {f"child-{n}" for n in range(times)}
            assert len(ids) == times + passes * 20
            await check_integrity(store)

    async def test_a_child_does_not_keep_the_turn_of_a_killed_parent(self, path: Path, start: Start) -> None:
        program = start("fork_and_die", path)
        assert program.receive() == "child lives"
        assert program.process.wait() == -signal.SIGKILL

        other = start("insert", path, "other")
        other.send()

        assert other.receive()
        program.send()
        assert program.receive_rest() == ["child ends"]

    async def test_a_fork_inside_a_pass_leaves_the_child_without_a_store(
        self, path: Path, start: Start
    ) -> None:
        program = start("fork_inside", path)

        refused, written = program.finish()

        assert refused.startswith(f"StoreUnavailable: {path}: this process was forked while its parent")
        assert written == "parent has written"
        async with open_store(path, durability="process") as store:
            assert await job_ids(store) == {"a"}
            await check_integrity(store)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def can_lock_exclusively(path: Path) -> bool:
    """Whether no other process has the file open: only then can its journal mode be changed."""
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "delete")
        db.pragma("journal_mode", "wal")
    except apsw.BusyError:
        return False
    finally:
        db.close()
    return True
