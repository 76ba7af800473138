"""Who lives on this host: each worker keeps a file of its own locked, and the kernel unlocks it when it dies.

Locked: alive. Obtainable: dead, for sure. Not there, as in another container or on another host: unknown.
"""

import fcntl
import logging
import os
import secrets
import tempfile
from contextlib import suppress

log = logging.getLogger("errandry.worker")

SUFFIX = ".alive"


class Liveness:
    """This worker's lock, held until `close` or the end of the process and its children.

    Where there can be none, `path` is empty and nobody knows: a crash is noticed when the leases run out.
    """

    def __init__(self) -> None:
        self.path, self._lock = "", -1
        try:
            path = os.path.join(_folder(), f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}")
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = path
        except OSError as error:
            log.warning("no lock file can be kept, so others will notice a crash late: %s", error)

    @property
    def descriptor(self) -> int | None:
        """For child processes to keep open: until they are gone too, the worker's jobs may still run."""
        return self._lock if self.path else None

    def close(self) -> None:
        if self.path:
            bury(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_dead(path: str) -> bool:
    """Whether the worker with this lock file is known to be dead.

    Paths come out of the store: one that is not a worker's of this user says nothing, and is not touched.
    """
    try:
        if os.path.dirname(path) != _folder() or not path.endswith(SUFFIX):
            return False
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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


def _folder() -> str:
    """A folder only this user can write to, the same for all its processes."""
    folder = os.path.join(tempfile.gettempdir(), f"errandry-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder
