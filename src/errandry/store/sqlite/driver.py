"""The SQLite driver: each pass is a transaction on a file that several processes may share.

Passes are written on the thread of the event loop that calls `commit`. Reads have their own thread and
connection.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import apsw

from errandry.clock import Clock
from errandry.core import check
from errandry.core.answer import Answer
from errandry.core.command import Command, Ref
from errandry.errors import InvalidValue, StoreClosed, StoreError, StoreRefused
from errandry.store.contract import StoreLimits
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.execute.apply import apply
from errandry.store.health import Finding, Grade
from errandry.store.sqlite.binding import SqliteBinding
from errandry.store.sqlite.file import (
    CHECKPOINT_PAGES,
    FILE_ERRORS,
    MODE_ADVICE,
    DatabaseFile,
    Durability,
    explain_errors,
)
from errandry.store.sqlite.fork import FORK_GUARD
from errandry.store.sqlite.gates import SQL
from errandry.store.sqlite.health import findings
from errandry.store.sqlite.read_only import ReadOnlyFile
from errandry.store.sqlite.tables import SqliteTables
from errandry.store.sqlite.turnstile import TURN_TIMEOUT, Turnstile
from errandry.store.sqlite.watch import FileWatch
from errandry.store.table_store import TableStore, command_failed, reach_failpoints
from errandry.store.tables.protocol import Tables

T = TypeVar("T")

WATCH_LINGER = 0.1
"""Seconds for which the file is still watched after the last caller has stopped waiting."""


class SqliteStore(TableStore):
    """A store in the file at `path`, which `open` creates if it is missing.

    `durability` is what an acknowledged write survives: `power`, a power cut; `process`, a crash of
    the program, while a power cut may take back the last passes (never part of one).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        durability: Durability | str = Durability.POWER,
    ) -> None:
        super().__init__(clock, limits)
        try:
            self.path = os.path.abspath(path)
        except FileNotFoundError:
            why = "is relative to the current folder, which was deleted: give an absolute path"
            raise InvalidValue("path", path, why) from None
        if durability not in tuple(Durability):
            raise InvalidValue("durability", durability, f"must be one of {', '.join(Durability)}")
        self.durability = Durability(durability)
        self._open: _OpenFile | None = None
        self._read_only: ReadOnlyFile | None = None

    @property
    def identity(self) -> str:
        return "" if self._open is None else self._open.tables.identity

    async def needs_setup(self) -> str | None:
        return None if os.path.exists(self.path) else self.path  # noqa: ASYNC240 - a stat is quick

    async def open(self) -> None:
        if self._open is not None and self._open.file.is_forked:
            self._open, self.changes = None, ChangeCounter()  # only the parent waits for the old one
        if self._open is None and self._read_only is None:
            try:
                with FORK_GUARD:
                    self._open = _OpenFile(self.path, self.durability)
                self.schema_change = self._open.file.schema_change
            except StoreRefused as error:
                if type(error) is not StoreRefused or not self.may_be_read_only:
                    raise
                self._read_only = ReadOnlyFile(self.path)

    async def close(self) -> None:
        opened, self._open, self._read_only = self._open, None, None
        if opened is not None and not opened.file.is_forked:
            await opened.stop_watching()
            with FORK_GUARD:
                opened.close()
            self.changes.increment()

    def bind(self, connection: object) -> SqliteBinding:
        return SqliteBinding(connection, self.path, self.clock, self.limits)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        if self._read_only is not None:
            raise self._read_only.refusal()
        opened = await self._opened_file()
        with explain_errors(self.path, opened.file.db), opened.turnstile, FORK_GUARD:
            try:
                answers = self._run_pass(opened, commands)
            except (StoreError, *FILE_ERRORS):
                raise
            except Exception:
                # One of the commands cannot be written. To find it, write each command on its own.
                answers = [self._commit_alone(opened, command) for command in commands]
                opened.tables.is_dirty = True
            if is_dirty := opened.tables.is_dirty:
                opened.turnstile.signal_commit()
            has_changed = opened.note_pass() or is_dirty
        if has_changed:  # a claim that finds nothing must not wake its own worker
            self.changes.increment()
        return answers

    async def wait_for_change(self, version: int, timeout: float) -> bool:
        if self._read_only is not None:
            return await self.changes.wait(version, timeout)
        opened = await self._opened_file()
        with opened.watching(self.changes):
            return await self.changes.wait(version, timeout)

    async def read(self, look: Callable[[Tables, float], T]) -> T:
        if (file := self._read_only) is not None:
            return await asyncio.to_thread(
                file.read_tables, lambda tables: look(tables, self.clock.now(tables.begin()))
            )
        opened = await self._opened_file()

        def snapshot() -> T:
            with explain_errors(self.path), FORK_GUARD, opened.snapshot() as tables:
                return look(tables, self.clock.now(tables.begin()))

        return await asyncio.get_running_loop().run_in_executor(opened.thread, snapshot)

    async def cancels(self, worker: str) -> tuple[Ref, ...]:
        check.name("worker", worker)
        if (file := self._read_only) is not None:
            return await asyncio.to_thread(file.read_tables, lambda tables: tables.cancel_requests(worker))
        opened = await self._opened_file()
        with explain_errors(self.path), FORK_GUARD:  # too small a read to send it to the reading thread
            return opened.tables.cancel_requests(worker)

    @property
    def writer(self) -> apsw.Connection:
        """The writing connection of an open store, to ask SQLite about itself."""
        if self._open is None:
            raise StoreClosed(self.path, "the store is not open")
        return self._open.file.db

    async def diagnose(self) -> list[Finding]:
        if (file := self._read_only) is not None:
            problem = Finding(Grade.WRONG, "store", "it cannot be written by this user", MODE_ADVICE)
            sound = await asyncio.to_thread(
                file.read, lambda db: list(findings(db, file.real, self.durability))
            )
            return [problem, *sound]
        opened = await self._opened_file()
        with explain_errors(self.path, opened.file.db), FORK_GUARD:
            return list(findings(opened.file.db, opened.file.real, self.durability))

    async def _opened_file(self) -> "_OpenFile":
        if self._open is None:
            raise StoreClosed(self.path, "the store is not open")
        if self._open.file.is_forked:
            await self.open()
        return self._open

    def _run_pass(self, opened: "_OpenFile", commands: Sequence[Command]) -> list[Answer]:
        """Apply the commands in one transaction: all of it becomes durable, or nothing is written."""
        opened.file.check()
        db, tables = opened.file.db, opened.tables
        db.execute(SQL["begin"])
        try:
            now = self.clock.now(tables.begin())
            answers = apply(commands, tables, now, self.limits)
            tables.save_state(now)
            reach_failpoints("before", commands, answers)
            db.execute(SQL["commit"])
            reach_failpoints("after", commands, answers)
        except BaseException:
            tables.drop_cached_jobs()
            if db.in_transaction:
                db.execute(SQL["rollback"])
            raise
        return answers

    def _commit_alone(self, opened: "_OpenFile", command: Command) -> Answer:
        """Apply a command in its own transaction, after its pass could not be written."""
        try:
            with explain_errors(self.path, opened.file.db):
                return self._run_pass(opened, [command])[0]
        except StoreError as error:
            return error
        except Exception as error:
            return command_failed(command, error)


class _OpenFile:
    """The resources of an open store: file, locks, connections, threads."""

    def __init__(self, path: str, durability: Durability) -> None:
        self.file = DatabaseFile(path, durability)
        with explain_errors(path):
            self.turnstile = Turnstile(self.file.real, TURN_TIMEOUT)
        self.tables = SqliteTables(self.file.db)
        self.watch = FileWatch(self.file.real, self._has_foreign_commit)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="errandry-read")
        self._reader: SqliteTables | None = None
        self._read_db: apsw.Connection | None = None
        self._seen_version = self._data_version()
        self._waiters = 0
        self._watcher: asyncio.Task[None] | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._checkpoint: Future[None] | None = None
        self.file.db.set_wal_hook(self._after_log_write)
        FORK_GUARD.register(self)

    @contextmanager
    def snapshot(self) -> Iterator[SqliteTables]:
        """The tables in a read transaction. To be called on the reading thread."""
        db = self._read_connection()
        self._reader = self._reader or SqliteTables(db)
        db.execute("BEGIN")
        try:
            yield self._reader
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    @contextmanager
    def watching(self, changes: ChangeCounter) -> Iterator[None]:
        """Watch for commits of other connections while a caller waits, and `WATCH_LINGER` longer.

        One task watches for all callers. It outlives a wait because a woken caller usually waits again at
        once.
        """
        loop = asyncio.get_running_loop()
        self._waiters += 1
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        if self._watcher is None or self._watcher.done():
            self._watcher = loop.create_task(self._count_foreign_commits(changes))
        watcher = self._watcher
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters and self._watcher is watcher:
                self._stop_timer = loop.call_later(WATCH_LINGER, self._stop_watcher)

    async def stop_watching(self) -> None:
        if (watcher := self._stop_watcher()) is not None:
            await asyncio.gather(watcher, return_exceptions=True)

    def _stop_watcher(self) -> asyncio.Task[None] | None:
        """Cancel the watching task; the next caller that waits starts another."""
        watcher, self._watcher = self._watcher, None
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        if watcher is not None:
            watcher.cancel()
        return watcher

    async def _count_foreign_commits(self, changes: ChangeCounter) -> None:
        while True:
            await self.watch.wait()
            changes.increment()

    def note_pass(self) -> bool:
        """Note a pass of this process, before the turnstile is released. It has seen all earlier commits.

        Returns whether another connection committed between the last look and this pass.
        """
        self.watch.discard_signals()
        has_changed, self._seen_version = self._seen_version != self.tables.version, self.tables.version
        return has_changed

    def close(self) -> None:
        FORK_GUARD.unregister(self)
        self.watch.close()
        self.thread.shutdown()
        if self._read_db is not None:
            self._read_db.close()
        self.file.db.close()
        self.turnstile.close()

    def release_in_child(self) -> None:
        self.watch.close()
        self.turnstile.close_files()  # else the child would hold the parent's turn until it ends
        for db in (self._read_db, self.file.db):
            if db is not None:
                FORK_GUARD.close_inherited(db)

    def _after_log_write(self, db: apsw.Connection, _name: str, pages: int) -> int:
        """Checkpoint the write-ahead log when it has grown too long. SQLite calls this after each commit.

        Passes go on while the reading thread copies the log. SQLite restarts the log only when all of it is
        copied, so the few pages that passes have added meanwhile are then copied on the writing connection.
        """
        if pages >= CHECKPOINT_PAGES:
            if self._checkpoint is None:
                with suppress(RuntimeError):  # the program ends: the next process that opens the file does it
                    self._checkpoint = self.thread.submit(self._checkpoint_on_read_thread)
            elif self._checkpoint.done():
                self._checkpoint = None
                _checkpoint_log(db)
        return apsw.SQLITE_OK

    def _checkpoint_on_read_thread(self) -> None:
        with suppress(StoreError), FORK_GUARD:
            _checkpoint_log(self._read_connection())

    def _read_connection(self) -> apsw.Connection:
        """The connection for reads. To be called on the reading thread."""
        self.file.check()
        if self._read_db is None:
            self._read_db = self.file.reader()
        return self._read_db

    def _has_foreign_commit(self) -> bool:
        """Whether another connection has committed since the last look."""
        with FORK_GUARD:
            version = self._data_version()
        has_changed, self._seen_version = version != self._seen_version, version
        return has_changed

    def _data_version(self) -> int:
        return int(self.file.db.pragma("data_version"))


def _checkpoint_log(db: apsw.Connection) -> None:
    """Copy as much of the log as open read transactions allow.

    After an error, or while another process copies, the rest stays in the log, where it is as safe, until
    next time.
    """
    with suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
