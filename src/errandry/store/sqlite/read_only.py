"""Reads of a database file that this user cannot write: on a read-only mount, or of another owner.

SQLite reads the write-ahead log through the `-shm` file. While a program uses the store, that file exists,
and may be opened for reading only. Otherwise SQLite would create it, which fails in a closed folder, and in
an open one would leave a file that the owner of the store cannot write. So without a log the file is read as
immutable, and each read checks that no program has changed it meanwhile.
"""

import os
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar
from urllib.parse import quote

import apsw

from errandry.errors import StoreRefused, StoreUnavailable
from errandry.store.sqlite.file import (
    BUSY_TIMEOUT,
    MODE_ADVICE,
    check_readable_schema,
    explain_errors,
)
from errandry.store.sqlite.fork import FORK_GUARD
from errandry.store.sqlite.tables import SqliteTables

T = TypeVar("T")

READ_TRIES = 5
"""Maximum number of tries of a read beside programs that write the file."""
FileState = tuple[int, ...]


class ReadOnlyFile:
    """A database file that is only read. Each read opens it, as it may be another program's at any time."""

    def __init__(self, path: str) -> None:
        self.path, self.real = path, os.path.realpath(path)
        self.read(lambda _db: None)

    def refusal(self) -> StoreRefused:
        """The error of every write."""
        return StoreRefused(self.path, f"cannot be written by this user: {MODE_ADVICE}")

    def read(self, look: Callable[[apsw.Connection], T]) -> T:
        """Call `look` with a connection in a read transaction, again if the file was changed meanwhile."""
        for _ in range(READ_TRIES):
            with explain_errors(self.path), FORK_GUARD:
                before, has_index = self._state(), self._has_index()
                try:
                    result = self._read_once(look, has_index)
                except apsw.Error:
                    if self._state() == before:
                        raise
                    continue
                if has_index or self._state() == before:
                    return result
        raise StoreUnavailable(self.path, "another program changes the file all the time")

    def read_tables(self, look: Callable[[SqliteTables], T]) -> T:
        """Like `read`, for the tables."""
        return self.read(lambda db: look(SqliteTables(db)))

    def _read_once(self, look: Callable[[apsw.Connection], T], has_index: bool) -> T:
        with closing(self._connect(has_index)) as db:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            db.set_busy_timeout(BUSY_TIMEOUT)
            db.execute("BEGIN")
            check_readable_schema(db, self.path)
            return look(db)

    def _connect(self, has_index: bool) -> apsw.Connection:
        FORK_GUARD.check(self.path)
        if has_index:
            mode = "mode=ro"
        elif _size(f"{self.real}-wal") > 0:
            why = "its write-ahead log cannot be read without write permission: copy both files to a folder"
            raise StoreRefused(self.path, f"{why} of your own")
        else:
            mode = "mode=ro&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"file:{quote(self.real)}?{mode}", flags=flags)

    def _has_index(self) -> bool:
        return os.path.exists(f"{self.real}-shm") and os.path.exists(f"{self.real}-wal")

    def _state(self) -> FileState:
        """Numbers that change with each write of another program."""
        status = os.stat(self.real)
        return status.st_ino, status.st_size, status.st_mtime_ns, _size(f"{self.real}-wal")


def _size(path: str) -> int:
    """The size of a file in bytes, -1 if there is none."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return -1
