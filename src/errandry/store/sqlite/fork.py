"""Forks. SQLite does not support them; this module keeps a forked child from losing commits.

SQLite keeps a list in memory of the locks that a process holds on a file. A child inherits the list but not
the locks: a connection that it opened beside inherited ones would hold no lock, and other processes would
overwrite its commits. So the child first closes the inherited connections. That is safe only while no thread
uses SQLite, so a fork waits until no thread does.
"""

import ctypes
import os
import threading
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

import apsw

from errandry.errors import StoreUnavailable

FORK_TIMEOUT = 5.0
"""Maximum number of seconds that a fork waits for SQLite. If it waits in vain, its child can use no store."""


class ForkAware(Protocol):
    def release_in_child(self) -> None:
        """Release the resources in a forked child: they belong to the parent."""


class ForkGuard:
    """Held while SQLite is in use. A fork waits until it is free; once a fork waits, new uses wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._uses = 0
        self._is_forking = False
        self._pid = os.getpid()
        self._is_unusable = False
        self._fork_aware: WeakSet[ForkAware] = WeakSet()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )

    def __enter__(self) -> None:
        with self._lock:
            while self._is_forking:
                self._idle.wait()
            self._uses += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._uses -= 1
            if self._is_forking:
                self._idle.notify_all()

    def register(self, resource: ForkAware) -> None:
        """Call `resource.release_in_child` in each forked child. To be called while SQLite is in use."""
        self._fork_aware.add(resource)

    def unregister(self, resource: ForkAware) -> None:
        """Undo `register` for a closed resource, whose descriptors other files may have by now."""
        self._fork_aware.discard(resource)

    def check(self, path: str) -> None:
        """Raise StoreUnavailable if a new connection of this process could not lock its file."""
        if self._is_unusable or self._pid != os.getpid():
            why = "this process was forked while its parent was writing: fork earlier, or start a new program"
            raise StoreUnavailable(path, why)

    def close_inherited(self, db: apsw.Connection) -> None:
        """Close an inherited connection without touching the file. Leak it if the parent was using it."""
        if self._is_unusable:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        else:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.close()

    def _before_fork(self) -> None:
        self._idle.acquire()
        self._is_forking = True
        self._idle.wait_for(lambda: not self._uses, FORK_TIMEOUT)

    def _after_fork_in_parent(self) -> None:
        self._is_forking = False
        self._idle.notify_all()
        self._idle.release()

    def _after_fork_in_child(self) -> None:
        self._is_unusable = self._is_unusable or self._uses > 0
        self._lock = threading.RLock()
        self._idle, self._uses, self._is_forking = threading.Condition(self._lock), 0, False
        self._pid = os.getpid()
        for resource in list(self._fork_aware):
            resource.release_in_child()
        self._fork_aware.clear()


FORK_GUARD = ForkGuard()
