"""Lock files that prove which workers of this host are alive.

Each worker locks its own file, and the kernel unlocks it when the worker dies. Locked: the worker is alive.
Unlocked: it is dead. Missing, as in another container or on another host: unknown.
"""

import fcntl
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

log = logging.getLogger("errandry.worker")

SUFFIX = ".alive"
SUSPECTS_SUFFIX = ".suspects"
"""Ends the names of the files by which workers take turns with suspects, see `SuspectLock`."""
STALE_AFTER = 86_400.0
"""Seconds after the last use of a free file before workers of other stores remove it."""
LOCK_TRIES = 5
"""Maximum number of new files that a worker tries to lock."""


class Liveness:
    """This worker's lock, held until `close` or until the process and its children have ended.

    If it cannot be taken, `path` is empty, and other workers notice a crash only when the leases expire.
    """

    def __init__(self) -> None:
        self.path, self._lock, self._process = "", -1, os.getpid()
        try:
            self.path, self._lock = _lock_new_file()
        except OSError as error:
            log.warning(
                "cannot lock a liveness file, a crash would be noticed only when the leases expire: %s",
                error,
            )

    @property
    def descriptor(self) -> int | None:
        """The lock's descriptor. Child processes keep it open: the worker's jobs may run until they end."""
        return self._lock if self.path else None

    def touch(self) -> None:
        """Note in the file that the worker is in use, see `remove_stale_lock_files`."""
        if self._lock >= 0:
            with suppress(OSError):  # it is only kept for a shorter time after a crash
                os.utime(self._lock)

    def close(self) -> None:
        """Unlock the file and remove it. A forked child only closes its descriptor."""
        if self.path and os.getpid() == self._process:
            with suppress(OSError):
                os.unlink(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_dead(path: str) -> bool:
    """Whether the worker with this lock file is known to be dead.

    Paths come from the store and are not trusted: a path outside this user's lock folder is not opened.
    """
    try:
        if os.path.dirname(path) != lock_folder() or not path.endswith(SUFFIX):
            return False
        with _obtain_lock(path):
            return True
    except OSError:
        return False


def remove_lock_file(path: str) -> bool:
    """Remove the lock file of a dead worker; False if it is locked, or another process has removed it."""
    try:
        with _obtain_lock(path):  # while it is held, no other process takes or removes the file
            os.unlink(path)
    except OSError:
        return False
    return True


def remove_stale_lock_files() -> None:
    """Remove files of stores that are no longer in use.

    The file of a dead worker is the proof of its death for the other workers of its store. So it is removed
    only a day after the last heartbeat.
    """
    with suppress(OSError), os.scandir(lock_folder()) as entries:
        stale_before = time.time() - STALE_AFTER
        for entry in entries:
            with suppress(OSError):
                is_ours = entry.name.endswith((SUFFIX, SUSPECTS_SUFFIX))
                if is_ours and entry.stat(follow_symlinks=False).st_mtime < stale_before:
                    remove_lock_file(entry.path)


def _lock_new_file() -> tuple[str, int]:
    """Create a file with a new name and lock it. Tries again if a process that tests its lock was faster."""
    for _ in range(LOCK_TRIES):
        path = os.path.join(lock_folder(), f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return path, lock
        except BlockingIOError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    raise OSError(f"other processes lock or remove each new file in {lock_folder()}")


@contextmanager
def _obtain_lock(path: str) -> Iterator[None]:
    """Hold the lock of a file while the block runs; OSError if another process holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def lock_folder() -> str:
    """The folder for lock files: the same for all processes of this user, writable only by them."""
    folder = os.path.join(tempfile.gettempdir(), f"errandry-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder
