"""The engine: a thread with a loop of its own, where a store lives.

The store may block there; nobody else's loop waits for it, and no busy loop keeps a lease from being
renewed. Commands reach it through its committer, reads through `call`.
"""

import asyncio
import copy
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakSet

from errandry.clock import Clock
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.errors import ErrandryError, StoreClosed
from errandry.event_loop import new_loop
from errandry.store.contract import Store
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.committer import Committer, CommitterStats, PiggybackClaims

T = TypeVar("T")
EngineCall = Callable[..., Coroutine[Any, Any, T]]


class Engine:
    """Writes to a store and reads from it, from any loop or thread.

    The first use starts it, which opens the store; if that fails the error is raised and the next use
    tries again. In the child of a fork, where its thread does not exist, it starts anew with nothing
    pending: what the parent had handed in is the parent's. Once stopped, it stays stopped. With a `refusal`,
    no engine of the process starts: a program is being imported that should do nothing yet.
    """

    refusal: ClassVar[str | None] = None

    def __init__(self, store: Store, limits: WriteLimits | None = None, clock: Clock | None = None) -> None:
        self.store = store
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._stopped = False
        _ENGINES.add(self)

    @property
    def is_running(self) -> bool:
        """Whether it has been used: its store is open, or being opened."""
        return self._session is not None

    async def start(self) -> None:
        """Open the store. A second call changes nothing."""
        await self._started()

    def start_sync(self) -> None:
        """`start` for a thread without a loop."""
        self._started_sync()

    async def submit(self, command: Command) -> Answer:
        """`Committer.submit`. Commands submitted while the store is being opened keep their order."""
        return await self._current().committer.submit(command)

    def send(self, command: Command, told: Callable[[Answer], None], loop: asyncio.AbstractEventLoop) -> None:
        """`Committer.send`."""
        self._current().committer.send(command, told, loop)

    async def submit_all(self, commands: Iterable[Command]) -> list[Answer]:
        """`Committer.submit_all`."""
        return await self._current().committer.submit_all(commands)

    def submit_sync(self, command: Command, timeout: float | None = None) -> Answer:
        """`Committer.submit_sync`."""
        return self._current().committer.submit_sync(command, timeout)

    def join(self, companion: PiggybackClaims) -> None:
        """`Committer.join`, on the engine's loop."""
        self._current().committer.join(companion)

    def leave(self, companion: PiggybackClaims) -> None:
        """`Committer.leave`, on the engine's loop."""
        if self._session is not None:
            self._session.committer.leave(companion)

    async def call(self, function: EngineCall[T], *args: Any) -> T:
        """Run a coroutine function where the store lives: a read, a wait. Canceled with its caller."""
        session = await self._started()
        if asyncio.get_running_loop() is session.loop:
            return await function(*args)
        try:
            return await asyncio.wrap_future(session.call(function, args))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise _closed() from None

    def call_sync(self, function: EngineCall[T], *args: Any, timeout: float | None = None) -> T:
        """`call` for a thread without a loop. After a TimeoutError the call is canceled."""
        session = self._started_sync()
        if asyncio._get_running_loop() is session.loop:
            raise RuntimeError("call_sync would wait for its own thread: await it instead")
        future = session.call(function, args)
        try:
            return future.result(timeout)
        except CancelledError:
            raise _closed() from None
        finally:
            future.cancel()

    async def stop(self, timeout: float | None = None) -> None:
        """Close the committer, as `Committer.close` does, then the store, and end the thread.

        Calls under way are refused with `StoreClosed`. A second stop may set a shorter timeout.
        """
        if (session := self._retired()) is not None:
            await asyncio.wrap_future(session.opened)
            session.stop(timeout)
            await asyncio.wrap_future(session.ended)
            session.join()

    def stop_sync(self, timeout: float | None = None) -> None:
        """`stop` for a thread without a loop."""
        if (session := self._retired()) is not None:
            session.opened.result()
            session.stop(timeout)
            session.join()

    def stats(self) -> CommitterStats:
        """How its committer does; from any thread."""
        session = self._session
        return session.committer.stats() if session is not None else CommitterStats(None, 0, 0, 0, 0, 0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _started(self) -> "_Session":
        session = self._current()
        if not session.opened.done():
            await asyncio.wrap_future(session.opened)
        _raised(session.opened.result())
        return session

    def _started_sync(self) -> "_Session":
        session = self._current()
        _raised(session.opened.result())
        return session

    def _current(self) -> "_Session":
        session = self._session
        if session is not None and not session.failed and not self._stopped:
            return session
        with self._lock:
            if self._stopped:
                raise _closed()
            if self.refusal is not None:
                raise StoreClosed("engine", self.refusal)
            if self._session is None or self._session.failed:
                self._session = _Session(self.store, self._limits, self._clock)
            return self._session

    def _retired(self) -> "_Session | None":
        with self._lock:
            self._stopped = True
            return self._session

    def _forked(self) -> None:
        if self._session is not None:
            _LEFT_BEHIND.append(self._session)
        self._session = None
        self._lock = threading.Lock()


class _Session:
    """One thread and its loop, from opening the store to closing it."""

    def __init__(self, store: Store, limits: WriteLimits | None, clock: Clock | None) -> None:
        self.loop = new_loop()
        self.committer = Committer(store, limits, clock, loop=self.loop)
        self.failed = False
        self.opened: Future[BaseException | None] = Future()
        self.ended: Future[BaseException | None] = Future()
        for future in (self.opened, self.ended):
            future.set_running_or_notify_cancel()  # who stops waiting must not cancel it for the others
        self._lock = threading.Lock()
        self._over = False
        self._calls: set[Future[Any]] = set()
        self._closings: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(store,), name="errandry-engine", daemon=True)
        self._thread.start()

    def call(self, function: EngineCall[T], args: tuple[Any, ...]) -> Future[T]:
        with self._lock:  # so that no call gets to a loop that has stopped listening
            if self._over:
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(function(*args), self.loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def stop(self, timeout: float | None) -> None:
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self._close, timeout)

    def join(self) -> None:
        """Return when the thread is gone; raises what ended it, if it was not asked to."""
        self._thread.join()
        _raised(self.ended.result())

    def _close(self, timeout: float | None) -> None:
        if not self._over:
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
            await store.close()

    async def _refuse_calls(self) -> None:
        with self._lock:
            self._over = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()
        for _ in range(2):  # a call handed in just now becomes a task in one iteration and ends in the next
            await asyncio.sleep(0)


_ENGINES: WeakSet[Engine] = WeakSet()
_LEFT_BEHIND: list[_Session] = []
"""In the child of a fork: loops that share descriptors with the parent's, and must not even be collected."""


def _forked() -> None:
    for engine in list(_ENGINES):
        engine._forked()


os.register_at_fork(after_in_child=_forked)


def _closed() -> StoreClosed:
    return StoreClosed("engine", "it was stopped")


def _raised(error: BaseException | None) -> None:
    if error is not None:
        raise copy.copy(error) if isinstance(error, ErrandryError) else error
