"""The engine: a thread with its own event loop, on which a store is used.

The store may block this thread without blocking the program's loop, and a busy program cannot keep the
worker from renewing its leases. Writes go through the committer, reads through `call`.
"""

import asyncio
import copy
import gc
import os
import threading
import warnings
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakSet, finalize

from errandry.clock import Clock
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.errors import ErrandryError, StoreClosed
from errandry.event_loop import new_loop
from errandry.store.contract import Store
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.committer import Committer, CommitterStats, PiggybackClaims, WriteWatcher

ENGINES_BEFORE_COLLECTION = 32
"""Number of running engines in a process from which on dropped ones are looked for."""

T = TypeVar("T")
EngineCall = Callable[..., Coroutine[Any, Any, T]]


class Engine:
    """Writes to a store and reads from it, from any loop or thread.

    The first use starts the thread and opens the store. If that fails, the error is raised and the next use
    tries again. In the child of a fork, where the thread does not exist, the next use starts a new one; the
    commands that were pending belong to the parent. A stopped engine cannot be started again. One that is
    dropped without a stop is stopped when Python collects it, with a ResourceWarning.

    While `refusal` is set, no engine of this process starts, because a program is being imported.
    """

    refusal: ClassVar[str | None] = None

    def __init__(
        self, store: Store, write_limits: WriteLimits | None = None, clock: Clock | None = None
    ) -> None:
        self.store = store
        self._write_limits, self._clock = write_limits, clock
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._stopped = False
        self._finalizer: finalize[[_Session, Store], Engine] | None = None
        self._write_watchers: list[WriteWatcher] = []
        with _ENGINES_LOCK:
            _ENGINES.add(self)

    @property
    def is_running(self) -> bool:
        """True if the engine was used: its store is open, or is being opened."""
        return self._session is not None

    async def start(self) -> None:
        """Open the store. A second call changes nothing."""
        await self._start()

    def start_sync(self) -> None:
        """Like `start`, for a thread without a loop."""
        self._start_sync()

    async def submit(self, command: Command) -> Answer:
        """`Committer.submit`. Commands submitted while the store is being opened keep their order."""
        return await self._current_session().committer.submit(command)

    def send(
        self, command: Command, on_answer: Callable[[Answer], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`Committer.send`."""
        self._current_session().committer.send(command, on_answer, loop)

    async def submit_all(self, commands: Iterable[Command]) -> list[Answer]:
        """`Committer.submit_all`."""
        return await self._current_session().committer.submit_all(commands)

    def submit_sync(self, command: Command, timeout: float | None = None) -> Answer:
        """`Committer.submit_sync`."""
        return self._current_session().committer.submit_sync(command, timeout)

    def add_piggyback_claims(self, source: PiggybackClaims) -> None:
        """`Committer.add_piggyback_claims`, on the engine's loop."""
        self._current_session().committer.add_piggyback_claims(source)

    def remove_piggyback_claims(self, source: PiggybackClaims) -> None:
        """`Committer.remove_piggyback_claims`, on the engine's loop."""
        if self._session is not None:
            self._session.committer.remove_piggyback_claims(source)

    def watch_writes(self, watcher: WriteWatcher) -> None:
        """Tell a watcher, on the engine's loop, when the store cannot be written, and when it can again."""
        self._write_watchers.append(watcher)

    def unwatch_writes(self, watcher: WriteWatcher) -> None:
        """Tell this watcher nothing more."""
        self._write_watchers.remove(watcher)

    async def call(self, function: EngineCall[T], *args: Any) -> T:
        """Run a coroutine function on the engine's loop, such as a read. Canceled if the caller is."""
        session = await self._start()
        if asyncio.get_running_loop() is session.loop:
            return await function(*args)
        try:
            return await asyncio.wrap_future(session.call(function, args))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise _closed_error() from None

    def call_sync(self, function: EngineCall[T], *args: Any, timeout: float | None = None) -> T:
        """Like `call`, for a thread without a loop. After a TimeoutError the call is canceled."""
        session = self._start_sync()
        if asyncio._get_running_loop() is session.loop:
            raise RuntimeError("call_sync would wait for its own thread: await it instead")
        future = session.call(function, args)
        try:
            return future.result(timeout)
        except CancelledError:
            raise _closed_error() from None
        finally:
            future.cancel()

    async def stop(self, timeout: float | None = None) -> None:
        """Close the committer (see `Committer.close`), then the store, and end the thread.

        Calls in progress get `StoreClosed`. A second stop may set a shorter timeout.
        """
        if (session := self._retire()) is not None:
            await asyncio.wrap_future(session.opened)
            session.stop(timeout)
            await asyncio.wrap_future(session.ended)
            session.join()

    def stop_sync(self, timeout: float | None = None) -> None:
        """Like `stop`, for a thread without a loop."""
        if (session := self._retire()) is not None:
            session.opened.result()
            session.stop(timeout)
            session.join()

    def stats(self) -> CommitterStats:
        """Return the committer's statistics. May be called from any thread."""
        session = self._session
        return session.committer.stats() if session is not None else CommitterStats(None, 0, 0, 0, 0, 0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> "_Session":
        session = self._current_session()
        if not session.opened.done():
            await asyncio.wrap_future(session.opened)
        _raise_error(session.opened.result())
        return session

    def _start_sync(self) -> "_Session":
        session = self._current_session()
        _raise_error(session.opened.result())
        return session

    def _current_session(self) -> "_Session":
        session = self._session
        if session is not None and not session.failed and not self._stopped:
            return session
        _collect_dropped_engines()  # before the lock is taken: finalizers of the program may use this engine
        with self._lock:
            if self._stopped:
                raise _closed_error()
            if self.refusal is not None:
                raise StoreClosed("engine", self.refusal)
            if self._session is None or self._session.failed:
                self._session = self._new_session()
            return self._session

    def _new_session(self) -> "_Session":
        self._detach_finalizer()
        session = _Session(self.store, self._write_limits, self._clock, self._write_watchers)
        self._finalizer = finalize(self, _stop_dropped, session, self.store)
        self._finalizer.atexit = False  # the threads are daemons: a program that ends need not stop them
        return session

    def _detach_finalizer(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()

    def _retire(self) -> "_Session | None":
        with self._lock:
            self._stopped = True
            self._detach_finalizer()
            return self._session

    def _forget_session(self) -> None:
        self._detach_finalizer()
        if self._session is not None:
            _PARENT_SESSIONS.append(self._session)
        self._session = None
        self._lock = threading.Lock()


class _Session:
    """One thread and its loop, from opening the store to closing it. It has no reference to its engine."""

    def __init__(
        self,
        store: Store,
        write_limits: WriteLimits | None,
        clock: Clock | None,
        watchers: Collection[WriteWatcher],
    ) -> None:
        self.loop = new_loop()
        self.committer = Committer(store, write_limits, clock, loop=self.loop, watchers=watchers)
        self.failed = False
        self.closes_store = True
        self.opened: Future[BaseException | None] = Future()
        self.ended: Future[BaseException | None] = Future()
        for future in (self.opened, self.ended):
            future.set_running_or_notify_cancel()  # so that one canceled caller does not cancel it for all
        self._lock = threading.Lock()
        self._is_over = False
        self._calls: set[Future[Any]] = set()
        self._closings: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(store,), name="errandry-engine", daemon=True)
        self._thread.start()

    def call(self, function: EngineCall[T], args: tuple[Any, ...]) -> Future[T]:
        with self._lock:  # so that no call is sent to a loop that has ended
            if self._is_over:
                raise _closed_error()
            future = asyncio.run_coroutine_threadsafe(function(*args), self.loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    @property
    def is_over(self) -> bool:
        """Whether it takes no calls any more."""
        return self._is_over

    def stop(self, timeout: float | None) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self.loop.call_soon_threadsafe(self._close, timeout)

    def join(self) -> None:
        """Wait for the end of the thread; raise the error that ended it, if any."""
        self._thread.join()
        _raise_error(self.ended.result())

    def _close(self, timeout: float | None) -> None:
        if not self._is_over:
            self._closings.append(self.loop.create_task(self.committer.close(timeout)))
            self._stop.set()

    def _run(self, store: Store) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._live(store))
        except BaseException as raised:
            error = raised
        self.ended.set_result(error)

    async def _live(self, store: Store) -> None:
        try:
            await store.open()
        except BaseException as error:
            self.failed = True
            self.committer.fail(error)
            await self._refuse_calls()
            self.opened.set_result(error)
            return
        self.committer.begin()
        self.opened.set_result(None)
        try:
            await self._stop.wait()
            await asyncio.wait(self._closings)
        finally:
            await self._refuse_calls()
            if self.closes_store:
                await store.close()

    async def _refuse_calls(self) -> None:
        with self._lock:
            self._is_over = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()
        for _ in range(2):  # a call that was just sent becomes a task in one iteration, and ends in the next
            await asyncio.sleep(0)


def _collect_dropped_engines() -> None:
    """Run a full garbage collection if twice as many engines run as were left by the last one.

    An app is part of a reference cycle, so Python frees a dropped one at its next full collection. A program
    that opens and drops many apps may run out of file descriptors before that.
    """
    global _collection_threshold  # noqa: PLW0603 - a process has one garbage collector
    if _running_count() >= _collection_threshold:
        gc.collect()
        _collection_threshold = max(ENGINES_BEFORE_COLLECTION, 2 * _running_count())


def _engines() -> list[Engine]:
    with _ENGINES_LOCK:
        return list(_ENGINES)


def _running_count() -> int:
    sessions = [engine._session for engine in _engines()]
    return sum(session is not None and not session.is_over for session in sessions)


def _stop_dropped(session: _Session, store: Store) -> None:
    """Stop the session of a collected engine. Runs on any thread and must not wait.

    The store is closed too, unless it is in use by another engine, whose app was given the same store.
    """
    if session.is_over:
        return
    session.closes_store = all(engine.store is not store for engine in _engines())
    close = "use `async with jobs`, `await jobs.close()` or `jobs.sync.close()`"
    session.stop(None)  # first: the warning may be an exception
    warnings.warn(
        f"an app with a {type(store).__name__} was dropped without being closed: {close}", ResourceWarning, 2
    )


_collection_threshold = ENGINES_BEFORE_COLLECTION
_ENGINES: WeakSet[Engine] = WeakSet()
_ENGINES_LOCK = threading.RLock()
"""Reentrant: a finalizer may run on any thread, also on the one that has it."""
_PARENT_SESSIONS: list[_Session] = []
"""The parent's sessions, in the child of a fork. Their loops share file descriptors with the parent.

Kept so that they are never garbage-collected.
"""


def _forget_sessions() -> None:
    global _ENGINES_LOCK  # noqa: PLW0603 - a thread of the parent may have held it
    _ENGINES_LOCK = threading.RLock()
    for engine in _engines():
        engine._forget_session()


os.register_at_fork(after_in_child=_forget_sessions)


def _closed_error() -> StoreClosed:
    closed = "it was closed, by close() or at the end of its `async with` block"
    return StoreClosed("app", f"{closed}: `await jobs.open()` or `async with jobs` opens it again")


def _raise_error(error: BaseException | None) -> None:
    if error is not None:
        raise copy.copy(error) if isinstance(error, ErrandryError) else error
