"""Forks. SQLite does not know of them; this keeps them from losing what was written.

SQLite notes in memory which locks a process holds on a file. A child inherits the notes but not the locks:
a connection it opened beside inherited ones would hold none, and others would write over its commits. So the
child first closes what it has inherited. That does no harm only between two uses, so a fork waits until nobody
is using SQLite.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

import apsw

from errandry.errors import StoreUnavailable

PATIENCE = 5.0
"""So long does a fork wait. Then it goes on, and no store can be used in its child."""


class Heirloom(Protocol):
    def inherited(self) -> None:
        """This process is the child of the one that made it: let go of it, by `drop` where it is a connection."""


_heirlooms: WeakSet[Heirloom] = WeakSet()
_quiet = threading.Condition()
_uses = 0
_pid = os.getpid()
_spoiled = False


@contextmanager
def using() -> Iterator[None]:
    """Inside, SQLite is in use, and a fork waits."""
    global _uses
    with _quiet:
        _uses += 1
    try:
        yield
    finally:
        with _quiet:
            _uses -= 1
            _quiet.notify_all()


def bequeath(heirloom: Heirloom) -> None:
    """Have `heirloom` told when it finds itself in a child. Called inside `using`."""
    _heirlooms.add(heirloom)


def check(path: str) -> None:
    """Raise StoreUnavailable where a connection could not lock its file."""
    if _spoiled or _pid != os.getpid():
        why = "this process was forked while its parent was writing: fork earlier, or start a new program"
        raise StoreUnavailable(path, why)


def drop(db: apsw.Connection) -> None:
    """Close an inherited connection without touching the file, or never."""
    if _spoiled:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
    else:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.close()


def _before() -> None:
    _quiet.acquire()
    _quiet.wait_for(lambda: not _uses, PATIENCE)


def _in_parent() -> None:
    _quiet.release()


def _in_child() -> None:
    global _quiet, _uses, _pid, _spoiled
    _spoiled = _spoiled or _uses > 0
    _quiet, _uses, _pid = threading.Condition(), 0, os.getpid()
    for heirloom in list(_heirlooms):
        heirloom.inherited()
    _heirlooms.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
