"""Forks. SQLite does not know of them; this keeps them from losing what was written.

SQLite notes in memory which locks a process holds on a file. A child inherits the notes but not the locks:
a connection it opened beside inherited ones would hold none, and others would write over its commits. So
the child first closes what it has inherited. That does no harm only between two uses, so a fork waits
until nobody is using SQLite.
"""

import ctypes
import os
import threading
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

import apsw

from errandry.errors import StoreUnavailable

PATIENCE = 5.0
"""So long does a fork wait. Then it goes on, and no store can be used in its child."""


class ForkAware(Protocol):
    def inherited(self) -> None:
        """The process that made it was the parent of this one: let go of it."""


class ForkGuard:
    """`with USING:` SQLite is in use, and a fork waits. A fork that waits comes before further uses."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._quiet = threading.Condition(self._lock)
        self._uses = 0
        self._forking = False
        self._pid = os.getpid()
        self._spoiled = False
        self._heirlooms: WeakSet[ForkAware] = WeakSet()
        os.register_at_fork(before=self._wait, after_in_parent=self._go_on, after_in_child=self._inherit)

    def __enter__(self) -> None:
        with self._lock:
            while self._forking:
                self._quiet.wait()
            self._uses += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._uses -= 1
            if self._forking:
                self._quiet.notify_all()

    def register(self, heirloom: ForkAware) -> None:
        """Have `heirloom` told when it finds itself in a child. Called while SQLite is in use."""
        self._heirlooms.add(heirloom)

    def keep(self, heirloom: ForkAware) -> None:
        """It is closed: the descriptors it had may be others' by now. Called while SQLite is in use."""
        self._heirlooms.discard(heirloom)

    def check(self, path: str) -> None:
        """Raise StoreUnavailable where a new connection could not lock its file."""
        if self._spoiled or self._pid != os.getpid():
            why = "this process was forked while its parent was writing: fork earlier, or start a new program"
            raise StoreUnavailable(path, why)

    def drop(self, db: apsw.Connection) -> None:
        """Close an inherited connection without touching the file; never, if it was in use."""
        if self._spoiled:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        else:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.close()

    def _wait(self) -> None:
        self._quiet.acquire()
        self._forking = True
        self._quiet.wait_for(lambda: not self._uses, PATIENCE)

    def _go_on(self) -> None:
        self._forking = False
        self._quiet.notify_all()
        self._quiet.release()

    def _inherit(self) -> None:
        self._spoiled = self._spoiled or self._uses > 0
        self._lock = threading.RLock()
        self._quiet, self._uses, self._forking = threading.Condition(self._lock), 0, False
        self._pid = os.getpid()
        for heirloom in list(self._heirlooms):
            heirloom.inherited()
        self._heirlooms.clear()


FORK_GUARD = ForkGuard()
