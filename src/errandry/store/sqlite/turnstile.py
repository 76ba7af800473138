"""Fair turns between the processes that write one file.

SQLite's own lock is unfair: beside a busy process, a light one may wait a second for it. Two `flock`s make a
queue of the processes: the one that holds the lock on `-next` is next, the one that holds `-turn` writes.
"""

import fcntl
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from stat import S_IMODE
from types import TracebackType

from errandry.errors import StoreUnavailable

TURN_TIMEOUT = 30.0
"""Maximum seconds that a process waits for its turn, as long as it waits for a lock of SQLite."""


class Turnstile:
    """`with turnstile:` waits for this process's turn to write; StoreUnavailable after `timeout` seconds.

    The lock files have the mode and owner of the file at `path`, so each user that may write it may take
    turns. Used by one thread.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self._path, self._timeout = path, timeout
        status = os.stat(path)
        self._next = _lock_file(f"{path}-next", status)
        try:
            self._turn = _lock_file(f"{path}-turn", status)
        except BaseException:
            os.close(self._next)
            raise
        self._waiter: _Waiter | None = None

    def __enter__(self) -> None:
        is_waiting = self._waiter is not None and self._waiter.is_waiting
        if not is_waiting and _try_lock(self._next) and _try_lock(self._turn):
            fcntl.flock(self._next, fcntl.LOCK_UN)
            return
        self._waiter = self._waiter or _Waiter(self._next, self._turn)
        if not self._waiter.wait(self._timeout):
            why = f"another program has kept its turn to write for {self._timeout:g} s: is it suspended?"
            raise StoreUnavailable(self._path, why)

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
        if self._waiter is None:
            self.close_files()
        else:
            self._waiter.close()

    def close_files(self) -> None:
        """Close the lock files, whatever waits for them: for `close`, and for a forked child."""
        os.close(self._next)
        os.close(self._turn)


class _Waiter:
    """Waits for the two locks in a thread of its own, because `flock` has no timeout.

    After a timeout the thread goes on waiting, and the next `wait` continues that one: both locks belong to
    the open files, so two threads that wait for the same lock would get it together.
    """

    def __init__(self, next_lock: int, turn_lock: int) -> None:
        self._next, self._turn = next_lock, turn_lock
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._answers: SimpleQueue[OSError | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_wanted = False
        self.is_waiting = False
        self._thread = threading.Thread(target=self._run, name="errandry-turn", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Whether this process got its turn within `timeout` seconds."""
        with self._lock:
            self._is_wanted = True
            if not self.is_waiting:
                self.is_waiting = True
                self._requests.put(True)
        try:
            error = self._answers.get(timeout=timeout)
        except Empty:
            with self._lock:
                if self.is_waiting:
                    self._is_wanted = False
                    return False
            error = self._answers.get()  # it came just now
        if error is not None:
            raise error
        return True

    def close(self) -> None:
        """End the thread, which closes the files; if it waits for a lock, it does so when that wait ends."""
        self._requests.put(False)
        if not self.is_waiting:
            self._thread.join()

    def _run(self) -> None:
        while self._requests.get():
            error = self._take_turn()
            with self._lock:
                if self._is_wanted:
                    self._answers.put(error)
                elif error is None:
                    fcntl.flock(self._turn, fcntl.LOCK_UN)
                self.is_waiting = False
        os.close(self._next)
        os.close(self._turn)

    def _take_turn(self) -> OSError | None:
        try:
            fcntl.flock(self._next, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX)
            finally:
                fcntl.flock(self._next, fcntl.LOCK_UN)
        except OSError as error:
            return error
        return None


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_file(path: str, database: os.stat_result) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    status, mode = os.fstat(lock), S_IMODE(database.st_mode)
    if S_IMODE(status.st_mode) != mode and status.st_uid == os.geteuid():
        os.fchmod(lock, mode)
    if os.geteuid() == 0 and status.st_uid != database.st_uid:
        os.fchown(lock, database.st_uid, database.st_gid)
    return lock
