"""The database file: open it safely, migrate its schema, notice that it was deleted or replaced.

Errors of SQLite and of the system become errors of Errandry that say what to do.
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
from errandry.store.contract import SchemaChange
from errandry.store.sqlite.fork import FORK_GUARD
from errandry.store.tables import sql

APPLICATION_ID = 0x45_52_52_59
"""The `application_id` of Errandry's files: "ERRY"."""

BUSY_TIMEOUT = 30_000
"""Milliseconds that SQLite waits for a lock of another program."""
CHECKPOINT_PAGES = 4_000
"""Number of pages in the write-ahead log (16 MB) from which on a checkpoint copies it into the database.

A smaller number copies more: passes write the same pages again and again."""
LOG_SIZE_KEPT = 2 * CHECKPOINT_PAGES * 4_096
"""Bytes of the write-ahead log that stay allocated when it restarts: 32 MB.

While a reader holds an old snapshot, the log grows without limit. Usually it is shorter than this, and
cutting it would only cost time."""
NO_MUTEX = apsw.SQLITE_OPEN_NOMUTEX
"""Open flag without a mutex.

Only the thread of the event loop uses the writing connection, and it leaves no cursor half read that another
thread could close. So SQLite need not lock the connection for each value it reads or binds.
"""
STATEMENT_CACHE_SIZE = 512
"""Number of compiled statements that apsw keeps per connection.

A statement is evicted 512 uses after its last one, and each row that is written is a use. With a smaller
cache, each pass would compile statements that the pass before it evicted. With a much larger one, each lookup
is slower."""
MODE_ADVICE = "check the path, owner and mode of the file and its folder, and that the disk is writable"
_MIGRATIONS = list(sql.migrations("errandry.store.sqlite.schema"))

FILE_ERRORS = (
    *(apsw.NotADBError, apsw.CorruptError, apsw.FullError, apsw.BusyError, apsw.LockedError),
    *(apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError),
    *(apsw.IOError, apsw.ProtocolError, apsw.InterruptError, OSError),
)
"""Errors of the file or the disk, which no single command has caused."""


class Durability(StrEnum):
    """What an acknowledged write survives."""

    POWER = "power"
    PROCESS = "process"


class DatabaseFile:
    """One open database file with its writing connection.

    `real` is its path without symbolic links: SQLite puts its own files beside it, not beside a link.
    """

    def __init__(self, path: str, durability: Durability) -> None:
        self.path, self.durability = path, durability
        self._pid = os.getpid()
        with explain_errors(path):
            _create_file(path)
            self.real = os.path.realpath(path)
            self.db = _connect(path, durability, NO_MUTEX)
            try:
                with explain_errors(path, self.db):
                    self.schema_change = migrate(self.db, path)
                self._identity = self._file_ids()
            except BaseException:
                self.db.close()
                raise

    def reader(self) -> apsw.Connection:
        """Another connection to the file, which cannot write."""
        with explain_errors(self.path):
            db = _connect(self.path, self.durability)
            db.pragma("query_only", True)
            return db

    @property
    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def check(self) -> None:
        """Raise StoreReplaced if the path no longer leads to the open file, its log and its index."""
        try:
            is_same = self._file_ids() == self._identity
        except FileNotFoundError as error:
            name = os.path.basename(error.filename)
            raise StoreReplaced(self.path, f"the file {name} was deleted while it was in use") from None
        if not is_same:
            raise StoreReplaced(self.path, "another file was put in its place while it was in use")

    def _file_ids(self) -> tuple[int, ...]:
        file, log, index = os.stat(self.path), os.stat(f"{self.real}-wal"), os.stat(f"{self.real}-shm")
        return file.st_dev, file.st_ino, log.st_ino, index.st_ino


class explain_errors:  # noqa: N801 - used like a function; a class, because every pass enters it
    """Context manager that turns errors of SQLite and the system into errors that say what to do."""

    def __init__(self, path: str, db: apsw.Connection | None = None) -> None:
        self._path, self._db = path, db

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (explanation := self._explanation(error)) is not None:
            raise explanation from error

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
                return StoreUnavailable(path, f"the disk reported an error ({error})")
            case apsw.BusyError() | apsw.LockedError():
                return StoreUnavailable(
                    path, f"another program has kept the file locked for {BUSY_TIMEOUT} ms"
                )
            case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
                return StoreRefused(path, f"cannot be opened ({error}): {MODE_ADVICE}")
            case OSError():
                return StoreRefused(path, f"cannot be opened ({error.strerror}): {MODE_ADVICE}")
            case _:
                return None

    def _is_full(self, error: BaseException) -> bool:
        if isinstance(error, apsw.FullError):
            return True
        return self._db is not None and self._db.system_errno in (EDQUOT, EFBIG, ENOSPC)


def migrate(db: apsw.Connection, path: str) -> SchemaChange:
    """Bring the schema up to date. Several processes may call this at once; one of them does it."""
    newest = _MIGRATIONS[-1][0]
    with _transaction(db, "BEGIN"):
        if is_up_to_date(db, path):
            return SchemaChange(newest, newest)
    with _transaction(db, "BEGIN IMMEDIATE"):
        version = _schema_version(db, path)
        for number, name, text in _MIGRATIONS:
            if number > version:
                db.execute(
                    text
                ).fetchall()  # without fetchall, a statement that returns rows would stop there
                db.execute(
                    "INSERT INTO migrations (number, name, applied_at) VALUES (?, ?, unixepoch('subsec'))",
                    (number, name),
                )
        db.pragma("application_id", APPLICATION_ID)
        db.pragma("user_version", newest)
    return SchemaChange(version, newest)


def is_up_to_date(db: apsw.Connection, path: str) -> bool:
    """Whether the schema is the one that this version of Errandry uses. To be called in a transaction."""
    return _schema_version(db, path) == _MIGRATIONS[-1][0]


def check_readable_schema(db: apsw.Connection, path: str) -> None:
    """Raise StoreRefused if the schema would have to be migrated first. To be called in a transaction."""
    if not is_up_to_date(db, path):
        why = "its schema is older than this Errandry: open it once with a user who can write it"
        raise StoreRefused(path, why)


@contextmanager
def _transaction(db: apsw.Connection, begin: str) -> Iterator[None]:
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _schema_version(db: apsw.Connection, path: str) -> int:
    """The number of the schema; 0 for an empty file. Raises if the file is foreign or its schema too new.

    To be called in a transaction, because another process may be migrating the file.
    """
    application, version = db.pragma("application_id"), db.pragma("user_version")
    newest = _MIGRATIONS[-1][0]
    if application != APPLICATION_ID:
        if application or version or db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise ForeignDatabase(path, "holds another program's data: give Errandry a file of its own")
        return 0
    if version > newest:
        raise SchemaTooNew(path, f"has schema {version}, this Errandry knows {newest}: upgrade Errandry")
    return int(version)


def _create_file(path: str) -> None:
    """Create an empty file that only its owner may read.

    An existing file is not opened: closing it would drop the locks that this process has on it.
    """
    if "\0" in path:
        raise InvalidValue("path", path, "no name of a file (it contains a NUL character)")
    try:
        path.encode()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if not os.path.isfile(path):
            raise StoreRefused(path, "is not a file: give the path of a file") from None
    except FileNotFoundError:
        raise StoreRefused(path, "the folder does not exist: create it first") from None
    except ValueError as error:
        raise InvalidValue("path", path, f"no name of a file ({error})") from None
    else:
        os.fchmod(file, 0o600)  # whatever the umask
        os.close(file)


def _connect(path: str, durability: Durability, flags: int = 0) -> apsw.Connection:
    FORK_GUARD.check(path)
    flags |= apsw.SQLITE_OPEN_READWRITE
    db = apsw.Connection(path, flags=flags, statementcachesize=STATEMENT_CACHE_SIZE)
    try:
        db.set_busy_timeout(BUSY_TIMEOUT)
        if db.readonly("main"):
            raise StoreRefused(path, f"cannot be written by this user: {MODE_ADVICE}")
        with explain_errors(path, db):
            with _transaction(db, "BEGIN"):
                _schema_version(db, path)  # refuses a foreign file before anything is changed
            _switch_to_log(db, path)
        db.pragma("synchronous", "full" if durability is Durability.POWER else "normal")
        db.pragma("mmap_size", 0)
        db.pragma("journal_size_limit", LOG_SIZE_KEPT)
        db.pragma("wal_autocheckpoint", 0)  # the driver checkpoints the log: `_OpenFile._after_log_write`
        # Plans must not depend on parameter values, else SQLite would compile a statement again for other
        # values.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except BaseException:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, _has_log(path))
        db.close()
        raise
    return db


def _switch_to_log(db: apsw.Connection, path: str) -> None:
    """Switch to the write-ahead log. Retries for `BUSY_TIMEOUT`: here SQLite does not wait for a lock."""
    deadline = time.monotonic() + BUSY_TIMEOUT / 1_000
    while True:
        try:
            if db.pragma("journal_mode", "wal") != "wal":
                raise StoreRefused(path, "cannot be shared here: put it on a local disk")
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _has_log(path: str) -> bool:
    try:
        return os.path.getsize(f"{os.path.realpath(path)}-wal") > 0
    except FileNotFoundError:
        return False
