"""The database file: opening it safely, bringing it up to date, noticing that it is gone.

Everything SQLite reports becomes an error of ours that says what to do.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import apsw

from errandry.errors import (
    ForeignDatabase,
    InvalidValue,
    SchemaTooNew,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
)
from errandry.store import sql

APPLICATION = 0x45_52_52_59
"""`application_id` of our files: "ERRY"."""

BUSY = 30_000
_MIGRATIONS = list(sql.migrations("errandry.store.sqlite.schema"))
_leaked: list[object] = []
"""Connections inherited through a fork. Closing one would drop the parent's locks: they are kept, unused."""


TROUBLE = (
    *(apsw.NotADBError, apsw.CorruptError, apsw.FullError, apsw.BusyError, apsw.LockedError),
    *(apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError),
    *(apsw.IOError, apsw.ProtocolError, apsw.InterruptError, OSError),
)
"""What is wrong with the file or the disk, not with a command."""


class Durability(StrEnum):
    """What an acknowledged write survives."""

    POWER = "power"
    PROCESS = "process"


class File:
    """One open database file with its writing connection."""

    def __init__(self, path: str, durability: Durability) -> None:
        self.path, self.durability = path, durability
        self._pid = os.getpid()
        with explained(path):
            _make(path)
            self.db = _connect(path, durability)
            self._identity = _identity(path)
            migrate(self.db, path)

    def reader(self) -> apsw.Connection:
        """Another connection to the file, which cannot write."""
        with explained(self.path):
            db = _connect(self.path, self.durability)
            db.pragma("query_only", True)
            return db

    @property
    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def leak(self, *things: object) -> None:
        """Keep what a fork has copied alive for ever, untouched."""
        _leaked.extend((self.db, *things))

    def check(self) -> None:
        """Raise StoreReplaced if the path no longer leads to the file that is open."""
        try:
            same = _identity(self.path) == self._identity
        except FileNotFoundError:
            raise StoreReplaced(self.path, "the file was deleted while it was in use") from None
        if not same:
            raise StoreReplaced(self.path, "another file was put in its place while it was in use")


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what SQLite and the system report into errors that say what to do."""
    try:
        yield
    except StoreError:
        raise
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorrupt(
            path, f"not a sound database ({error}): restore a backup or move it away"
        ) from error
    except apsw.FullError as error:
        raise StoreFull(path, "no space left on the disk: nothing of this was written") from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreUnavailable(path, "another program has kept the file locked for 30 s") from error
    except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError) as error:
        raise StoreRefused(path, f"cannot be opened for writing ({error})") from error
    except (apsw.IOError, apsw.ProtocolError, apsw.InterruptError) as error:
        raise StoreUnavailable(path, f"the disk did not obey ({error})") from error
    except OSError as error:
        raise StoreRefused(path, f"cannot be opened for writing ({error.strerror})") from error


def migrate(db: apsw.Connection, path: str) -> None:
    """Bring the schema up to date; many processes may try at once, one does it."""
    newest = _MIGRATIONS[-1][0]
    if db.pragma("application_id") == APPLICATION and db.pragma("user_version") == newest:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db, path, newest)
        for number, name, text in _MIGRATIONS:
            if number > version:
                db.execute(text)
                db.execute(
                    "INSERT INTO migrations (number, name, applied_at) VALUES (?, ?, unixepoch('subsec'))",
                    (number, name),
                )
        db.pragma("application_id", APPLICATION)
        db.pragma("user_version", newest)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _version(db: apsw.Connection, path: str, newest: int) -> int:
    """The schema's number; 0 for an empty file."""
    application, version = db.pragma("application_id"), db.pragma("user_version")
    if application != APPLICATION:
        if application or version or db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise ForeignDatabase(path, "holds another program's data: give Errandry a file of its own")
        return 0
    if version > newest:
        raise SchemaTooNew(path, f"has schema {version}, this Errandry knows {newest}: upgrade Errandry")
    return int(version)


def _make(path: str) -> None:
    """An empty file nobody else may read.

    One that exists is not touched: closing it would drop the locks this process has on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        raise InvalidValue("path", path, f"there is no folder {folder!r}: make it first") from None


def _connect(path: str, durability: Durability) -> apsw.Connection:
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=128)
    db.set_busy_timeout(BUSY)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full" if durability is Durability.POWER else "normal")
    db.pragma("mmap_size", 0)
    return db


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
