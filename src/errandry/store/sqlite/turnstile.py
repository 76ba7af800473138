"""Fair turns between the processes that write one file.

SQLite's own lock is unfair: beside a busy process, a light one may wait a second for it. Two `flock`s make a
queue of the processes: the one that holds the lock on `-next` is next, the one that holds `-turn` writes.
"""

import fcntl
import os
from contextlib import suppress
from stat import S_IMODE
from types import TracebackType


class Turnstile:
    """`with turnstile:` waits for this process's turn to write.

    The lock files have the mode and owner of the file at `path`, so each user that may write it may take
    turns.
    """

    def __init__(self, path: str) -> None:
        status = os.stat(path)
        self._next = _lock_file(f"{path}-next", status)
        try:
            self._turn = _lock_file(f"{path}-turn", status)
        except BaseException:
            os.close(self._next)
            raise

    def __enter__(self) -> None:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._next, fcntl.LOCK_UN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def signal_commit(self) -> None:
        """Wake the processes that watch the file: the commit of this turn is visible.

        An error is ignored: without the signal, those processes look again a little later.
        """
        with suppress(OSError):
            os.utime(self._turn)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._turn)


def _lock_file(path: str, database: os.stat_result) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    status, mode = os.fstat(lock), S_IMODE(database.st_mode)
    if S_IMODE(status.st_mode) != mode and status.st_uid == os.geteuid():
        os.fchmod(lock, mode)
    if os.geteuid() == 0 and status.st_uid != database.st_uid:
        os.fchown(lock, database.st_uid, database.st_gid)
    return lock
