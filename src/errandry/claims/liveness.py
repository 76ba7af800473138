"""Lock files that prove which workers of this host are alive.

Each worker locks its own file, and the kernel unlocks it when the worker dies. Locked: the worker is alive.
Unlocked: it is dead. Missing, as in another container or on another host: unknown.
"""

import fcntl
import logging
import os
import secrets
import tempfile

log = logging.getLogger("errandry.worker")

SUFFIX = ".alive"


class Liveness:
    """This worker's lock, held until `close` or until the process and its children have ended.

    If it cannot be taken, `path` is empty, and other workers notice a crash only when the leases expire.
    """

    def __init__(self) -> None:
        self.path, self._lock, self._process = "", -1, os.getpid()
        try:
            path = os.path.join(lock_folder(), f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}")
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = path
        except OSError as error:
            log.warning(
                "cannot lock a liveness file, a crash would be noticed only when the leases expire: %s",
                error,
            )

    @property
    def descriptor(self) -> int | None:
        """The lock's descriptor. Child processes keep it open: the worker's jobs may run until they end."""
        return self._lock if self.path else None

    def close(self) -> None:
        """Unlock the file and remove it. A forked child only closes its descriptor."""
        if self.path and os.getpid() == self._process:
            remove_lock_file(self.path)
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


def remove_lock_file(path: str) -> bool:
    """Remove the lock file of a dead worker; False if it does not exist, because another has removed it."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def lock_folder() -> str:
    """The folder for lock files: the same for all processes of this user, writable only by them."""
    folder = os.path.join(tempfile.gettempdir(), f"errandry-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder
