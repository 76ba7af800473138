"""Fair turns between the processes that write one file.

SQLite's own waiting is unfair: beside a busy process, a light one may wait a second for its turn. Two
`flock`s make a queue of it: whoever holds A is next, whoever holds B writes.
"""

import fcntl
import os
from contextlib import suppress
from stat import S_IMODE
from types import TracebackType


class Turnstile:
    """`with turnstile:` waits for this process's turn to write.

    Whoever may write the file at `path` may take turns: the locks have its mode and owner.
    """

    def __init__(self, path: str) -> None:
        found = os.stat(path)
        self._next = _lock_file(f"{path}-next", found)
        try:
            self._turn = _lock_file(f"{path}-turn", found)
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

    def tell(self) -> None:
        """Give who watches a sign: what was written in this turn can be seen.

        Nothing depends on it: who gets none looks again a little later, and what was written stays so.
        """
        with suppress(OSError):
            os.utime(self._turn)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._turn)


def _lock_file(path: str, beside: os.stat_result) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    mine, mode = os.fstat(lock), S_IMODE(beside.st_mode)
    if S_IMODE(mine.st_mode) != mode and mine.st_uid == os.geteuid():
        os.fchmod(lock, mode)
    if os.geteuid() == 0 and mine.st_uid != beside.st_uid:
        os.fchown(lock, beside.st_uid, beside.st_gid)
    return lock
