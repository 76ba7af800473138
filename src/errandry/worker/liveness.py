"""Who lives on this host: each worker keeps a file of its own locked, and the kernel unlocks it when it dies.

Locked: alive. Obtainable: dead, for sure. Not there, as in another container or on another host: unknown.
"""

import fcntl
import os
import tempfile
from contextlib import suppress


class Liveness:
    """This worker's lock, held until `close` or the end of the process and its children."""

    def __init__(self, worker: str) -> None:
        folder = os.path.join(tempfile.gettempdir(), f"errandry-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path = os.path.join(folder, f"{worker}.alive")
        self._lock = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._lock)


def is_dead(path: str) -> bool:
    """Whether the worker with this lock file is known to be dead."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def bury(path: str) -> None:
    """Remove the lock file of a dead worker."""
    with suppress(OSError):
        os.unlink(path)
