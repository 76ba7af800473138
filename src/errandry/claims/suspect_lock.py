"""The lock of a host by which its workers take turns with suspects of a store.

A worker that runs shared suspects holds it together with others; one that runs an isolated suspect holds it
alone. A worker that waits to hold it alone holds the queue lock meanwhile, so that no other worker begins a
round before it.
"""

import fcntl
import logging
import os
from collections.abc import Callable

from errandry.claims.liveness import SUSPECTS_SUFFIX, lock_folder

log = logging.getLogger("errandry.worker")


class SuspectLock:
    """One worker's place at the lock. Each store has its own, named by what `identity` returns.

    If the files cannot be locked, only the suspects of this worker take turns: every try succeeds.
    """

    def __init__(self, identity: Callable[[], str]) -> None:
        self._identity = identity
        self._held = self._queue = -1
        self._has_failed = False

    def try_take(self, alone: bool) -> bool:
        """Take the lock if it is free; otherwise, if it is wanted `alone`, be the next to get it."""
        try:
            return self._try_take(alone)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning(
                    "cannot lock a file of this host, so its workers run suspects beside each other: %s",
                    error,
                )
            return True

    def release(self) -> None:
        """Release the lock, and give up the place in the queue."""
        for descriptor in (self._held, self._queue):
            _unlock(descriptor)
        self._held = self._queue = -1

    def _try_take(self, alone: bool) -> bool:
        if self._queue < 0:
            self._queue = self._try_lock("queue", fcntl.LOCK_EX)
        if self._queue < 0:
            return False
        self._held = self._try_lock("turn", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if self._held >= 0 or not alone:
            _unlock(self._queue)
            self._queue = -1
        return self._held >= 0

    def _try_lock(self, kind: str, mode: int) -> int:
        """The descriptor of the locked file; -1 if another worker holds the lock, or has removed the file."""
        path = os.path.join(lock_folder(), f"{self._identity()}-{kind}{SUSPECTS_SUFFIX}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                os.utime(descriptor)  # see `remove_stale_lock_files`
                return descriptor
        except BlockingIOError:
            pass  # another worker has it
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return -1


def _unlock(descriptor: int) -> None:
    """Unlock and close. A forked child has the descriptor too, so closing alone would not unlock it."""
    if descriptor >= 0:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
