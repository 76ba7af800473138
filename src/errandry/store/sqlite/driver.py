"""The SQLite driver: passes as transactions of one file that several processes may share.

The loop `commit` runs on is the writer; reads have a thread and a connection of their own.
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
from errandry.errors import InvalidValue, StoreClosed, StoreError
from errandry.store.contract import StoreLimits
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.execute.apply import apply
from errandry.store.health import Finding
from errandry.store.sqlite.binding import SqliteBinding
from errandry.store.sqlite.file import LOG_PAGES, TROUBLE, DatabaseFile, Durability, explained
from errandry.store.sqlite.fork import FORK_GUARD
from errandry.store.sqlite.gates import SQL
from errandry.store.sqlite.health import examined
from errandry.store.sqlite.tables import SqliteTables
from errandry.store.sqlite.turnstile import Turnstile
from errandry.store.sqlite.watch import FileWatch
from errandry.store.table_store import TableStore, failed, reach
from errandry.store.tables.protocol import Tables

T = TypeVar("T")

LINGER = 0.1
"""How long the file is watched for nobody."""


class SqliteStore(TableStore):
    """A store in the file at `path`, made if it is not there.

    `durability` is what an acknowledged write survives: `power`, a power cut; `process`, a crash of
    the program, while a power cut may take back the last passes (never part of one).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        bounds: StoreLimits | None = None,
        durability: Durability | str = Durability.POWER,
    ) -> None:
        super().__init__(clock, bounds)
        self.path = os.path.abspath(path)
        if durability not in tuple(Durability):
            raise InvalidValue("durability", durability, f"must be {' or '.join(Durability)}")
        self.durability = Durability(durability)
        self._open: _OpenFile | None = None

    async def needs_setup(self) -> str | None:
        return None if os.path.exists(self.path) else self.path  # noqa: ASYNC240 - a stat is quick

    async def open(self) -> None:
        if self._open is not None and self._open.file.is_forked:
            self._open, self.bell = None, ChangeCounter()  # who waits on the old one is the parent
        if self._open is None:
            with FORK_GUARD:
                self._open = _OpenFile(self.path, self.durability)

    async def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None and not opened.file.is_forked:
            await opened.stop_watching()
            with FORK_GUARD:
                opened.close()
            self.bell.increment()

    def bind(self, connection: object) -> SqliteBinding:
        return SqliteBinding(connection, self.path, self.clock, self.bounds)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        opened = await self._opened()
        with explained(self.path, opened.file.db), opened.turnstile, FORK_GUARD:
            try:
                answers = self._pass(opened, commands)
            except (StoreError, *TROUBLE):
                raise
            except Exception:
                # One of the commands cannot be written. Which one shows when each goes alone.
                answers = [self._alone(opened, command) for command in commands]
                opened.tables.is_dirty = True
            if is_dirty := opened.tables.is_dirty:
                opened.turnstile.tell()
            has_news = opened.has_looked() or is_dirty
        if has_news:  # or whoever claims in vain would wake itself by it
            self.bell.increment()
        return answers

    async def wait_for_change(self, pulse: int, timeout: float) -> bool:
        opened = await self._opened()
        with opened.watching(self.bell):
            return await self.bell.wait(pulse, timeout)

    async def read(self, look: Callable[[Tables, float], T]) -> T:
        opened = await self._opened()

        def snapshot() -> T:
            with explained(self.path), FORK_GUARD, opened.reading() as tables:
                return look(tables, self.clock.now(tables.begin()))

        return await asyncio.get_running_loop().run_in_executor(opened.thread, snapshot)

    async def cancels(self, worker: str) -> tuple[Ref, ...]:
        check.name("worker", worker)
        opened = await self._opened()
        with explained(self.path), FORK_GUARD:  # too small a read for the way to another thread
            return opened.tables.cancels(worker)

    @property
    def writer(self) -> apsw.Connection:
        """The writing connection of an open store, to ask SQLite about itself."""
        if self._open is None:
            raise StoreClosed(self.path, "the store is not open")
        return self._open.file.db

    async def diagnose(self) -> list[Finding]:
        opened = await self._opened()
        with explained(self.path, opened.file.db), FORK_GUARD:
            return list(examined(opened.file.db, opened.file.real, self.durability))

    async def _opened(self) -> "_OpenFile":
        if self._open is None:
            raise StoreClosed(self.path, "the store is not open")
        if self._open.file.is_forked:
            await self.open()
        return self._open

    def _pass(self, opened: "_OpenFile", commands: Sequence[Command]) -> list[Answer]:
        """One transaction: all of it durable, or nothing written."""
        opened.file.check()
        db, tables = opened.file.db, opened.tables
        db.execute(SQL["begin"])
        try:
            now = self.clock.now(tables.begin())
            answers = apply(commands, tables, now, self.bounds)
            tables.leave(now)
            reach("before", commands, answers)
            db.execute(SQL["commit"])
            reach("after", commands, answers)
        except BaseException:
            tables.forget()
            if db.in_transaction:
                db.execute(SQL["rollback"])
            raise
        return answers

    def _alone(self, opened: "_OpenFile", command: Command) -> Answer:
        """A command in a transaction of its own, after one of its pass could not be written."""
        try:
            with explained(self.path, opened.file.db):
                return self._pass(opened, [command])[0]
        except StoreError as error:
            return error
        except Exception as error:
            return failed(command, error)


class _OpenFile:
    """Everything that is there only while the store is open."""

    def __init__(self, path: str, durability: Durability) -> None:
        self.file = DatabaseFile(path, durability)
        with explained(path):
            self.turnstile = Turnstile(self.file.real)
        self.tables = SqliteTables(self.file.db)
        self.watch = FileWatch(self.file.real, self._look)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="errandry-read")
        self._reader: SqliteTables | None = None
        self._read_db: apsw.Connection | None = None
        self._seen = self._version()
        self._waiting = 0
        self._watcher: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._copying: Future[None] | None = None
        self.file.db.set_wal_hook(self._grown)
        FORK_GUARD.register(self)

    @contextmanager
    def reading(self) -> Iterator[SqliteTables]:
        """The tables at one moment. Only on the reading thread."""
        db = self._connected()
        self._reader = self._reader or SqliteTables(db)
        db.execute("BEGIN")
        try:
            yield self._reader
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    @contextmanager
    def watching(self, bell: ChangeCounter) -> Iterator[None]:
        """As long as anyone waits, and a little longer, one task watches for the writes of others and rings
        the bell: who was woken mostly waits again at once."""
        loop = asyncio.get_running_loop()
        self._waiting += 1
        if self._leaving is not None:
            self._leaving.cancel()
        if self._watcher is None or self._watcher.done():
            self._watcher = loop.create_task(self._ring(bell))
        watcher = self._watcher
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting and self._watcher is watcher:
                self._leaving = loop.call_later(LINGER, self._leave)

    async def stop_watching(self) -> None:
        if (watcher := self._leave()) is not None:
            await asyncio.gather(watcher, return_exceptions=True)

    def _leave(self) -> asyncio.Task[None] | None:
        """Have the watcher stop; the next one to wait has another."""
        watcher, self._watcher = self._watcher, None
        if self._leaving is not None:
            self._leaving.cancel()
        if watcher is not None:
            watcher.cancel()
        return watcher

    async def _ring(self, bell: ChangeCounter) -> None:
        while True:
            await self.watch.wait()
            bell.increment()

    def has_looked(self) -> bool:
        """A pass was made, in whose turn nobody else writes: only what comes after it is news.

        Whether somebody else had written before it.
        """
        self.watch.hush()
        is_news, self._seen = self._seen != self.tables.version, self.tables.version
        return is_news

    def close(self) -> None:
        FORK_GUARD.keep(self)
        self.watch.close()
        self.thread.shutdown()
        if self._read_db is not None:
            self._read_db.close()
        self.file.db.close()
        self.turnstile.close()

    def inherited(self) -> None:
        self.watch.close()
        self.turnstile.close()  # or the parent's turn would last as long as this process
        for db in (self._read_db, self.file.db):
            if db is not None:
                FORK_GUARD.drop(db)

    def _grown(self, db: apsw.Connection, _name: str, pages: int) -> int:
        """The write-ahead log has so many pages after a commit: copy a long one back.

        Passes go on while the reading thread does it. They cannot begin the log anew before all of it is
        copied, so what they have added meanwhile, which is little, is copied between two of them.
        """
        if pages >= LOG_PAGES:
            if self._copying is None:
                with suppress(RuntimeError):  # the program ends: who opens the file next will see to it
                    self._copying = self.thread.submit(self._copy)
            elif self._copying.done():
                self._copying = None
                _copy_log(db)
        return apsw.SQLITE_OK

    def _copy(self) -> None:
        with suppress(StoreError), FORK_GUARD:
            _copy_log(self._connected())

    def _connected(self) -> apsw.Connection:
        """The connection of the reading thread, on which alone this is called."""
        self.file.check()
        if self._read_db is None:
            self._read_db = self.file.reader()
        return self._read_db

    def _look(self) -> bool:
        """Whether another connection has committed since the last look."""
        with FORK_GUARD:
            version = self._version()
        is_news, self._seen = version != self._seen, version
        return is_news

    def _version(self) -> int:
        return int(self.file.db.pragma("data_version"))


def _copy_log(db: apsw.Connection) -> None:
    """As far as readers let it. What is not copied now, as no disk obeyed or another process does it, stays
    in the log, where it is as safe, for the next time."""
    with suppress(apsw.Error):
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
