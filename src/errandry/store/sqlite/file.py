"""The database file: opening it safely, bringing it up to date, noticing that it is gone.

Everything SQLite reports becomes an error of ours that says what to do.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from errno import EDQUOT, EFBIG, ENOSPC
from types import TracebackType

import apsw
from msgspec import DecodeError

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
from errandry.store.sqlite.fork import FORK_GUARD
from errandry.store.tables import sql

APPLICATION = 0x45_52_52_59
"""`application_id` of our files: "ERRY"."""

BUSY = 30_000
LOG_PAGES = 4_000
"""When the write-ahead log (16 MB of it) is copied back: the same pages are written again and again."""
UNLOCKED = apsw.SQLITE_OPEN_NOMUTEX
"""Only the thread of the loop that writes uses the connection, and leaves no cursor half read that could be
closed elsewhere: SQLite need not lock it for each value that goes in or out."""
STATEMENTS = 512
"""So many uses after its last one, a compiled statement is dropped, and every row written is a use: with few,
each pass would compile what the one before it had dropped. With very many, each use looks at as many."""
_MODES = "check the path, and owner and mode of the file and its folder"
_MIGRATIONS = list(sql.migrations("errandry.store.sqlite.schema"))

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


class DatabaseFile:
    """One open database file with its writing connection.

    `real` is where it is: SQLite puts its own files beside that, not beside a link to it.
    """

    def __init__(self, path: str, durability: Durability) -> None:
        self.path, self.durability = path, durability
        self._pid = os.getpid()
        with explained(path):
            _make(path)
            self.real = os.path.realpath(path)
            self.db = _connect(path, durability, UNLOCKED)
            try:
                with explained(path, self.db):
                    migrate(self.db, path)
                self._identity = self._found()
            except BaseException:
                self.db.close()
                raise

    def reader(self) -> apsw.Connection:
        """Another connection to the file, which cannot write."""
        with explained(self.path):
            db = _connect(self.path, self.durability)
            db.pragma("query_only", True)
            return db

    @property
    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def check(self) -> None:
        """Raise StoreReplaced if the path no longer leads to the file that is open, or not to all of it."""
        try:
            same = self._found() == self._identity
        except FileNotFoundError as error:
            gone = os.path.basename(error.filename)
            raise StoreReplaced(self.path, f"the file {gone} was deleted while it was in use") from None
        if not same:
            raise StoreReplaced(self.path, "another file was put in its place while it was in use")

    def _found(self) -> tuple[int, ...]:
        file, log, index = os.stat(self.path), os.stat(f"{self.real}-wal"), os.stat(f"{self.real}-shm")
        return file.st_dev, file.st_ino, log.st_ino, index.st_ino


class explained:  # noqa: N801 - used as a function, of every pass
    """Turns what SQLite and the system report into errors that say what to do."""

    def __init__(self, path: str, db: apsw.Connection | None = None) -> None:
        self._path, self._db = path, db

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (better := self._explanation(error)) is not None:
            raise better from error

    def _explanation(self, error: BaseException) -> StoreError | None:
        path = self._path
        match error:
            case StoreError():
                return None
            case apsw.NotADBError() | apsw.CorruptError() | UnicodeDecodeError() | DecodeError():
                return StoreCorrupt(path, f"not a sound database ({error}): restore a backup or move it away")
            case apsw.FullError() | apsw.IOError() if self._is_full(error):
                return StoreFull(path, "no space left on the disk: nothing of this was written")
            case apsw.IOError() | apsw.ProtocolError() | apsw.InterruptError():
                return StoreUnavailable(path, f"the disk did not obey ({error})")
            case apsw.BusyError() | apsw.LockedError():
                return StoreUnavailable(path, f"another program has kept the file locked for {BUSY} ms")
            case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
                return StoreRefused(path, f"cannot be opened for writing ({error}): {_MODES}")
            case OSError():
                return StoreRefused(path, f"cannot be opened for writing ({error.strerror}): {_MODES}")
            case _:
                return None

    def _is_full(self, error: BaseException) -> bool:
        if isinstance(error, apsw.FullError):
            return True
        return self._db is not None and self._db.system_errno in (EDQUOT, EFBIG, ENOSPC)


def migrate(db: apsw.Connection, path: str) -> None:
    """Bring the schema up to date; many processes may try at once, one does it."""
    with _transaction(db, "BEGIN"):
        if is_up_to_date(db, path):
            return
    with _transaction(db, "BEGIN IMMEDIATE"):
        version = _version(db, path)
        for number, name, text in _MIGRATIONS:
            if number > version:
                db.execute(text).fetchall()  # a statement that has rows would stop there
                db.execute(
                    "INSERT INTO migrations (number, name, applied_at) VALUES (?, ?, unixepoch('subsec'))",
                    (number, name),
                )
        db.pragma("application_id", APPLICATION)
        db.pragma("user_version", _MIGRATIONS[-1][0])


def is_up_to_date(db: apsw.Connection, path: str) -> bool:
    """Whether its schema is the one this Errandry writes. In a transaction."""
    return _version(db, path) == _MIGRATIONS[-1][0]


@contextmanager
def _transaction(db: apsw.Connection, begin: str) -> Iterator[None]:
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _version(db: apsw.Connection, path: str) -> int:
    """The schema's number; 0 for an empty file. Raises for what is not ours, or too new.

    In a transaction: another process may be migrating the file.
    """
    application, version = db.pragma("application_id"), db.pragma("user_version")
    newest = _MIGRATIONS[-1][0]
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
        path.encode()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if not os.path.isfile(path):
            raise StoreRefused(path, "not a file: name one, or where to make one") from None
    except FileNotFoundError:
        raise StoreRefused(path, "there is no such folder: make it first") from None
    except ValueError as error:
        raise InvalidValue("path", path, f"no name of a file ({error})") from None
    else:
        os.fchmod(file, 0o600)  # whatever the umask
        os.close(file)


def _connect(path: str, durability: Durability, flags: int = 0) -> apsw.Connection:
    FORK_GUARD.check(path)
    flags |= apsw.SQLITE_OPEN_READWRITE
    db = apsw.Connection(path, flags=flags, statementcachesize=STATEMENTS)
    try:
        db.set_busy_timeout(BUSY)
        if db.readonly("main"):
            raise StoreRefused(path, f"cannot be written by this user: {_MODES}")
        with explained(path, db):
            with _transaction(db, "BEGIN"):
                _version(db, path)  # what is not ours is refused before anything is changed
            _share(db, path)
        db.pragma("synchronous", "full" if durability is Durability.POWER else "normal")
        db.pragma("mmap_size", 0)
        db.pragma("wal_autocheckpoint", 0)  # see `_Open._grown`
        # No plan of ours depends on a value; else statements would be compiled anew for each.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except BaseException:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, _has_log(path))
        db.close()
        raise
    return db


def _share(db: apsw.Connection, path: str) -> None:
    """Switch to the write-ahead log. SQLite does not wait here for others who look at a new file just now."""
    give_up = time.monotonic() + BUSY / 1_000
    while True:
        try:
            if db.pragma("journal_mode", "wal") != "wal":
                raise StoreRefused(path, "cannot be shared here: put it on a local disk")
            return
        except apsw.BusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.002)


def _has_log(path: str) -> bool:
    try:
        return os.path.getsize(f"{os.path.realpath(path)}-wal") > 0
    except FileNotFoundError:
        return False
