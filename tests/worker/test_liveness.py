"""The lock files that prove which workers are alive."""

import asyncio
import fcntl
import os
import tempfile
import threading
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.claims import liveness
from errandry.claims.liveness import Liveness, is_dead, remove_lock_file, remove_stale_lock_files
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import running_worker


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the lock files, for this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Path(liveness.lock_folder())


def dead_file(folder: Path, age: float) -> Path:
    """The file of a worker that was killed this number of seconds ago."""
    path = folder / f"1-{int(age):016x}.alive"
    path.touch()
    seen_at = path.stat().st_mtime - age
    os.utime(path, (seen_at, seen_at))
    return path


def test_only_free_files_of_long_ago_are_removed(folder: Path) -> None:
    stale, recent = dead_file(folder, liveness.STALE_AFTER + 60), dead_file(folder, liveness.STALE_AFTER / 2)
    alive, other = Liveness(), folder / "notes.txt"
    for path in (Path(alive.path), other):
        path.touch()
        os.utime(path, (0, 0))

    remove_stale_lock_files()

    assert sorted(folder.iterdir()) == sorted([recent, other, Path(alive.path)])
    assert not stale.exists()
    alive.close()


def test_a_heartbeat_makes_a_file_recent(folder: Path) -> None:
    alive = Liveness()
    os.utime(alive.path, (0, 0))

    alive.touch()
    os.close(alive._lock)  # as the kernel does when a process dies
    remove_stale_lock_files()

    assert is_dead(alive.path)


def test_a_locked_file_is_not_removed() -> None:
    alive = Liveness()

    assert not remove_lock_file(alive.path)
    assert not is_dead(alive.path)
    alive.close()
    assert not remove_lock_file(alive.path)


def test_a_new_file_is_never_removed_before_it_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that remove files at once, whatever their age, run beside one that creates them."""
    monkeypatch.setattr(liveness, "STALE_AFTER", -60.0)
    monkeypatch.setattr(liveness, "LOCK_TRIES", 1_000)
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            remove_stale_lock_files()

    threads = [threading.Thread(target=remove) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            alive = Liveness()
            assert os.path.exists(alive.path)
            alive.close()
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_file_that_is_removed_before_it_is_locked_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    flock, removed = fcntl.flock, list[str]()

    def remove_first(lock: int, operation: int) -> None:
        if not removed:
            removed.append(os.readlink(f"/proc/self/fd/{lock}"))
            os.unlink(removed[0])
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)

    alive = Liveness()

    assert alive.path not in removed
    assert os.path.exists(alive.path)
    assert len(removed) == 1
    alive.close()


async def test_a_worker_removes_stale_files_when_it_starts(live: Errandry, folder: Path) -> None:
    stale, recent = dead_file(folder, liveness.STALE_AFTER + 60), dead_file(folder, 60)

    async with running_worker(live):
        async with asyncio.timeout(WAIT_TIMEOUT):
            while stale.exists():  # noqa: ASYNC110 - no event tells of a removed file
                await asyncio.sleep(0.01)

    assert [*folder.iterdir()] == [recent]
